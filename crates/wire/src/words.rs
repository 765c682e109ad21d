//! How times, secrets and bytes are written for people and for JSON.

use std::fmt::Write;
use std::time::Duration;

use tenure_core::{Nonce, WallTime};
use xxhash_rust::xxh3::xxh3_128;

use crate::error::{ApiError, Code};

/// A duration in words: `4.2s`, `350ms`, `3m 20s`, `2h`.
pub fn span(duration: Duration) -> String {
    let millis = duration.as_millis();
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{millis}ms"),
        1..60 if millis % 1000 < 100 => format!("{seconds}s"),
        1..60 => format!("{seconds}.{}s", millis % 1000 / 100),
        60..3600 if seconds.is_multiple_of(60) => format!("{}m", seconds / 60),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        _ if (seconds / 60).is_multiple_of(60) => format!("{}h", seconds / 3600),
        _ => format!("{}h {}m", seconds / 3600, seconds / 60 % 60),
    }
}

/// The last millisecond of the year 9999. RFC 3339 and HTTP write years with four digits.
const LAST_MILLI: u64 = 253_402_300_799_999;

/// Calendar time as RFC 3339 text in UTC, such as `2026-11-15T20:48:49.123Z`. A clock that is set beyond the year 9999 is
/// shown at the end of that year: five digits are text that nobody parses.
pub fn calendar(wall: WallTime) -> String {
    let millis = wall.as_unix_millis().min(LAST_MILLI);
    let (days, within) = (millis / 86_400_000, millis % 86_400_000);
    let (year, month, day) = civil(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        within / 3_600_000,
        within / 60_000 % 60,
        within / 1000 % 60,
        within % 1000
    )
}

/// Calendar time as HTTP writes it, such as `Sun, 15 Nov 2026 20:48:49 GMT`. Nothing for what has no such text: a clock beyond
/// the year 9999.
pub fn http_date(wall: WallTime) -> Option<String> {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let millis = wall.as_unix_millis();
    if millis > LAST_MILLI {
        return None;
    }
    let (days, seconds) = (millis / 86_400_000, millis / 1000 % 86_400);
    let (year, month, day) = civil(days);
    let (weekday, month) = (DAYS[(days % 7) as usize], MONTHS[month as usize - 1]);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    Some(format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT"))
}

/// Year, month and day of the day that comes `days` after 1970-01-01 in the Gregorian calendar. Years are
/// taken to begin in March, so that the day added every fourth year is the last one.
fn civil(days: u64) -> (u64, u64, u64) {
    const DAYS_400_YEARS: u64 = 146_097;
    // From 0000-03-01 to 1970-01-01.
    let days = days + 719_468;
    let (era, day_of_era) = (days / DAYS_400_YEARS, days % DAYS_400_YEARS);
    let leap_days_skipped = day_of_era / 1_460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leap_days_skipped) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes every write");
        text
    })
}

/// A nonce from the bytes that a client drew: at least 16. More are folded into 16 by a hash, always the same way.
pub fn nonce(bytes: &[u8]) -> Result<Nonce, ApiError> {
    match <[u8; 16]>::try_from(bytes) {
        Ok(exact) => Ok(Nonce::new(exact)),
        Err(_) if bytes.len() > 16 => Ok(Nonce::new(xxh3_128(bytes).to_be_bytes())),
        Err(_) => Err(ApiError::new(
            Code::InvalidNonce,
            format!("the nonce has {} bytes, at least 16 are needed", bytes.len()),
        )
        .hint("draw 128 random bits; a guessable nonce would hand the session to whoever guesses it")),
    }
}

/// A nonce written as hexadecimal digits: at least 32.
pub fn nonce_from_hex(text: &str) -> Result<Nonce, ApiError> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2)).ok_or_else(|| {
        ApiError::new(Code::InvalidNonce, "the nonce is not an even number of hexadecimal digits")
            .hint("write at least 32 of them, such as the output of `openssl rand -hex 16`")
    })?;
    nonce(&digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect::<Vec<u8>>())
}

/// A duration as whole milliseconds. What is left of something is rounded down: never promise more than there is.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calendar_time_is_gregorian() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_200_000, "2024-03-01T00:00:00.000Z"),
            (1_767_225_599_123, "2025-12-31T23:59:59.123Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(calendar(WallTime::from_unix_millis(millis)), text);
        }
        for beyond in [253_402_300_800_000, u64::MAX] {
            assert_eq!(calendar(WallTime::from_unix_millis(beyond)), "9999-12-31T23:59:59.999Z");
        }
    }

    #[test]
    fn http_dates_end_with_the_year_9999() {
        for (millis, text) in [
            (0, Some("Thu, 01 Jan 1970 00:00:00 GMT")),
            (784_111_777_000, Some("Sun, 06 Nov 1994 08:49:37 GMT")),
            (951_868_799_999, Some("Tue, 29 Feb 2000 23:59:59 GMT")),
            (253_402_300_799_999, Some("Fri, 31 Dec 9999 23:59:59 GMT")),
            (253_402_300_800_000, None),
            (u64::MAX, None),
        ] {
            assert_eq!(http_date(WallTime::from_unix_millis(millis)).as_deref(), text);
        }
    }

    #[test]
    fn spans_read_well() {
        for (millis, text) in [
            (0, "0ms"),
            (350, "350ms"),
            (4_000, "4s"),
            (4_250, "4.2s"),
            (60_000, "1m"),
            (200_000, "3m 20s"),
            (7_200_000, "2h"),
            (9_000_000, "2h 30m"),
        ] {
            assert_eq!(span(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn a_nonce_has_128_bits_or_more() {
        let exact = nonce_from_hex("00112233445566778899aabbccddeeff").unwrap();
        assert_eq!(exact.as_bytes()[..3], [0, 0x11, 0x22]);
        let long = nonce_from_hex(&"AB".repeat(40)).unwrap();
        assert_eq!(long, nonce_from_hex(&"ab".repeat(40)).unwrap(), "folded the same way every time");
        assert_ne!(long, nonce_from_hex(&"ab".repeat(41)).unwrap());
        for bad in ["", "abcd", "0", "zz112233445566778899aabbccddeeff", "é0112233445566778899aabbccddeef"] {
            assert_eq!(nonce_from_hex(bad).unwrap_err().code, Code::InvalidNonce, "{bad}");
        }
    }
}
