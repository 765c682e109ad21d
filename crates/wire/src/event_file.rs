//! Event files as bytes: what a node keeps of past events on its own disk.
//!
//! A file is a head that names its cluster, and frames. A frame holds the events of whole revisions, without a gap, under
//! a head of its own: which revisions, how many bytes, and two checksums. The head's checksum lets a reader step over a
//! frame, or name what it held, without reading it; the other one is over the events.
//! This file decides how the bytes look. What is kept, and for how long, is the node's.

use tenure_core::{Event, EventKind, FormatVersion, Revision, WallTime};
use xxhash_rust::xxh3::xxh3_64;

use crate::codec::{Coded, Output, Reader, WireError, choice, record, version_of};

const EVENTS: &str = "event file";
const MAGIC: [u8; 8] = *b"TNREVNT\0";
const FRAME: [u8; 4] = *b"TNEF";

/// Bytes at the beginning of an event file.
pub const EVENT_FILE_HEAD_BYTES: usize = 32;
/// Bytes of a frame before its events.
pub const EVENT_FRAME_HEAD_BYTES: usize = 48;

/// The beginning of an event file of this cluster.
pub fn event_file_head(cluster: [u8; 16]) -> [u8; EVENT_FILE_HEAD_BYTES] {
    let mut head = [0; EVENT_FILE_HEAD_BYTES];
    head[..8].copy_from_slice(&MAGIC);
    head[8..24].copy_from_slice(&cluster);
    let checksum = xxh3_64(&head[..24]);
    head[24..].copy_from_slice(&checksum.to_le_bytes());
    head
}

/// The cluster of an event file, by its beginning.
pub fn read_event_file_head(head: &[u8; EVENT_FILE_HEAD_BYTES]) -> Result<[u8; 16], WireError> {
    if head[..8] != MAGIC || head[24..] != xxh3_64(&head[..24]).to_le_bytes() {
        return Err(WireError::corrupt(EVENTS, "it does not begin like one"));
    }
    Ok(head[8..24].try_into().expect("sixteen bytes"))
}

/// What a frame says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventFrame {
    /// The format version of its events.
    pub format: FormatVersion,
    /// The first revision in it.
    pub first: Revision,
    /// The last one; all between are in it.
    pub last: Revision,
    /// The calendar time of the last one.
    pub wall: WallTime,
    /// Bytes of its events.
    pub bytes: u32,
    /// The checksum over them.
    checksum: u64,
}

/// Appends one event to the events of a frame.
pub fn encode_event(format: FormatVersion, event: &Event, out: &mut Vec<u8>) {
    Output::append(format, out, |out| event.put(out));
}

impl EventFrame {
    /// The frame of these encoded events.
    pub fn new(
        format: FormatVersion,
        first: Revision,
        last: Revision,
        wall: WallTime,
        events: &[u8],
    ) -> EventFrame {
        let bytes = events.len().try_into().expect("a frame is cut long before four gigabytes");
        EventFrame { format, first, last, wall, bytes, checksum: xxh3_64(events) }
    }

    /// The frame's head.
    pub fn head(&self) -> [u8; EVENT_FRAME_HEAD_BYTES] {
        let mut head = [0; EVENT_FRAME_HEAD_BYTES];
        head[..4].copy_from_slice(&FRAME);
        head[4] = self.format.get();
        head[8..16].copy_from_slice(&self.first.get().to_le_bytes());
        head[16..24].copy_from_slice(&self.last.get().to_le_bytes());
        head[24..32].copy_from_slice(&self.wall.as_unix_millis().to_le_bytes());
        head[32..36].copy_from_slice(&self.bytes.to_le_bytes());
        head[36..44].copy_from_slice(&self.checksum.to_le_bytes());
        let checksum = xxh3_64(&head[..44]) as u32;
        head[44..].copy_from_slice(&checksum.to_le_bytes());
        head
    }

    /// Reads a frame's head.
    pub fn read_head(head: &[u8; EVENT_FRAME_HEAD_BYTES]) -> Result<EventFrame, WireError> {
        let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let short = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
        if head[..4] != FRAME || short(44) != xxh3_64(&head[..44]) as u32 {
            return Err(WireError::corrupt(EVENTS, "the head of a frame is not what was written"));
        }
        let frame = EventFrame {
            format: version_of(EVENTS, head[4], FormatVersion::NEWEST)?,
            first: Revision::new(number(8)),
            last: Revision::new(number(16)),
            wall: WallTime::from_unix_millis(number(24)),
            bytes: short(32),
            checksum: number(36),
        };
        if frame.first > frame.last {
            return Err(WireError::corrupt(EVENTS, "a frame ends before it begins"));
        }
        Ok(frame)
    }

