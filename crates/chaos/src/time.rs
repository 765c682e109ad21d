//! One clock for all processes of a run: the machine's own, which none of the nodes and holders is asked about.

use rustix::time::{ClockId, clock_gettime};

/// Microseconds since the machine was started.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000
}
