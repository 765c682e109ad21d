//! The log in memory: which entries there are, where they are on disk, and the most recent ones.
//!
//! It is changed when a job is *queued*, so it can be ahead of the disk; nothing here says anything about
//! durability. Its size is bounded: a few words for every entry since the last purge, and `cache_bytes` of
//! entries, plus those that are still being written.

use super::record::{self, EntryKind, LogEntry, LogId, Record, Vote};
use crate::disk::DiskFile;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// The log as its readers and its writer share it.
pub(crate) type SharedLog = Arc<Mutex<Log>>;

/// Where the record of an entry lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub segment: u64,
    pub offset: u64,
    pub bytes: u32,
}

#[derive(Debug)]
struct Slot {
    term: u64,
    /// Known once written.
    place: Option<Place>,
    /// In memory until written, and then for as long as there is room.
    cached: Option<(EntryKind, Bytes)>,
}

/// See the module.
pub(crate) struct Log {
    pub vote: Option<Vote>,
    pub committed: Option<LogId>,
    pub purged: Option<LogId>,
    /// The index of the first slot.
    first: u64,
    slots: VecDeque<Slot>,
    /// Slots before this index are not cached.
    cached_from: u64,
    cached_bytes: usize,
    cache_bytes_max: usize,
    files: BTreeMap<u64, Arc<dyn DiskFile>>,
}

/// An entry, or where to read it.
enum Source {
    Memory(LogEntry),
    Disk(LogId, Place, Arc<dyn DiskFile>),
}

/// Entries that were asked for. Reading them needs no lock and may block.
pub(crate) struct Selection(Vec<Source>);

impl Log {
    pub fn new(cache_bytes_max: usize) -> Self {
        Self {
            vote: None,
            committed: None,
            purged: None,
            first: 0,
            slots: VecDeque::new(),
            cached_from: 0,
            cached_bytes: 0,
            cache_bytes_max,
            files: BTreeMap::new(),
        }
    }

    /// The last entry, or the last purged one if there is none.
    pub fn last(&self) -> Option<LogId> {
        match self.slots.back() {
            Some(slot) => Some(LogId { term: slot.term, index: self.next() - 1 }),
            None => self.purged,
        }
    }

    /// The index that the next entry must have.
    pub fn next(&self) -> u64 {
        self.first + self.slots.len() as u64
    }

    /// Adds an entry; `false` if it would leave a hole or cover another.
    #[must_use]
    pub fn append(&mut self, entry: &LogEntry) -> bool {
        if !self.make_room_for(entry.id.index) {
            return false;
        }
        self.cached_bytes += entry.body.len();
        let cached = Some((entry.kind, entry.body.clone()));
        self.slots.push_back(Slot { term: entry.id.term, place: None, cached });
        true
    }

    /// Adds an entry that is on disk already; `false` if it would leave a hole or cover another.
    #[must_use]
    pub fn append_placed(&mut self, id: LogId, place: Place) -> bool {
        // The segments in front may have been removed already, on account of a purge whose record
        // is still to come, and what is left may have been truncated in between: an empty log may
        // begin anywhere. `first_missing` tells, when all is replayed, whether that purge came.
        if self.slots.is_empty() {
            self.begin_at(id.index);
        }
        if id.index != self.next() {
            return false;
        }
        self.slots.push_back(Slot { term: id.term, place: Some(place), cached: None });
        self.cached_from = self.next();
        true
    }

    fn make_room_for(&mut self, index: u64) -> bool {
        if self.slots.is_empty() && self.purged.is_none() {
            self.begin_at(index);
        }
        index == self.next()
    }

    fn begin_at(&mut self, index: u64) {
        self.first = index;
        self.cached_from = index;
    }

    /// The first entry that should be there and is not.
    pub fn first_missing(&self) -> Option<u64> {
        let expected = self.purged.map_or(0, |purged| purged.index + 1);
        (!self.slots.is_empty() && self.first != expected).then_some(expected)
    }

    /// Forgets all entries behind `after`.
    pub fn truncate(&mut self, after: Option<u64>) {
        let keep = after.map_or(0, |after| after + 1).max(self.first);
        while self.next() > keep {
            let slot = self.slots.pop_back().expect("there is a slot for every index");
            self.forget(&slot);
        }
        self.cached_from = self.cached_from.min(self.next());
    }

