//! The snapshots of a data directory: which one is current, and how it is replaced.

use super::format::{Reader, Writer};
use crate::NodeId;
use crate::disk::{Disk, DiskFile};
use crate::engine::{Member, Types, decode_membership, encode_membership, from_log_id, to_log_id};
use crate::error::{REJOIN, StartError};
use crate::wal::{self, LogId};
use bytes::{Buf, BufMut, Bytes};
use openraft::alias::{LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Stands where the membership's version stands if a list of removed members comes first. A program that does
/// not know it says that a newer one wrote this; a snapshot without such a list is as it always was.
const REMOVED: u8 = 255;
pub(crate) const DIRECTORY: &str = "snapshots";
/// How much is copied at a time.
const COPY_BYTES: usize = 256 << 10;

/// What a snapshot covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub last: Option<LogIdOf<Types>>,
    pub membership: StoredMembershipOf<Types>,
    /// The members that were removed before.
    pub removed: BTreeSet<NodeId>,
}

impl Meta {
    pub fn encode(&self) -> Vec<u8> {
        let mut output = Vec::new();
        for id in [self.last.as_ref(), self.membership.log_id().as_ref()] {
            let LogId { term, index } = id.map_or(LogId { term: 0, index: 0 }, from_log_id);
            output.put_u8(id.is_some().into());
            output.put_u64_le(term);
            output.put_u64_le(index);
        }
        if !self.removed.is_empty() {
            output.put_u8(REMOVED);
            output.put_u32_le(self.removed.len() as u32);
            self.removed.iter().for_each(|node| output.put_u64_le(*node));
        }
        output.extend_from_slice(&encode_membership(self.membership.membership()));
        output
    }

    pub fn decode(mut input: Bytes) -> io::Result<Self> {
        let short = || io::Error::new(io::ErrorKind::InvalidData, "the meta is cut short");
        let mut ids = [None, None];
        for id in &mut ids {
            if input.len() < 17 {
                return Err(short());
            }
            let some = input.get_u8() != 0;
            let found = LogId { term: input.get_u64_le(), index: input.get_u64_le() };
            *id = some.then(|| to_log_id(found));
        }
        let [last, changed] = ids;
        let mut removed = BTreeSet::new();
        if input.first() == Some(&REMOVED) {
            input.advance(1);
            for _ in 0..input.try_get_u32_le().map_err(|_| short())? {
                removed.insert(input.try_get_u64_le().map_err(|_| short())?);
            }
        }
        let membership: openraft::Membership<NodeId, Member> = decode_membership(input)?;
        Ok(Self { last, membership: StoredMembershipOf::<Types>::new(changed, membership), removed })
    }

    fn name(&self) -> String {
        let LogId { term, index } = self.last.as_ref().map_or(LogId { term: 0, index: 0 }, from_log_id);
        format!("{DIRECTORY}/{index:020}-{term:020}.snapshot")
    }
}

/// A complete snapshot in a file that can be read at any time, even after a newer one took its place.
#[derive(Clone)]
pub(crate) struct SnapshotFile {
    /// The disk it is on.
    home: Arc<dyn Disk>,
    name: String,
    file: Arc<dyn DiskFile>,
    pub meta: Meta,
}

impl SnapshotFile {
    fn open(home: Arc<dyn Disk>, name: String, file: Arc<dyn DiskFile>) -> io::Result<Self> {
        let (_, meta) = Reader::open(file.clone())?;
        Ok(Self { home, name, file, meta: Meta::decode(meta)? })
    }

    /// Reads the state in it, checking all of it.
    pub fn read<T>(&self, read: impl FnOnce(&mut dyn Read) -> io::Result<T>) -> io::Result<T> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", self.name));
        let (mut reader, _) = Reader::open(self.file.clone()).map_err(named)?;
        let state = read(&mut reader).map_err(named)?;
        reader.finish().map_err(named)?;
        Ok(state)
    }

    /// The bytes of the file, to be sent to a peer.
    pub fn bytes(&self) -> &Arc<dyn DiskFile> {
        &self.file
    }

    /// As the engine hands it around.
    pub fn into_engine(self) -> SnapshotOf<Types, SnapshotFile> {
        let Meta { last, membership, .. } = self.meta.clone();
        SnapshotOf::<Types, _> {
            meta: SnapshotMetaOf::<Types> { last_log_id: last, last_membership: membership },
            snapshot: self,
        }
    }
}

