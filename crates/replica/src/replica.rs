//! The replica as its server sees it.

use crate::barrier::Barrier;
use crate::data_dir::DataDir;
use crate::disk::Disk;
use crate::engine::{
    Applier, Engine, LogStore, Machinery, Member, Payload, Removed, Types, decode_membership, from_log_id,
    settings, was_removed,
};
use crate::error::{
    BarrierError, FatalError, ForwardError, MembershipError, ProposeError, REJOIN, StartError,
};
use crate::leadership::{self, LeaderTerm, Leadership};
use crate::low_latency::{CallerDetector, LowLatency};
use crate::membership::{Changes, is_sole_voter, moved, replace_it};
use crate::peer::{self, ForwardHandler, Host, Links, Listener, Memory, Network, Spoken};
use crate::snapshot::SnapshotStore;
use crate::wal::{self, Done, Job, LogId, Meter, Queue, Writer};
use crate::{Config, NodeId, StateMachine, Status, status};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use openraft::alias::ResponderOf;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ChangeMembershipError, ClientWriteError, Fatal, RaftError};
use openraft::raft::ClientWriteResult;
use openraft::{ChangeMembers, Membership, RaftMetrics, ServerState};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// One member of a replicated state machine. Cheap to clone; all clones are the same member.
pub struct Replica<M: StateMachine> {
    machine: Arc<RwLock<M>>,
    parts: Arc<Parts>,
}

/// Everything that does not depend on the machine's types.
struct Parts {
    config: Config,
    directory: Arc<DataDir>,
    engine: Engine,
    snapshots: SnapshotStore,
    queue: Queue,
    meter: Meter,
    low_latency: LowLatency,
    barrier: Barrier,
    leadership: watch::Receiver<Leadership>,
    failure: watch::Receiver<Option<String>>,
    links: Links,
    spoken: Arc<Spoken>,
    removed: Removed,
    changes: Changes,
    network: Arc<dyn Network>,
    handler: Arc<RwLock<Option<Arc<dyn ForwardHandler>>>>,
    /// What listens to peers and what looks for them.
    tasks: Mutex<Vec<JoinHandle<()>>>,
    /// Closed when the last write is done and the directory unlocked.
    closed: Mutex<Option<oneshot::Receiver<()>>>,
}

