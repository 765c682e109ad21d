//! Entry points for the fuzz targets: a snapshot file as a disk or a peer delivers it.

use super::format::{Reader, Writer};
use super::store::Meta;
use crate::disk::{Disk, DiskFile, SimDisk};
use bytes::Bytes;
use std::io::{Read, Write};
use std::sync::Arc;

/// Reads these bytes as a snapshot's file.
pub fn content(bytes: &[u8]) {
    let file = file();
    file.write_at(bytes, 0).expect("a simulated disk has room");
    read(file);
}

/// Reads these bytes as the meta of a snapshot, and as its state: with checksums that are right.
pub fn meta(bytes: &[u8]) {
    if let Ok(meta) = Meta::decode(Bytes::copy_from_slice(bytes)) {
        assert_eq!(Meta::decode(meta.encode().into()).expect("what was written is read"), meta);
    }
    let file = file();
    let mut writer = Writer::begin(file.clone(), bytes).expect("a simulated disk has room");
    writer.write_all(bytes).expect("a simulated disk has room");
    writer.finish().expect("a simulated disk has room");
    assert_eq!(read(file), Some((bytes.to_vec(), bytes.to_vec())), "a snapshot changed by being written");
}

/// A whole file, to start from.
pub fn sample() -> Vec<u8> {
    let file = file();
    let mut writer = Writer::begin(file.clone(), &[0; 35]).expect("a simulated disk has room");
    writer.write_all(b"state").expect("a simulated disk has room");
    let mut bytes = vec![0; writer.finish().expect("a simulated disk has room") as usize];
    file.read_at(&mut bytes, 0).expect("just written");
    bytes
}

/// Meta and state, if the file is whole.
fn read(file: Arc<dyn DiskFile>) -> Option<(Vec<u8>, Vec<u8>)> {
    let (mut reader, meta) = Reader::open(file).ok()?;
    let _ = Meta::decode(meta.clone());
    let mut state = Vec::new();
    reader.read_to_end(&mut state).ok()?;
    reader.finish().ok()?;
    Some((meta.to_vec(), state))
}

fn file() -> Arc<dyn DiskFile> {
    SimDisk::new().create("snapshot").expect("a simulated disk has room")
}
