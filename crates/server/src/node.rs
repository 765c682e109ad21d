//! One node as its front ends see it: commands in, answers out, reads of the machine.
//!
//! Nothing here decides who holds a lease; commands go through the log, and what applying them answers
//! comes back. Both front ends (HTTP and gRPC) stand on this and hold no rule of their own.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::{
    AcquireBy, Answer, Command, FormatVersion, Identity, Machine, Renewal, RenewalAnswer, RestoreId,
    Revision, Secret, SessionId, TransmissionId,
};
use tenure_replica::{Entropy, Execution, Leadership, NodeId, Replica, Status};
use tenure_wire::Captured;
use tokio::sync::{oneshot, watch};

use crate::acquire::{HangUps, watch_contact};
use crate::admin::Admin;
use crate::call_table::Call;
use crate::event_files::{Cursor, EventFiles, FilePage};
use crate::event_hub::EventHub;
use crate::failure::Failure;
use crate::forward::{self, Forwarder, RenewalBatch};
use crate::leader_loop::{LeaderLoopNumbers, LeaderRequest, Reply, RequestQueues};
use crate::replicated::Replicated;
use crate::secrets::{self, Concealed, SharedStage, Stage};
use crate::signing::Signer;

/// One node. Cheap to clone; all clones are the same node.
#[derive(Clone)]
pub struct Node(Arc<Inner>);

struct Inner {
    replica: Replica<Replicated>,
    queues: RequestQueues,
    event_hub: Arc<EventHub>,
    past_events: PastEvents,
    entropy: Entropy,
    /// Which forms this node's state has of secrets and nonces.
    stage: SharedStage,
    numbers: Arc<Mutex<LeaderLoopNumbers>>,
    forwarder: Forwarder,
    admin: Admin,
    signer: Signer,
    /// Where clients reach this node: the advertised address.
    client_address: String,
    hang_ups: HangUps,
    /// Whether this node is in touch with its leader, as far as waiting calls need to know.
    contact: Arc<watch::Sender<bool>>,
}

/// A command that comes in, from wherever it comes.
pub(crate) enum Submission {
    /// From a client of this node, or made by this node itself.
    Command(Arc<Concealed>),
    /// From another node, encoded there. It goes through this node's own leader loop or nowhere.
    Forwarded {
        /// The version that it was encoded in.
        version: FormatVersion,
        /// As it stands in an entry of that version.
        encoded: Vec<u8>,
    },
    /// Raises the agreed format version. This node leads, and has heard from every member that it knows that version.
    Raise(FormatVersion),
}

/// A command as the leader loop takes it.
struct Accepted {
    version: FormatVersion,
    encoded: Vec<u8>,
    raises: bool,
    opens: bool,
    caller: u64,
}

/// The event files, and where reading them runs: it blocks.
#[derive(Clone)]
pub(crate) struct PastEvents {
    pub files: Arc<EventFiles>,
    pub execution: Execution,
}

impl PastEvents {
    /// The next events after a revision.
    pub async fn read(&self, after: Revision, cursor: Option<Cursor>) -> FilePage {
        let files = self.files.clone();
        self.execution.blocking(move || files.read(after, cursor)).await
    }

    /// The revision after which everything is there, given that memory has everything after `memory`.
    pub async fn complete_after(&self, memory: Revision) -> Revision {
        if memory == Revision::default() {
            return memory;
        }
        let files = self.files.clone();
        self.execution.blocking(move || files.complete_after(memory)).await
    }
}

/// Who puts commands into the log.
pub(crate) enum Route {
    Here,
    To(NodeId),
    Nowhere,
}

/// What nearly every command takes, so that its buffer does not grow while it is written.
const COMMAND_BYTES_USUAL: usize = 96;

/// How long a follower may take to come as far as the leader was when it confirmed a read.
const CATCH_UP_WITHIN: Duration = Duration::from_secs(2);

/// What a node shows of itself.
#[derive(Clone, Debug)]
pub struct NodeStatus {
    /// The replica: role, term, log.
    pub replica: Status,
    /// The leader loop: queues and counted time.
    pub leader_loop: LeaderLoopNumbers,
}

