//! A disk in memory that keeps exactly what it promised to keep, and nothing else.
//!
//! What was written and not synced survives a crash sector by sector, or not, as the seed decides. What was
//! created, renamed or removed and not synced survives up to some point, or not at all. It can run out of
//! space, fail a sync, and be slow, and it counts operations. All randomness comes from the seed.

use super::{Disk, DiskFile};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The unit that is written wholly or not at all. Real disks write 512 bytes or more at a time: whatever
/// holds with smaller pieces holds with theirs, and a write is torn far more often.
const SECTOR_BYTES: usize = 64;

/// See the module. Clones are the same disk.
#[derive(Clone, Default)]
pub struct SimDisk(Arc<Mutex<Platter>>);

type Hook = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Platter {
    files: Vec<Content>,
    /// Which file has which name, now and after a crash.
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    /// What happened to names since the last sync of their directory, oldest first.
    pending: Vec<Renaming>,
    locks: BTreeSet<String>,
    /// Handles from before the last crash are of no use.
    life: u64,
    capacity: Option<u64>,
    syncs_left: Option<u64>,
    sync_delay: Duration,
    syncs: u64,
    on_sync: Option<Hook>,
}

#[derive(Default)]
struct Content {
    now: Vec<u8>,
    durable: Vec<u8>,
    unsynced: BTreeSet<usize>,
}

/// One indivisible change: these names of one directory now mean these files, or nothing.
struct Renaming {
    directory: String,
    names: Vec<(String, Option<usize>)>,
}

/// What a crash took with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wreck {
    /// Sectors that were written and not synced, and are as they were before.
    pub sectors_lost: u64,
    /// Files that kept some of their unsynced sectors and lost others.
    pub files_torn: u64,
    /// Changes of names that were not synced, and are undone.
    pub names_lost: u64,
}

impl SimDisk {
    /// An empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// The machine dies and comes back: what was not synced is kept or lost as `seed` decides, and
    /// every open file and lock is gone.
    pub fn crash(&self, seed: u64) -> Wreck {
        let mut platter = self.0.lock();
        let mut draws = Draws(seed);
        let kept = draws.below(platter.pending.len() as u64 + 1) as usize;
        let pending = std::mem::take(&mut platter.pending);
        let mut wreck = Wreck { names_lost: (pending.len() - kept) as u64, ..Wreck::default() };
        for renaming in pending.into_iter().take(kept) {
            platter.make_durable(renaming);
        }
        platter.names = platter.durable_names.clone();
        for content in &mut platter.files {
            let (mut kept, mut lost) = (0, 0);
            for sector in std::mem::take(&mut content.unsynced) {
                if draws.below(2) == 0 {
                    content.keep(sector);
                    kept += 1;
                } else {
                    lost += 1;
                }
            }
            wreck.sectors_lost += lost;
            wreck.files_torn += u64::from(kept > 0 && lost > 0);
            content.now.clone_from(&content.durable);
        }
        platter.locks.clear();
        platter.life += 1;
        wreck
    }

    /// The process dies and comes back; the machine goes on, so nothing that was written is lost.
    pub fn restart(&self) {
        let mut platter = self.0.lock();
        platter.locks.clear();
        platter.life += 1;
    }

    /// Refuses to hold more than `bytes`.
    pub fn limit(&self, bytes: Option<u64>) {
        self.0.lock().capacity = bytes;
    }

    /// Lets `syncs` more syncs succeed and fails all that follow; `None` heals it.
    pub fn fail_syncs_after(&self, syncs: Option<u64>) {
        self.0.lock().syncs_left = syncs;
    }

    /// Makes every sync of a task take so long.
    pub fn slow_down(&self, sync_delay: Duration) {
        self.0.lock().sync_delay = sync_delay;
    }

    /// Calls `hook` at the beginning of every sync of a file, before anything is durable. It may block.
    pub fn on_sync(&self, hook: impl Fn() + Send + Sync + 'static) {
        self.0.lock().on_sync = Some(Arc::new(hook));
    }

    /// How many syncs of files have succeeded.
    pub fn syncs(&self) -> u64 {
        self.0.lock().syncs
    }

    /// How much all files take together.
    pub fn used_bytes(&self) -> u64 {
        self.0.lock().used()
    }

    /// Flips bits of a file in place, as a failing disk does.
    ///
    /// # Panics
    /// If there is no such byte.
    pub fn damage(&self, name: &str, offset: usize, mask: u8) {
        let mut platter = self.0.lock();
        let file = platter.names[name];
        let content = &mut platter.files[file];
        content.now[offset] ^= mask;
        content.durable[offset] ^= mask;
    }

