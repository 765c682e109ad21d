//! A snapshot that is being received, piece by piece, into a file that is not used yet.

use crate::disk::DiskFile;
use crate::snapshot::{SnapshotFile, SnapshotStore};
use bytes::Bytes;
use std::io;
use std::sync::Arc;

/// See the module.
pub(super) struct Receiving {
    store: SnapshotStore,
    name: String,
    file: Arc<dyn DiskFile>,
    next: u64,
}

impl Receiving {
    pub fn begin(store: &SnapshotStore) -> io::Result<Self> {
        let (name, file) = store.draft()?;
        Ok(Self { store: store.clone(), name, file, next: 0 })
    }

    /// Adds the piece that belongs at `offset`.
    pub fn add(mut self, offset: u64, bytes: &Bytes) -> io::Result<Self> {
        if offset != self.next {
            self.discard();
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a piece of the snapshot is missing"));
        }
        if let Err(error) = self.file.write_at(bytes, offset) {
            self.discard();
            return Err(error);
        }
        self.next += bytes.len() as u64;
        Ok(self)
    }

    /// All pieces are there: a snapshot, if it is sound.
    pub fn complete(self) -> io::Result<SnapshotFile> {
        let result = self.store.received(self.name.clone(), self.file.clone());
        if result.is_err() {
            self.discard();
        }
        result
    }

    /// It came to nothing.
    pub fn discard(self) {
        self.store.discard(&self.name);
    }
}
