//! A reading that processes of one machine can tell each other.
//!
//! A [`tenure_core::Moment`] means nothing outside of the process that read it, and so cannot be sent. Two
//! processes that watch each other on one machine need one agreed moment, though: "kill everything at this
//! reading" must mean the same to both, however long the message was on its way. On one kernel the two clocks
//! are the same for all processes (of one time namespace), so a reading may be compared there, and nowhere
//! else: it never goes over a network.

use std::time::Duration;

/// One reading of the machine's two clocks: one counts suspended time, the other is never slewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineMoment {
    boot: Duration,
    raw: Duration,
}

impl MachineMoment {
    /// A reading made of what the two clocks showed.
    pub const fn from_readings(boot: Duration, raw: Duration) -> Self {
        Self { boot, raw }
    }

    /// What the two clocks showed: boot time, and raw monotonic time.
    pub const fn readings(self) -> (Duration, Duration) {
        (self.boot, self.raw)
    }

    /// The moment at which both clocks will have advanced by `by`.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self { boot: self.boot.saturating_add(by), raw: self.raw.saturating_add(by) }
    }

    /// What is left of the time until `self` as seen at `now`: by the clock that comes first, as a holder has
    /// to count.
    pub fn left_at(self, now: MachineMoment) -> Duration {
        self.boot.saturating_sub(now.boot).min(self.raw.saturating_sub(now.raw))
    }

    /// Whether `self` allows less than `other`: by either clock it comes first.
    pub fn is_before(self, other: MachineMoment) -> bool {
        self.boot < other.boot || self.raw < other.raw
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(boot: u64, raw: u64) -> MachineMoment {
        MachineMoment::from_readings(Duration::from_secs(boot), Duration::from_secs(raw))
    }

    #[test]
    fn the_clock_that_comes_first_decides() {
        let deadline = at(100, 50).plus(Duration::from_secs(10));
        assert_eq!(deadline.left_at(at(100, 50)), Duration::from_secs(10));
        assert_eq!(deadline.left_at(at(104, 51)), Duration::from_secs(6), "six of ten are left after four");
        assert_eq!(deadline.left_at(at(130, 51)), Duration::ZERO, "suspended time counts");
        assert_eq!(deadline.left_at(at(101, 70)), Duration::ZERO, "and so does what was slewed away");
    }

    #[test]
    fn readings_survive_the_way_to_another_process() {
        let (boot, raw) = at(7, 8).readings();
        assert_eq!(MachineMoment::from_readings(boot, raw), at(7, 8));
        assert!(at(7, 8).is_before(at(7, 9)) && !at(7, 9).is_before(at(7, 9)));
    }
}
