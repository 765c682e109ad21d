//! The operating system's file system.

use super::{Disk, DiskFile};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
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
            fs::create_dir_all(&root)?;
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
        fs::create_dir_all(self.path(name))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(self.path(name))?;
        Ok(Arc::new(RealFile(file)))
    }

    fn create_private(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        // From the first moment on: a mode that is set later leaves a gap in which anybody can open it.
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(self.path(name))?;
        Ok(Arc::new(RealFile(file)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(self.path(name))?;
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
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(self.path(name))?;
        match file.try_lock() {
            Ok(()) => Ok(Box::new(file)),
            Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(error)) => Err(error),
        }
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
