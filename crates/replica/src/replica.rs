//! The replica as its server sees it.

use crate::barrier::Barrier;
use crate::data_dir::DataDir;
use crate::disk::Disk;
use crate::engine::{Applier, Engine, LogStore, Member, Payload, Types, settings};
use crate::error::{BarrierError, Failure, ForwardError, MembershipError, ProposeError, StartError};
use crate::leadership::{self, Leadership, Office};
use crate::peer::{ForwardHandler, Links, Network};
use crate::snapshot::SnapshotStore;
use crate::wal::{self, Done, Job, LogId, Meter, Queue, Writer};
use crate::{Config, NodeId, StateMachine, Status, status};
use bytes::Bytes;
use openraft::alias::ResponderOf;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, Fatal};
use openraft::raft::ClientWriteResult;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// One member of a replicated state machine. Cheap to clone; all clones are the same member.
pub struct Replica<M: StateMachine>(Arc<Inner<M>>);

struct Inner<M: StateMachine> {
    config: Config,
    machine: Arc<RwLock<M>>,
    directory: Arc<DataDir>,
    engine: Engine<M>,
    queue: Queue,
    meter: Meter,
    barrier: Barrier,
    leadership: watch::Receiver<Leadership>,
    failure: watch::Receiver<Option<String>>,
    /// Closed when the last write is done and the directory unlocked.
    closed: Mutex<Option<oneshot::Receiver<()>>>,
}

/// The answer to a proposal that is on its way. Dropping it forgets the answer, not the entry.
pub struct Proposal<A> {
    answer: Pin<Box<dyn Future<Output = Result<A, ProposeError>> + Send>>,
}

impl<A> Future for Proposal<A> {
    type Output = Result<A, ProposeError>;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.answer.as_mut().poll(context)
    }
}

impl<M: StateMachine> Clone for Replica<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<M: StateMachine> Replica<M> {
    /// Opens (or founds) the data directory on `disk`, restores `machine` from the last snapshot and
    /// the log behind it, and takes part in the cluster. A cluster of one founds itself.
    pub async fn start(
        config: Config,
        disk: Arc<dyn Disk>,
        network: Arc<dyn Network>,
        machine: M,
    ) -> Result<Self, StartError> {
        let _ = network;
        let settings = Arc::new(settings(&config)?);
        let (failed, failure) = watch::channel(None);
        let meter = Meter::new(config.snapshot.log_bytes_max);

        let opening = (config.clone(), disk.clone(), meter.clone(), failed.clone());
        let opened = config.execution.blocking(move || {
            let (config, disk, meter, failed) = opening;
            open(&config, disk, meter, failed)
        });
        let Opened { directory, lock, store, log, writer } = opened.await?;
        let io = |error| StartError::Io("cannot start the log".into(), error);
        let (queue, closed) = Queue::start(writer, disk, config.execution, lock).map_err(io)?;

        let machine = Arc::new(RwLock::new(machine));
        let (applied, applied_seen) = watch::channel::<Option<LogId>>(None);
        let applier =
            Applier::new(machine.clone(), store, config.execution, meter.clone(), applied, failed.clone());
        let log_store = LogStore::new(log, queue.clone(), config.execution);
        let engine = Engine::new(config.node, settings, Links, log_store, applier).await.map_err(refused)?;

        found_alone(&config, &directory, &engine).await?;
        watch_for_failure(&engine, failed);
        compact_when_due(&engine, meter.clone());
        let replica = Inner {
            machine,
            directory,
            queue,
            meter,
            barrier: Barrier::start(engine.clone(), 2 * config.timing.election_max),
            leadership: leadership::observe(&engine, applied_seen),
            failure,
            closed: Mutex::new(Some(closed)),
            engine,
            config,
        };
        Ok(Self(Arc::new(replica)))
    }

    /// This node.
    pub fn node(&self) -> NodeId {
        self.0.config.node
    }

    /// The machine, for reading. Whoever holds the lock holds up apply: copy out and let go.
    pub fn machine(&self) -> &Arc<RwLock<M>> {
        &self.0.machine
    }

