//! The writer: turns queued jobs into frames and acknowledges a frame's jobs once it is synced.
//!
//! It decides what shares a sync and when a segment is full. It never acknowledges what was not
//! synced, and after the first error it acknowledges nothing ever again: what a failed sync has
//! dropped cannot be known, and a second sync that succeeds would be a lie.

use super::appender::Appender;
use super::files::Files;
use super::frame;
use super::log::{Place, SharedLog};
use super::meter::Meter;
use super::record::{self, LogEntry, LogId, Record, Vote};
use super::recovery::Recovered;
use super::segment::{self, Segment};
use super::synced::{Synced, SyncedFile};
use crate::config::{Execution, LogOptions, Stopwatch};
use crate::disk::Disk;
use crate::low_latency::DiskPace;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Called once, with the outcome.
pub(crate) struct Done(Box<dyn FnOnce(io::Result<()>) + Send>);

impl Done {
    pub fn new(callback: impl FnOnce(io::Result<()>) + Send + 'static) -> Self {
        Self(Box::new(callback))
    }
}

/// One thing to make durable.
pub(crate) enum Job {
    Append(Vec<LogEntry>, Done),
    Vote(Vote, Done),
    Truncate(Option<u64>),
    Purge(LogId),
    /// Goes on in a new segment, so that a purge of all that was written so far removes its files.
    NewSegment,
    /// Rides along with whatever is written next: it only saves time after a restart.
    Committed(LogId),
    /// The last job of all.
    Close(Done),
}

/// What a new segment has to repeat because the segments before it may be removed.
#[derive(Clone, Copy, Default)]
pub(crate) struct State {
    pub vote: Option<Vote>,
    pub committed: Option<LogId>,
    pub purged: Option<LogId>,
}

/// A segment, and the highest entry in it: when that one is purged, it can go.
pub(crate) struct Held {
    pub segment: Segment,
    pub last_index: Option<u64>,
}

/// An entry in the frame under construction.
struct Staged {
    id: LogId,
    offset: usize,
    bytes: u32,
}

/// See the module.
pub(crate) struct Writer {
    options: LogOptions,
    salt: u64,
    files: Files,
    log: SharedLog,
    meter: Meter,
    stopwatch: Stopwatch,
    pace: DiskPace,
    failure: watch::Sender<Option<String>>,
    /// All segments in use; the last one is written to.
    segments: VecDeque<Held>,
    /// Writes to the last one, once there is something to write.
    appender: Option<Appender>,
    /// Where the next frame begins.
    offset: u64,
    /// The number of the next frame.
    sequence: u64,
    /// Where that is noted before anything is acknowledged.
    synced: SyncedFile,
    durable: State,
    // The frame under construction.
    frame: Vec<u8>,
    records: u64,
    worth_a_sync: bool,
    staged: Vec<Staged>,
    staged_state: State,
    dones: Vec<Done>,
}

impl Writer {
    /// A writer that goes on where recovery found the end.
    pub fn new(
        disk: Arc<dyn Disk>,
        options: LogOptions,
        execution: Execution,
        stopwatch: Stopwatch,
        meter: Meter,
        failure: watch::Sender<Option<String>>,
        recovered: Recovered,
    ) -> io::Result<Self> {
        let Recovered { log, salt, segments, ready, offset, sequence, state, membership: _ } = recovered;
        let first = segments.front().map_or(1, |held| held.segment.number);
        let last = segments.back().map_or(0, |held| held.segment.number);
        // Before there is any segment that relies on it.
        let synced = SyncedFile::create(&*disk, salt, Synced { frames: sequence, first, last })?;
        let files = Files::new(disk, salt, options.segment_bytes, ready, execution)?;
        let mut frame = Vec::new();
        frame::begin(&mut frame);
        let mut writer = Self {
            options,
            salt,
            files,
            log,
            meter,
            stopwatch,
            pace: DiskPace::default(),
            failure,
            segments,
            appender: None,
            offset,
            sequence,
            synced,
            durable: state,
            frame,
            records: 0,
            worth_a_sync: false,
            staged: Vec::new(),
            staged_state: state,
            dones: Vec::new(),
        };
        match writer.segments.back().map(|held| held.segment.number) {
            Some(number) => writer.files.order(number + 1),
            None => writer.open_segment(segment::HEADER_BYTES)?,
        }
        let full = writer.segments.iter().rev().skip(1).map(|held| held.segment.bytes).sum::<u64>();
        writer.meter.found(full + writer.offset);
        // A purge may have been interrupted before its files were gone.
        writer.remove_purged()?;
        Ok(writer)
    }

