//! Snapshots: the whole state in one file, so that the log in front of it can go.
//!
//! A snapshot is written beside the last one under a name that nobody reads, synced, and only then
//! given its real name. At every moment there is one complete snapshot or none; what was interrupted
//! is removed at the next start.

mod format;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod store;

pub(crate) use store::{DIRECTORY, Meta, SnapshotFile, SnapshotStore};