impl Node {
    pub(crate) fn new(
        forwarder: Forwarder,
        queues: RequestQueues,
        (event_hub, past_events): (Arc<EventHub>, PastEvents),
        entropy: Entropy,
        numbers: Arc<Mutex<LeaderLoopNumbers>>,
        signer: Signer,
        client_address: String,
    ) -> Node {
        let admin = Admin::default();
        let contact = Arc::new(watch::Sender::new(true));
        let stage = forwarder.replica().machine().read().stage().clone();
        let node = Node(Arc::new(Inner {
            replica: forwarder.replica().clone(),
            queues,
            event_hub,
            past_events,
            entropy,
            stage,
            numbers,
            forwarder,
            admin,
            signer,
            client_address,
            hang_ups: HangUps::default(),
            contact: contact.clone(),
        }));
        tokio::spawn(watch_contact(node.clone(), contact));
        node.0.replica.serve_forwarded(forward::handler(node.clone()));
        node
    }

    /// The one way into the log: every command from every surface (plain calls, session streams, other nodes, this
    /// node itself) comes through here, with who it is from. That goes into the log with the command, and to the leader,
    /// which believes members: whether it may be done is judged when it is applied, the same on every node. The answer
    /// goes to `reply`; nothing waits here.
    pub(crate) fn accept(&self, identity: &Identity, submission: Submission, reply: Reply<Answer>) {
        // Only what clients of this node ask for is forwarded, and only they get their secrets back.
        let concealed = if let Submission::Command(of) = &submission { Some(of.clone()) } else { None };
        let (accepted, route) = match self.prepare(identity, submission) {
            Ok(accepted) => accepted,
            Err(failure) => return reply(Err(failure)),
        };
        let reply: Reply<Answer> = match concealed.as_ref().and_then(|concealed| concealed.own) {
            None => reply,
            Some(own) => Box::new(move |answer| {
                reply(answer.map(|mut answer| {
                    own.give_back(&mut answer);
                    answer
                }));
            }),
        };
        match (route, concealed) {
            (Route::Here, _) => self.0.queues.put(accepted.request(reply)),
            (Route::To(leader), Some(concealed)) => {
                let Accepted { version, encoded, .. } = accepted;
                self.0.forwarder.command(leader, version, encoded, &concealed.command, reply);
            }
            (Route::To(_) | Route::Nowhere, _) => reply(Err(Failure::NoLeader { leader: None })),
        }
    }

    /// A submission as the log takes it, and where it goes. `identity` is whom it is from; what was forwarded says so
    /// itself.
    fn prepare(&self, identity: &Identity, submission: Submission) -> Result<(Accepted, Route), Failure> {
        match submission {
            Submission::Command(command) => {
                let (version, encoded) = self.encode(identity, command)?;
                Ok((Accepted::new(version, encoded, identity, command), self.leader()))
            }
            // Another node made these bytes; what is put into the log must be readable by all. What was forwarded
            // once is not forwarded again.
            Submission::Forwarded { version, encoded } => {
                let forwarded = tenure_wire::decode_command(version, &encoded).map_err(|error| {
                    Failure::Unknown { reason: format!("a forwarded command is unreadable: {error}") }
                })?;
                let (identity, command) = forwarded.attributed();
                // Of what a member does by itself, only its own signing key goes through another node.
                let by_itself = *identity == Identity::Node && !matches!(command, Command::PublishKey { .. });
                if Call::of(command).is_none() || by_itself {
                    let reason = "a command that only a leader gives was forwarded".into();
                    return Err(Failure::Unknown { reason });
                }
                Ok((Accepted::new(version, encoded, identity, command), Route::Here))
            }
            Submission::Raise(to) => {
                let command = Command::Upgrade { to };
                let mut encoded = Vec::new();
                tenure_wire::encode_command(to, &command, &mut encoded);
                Ok((Accepted::new(to, encoded, &Identity::Node, &command), Route::Here))
            }
        }
    }

    /// Puts a command through the log, here or at the leader, and gives what applying it answered.
    pub async fn submit(&self, identity: &Identity, command: Command) -> Result<Answer, Failure> {
        self.answer_to(identity, self.submission(command)).await
    }

    /// A command of a client of this node, as it is submitted.
    pub(crate) fn submission(&self, command: Command) -> Submission {
        Submission::Command(Arc::new(self.conceal(command)))
    }