    /// Carries out all of `jobs`, with as few syncs as their size allows. Every callback is called
    /// before this returns. `false` after a [`Job::Close`].
    pub fn carry_out(&mut self, jobs: &mut VecDeque<Job>) -> bool {
        let mut open = true;
        while let Some(job) = jobs.pop_front() {
            open &= !matches!(job, Job::Close(_));
            if let Err(error) = self.stage(job) {
                self.fail(&error);
            }
        }
        if let Err(error) = self.flush() {
            self.fail(&error);
        }
        open
    }

    /// Whether the disk has been fast of late.
    pub fn is_fast(&self) -> bool {
        self.pace.is_fast()
    }

    /// A simulated disk took this long, which was slept for and not measured.
    pub fn delayed(&mut self, delay: Duration) {
        self.pace.synced(delay);
    }

    /// Puts a job into the frame under construction. Everything that becomes true with that frame
    /// (callbacks, state) is noted *behind* its record: making room for the record flushes the frame
    /// before, and must not make it true too early.
    fn stage(&mut self, job: Job) -> io::Result<()> {
        match job {
            Job::Append(entries, done) => {
                let staged = self.stage_entries(&entries);
                self.dones.push(done);
                staged?;
            }
            Job::Vote(vote, done) => {
                let staged = self.put(&Record::Vote(vote), true);
                self.staged_state.vote = Some(vote);
                self.dones.push(done);
                staged?;
            }
            Job::Truncate(after) => self.put(&Record::Truncate(after), true)?,
            Job::Purge(upto) => {
                self.put(&Record::Purge(upto), true)?;
                self.staged_state.purged = self.staged_state.purged.max(Some(upto));
            }
            Job::NewSegment => {
                self.worth_a_sync |= self.records > 0;
                self.flush()?;
                self.open_segment(segment::HEADER_BYTES)?;
            }
            Job::Committed(id) => {
                self.put(&Record::Committed(id), false)?;
                self.staged_state.committed = Some(id);
            }
            Job::Close(done) => {
                // What was lazy so far is made durable first; then the mark that proves it.
                self.worth_a_sync |= self.records > 0;
                let staged = self.flush().and_then(|()| self.put(&Record::Close, true));
                self.dones.push(done);
                staged?;
            }
        }
        Ok(())
    }

    fn stage_entries(&mut self, entries: &[LogEntry]) -> io::Result<()> {
        for entry in entries {
            self.make_room(entry.body.len())?;
            let offset = self.frame.len();
            record::encode_entry(entry, &mut self.frame);
            let bytes = (self.frame.len() - offset) as u32;
            self.staged.push(Staged { id: entry.id, offset, bytes });
            self.records += 1;
        }
        self.worth_a_sync = true;
        Ok(())
    }

    fn put(&mut self, record: &Record, worth_a_sync: bool) -> io::Result<()> {
        self.make_room(0)?;
        record::encode(record, &mut self.frame);
        self.records += 1;
        self.worth_a_sync |= worth_a_sync;
        Ok(())
    }

    /// Flushes a frame that would become too large. The rest of a job goes into the next one; its
    /// callback waits for that, because it is queued only behind the job's last record.
    fn make_room(&mut self, bytes: usize) -> io::Result<()> {
        if self.records > 0 && self.frame.len() + bytes > self.options.frame_bytes_max {
            self.worth_a_sync = true;
            self.flush()?;
        }
        Ok(())
    }

    /// Writes the frame under construction, syncs, and acknowledges.
    fn flush(&mut self) -> io::Result<()> {
        if let Some(message) = &*self.failure.borrow() {
            return Err(io::Error::other(message.clone()));
        }
        if !self.worth_a_sync {
            return Ok(());
        }
        let bytes = frame::padded(self.frame.len()) as u64;
        if self.offset + bytes > self.active().segment.bytes {
            self.open_segment(segment::HEADER_BYTES + bytes)?;
        }
        let mut frame = std::mem::take(&mut self.frame);
        let start = self.offset;
        self.write_frame(&mut frame, self.records)?;
        frame::begin(&mut frame);
        self.frame = frame;
        self.records = 0;
        self.worth_a_sync = false;

        let active = self.segments.back_mut().expect("there is an active segment");
        let mut log = self.log.lock();
        for Staged { id, offset, bytes } in self.staged.drain(..) {
            active.last_index = active.last_index.max(Some(id.index));
            let place = Place { segment: active.segment.number, offset: start + offset as u64, bytes };
            log.placed(id, place);
        }
        drop(log);
        let purged_before = self.durable.purged;
        self.durable = self.staged_state;
        // The newest first: to the engine it says that all before it are durable too, and then those wake
        // nobody. In their order, each would wake the engine, which runs at once on this very core and has
        // the rest wait.
        for done in self.dones.drain(..).rev() {
            (done.0)(Ok(()));
        }
        if self.durable.purged != purged_before {
            self.remove_purged()?;
        }
        Ok(())
    }

