//! Frames: what one sync covers.
//!
//! `length u32 · crc32c u32 · sequence u64 · records`, at offsets divisible by eight. The checksum
//! also covers the directory's salt, the segment's number and the frame's offset, none of which are
//! stored here: bytes that merely look like a frame (left over in a reused block, copied from another
//! directory, or chosen by a client who put them into an entry) are not one.

use bytes::Bytes;

/// Bytes in front of the records.
pub(crate) const HEADER_BYTES: usize = 16;
/// What every frame's offset is divisible by.
pub(crate) const ALIGNMENT: usize = 8;

/// Where a frame lies. Part of its checksum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    pub salt: u64,
    pub segment: u64,
    pub offset: u64,
}

/// Begins a frame: reserves its header, to be filled in by [`seal`].
pub(crate) fn begin(buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.resize(HEADER_BYTES, 0);
}

/// Completes a frame that [`begin`] began: fills in the header and pads to the alignment.
pub(crate) fn seal(buffer: &mut Vec<u8>, position: Position, sequence: u64) {
    let length = u32::try_from(buffer.len() - HEADER_BYTES).expect("a frame must be smaller than 4 GiB");
    let checksum = checksum(position, sequence, length, &buffer[HEADER_BYTES..]);
    buffer[0..4].copy_from_slice(&length.to_le_bytes());
    buffer[4..8].copy_from_slice(&checksum.to_le_bytes());
    buffer[8..16].copy_from_slice(&sequence.to_le_bytes());
    buffer.resize(padded(buffer.len()), 0);
}

/// How much room a frame of so many bytes takes.
pub(crate) fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

/// A frame that was found.
pub(crate) struct Found {
    pub sequence: u64,
    pub records: Bytes,
    /// With header and padding.
    pub bytes: usize,
}

/// The frame at `position` of `segment` (the bytes of the whole segment), if a valid one is there
/// whose sequence number is in `expected`.
pub(crate) fn find(
    segment: &Bytes,
    position: Position,
    expected: std::ops::RangeInclusive<u64>,
) -> Option<Found> {
    let offset = usize::try_from(position.offset).ok()?;
    let header = segment.get(offset..offset + HEADER_BYTES)?;
    let length = u32::from_le_bytes(header[0..4].try_into().expect("four bytes"));
    let stored = u32::from_le_bytes(header[4..8].try_into().expect("four bytes"));
    let sequence = u64::from_le_bytes(header[8..16].try_into().expect("eight bytes"));
    if length == 0 || !expected.contains(&sequence) {
        return None;
    }
    let start = offset + HEADER_BYTES;
    let end = start + length as usize;
    if end > segment.len() || checksum(position, sequence, length, &segment[start..end]) != stored {
        return None;
    }
    let bytes = padded(end - offset);
    Some(Found { sequence, records: segment.slice(start..end), bytes })
}

fn checksum(position: Position, sequence: u64, length: u32, records: &[u8]) -> u32 {
    let mut sum = crc32c::crc32c(&position.salt.to_le_bytes());
    for number in [position.segment, position.offset, sequence, length.into()] {
        sum = crc32c::crc32c_append(sum, &number.to_le_bytes());
    }
    crc32c::crc32c_append(sum, records)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Position = Position { salt: 1, segment: 2, offset: 0 };

    fn frame() -> Bytes {
        let mut buffer = Vec::new();
        begin(&mut buffer);
        buffer.extend_from_slice(b"thirteen here");
        seal(&mut buffer, HERE, 9);
        Bytes::from(buffer)
    }

    #[test]
    fn a_frame_is_found_where_it_was_sealed() {
        let found = find(&frame(), HERE, 9..=9).expect("it is there");
        assert_eq!(found.records, &b"thirteen here"[..]);
        assert_eq!(found.bytes, 32);
        assert_eq!(found.sequence, 9);
    }

    #[test]
    fn a_frame_from_elsewhere_is_none() {
        assert!(find(&frame(), HERE, 10..=20).is_none());
        assert!(find(&frame(), Position { salt: 3, ..HERE }, 9..=9).is_none());
        assert!(find(&frame(), Position { segment: 3, ..HERE }, 9..=9).is_none());
        let mut shifted = vec![0; 8];
        shifted.extend_from_slice(&frame());
        assert!(find(&Bytes::from(shifted), Position { offset: 8, ..HERE }, 9..=9).is_none());
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let good = frame();
        for bit in 0..(HEADER_BYTES + 13) * 8 {
            let mut damaged = good.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(find(&Bytes::from(damaged), HERE, 0..=u64::MAX).is_none(), "bit {bit}");
        }
    }
}
