//! Segments: the files of the log, prepared before they are needed.
//!
//! A segment gets its name only when it has its full size, filled with zeros, and all of that is durable.
//! Writing into it then changes no metadata, so a sync is one write to the disk, and the log does not run out
//! of space in the middle of a frame.

use super::DIRECTORY;
use crate::disk::{Disk, DiskFile};
use crate::error::{REJOIN, StartError};
use bytes::Bytes;
use std::io;
use std::sync::Arc;

/// Bytes in front of the first frame.
pub(crate) const HEADER_BYTES: u64 = 64;
const MAGIC: &[u8; 8] = b"TENURLOG";
/// Raised when older programs could no longer read what newer ones write. Nothing was released with version
/// 1.
const VERSION: u32 = 2;
/// Zeros are written in pieces of this size.
const FILL_BYTES: usize = 256 << 10;

/// One segment file.
#[derive(Clone)]
pub(crate) struct Segment {
    pub number: u64,
    pub bytes: u64,
    pub file: Arc<dyn DiskFile>,
}

/// Its name below the data directory.
pub(crate) fn name(number: u64) -> String {
    format!("{DIRECTORY}/{number:016}.wal")
}

/// The number in a file name, if it is one of a segment.
pub(crate) fn number(file_name: &str) -> Option<u64> {
    let digits = file_name.strip_suffix(".wal")?;
    (digits.len() == 16).then(|| digits.parse().ok())?
}

/// Makes a segment of `bytes` bytes, durably.
pub(crate) fn prepare(disk: &dyn Disk, salt: u64, number: u64, bytes: u64) -> io::Result<Segment> {
    let draft = format!("{DIRECTORY}/{number:016}.tmp");
    if disk.list(DIRECTORY)?.iter().any(|name| draft.ends_with(name.as_str())) {
        // Left over from an attempt that ran out of space.
        disk.remove(&draft)?;
    }
    let file = disk.create(&draft)?;
    let zeros = vec![0; FILL_BYTES];
    let mut offset = 0;
    while offset < bytes {
        let piece = (bytes - offset).min(FILL_BYTES as u64);
        file.write_at(&zeros[..piece as usize], offset)?;
        offset += piece;
    }
    file.write_at(&header(salt, number, bytes), 0)?;
    file.sync_data()?;
    disk.rename(&draft, &name(number))?;
    disk.sync_dir(DIRECTORY)?;
    Ok(Segment { number, bytes, file })
}

/// The header of a segment of `bytes` bytes.
fn header(salt: u64, number: u64, bytes: u64) -> [u8; HEADER_BYTES as usize] {
    let mut header = [0; HEADER_BYTES as usize];
    header[0..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[16..24].copy_from_slice(&number.to_le_bytes());
    header[24..32].copy_from_slice(&salt.to_le_bytes());
    header[32..40].copy_from_slice(&bytes.to_le_bytes());
    let checksum = crc32c::crc32c(&header[..60]);
    header[60..64].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// Opens a segment and reads all of it.
pub(crate) fn load(disk: &dyn Disk, salt: u64, number: u64) -> Result<(Segment, Bytes), StartError> {
    let name = name(number);
    let read = || {
        let file = disk.open(&name)?;
        let mut content = vec![0; file.len()? as usize];
        file.read_at(&mut content, 0)?;
        Ok((file, content))
    };
    let (file, content) = read().map_err(|error| StartError::Io(format!("cannot read {name}"), error))?;
    let damaged = |what: &str| {
        Err(StartError::Data(format!(
            "{name}: {what}. The log is damaged where it was durable. Nothing has been changed. {REJOIN}"
        )))
    };
    if content.len() < HEADER_BYTES as usize || &content[0..8] != MAGIC {
        return damaged("this is no log segment");
    }
    let version = u32::from_le_bytes(content[8..12].try_into().expect("four bytes"));
    if version > VERSION {
        return Err(StartError::Data(format!(
            "{name} has format version {version}, this program knows versions up to {VERSION}: start the newer \
             program that wrote it. If there was none, the file is damaged. {REJOIN}"
        )));
    }
    let bytes = u64::from_le_bytes(content[32..40].try_into().expect("eight bytes"));
    if content[..HEADER_BYTES as usize] != header(salt, number, bytes) {
        return damaged("its header is damaged, or it belongs to another data directory");
    }
    // A write never changes the length.
    if content.len() as u64 != bytes {
        let what = format!("it has {} bytes, and was made with {bytes}", content.len());
        return damaged(&what);
    }
    Ok((Segment { number, bytes, file }, Bytes::from(content)))
}

/// Overwrites everything from `offset` on with zeros, durably.
pub(crate) fn clear_from(segment: &Segment, offset: u64) -> io::Result<()> {
    let zeros = vec![0; FILL_BYTES];
    let mut at = offset;
    while at < segment.bytes {
        let piece = (segment.bytes - at).min(FILL_BYTES as u64);
        segment.file.write_at(&zeros[..piece as usize], at)?;
        at += piece;
    }
    segment.file.sync_data()
}