    /// The command as it may enter the log: from format version 2 on without anybody's secret.
    pub(crate) fn conceal(&self, mut command: Command) -> Concealed {
        secrets::derive(&mut command);
        let (version, own) = match self.0.stage.get() {
            // Even if a raise is applied at this moment: whatever the form, the version says it.
            Stage::Plain => (FormatVersion::V1, None),
            Stage::Mixed => {
                self.glance(|machine| (machine.format(), secrets::conceal(&mut command, Some(machine))))
            }
            Stage::Hashed => (self.format(), secrets::conceal(&mut command, None)),
        };
        Concealed { command, version, own }
    }

    /// Puts a submission through the log and gives what applying it answered.
    pub(crate) async fn answer_to(
        &self,
        identity: &Identity,
        submission: Submission,
    ) -> Result<Answer, Failure> {
        let (reply, answer) = oneshot::channel();
        self.accept(identity, submission, Box::new(|answer| drop(reply.send(answer))));
        answer.await.unwrap_or_else(|_| Err(Failure::stopped_meanwhile()))
    }

    /// The format version that the cluster has agreed on, as far as this node has applied.
    pub fn format(&self) -> FormatVersion {
        self.0.forwarder.format()
    }

    /// Renews sessions, each named by its id and the number of the transmission (zero for callers that keep
    /// none); answers in order.
    pub async fn renew(
        &self,
        identity: &Identity,
        renewals: Vec<(SessionId, u64)>,
    ) -> Result<Vec<RenewalAnswer>, Failure> {
        // The id is checked here, and that it is used by whoever opened the session, against the applied state, so
        // that the log carries only the number: ids are never reused, so what is true once stays true until the
        // session ends.
        let ids: Vec<SessionId> = renewals.iter().map(|(id, _)| *id).collect();
        let mut known = self.known(identity, &ids);
        if known.contains(&false) {
            // This node may be behind, or deposed: only a confirmed reading may say that a session is unknown.
            self.ready().await?;
            known = self.known(identity, &ids);
        }
        let renewals = renewals.iter().map(|(id, number)| Renewal { session: id.number, number: *number });
        renew_where(&known, renewals.collect(), async |renewals| self.renew_checked(renewals).await).await
    }

    /// Renews sessions whose ids have been checked on this node.
    pub async fn renew_checked(&self, renewals: Vec<Renewal>) -> Result<Vec<RenewalAnswer>, Failure> {
        match self.leader() {
            Route::Here => self.renew_here(renewals).await,
            Route::To(leader) if self.0.stage.get() == Stage::Plain => {
                self.0.forwarder.renew(leader, RenewalBatch::unproved(renewals)).await
            }
            Route::To(leader) => {
                let proofs: Vec<Option<u64>> = self.glance(|machine| {
                    renewals.iter().map(|renewal| machine.proof_of(renewal.session)).collect()
                });
                // What has ended here has ended everywhere.
                let live: Vec<bool> = proofs.iter().map(Option::is_some).collect();
                renew_where(&live, renewals, async |renewals| {
                    let proofs = proofs.into_iter().flatten().collect();
                    self.0.forwarder.renew(leader, RenewalBatch { renewals, proofs }).await
                })
                .await
            }
            Route::Nowhere => Err(Failure::NoLeader { leader: None }),
        }
    }

    /// Renews sessions that another node names, if it knows what only a node or the session's opener can know. Its
    /// clients' ids were checked there.
    pub(crate) async fn renew_proved(&self, batch: RenewalBatch) -> Result<Vec<RenewalAnswer>, Failure> {
        let RenewalBatch { renewals, proofs } = batch;
        if renewals.len() != proofs.len() {
            // Sent by a node that has not applied a raise that this one has: in a moment it will have.
            return if self.format() >= FormatVersion::V2 {
                Err(Failure::overloaded())
            } else {
                self.renew_here(renewals).await
            };
        }
        let check = || {
            self.glance(|machine| {
                let proved = |(renewal, proof): (&Renewal, &u64)| {
                    machine.proof_of(renewal.session).is_some_and(|known| known == *proof)
                };
                renewals.iter().zip(&proofs).map(proved).collect::<Vec<bool>>()
            })
        };
        let mut proved = check();
        if proved.contains(&false) {
            // This node may have been deposed, and be behind: only a confirmed reading may refuse.
            self.0.replica.read_barrier().await?;
            proved = check();
        }
        renew_where(&proved, renewals, async |renewals| self.renew_here(renewals).await).await
    }