/// A node that is to become a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newcomer {
    /// Its number.
    pub node: NodeId,
    /// Where peers reach it.
    pub address: String,
    /// The identity of its data directory, as its own status shows it.
    pub identity: String,
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
        Self { machine: self.machine.clone(), parts: self.parts.clone() }
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
        let machine = Arc::new(RwLock::new(machine));
        let parts = assemble(config, disk, network, machine.clone()).await?;
        Ok(Self { machine, parts: Arc::new(parts) })
    }

    /// This node.
    pub fn node(&self) -> NodeId {
        self.parts.config.node
    }

    /// Where peers reach this node; empty if it has no port for them.
    pub fn peer_address(&self) -> &str {
        self.parts.config.peers.get(&self.node()).map_or("", String::as_str)
    }

    /// Whether this node has no port for peers.
    pub fn is_alone(&self) -> bool {
        self.parts.config.peers.is_empty()
    }

    /// The machine, for reading. Whoever holds the lock holds up apply: copy out and let go.
    pub fn machine(&self) -> &Arc<RwLock<M>> {
        &self.machine
    }

    /// Who leads. Changes are never missed altogether, but several may be seen as one.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.parts.leadership.clone()
    }

    /// Hands one entry to the log, if `leader_term` is still held. Entries of one caller that awaits this
    /// call before making the next one enter the log in that order. The answer, what *applying* the
    /// entry answered, comes with the returned proposal.
    pub async fn propose(
        &self,
        leader_term: LeaderTerm,
        entry: Bytes,
    ) -> Result<Proposal<M::Response>, ProposeError> {
        if leader_term.node != self.node() {
            let reason = format!("the leader's term is that of node {}", leader_term.node);
            return Err(ProposeError::NotProposed { leader: Some(leader_term.node), reason });
        }
        let (responder, receiver) = ResponderOf::<Types, ClientWriteResult<Types>>::complete_only();
        let write =
            self.parts.engine.write(Payload(entry)).with_leader(leader_term.term).responder(responder);
        write.await.map_err(|fatal| ProposeError::NotProposed { leader: None, reason: fatal.to_string() })?;
        let answer = Box::pin(async move {
            match receiver.await {
                Ok(result) => answer::<M>(result),
                Err(_) => Err(ProposeError::Unknown { reason: "the replica stopped".into() }),
            }
        });
        Ok(Proposal { answer })
    }

    /// Detects from what it is told whether a single client is served, and has the replica act on it. For the
    /// one task that proposes entries.
    pub fn caller_detector(&self) -> CallerDetector {
        CallerDetector::new(self.parts.low_latency.clone())
    }

    /// Waits until this node's machine shows everything that was acknowledged anywhere before this
    /// call. By read index, never by clock; all that wait at one time share one confirmation.
    pub async fn read_barrier(&self) -> Result<(), BarrierError> {
        self.parts.barrier.pass().await
    }

    /// The state of this node, for people and metrics.
    pub fn status(&self) -> Status {
        let identity = self.parts.directory.identity();
        let failure = self.parts.failure.borrow().clone();
        let metrics = self.parts.engine.metrics().borrow_watched().clone();
        let parts = &self.parts;
        let (log, low_latency) = (parts.meter.status(), parts.low_latency.status());
        status::assemble(identity, &parts.spoken, &metrics, &parts.removed, log, low_latency, failure)
    }

    /// Resolves when the replica has failed for good; never on a graceful shutdown.
    pub async fn failed(&self) -> FatalError {
        let mut failure = self.parts.failure.clone();
        // Copied out before anything else is awaited, so that this future can move between threads.
        let message = failure.wait_for(Option::is_some).await.map(|message| message.clone());
        match message {
            Ok(message) => FatalError(message.unwrap_or_default()),
            // Everything that could fail has ended in good order.
            Err(_) => std::future::pending().await,
        }
    }

    /// Begins a snapshot now; the log is cut behind it when it is done.
    pub async fn trigger_snapshot(&self) -> Result<(), FatalError> {
        self.parts.engine.trigger().snapshot().await.map_err(|fatal| FatalError(fatal.to_string()))
    }

    /// Takes a snapshot now, and removes all of the log that it covers from the disk: also what a follower that lags a
    /// little could have used. Returns when the snapshot is there; the files go a moment later.
    pub async fn compact(&self) -> Result<(), FatalError> {
        let stopped = || FatalError("the replica is stopping".into());
        let mut metrics = self.parts.engine.metrics();
        let applied = metrics.borrow_watched().last_applied.as_ref().map(|id| id.index());
        self.parts.queue.push(Job::NewSegment).map_err(|error| FatalError(error.to_string()))?;
        let covered = loop {
            let covered = metrics.borrow_watched().snapshot.as_ref().map(|id| id.index());
            if covered >= applied {
                break covered;
            }
            // Again if one was under way that had begun before: it does not cover everything.
            self.trigger_snapshot().await?;
            metrics.changed().await.map_err(|_| stopped())?;
        };
        let Some(upto) = covered else { return Ok(()) };
        self.parts.engine.trigger().purge_log(upto).await.map_err(|fatal| FatalError(fatal.to_string()))
    }

    /// Hands leadership to `to` (or the most advanced voter). Returns when this node no longer
    /// leads, or with a refusal when it still does after two election timeouts.
    pub async fn transfer_leadership(&self, to: Option<NodeId>) -> Result<(), MembershipError> {
        let Some(leader_term) = self.parts.leadership.borrow().leader_term() else {
            return Err(self.not_leader());
        };
        let status = self.status();
        let most_advanced = || {
            let voters = status.peers.iter().filter(|peer| peer.voter);
            voters.max_by_key(|peer| peer.matched).map(|peer| peer.node)
        };
        let Some(to) = to.or_else(most_advanced) else {
            return Err(MembershipError::Refused("there is no other voter to hand leadership to".into()));
        };
        if to == self.node() || !status.voters.contains(&to) {
            return Err(MembershipError::Refused(format!("node {to} is no other voter of this cluster")));
        }
        let sent = self.parts.engine.trigger().transfer_leader(to).await;
        sent.map_err(|fatal| MembershipError::Refused(fatal.to_string()))?;
        let mut leadership = self.leadership();
        let left = leadership.wait_for(|leadership| leadership.leader_term() != Some(leader_term));
        match tokio::time::timeout(2 * self.parts.config.timing.election_max, left).await {
            Ok(_) => Ok(()),
            Err(_) => {
                Err(MembershipError::Refused(format!("node {to} did not take over; this node still leads")))
            }
        }
    }

    /// Adds nodes that receive the log and do not vote, in one change; returns once all have caught up. What
    /// are members already stay what they are, so asking again waits for the rest.
    pub async fn add_learners(&self, newcomers: Vec<Newcomer>) -> Result<(), MembershipError> {
        if !self.parts.changes.applied().await {
            return Err(MembershipError::InProgress);
        }
        let mut added = BTreeMap::new();
        for Newcomer { node, address, identity } in newcomers {
            let identity = u128::from_str_radix(&identity, 16)
                .map_err(|_| MembershipError::Refused("an identity has 32 hexadecimal digits".into()))?;
            if self.parts.removed.contains(node) {
                return Err(MembershipError::Refused(was_removed(node)));
            }
            if self.member(node).is_some_and(|known| known.identity != identity) {
                return Err(MembershipError::Refused(format!(
                    "node {node} is a member with another data directory; numbers are never used again"
                )));
            }
            added.insert(node, Member { address, identity, key: None });
        }
        let nodes: Vec<NodeId> = added.keys().copied().collect();
        let added =
            self.parts.changes.make(ChangeMembers::AddNodes(added)).await.map_err(membership_error)?;
        // The engine's own way to wait is content with a lag that would call for no snapshot, which here is
        // any lag at all: a node that cannot take a single entry would be made a voter, and the next loss of
        // a node would stop the cluster.
        let asked_at = added.log_id().index();
        let have_it = |metrics: &RaftMetrics<Types>| {
            let replication = metrics.replication.as_ref();
            let matched = |node| replication.and_then(|replication| replication.get(node)?.as_ref());
            nodes.iter().all(|node| matched(node).is_some_and(|matched| matched.index() >= asked_at))
        };
        let over = |metrics: &RaftMetrics<Types>| metrics.state != ServerState::Leader || have_it(metrics);
        let waited = self.parts.engine.wait(None).metrics(over, "the newcomers catch up").await;
        let metrics = waited.map_err(|error| MembershipError::Refused(error.to_string()))?;
        if have_it(&metrics) { Ok(()) } else { Err(self.not_leader()) }
    }

    /// The same for one node.
    pub async fn add_learner(
        &self,
        node: NodeId,
        address: String,
        identity: String,
    ) -> Result<(), MembershipError> {
        self.add_learners(vec![Newcomer { node, address, identity }]).await
    }

    /// Makes voters of members that do not vote yet, all in one change. Like every change of voters it goes
    /// on to its end if nobody waits for it any more.
    pub async fn promote(&self, nodes: Vec<NodeId>) -> Result<(), MembershipError> {
        let change = ChangeMembers::AddVoterIds(nodes.into_iter().collect());
        self.parts.changes.make(change).await.map(drop).map_err(membership_error)
    }

    /// Makes exactly these nodes the voters. All must be members already; those left out are removed.
    pub async fn change_membership(&self, voters: Vec<NodeId>) -> Result<(), MembershipError> {
        let change = ChangeMembers::ReplaceAllVoters(voters.into_iter().collect());
        self.parts.changes.make(change).await.map(drop).map_err(membership_error)
    }

    /// Removes members that do not vote.
    pub async fn remove_learners(&self, nodes: Vec<NodeId>) -> Result<(), MembershipError> {
        let change = ChangeMembers::RemoveNodes(nodes.into_iter().collect());
        self.parts.changes.make(change).await.map(drop).map_err(membership_error)
    }

    /// Asks who listens at `address`: the identity of the data directory of `node`, which need not be a
    /// member yet. It is refused if that node has a part in another cluster, or was a voter and has been
    /// wiped.
    pub async fn identity_of(&self, node: NodeId, address: &str) -> Result<String, MembershipError> {
        let ours = (self.parts.directory.identity(), self.parts.config.versions);
        let (answer_of_peer, versions) = peer::probe(
            (&*self.parts.network, &self.parts.config.security),
            ours,
            node,
            address,
            self.parts.config.timing.election_max,
        )
        .await
        .map_err(|error| {
            MembershipError::Absent(format!("node {node} does not answer at {address}: {error}"))
        })?;
        match answer_of_peer.refusal {
            Some(refusal) => Err(MembershipError::Refused(refusal)),
            // Only who is told to a member says who it is.
            None if answer_of_peer.identity.identity == 0 => Err(MembershipError::Refused(format!(
                "node {node} at {address} belongs to a cluster that does not know this node: start it with an empty data \
                 directory to have it join this one"
            ))),
            None => {
                self.parts.spoken.receive(node, versions);
                Ok(format!("{:032x}", answer_of_peer.identity.identity))
            }
        }
    }

    /// Sends opaque bytes to another node's [`ForwardHandler`] and waits for its answer.
    pub async fn forward(
        &self,
        to: NodeId,
        request: Bytes,
        deadline: Duration,
    ) -> Result<Bytes, ForwardError> {
        let member = self.member(to).ok_or(ForwardError::Unreachable(to))?;
        self.parts.links.forward(to, &member, request, deadline).await.map_err(|error| match error.kind() {
            // It may have left before the connection or the patience ended.
            io::ErrorKind::TimedOut | io::ErrorKind::ConnectionReset => ForwardError::NoAnswer(to),
            _ => ForwardError::Unreachable(to),
        })
    }

    /// Who answers what other nodes forward to this one. Until it is set they get no answer.
    pub fn serve_forwarded(&self, handler: Arc<dyn ForwardHandler>) {
        *self.parts.handler.write() = Some(handler);
    }

    /// Stops: no more proposals, the log is synced and closed, the data directory unlocked.
    pub async fn shutdown(&self) {
        for task in self.parts.tasks.lock().drain(..) {
            task.abort();
        }
        if let Err(error) = self.parts.engine.shutdown().await {
            tracing::error!(%error, "the consensus engine did not end in good order");
        }
        self.parts.links.close();
        let snapshots = self.parts.snapshots.clone();
        self.parts.config.execution.blocking(move || snapshots.close()).await;
        let closed = self.parts.closed.lock().take();
        // If the writer has ended already there is nothing left to close.
        let _ = self.parts.queue.push(Job::Close(Done::new(|_| ())));
        if let Some(closed) = closed {
            let _ = closed.await;
        }
    }
}

