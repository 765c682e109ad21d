//! Watching a store: what changed, revision by revision.

use tenure_core::Revision;
use tenure_wire::proto;
use tokio::sync::mpsc;

use crate::client::Shared;
use crate::error::CallError;

/// Revisions that may lie between the store and a watcher. One that reads more slowly is cut off, and told so.
const WAITING_MAX: usize = 4_096;

/// The changes under a prefix. Survives the server it runs on; never skips a revision and never tells one twice.
pub struct Changes {
    told: mpsc::Receiver<Result<proto::WatchResponse, CallError>>,
}

impl Changes {
    pub(crate) fn begin(shared: &Shared, prefix: String, from: Option<Revision>) -> Changes {
        let (teller, told) = mpsc::channel(WAITING_MAX);
        let watcher = Box::new(move |heard| teller.try_send(heard).is_ok());
        shared.store.watch(prefix, from, watcher);
        Changes { told }
    }

    /// The events of the next revision that has any. The first answer may have none: it names the revision after which the
    /// watch begins. `None` if the watch was cut off, because it was read too slowly or after an error: look at
    /// the state again, and begin anew.
    pub async fn next(&mut self) -> Option<Result<proto::WatchResponse, CallError>> {
        self.told.recv().await
    }
}
