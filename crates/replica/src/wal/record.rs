//! Records: the smallest things the log remembers, and their bytes.
//!
//! `length u32 · crc32c u32 · kind u8 · payload`, all numbers little-endian; `length` and checksum
//! cover kind and payload. The checksum repeats what the frame's says so that a single entry can be
//! read and trusted without reading the frame around it.

use bytes::{Buf, BufMut, Bytes};

/// The place of an entry in the agreed order, and the term of the leader that put it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LogId {
    pub term: u64,
    pub index: u64,
}

/// Whom this node has promised what: it never takes part in anything older.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vote {
    pub term: u64,
    pub node: u64,
    /// Whether a quorum granted it, so that `node` leads in `term`.
    pub committed: bool,
}

/// What an entry carries. The numbers are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum EntryKind {
    /// Nothing: a new leader's first entry.
    Blank = 1,
    /// Bytes of the application.
    Normal = 2,
    /// A membership, in the engine adapter's coding.
    Membership = 3,
}

impl EntryKind {
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Blank),
            2 => Some(Self::Normal),
            3 => Some(Self::Membership),
            _ => None,
        }
    }
}

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogEntry {
    pub id: LogId,
    pub kind: EntryKind,
    pub body: Bytes,
}

/// Everything that can be in a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Entry(LogEntry),
    Vote(Vote),
    /// Entries up to here are committed. Only a hint that saves time after a restart.
    Committed(LogId),
    /// Entries behind this index (all, if `None`) are gone.
    Truncate(Option<u64>),
    /// Entries up to here are gone, a snapshot covers them.
    Purge(LogId),
    /// The log was closed in good order. It also proves that the frame before it was synced.
    Close,
}

/// No log grows to this index; above it is only what was never written, and arithmetic that overflows.
const INDEX_MAX: u64 = u64::MAX / 2;

/// Bytes in front of the kind.
pub(crate) const HEADER_BYTES: usize = 8;

// Kinds on disk. 1..=3 are the kinds of entries.
const VOTE: u8 = 16;
const COMMITTED: u8 = 17;
const TRUNCATE: u8 = 18;
const PURGE: u8 = 19;
const CLOSE: u8 = 20;

/// Appends the bytes of a record.
pub(crate) fn encode(record: &Record, output: &mut Vec<u8>) {
    match record {
        Record::Entry(entry) => encode_entry(entry, output),
        Record::Vote(vote) => sealed(output, VOTE, |output| {
            output.put_u64_le(vote.term);
            output.put_u64_le(vote.node);
            output.put_u8(vote.committed.into());
        }),
        Record::Committed(id) => sealed(output, COMMITTED, |output| put_id(output, *id)),
        Record::Truncate(after) => sealed(output, TRUNCATE, |output| {
            output.put_u8(after.is_some().into());
            output.put_u64_le(after.unwrap_or(0));
        }),
        Record::Purge(id) => sealed(output, PURGE, |output| put_id(output, *id)),
        Record::Close => sealed(output, CLOSE, |_| ()),
    }
}

/// Appends the bytes of an entry's record.
pub(crate) fn encode_entry(entry: &LogEntry, output: &mut Vec<u8>) {
    sealed(output, entry.kind as u8, |output| {
        put_id(output, entry.id);
        output.put_slice(&entry.body);
    });
}

fn put_id(output: &mut Vec<u8>, id: LogId) {
    output.put_u64_le(id.term);
    output.put_u64_le(id.index);
}

fn sealed(output: &mut Vec<u8>, kind: u8, payload: impl FnOnce(&mut Vec<u8>)) {
    let start = output.len();
    output.put_u64_le(0);
    output.put_u8(kind);
    payload(output);
    let body = start + HEADER_BYTES;
    let length = u32::try_from(output.len() - body).expect("a record must be smaller than 4 GiB");
    let checksum = crc32c::crc32c(&output[body..]);
    output[start..start + 4].copy_from_slice(&length.to_le_bytes());
    output[start + 4..body].copy_from_slice(&checksum.to_le_bytes());
}

