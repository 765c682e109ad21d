//! Snapshots: the whole state in one file, so that the log before it can be removed.
//!
//! A snapshot is written beside the last one under a temporary name, synced, and only then given its real
//! name. At every moment there is one complete snapshot or none; incomplete files are removed at the next
//! start.

mod format;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod store;

pub(crate) use store::{DIRECTORY, Meta, SnapshotFile, SnapshotStore};
