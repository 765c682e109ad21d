//! One clock for all processes of a run: the machine's own, which the tested nodes and holders do not use.
//!
//! It is read by a system call and not through the C library, so that a process whose clocks are manipulated
//! still records when things really happened.

use rustix::time::{ClockId, clock_gettime};

/// Microseconds since the machine was started.
pub fn now() -> u64 {
    micros(ClockId::Monotonic)
}

/// How far the calendar is ahead of [`now`], in microseconds: the database writes down calendar time.
pub fn calendar_ahead() -> u64 {
    micros(ClockId::Realtime).saturating_sub(now())
}

fn micros(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000
}

/// How long something may take, counted while this process runs: a machine that stands still for a while
/// breaks no promise.
pub struct Patience {
    left: u64,
    last: u64,
}

impl Patience {
    /// So many seconds of it.
    pub fn of_seconds(seconds: u64) -> Patience {
        Patience { left: seconds * 1_000_000, last: now() }
    }

    /// Whether there is any left. To be asked again and again.
    pub fn lasts(&mut self) -> bool {
        let now = now();
        self.left = self.left.saturating_sub((now - self.last).min(STOOD_STILL));
        self.last = now;
        self.left > 0
    }
}

/// A short rest that takes longer than this says that the machine stood still, or this process on it.
pub const STOOD_STILL: u64 = 2_000_000;