impl<M: StateMachine> Replica<M> {
    /// A member, as the membership names it.
    fn member(&self, node: NodeId) -> Option<Member> {
        let metrics = self.parts.engine.metrics();
        let membership = metrics.borrow_watched().membership_config.clone();
        membership.membership().get_node(&node).cloned()
    }

    fn not_leader(&self) -> MembershipError {
        MembershipError::NotLeader { leader: self.parts.leadership.borrow().leader() }
    }
}

/// Starts everything that does not depend on the machine's types. Boxed, so that it is compiled here and not
/// again in every crate that starts a replica: it holds the whole engine.
fn assemble(
    config: Config,
    disk: Arc<dyn Disk>,
    network: Arc<dyn Network>,
    machine: Arc<dyn Machinery>,
) -> BoxFuture<'static, Result<Parts, StartError>> {
    async move {
        let mut config = config;
        // First of all: an address that is taken must not cost the data directory a thing.
        let listener = listen_to_peers(&config, &*network).await?;
        let (failed, failure) = watch::channel(None);
        let meter = Meter::new(config.snapshot.log_bytes_max);

        let opening = (config.clone(), disk.clone(), meter.clone(), failed.clone());
        let opened = config.execution.blocking(move || {
            let (config, disk, meter, failed) = opening;
            open(&config, disk, meter, failed)
        });
        let OpenedDataDir { directory, lock, store, log, writer, membership } = opened.await?;
        let listener = match listener {
            Some(listener) => {
                check_peers(&config, &membership)?;
                Some(listener)
            }
            None => listen_as_a_member(&mut config, &membership, &*network).await?,
        };
        if listener.is_none() {
            config.timing = config.timing_alone;
        }
        let settings = Arc::new(settings(&config)?);
        let io = |error| StartError::Io("cannot start the log".into(), error);
        let low_latency = LowLatency::new(config.low_latency, config.execution);
        let (queue, closed) =
            Queue::start(writer, disk, config.execution, low_latency.clone(), lock).map_err(io)?;

        let spoken = Arc::new(Spoken::new(config.versions, config.agreed.clone()));
        let memory = Memory::new(spoken.clone(), log.clone(), store.clone(), failed.clone());
        let links = Links::new(
            (network.clone(), config.security.clone()),
            directory.clone(),
            memory.clone(),
            config.timing,
            config.execution,
            low_latency.clone(),
        );
        let removed = Removed::default();
        let (applied, applied_seen) = watch::channel::<Option<LogId>>(None);
        let applier = Applier::new(
            machine,
            store.clone(),
            config.execution,
            meter.clone(),
            removed.clone(),
            applied,
            failed.clone(),
        )
        .in_mode(&low_latency);
        let snapshots = store.clone();
        let log_store = LogStore::new(log, queue.clone(), config.execution, config.node, low_latency.clone());
        let engine =
            Engine::new(config.node, settings, links.clone(), log_store, applier).await.map_err(refused)?;

        memory.follow(&engine);
        watch_for_failure(&engine, failed.clone());
        compact_when_due(&engine, meter.clone());
        let handler = Arc::new(RwLock::new(None));
        let mut tasks = Vec::new();
        match listener {
            None => found_alone(&config, &directory, &engine).await?,
            Some(listener) => {
                lead_alone(&config, &engine).await?;
                let (engine, directory) = (engine.clone(), directory.clone());
                let (handler, removed, links) = (handler.clone(), removed.clone(), links.clone());
                let execution = config.execution;
                let named = config.peers.keys().copied().collect();
                let (memory, security) = (memory.clone(), config.security.clone());
                let host = Host {
                    engine,
                    directory,
                    links,
                    memory,
                    removed,
                    store,
                    execution,
                    handler,
                    named,
                    security,
                };
                tasks.push(peer::listen(Arc::new(host), listener));
            }
        }
        if !config.peers.is_empty() {
            let (config, directory, engine) = (config.clone(), directory.clone(), engine.clone());
            let (network, spoken) = (network.clone(), spoken.clone());
            tasks.push(tokio::spawn(async move {
                if let Err(why) = peer::form(&config, &*network, &directory, &engine, &spoken).await {
                    fail(&failed, &why);
                }
            }));
        }
        let leadership = leadership::observe(&engine, applied_seen);
        let changes = Changes::new(engine.clone(), &config, memory.proofs().subscribe());
        if !config.peers.is_empty() || config.key.is_some() {
            tasks.push(tokio::spawn(changes.clone().watch(leadership.clone(), config.timing.heartbeat)));
        }
        if !config.peers.is_empty() {
            let (engine, links, leadership) = (engine.clone(), links.clone(), leadership.clone());
            tasks.push(tokio::spawn(peer::watch_reach(
                engine,
                links,
                leadership,
                config.timing,
                config.node,
            )));
        }
        Ok(Parts {
            directory,
            snapshots,
            queue,
            meter,
            low_latency,
            barrier: Barrier::start(engine.clone(), 2 * config.timing.election_max),
            leadership,
            failure,
            links,
            spoken,
            removed,
            changes,
            network,
            handler,
            tasks: Mutex::new(tasks),
            closed: Mutex::new(Some(closed)),
            engine,
            config,
        })
    }
    .boxed()
}

