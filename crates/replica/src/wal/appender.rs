//! Appending to a segment: with direct I/O where the operating system supports it, through the page cache
//! elsewhere.
//!
//! A sync makes the kernel search the cache for dirty pages, write them and then flush the disk. A direct
//! write that returns when it is durable takes less processor time, and is a single command if the disk can
//! force a single write. It must cover whole blocks: the block in which a frame ended is written again with
//! the next frame, as the cache would have done.

use super::segment::Segment;
use crate::disk::DiskFile;
use std::io;
use std::sync::Arc;

/// What every disk and file system can write at once, and where in memory it must stand.
const BLOCK: usize = 4096;
/// Larger frames go through the cache: putting them in place would cost more than it saves.
const DIRECT_BYTES_MAX: usize = 128 << 10;

/// Writes frames to the end of one segment.
pub(crate) struct Appender {
    file: Arc<dyn DiskFile>,
    /// The segment's length, which no write changes.
    bytes: u64,
    direct: Option<Direct>,
}

struct Direct {
    file: Arc<dyn DiskFile>,
    /// Room for the blocks of a frame, and for moving them to where they must stand.
    room: Vec<u8>,
    /// The end of what was written last; the beginning of its block is at the beginning of the blocks.
    end: Option<u64>,
}

impl Appender {
    pub fn new(segment: &Segment) -> Self {
        // One block for what was written before, one for what is left of the last, one to move.
        let room = || vec![0; DIRECT_BYTES_MAX + 3 * BLOCK];
        let direct = segment.file.open_direct().map(|file| Direct { file, room: room(), end: None });
        Self { file: segment.file.clone(), bytes: segment.bytes, direct }
    }

    /// Writes a frame, durably. What is behind it in its last block becomes zeros.
    pub fn append(&mut self, frame: &[u8], offset: u64) -> io::Result<()> {
        let end = (offset + frame.len() as u64).next_multiple_of(BLOCK as u64);
        if let Some(direct) = self.direct.as_mut().filter(|_| end <= self.bytes) {
            if frame.len() <= DIRECT_BYTES_MAX {
                match direct.append(&*self.file, frame, offset) {
                    // Some file systems take the flag and then refuse the write.
                    Err(error) if error.kind() == io::ErrorKind::InvalidInput => self.direct = None,
                    done => return done,
                }
            } else {
                direct.end = None;
            }
        }
        self.file.write_at(frame, offset)?;
        self.file.sync_data()
    }
}

impl Direct {
    fn append(&mut self, cached: &dyn DiskFile, frame: &[u8], offset: u64) -> io::Result<()> {
        let to_boundary = self.room.as_ptr().align_offset(BLOCK);
        let blocks = &mut self.room[to_boundary..];
        let before = (offset % BLOCK as u64) as usize;
        let start = offset - before as u64;
        if self.end != Some(offset) {
            cached.read_at(&mut blocks[..before], start)?;
        }
        // Known again only when it is written.
        self.end = None;
        let behind = before + frame.len();
        let end = behind.next_multiple_of(BLOCK);
        blocks[before..behind].copy_from_slice(frame);
        blocks[behind..end].fill(0);
        self.file.write_at(&blocks[..end], start)?;
        blocks.copy_within(behind / BLOCK * BLOCK..end, 0);
        self.end = Some(start + behind as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::segment;
    use super::*;
    use crate::disk::{Disk, Draws, RealDisk};

    /// Frames of every length, small ones and such that go through the cache, with readers through the cache
    /// in between.
    #[test]
    fn what_is_appended_is_read_back() {
        let folder = tempfile();
        let disk = RealDisk::open(&folder).unwrap();
        disk.create_dir(super::super::DIRECTORY).unwrap();
        let bytes = 2 << 20;
        let segment = segment::prepare(&disk, 7, 1, bytes + 100).unwrap();
        let mut content = vec![0; segment.bytes as usize];
        segment.file.read_at(&mut content, 0).unwrap();
        let mut appender = Appender::new(&segment);
        let mut draws = Draws(11);
        let mut offset = segment::HEADER_BYTES as usize;
        for round in 0u32.. {
            let length = match draws.below(20) {
                0 => DIRECT_BYTES_MAX + draws.below(9_000) as usize,
                1 => BLOCK,
                2..6 => draws.below(20_000) as usize,
                _ => draws.below(300) as usize,
            };
            if offset + length > content.len() {
                break;
            }
            // As after a restart: what stands before is known to nobody.
            if draws.below(10) == 0 {
                appender = Appender::new(&segment);
            }
            let frame: Vec<u8> = (0..length).map(|_| draws.below(256) as u8).collect();
            content[offset..offset + length].copy_from_slice(&frame);
            appender.append(&frame, offset as u64).unwrap();
            offset += length;
            let mut found = vec![0; content.len()];
            segment.file.read_at(&mut found, 0).unwrap();
            assert!(found == content, "after {round} frames");
        }
        assert_eq!(segment.file.len().unwrap(), bytes + 100, "no write changes the length");
        std::fs::remove_dir_all(folder).unwrap();
    }

    fn tempfile() -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("tenure-appender-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        folder
    }
}
