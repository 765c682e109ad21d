//! Entry points for the fuzz targets: a log as a disk returns it. Almost no mutation keeps a checksum valid,
//! so the code behind the checksums is reached by correcting them.

use super::frame::{self, Position};
use super::record;
use super::segment;
use super::synced::{Synced, SyncedFile};
use super::{DIRECTORY, recover};
use crate::disk::{Disk, SimDisk};
use bytes::{BufMut, Bytes};

const SALT: u64 = 0x5a17;
const SEGMENT: u64 = 1;

/// Starts from a segment with this content behind its header.
pub fn content(bytes: &[u8]) {
    let disk = SimDisk::new();
    disk.create_dir(DIRECTORY).expect("a simulated disk has room");
    let length = segment::HEADER_BYTES + bytes.len() as u64;
    let segment = segment::prepare(&disk, SALT, SEGMENT, length).expect("a simulated disk has room");
    segment.file.write_at(bytes, segment::HEADER_BYTES).expect("a simulated disk has room");
    SyncedFile::create(&disk, SALT, Synced { frames: 0, first: SEGMENT, last: SEGMENT })
        .expect("a simulated disk has room");
    // Recovery may cut a torn tail; what it leaves must then be whole.
    if recover(&disk, SALT, 0).is_ok() {
        recover(&disk, SALT, 0).expect("what was recovered is sound");
    }
}

/// Starts from a segment with one frame of these records: each is a length of one byte, and so much of kind
/// and payload.
pub fn records(mut bytes: &[u8]) {
    let mut frame = Vec::new();
    frame::begin(&mut frame);
    while let Some((length, rest)) = bytes.split_first() {
        let (payload, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        bytes = rest;
        frame.put_u32_le(payload.len() as u32);
        frame.put_u32_le(crc32c::crc32c(payload));
        frame.put_slice(payload);
    }
    let mut all = Bytes::copy_from_slice(&frame[frame::HEADER_BYTES..]);
    while let Some(record) = record::decode(&mut all) {
        let mut written = Vec::new();
        record::encode(&record, &mut written);
        assert_eq!(record::decode(&mut written.into()), Some(record), "a record changed by being written");
    }
    frame::seal(&mut frame, Position { salt: SALT, segment: SEGMENT, offset: segment::HEADER_BYTES }, 0);
    content(&frame);
}
