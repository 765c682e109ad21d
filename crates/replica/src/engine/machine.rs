//! The engine's state machine, on ours: applies entries, takes snapshots and installs them.

use super::types::{Payload, Reply, Types, from_log_id};
use crate::StateMachine;
use crate::config::Execution;
use crate::snapshot::{Meta, SnapshotFile, SnapshotStore};
use crate::wal::{LogId, Meter};
use futures_util::{Stream, StreamExt};
use openraft::EntryPayload;
use openraft::alias::{LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf};
use openraft::entry::RaftEntry;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use parking_lot::RwLock;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tokio::sync::watch;

/// Applies what is committed.
pub(crate) struct Applier<M: StateMachine> {
    machine: Arc<RwLock<M>>,
    store: SnapshotStore,
    execution: Execution,
    meter: Meter,
    last: Option<LogIdOf<Types>>,
    membership: StoredMembershipOf<Types>,
    /// The last applied entry, for whoever waits for one.
    applied: watch::Sender<Option<LogId>>,
    failure: watch::Sender<Option<String>>,
}

impl<M: StateMachine> Applier<M> {
    pub fn new(
        machine: Arc<RwLock<M>>,
        store: SnapshotStore,
        execution: Execution,
        meter: Meter,
        applied: watch::Sender<Option<LogId>>,
        failure: watch::Sender<Option<String>>,
    ) -> Self {
        let membership = StoredMembershipOf::<Types>::default();
        Self { machine, store, execution, meter, last: None, membership, applied, failure }
    }

    /// Applies one entry. A panic is a broken invariant: the node ends, loudly, and the entry is
    /// neither answered nor counted as applied.
    fn apply_one(&self, id: LogId, entry: &[u8]) -> io::Result<M::Answer> {
        let apply = || self.machine.write().apply(id.index, id.term, entry);
        catch_unwind(AssertUnwindSafe(apply)).map_err(|panic| {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            let message =
                format!("the state machine broke on entry {} of term {}: {said}", id.index, id.term);
            self.failure.send_replace(Some(message.clone()));
            io::Error::other(message)
        })
    }

    fn meta(&self) -> Meta {
        Meta { last: self.last, membership: self.membership.clone() }
    }
}

impl<M: StateMachine> RaftStateMachine<Types> for Applier<M> {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = Builder<M>;

    async fn applied_state(&mut self) -> io::Result<(Option<LogIdOf<Types>>, StoredMembershipOf<Types>)> {
        Ok((self.last, self.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + Send,
    {
        while let Some(item) = entries.next().await {
            let (entry, responder) = item?;
            let id = entry.log_id();
            let answer = match entry.payload {
                EntryPayload::Blank => None,
                EntryPayload::Normal(Payload(bytes)) => {
                    let answer = self.apply_one(from_log_id(&id), &bytes)?;
                    Some(Box::new(answer) as Box<dyn std::any::Any + Send + Sync>)
                }
                EntryPayload::Membership(membership) => {
                    self.membership = StoredMembershipOf::<Types>::new(Some(id), membership);
                    None
                }
            };
            self.applied.send_replace(Some(from_log_id(&id)));
            self.last = Some(id);
            if let Some(responder) = responder {
                responder.send(Reply(answer));
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder<M> {
        // Between two entries: the engine applies and captures from one task.
        self.meter.snapshot_begun();
        let capture = self.machine.read().capture();
        let execution = self.execution;
        Builder { capture: Capture::new(capture), meta: self.meta(), store: self.store.clone(), execution }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMetaOf<Types>,
        snapshot: SnapshotFile,
    ) -> io::Result<()> {
        let store = self.store.clone();
        let capture = self
            .execution
            .blocking(move || {
                let capture = snapshot.read(M::read_snapshot)?;
                // Read to its end and found sound; only now does it take the place of the last one.
                store.keep(&snapshot)?;
                io::Result::Ok(capture)
            })
            .await?;
        self.machine.write().restore(capture);
        self.last = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        self.applied.send_replace(self.last.as_ref().map(from_log_id));
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<Types, SnapshotFile>>> {
        Ok(self.store.current().map(|file| file.into_engine()))
    }
}

/// A captured state, to be written by whoever has it next. Behind a lock only because the engine
/// wants its builders to be shareable.
struct Capture<C>(parking_lot::Mutex<Option<C>>);

impl<C> Capture<C> {
    fn new(capture: C) -> Self {
        Self(parking_lot::Mutex::new(Some(capture)))
    }
}

/// Writes one snapshot, while entries go on being applied.
pub(crate) struct Builder<M: StateMachine> {
    capture: Capture<M::Capture>,
    meta: Meta,
    store: SnapshotStore,
    execution: Execution,
}

impl<M: StateMachine> RaftSnapshotBuilder<Types> for Builder<M> {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<Types, SnapshotFile>> {
        let capture = self.capture.0.lock().take().expect("a builder builds once");
        let (store, meta) = (self.store.clone(), self.meta.clone());
        let write = move || store.write(meta, |output| M::write_snapshot(capture, output));
        Ok(self.execution.blocking(write).await?.into_engine())
    }
}
