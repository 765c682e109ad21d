//! The bytes of a snapshot file.
//!
//! `magic · version u32 · reserved u32`, then blocks: `kind u32 · length u32 · crc32c u32 · reserved u32 ·
//! payload`. The checksum covers the block's number and kind too, so blocks cannot be lost, repeated
//! or reordered unnoticed. The first block is the meta, the last one says that there are no more: a
//! file without it is not complete.

use crate::disk::DiskFile;
use bytes::Bytes;
use std::io::{self, Read, Write};
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"TENURSNP";
/// Raised when older programs could no longer read what newer ones write.
const VERSION: u32 = 1;
const FILE_HEADER_BYTES: u64 = 16;
const BLOCK_HEADER_BYTES: usize = 16;
/// How much is checked by one checksum.
const BLOCK_BYTES: usize = 64 << 10;
/// No block is larger, whatever a damaged header says.
const BLOCK_BYTES_MAX: usize = 16 << 20;

const META: u32 = 1;
const DATA: u32 = 2;
const END: u32 = 3;

/// Writes a snapshot, block by block.
pub(crate) struct Writer {
    file: Arc<dyn DiskFile>,
    offset: u64,
    number: u64,
    block: Vec<u8>,
}

impl Writer {
    /// Begins a snapshot in an empty file.
    pub fn begin(file: Arc<dyn DiskFile>, meta: &[u8]) -> io::Result<Self> {
        let mut header = Vec::with_capacity(FILE_HEADER_BYTES as usize);
        header.extend_from_slice(MAGIC);
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&[0; 4]);
        file.write_at(&header, 0)?;
        let mut writer = Self { file, offset: FILE_HEADER_BYTES, number: 0, block: Vec::new() };
        writer.put(META, meta)?;
        Ok(writer)
    }

    /// Completes the snapshot and makes it durable. Returns its length.
    pub fn finish(mut self) -> io::Result<u64> {
        self.flush()?;
        self.put(END, &[])?;
        self.file.sync_data()?;
        Ok(self.offset)
    }

    fn put(&mut self, kind: u32, payload: &[u8]) -> io::Result<()> {
        let length = u32::try_from(payload.len()).expect("a block must be smaller than 4 GiB");
        let mut block = Vec::with_capacity(BLOCK_HEADER_BYTES + payload.len());
        block.extend_from_slice(&kind.to_le_bytes());
        block.extend_from_slice(&length.to_le_bytes());
        block.extend_from_slice(&checksum(self.number, kind, payload).to_le_bytes());
        block.extend_from_slice(&[0; 4]);
        block.extend_from_slice(payload);
        self.file.write_at(&block, self.offset)?;
        self.offset += block.len() as u64;
        self.number += 1;
        Ok(())
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(BLOCK_BYTES - self.block.len());
        self.block.extend_from_slice(&bytes[..taken]);
        if self.block.len() == BLOCK_BYTES {
            self.flush()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.block.is_empty() {
            let block = std::mem::take(&mut self.block);
            self.put(DATA, &block)?;
            self.block = block;
            self.block.clear();
        }
        Ok(())
    }
}

/// Reads a snapshot, checking every block before any of it is seen.
pub(crate) struct Reader {
    file: Arc<dyn DiskFile>,
    offset: u64,
    number: u64,
    block: Bytes,
    ended: bool,
}

impl Reader {
    /// Opens a snapshot and returns its meta.
    pub fn open(file: Arc<dyn DiskFile>) -> io::Result<(Self, Bytes)> {
        let mut header = [0; FILE_HEADER_BYTES as usize];
        file.read_at(&mut header, 0).map_err(|_| invalid("it is cut short"))?;
        if &header[0..8] != MAGIC {
            return Err(invalid("it is no snapshot"));
        }
        let version = u32::from_le_bytes(header[8..12].try_into().expect("four bytes"));
        if version > VERSION {
            return Err(invalid(&format!(
                "it has format version {version}, this program knows versions up to {VERSION}: start the newer program \
                 that wrote it"
            )));
        }
        let mut reader =
            Self { file, offset: FILE_HEADER_BYTES, number: 0, block: Bytes::new(), ended: false };
        match reader.next_block()? {
            (META, meta) => Ok((reader, meta)),
            _ => Err(invalid("its first block is not the meta")),
        }
    }

    /// Reads whatever is left, so that every checksum has been looked at and the end was there.
    pub fn finish(mut self) -> io::Result<()> {
        let mut rest = [0; 4096];
        while self.read(&mut rest)? > 0 {}
        Ok(())
    }

    fn next_block(&mut self) -> io::Result<(u32, Bytes)> {
        let mut header = [0; BLOCK_HEADER_BYTES];
        self.file.read_at(&mut header, self.offset).map_err(|_| invalid("it is cut short"))?;
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let (kind, length, stored) = (word(0), word(4) as usize, word(8));
        if length > BLOCK_BYTES_MAX {
            return Err(invalid(&format!("block {} is damaged", self.number)));
        }
        let mut payload = vec![0; length];
        let start = self.offset + BLOCK_HEADER_BYTES as u64;
        self.file.read_at(&mut payload, start).map_err(|_| invalid("it is cut short"))?;
        if checksum(self.number, kind, &payload) != stored {
            return Err(invalid(&format!("block {} is damaged", self.number)));
        }
        self.offset = start + length as u64;
        self.number += 1;
        Ok((kind, payload.into()))
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.block.is_empty() && !self.ended {
            match self.next_block()? {
                (DATA, payload) => self.block = payload,
                (END, _) => self.ended = true,
                (kind, _) => {
                    return Err(invalid(&format!("block {} is of unknown kind {kind}", self.number - 1)));
                }
            }
        }
        let taken = buffer.len().min(self.block.len());
        buffer[..taken].copy_from_slice(&self.block.split_to(taken));
        Ok(taken)
    }
}

fn checksum(number: u64, kind: u32, payload: &[u8]) -> u32 {
    let sum = crc32c::crc32c(&number.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(sum, &kind.to_le_bytes()), payload)
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}
