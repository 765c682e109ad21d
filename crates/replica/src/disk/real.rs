//! The operating system's file system.
//!
//! Everything here belongs to this program's user alone: log and snapshots hold the secrets of sessions. Files are
//! created 0600 and directories 0700, from the first moment on: a mode that is set later leaves a gap in which anybody
//! can open them. What an older release made readable is closed when it is opened.

use super::{Disk, DiskFile};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A directory of the operating system's file system.
#[derive(Clone, Debug)]
pub struct RealDisk {
    root: PathBuf,
}

impl RealDisk {
    /// Opens a directory, creating it (durably) if it is missing.
    pub fn open(root: impl Into<PathBuf>) -> io::Result<Self> {
        let root = root.into();
        if !root.is_dir() {
            create_directories(&root)?;
            // The entry of the new directory lives in its parent.
            let parent = root.parent().filter(|parent| !parent.as_os_str().is_empty());
            File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
        }
        Ok(Self { root })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }
}

impl Disk for RealDisk {
    fn create_dir(&self, name: &str) -> io::Result<()> {
        let path = self.path(name);
        create_directories(&path)?;
        close_to_others(&File::open(path)?, DIRECTORY_MODE);
        Ok(())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(FILE_MODE).open(self.path(name))?;
        Ok(Arc::new(RealFile(file)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(self.path(name))?;
        close_to_others(&file, FILE_MODE);
        Ok(Arc::new(RealFile(file)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path(name))
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.path(directory))? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                // A name that is not UTF-8 is none of ours.
                names.extend(entry.file_name().into_string());
            }
        }
        names.sort();
        Ok(names)
    }

    fn sync_dir(&self, directory: &str) -> io::Result<()> {
        File::open(self.path(directory))?.sync_all()
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn Send + Sync>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
        let file = options.open(self.path(name))?;
        match file.try_lock() {
            Ok(()) => Ok(Box::new(file)),
            Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

fn create_directories(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)
}

/// Takes away what others may do with a file or directory of ours. Where that is not allowed, because it is somebody else's
/// (a volume of a container), it is said and goes on: whoever owns it has decided.
fn close_to_others(file: &File, mode: u32) {
    let closed = file.metadata().and_then(|found| match found.permissions().mode() & 0o077 {
        0 => Ok(()),
        _ => file.set_permissions(Permissions::from_mode(mode)),
    });
    if let Err(error) = closed {
        tracing::warn!(%error, "a file of the data directory can be read by others, and that cannot be changed");
    }
}

struct RealFile(File);

impl DiskFile for RealFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn open_direct(&self) -> Option<Arc<dyn DiskFile>> {
        // By descriptor, because the file may have another name by now.
        let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        let flags = libc::O_DIRECT | libc::O_DSYNC;
        let file = OpenOptions::new().write(true).custom_flags(flags).open(path).ok()?;
        Some(Arc::new(RealFile(file)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it is there").permissions().mode() & 0o777
    }

    #[test]
    fn others_read_nothing_neither_of_now_nor_of_before() {
        let root = std::env::temp_dir().join(format!("tenure-modes-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let disk = RealDisk::open(&root).unwrap();
        disk.create_dir("log").unwrap();
        disk.create("log/1.wal").unwrap();
        let lock = disk.lock("lock").unwrap();
        for (name, expected) in [("", 0o700), ("log", 0o700), ("log/1.wal", 0o600), ("lock", 0o600)] {
            assert_eq!(mode(&root.join(name)), expected, "{name}");
        }
        // As release 0.1.0 left them.
        fs::set_permissions(root.join("log"), Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(root.join("log/1.wal"), Permissions::from_mode(0o644)).unwrap();
        disk.create_dir("log").unwrap();
        disk.open("log/1.wal").unwrap();
        assert_eq!((mode(&root.join("log")), mode(&root.join("log/1.wal"))), (0o700, 0o600));
        drop(lock);
        fs::remove_dir_all(&root).unwrap();
    }
}
