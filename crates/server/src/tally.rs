//! What this node has seen happen, counted for metrics. Numbers for people; nothing decides by them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::{Applied, EndReason, Event, EventKind, FenceName, Succession};

/// A histogram of durations with fixed buckets.
#[derive(Debug)]
pub struct Durations {
    bounds: &'static [Duration],
    counts: Vec<AtomicU64>,
    sum_micros: AtomicU64,
}

impl Durations {
    fn new(bounds: &'static [Duration]) -> Self {
        Self {
            bounds,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum_micros: AtomicU64::new(0),
        }
    }

    /// One for what a caller waits for.
    pub(crate) fn short() -> Self {
        Self::new(SHORT)
    }

    /// Counts one.
    pub fn add(&self, duration: Duration) {
        let bucket = self.bounds.partition_point(|bound| *bound < duration);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_micros.fetch_add(duration.as_micros() as u64, Ordering::Relaxed);
    }

    /// Each bucket's upper bound and how many fell into it; the last has no bound.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        let bounds = self.bounds.iter().copied().map(Some).chain([None]);
        bounds.zip(self.counts.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// The sum of all.
    pub fn sum(&self) -> Duration {
        Duration::from_micros(self.sum_micros.load(Ordering::Relaxed))
    }
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// From what a commit takes to what a person notices.
const SHORT: &[Duration] =
    &[ms(1), ms(2), ms(5), ms(10), ms(25), ms(50), ms(75), ms(100), ms(250), ms(500), ms(1_000), ms(5_000)];
/// From what a handover takes to what a shift takes.
const LONG: &[Duration] = &[
    ms(10),
    ms(100),
    ms(1_000),
    ms(5_000),
    ms(10_000),
    ms(30_000),
    ms(60_000),
    ms(300_000),
    ms(3_600_000),
    ms(86_400_000),
];

/// How many adapters are distinguished; fences are named by whoever uses them, and a metric must not grow
/// with that.
const ADAPTERS_MAX: usize = 32;
/// What all others are counted as.
const ADAPTER_OTHER: &str = "other";

/// What has happened on this node since it started.
#[derive(Debug)]
pub struct Tally {
    /// Entries applied.
    pub entries: AtomicU64,
    /// Commands applied.
    pub commands: AtomicU64,
    /// Commands that were refused.
    pub refusals: AtomicU64,
    /// Renewals applied.
    pub renewals: AtomicU64,
    /// The largest number of renewals and commands in one entry.
    pub batch_largest: AtomicU64,
    /// How late leases ended, in cluster time.
    pub late: Durations,
    /// How long acquires that were granted had waited in the queue.
    pub waited: Durations,
    /// How long leases were held.
    pub held: Durations,
    /// How long nobody held a resource after an end that was asked for.
    pub handover_gap: Durations,
    /// How long nobody held a resource after its holder was lost.
    pub holder_gap: Durations,
    /// Stale writes refused by fences, by adapter. Refusals are rare enough for a lock.
    refused: Mutex<BTreeMap<String, u64>>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            entries: AtomicU64::new(0),
            commands: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
            renewals: AtomicU64::new(0),
            batch_largest: AtomicU64::new(0),
            late: Durations::new(SHORT),
            waited: Durations::new(LONG),
            held: Durations::new(LONG),
            handover_gap: Durations::new(LONG),
            holder_gap: Durations::new(LONG),
            refused: Mutex::default(),
        }
    }
}

impl Tally {
    pub(crate) fn applied(&self, applied: &Applied, events: &[Event]) {
        let batch = (applied.renewals.len() + applied.answers.len()) as u64;
        self.entries.fetch_add(1, Ordering::Relaxed);
        self.commands.fetch_add(applied.answers.len() as u64, Ordering::Relaxed);
        let refused = applied.answers.iter().filter(|answer| answer.is_err()).count();
        self.refusals.fetch_add(refused as u64, Ordering::Relaxed);
        self.renewals.fetch_add(applied.renewals.len() as u64, Ordering::Relaxed);
        self.batch_largest.fetch_max(batch, Ordering::Relaxed);
        applied.successions.iter().for_each(|succession| self.succeeded(succession));
        for event in events {
            match &event.kind {
                EventKind::Ended { held_for, late, why, .. } => {
                    self.held.add(*held_for);
                    if *why == EndReason::Expired {
                        self.late.add(*late);
                    }
                }
                EventKind::Granted { waited, .. } => self.waited.add(*waited),
                EventKind::Refused { fence, count, .. } => self.refused(fence, u64::from(*count)),
                _ => {}
            }
        }
    }

    /// Counts how long nobody had held the resource.
    fn succeeded(&self, succession: &Succession) {
        let gaps = match succession.after {
            EndReason::Released | EndReason::Transferred | EndReason::Revoked | EndReason::HeldTooLong => {
                &self.handover_gap
            }
            EndReason::Expired | EndReason::TakenOver | EndReason::Died => &self.holder_gap,
        };
        gaps.add(succession.gap);
    }

    fn refused(&self, fence: &FenceName, count: u64) {
        let mut refused = self.refused.lock();
        let adapter = adapter(fence.as_str());
        let known = refused.contains_key(adapter) || refused.len() < ADAPTERS_MAX;
        *refused.entry(if known { adapter } else { ADAPTER_OTHER }.to_owned()).or_default() += count;
    }

    /// Stale writes refused by fences, by adapter.
    pub(crate) fn refused_by_adapter(&self) -> BTreeMap<String, u64> {
        self.refused.lock().clone()
    }
}

/// The adapter that a fence's name names: `pg` of `pg:orders`. A name without a colon names none.
fn adapter(fence: &str) -> &str {
    fence.split_once(':').map_or(ADAPTER_OTHER, |(adapter, _)| adapter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_are_distinguished_up_to_a_limit() {
        let tally = Tally::default();
        for (fence, count) in [("pg:orders", 2), ("pg:ledger", 3), ("s3:bucket/key", 1), ("nameless", 5)] {
            tally.refused(&fence.parse().unwrap(), count);
        }
        for number in 0..2 * ADAPTERS_MAX {
            tally.refused(&format!("made-up-{number}:x").parse().unwrap(), 1);
        }
        let counts = tally.refused_by_adapter();
        assert_eq!((counts["pg"], counts["s3"]), (5, 1));
        assert_eq!(counts.len(), ADAPTERS_MAX);
        assert_eq!(counts.values().sum::<u64>(), 11 + 2 * ADAPTERS_MAX as u64, "none is lost: {counts:?}");
    }
}
