//! How close renewals come to their deadlines: counted for people; no decision depends on it.
//!
//! Not part of the state: two replicas of one log may have counted differently, because one of them began with a
//! snapshot. A renewal pays one division for it.

use core::time::Duration;

/// Shares of the TTL are counted in this many steps, and distinguished in [`Margins::BUCKETS`] of them.
const STEPS: u64 = 1024;

/// What renewals found left of their sessions, as shares of the TTL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Margins {
    counts: [u64; Margins::BUCKETS],
    steps: u64,
}

impl Margins {
    /// The eighths of a TTL.
    pub const BUCKETS: usize = 8;
    /// A renewal that finds less than this many eighths left is a near miss: at the usual cadence of a third of the TTL
    /// two attempts have failed before it.
    pub const NEAR: usize = 2;

    /// Counts a renewal that found `left` of `ttl`.
    pub(super) fn count(&mut self, left: Duration, ttl: Duration) {
        let micros =
            |duration: Duration| duration.as_secs() * 1_000_000 + u64::from(duration.subsec_micros());
        // No TTL is zero, and none is long enough for this to overflow: limits.rs allows neither.
        let steps = (micros(left) * STEPS / micros(ttl).max(1)).min(STEPS);
        let bucket = steps * Self::BUCKETS as u64 / STEPS;
        self.counts[(bucket as usize).min(Self::BUCKETS - 1)] += 1;
        self.steps += steps;
    }

    /// How many found less than one eighth left, less than two and not less than one, and so on.
    pub fn counts(&self) -> &[u64; Margins::BUCKETS] {
        &self.counts
    }

    /// How many were near misses.
    pub fn near_misses(&self) -> u64 {
        self.counts[..Self::NEAR].iter().sum()
    }

    /// All shares added up.
    pub fn sum(&self) -> f64 {
        self.steps as f64 / STEPS as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_fall_into_eighths() {
        let mut margins = Margins::default();
        let ttl = Duration::from_secs(8);
        for left in [0, 999, 1_000, 1_999, 2_000, 5_333, 7_999, 8_000] {
            margins.count(Duration::from_millis(left), ttl);
        }
        assert_eq!(margins.counts(), &[2, 2, 1, 0, 0, 1, 0, 2]);
        assert_eq!(margins.near_misses(), 4);
        assert!((margins.sum() - (0.999 + 1.0 + 1.999 + 2.0 + 5.333 + 7.999 + 8.0) / 8.0).abs() < 0.01);
    }
}
