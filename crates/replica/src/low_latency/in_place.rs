//! Whether the log writes an append in place, on the calling thread, instead of through its own thread.
//!
//! Passing a frame to the log's thread and waiting for it costs two thread switches, about as much processor
//! time as the sync itself. Writing in place saves them, but everything else on the calling thread waits for
//! the disk. So it is done only on an idle log and a fast disk: one slow sync ends it, and only a long streak
//! of fast ones starts it again.

use std::time::Duration;

/// The most that a follower writes in place. A larger write takes the disk longer than thread switches cost.
const FOLLOWER_BYTES_MAX: usize = 128 << 10;
/// The most that a leader writes in place: the command of a single client, and a little.
const LEADER_BYTES_MAX: usize = 4 << 10;
/// The longest sync that counts as fast: far below a heartbeat, so that nobody who waits behind it notices.
const FAST: Duration = Duration::from_millis(2);
/// How many fast ones in a row make a fast disk.
const STREAK: u32 = 32;

/// How the log writes one append. In place only if the log is idle and its disk fast; otherwise queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteMode {
    /// By the log's thread.
    Queued,
    /// On the calling thread, before the call returns.
    InPlace,
    /// On the calling thread, after the tasks that send the entry to the followers.
    InPlaceAfterSending,
}

/// A follower has nothing to do before it has synced. Nor has a leader with a single client, once the entry
/// is sent to the followers; but after a pause its disk is slow to wake and should get the entry before that,
/// and with several clients a leader has others to serve while it syncs.
pub(super) fn write_mode(follows: bool, bytes: usize, one_back_to_back: bool) -> WriteMode {
    match follows {
        true if bytes <= FOLLOWER_BYTES_MAX => WriteMode::InPlace,
        false if bytes <= LEADER_BYTES_MAX && one_back_to_back => WriteMode::InPlaceAfterSending,
        _ => WriteMode::Queued,
    }
}

/// How fast the last syncs were.
#[derive(Debug, Default)]
pub(crate) struct DiskPace {
    fast_streak: u32,
}

impl DiskPace {
    /// A sync took this long.
    pub fn synced(&mut self, took: Duration) {
        self.fast_streak = if took <= FAST { self.fast_streak.saturating_add(1) } else { 0 };
    }

    /// Whether the calling thread may wait for the next one.
    pub fn is_fast(&self) -> bool {
        self.fast_streak >= STREAK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn followers_write_in_place_and_a_leader_only_for_one_client_back_to_back() {
        assert_eq!(write_mode(true, FOLLOWER_BYTES_MAX, false), WriteMode::InPlace);
        assert_eq!(write_mode(true, FOLLOWER_BYTES_MAX + 1, true), WriteMode::Queued);
        assert_eq!(write_mode(false, LEADER_BYTES_MAX, true), WriteMode::InPlaceAfterSending);
        assert_eq!(write_mode(false, LEADER_BYTES_MAX + 1, true), WriteMode::Queued);
        assert_eq!(write_mode(false, 0, false), WriteMode::Queued);
    }

    #[test]
    fn one_slow_sync_outweighs_many_fast_ones() {
        let mut pace = DiskPace::default();
        for _ in 0..STREAK {
            assert!(!pace.is_fast());
            pace.synced(FAST);
        }
        assert!(pace.is_fast());
        pace.synced(FAST + Duration::from_nanos(1));
        assert!(!pace.is_fast());
        (1..STREAK).for_each(|_| pace.synced(Duration::ZERO));
        assert!(!pace.is_fast());
        pace.synced(Duration::ZERO);
        assert!(pace.is_fast());
    }
}