    /// A file vanishes, durably and without anybody asking for it.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn lose(&self, name: &str) {
        let mut platter = self.0.lock();
        platter.names.remove(name).expect("there is such a file");
        platter.durable_names.remove(name);
        platter.pending.retain(|renaming| renaming.names.iter().all(|(renamed, _)| renamed != name));
    }

    /// A file has this content instead of its own, durably: an older copy, or a part of it.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        let mut platter = self.0.lock();
        let file = platter.files.len();
        platter.files.push(Content { now: bytes.into(), durable: bytes.into(), unsynced: BTreeSet::new() });
        platter.pending.retain(|renaming| renaming.names.iter().all(|(renamed, _)| renamed != name));
        platter.names.insert(name.into(), file);
        platter.durable_names.insert(name.into(), file);
    }

    /// Another disk with the same files, as an operator copies a directory.
    pub fn copy(&self) -> SimDisk {
        let copy = SimDisk::new();
        for name in self.names() {
            copy.put(&name, &self.content(&name).expect("it was just listed"));
        }
        copy
    }

    /// The bytes of a file as they are now.
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        let platter = self.0.lock();
        let file = platter.names.get(name)?;
        Some(platter.files[*file].now.clone())
    }

    /// All names.
    pub fn names(&self) -> Vec<String> {
        self.0.lock().names.keys().cloned().collect()
    }

    fn rename_to(&self, names: &[(&str, Option<usize>)], platter: &mut Platter) {
        let directory = directory(names[0].0).to_owned();
        let names: Vec<_> = names.iter().map(|(name, file)| ((*name).to_owned(), *file)).collect();
        change(&mut platter.names, &names);
        platter.pending.push(Renaming { directory, names });
    }

    fn handle(&self, file: usize, platter: &Platter) -> Arc<dyn DiskFile> {
        Arc::new(SimFile { disk: self.clone(), file, life: platter.life })
    }
}

impl Platter {
    fn make_durable(&mut self, renaming: Renaming) {
        change(&mut self.durable_names, &renaming.names);
    }

    fn find(&self, name: &str) -> io::Result<usize> {
        self.names.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn used(&self) -> u64 {
        let files: BTreeSet<_> = self.names.values().collect();
        files.into_iter().map(|file| self.files[*file].now.len() as u64).sum()
    }
}

impl Content {
    /// Makes one sector as durable as it is written.
    fn keep(&mut self, sector: usize) {
        let start = sector * SECTOR_BYTES;
        let end = (start + SECTOR_BYTES).min(self.now.len());
        if self.durable.len() < end {
            self.durable.resize(end, 0);
        }
        self.durable[start..end].copy_from_slice(&self.now[start..end]);
    }
}

fn change(map: &mut BTreeMap<String, usize>, names: &[(String, Option<usize>)]) {
    for (name, file) in names {
        match file {
            Some(file) => map.insert(name.clone(), *file),
            None => map.remove(name),
        };
    }
}

fn directory(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(directory, _)| directory)
}

impl Disk for SimDisk {
    fn create_dir(&self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut platter = self.0.lock();
        if platter.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = platter.files.len();
        platter.files.push(Content::default());
        self.rename_to(&[(name, Some(file))], &mut platter);
        Ok(self.handle(file, &platter))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let platter = self.0.lock();
        Ok(self.handle(platter.find(name)?, &platter))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut platter = self.0.lock();
        let file = platter.find(from)?;
        self.rename_to(&[(to, Some(file)), (from, None)], &mut platter);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut platter = self.0.lock();
        platter.find(name)?;
        self.rename_to(&[(name, None)], &mut platter);
        Ok(())
    }

    fn list(&self, wanted: &str) -> io::Result<Vec<String>> {
        let platter = self.0.lock();
        let names = platter.names.keys().filter(|name| directory(name) == wanted);
        Ok(names.map(|name| name.rsplit('/').next().unwrap_or_default().to_owned()).collect())
    }

