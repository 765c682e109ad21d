//! Whether cluster time runs faster than this node's own clock allows.
//!
//! A leader whose clock runs fast ends leases while their holders, by their own clocks, may still act. Nobody can see
//! that from a single entry, but every node sees the stamps of entries beside its own clock. This decides
//! from these pairs whether the stamps have run ahead; it changes nothing and ends nothing.
//!
//! A stamp can only look late when an entry takes its time to arrive, so of many entries the one that looks earliest
//! counts. The stamps of one window are compared from its beginning to its end. A node that catches up sees
//! stamps run ahead as well, but not for long: only several windows in a row count.

use core::time::Duration;

use crate::time::{ClusterTime, Moment};

/// How long one comparison takes.
const WINDOW: Duration = Duration::from_secs(30);
/// For how long the earliest entry is looked for at the beginning of a window.
const BASE: Duration = Duration::from_secs(5);
/// What delays may differ by between the two.
const SLACK: Duration = Duration::from_millis(100);
/// How many windows in a row must have run ahead.
const WINDOWS_MIN: u32 = 3;
const MILLION: u128 = 1_000_000;

/// See the module.
#[derive(Clone, Debug)]
pub struct LeaderPace {
    rho_ppm: u32,
    window: Option<Window>,
    fast_windows: u32,
    fast_ppm: u64,
}

#[derive(Clone, Debug)]
struct Window {
    began: Moment,
    stamp: ClusterTime,
    /// The most by which stamps were ahead of our clock, counted from the beginning: first, and since then.
    base: i128,
    ahead: i128,
}

impl LeaderPace {
    /// Two clocks may differ by rho each, so stamps may run ahead by twice that.
    pub fn new(rho_ppm: u32) -> LeaderPace {
        LeaderPace { rho_ppm, window: None, fast_windows: 0, fast_ppm: 0 }
    }

    /// By how much cluster time runs ahead of this node's clock, in parts per million; zero while it does not run
    /// ahead by more than rho allows.
    pub fn fast_ppm(&self) -> u64 {
        if self.fast_windows >= WINDOWS_MIN { self.fast_ppm } else { 0 }
    }

    /// Takes in that an entry with this stamp was applied now. True when it becomes known that cluster time runs too
    /// fast; false as long as nothing changes.
    pub fn saw(&mut self, stamp: ClusterTime, now: Moment) -> bool {
        let Some(window) = &mut self.window else {
            self.window = Some(Window { began: now, stamp, base: 0, ahead: 0 });
            return false;
        };
        // The longer of the two clocks: what looks fast then is fast.
        let elapsed = now.longest_since(window.began);
        let ahead = stamp.since(window.stamp).as_micros() as i128 - elapsed.as_micros() as i128;
        if elapsed < BASE {
            window.base = window.base.max(ahead);
        }
        window.ahead = window.ahead.max(ahead);
        if elapsed < WINDOW {
            return false;
        }
        let allowed = elapsed.as_micros() * 2 * u128::from(self.rho_ppm) / MILLION + SLACK.as_micros();
        let ran_ahead = window.ahead - window.base;
        let was_fast = self.fast_ppm() > 0;
        if ran_ahead > allowed as i128 {
            self.fast_windows = self.fast_windows.saturating_add(1);
            self.fast_ppm = (ran_ahead.unsigned_abs() * MILLION / elapsed.as_micros().max(1)) as u64;
        } else {
            self.fast_windows = 0;
            self.fast_ppm = 0;
        }
        self.window = Some(Window { began: now, stamp, base: 0, ahead: 0 });
        !was_fast && self.fast_ppm() > 0
    }