    /// Who leads. Changes are never missed altogether, but several may be seen as one.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.0.leadership.clone()
    }

    /// Hands one entry to the log, if `office` is still held. Entries of one caller that awaits this
    /// call before making the next one enter the log in that order. The answer, what *applying* the
    /// entry answered, comes with the returned proposal.
    pub async fn propose(&self, office: Office, entry: Bytes) -> Result<Proposal<M::Answer>, ProposeError> {
        if office.node != self.node() {
            let reason = format!("the office is that of node {}", office.node);
            return Err(ProposeError::NotProposed { leader: Some(office.node), reason });
        }
        let (responder, receiver) = ResponderOf::<Types, ClientWriteResult<Types>>::complete_only();
        let write = self.0.engine.write(Payload(entry)).with_leader(office.term).responder(responder);
        write.await.map_err(|fatal| ProposeError::NotProposed { leader: None, reason: fatal.to_string() })?;
        let answer = Box::pin(async move {
            match receiver.await {
                Ok(result) => answer::<M>(result),
                Err(_) => Err(ProposeError::Unknown { reason: "the replica stopped".into() }),
            }
        });
        Ok(Proposal { answer })
    }

    /// Waits until this node's machine shows everything that was acknowledged anywhere before this
    /// call. By read index, never by clock; all that wait at one time share one confirmation.
    pub async fn read_barrier(&self) -> Result<(), BarrierError> {
        self.0.barrier.pass().await
    }

    /// The state of this node, for people and metrics.
    pub fn status(&self) -> Status {
        let identity = self.0.directory.identity();
        let failure = self.0.failure.borrow().clone();
        let metrics = self.0.engine.metrics().borrow_watched().clone();
        status::assemble(identity, &metrics, self.0.meter.status(), failure)
    }

    /// Resolves when the replica has failed for good; never on a graceful shutdown.
    pub async fn failed(&self) -> Failure {
        let mut failure = self.0.failure.clone();
        match failure.wait_for(Option::is_some).await {
            Ok(message) => Failure(message.clone().unwrap_or_default()),
            // Everything that could fail has ended in good order.
            Err(_) => std::future::pending().await,
        }
    }

    /// Begins a snapshot now; the log is cut behind it when it is done.
    pub async fn trigger_snapshot(&self) -> Result<(), Failure> {
        self.0.engine.trigger().snapshot().await.map_err(|fatal| Failure(fatal.to_string()))
    }

    /// Hands leadership to `to` (or the most advanced voter). Returns when this node no longer
    /// leads, or with a refusal when it still does after two election timeouts.
    pub async fn transfer_leadership(&self, to: Option<NodeId>) -> Result<(), MembershipError> {
        let _ = to;
        todo!()
    }

    /// Adds a node that receives the log and does not vote; returns once it has caught up.
    /// `identity` is that of its data directory, as its own status shows it.
    pub async fn add_learner(
        &self,
        node: NodeId,
        address: String,
        identity: String,
    ) -> Result<(), MembershipError> {
        let _ = (node, address, identity);
        todo!()
    }

    /// Makes exactly these nodes the voters. All must be members already; those left out are removed.
    pub async fn change_membership(&self, voters: Vec<NodeId>) -> Result<(), MembershipError> {
        let _ = voters;
        todo!()
    }

    /// Sends opaque bytes to another node's [`ForwardHandler`] and waits for its answer.
    pub async fn forward(
        &self,
        to: NodeId,
        request: Bytes,
        deadline: Duration,
    ) -> Result<Bytes, ForwardError> {
        let _ = (request, deadline);
        Err(ForwardError::Unreachable(to))
    }

    /// Who answers what other nodes forward to this one. Until it is set they get no answer.
    pub fn serve_forwarded(&self, handler: Arc<dyn ForwardHandler>) {
        let _ = handler;
    }

    /// Stops: no more proposals, the log is synced and closed, the data directory unlocked.
    pub async fn shutdown(&self) {
        if let Err(error) = self.0.engine.shutdown().await {
            tracing::error!(%error, "the consensus engine did not end in good order");
        }
        let closed = self.0.closed.lock().take();
        // If the writer has ended already there is nothing left to close.
        let _ = self.0.queue.push(Job::Close(Done::new(|_| ())));
        if let Some(closed) = closed {
            let _ = closed.await;
        }
    }
}

