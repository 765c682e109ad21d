//! Watching a store: what changed, revision by revision.

use tenure_core::Revision;
use tenure_wire::proto;
use tokio::sync::mpsc;

use crate::client::Shared;
use crate::error::CallError;
use crate::store::{WatchItem, Watcher};

/// The changes under a prefix. Survives the server it runs on; never skips a revision and never delivers one
/// twice. Dropping it ends the watch on the store.
pub struct Changes {
    items: mpsc::Receiver<WatchItem>,
}

impl Changes {
    pub(crate) fn begin(shared: &Shared, prefix: String, from: Option<Revision>) -> Changes {
        let (watcher, items) = Watcher::new();
        shared.store.watch(prefix, from, watcher);
        Changes { items }
    }

    /// The events of the next revision that has any. The first answer may have none: it names the revision
    /// after which the watch begins. `None` if the watch was cut off, because it was read too slowly or after
    /// an error: look at the state again, and begin anew.
    pub async fn next(&mut self) -> Option<Result<proto::WatchResponse, CallError>> {
        self.items.recv().await
    }
}
