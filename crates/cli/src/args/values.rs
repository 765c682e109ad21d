//! The other values of the command line: modes, waits, guards, who the holder is.

use std::fmt;
use std::str::FromStr;

use clap::Args;
use tenure_core::{Guard, HolderName, Mode, Scope, Token};

use super::duration::{InvalidLength, Length};

/// A number of bytes: `1048576`, `512KiB`, `256MiB`, `2GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(u64);

impl Bytes {
    /// How many.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at(digits);
        let unit = match unit.trim() {
            "" | "B" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            _ => return Err("it is a number of bytes, such as 1048576, 512KiB, 256MiB or 2GiB".to_owned()),
        };
        let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
        bytes.map(Bytes).ok_or_else(|| "it is a number of bytes, such as 256MiB".to_owned())
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// How a resource is to be held: `exclusive`, `shared`, `slots=N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeArg(pub Mode);

impl FromStr for ModeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mode = match text.split_once('=') {
            None if text == "exclusive" => Mode::Exclusive,
            None if text == "shared" => Mode::Shared,
            Some(("slots", slots)) => match slots.parse() {
                Ok(slots) if slots > 0 => Mode::Slots(slots),
                _ => return Err("a semaphore has at least one slot, such as slots=5".to_owned()),
            },
            _ => return Err("it is `exclusive`, `shared` or `slots=N`".to_owned()),
        };
        Ok(ModeArg(mode))
    }
}

impl fmt::Display for ModeArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Mode::Exclusive => f.write_str("exclusive"),
            Mode::Shared => f.write_str("shared"),
            Mode::Slots(slots) => write!(f, "slots={slots}"),
        }
    }
}

/// How long to queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitArg {
    /// As long as it takes.
    Forever,
    /// At most this long.
    AtMost(Length),
}

impl FromStr for WaitArg {
    type Err = InvalidLength;

    fn from_str(text: &str) -> Result<Self, InvalidLength> {
        if text == "forever" { Ok(WaitArg::Forever) } else { text.parse().map(WaitArg::AtMost) }
    }
}

/// Who acquires, if nothing else was said: this host, and the process that ran the command. The command
/// itself is gone before anybody could look for it.
pub fn default_holder() -> HolderName {
    let uname = rustix::system::uname();
    let host: String = uname.nodename().to_string_lossy().chars().filter(|c| !c.is_control()).collect();
    let pid = std::os::unix::process::parent_id();
    format!("{}:{pid}", if host.is_empty() { "localhost" } else { &host })
        .parse()
        .expect("a host's name without control characters is shorter than a holder's may be")
}

/// The authority under which a register is written.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Guard")]
pub struct GuardArgs {
    /// The resource whose lease guards the register, or one slot of it (`R#SLOT`)
    #[arg(long, value_name = "R", requires = "token")]
    pub resource: Option<Scope>,
    /// The token of a live exclusive grant of that resource
    #[arg(long, value_name = "N", requires = "resource", value_parser = parse_token)]
    pub token: Option<Token>,
}

impl GuardArgs {
    /// The guard, if one was given.
    pub fn guard(&self) -> Option<Guard> {
        Some(Guard { scope: self.resource.clone()?, token: self.token? })
    }
}

/// Reads a token.
pub fn parse_token(text: &str) -> Result<Token, String> {
    let number: u64 =
        text.parse().map_err(|_| "a token is a whole number, as the grant printed it".to_owned())?;
    Token::try_from(number).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_read_what_they_write() {
        for text in ["exclusive", "shared", "slots=5"] {
            assert_eq!(text.parse::<ModeArg>().expect(text).to_string(), text);
        }
        for text in ["", "slots", "slots=", "slots=0", "slots=-1", "Exclusive", "slots=1=2"] {
            assert!(text.parse::<ModeArg>().is_err(), "{text}");
        }
    }

    #[test]
    fn tokens_are_below_2_to_the_53() {
        assert!(parse_token("9007199254740991").is_ok());
        for text in ["0", "9007199254740992", "-1", "x", ""] {
            assert!(parse_token(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_default_holder_is_host_and_process() {
        let holder = default_holder();
        let (host, pid) = holder.as_str().rsplit_once(':').expect("two parts");
        assert!(!host.is_empty());
        assert!(pid.parse::<u32>().is_ok());
    }
}
