//! Counts what the log does, for people. It decides only when a snapshot is due.

use crate::status::{Histogram, LogStatus};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Upper bounds of the buckets for sync durations, in microseconds.
const BOUNDS_US: [u64; 14] =
    [50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 51_200, 102_400, 409_600, 1_638_400];

/// Shared by the writer, which counts, and everybody else.
#[derive(Clone)]
pub(crate) struct Meter(Arc<Shared>);

struct Shared {
    status: Mutex<LogStatus>,
    /// So much log, and a snapshot is due.
    log_bytes_max: u64,
    snapshot_due: Notify,
}

impl Meter {
    pub fn new(log_bytes_max: u64) -> Self {
        let bounds = BOUNDS_US.iter().map(|us| Some(Duration::from_micros(*us)));
        let mut status = LogStatus::default();
        status.sync.durations = Histogram {
            buckets: bounds.chain([None]).map(|bound| (bound, 0)).collect(),
            sum: Duration::ZERO,
        };
        Self(Arc::new(Shared { status: Mutex::new(status), log_bytes_max, snapshot_due: Notify::new() }))
    }

    pub fn status(&self) -> LogStatus {
        self.0.status.lock().clone()
    }

    /// One frame is durable.
    pub fn frame(&self, bytes: u64, records: u64, sync: Duration) {
        let mut status = self.0.status.lock();
        status.written_bytes += bytes;
        status.frames += 1;
        status.records += records;
        status.sync.count += 1;
        status.sync.last = sync;
        status.sync.longest = status.sync.longest.max(sync);
        let durations = &mut status.sync.durations;
        durations.sum += sync;
        let bucket = durations.buckets.iter_mut().find(|(bound, _)| bound.is_none_or(|bound| sync <= bound));
        bucket.expect("the last bucket has no bound").1 += 1;
        let before = status.bytes_since_snapshot;
        status.bytes_since_snapshot += bytes;
        // Each time another measure is full, so that a snapshot that was deferred is asked for again.
        if before / self.0.log_bytes_max != status.bytes_since_snapshot / self.0.log_bytes_max {
            self.0.snapshot_due.notify_one();
        }
    }

    /// What the segments take on disk.
    pub fn segments(&self, count: u64, bytes: u64) {
        let mut status = self.0.status.lock();
        status.segments = count;
        status.disk_bytes = bytes;
    }

    /// So much log was found at the start that may not be covered by a snapshot.
    pub fn found(&self, bytes: u64) {
        self.0.status.lock().bytes_since_snapshot = bytes;
        if bytes >= self.0.log_bytes_max {
            self.0.snapshot_due.notify_one();
        }
    }

    /// A snapshot is going to cover what has been written so far.
    pub fn snapshot_begun(&self) {
        self.0.status.lock().bytes_since_snapshot = 0;
    }

    /// Waits until so much has been written that a snapshot should be taken.
    pub async fn snapshot_due(&self) {
        self.0.snapshot_due.notified().await;
    }
}