    /// Puts renewals through this node's own leader loop.
    pub(crate) async fn renew_here(&self, renewals: Vec<Renewal>) -> Result<Vec<RenewalAnswer>, Failure> {
        let (reply, answer) = oneshot::channel();
        self.0
            .queues
            .put(LeaderRequest::Renewals { renewals, reply: Box::new(|answer| drop(reply.send(answer))) });
        answer.await.unwrap_or_else(|_| Err(Failure::stopped_meanwhile()))
    }

    /// How far a reader anywhere must have applied to see everything acknowledged before this call.
    pub(crate) async fn read_index_here(&self) -> Result<u64, Failure> {
        self.0.replica.read_barrier().await?;
        Ok(self.glance(Machine::entries))
    }

    pub(crate) fn leader(&self) -> Route {
        match *self.0.replica.leadership().borrow() {
            Leadership::Leader(_) => Route::Here,
            Leadership::Follower { leader: Some(leader) } if leader != self.0.replica.node() => {
                Route::To(leader)
            }
            Leadership::Follower { .. } => Route::Nowhere,
        }
    }

    /// Whether each id names a session that has not ended and that this caller may use, as far as this node has
    /// applied.
    pub fn known(&self, identity: &Identity, ids: &[SessionId]) -> Vec<bool> {
        // Hashed before the machine is looked at, which is not changed meanwhile.
        let hashed: Vec<SessionId> = match self.0.stage.get() {
            Stage::Plain => Vec::new(),
            Stage::Mixed | Stage::Hashed => ids.iter().map(|id| secrets::hashed_id(*id)).collect(),
        };
        self.glance(|machine| {
            let hashed = |at: usize| hashed.get(at).is_some_and(|id| machine.knows_as(identity, id));
            ids.iter().enumerate().map(|(at, id)| hashed(at) || machine.knows_as(identity, id)).collect()
        })
    }

    /// A session's id as it is to be compared with what the machine has stored, as far as this node knows.
    pub(crate) fn stored_id(&self, id: SessionId) -> SessionId {
        match self.0.stage.get() {
            Stage::Plain => id,
            Stage::Mixed => self.glance(|machine| secrets::stored_id(id, machine)),
            Stage::Hashed => secrets::hashed_id(id),
        }
    }

    /// Looks at the machine once it shows everything that was acknowledged anywhere before this call.
    pub async fn read<T>(&self, look: impl FnOnce(&Machine) -> T + Send) -> Result<T, Failure> {
        self.ready().await?;
        Ok(self.glance(look))
    }

    /// Looks at what this node has applied so far; it may be stale.
    pub fn glance<T>(&self, look: impl FnOnce(&Machine) -> T) -> T {
        look(self.0.replica.machine().read().machine())
    }

    /// The whole state, and a log index whose state it is; `None` if that index cannot be told, because entries were
    /// applied meanwhile.
    pub fn state_with_index(&self) -> Option<(u64, Captured)> {
        let applied = || self.status().replica.applied;
        let before = applied();
        let (state, index) = {
            let replicated = self.0.replica.machine().read();
            (Captured::of(replicated.machine()), replicated.index_of_state(before))
        };
        let index = index.or_else(|| before.filter(|before| applied() == Some(*before)))?;
        Some((index, state))
    }

    /// Who is notified of what on this node.
    pub fn event_hub(&self) -> &Arc<EventHub> {
        &self.0.event_hub
    }

    /// What memory no longer has of what happened.
    pub(crate) fn past_events(&self) -> &PastEvents {
        &self.0.past_events
    }

    /// The secret half of a new session's id. An open that carries a nonce gets another one, which follows from that.
    pub fn draw_secret(&self) -> Secret {
        Secret::new(self.0.entropy.draw().to_be_bytes())
    }

    /// The id of one transmission of a plain acquire.
    pub(crate) fn draw_transmission(&self) -> TransmissionId {
        TransmissionId::new(self.0.entropy.draw().to_be_bytes())
    }

    /// A name for a restore whose sender gave none.
    pub(crate) fn draw_restore(&self) -> RestoreId {
        RestoreId::new(self.0.entropy.draw().to_be_bytes())
    }

    /// Which forms this node's state has of secrets and nonces.
    pub(crate) fn stage(&self) -> &SharedStage {
        &self.0.stage
    }

    /// Plain acquires whose callers hung up.
    pub(crate) fn hang_ups(&self) -> &HangUps {
        &self.0.hang_ups
    }

