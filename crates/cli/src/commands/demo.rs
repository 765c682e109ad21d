//! `tenure demo`: selects a demo and where its output goes. The demos themselves are in `tenure-demo`.

use std::io::{self, Write};
use std::process::ExitCode;

use serde_json::json;
use tenure_demo::{Demo, Narrator, Options};

use crate::error::CommandError;
use crate::exit::Exit;
use crate::output::Output;

const EXAMPLES: &str = "\
Demos:
  lock        a holder dies, is cut off, stands still: a lock is stuck, a lease is not
  pause       a holder stops for longer than its TTL between checking its lease and writing
  paysetu     the settlement batch that ran twice, and how a successor resumes instead
  cricstream  eleven seconds without a leader at a deployment, and what is left of them
  partition   a holder that is cut off stops before its successor starts
  redlock     why a quorum of Redis locks without a token is not safe (needs redis-server)
  storm       what jitter and batching do to the renewals of a fleet of 10,000

Each starts its own nodes on free ports, in a temporary folder, shows the damage without the protection and then its \
absence with it, takes less than a minute and leaves nothing behind.

Examples:
  tenure demo pause
  tenure demo all
  tenure demo pause --json                   what was seen, as one object; the text goes to stderr";

/// Run a demo: what goes wrong without the protection, and what happens with it
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Which one, or `all`
    #[arg(value_name = "DEMO", value_parser = parse_demo)]
    pub demo: Which,
    /// Shorter times and a smaller fleet
    #[arg(long)]
    pub quick: bool,
    /// In `pause`: the token of the first holder
    #[arg(long, value_name = "N", default_value_t = 33, value_parser = clap::value_parser!(u64).range(2..=200))]
    pub token: u64,
    /// In `storm`: how many holders [default: 10000, or 1000 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(16..=100_000))]
    pub fleet: Option<u32>,
}

/// One demo, or all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Which(Vec<Demo>);

fn parse_demo(text: &str) -> Result<Which, String> {
    if text == "all" {
        return Ok(Which(Demo::ALL.to_vec()));
    }
    let found = Demo::ALL.into_iter().find(|demo| demo.name() == text);
    found.map(|demo| Which(vec![demo])).ok_or_else(|| {
        let names: Vec<&str> = Demo::ALL.iter().map(|demo| demo.name()).collect();
        format!("there is no such demo; there are {} and all", names.join(", "))
    })
}

/// Runs it.
pub fn run(args: Args, output: &Output) -> Result<Exit, CommandError> {
    let fleet = args.fleet.unwrap_or(if args.quick { 1_000 } else { 10_000 });
    let options = Options { quick: args.quick, first_token: args.token, fleet: fleet as usize };
    for (index, demo) in args.demo.0.into_iter().enumerate() {
        if index > 0 && !output.is_json() {
            output.line("\n").map_err(CommandError::Output)?;
        }
        // With --json, stdout has the JSON object alone.
        let (to, colours): (Box<dyn Write>, bool) = if output.is_json() {
            (Box::new(io::stderr()), output.talk_paint().is_wet())
        } else {
            (Box::new(io::stdout()), output.form().paint().is_wet())
        };
        let seen = tenure_demo::run(demo, &options, &mut Narrator::new(to, colours))
            .map_err(|error| CommandError::said(Exit::Other, error.to_string()))?;
        if output.is_json() {
            output
                .line(&json!({"story": demo.name(), "seen": seen}).to_string())
                .map_err(CommandError::Output)?;
        }
    }
    Ok(Exit::Done)
}

/// Runs a role of a demo, if this process was started for that. It is no command for users, so it is in no
/// help.
pub fn role() -> Option<ExitCode> {
    let mut words = std::env::args().skip(1);
    if words.next().as_deref() != Some(tenure_demo::ROLE_COMMAND) {
        return None;
    }
    let ran = tenure_demo::run_role(&words.next().unwrap_or_default());
    Some(if ran.is_ok() { Exit::Done.into() } else { Exit::Other.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demos_are_named_once_and_explained() {
        for demo in Demo::ALL {
            assert_eq!(parse_demo(demo.name()), Ok(Which(vec![demo])));
            assert!(EXAMPLES.contains(demo.name()) && EXAMPLES.contains(demo.about()), "{}", demo.name());
        }
        assert!(parse_demo("no-such-demo").unwrap_err().contains("cricstream"));
    }
}