/// See the module. Clones are the same store.
#[derive(Clone)]
pub(crate) struct SnapshotStore(Arc<Shared>);

struct Shared {
    disk: Arc<dyn Disk>,
    drafts: AtomicU64,
    current: Mutex<Option<SnapshotFile>>,
    /// Whether the store is closed. Read-locked for as long as a snapshot is being written, so that
    /// whoever closes the store waits for it.
    closed: RwLock<bool>,
}

impl SnapshotStore {
    /// Finds the newest snapshot, and removes what was interrupted.
    pub fn open(disk: Arc<dyn Disk>) -> Result<Self, StartError> {
        let failed = |error| StartError::Io("cannot open the snapshots".into(), error);
        disk.create_dir(DIRECTORY).map_err(failed)?;
        disk.sync_dir("").map_err(failed)?;
        let (mut complete, mut drafts) = (Vec::new(), Vec::new());
        for name in disk.list(DIRECTORY).map_err(failed)? {
            let path = format!("{DIRECTORY}/{name}");
            if name.ends_with(".snapshot") {
                complete.push(path);
            } else if name.ends_with(".tmp") {
                drafts.push(path);
            }
        }
        complete.sort();
        let current = match complete.pop() {
            Some(name) => {
                let opened = disk.open(&name).and_then(|file| {
                    let snapshot = SnapshotFile::open(disk.clone(), name.clone(), file)?;
                    if snapshot.meta.name() != name {
                        let message = "it holds another snapshot than its name says";
                        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
                    }
                    // All of it, before anything relies on it.
                    Reader::open(snapshot.file.clone())?.0.finish()?;
                    Ok(snapshot)
                });
                Some(opened.map_err(|error| {
                    StartError::Data(format!(
                        "{name} cannot be used: {error}. The log that it stands for is gone. {REJOIN}"
                    ))
                })?)
            }
            None => None,
        };
        // Older ones were to be removed when the newest took their place.
        for name in complete.iter().chain(&drafts) {
            disk.remove(name).map_err(failed)?;
        }
        Ok(Self(Arc::new(Shared {
            disk,
            drafts: AtomicU64::new(0),
            current: Mutex::new(current),
            closed: RwLock::new(false),
        })))
    }

    /// The newest complete snapshot.
    pub fn current(&self) -> Option<SnapshotFile> {
        self.0.current.lock().clone()
    }

