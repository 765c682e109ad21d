//! A clock that stands still until somebody turns it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::{Moment, WallTime};

use crate::Clock;

/// A clock turned by hand, for tests and simulation. Clones share one clock face, so a test keeps one and
/// hands out the others.
///
/// The two readings can be turned apart: a suspended machine is the boot clock alone going on, a slewed
/// one is both going at different rates. Calendar time moves with the boot clock, and can be set to
/// anything at any time, as real calendars are.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<Mutex<Face>>);

#[derive(Debug, Default)]
struct Face {
    boot: Duration,
    raw: Duration,
    wall_millis: u64,
    /// What has not yet added up to a millisecond of calendar time.
    wall_rest: Duration,
}

impl ManualClock {
    /// A clock whose readings start at zero, in the first millisecond of 1970.
    pub fn new() -> Self {
        Self::default()
    }

    /// Turns both clocks forward alike.
    pub fn advance(&self, by: Duration) {
        self.advance_apart(by, by);
    }

    /// Turns the two clocks forward by different amounts: `boot` is the one that counts suspended time,
    /// `raw` the one that nobody slews.
    pub fn advance_apart(&self, boot: Duration, raw: Duration) {
        let mut face = self.face();
        face.boot += boot;
        face.raw += raw;
        let rest = face.wall_rest + boot;
        let millis =
            u64::try_from(rest.as_millis()).expect("a clock is not turned by an age of the universe");
        face.wall_millis += millis;
        face.wall_rest = rest - Duration::from_millis(millis);
    }

    /// Sets calendar time, forward or back, without a trace on the monotonic clocks.
    pub fn set_wall(&self, wall: WallTime) {
        let mut face = self.face();
        face.wall_millis = wall.as_unix_millis();
        face.wall_rest = Duration::ZERO;
    }

    fn face(&self) -> std::sync::MutexGuard<'_, Face> {
        // Every change is complete in itself, so a test that panicked elsewhere leaves a readable clock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        let face = self.face();
        Moment::from_readings(face.boot, face.raw)
    }

    fn wall(&self) -> WallTime {
        WallTime::from_unix_millis(self.face().wall_millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_one_face() {
        let clock = ManualClock::new();
        let other: Arc<dyn Clock> = Arc::new(clock.clone());
        let start = other.now();
        clock.advance(Duration::from_secs(3));
        assert_eq!(other.now().shortest_since(start), Duration::from_secs(3));
        assert_eq!(other.wall().as_unix_millis(), 3_000);
    }

    #[test]
    fn a_suspended_machine_shows_as_disagreement() {
        let clock = ManualClock::new();
        let start = clock.now();
        clock.advance_apart(Duration::from_secs(30), Duration::from_secs(1));
        let now = clock.now();
        assert_eq!(now.longest_since(start), Duration::from_secs(30), "a holder counts the sleep");
        assert_eq!(now.shortest_since(start), Duration::from_secs(1), "a leader does not");
        assert_eq!(now.disagreement_since(start), Duration::from_secs(29));
    }

    #[test]
    fn a_calendar_set_back_moves_no_monotonic_clock() {
        let clock = ManualClock::new();
        clock.advance(Duration::from_secs(10));
        let before = clock.now();
        clock.set_wall(WallTime::from_unix_millis(7));
        assert_eq!(clock.now(), before);
        clock.advance(Duration::from_micros(1_500));
        clock.advance(Duration::from_micros(1_500));
        assert_eq!(clock.wall().as_unix_millis(), 10, "calendar time loses no fractions");
    }
}
