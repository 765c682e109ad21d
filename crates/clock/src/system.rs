//! The operating system's clocks.
//!
//! On Linux: `CLOCK_BOOTTIME`, which goes on counting while the machine is suspended (the standard
//! library's `Instant` does not), and `CLOCK_MONOTONIC_RAW`, which no time daemon slews.
//!
//! Elsewhere both readings are the standard library's monotonic clock. It may stand still while the
//! machine sleeps, so there a holder that was suspended can believe too long, and only fences help.

use std::time::SystemTime;

use tenure_core::{Moment, WallTime};

use crate::Clock;

/// The clocks of the machine that this process runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        read()
    }

    fn wall(&self) -> WallTime {
        // A calendar before 1970 is shown as its start: nothing decides by it.
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        WallTime::from_unix_millis(u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX))
    }
}

#[cfg(target_os = "linux")]
impl SystemClock {
    /// One reading that other processes of this machine can compare with their own.
    pub fn machine_now(&self) -> crate::MachineMoment {
        let (boot, raw) = readings();
        crate::MachineMoment::from_readings(boot, raw)
    }
}

#[cfg(target_os = "linux")]
fn read() -> Moment {
    let (boot, raw) = readings();
    Moment::from_readings(boot, raw)
}

#[cfg(target_os = "linux")]
fn readings() -> (std::time::Duration, std::time::Duration) {
    (clock_gettime(libc::CLOCK_BOOTTIME), clock_gettime(libc::CLOCK_MONOTONIC_RAW))
}

/// Reads one clock through the C library. A machine without this clock cannot keep a lease's promises,
/// so it stops here instead of guessing.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn clock_gettime(clock: libc::clockid_t) -> std::time::Duration {
    let mut reading = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one `timespec` through a pointer to one that is ours, alive and writable
    // for the whole call, and keeps no reference to it.
    let code = unsafe { libc::clock_gettime(clock, &raw mut reading) };
    assert_eq!(code, 0, "clock {clock} cannot be read: {}", std::io::Error::last_os_error());
    let seconds = u64::try_from(reading.tv_sec).expect("a monotonic clock reads below zero");
    let nanos = u32::try_from(reading.tv_nsec).expect("a clock's nanoseconds are below a second");
    std::time::Duration::new(seconds, nanos)
}

#[cfg(not(target_os = "linux"))]
fn read() -> Moment {
    use std::sync::OnceLock;
    use std::time::Instant;

    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    let reading = ORIGIN.get_or_init(Instant::now).elapsed();
    Moment::from_readings(reading, reading)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn readings_never_go_back() {
        let mut last = SystemClock.now();
        for _ in 0..10_000 {
            let now = SystemClock.now();
            // `last` seen from `now` lies in the past on both clocks, so nothing is left the other way round.
            assert_eq!(last.longest_since(now), Duration::ZERO);
            last = now;
        }
    }

    #[test]
    fn both_clocks_advance_and_agree_over_a_short_time() {
        let start = SystemClock.now();
        let mut now = start;
        while now.shortest_since(start) < Duration::from_millis(5) {
            now = SystemClock.now();
        }
        // The two are read one after the other, so a pause in between shows as disagreement; a second is
        // far more than any scheduler takes and far less than two unrelated clocks would differ by.
        assert!(now.disagreement_since(start) < Duration::from_secs(1));
    }

    #[test]
    fn the_calendar_is_in_this_century() {
        let millis = SystemClock.wall().as_unix_millis();
        assert!((946_684_800_000..4_102_444_800_000).contains(&millis), "{millis}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    #[should_panic(expected = "cannot be read")]
    fn a_missing_clock_stops_the_process_instead_of_reading_zero() {
        clock_gettime(9_999);
    }
}
