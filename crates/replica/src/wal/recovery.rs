//! What the segments say after a restart: everything that was acknowledged, or a refusal.
//!
//! Frames are read in order until one is not valid. Then there are two cases.
//!
//! - *Nothing valid lies behind it.* The writer died before the sync of that frame returned, or just
//!   after; nobody was notified of it. The tail is torn: it is overwritten with zeros, durably, so that
//!   its remains can never be taken for something else, and the log goes on from there.
//! - *A valid frame lies behind it*, in this segment or a later one. The writer starts a frame only
//!   after the sync of the one before, so what is damaged was durable once, and acknowledged. Cutting
//!   there would undo promises; the node refuses to start and says what to do.
//!
//! The last valid frame may be one whose sync never returned, or failed: the process ended, the machine went
//! on, and it is read back from memory. From now on it counts as durable, so it is written and
//! synced once more before anybody is notified of it.
//!
//! Frames are numbered without gaps, so a whole segment that vanished, or a synced tail that turned into
//! zeros, is noticed too, as soon as anything was written behind it. For what nothing was written behind
//! there is the note of how far the log was synced (`synced`): a log that ends before it has lost what was
//! acknowledged. After a loss of power that note is a lower bound, and damage to frames behind it cannot be
//! told from a torn tail.

use super::frame::{self, Position};
use super::log::{Log, Place, SharedLog};
use super::record::{self, EntryKind, LogId, Record};
use super::segment::{self, Segment};
use super::synced::{self, Known};
use super::writer::{Held, State};
use crate::disk::Disk;
use crate::error::{REJOIN, StartError};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// How far ahead the number of a frame behind a damage can be and still count as one of ours. More
/// frames than this never lie in the segments between two purges.
const SEQUENCE_WINDOW: u64 = 1 << 32;

/// Everything a writer needs to go on.
pub(crate) struct Recovered {
    pub log: SharedLog,
    pub salt: u64,
    pub segments: VecDeque<Held>,
    /// Prepared and never written to.
    pub ready: VecDeque<Segment>,
    pub offset: u64,
    pub sequence: u64,
    pub state: State,
    /// The index and the bytes of the last membership in the log, if there is one.
    pub membership: Option<(u64, Bytes)>,
}

/// Whether there is any segment.
pub(crate) fn has_segments(disk: &dyn Disk) -> io::Result<bool> {
    Ok(disk.list(super::DIRECTORY)?.iter().any(|name| segment::number(name).is_some()))
}

/// Reads the log of a data directory, cutting a torn tail.
pub(crate) fn recover(disk: &dyn Disk, salt: u64, cache_bytes: usize) -> Result<Recovered, StartError> {
    let failed = |error| StartError::Io("cannot open the log".into(), error);
    disk.create_dir(super::DIRECTORY).map_err(failed)?;
    disk.sync_dir("").map_err(failed)?;
    let known = synced::read(disk, salt).map_err(failed)?;
    let (mut numbers, mut drafts) = (Vec::new(), Vec::new());
    for name in disk.list(super::DIRECTORY).map_err(failed)? {
        match segment::number(&name) {
            Some(number) => numbers.push(number),
            None if name.ends_with(".tmp") => drafts.push(format!("{}/{name}", super::DIRECTORY)),
            None => {}
        }
    }
    numbers.sort_unstable();
    if let Some(missing) = missing(&numbers, known) {
        return Err(damaged(format!("segment {missing} is missing")));
    }

    let mut replay = Replay::new(cache_bytes);
    let mut end: Option<End> = None;
    for number in &numbers {
        let (segment, content) = segment::load(disk, salt, *number)?;
        replay.segment(segment, &content, salt, &mut end)?;
    }
    replay.check(known)?;
    // Nothing on the disk was changed before here.
    for draft in drafts {
        // Never finished, so never used.
        disk.remove(&draft).map_err(failed)?;
    }
    replay.confirm_last_frame().map_err(failed)?;
    let clean = match end {
        Some(End { held, offset, torn: true }) => {
            let segment = &replay.segments[held].segment;
            tracing::warn!(
                segment = segment.number,
                offset,
                "cutting a torn tail that was never acknowledged"
            );
            segment::clear_from(segment, offset).map_err(failed)?;
            (held, offset)
        }
        Some(End { held, offset, torn: false }) => (held, offset),
        None => (0, segment::HEADER_BYTES),
    };
    Ok(replay.finish(salt, clean))
}