/// Begins to listen at this node's own peer address, if it has peers.
async fn listen_to_peers(
    config: &Config,
    network: &dyn Network,
) -> Result<Option<Box<dyn Listener>>, StartError> {
    if config.peers.is_empty() {
        return Ok(None);
    }
    let Some(address) = config.peers.get(&config.node) else {
        return Err(StartError::Configuration(format!(
            "node {} is not among the peers: give its own address too",
            config.node
        )));
    };
    let listener = network.listen(address).await;
    listener.map(Some).map_err(|error| StartError::Io(format!("cannot listen for peers at {address}"), error))
}

/// Begins to listen where the membership says that this node does, if it was started without peers. A member
/// that is started like a single node is a member all the same.
async fn listen_as_a_member(
    config: &mut Config,
    membership: &Membership<NodeId, Member>,
    network: &dyn Network,
) -> Result<Option<Box<dyn Listener>>, StartError> {
    let node = config.node;
    let own = membership.get_node(&node).filter(|own| !own.address.is_empty());
    let Some(Member { address, .. }) = own else { return Ok(None) };
    if !config.beyond_this_machine && !on_this_machine(address).await {
        return Err(StartError::Configuration(format!(
            "this data directory is that of node {node} of a cluster, and its peers reach it at {address}, as other machines \
             can: start it with --root, so that its peers prove themselves; or say --insecure"
        )));
    }
    config.peers = BTreeMap::from([(node, address.clone())]);
    let listener = network.listen(address).await.map_err(|error| {
        let what = format!(
            "this data directory is that of node {node} of a cluster, and it cannot listen for its peers at {address}; {}",
            if is_sole_voter(membership, node) {
                format!("if it has moved, start it with --node {node} --peers {node}=HOST:PORT")
            } else {
                format!("if it has moved, {}", replace_it(node))
            }
        );
        StartError::Io(what, error)
    })?;
    tracing::info!(node, %address, "going on as a member of a cluster, at the address in the membership");
    Ok(Some(listener))
}

