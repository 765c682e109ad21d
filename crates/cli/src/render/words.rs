//! Small pieces of sentences.

use std::time::Duration;

use tenure_wire::json::Mode;

/// A number of bytes, in the unit that people read.
pub fn bytes(number: u64) -> String {
    match number {
        0..=1023 => format!("{number} bytes"),
        1024..=1_048_575 => format!("{} KiB", number >> 10),
        _ => format!("{} MiB", number >> 20),
    }
}

/// A number with its thousands apart: `1,000,000`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Milliseconds in words: `4.2s`.
pub fn span(millis: u64) -> String {
    tenure_wire::words::span(Duration::from_millis(millis))
}

/// `1 lease`, `2 leases`.
pub fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Several words in a sentence: `1`, `1 and 2`, `1, 2 and 3`.
pub fn and(words: &[String]) -> String {
    match words {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => words.concat(),
    }
}

/// How a resource is held.
pub fn mode(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "exclusive".to_owned(),
        Mode::Shared => "shared".to_owned(),
        Mode::Slots(slots) => format!("slots={slots}"),
    }
}

/// How a resource is held, with the slot.
pub fn mode_and_slot(how: Mode, slot: Option<u32>) -> String {
    match slot {
        Some(slot) => format!("slot {slot} ({})", mode(how)),
        None => mode(how),
    }
}

/// Why a lease ended, as the end of a sentence.
pub fn why(why: &str) -> String {
    match why {
        "released" => "it was released".to_owned(),
        "expired" => "it expired: no renewal came in time".to_owned(),
        "revoked" => "an administrator revoked it".to_owned(),
        "transferred" => "its holder handed it on".to_owned(),
        "held_too_long" => "its maximum hold was reached".to_owned(),
        "taken_over" => "it had lapsed and a contender took it".to_owned(),
        "died" => "its holder was seen dead".to_owned(),
        other => format!("it ended ({other})"),
    }
}

/// Calendar time to the second, for eyes: `2026-11-15 20:48:49Z`.
pub fn short_time(rfc3339: &str) -> String {
    match (rfc3339.split_once('T'), rfc3339.split_once('.')) {
        (Some((date, _)), Some((until_seconds, _))) => {
            format!("{date} {}Z", &until_seconds[date.len() + 1..])
        }
        _ => rfc3339.to_owned(),
    }
}

/// Text that somebody else wrote, without what would move the cursor.
pub fn tame(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

/// The first `most` characters of a text, tamed.
pub fn brief(text: &str, most: usize) -> String {
    let tamed = tame(text);
    if tamed.chars().count() <= most {
        return tamed;
    }
    tamed.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        assert_eq!(short_time("2026-11-15T20:48:49.123Z"), "2026-11-15 20:48:49Z");
        assert_eq!(short_time("yesterday"), "yesterday");
    }

    #[test]
    fn foreign_text_moves_no_cursor() {
        assert_eq!(tame("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
        assert_eq!(brief("abcdef", 4), "abc…");
        assert_eq!(brief("abcd", 4), "abcd");
    }

    #[test]
    fn every_end_has_a_sentence() {
        for reason in tenure_core::EndReason::ALL {
            assert!(!why(reason.as_str()).contains('('), "{reason}");
        }
    }
}