/// The first segment that must be there and is not.
fn missing(numbers: &[u64], known: Known) -> Option<u64> {
    let needed = match known {
        Known::AtLeast(synced) if synced.last > 0 => Some((synced.first, synced.last)),
        _ => None,
    };
    let gap = numbers.windows(2).find(|pair| pair[0] + 1 != pair[1]).map(|pair| pair[0] + 1);
    match (numbers, needed) {
        ([], needed) => needed.map(|(first, _)| first),
        ([found, ..], Some((first, _))) if *found > first => Some(first),
        ([.., found], Some((_, last))) if *found < last => gap.or(Some(found + 1)),
        _ => gap,
    }
}

/// The end of the last segment that has frames, so far.
struct End {
    held: usize,
    offset: u64,
    torn: bool,
}

struct Replay {
    log: Log,
    segments: Vec<Held>,
    /// The number that the next frame must have; any, before the first.
    sequence: Option<u64>,
    state: State,
    /// The last valid frame: in which segment, where, and its bytes.
    last_frame: Option<(usize, u64, Bytes)>,
    /// The memberships that were not truncated, in order; there are few.
    memberships: Vec<(u64, Bytes)>,
}

impl Replay {
    fn new(cache_bytes: usize) -> Self {
        Self {
            log: Log::new(cache_bytes),
            segments: Vec::new(),
            sequence: None,
            state: State::default(),
            last_frame: None,
            memberships: Vec::new(),
        }
    }

    /// Holds what was found against what is known to have been synced.
    fn check(&self, known: Known) -> Result<(), StartError> {
        let frames = self.sequence.unwrap_or(0);
        match known {
            Known::AtLeast(synced) if frames < synced.frames => {
                let last = synced.frames - 1;
                return Err(damaged(format!("it ends before frame {frames}, and frame {last} was synced")));
            }
            Known::AtLeast(_) => {}
            Known::Damaged => return Err(damaged(format!("the file `{}` is damaged", synced::NAME))),
            // It is made before the first segment.
            Known::Nothing if !self.segments.is_empty() => {
                return Err(damaged(format!("the file `{}` is missing", synced::NAME)));
            }
            Known::Nothing => {}
        }
        match self.log.first_missing() {
            Some(index) => Err(damaged(format!("entry {index} is missing"))),
            None => Ok(()),
        }
    }

    /// Makes the last frame durable, which it need not be. Syncing alone would not do: after a sync that
    /// failed the kernel may take the page for written.
    fn confirm_last_frame(&self) -> io::Result<()> {
        let Some((held, offset, bytes)) = &self.last_frame else { return Ok(()) };
        let file = &self.segments[*held].segment.file;
        file.write_at(bytes, *offset)?;
        file.sync_data()
    }

    /// Replays one segment, and notes where the log ends if it ends here.
    fn segment(
        &mut self,
        segment: Segment,
        content: &Bytes,
        salt: u64,
        end: &mut Option<End>,
    ) -> Result<(), StartError> {
        let number = segment.number;
        self.log.opened(number, segment.file.clone());
        let held = self.segments.len();
        self.segments.push(Held { segment, last_index: None });
        let mut position = Position { salt, segment: number, offset: segment::HEADER_BYTES };
        while let Some(found) = frame::find(content, position, self.expected()) {
            if let Some(End { held, offset, torn: true }) = end {
                let segment = self.segments[*held].segment.number;
                return Err(damaged(format!("segment {segment} is damaged at offset {offset}")));
            }
            self.sequence = Some(found.sequence + 1);
            self.frame(held, position, found.records)?;
            let start = position.offset;
            position.offset += found.bytes as u64;
            let bytes = content.slice(start as usize..position.offset as usize);
            self.last_frame = Some((held, start, bytes));
            *end = Some(End { held, offset: position.offset, torn: false });
        }
        let rest = &content[position.offset as usize..];
        if rest.iter().all(|byte| *byte == 0) {
            // Either the end of what was written into this segment, or frames that were synced and
            // are gone: then a later segment has frames whose numbers do not follow.
            return Ok(());
        }
        if let Some(offset) = self.find_beyond(content, position) {
            return Err(damaged(format!(
                "segment {number} is damaged at offset {}, and there is a sound frame behind it at offset {offset}",
                position.offset
            )));
        }
        if end.as_ref().is_some_and(|end| end.torn) {
            return Err(damaged(format!("segment {number} and the one before it are both damaged")));
        }
        *end = Some(End { held, offset: position.offset, torn: true });
        Ok(())
    }