    /// Writes a snapshot and puts it in the place of the last one.
    pub fn write(
        &self,
        meta: Meta,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<SnapshotFile> {
        let _open = self.open_until_done()?;
        let (name, file) = self.draft()?;
        let mut writer = Writer::begin(file.clone(), &meta.encode())?;
        write(&mut writer)?;
        writer.finish()?;
        let draft = SnapshotFile { home: self.0.disk.clone(), name, file, meta };
        self.put_in_place(&draft)?;
        Ok(self.current().unwrap_or(draft))
    }

    /// An empty file for a snapshot in the making.
    pub fn draft(&self) -> io::Result<(String, Arc<dyn DiskFile>)> {
        let number = self.0.drafts.fetch_add(1, Ordering::Relaxed);
        let name = format!("{DIRECTORY}/draft-{number:08}.tmp");
        let file = self.0.disk.create(&name)?;
        Ok((name, file))
    }

    /// Makes a snapshot of a file that was received, if it looks like one. It counts only once kept.
    pub fn received(&self, name: String, file: Arc<dyn DiskFile>) -> io::Result<SnapshotFile> {
        file.sync_data()?;
        SnapshotFile::open(self.0.disk.clone(), name, file)
    }

    /// Takes over a snapshot from another store.
    fn copy(&self, snapshot: &SnapshotFile) -> io::Result<SnapshotFile> {
        let (name, file) = self.draft()?;
        let mut piece = vec![0; COPY_BYTES];
        let (mut offset, end) = (0, snapshot.file.len()?);
        while offset < end {
            let length = (end - offset).min(COPY_BYTES as u64) as usize;
            snapshot.file.read_at(&mut piece[..length], offset)?;
            file.write_at(&piece[..length], offset)?;
            offset += length as u64;
        }
        self.received(name, file)
    }

    /// Removes a draft that came to nothing.
    pub fn discard(&self, name: &str) {
        if let Err(error) = self.0.disk.remove(name) {
            tracing::warn!(%error, name, "an unfinished snapshot could not be removed; the next start does it");
        }
    }

    /// Puts a complete, synced snapshot in the place of the last one, unless that one is newer.
    pub fn keep(&self, snapshot: &SnapshotFile) -> io::Result<()> {
        let _open = self.open_until_done()?;
        if Arc::ptr_eq(&self.0.disk, &snapshot.home) {
            self.put_in_place(snapshot)
        } else {
            self.put_in_place(&self.copy(snapshot)?)
        }
    }

    /// Waits for the snapshot that is being written, and lets no other begin. The engine does not wait
    /// for its builder when it ends, and whoever opens the directory next must find it at rest.
    pub fn close(&self) {
        *self.0.closed.write() = true;
    }

    fn open_until_done(&self) -> io::Result<RwLockReadGuard<'_, bool>> {
        let closed = self.0.closed.read();
        if *closed {
            return Err(io::Error::other("the node is shutting down"));
        }
        Ok(closed)
    }