    /// Whether this node is in touch with its leader, as far as waiting calls need to know.
    pub(crate) fn contact(&self) -> watch::Receiver<bool> {
        self.0.contact.subscribe()
    }

    /// What this node shows of itself.
    pub fn status(&self) -> NodeStatus {
        NodeStatus { replica: self.0.replica.status(), leader_loop: *self.0.numbers.lock() }
    }

    /// Waits until this node shows everything that was acknowledged anywhere before this call: a leader is
    /// known and serves, and this node keeps up with it.
    pub async fn ready(&self) -> Result<(), Failure> {
        let entries = match self.leader() {
            Route::Here => return self.0.replica.read_barrier().await.map_err(Failure::from),
            Route::To(leader) => self.0.forwarder.read_index(leader).await?,
            Route::Nowhere => return Err(Failure::NoLeader { leader: None }),
        };
        let mut applied = self.0.event_hub.entries();
        let caught_up = applied.wait_for(|applied| *applied >= entries);
        match tokio::time::timeout(CATCH_UP_WITHIN, caught_up).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(Failure::Stopping),
            Err(_) => Err(Failure::NoLeader { leader: None }),
        }
    }

    /// A probe of the leader has come in through the client port, if this is the number of one under way.
    pub fn probe_arrived(&self, number: u128) -> bool {
        self.0.queues.probe_arrived(number)
    }

    /// Where clients reach this node: the advertised address.
    pub(crate) fn client_address(&self) -> &str {
        &self.0.client_address
    }

    pub(crate) fn forwarder(&self) -> &Forwarder {
        &self.0.forwarder
    }

    pub(crate) fn admin(&self) -> &Admin {
        &self.0.admin
    }

    pub(crate) fn signer(&self) -> &Signer {
        &self.0.signer
    }

    pub(crate) fn replica(&self) -> &Replica<Replicated> {
        &self.0.replica
    }
}

/// The command in this version, with who it is from; refused if that version cannot say all of it.
fn encode(version: FormatVersion, identity: &Identity, command: &Command) -> Result<Vec<u8>, Failure> {
    // Everything fits the newest version.
    if version < FormatVersion::NEWEST && !tenure_wire::command_fits(version, command) {
        return Err(Failure::NeedsUpgrade { agreed: version });
    }
    let mut encoded = Vec::with_capacity(COMMAND_BYTES_USUAL);
    tenure_wire::encode_command_of(version, identity, command, &mut encoded);
    Ok(encoded)
}

/// Renews those sessions that `known` says to be there, and answers for all, in order.
async fn renew_where(
    known: &[bool],
    mut renewals: Vec<Renewal>,
    renew: impl AsyncFnOnce(Vec<Renewal>) -> Result<Vec<RenewalAnswer>, Failure>,
) -> Result<Vec<RenewalAnswer>, Failure> {
    if !known.contains(&false) {
        return renew(renewals).await;
    }
    let mut at = known.iter();
    renewals.retain(|_| at.next() == Some(&true));
    let answers = if renewals.is_empty() { Vec::new() } else { renew(renewals).await? };
    let mut answers = answers.into_iter();
    let mut next = || answers.next().expect("one answer per renewal");
    Ok(known.iter().map(|known| if *known { next() } else { RenewalAnswer::UnknownSession }).collect())
}

impl Accepted {
    fn new(version: FormatVersion, encoded: Vec<u8>, identity: &Identity, command: &Command) -> Accepted {
        let raises = matches!(command, Command::Upgrade { .. });
        Accepted { version, encoded, raises, opens: opens(command), caller: caller(identity) }
    }

    fn request(self, reply: Reply<Answer>) -> LeaderRequest {
        let Accepted { version, encoded, raises, opens, caller } = self;
        LeaderRequest::Command { encoded, version, raises, opens, caller, reply }
    }
}

/// A caller as a number, for the turns that callers take in the leader's queue. Those without a name share one.
fn caller(identity: &Identity) -> u64 {
    let Some(name) = identity.name() else { return 0 };
    let mut hasher = std::hash::DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish() | 1
}

/// Whether a command opens a session, and so waits in the queue ahead of everything else.
pub(crate) fn opens(command: &Command) -> bool {
    match command {
        Command::Open(_) => true,
        Command::Acquire(acquire) => matches!(acquire.by, AcquireBy::Opening(_)),
        _ => false,
    }
}
