//! Durations as people type them: `10s`, `500ms`, `1m30s`, `1.5s`, `1h`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tenure_wire::words::span;

/// A length of time from the command line, in whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Length(Duration);

impl Length {
    /// So many seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Length(Duration::from_secs(seconds))
    }

    /// The length.
    pub const fn get(self) -> Duration {
        self.0
    }
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&span(self.0))
    }
}

/// A text that is no length of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidLength(String);

impl fmt::Display for InvalidLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; write a number and a unit, such as 500ms, 10s, 1m30s or 1h", self.0)
    }
}

impl std::error::Error for InvalidLength {}

impl FromStr for Length {
    type Err = InvalidLength;

    fn from_str(text: &str) -> Result<Self, InvalidLength> {
        let invalid = |why: &str| InvalidLength(why.to_owned());
        if text.is_empty() {
            return Err(invalid("it is empty"));
        }
        let (mut rest, mut total, mut last_unit) = (text, 0u64, u64::MAX);
        while !rest.is_empty() {
            let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
            let (number, behind) = rest.split_at(number_end);
            let unit_end = behind.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(behind.len());
            let (unit, behind) = behind.split_at(unit_end);
            rest = behind;
            let unit = match unit {
                "ms" => 1,
                "s" => 1_000,
                "m" => 60_000,
                "h" => 3_600_000,
                "d" => 86_400_000,
                "" => return Err(invalid("the unit is missing")),
                other => return Err(InvalidLength(format!("`{other}` is no unit"))),
            };
            if unit >= last_unit {
                return Err(invalid("units go from the largest to the smallest, each once"));
            }
            last_unit = unit;
            let millis =
                millis(number, unit).ok_or_else(|| InvalidLength(format!("`{number}` does not fit")))?;
            total = total.checked_add(millis).ok_or_else(|| invalid("it is too long"))?;
        }
        Ok(Length(Duration::from_millis(total)))
    }
}

/// `number` units of `unit` milliseconds; none unless they are whole milliseconds.
fn millis(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || number.ends_with('.') {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    if fraction.is_empty() {
        return Some(whole);
    }
    let digits = fraction.parse::<u64>().ok()?.checked_mul(unit)?;
    let scale = 10u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    (digits % scale == 0).then(|| whole.checked_add(digits / scale))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read_as_people_type_them() {
        for (text, millis) in [
            ("500ms", 500),
            ("10s", 10_000),
            ("1m30s", 90_000),
            ("1h", 3_600_000),
            ("1d", 86_400_000),
            ("1.5s", 1_500),
            ("0.25h", 900_000),
            ("2m0s", 120_000),
            ("0s", 0),
        ] {
            assert_eq!(text.parse::<Length>().map(Length::get), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn what_is_no_length_is_refused_with_a_reason() {
        for (text, why) in [
            ("", "empty"),
            ("10", "unit is missing"),
            ("s", "does not fit"),
            ("-1s", "`-` is no unit"),
            ("1x", "`x` is no unit"),
            ("1 s", "no unit"),
            ("1s1m", "largest to the smallest"),
            ("1s1s", "largest to the smallest"),
            ("1.s", "does not fit"),
            (".5s", "does not fit"),
            ("1.2.3s", "does not fit"),
            ("0.0001s", "does not fit"),
            ("99999999999999999999s", "does not fit"),
            ("18446744073709551615ms", ""),
        ] {
            match text.parse::<Length>() {
                Ok(length) => assert!(why.is_empty(), "{text} was read as {length}"),
                Err(error) => assert!(error.to_string().contains(why), "{text}: {error}"),
            }
        }
    }
}