    fn expected(&self) -> std::ops::RangeInclusive<u64> {
        match self.sequence {
            Some(sequence) => sequence..=sequence,
            None => 0..=u64::MAX - SEQUENCE_WINDOW,
        }
    }

    /// A valid frame at or behind `position` that is not the next one.
    fn find_beyond(&self, content: &Bytes, mut position: Position) -> Option<u64> {
        let next = self.sequence.unwrap_or(0);
        while position.offset + (frame::HEADER_BYTES as u64) < content.len() as u64 {
            if frame::find(content, position, next..=next.saturating_add(SEQUENCE_WINDOW)).is_some() {
                return Some(position.offset);
            }
            position.offset += frame::ALIGNMENT as u64;
        }
        None
    }

    fn frame(&mut self, held: usize, position: Position, mut records: Bytes) -> Result<(), StartError> {
        let total = records.len();
        while !records.is_empty() {
            let offset = total - records.len();
            let Some(record) = record::decode(&mut records) else {
                return Err(StartError::Data(format!(
                    "segment {} has a sound frame at offset {} with a record in it that this program does not know: \
                     start the newer program that wrote it",
                    position.segment, position.offset
                )));
            };
            let place = Place {
                segment: position.segment,
                offset: position.offset + (frame::HEADER_BYTES + offset) as u64,
                bytes: (total - offset - records.len()) as u32,
            };
            self.record(held, record, place)?;
        }
        Ok(())
    }

    fn record(&mut self, held: usize, record: Record, place: Place) -> Result<(), StartError> {
        match record {
            Record::Entry(entry) => {
                let held = &mut self.segments[held];
                held.last_index = held.last_index.max(Some(entry.id.index));
                // Purged long ago, and only its file is still there.
                let purged = self.log.purged.is_some_and(|purged| entry.id.index <= purged.index);
                if !purged && !self.log.append_placed(entry.id, place) {
                    return Err(damaged(format!(
                        "entry {} follows where entry {} belongs",
                        entry.id.index,
                        self.log.next()
                    )));
                }
                if entry.kind == EntryKind::Membership {
                    // A copy: the entry is a slice of the whole segment.
                    self.memberships.push((entry.id.index, Bytes::copy_from_slice(&entry.body)));
                }
            }
            Record::Vote(vote) => self.state.vote = Some(vote),
            Record::Committed(id) => self.state.committed = Some(id),
            Record::Truncate(after) => {
                self.log.truncate(after);
                self.memberships.retain(|(index, _)| Some(*index) <= after);
            }
            Record::Purge(upto) => {
                self.log.purge(upto);
                self.state.purged = self.log.purged;
            }
            Record::Close => {}
        }
        Ok(())
    }

    fn finish(mut self, salt: u64, (active, offset): (usize, u64)) -> Recovered {
        self.log.vote = self.state.vote;
        self.log.committed = self.known_committed();
        let mut segments = VecDeque::from(self.segments);
        let ready = segments.split_off((active + 1).min(segments.len()));
        let ready = ready.into_iter().map(|held| held.segment).collect();
        let sequence = self.sequence.unwrap_or(0);
        let log = Arc::new(Mutex::new(self.log));
        let membership = self.memberships.pop();
        Recovered { log, salt, segments, ready, offset, sequence, state: self.state, membership }
    }

    /// The committed entry, if the log reaches that far.
    fn known_committed(&self) -> Option<LogId> {
        let last = self.log.last()?;
        self.state.committed.filter(|committed| committed.index <= last.index)
    }
}

fn damaged(what: String) -> StartError {
    StartError::Data(format!(
        "the log is damaged where it was durable: {what}. This node's disk has lost what was acknowledged. Nothing has \
         been changed. {REJOIN}"
    ))
}