/// Whether an address can be reached from this machine alone.
async fn on_this_machine(address: &str) -> bool {
    match tokio::net::lookup_host(address).await {
        Ok(mut found) => found.all(|found| found.ip().is_loopback()),
        // Then listening there fails as well, and says why.
        Err(_) => true,
    }
}

/// Holds the peers that were named against the members. Names of others mean nothing to a node with data; but
/// to whoever starts a single node with them they mean a cluster that does not exist.
fn check_peers(config: &Config, membership: &Membership<NodeId, Member>) -> Result<(), StartError> {
    let node = config.node;
    if !is_sole_voter(membership, node) {
        let listens = config.peers.get(&node).map_or("", String::as_str);
        if let Some(warning) = moved(membership, node, listens) {
            tracing::warn!("{warning}");
        }
        return Ok(());
    }
    let strangers = || config.peers.iter().filter(|(peer, _)| membership.get_node(peer).is_none());
    if strangers().next().is_none() {
        return Ok(());
    }
    let add: String = strangers().map(|(peer, address)| format!(" {peer}={address}")).collect();
    let add = format!("tenure cluster add{add}");
    if membership.get_node(&node).is_some_and(|own| own.address.is_empty()) {
        let own = config.peers.get(&node).map_or("", String::as_str);
        return Err(StartError::Configuration(format!(
            "this data directory is that of a single node, and other nodes join it only when they are added: start it with \
             --node {node} --peers {node}={own}, start the others, then run `{add}`"
        )));
    }
    tracing::warn!(
        "node {node} is the only voter of its cluster; others in --peers join when they are added: {add}"
    );
    Ok(())
}

