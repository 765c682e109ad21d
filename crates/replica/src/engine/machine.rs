//! The engine's state machine, on ours: applies entries, takes snapshots and installs them.

use super::removed::Removed;
use super::types::{Payload, Reply, Types, from_log_id};
use crate::StateMachine;
use crate::config::Execution;
use crate::low_latency::{LowLatency, yield_to_ready_tasks};
use crate::snapshot::{Meta, SnapshotFile, SnapshotStore};
use crate::wal::{LogId, Meter};
use futures_util::{Stream, StreamExt};
use openraft::EntryPayload;
use openraft::alias::{LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf};
use openraft::entry::RaftEntry;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use parking_lot::RwLock;
use std::any::Any;
use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tokio::sync::watch;

/// A state machine without its types, so that the engine is compiled once and not once per machine.
pub(crate) trait Machinery: Send + Sync + 'static {
    /// Applies one entry.
    fn apply(&self, id: LogId, entry: &[u8]) -> Box<dyn Any + Send + Sync>;
    /// Takes the state as it is now; what comes back writes it.
    fn capture(&self) -> WriteSnapshot;
    /// Reads a snapshot; what comes back puts it into the machine.
    fn read_snapshot(self: Arc<Self>, input: &mut dyn Read) -> io::Result<Restore>;
}

/// Writes one captured state.
type WriteSnapshot = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()> + Send>;
/// Replaces the whole state of a machine.
type Restore = Box<dyn FnOnce() + Send>;

impl<M: StateMachine> Machinery for RwLock<M> {
    fn apply(&self, id: LogId, entry: &[u8]) -> Box<dyn Any + Send + Sync> {
        Box::new(self.write().apply(id.index, id.term, entry))
    }

    fn capture(&self) -> WriteSnapshot {
        let capture = self.read().capture();
        Box::new(move |output| M::write_snapshot(capture, output))
    }

    fn read_snapshot(self: Arc<Self>, input: &mut dyn Read) -> io::Result<Restore> {
        let capture = M::read_snapshot(input)?;
        Ok(Box::new(move || self.write().restore(capture)))
    }
}

/// Applies what is committed.
pub(crate) struct Applier {
    machine: Arc<dyn Machinery>,
    store: SnapshotStore,
    execution: Execution,
    meter: Meter,
    /// See [`LowLatency::acknowledge_first`].
    acknowledge_first: bool,
    last: Option<LogIdOf<Types>>,
    membership: StoredMembershipOf<Types>,
    removed: Removed,
    /// The last applied entry, for whoever waits for one.
    applied: watch::Sender<Option<LogId>>,
    failure: watch::Sender<Option<String>>,
}

impl Applier {
    pub fn new(
        machine: Arc<dyn Machinery>,
        store: SnapshotStore,
        execution: Execution,
        meter: Meter,
        removed: Removed,
        applied: watch::Sender<Option<LogId>>,
        failure: watch::Sender<Option<String>>,
    ) -> Self {
        let membership = StoredMembershipOf::<Types>::default();
        Self {
            machine,
            store,
            execution,
            meter,
            acknowledge_first: false,
            last: None,
            membership,
            removed,
            applied,
            failure,
        }
    }

    /// In this mode.
    pub fn in_mode(self, low_latency: &LowLatency) -> Self {
        Self { acknowledge_first: low_latency.acknowledge_first(), ..self }
    }

    /// Applies one entry. A panic is a broken invariant: the node ends, loudly, and the entry is
    /// neither answered nor counted as applied.
    fn apply_one(&self, id: LogId, entry: &[u8]) -> io::Result<Box<dyn Any + Send + Sync>> {
        let apply = || self.machine.apply(id, entry);
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
        let (membership, removed) = (self.membership.clone(), self.removed.all());
        Meta { last: self.last, membership, removed }
    }
}

impl RaftStateMachine<Types> for Applier {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogIdOf<Types>>, StoredMembershipOf<Types>)> {
        Ok((self.last, self.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + Send,
    {
        // Once for each call is enough.
        let mut acknowledge_first = self.acknowledge_first;
        while let Some(item) = entries.next().await {
            let (entry, responder) = item?;
            if responder.is_none() && acknowledge_first {
                // This node follows. The message that says that these entries are committed brought another
                // one to write, and the leader's client waits for its acknowledgement, not for this.
                yield_to_ready_tasks().await;
                acknowledge_first = false;
            }
            let id = entry.log_id();
            let answer = match entry.payload {
                EntryPayload::Blank => None,
                EntryPayload::Normal(Payload(bytes)) => Some(self.apply_one(from_log_id(&id), &bytes)?),
                EntryPayload::Membership(membership) => {
                    self.removed.follow(self.membership.membership(), &membership);
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

    async fn get_snapshot_builder(&mut self) -> Builder {
        // Between two entries: the engine applies and captures from one task.
        self.meter.snapshot_begun();
        let capture = self.machine.capture();
        let execution = self.execution;
        Builder { capture: Capture::new(capture), meta: self.meta(), store: self.store.clone(), execution }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMetaOf<Types>,
        snapshot: SnapshotFile,
    ) -> io::Result<()> {
        let (store, machine) = (self.store.clone(), self.machine.clone());
        let removed = snapshot.meta.removed.clone();
        let restore = self
            .execution
            .blocking(move || {
                let restore = snapshot.read(|input| machine.read_snapshot(input))?;
                // Read to its end and found sound; only now does it take the place of the last one.
                store.keep(&snapshot)?;
                io::Result::Ok(restore)
            })
            .await?;
        restore();
        self.last = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        self.removed.set(removed);
        self.applied.send_replace(self.last.as_ref().map(from_log_id));
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<Types, SnapshotFile>>> {
        Ok(self.store.current().map(|file| file.into_engine()))
    }
}

/// A captured state, to be written by whoever has it next. Behind a lock only because the engine
/// wants its builders to be shareable.
struct Capture(parking_lot::Mutex<Option<WriteSnapshot>>);

impl Capture {
    fn new(capture: WriteSnapshot) -> Self {
        Self(parking_lot::Mutex::new(Some(capture)))
    }
}

/// Writes one snapshot, while entries go on being applied.
pub(crate) struct Builder {
    capture: Capture,
    meta: Meta,
    store: SnapshotStore,
    execution: Execution,
}

impl RaftSnapshotBuilder<Types> for Builder {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<Types, SnapshotFile>> {
        let capture = self.capture.0.lock().take().expect("a builder builds once");
        let (store, meta) = (self.store.clone(), self.meta.clone());
        let write = move || store.write(meta, capture);
        Ok(self.execution.blocking(write).await?.into_engine())
    }
}