    /// Reads the frame's events. They must be all of its revisions, in order.
    pub fn read(&self, events: &[u8]) -> Result<Vec<Event>, WireError> {
        if events.len() != self.bytes as usize || xxh3_64(events) != self.checksum {
            return Err(WireError::corrupt(EVENTS, "a frame is not what was written"));
        }
        let mut input = Reader::new(EVENTS, self.format, events);
        let mut found: Vec<Event> = Vec::new();
        let mut next = self.first;
        while input.remaining() > 0 {
            let event = Event::take(&mut input)?;
            if event.revision != next && found.last().is_none_or(|last| last.revision != event.revision) {
                return Err(input.corrupt("a frame leaves a revision out"));
            }
            next = event.revision.next();
            found.push(event);
        }
        if next != self.last.next() {
            return Err(input.corrupt("a frame leaves a revision out"));
        }
        Ok(found)
    }
}

record!(Event { revision, wall, kind, identity since 2 });
choice!(EventKind {
    1 => Opened { session, holder },
    2 => Closed { session, holder, why },
    3 => Lapsed { session, holder },
    4 => Granted { resource, session, holder, mode, slot, token, generation, waited, number },
    5 => Ended { resource, session, holder, slot, token, why, held_for, late, reason },
    6 => Noticed { resource, session, token, why, remaining, reason },
    7 => Queued { resource, session, holder, number },
    8 => Unqueued { resource, session, holder, number, why },
    9 => Put { key, value, create_revision, version },
    10 => Deleted { key },
    11 => Barrier { resource, token },
    12 => Armed { scope, fence, token },
    13 => Refused { scope, fence, presented, seen, count },
    14 => Paused { session, holder, length },
    15 => BecameLeader { node, term },
    16 => Changed { what, how },
});

#[cfg(test)]
mod tests {
    use super::*;

    fn events(revisions: &[u64]) -> (Vec<Event>, Vec<u8>) {
        let event = |revision: &u64| Event {
            revision: Revision::new(*revision),
            wall: WallTime::from_unix_millis(1_794_775_729_123),
            kind: EventKind::BecameLeader { node: 1, term: *revision },
            identity: None,
        };
        let events: Vec<Event> = revisions.iter().map(event).collect();
        let mut bytes = Vec::new();
        events.iter().for_each(|event| encode_event(FormatVersion::V2, event, &mut bytes));
        (events, bytes)
    }

    fn frame(first: u64, last: u64, bytes: &[u8]) -> EventFrame {
        let (first, last) = (Revision::new(first), Revision::new(last));
        EventFrame::new(FormatVersion::V2, first, last, WallTime::default(), bytes)
    }

    #[test]
    fn a_frame_comes_back_and_any_damage_is_noticed() {
        let (written, bytes) = events(&[7, 7, 8, 9, 9, 9]);
        let frame = frame(7, 9, &bytes);
        let read = EventFrame::read_head(&frame.head()).unwrap();
        assert_eq!(read, frame);
        assert_eq!(read.read(&bytes).unwrap(), written);
        for at in 0..EVENT_FRAME_HEAD_BYTES {
            let mut head = frame.head();
            head[at] ^= 1;
            assert!(EventFrame::read_head(&head).is_err(), "byte {at}");
        }
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            assert!(frame.read(&bytes).is_err(), "byte {at}");
        }
        assert!(frame.read(&bytes[..bytes.len() - 1]).is_err());
    }

    /// A frame promises whole revisions without a gap; one that does not keep that is not believed.
    #[test]
    fn a_frame_that_leaves_a_revision_out_is_refused() {
        for revisions in [&[7, 9][..], &[7, 8], &[8, 9], &[7, 9, 8], &[7, 8, 7, 9]] {
            let (_, bytes) = events(revisions);
            assert!(frame(7, 9, &bytes).read(&bytes).is_err(), "{revisions:?}");
        }
    }
}