    /// Begins anew: the state was replaced by a snapshot.
    pub fn reset(&mut self) {
        *self = LeaderPace::new(self.rho_ppm);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Moment {
        let reading = Duration::from_micros(micros);
        Moment::from_readings(reading, reading)
    }

    /// Entries every 100 ms for so many seconds, with stamps that run at `ppm` of our clock and arrive after `delay`.
    fn run(pace: &mut LeaderPace, seconds: u64, ppm: u64, delay: impl Fn(u64) -> u64) -> u32 {
        let mut reported = 0;
        let mut last = 0;
        for tick in 0..seconds * 10 {
            let sent = tick * 100_000;
            last = last.max(sent + delay(tick));
            let stamp = ClusterTime::ZERO.plus(Duration::from_micros(sent * ppm / 1_000_000));
            reported += u32::from(pace.saw(stamp, at(last)));
        }
        reported
    }

    #[test]
    fn a_fast_leader_is_reported_once_and_measured() {
        let mut pace = LeaderPace::new(500);
        assert_eq!(run(&mut pace, 300, 1_010_000, |tick| tick % 7 * 5_000), 1);
        assert!((8_000..=11_000).contains(&pace.fast_ppm()), "{}", pace.fast_ppm());
    }

    #[test]
    fn clocks_within_rho_are_not_fast() {
        for ppm in [900_000, 999_000, 1_000_000, 1_000_500, 1_001_000] {
            let mut pace = LeaderPace::new(500);
            assert_eq!(run(&mut pace, 600, ppm, |tick| tick % 11 * 8_000), 0, "{ppm} ppm");
            assert_eq!(pace.fast_ppm(), 0);
        }
    }

    #[test]
    fn who_catches_up_does_not_blame_the_leader() {
        let mut pace = LeaderPace::new(500);
        // Ten seconds late at first, and on time after half a minute.
        assert_eq!(run(&mut pace, 300, 1_000_000, |tick| 10_000_000_u64.saturating_sub(tick * 33_000)), 0);
        assert_eq!(pace.fast_ppm(), 0);
    }

    #[test]
    fn a_new_leader_with_a_good_clock_ends_it() {
        let mut pace = LeaderPace::new(500);
        run(&mut pace, 200, 1_010_000, |_| 0);
        assert!(pace.fast_ppm() > 0);
        let stamp = |second: u64| ClusterTime::ZERO.plus(Duration::from_secs(second));
        for second in 202..300 {
            pace.saw(stamp(second), at(second * 1_000_000));
        }
        assert_eq!(pace.fast_ppm(), 0);
    }

    #[test]
    fn what_two_clocks_may_differ_by_is_allowed() {
        let mut pace = LeaderPace::new(10_000);
        assert_eq!(run(&mut pace, 300, 1_019_000, |_| 0), 0, "less than twice rho");
        let mut pace = LeaderPace::new(10_000);
        assert_eq!(run(&mut pace, 300, 1_040_000, |_| 0), 1, "more than twice rho");
    }

    #[test]
    fn delays_are_not_taken_for_a_fast_clock() {
        // Every window begins with entries that are a little late; then with a single one that is very late.
        let delays: [fn(u64) -> u64; 2] =
            [|tick| u64::from(tick % 300 < 60) * 90_000, |tick| u64::from(tick % 300 == 0) * 200_000];
        for (number, delay) in delays.into_iter().enumerate() {
            let mut pace = LeaderPace::new(500);
            assert_eq!(run(&mut pace, 300, 1_000_000, delay), 0, "delays {number}");
        }
    }

    #[test]
    fn the_longer_of_two_clocks_is_compared() {
        for (boot, raw) in [(100, 90), (90, 100)] {
            let mut pace = LeaderPace::new(500);
            for tick in 0..3_000 {
                let stamp = ClusterTime::ZERO.plus(Duration::from_millis(tick * 100));
                let reading = |rate| Duration::from_millis(tick * rate);
                assert!(!pace.saw(stamp, Moment::from_readings(reading(boot), reading(raw))));
            }
        }
    }

    #[test]
    fn a_snapshot_begins_anew() {
        let mut pace = LeaderPace::new(500);
        run(&mut pace, 200, 1_010_000, |_| 0);
        assert!(pace.fast_ppm() > 0);
        pace.reset();
        assert_eq!(pace.fast_ppm(), 0);
        // The stamp of the snapshot is far ahead of the last one that was seen here.
        let stamp = |second: u64| ClusterTime::ZERO.plus(Duration::from_secs(1_000_000 + second));
        assert!((201..400).all(|second| !pace.saw(stamp(second), at(second * 1_000_000))));
    }
}
