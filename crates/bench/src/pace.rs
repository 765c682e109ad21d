//! When the next operation is due. In a closed loop: when the last one is done. In an open loop: by a fixed
//! schedule that does not wait for the store; latency counts from the scheduled time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The schedule that all clients of a run share.
pub struct Pace {
    start: Instant,
    interval: Option<Duration>,
    next: AtomicU64,
}

impl Pace {
    /// Closed, or open at so many operations a second.
    pub fn new(rate: Option<f64>) -> Pace {
        let interval = rate.map(|rate| Duration::from_secs_f64(1.0 / rate.max(0.001)));
        Pace { start: Instant::now(), interval, next: AtomicU64::new(0) }
    }

    /// Waits until the next operation is due, and says since when it is: earlier than now if the store
    /// cannot keep up, because then every client was busy when its time came.
    pub async fn due(&self) -> Instant {
        let Some(interval) = self.interval else { return Instant::now() };
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let due = self.start + Duration::from_nanos((interval.as_nanos() as u64).saturating_mul(turn));
        if due > Instant::now() {
            tokio::time::sleep_until(due.into()).await;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_open_loop_counts_from_when_it_was_due() {
        let pace = Pace::new(Some(1_000.0));
        let first = pace.due().await;
        std::thread::sleep(Duration::from_millis(20));
        // The stall has made the next ones late; they are due when they were due.
        assert_eq!(pace.due().await - first, Duration::from_millis(1));
        assert_eq!(pace.due().await - first, Duration::from_millis(2));
    }
}