    fn sync_dir(&self, wanted: &str) -> io::Result<()> {
        let mut platter = self.0.lock();
        for renaming in std::mem::take(&mut platter.pending) {
            if renaming.directory == wanted {
                platter.make_durable(renaming);
            } else {
                platter.pending.push(renaming);
            }
        }
        Ok(())
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn Send + Sync>> {
        let mut platter = self.0.lock();
        if !platter.locks.insert(name.into()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(Lock { disk: self.clone(), name: name.into(), life: platter.life }))
    }

    fn sync_delay(&self) -> Duration {
        self.0.lock().sync_delay
    }
}

struct Lock {
    disk: SimDisk,
    name: String,
    life: u64,
}

impl Drop for Lock {
    fn drop(&mut self) {
        let mut platter = self.disk.0.lock();
        if platter.life == self.life {
            platter.locks.remove(&self.name);
        }
    }
}

struct SimFile {
    disk: SimDisk,
    file: usize,
    life: u64,
}

impl SimFile {
    fn with<T>(&self, act: impl FnOnce(&mut Platter) -> io::Result<T>) -> io::Result<T> {
        let mut platter = self.disk.0.lock();
        if platter.life != self.life {
            return Err(io::Error::other("this handle is from before the crash"));
        }
        act(&mut platter)
    }
}

impl DiskFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        self.with(|platter| Ok(platter.files[self.file].now.len() as u64))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.with(|platter| {
            let start = offset as usize;
            let range = start..start + buffer.len();
            let bytes = platter.files[self.file].now.get(range);
            buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.with(|platter| {
            let start = offset as usize;
            let end = start + bytes.len();
            let growth = end.saturating_sub(platter.files[self.file].now.len()) as u64;
            if growth > 0 && platter.capacity.is_some_and(|capacity| platter.used() + growth > capacity) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let content = &mut platter.files[self.file];
            if content.now.len() < end {
                content.now.resize(end, 0);
            }
            content.now[start..end].copy_from_slice(bytes);
            content.unsynced.extend(start / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES));
            Ok(())
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        let hook = self.disk.0.lock().on_sync.clone();
        if let Some(hook) = hook {
            hook();
        }
        self.with(|platter| {
            match &mut platter.syncs_left {
                Some(0) => return Err(io::Error::other("the simulated disk failed to sync")),
                Some(left) => *left -= 1,
                None => {}
            }
            platter.syncs += 1;
            let content = &mut platter.files[self.file];
            for sector in std::mem::take(&mut content.unsynced) {
                content.keep(sector);
            }
            Ok(())
        })
    }
}

/// Numbers drawn from a seed (SplitMix64): good enough to choose what is lost.
#[derive(Clone, Debug)]
pub(crate) struct Draws(pub u64);

impl Draws {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which must not be zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_keeps_what_was_synced_and_some_sectors_of_the_rest() {
        let mut outcomes = BTreeSet::new();
        for seed in 0..64 {
            let disk = SimDisk::new();
            let file = disk.create("a").unwrap();
            disk.sync_dir("").unwrap();
            file.write_at(&[1; SECTOR_BYTES], 0).unwrap();
            file.sync_data().unwrap();
            file.write_at(&[2; 2 * SECTOR_BYTES], SECTOR_BYTES as u64).unwrap();
            disk.crash(seed);
            assert!(file.len().is_err(), "a handle must not outlive the crash");
            let content = disk.content("a").unwrap();
            assert_eq!(content[..SECTOR_BYTES], [1; SECTOR_BYTES]);
            outcomes.insert(content[SECTOR_BYTES..].iter().map(|byte| u64::from(*byte)).sum::<u64>());
        }
        assert_eq!(outcomes.len(), 3, "none, one or both of the sectors: {outcomes:?}");
    }

    #[test]
    fn a_crash_may_undo_names_that_were_not_synced() {
        let mut kept = BTreeSet::new();
        for seed in 0..16 {
            let disk = SimDisk::new();
            disk.create("draft").unwrap().sync_data().unwrap();
            disk.sync_dir("").unwrap();
            disk.rename("draft", "final").unwrap();
            disk.crash(seed);
            kept.insert(disk.names());
        }
        assert!(kept.contains(&vec!["draft".to_owned()]));
        assert!(kept.contains(&vec!["final".to_owned()]));
    }

    #[test]
    fn a_full_disk_refuses_and_a_lock_is_exclusive() {
        let disk = SimDisk::new();
        disk.limit(Some(10));
        let file = disk.create("a").unwrap();
        file.write_at(&[0; 10], 0).unwrap();
        assert_eq!(file.write_at(&[0; 1], 10).unwrap_err().kind(), io::ErrorKind::StorageFull);
        let lock = disk.lock("LOCK").unwrap();
        assert!(disk.lock("LOCK").is_err());
        drop(lock);
        assert!(disk.lock("LOCK").is_ok());
    }
}