    /// Writes and syncs one frame at the current offset.
    fn write_frame(&mut self, frame: &mut Vec<u8>, records: u64) -> io::Result<()> {
        let segment = &self.segments.back().expect("there is an active segment").segment;
        let position = frame::Position { salt: self.salt, segment: segment.number, offset: self.offset };
        frame::seal(frame, position, self.sequence);
        let appender = self.appender.get_or_insert_with(|| Appender::new(segment));
        let before = self.stopwatch.read();
        appender.append(frame, self.offset)?;
        let took = self.stopwatch.read().saturating_sub(before);
        self.pace.synced(took);
        self.offset += frame.len() as u64;
        self.sequence += 1;
        self.synced.note_frames(self.sequence)?;
        self.meter.frame(frame.len() as u64, records, took);
        Ok(())
    }

    /// Goes on to a segment with room for a frame that needs `bytes_min` behind the checkpoint.
    fn open_segment(&mut self, bytes_min: u64) -> io::Result<()> {
        let mut checkpoint = Vec::new();
        frame::begin(&mut checkpoint);
        let State { vote, committed, purged } = self.durable;
        let mut records = 0;
        for record in [vote.map(Record::Vote), purged.map(Record::Purge), committed.map(Record::Committed)] {
            records += u64::from(record.is_some());
            record.iter().for_each(|record| record::encode(record, &mut checkpoint));
        }
        let after = self.segments.back().map_or(0, |held| held.segment.number);
        let bytes_min = bytes_min + frame::padded(checkpoint.len()) as u64;
        for segment in self.files.next(after, bytes_min)? {
            self.log.lock().opened(segment.number, segment.file.clone());
            self.segments.push_back(Held { segment, last_index: None });
        }
        // From now on they must be there, whatever is written into them.
        let number = |held: Option<&Held>| held.expect("one was just opened").segment.number;
        self.synced.note_segments(number(self.segments.front()), number(self.segments.back()))?;
        self.appender = None;
        self.offset = segment::HEADER_BYTES;
        self.count_segments();
        if records > 0 {
            self.write_frame(&mut checkpoint, records)?;
        }
        Ok(())
    }

    /// Removes segments from the front that hold nothing but purged entries.
    fn remove_purged(&mut self) -> io::Result<()> {
        let purged = self.durable.purged.map(|id| id.index);
        let mut removed = Vec::new();
        while self.segments.len() > 1 && self.segments[0].last_index <= purged {
            let held = self.segments.pop_front().expect("there are two at least");
            self.log.lock().closed(held.segment.number);
            removed.push(held.segment.number);
        }
        if !removed.is_empty() {
            // No longer needed, durably; only then may they go.
            let (first, last) = (self.segments[0].segment.number, self.active().segment.number);
            self.synced.note_segments(first, last)?;
        }
        for number in removed {
            self.files.remove(number)?;
        }
        self.count_segments();
        Ok(())
    }

    fn count_segments(&self) {
        let bytes = self.segments.iter().map(|held| held.segment.bytes).sum();
        self.meter.segments(self.segments.len() as u64, bytes);
    }

    fn active(&self) -> &Held {
        self.segments.back().expect("there is an active segment")
    }

    #[cfg(test)]
    pub fn has_failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// Tells everybody who waits, now and from now on, that the log is lost.
    fn fail(&mut self, error: &io::Error) {
        let known = self.failure.borrow().clone();
        let message = known.unwrap_or_else(|| {
            let message = format!(
                "the log cannot be written: {error}. This node stops here; what it acknowledged is safe. Look after \
                 the disk (space, hardware), then start it again"
            );
            tracing::error!("{message}");
            self.failure.send_replace(Some(message.clone()));
            message
        });
        for done in self.dones.drain(..) {
            (done.0)(Err(io::Error::new(error.kind(), message.clone())));
        }
        self.staged.clear();
        frame::begin(&mut self.frame);
        self.records = 0;
        self.worth_a_sync = false;
    }
}