/// What opening a data directory yields.
struct Opened {
    directory: Arc<DataDir>,
    lock: Box<dyn Send + Sync>,
    store: SnapshotStore,
    log: wal::SharedLog,
    writer: Writer,
}

fn open(
    config: &Config,
    disk: Arc<dyn Disk>,
    meter: Meter,
    failed: watch::Sender<Option<String>>,
) -> Result<Opened, StartError> {
    let (directory, lock) = DataDir::open(disk.clone(), config.node, &config.entropy)?;
    let store = SnapshotStore::open(disk.clone())?;
    let recovered = wal::recover(&*disk, directory.salt(), config.log.cache_bytes)?;
    let log = recovered.log.clone();
    let stopwatch = config.stopwatch.clone();
    let writer = Writer::new(disk, config.log, config.execution, stopwatch, meter, failed, recovered)
        .map_err(|error| StartError::Io("cannot prepare the log".into(), error))?;
    Ok(Opened { directory: Arc::new(directory), lock, store, log, writer })
}

/// Founds a cluster of one if there is none yet, and leads it at once.
async fn found_alone<M: StateMachine>(
    config: &Config,
    directory: &DataDir,
    engine: &Engine<M>,
) -> Result<(), StartError> {
    if !config.peers.is_empty() {
        return Ok(());
    }
    if directory.identity().cluster.is_none() {
        let joined = directory.join(config.entropy.draw());
        joined.map_err(|error| StartError::Io("cannot write the identity".into(), error))?;
    }
    if engine.is_initialized().await.map_err(refused)? {
        // Nobody else can lead: there is nothing to wait for.
        let alone = engine.voter_ids().eq([config.node]);
        if alone {
            engine.trigger().elect(false).await.map_err(refused)?;
        }
        return Ok(());
    }
    let member = Member { address: String::new(), identity: directory.identity().identity };
    let members = BTreeMap::from([(config.node, member)]);
    engine.initialize(members).await.map_err(|error| StartError::Engine(error.to_string()))
}

fn refused(fatal: Fatal<Types>) -> StartError {
    StartError::Engine(fatal.to_string())
}

/// Tells why the engine ended, if it did not end in good order.
fn watch_for_failure<M: StateMachine>(engine: &Engine<M>, failed: watch::Sender<Option<String>>) {
    let mut metrics = engine.metrics();
    tokio::spawn(async move {
        loop {
            let state = metrics.borrow_and_update().running_state.clone();
            match state {
                Err(Fatal::Stopped) => return,
                Err(fatal) => {
                    failed.send_if_modified(|known| {
                        let first = known.is_none();
                        known.get_or_insert_with(|| fatal.to_string());
                        first
                    });
                    return;
                }
                Ok(()) => {}
            }
            if metrics.changed().await.is_err() {
                return;
            }
        }
    });
}

/// Takes a snapshot when the log has grown past its measure. The count of entries is the engine's.
fn compact_when_due<M: StateMachine>(engine: &Engine<M>, meter: Meter) {
    let engine = engine.clone();
    tokio::spawn(async move {
        loop {
            meter.snapshot_due().await;
            if engine.trigger().snapshot().await.is_err() {
                return;
            }
        }
    });
}

fn answer<M: StateMachine>(result: ClientWriteResult<Types>) -> Result<M::Answer, ProposeError> {
    match result {
        Ok(response) => {
            let answer = response.data.0.expect("an entry of the application has an answer");
            Ok(*answer.downcast().expect("the machine's answer has the machine's type"))
        }
        // Only before the entry is in any log.
        Err(ClientWriteError::ForwardToLeader(forward)) => Err(ProposeError::NotProposed {
            leader: forward.leader_id,
            reason: "this node does not lead, or not with a quorum".into(),
        }),
        Err(error) => Err(ProposeError::Unknown { reason: error.to_string() }),
    }
}