/// What opening a data directory yields.
struct OpenedDataDir {
    directory: Arc<DataDir>,
    lock: Box<dyn Send + Sync>,
    store: SnapshotStore,
    log: wal::SharedLog,
    writer: Writer,
    /// The last one in the log, or in the snapshot.
    membership: Membership<NodeId, Member>,
}

fn open(
    config: &Config,
    disk: Arc<dyn Disk>,
    meter: Meter,
    failed: watch::Sender<Option<String>>,
) -> Result<OpenedDataDir, StartError> {
    let (directory, lock) = DataDir::open(disk.clone(), config.node, &config.entropy)?;
    let store = SnapshotStore::open(disk.clone())?;
    let lost = |what: String| StartError::Data(format!("{what}. This node's disk has lost data. {REJOIN}"));
    // The first segment is older than any membership.
    let has_log =
        wal::has_segments(&*disk).map_err(|error| StartError::Io("cannot open the log".into(), error))?;
    if directory.identity().cluster.is_some() && !has_log {
        return Err(lost("this node belongs to a cluster, and its log is missing".into()));
    }
    let recovered = wal::recover(&*disk, directory.salt(), config.log.cache_bytes)?;
    let log = recovered.log.clone();
    // The log is cut only behind a snapshot that is in its place.
    let (purged, current) = (log.lock().purged, store.current());
    let covered = current.as_ref().and_then(|current| current.meta.last.as_ref()).map(from_log_id);
    if purged > covered {
        let index = purged.map_or(0, |purged| purged.index);
        return Err(lost(format!(
            "the log begins after entry {index}, and the snapshot that covers it is missing"
        )));
    }
    let unreadable = |error| StartError::Io("cannot read the membership".into(), error);
    let in_snapshot = current.map(|current| current.meta.membership);
    let snapshot_at = in_snapshot.as_ref().and_then(|stored| stored.log_id().as_ref().map(|id| id.index()));
    let membership = match &recovered.membership {
        Some((index, bytes)) if Some(*index) > snapshot_at => {
            decode_membership(bytes.clone()).map_err(unreadable)?
        }
        _ => in_snapshot.map(|stored| stored.membership().clone()).unwrap_or_default(),
    };
    let stopwatch = config.stopwatch.clone();
    let writer = Writer::new(disk, config.log, config.execution, stopwatch, meter, failed, recovered)
        .map_err(|error| StartError::Io("cannot prepare the log".into(), error))?;
    Ok(OpenedDataDir { directory: Arc::new(directory), lock, store, log, writer, membership })
}

