//! Whether the disk is quick enough to be waited for where other work waits, too.
//!
//! Handing a frame to the writer's thread and getting its answer costs two changes of threads, about as much processor time as
//! the sync itself. A follower saves them by syncing where it stands. That must not be a gamble: one
//! slow sync ends it, and only a long streak of quick ones begins it again.

use std::time::Duration;

/// The longest sync that counts as quick: far below a heartbeat, and nobody who waits behind it would notice.
const QUICK: Duration = Duration::from_millis(2);
/// How many quick ones in a row make a quick disk.
const STREAK: u32 = 32;

/// How the last syncs went.
#[derive(Debug, Default)]
pub(super) struct Pace {
    quick_streak: u32,
}

impl Pace {
    /// Takes note of a sync.
    pub fn synced(&mut self, took: Duration) {
        self.quick_streak = if took <= QUICK { self.quick_streak.saturating_add(1) } else { 0 };
    }

    /// Whether the next one may be waited for.
    pub fn is_quick(&self) -> bool {
        self.quick_streak >= STREAK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_sync_outweighs_many_quick_ones() {
        let mut pace = Pace::default();
        for _ in 0..STREAK {
            assert!(!pace.is_quick());
            pace.synced(QUICK);
        }
        assert!(pace.is_quick());
        pace.synced(QUICK + Duration::from_nanos(1));
        assert!(!pace.is_quick());
        (1..STREAK).for_each(|_| pace.synced(Duration::ZERO));
        assert!(!pace.is_quick());
        pace.synced(Duration::ZERO);
        assert!(pace.is_quick());
    }
}
