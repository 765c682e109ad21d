//! Waiting for conditions: with a deadline and a sentence that says what did not happen.

use std::time::{Duration, Instant};

/// How often a condition is looked at. Short against everything that tests measure.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Waits until `condition` holds; panics with `what` when it does not within `limit`.
#[track_caller]
pub fn until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    until_some(what, limit, || condition().then_some(()));
}

/// Waits until `find` finds something and gives it back; panics with `what` when it does not within `limit`.
#[track_caller]
pub fn until_some<T>(what: &str, limit: Duration, mut find: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(started.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The smallest measured value that at least `share` (0..=1) of all values do not exceed.
pub fn percentile(values: &mut [Duration], share: f64) -> Duration {
    assert!(!values.is_empty(), "nothing was measured");
    values.sort_unstable();
    let rank = (values.len() as f64 * share).ceil() as usize;
    values[rank.clamp(1, values.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values() {
        let mut values: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile(&mut values, 0.5), Duration::from_millis(50));
        assert_eq!(percentile(&mut values, 0.99), Duration::from_millis(99));
        assert_eq!(percentile(&mut values, 1.0), Duration::from_millis(100));
        assert_eq!(percentile(&mut values[..1], 0.5), Duration::from_millis(1));
    }

    #[test]
    #[should_panic(expected = "the sky falls")]
    fn what_does_not_happen_is_named() {
        until("the sky falls", Duration::from_millis(20), || false);
    }
}