/// Founds a cluster of one if there is none yet, and leads it at once.
async fn found_alone(config: &Config, directory: &DataDir, engine: &Engine) -> Result<(), StartError> {
    if directory.identity().cluster.is_none() {
        let joined = directory.join(config.entropy.draw());
        joined.map_err(|error| StartError::Io("cannot write the identity".into(), error))?;
    }
    if engine.is_initialized().await.map_err(refused)? {
        return lead_alone(config, engine).await;
    }
    let member = Member { address: String::new(), identity: directory.identity().identity, key: None };
    let members = BTreeMap::from([(config.node, member)]);
    engine.initialize(members).await.map_err(|error| StartError::Engine(error.to_string()))
}

/// Leads at once if nobody else can: then there is nothing to wait for.
async fn lead_alone(config: &Config, engine: &Engine) -> Result<(), StartError> {
    if engine.voter_ids().eq([config.node]) {
        engine.trigger().elect(false).await.map_err(refused)?;
    }
    Ok(())
}

fn refused(fatal: Fatal<Types>) -> StartError {
    StartError::Engine(fatal.to_string())
}

/// Tells why the engine ended, if it did not end in good order.
fn watch_for_failure(engine: &Engine, failed: watch::Sender<Option<String>>) {
    let metrics = engine.metrics();
    // These change only with roles and members. The whole of the metrics, where the reason stands in the end,
    // changes at every turn of the engine, several times for each entry.
    let mut roles = engine.server_metrics();
    tokio::spawn(async move {
        while roles.changed().await.is_ok() {}
        let state = metrics.borrow_watched().running_state.clone();
        match state {
            Err(Fatal::Stopped) => {}
            Err(fatal) => fail(&failed, &fatal.to_string()),
            Ok(()) => fail(&failed, "the consensus engine ended without a word: it panicked, or was aborted"),
        }
    });
}

/// Says that the replica has failed. The first reason is the one that counts.
pub(crate) fn fail(failed: &watch::Sender<Option<String>>, why: &str) {
    failed.send_if_modified(|known| {
        let first = known.is_none();
        if first {
            tracing::error!("{why}");
            *known = Some(why.into());
        }
        first
    });
}

fn membership_error(error: RaftError<Types, ClientWriteError<Types>>) -> MembershipError {
    match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(forward)) => {
            MembershipError::NotLeader { leader: forward.leader_id }
        }
        RaftError::APIError(error @ ClientWriteError::LogEntryDiscarded(_)) => {
            MembershipError::Unknown(error.to_string())
        }
        RaftError::APIError(ClientWriteError::ChangeMembershipError(ChangeMembershipError::InProgress(
            _,
        ))) => MembershipError::InProgress,
        RaftError::APIError(error) => MembershipError::Refused(error.to_string()),
        RaftError::Fatal(fatal) => MembershipError::Unknown(fatal.to_string()),
    }
}

/// Takes a snapshot when the log has grown past its measure. The count of entries is the engine's.
fn compact_when_due(engine: &Engine, meter: Meter) {
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

fn answer<M: StateMachine>(result: ClientWriteResult<Types>) -> Result<M::Response, ProposeError> {
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
