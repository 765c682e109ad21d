//! A log on a simulated disk, driven by hand, for tests.

use super::meter::Meter;
use super::record::{EntryKind, LogEntry, LogId};
use super::recovery::recover;
use super::writer::{Done, Job, Writer};
use super::{DIRECTORY, SharedLog};
use crate::config::{Execution, LogOptions, Stopwatch};
use crate::disk::SimDisk;
use crate::error::StartError;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::watch;

pub(super) const SALT: u64 = 0x5a17;

pub(super) struct Rig {
    pub log: SharedLog,
    pub writer: Writer,
    pub meter: Meter,
    /// How many callbacks said yes, and how many no.
    pub kept: Arc<AtomicUsize>,
    pub refused: Arc<AtomicUsize>,
}

impl Rig {
    pub fn open(disk: &SimDisk, options: LogOptions) -> Result<Self, StartError> {
        Self::timed(disk, options, Stopwatch::default())
    }

    /// With a stopwatch that says how long syncs take.
    pub fn timed(disk: &SimDisk, options: LogOptions, stopwatch: Stopwatch) -> Result<Self, StartError> {
        let recovered = recover(disk, SALT, options.cache_bytes)?;
        let log = recovered.log.clone();
        let meter = Meter::new(u64::MAX);
        let failure = watch::channel(None).0;
        let disk = Arc::new(disk.clone());
        let writer =
            Writer::new(disk, options, Execution::Tasks, stopwatch, meter.clone(), failure, recovered)
                .map_err(|error| StartError::Io("cannot prepare the log".into(), error))?;
        Ok(Self { log, writer, meter, kept: Arc::default(), refused: Arc::default() })
    }

    pub fn done(&self) -> Done {
        let (kept, refused) = (self.kept.clone(), self.refused.clone());
        Done::new(move |result| {
            let counter = if result.is_ok() { kept } else { refused };
            counter.fetch_add(1, Ordering::SeqCst);
        })
    }

    /// Appends entries and carries that out, with one frame if they fit.
    pub fn append(&mut self, entries: Vec<LogEntry>) {
        for entry in &entries {
            assert!(self.log.lock().append(entry), "entry {} does not fit", entry.id.index);
        }
        let done = self.done();
        self.carry_out([Job::Append(entries, done)]);
    }

    pub fn carry_out(&mut self, jobs: impl IntoIterator<Item = Job>) {
        self.writer.carry_out(&mut jobs.into_iter().collect());
    }

    pub fn entries(&self) -> Vec<LogEntry> {
        let selection = self.log.lock().select(0..u64::MAX, usize::MAX);
        selection.read().expect("all entries can be read")
    }
}

pub(super) fn entry(term: u64, index: u64, body: &[u8]) -> LogEntry {
    LogEntry { id: LogId { term, index }, kind: EntryKind::Normal, body: body.to_vec().into() }
}

/// The names of the segments there are.
pub(super) fn segments(disk: &SimDisk) -> Vec<String> {
    let inside = |name: &String| name.starts_with(DIRECTORY) && name.ends_with(".wal");
    disk.names().into_iter().filter(inside).collect()
}
