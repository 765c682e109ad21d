//! How long to wait before a repetition: longer each time, with jitter, never longer than a bound. Whether to
//! repeat at all is decided in `transport.rs`.

use std::time::Duration;

/// A bounded, jittered, doubling delay.
///
/// Each delay is drawn between half of the present bound and the whole of it. Half, so that a store that is
/// down is not asked in a tight loop; the other half at random, so that clients which lost the same server
/// at the same moment do not come back at the same moment.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    /// Delays that start around `first` and stay below `max`.
    pub fn new(first: Duration, max: Duration) -> Self {
        let first = first.min(max);
        Self { first, max, next: first }
    }

    /// The next delay; `dice` is a random number and decides within the bounds.
    pub fn next_delay(&mut self, dice: u32) -> Duration {
        let bound = self.next;
        self.next = bound.saturating_mul(2).min(self.max);
        let half = bound / 2;
        half + (bound - half).mul_f64(f64::from(dice) / f64::from(u32::MAX))
    }

    /// Starts over, after something has worked.
    pub fn reset(&mut self) {
        self.next = self.first;
    }

    /// Waits for the next delay.
    pub async fn wait(&mut self) {
        tokio::time::sleep(self.next_delay(roll())).await;
    }
}

/// A random number for jitter.
pub(crate) fn roll() -> u32 {
    // Without randomness from the system clients merely retry in step; that is no reason to stop.
    crate::chance::draw().map_or(u32::MAX / 2, |bits| bits as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(50);
    const MAX: Duration = Duration::from_secs(1);

    #[test]
    fn delays_double_up_to_the_bound() {
        let mut backoff = Backoff::new(FIRST, MAX);
        let delays: Vec<u128> = (0..7).map(|_| backoff.next_delay(u32::MAX).as_millis()).collect();
        assert_eq!(delays, [50, 100, 200, 400, 800, 1000, 1000]);
        backoff.reset();
        assert_eq!(backoff.next_delay(u32::MAX), FIRST);
    }

    #[test]
    fn jitter_stays_between_half_and_all() {
        for dice in [0, 1, u32::MAX / 3, u32::MAX - 1, u32::MAX] {
            let delay = Backoff::new(FIRST, MAX).next_delay(dice);
            assert!(delay >= FIRST / 2 && delay <= FIRST, "{dice}: {delay:?}");
        }
        let mut low = Backoff::new(FIRST, MAX);
        let mut high = Backoff::new(FIRST, MAX);
        assert_ne!(low.next_delay(1), high.next_delay(u32::MAX));
    }

    #[test]
    fn a_first_delay_above_the_bound_is_the_bound() {
        assert_eq!(Backoff::new(MAX, FIRST).next_delay(u32::MAX), FIRST);
    }
}