    /// Forgets all entries up to `upto`, which may lie beyond the last one.
    pub fn purge(&mut self, upto: LogId) {
        while self.first <= upto.index {
            let Some(slot) = self.slots.pop_front() else { break };
            self.first += 1;
            self.forget(&slot);
        }
        self.purged = self.purged.max(Some(upto));
        if let (true, Some(purged)) = (self.slots.is_empty(), self.purged) {
            self.begin_at(purged.index + 1);
        }
        self.cached_from = self.cached_from.max(self.first);
    }

    fn forget(&mut self, slot: &Slot) {
        if let Some((_, body)) = &slot.cached {
            self.cached_bytes -= body.len();
        }
    }

    /// Notes that an entry is durable at `place`, and lets go of what no longer fits the cache.
    pub fn placed(&mut self, id: LogId, place: Place) {
        // The entry may have been truncated since, and another put in its stead: the term tells.
        if let Some(slot) = self.slot_mut(id.index).filter(|slot| slot.term == id.term) {
            slot.place = Some(place);
        }
        while self.cached_bytes > self.cache_bytes_max {
            let Some(slot) = self.slot_mut(self.cached_from) else { break };
            if slot.place.is_none() {
                break; // not written yet: memory is the only place it has
            }
            let released = slot.cached.take().map_or(0, |(_, body)| body.len());
            self.cached_bytes -= released;
            self.cached_from += 1;
        }
    }

    fn slot_mut(&mut self, index: u64) -> Option<&mut Slot> {
        let at = index.checked_sub(self.first)?;
        self.slots.get_mut(usize::try_from(at).ok()?)
    }

    pub fn opened(&mut self, segment: u64, file: Arc<dyn DiskFile>) {
        self.files.insert(segment, file);
    }

    pub fn closed(&mut self, segment: u64) {
        self.files.remove(&segment);
    }

    /// The entries there are in `range`, at most so many bytes of them but at least one.
    pub fn select(&self, range: Range<u64>, bytes_max: usize) -> Selection {
        let mut bytes = 0;
        let mut sources = Vec::new();
        for index in range.start.max(self.first)..range.end.min(self.next()) {
            let slot = &self.slots[(index - self.first) as usize];
            let id = LogId { term: slot.term, index };
            let (source, size) = match (&slot.cached, slot.place) {
                (Some((kind, body)), _) => {
                    let entry = LogEntry { id, kind: *kind, body: body.clone() };
                    (Source::Memory(entry), body.len())
                }
                (None, Some(place)) => {
                    let file = self.files.get(&place.segment);
                    let file = file.expect("the segment of a live entry must be open").clone();
                    (Source::Disk(id, place, file), place.bytes as usize)
                }
                (None, None) => panic!("entry {index} is neither in memory nor on disk"),
            };
            bytes += size;
            if bytes > bytes_max && !sources.is_empty() {
                break;
            }
            sources.push(source);
        }
        Selection(sources)
    }

    #[cfg(test)]
    pub fn cached_bytes(&self) -> usize {
        self.cached_bytes
    }
}

impl Selection {
    /// Whether reading will touch the disk.
    pub fn needs_disk(&self) -> bool {
        self.0.iter().any(|source| matches!(source, Source::Disk(..)))
    }

    /// Reads what was selected.
    pub fn read(self) -> io::Result<Vec<LogEntry>> {
        self.0.into_iter().map(Source::read).collect()
    }
}

impl Source {
    fn read(self) -> io::Result<LogEntry> {
        let (id, place, file) = match self {
            Source::Memory(entry) => return Ok(entry),
            Source::Disk(id, place, file) => (id, place, file),
        };
        let mut bytes = vec![0; place.bytes as usize];
        file.read_at(&mut bytes, place.offset)?;
        match record::decode(&mut Bytes::from(bytes)) {
            Some(Record::Entry(entry)) if entry.id == id => Ok(entry),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "entry {} is damaged in segment {} at offset {}",
                    id.index, place.segment, place.offset
                ),
            )),
        }
    }
}
