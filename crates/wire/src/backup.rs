//! Backup files: a snapshot that has left the cluster.
//!
//! A backup says in its head what a person restoring it must know before anything else: which cluster,
//! how far its tokens had counted, its revision and its age. A checksum over everything ends the file. Nothing
//! of a backup is believed before that checksum has been seen to hold.

use std::io::{self, Read, Write};

use tenure_core::state::State;
use tenure_core::{ClusterTime, FormatVersion, Revision, WallTime};
use xxhash_rust::xxh3::Xxh3Default;

use crate::codec::{Coded, Output, Reader, WireError, record, version_of};
use crate::snapshot::{read_snapshot, write_snapshot};

const BACKUP: &str = "backup";
const MAGIC: [u8; 8] = *b"TNRBACK\0";

/// What a backup says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupHead {
    /// The cluster that it was taken from. A restore makes a new id.
    pub cluster: [u8; 16],
    /// The last token that the cluster had issued then; a restore must start above every token ever
    /// seen, and those issued after the backup are not in it.
    pub last_token: u64,
    /// The revision at which it was taken.
    pub revision: Revision,
    /// The cluster time at which it was taken.
    pub time: ClusterTime,
    /// When it was taken, for people.
    pub wall: WallTime,
}

record!(BackupHead { cluster, last_token, revision, time, wall });

impl BackupHead {
    fn of(state: &State) -> BackupHead {
        BackupHead {
            cluster: state.settings.cluster,
            last_token: state.last_token,
            revision: state.revision,
            time: state.time,
            wall: state.wall,
        }
    }
}

/// Writes a backup of the state, and returns what its head says.
pub fn write_backup(state: &State, out: &mut dyn Write) -> io::Result<BackupHead> {
    let head = BackupHead::of(state);
    let bytes = Output::of(state.format, &head);
    let mut out = Hashing { inner: out, hash: Xxh3Default::new() };
    out.write_all(&MAGIC)?;
    out.write_all(&[state.format.get()])?;
    out.write_all(&(bytes.len() as u32).to_le_bytes())?;
    out.write_all(&bytes)?;
    write_snapshot(state, &mut out)?;
    let checksum = out.hash.digest128();
    out.inner.write_all(&checksum.to_le_bytes())?;
    out.inner.flush()?;
    Ok(head)
}

/// Reads a whole backup; gives the state only if the checksum holds and nothing follows it.
pub fn read_backup(input: &mut dyn Read) -> Result<(BackupHead, State), WireError> {
    let mut input = Hashing { inner: input, hash: Xxh3Default::new() };
    let head = read_head(&mut input)?;
    let state = read_snapshot(FormatVersion::NEWEST, &mut input)?;
    let expected = input.hash.digest128();
    let mut checksum = [0; 16];
    read_exact(input.inner, &mut checksum)?;
    if u128::from_le_bytes(checksum) != expected {
        return Err(WireError::corrupt(
            BACKUP,
            "its checksum does not match its content; take another copy of the file, or another backup",
        ));
    }
    if input.inner.read(&mut [0]).map_err(|error| WireError::io(BACKUP, error))? != 0 {
        return Err(WireError::corrupt(BACKUP, "something follows its end"));
    }
    if head != BackupHead::of(&state) {
        return Err(WireError::corrupt(BACKUP, "its head does not describe its content"));
    }
    Ok((head, state))
}

/// Reads only what a backup says about itself, unverified: for showing, not for restoring.
pub fn read_backup_head(input: &mut dyn Read) -> Result<BackupHead, WireError> {
    read_head(input)
}

fn read_head(input: &mut dyn Read) -> Result<BackupHead, WireError> {
    let mut start = [0; MAGIC.len() + 1];
    read_exact(input, &mut start)?;
    let (magic, version) = start.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(WireError::corrupt(
            BACKUP,
            "it does not begin like one; is this a file of `tenure cluster backup`?",
        ));
    }
    let version = version_of(BACKUP, version[0], FormatVersion::NEWEST)?;
    let mut length = [0; 4];
    read_exact(input, &mut length)?;
    let length = u64::from(u32::from_le_bytes(length));
    let mut bytes = Vec::new();
    let arrived = input.take(length).read_to_end(&mut bytes).map_err(|error| WireError::io(BACKUP, error))?;
    if arrived as u64 != length {
        return Err(WireError::Truncated { what: BACKUP });
    }
    let mut reader = Reader::new(BACKUP, version, &bytes);
    let head = BackupHead::take(&mut reader)?;
    reader.finish()?;
    Ok(head)
}

fn read_exact(input: &mut dyn Read, bytes: &mut [u8]) -> Result<(), WireError> {
    input.read_exact(bytes).map_err(|error| WireError::io(BACKUP, error))
}

/// Bytes that are hashed on their way through.
struct Hashing<'a, T: ?Sized> {
    inner: &'a mut T,
    hash: Xxh3Default,
}

impl Write for Hashing<'_, dyn Write + '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl Read for Hashing<'_, dyn Read + '_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let arrived = self.inner.read(bytes)?;
        self.hash.update(&bytes[..arrived]);
        Ok(arrived)
    }
}