    fn put_in_place(&self, snapshot: &SnapshotFile) -> io::Result<()> {
        let disk = &self.0.disk;
        let mut current = self.0.current.lock();
        let name = snapshot.meta.name();
        if snapshot.name == name {
            return Ok(()); // it already has that place: a restart reads it where it is
        }
        let older =
            current.as_ref().filter(|current| current.name != name).map(|current| current.name.clone());
        if current.as_ref().is_some_and(|current| current.meta.last > snapshot.meta.last) {
            return disk.remove(&snapshot.name);
        }
        disk.rename(&snapshot.name, &name)?;
        disk.sync_dir(DIRECTORY)?;
        wal::sync_note(&**disk)?;
        *current = Some(SnapshotFile { name, ..snapshot.clone() });
        if let Some(older) = older {
            disk.remove(&older)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SimDisk;

    fn open(disk: &SimDisk) -> Result<SnapshotStore, StartError> {
        SnapshotStore::open(Arc::new(disk.clone()))
    }

    fn meta(index: u64) -> Meta {
        let last = Some(to_log_id(LogId { term: 3, index }));
        Meta { last, membership: Default::default(), removed: BTreeSet::new() }
    }

    #[test]
    fn removed_members_are_kept_and_cost_nothing_where_there_are_none() {
        let none = meta(5);
        let some = Meta { removed: BTreeSet::from([3, 1 << 60]), ..meta(5) };
        let (short, long) = (none.encode(), some.encode());
        assert_eq!(long.len(), short.len() + 1 + 4 + 2 * 8);
        assert_eq!(Meta::decode(short.into()).unwrap(), none);
        assert_eq!(Meta::decode(long.clone().into()).unwrap(), some);
        for length in 0..long.len() {
            assert!(Meta::decode(Bytes::copy_from_slice(&long[..length])).is_err(), "{length} bytes");
        }
    }

    fn write(store: &SnapshotStore, index: u64) -> io::Result<SnapshotFile> {
        // More than one block, and none like another.
        store.write(meta(index), |output| {
            (0..40_000u64).try_for_each(|number| output.write_all(&(number + index).to_le_bytes()))
        })
    }

    fn first_number(store: &SnapshotStore) -> io::Result<Option<u64>> {
        let Some(current) = store.current() else { return Ok(None) };
        let number = current.read(|input| {
            let mut bytes = [0; 8];
            input.read_exact(&mut bytes)?;
            Ok(u64::from_le_bytes(bytes))
        })?;
        Ok(Some(number))
    }

    fn files(disk: &SimDisk) -> usize {
        disk.names().into_iter().filter(|name| name.starts_with(DIRECTORY)).count()
    }

    #[test]
    fn a_newer_snapshot_takes_the_place_of_the_last() {
        let disk = SimDisk::new();
        let store = open(&disk).unwrap();
        for index in [5, 9, 12] {
            write(&store, index).unwrap();
            assert_eq!(first_number(&store).unwrap(), Some(index));
        }
        assert_eq!(files(&disk), 1);
        // One that took longer than its successor changes nothing.
        write(&store, 7).unwrap();
        assert_eq!(first_number(&store).unwrap(), Some(12));
        disk.crash(1);
        assert_eq!(first_number(&open(&disk).unwrap()).unwrap(), Some(12));
    }

    #[test]
    fn closing_waits_for_the_snapshot_that_is_being_written() {
        let disk = SimDisk::new();
        let store = open(&disk).unwrap();
        let (begun, seen) = std::sync::mpsc::channel();
        let (go_on, receiver) = std::sync::mpsc::channel::<()>();
        let (closed, done) = std::sync::mpsc::channel();
        let (shared, platter) = (&store, &disk);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                shared.write(meta(5), |output| {
                    begun.send(()).unwrap();
                    receiver.recv().unwrap();
                    output.write_all(b"state")
                })
            });
            seen.recv().unwrap();
            scope.spawn(move || {
                shared.close();
                closed.send(files(platter)).unwrap();
            });
            let early = done.recv_timeout(std::time::Duration::from_millis(50));
            go_on.send(()).unwrap();
            assert!(early.is_err(), "closed while a snapshot was being written");
            assert_eq!(done.recv().unwrap(), 1, "the draft has its place");
        });
        assert_eq!(store.current().map(|current| current.meta), Some(meta(5)));
        assert!(write(&store, 9).is_err(), "none begins after that");
        assert_eq!(files(&disk), 1);
    }

    #[test]
    fn a_crash_at_any_sync_leaves_the_old_one_or_the_new_one() {
        for syncs in 0..2 {
            for seed in 0..32 {
                let disk = SimDisk::new();
                write(&open(&disk).unwrap(), 5).unwrap();
                let store = open(&disk).unwrap();
                disk.fail_syncs_after(Some(syncs));
                let written = write(&store, 9);
                assert_eq!(written.is_ok(), syncs > 0);
                disk.fail_syncs_after(None);
                disk.crash(seed);
                let again = open(&disk).unwrap();
                let found = first_number(&again).expect("whatever is there is sound");
                let expected = if written.is_ok() { 9 } else { 5 };
                assert_eq!(found, Some(expected), "seed {seed}");
                assert_eq!(files(&disk), 1, "what was interrupted is removed");
            }
        }
    }

    #[test]
    fn any_damage_is_noticed_before_it_is_believed() {
        let disk = SimDisk::new();
        let store = open(&disk).unwrap();
        write(&store, 5).unwrap();
        let name = disk.names().into_iter().find(|name| name.starts_with(DIRECTORY)).unwrap();
        let length = disk.content(&name).unwrap().len();
        // The reserved bytes of headers are not covered, and mean nothing.
        for offset in (32 + 17..length - 16).step_by(4_999) {
            disk.damage(&name, offset, 4);
            let read = store.current().unwrap().read(|input| io::copy(input, &mut io::sink()));
            assert_eq!(read.unwrap_err().kind(), io::ErrorKind::InvalidData, "offset {offset}");
            disk.damage(&name, offset, 4);
        }
        disk.damage(&name, 8, 3); // version 1 becomes 2
        let refused = open(&disk).err().expect("a newer version").to_string();
        assert!(refused.contains("start the newer program"), "{refused}");
    }
}