/// Takes the first record off `input`; `None` if there is no whole, undamaged, known one.
pub(crate) fn decode(input: &mut Bytes) -> Option<Record> {
    if input.len() < HEADER_BYTES {
        return None;
    }
    let length = input.get_u32_le() as usize;
    let checksum = input.get_u32_le();
    if length == 0 || length > input.len() {
        return None;
    }
    let mut payload = input.split_to(length);
    if crc32c::crc32c(&payload) != checksum {
        return None;
    }
    let kind = payload.get_u8();
    let record = match kind {
        VOTE if payload.len() == 17 => Record::Vote(Vote {
            term: payload.get_u64_le(),
            node: payload.get_u64_le(),
            committed: payload.get_u8() != 0,
        }),
        COMMITTED if payload.len() == 16 => Record::Committed(get_id(&mut payload)?),
        TRUNCATE if payload.len() == 9 => {
            let some = payload.get_u8() != 0;
            let index = index(payload.get_u64_le())?;
            Record::Truncate(some.then_some(index))
        }
        PURGE if payload.len() == 16 => Record::Purge(get_id(&mut payload)?),
        CLOSE if payload.is_empty() => Record::Close,
        _ if payload.len() >= 16 => {
            let kind = EntryKind::from_number(kind)?;
            Record::Entry(LogEntry { id: get_id(&mut payload)?, kind, body: payload })
        }
        _ => return None,
    };
    Some(record)
}

fn get_id(payload: &mut Bytes) -> Option<LogId> {
    Some(LogId { term: payload.get_u64_le(), index: index(payload.get_u64_le())? })
}

fn index(found: u64) -> Option<u64> {
    (found <= INDEX_MAX).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Record> {
        let id = LogId { term: 7, index: INDEX_MAX };
        vec![
            Record::Entry(LogEntry { id, kind: EntryKind::Blank, body: Bytes::new() }),
            Record::Entry(LogEntry { id, kind: EntryKind::Normal, body: Bytes::from_static(b"a grant") }),
            Record::Entry(LogEntry { id, kind: EntryKind::Membership, body: Bytes::from_static(&[0; 40]) }),
            Record::Vote(Vote { term: 3, node: 2, committed: true }),
            Record::Committed(id),
            Record::Truncate(None),
            Record::Truncate(Some(0)),
            Record::Purge(id),
            Record::Close,
        ]
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut bytes = Vec::new();
        for record in samples() {
            encode(&record, &mut bytes);
        }
        let mut input = Bytes::from(bytes);
        for record in samples() {
            assert_eq!(decode(&mut input), Some(record));
        }
        assert!(input.is_empty());
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        for record in samples() {
            let mut bytes = Vec::new();
            encode(&record, &mut bytes);
            for bit in 0..bytes.len() * 8 {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(decode(&mut Bytes::from(damaged)), None, "bit {bit} of {record:?}");
            }
        }
    }

    #[test]
    fn an_index_that_no_log_grows_to_is_none() {
        let id = LogId { term: 7, index: INDEX_MAX + 1 };
        let entry = LogEntry { id, kind: EntryKind::Blank, body: Bytes::new() };
        for record in [Record::Entry(entry), Record::Purge(id), Record::Truncate(Some(id.index))] {
            let mut bytes = Vec::new();
            encode(&record, &mut bytes);
            assert_eq!(decode(&mut Bytes::from(bytes)), None, "{record:?}");
        }
    }

    #[test]
    fn a_cut_record_is_none() {
        for record in samples() {
            let mut bytes = Vec::new();
            encode(&record, &mut bytes);
            for length in 0..bytes.len() {
                assert_eq!(decode(&mut Bytes::copy_from_slice(&bytes[..length])), None);
            }
        }
    }
}
