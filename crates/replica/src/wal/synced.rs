//! How far the log was synced, in a small file of its own: what recovery holds the segments against.
//!
//! A log alone cannot tell a tail that nobody was notified of from one that its disk has lost. So the writer
//! notes after each sync, and before it acknowledges, how many frames there are and in which segments. Frame
//! numbers only rise, whatever the engine truncates or purges. A note is one small write into the page cache:
//! it survives the end of the process, not a loss of power. After that the file is a lower bound, as of the
//! last time that it was synced itself: whenever a segment is finished and the next one begun, whenever
//! segments are removed, and whenever a snapshot is finished.
//!
//! Two slots in different sectors are written in turn: a torn write leaves the other one.

use crate::disk::{Disk, DiskFile};
use std::io;
use std::sync::Arc;

/// Its name in the data directory.
pub(crate) const NAME: &str = "synced";
const DRAFT: &str = "synced.tmp";
/// Raised when older programs could no longer read what newer ones write.
const VERSION: u32 = 1;
/// No sector is larger than this in any disk that writes less than a block at a time.
const SLOT_BYTES: u64 = 512;
const RECORD_BYTES: usize = 32;

/// What was synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Synced {
    /// How many frames, since the first one ever.
    pub frames: u64,
    /// The first segment that is still needed.
    pub first: u64,
    /// The last segment in use; none before the first.
    pub last: u64,
}

/// What is known at a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// There is no such file.
    Nothing,
    /// There is one, and it cannot be read.
    Damaged,
    /// At least this was synced.
    AtLeast(Synced),
}

/// Reads what was synced before.
pub(crate) fn read(disk: &dyn Disk, salt: u64) -> io::Result<Known> {
    if !disk.list("")?.iter().any(|name| name == NAME) {
        return Ok(Known::Nothing);
    }
    let file = disk.open(NAME)?;
    let slot = |number: u64| {
        let mut record = [0; RECORD_BYTES];
        file.read_at(&mut record, number * SLOT_BYTES).ok()?;
        decode(&record, salt)
    };
    // All three only rise.
    let newest = [slot(0), slot(1)].into_iter().flatten().max_by_key(|it| (it.frames, it.last, it.first));
    Ok(newest.map_or(Known::Damaged, Known::AtLeast))
}

/// Makes all notes durable: a snapshot is finished. Not through the writer, which may be busy for as long as
/// a sync takes.
pub(crate) fn sync(disk: &dyn Disk) -> io::Result<()> {
    match disk.open(NAME) {
        Ok(file) => file.sync_data(),
        // A log that does not exist yet has nothing to note.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// The file, open for notes.
pub(crate) struct SyncedFile {
    file: Arc<dyn DiskFile>,
    salt: u64,
    now: Synced,
    /// The slot that was written last.
    slot: u64,
}

impl SyncedFile {
    /// Writes the file anew, durably.
    pub fn create(disk: &dyn Disk, salt: u64, now: Synced) -> io::Result<Self> {
        match disk.remove(DRAFT) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = disk.create(DRAFT)?;
        // Its full length from the beginning: a note changes no metadata, and never needs space.
        file.write_at(&[0; 2 * SLOT_BYTES as usize], 0)?;
        for slot in [0, 1] {
            file.write_at(&encode(now, salt), slot * SLOT_BYTES)?;
        }
        file.sync_data()?;
        disk.rename(DRAFT, NAME)?;
        disk.sync_dir("")?;
        Ok(Self { file, salt, now, slot: 0 })
    }

    /// So many frames are synced.
    pub fn note_frames(&mut self, frames: u64) -> io::Result<()> {
        self.now.frames = frames;
        self.write()
    }

    /// These segments are in use, durably.
    pub fn note_segments(&mut self, first: u64, last: u64) -> io::Result<()> {
        self.now = Synced { first, last, ..self.now };
        self.write()?;
        self.file.sync_data()
    }

    fn write(&mut self) -> io::Result<()> {
        self.slot ^= 1;
        self.file.write_at(&encode(self.now, self.salt), self.slot * SLOT_BYTES)
    }
}

/// `crc32c u32 · version u32 · frames u64 · first u64 · last u64`. The checksum covers the directory's salt
/// too.
fn encode(synced: Synced, salt: u64) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[4..8].copy_from_slice(&VERSION.to_le_bytes());
    record[8..16].copy_from_slice(&synced.frames.to_le_bytes());
    record[16..24].copy_from_slice(&synced.first.to_le_bytes());
    record[24..32].copy_from_slice(&synced.last.to_le_bytes());
    let sum = checksum(&record, salt);
    record[0..4].copy_from_slice(&sum.to_le_bytes());
    record
}

fn decode(record: &[u8; RECORD_BYTES], salt: u64) -> Option<Synced> {
    let stored = u32::from_le_bytes(record[0..4].try_into().expect("four bytes"));
    let version = u32::from_le_bytes(record[4..8].try_into().expect("four bytes"));
    let word = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().expect("eight bytes"));
    let sound = stored == checksum(record, salt) && version == VERSION;
    sound.then(|| Synced { frames: word(8), first: word(16), last: word(24) })
}

fn checksum(record: &[u8; RECORD_BYTES], salt: u64) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&salt.to_le_bytes()), &record[4..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SimDisk;

    const NOW: Synced = Synced { frames: 7, first: 1, last: 2 };

    #[test]
    fn a_note_survives_the_process_and_a_loss_of_power_leaves_an_older_one() {
        for seed in 0..32 {
            let disk = SimDisk::new();
            assert_eq!(read(&disk, 1).unwrap(), Known::Nothing);
            let mut file = SyncedFile::create(&disk, 1, NOW).unwrap();
            for frames in 8..=20 {
                file.note_frames(frames).unwrap();
            }
            disk.restart();
            assert_eq!(read(&disk, 1).unwrap(), Known::AtLeast(Synced { frames: 20, ..NOW }));
            disk.crash(seed);
            let Known::AtLeast(found) = read(&disk, 1).unwrap() else { panic!("seed {seed}") };
            assert!((7..=20).contains(&found.frames), "seed {seed}: {found:?}");
        }
    }

    #[test]
    fn what_was_synced_survives_a_loss_of_power() {
        let disk = SimDisk::new();
        let mut file = SyncedFile::create(&disk, 1, NOW).unwrap();
        file.note_frames(9).unwrap();
        file.note_segments(2, 3).unwrap();
        disk.crash(1);
        assert_eq!(read(&disk, 1).unwrap(), Known::AtLeast(Synced { frames: 9, first: 2, last: 3 }));
    }

    #[test]
    fn one_damaged_slot_is_made_up_for_and_two_are_reported() {
        let disk = SimDisk::new();
        let mut file = SyncedFile::create(&disk, 1, NOW).unwrap();
        file.note_frames(8).unwrap();
        file.note_frames(9).unwrap();
        disk.restart();
        assert_eq!(read(&disk, 2).unwrap(), Known::Damaged, "of another directory");
        disk.damage(NAME, 9, 1);
        assert_eq!(read(&disk, 1).unwrap(), Known::AtLeast(Synced { frames: 8, ..NOW }));
        disk.damage(NAME, SLOT_BYTES as usize + 9, 1);
        assert_eq!(read(&disk, 1).unwrap(), Known::Damaged);
        disk.put(NAME, b"short");
        assert_eq!(read(&disk, 1).unwrap(), Known::Damaged);
    }
}
