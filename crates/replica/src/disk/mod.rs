//! The file-system interface that everything durable goes through.
//!
//! A disk is rooted at the data directory; names are relative to it, with `/` between directory and file. Two
//! implementations: [`RealDisk`], and a simulated one that loses what was not synced.

mod real;
mod sim;

pub use real::RealDisk;
#[cfg(test)]
pub(crate) use sim::Draws;
pub use sim::{SimDisk, Wreck};

use std::io;
use std::sync::Arc;
use std::time::Duration;

/// A directory tree. Every call blocks; none is retried.
pub trait Disk: Send + Sync + 'static {
    /// Creates a directory and whatever is missing above it; no error if it is there.
    fn create_dir(&self, name: &str) -> io::Result<()>;
    /// Creates a file that must not exist, and that only this program's own user may read.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Moves a file, over whatever has the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file. Whoever has it open can go on reading.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// The names of the files in a directory (without the directory), sorted.
    fn list(&self, directory: &str) -> io::Result<Vec<String>>;
    /// Makes creations, renames and removals in a directory durable. `""` is the root.
    fn sync_dir(&self, directory: &str) -> io::Result<()>;
    /// Takes the exclusive lock that `name` stands for, until the guard is dropped;
    /// `ErrorKind::WouldBlock` if somebody else has it.
    fn lock(&self, name: &str) -> io::Result<Box<dyn Send + Sync>>;
    /// How long a task (not a thread) has to wait before its next sync returns: simulated slowness,
    /// which may not block.
    fn sync_delay(&self) -> Duration {
        Duration::ZERO
    }
}

/// An open file. Positions are explicit, so readers and the writer share one handle.
pub trait DiskFile: Send + Sync + 'static {
    /// The length.
    fn len(&self) -> io::Result<u64>;
    /// Whether nothing is in it.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Fills `buffer` from `offset` on; `ErrorKind::UnexpectedEof` if the file ends before.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of `bytes` at `offset`, extending the file if need be.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes the content durable, and the length with it. An error is final: what was not synced
    /// then may be gone, and asking again can lie.
    fn sync_data(&self) -> io::Result<()>;
    /// The same file once more, past the operating system's cache, if there is such a way: what is written by
    /// it is durable when the call returns. Offset, length and place in memory must be whole blocks.
    fn open_direct(&self) -> Option<Arc<dyn DiskFile>> {
        None
    }
}
