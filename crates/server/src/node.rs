//! One node as its front ends see it: commands in, answers out, reads of the machine.
//!
//! Nothing here decides who holds a lease; commands go through the log, and what applying them answers
//! comes back. Both front ends (HTTP and gRPC) stand on this and hold no rule of their own.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::{
    Acquire, AcquireBy, Answer, Caller, ClusterTime, Command, Done, EndReason, EventKind, Grant, Machine,
    Refusal, Renewal, RenewalAnswer, ResourceName, Secret, SessionId,
};
use tenure_replica::{Entropy, Leadership, NodeId, Replica, Status};
use tokio::sync::oneshot;

use crate::admin::Admin;
use crate::desk::{DeskNumbers, Mail, Reply, Trays};
use crate::failure::Failure;
use crate::forward::{self, Forwarder};
use crate::hub::Hub;
use crate::replicated::Replicated;
use crate::signing::Signer;

/// One node. Cheap to clone; all clones are the same node.
#[derive(Clone)]
pub struct Node(Arc<Inner>);

struct Inner {
    replica: Replica<Replicated>,
    trays: Trays,
    hub: Arc<Hub>,
    entropy: Entropy,
    numbers: Arc<Mutex<DeskNumbers>>,
    forwarder: Forwarder,
    admin: Admin,
    signer: Signer,
    /// Where clients reach this node, as they are told.
    client_address: String,
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
    /// The leader's desk: queues and counted time.
    pub desk: DeskNumbers,
}

impl Node {
    pub(crate) fn new(
        forwarder: Forwarder,
        trays: Trays,
        hub: Arc<Hub>,
        entropy: Entropy,
        numbers: Arc<Mutex<DeskNumbers>>,
        signer: Signer,
        client_address: String,
    ) -> Node {
        let admin = Admin::default();
        let node = Node(Arc::new(Inner {
            replica: forwarder.replica().clone(),
            trays,
            hub,
            entropy,
            numbers,
            forwarder,
            admin,
            signer,
            client_address,
        }));
        node.0.replica.serve_forwarded(forward::handler(node.clone()));
        node
    }

    /// Puts a command through the log, here or at the leader, and gives what applying it answered.
    pub async fn submit(&self, command: Command) -> Result<Answer, Failure> {
        let mut encoded = Vec::with_capacity(COMMAND_BYTES_USUAL);
        tenure_wire::encode_command(&command, &mut encoded);
        match self.leader() {
            Route::Here => self.post(encoded, opens(&command)).await,
            Route::To(leader) => self.0.forwarder.command(leader, encoded).await,
            Route::Nowhere => Err(Failure::NoLeader { leader: None }),
        }
    }

    /// Puts an encoded command through this node's own desk.
    pub(crate) async fn submit_here(&self, encoded: Vec<u8>) -> Result<Answer, Failure> {
        // Another node made these bytes; what is put into the log must be readable by all.
        let command = tenure_wire::decode_command(&encoded).map_err(|error| Failure::Unknown {
            reason: format!("a forwarded command is unreadable: {error}"),
        })?;
        self.post(encoded, opens(&command)).await
    }

    async fn post(&self, encoded: Vec<u8>, opens: bool) -> Result<Answer, Failure> {
        let (reply, answer) = oneshot::channel();
        self.0.trays.put(Mail::Command {
            encoded,
            opens,
            reply: Box::new(|answer| drop(reply.send(answer))),
        });
        answer.await.unwrap_or_else(|_| Err(Failure::stopped_meanwhile()))
    }

    /// Puts a command through the log like [`submit`](Self::submit), for a caller that has many under way: the
    /// answer goes to `reply`, and nothing waits here.
    pub fn submit_to(&self, command: &Command, reply: Reply<Answer>) {
        let mut encoded = Vec::with_capacity(COMMAND_BYTES_USUAL);
        tenure_wire::encode_command(command, &mut encoded);
        match self.leader() {
            Route::Here => self.0.trays.put(Mail::Command { encoded, opens: opens(command), reply }),
            Route::To(leader) => {
                let forwarder = self.0.forwarder.clone();
                tokio::spawn(async move { reply(forwarder.command(leader, encoded).await) });
            }
            Route::Nowhere => reply(Err(Failure::NoLeader { leader: None })),
        }
    }

    /// Renews sessions, each named by its id and the number of the transmission (zero for callers that keep
    /// none); answers in order.
    pub async fn renew(&self, renewals: Vec<(SessionId, u64)>) -> Result<Vec<RenewalAnswer>, Failure> {
        // The id is checked here, against the applied state, so that the log carries only the number: ids
        // are never reused, so what is true once stays true until the session ends.
        let ids: Vec<SessionId> = renewals.iter().map(|(id, _)| *id).collect();
        let mut known = self.known(&ids);
        if known.contains(&false) {
            // This node may be behind, or deposed: only a confirmed reading may say that a session is unknown.
            self.ready().await?;
            known = self.known(&ids);
        }
        let mail: Vec<Renewal> = renewals
            .iter()
            .zip(&known)
            .filter(|(_, known)| **known)
            .map(|((id, number), _)| Renewal { session: id.number, number: *number })
            .collect();
        let answers = if mail.is_empty() { Vec::new() } else { self.renew_checked(mail).await? };
        let mut answers = answers.into_iter();
        let mut next = || answers.next().expect("one answer per renewal");
        Ok(known
            .into_iter()
            .map(|known| if known { next() } else { RenewalAnswer::UnknownSession })
            .collect())
    }

    /// Renews sessions whose ids have been checked on this node.
    pub async fn renew_checked(&self, renewals: Vec<Renewal>) -> Result<Vec<RenewalAnswer>, Failure> {
        match self.leader() {
            Route::Here => self.renew_here(renewals).await,
            Route::To(leader) => self.0.forwarder.renew(leader, renewals).await,
            Route::Nowhere => Err(Failure::NoLeader { leader: None }),
        }
    }

    /// Puts renewals through this node's own desk.
    pub(crate) async fn renew_here(&self, renewals: Vec<Renewal>) -> Result<Vec<RenewalAnswer>, Failure> {
        let (reply, answer) = oneshot::channel();
        self.0.trays.put(Mail::Renewals { renewals, reply: Box::new(|answer| drop(reply.send(answer))) });
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

    /// Whether each id names a session that has not ended, as far as this node has applied.
    pub fn known(&self, ids: &[SessionId]) -> Vec<bool> {
        let machine = self.0.replica.machine().read();
        ids.iter().map(|id| machine.machine().knows(id)).collect()
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

    /// Acquires, and if the acquire stands in line, waits for what becomes of it. While it waits, a session
    /// that it opened itself is kept alive: its caller has no way to. Dropping this undoes the wait.
    pub async fn acquire(&self, acquire: Acquire) -> Result<Answer, Failure> {
        let resources = acquire.resources.clone();
        let (implicit, number) = match &acquire.by {
            AcquireBy::Session(caller) => (false, caller.number),
            AcquireBy::Opening(_) => (true, None),
        };
        // In a task of its own, which a caller that hangs up does not take with it: between the apply and the
        // answer there is a waiter already, and what it is called is known only from the answer. So whoever
        // has the answer last undoes the wait: this caller, or the task if nobody took it.
        let (tell, told) = oneshot::channel();
        let node = self.clone();
        tokio::spawn(async move {
            let answer = node.submit(Command::Acquire(Box::new(acquire))).await;
            let undo = match &answer {
                Ok(Ok(Done::Queued { session, .. })) => {
                    Some(Undo { node: node.clone(), session: *session, number, implicit, armed: true })
                }
                _ => None,
            };
            let _ = tell.send((answer, undo));
        });
        let (answer, undo) = told.await.map_err(|_| Failure::stopped_meanwhile())?;
        let answer = answer?;
        let (Ok(Done::Queued { session, ttl, .. }), Some(mut undo)) = (&answer, undo) else {
            return Ok(answer);
        };
        let (session, ttl) = (*session, *ttl);
        // The leader has applied what it answered; a follower perhaps not yet, and there the wait would seem to be over
        // before it began. If it cannot catch up, dropping `undo` undoes the wait.
        if !self.glance(|machine| machine.waits(session.number, number, &resources)) {
            self.ready().await?;
        }
        let waiting = self.glance(|machine| Waiting::of(machine, &session, &resources));
        let mut listener = self.0.hub.listen(session.number);
        let mut renew = tokio::time::interval(ttl / 3);
        let answer = loop {
            // Looked at after listening: what happened in between shows here, what happens later is heard.
            if let Some(answer) =
                self.glance(|machine| wait_over(machine, &session, number, &resources, waiting))
            {
                break answer;
            }
            tokio::select! {
                biased;
                event = listener.next() => match event {
                    None => listener = self.0.hub.listen(session.number),
                    Some(event) => match event.kind {
                        EventKind::Granted { waited, ref resource, .. } if resources.contains(resource) => {
                            break self.glance(|machine| granted(machine, &session, &resources, waited));
                        }
                        // Whatever else happened shows in the next look at the machine.
                        _ => {}
                    },
                },
                _ = renew.tick(), if implicit => { let _ = self.renew(vec![(session, 0)]).await; }
            }
        };
        undo.armed = false;
        Ok(answer)
    }

    /// Who hears what on this node.
    pub fn hub(&self) -> &Arc<Hub> {
        &self.0.hub
    }

    /// The secret half of a new session's id.
    pub fn draw_secret(&self) -> Secret {
        Secret::new(self.0.entropy.draw().to_be_bytes())
    }

    /// What this node shows of itself.
    pub fn status(&self) -> NodeStatus {
        NodeStatus { replica: self.0.replica.status(), desk: *self.0.numbers.lock() }
    }

    /// Waits until this node shows everything that was acknowledged anywhere before this call: a leader is
    /// known and serves, and this node keeps up with it.
    pub async fn ready(&self) -> Result<(), Failure> {
        let entries = match self.leader() {
            Route::Here => return self.0.replica.read_barrier().await.map_err(Failure::from),
            Route::To(leader) => self.0.forwarder.read_index(leader).await?,
            Route::Nowhere => return Err(Failure::NoLeader { leader: None }),
        };
        let mut applied = self.0.hub.entries();
        let caught_up = applied.wait_for(|applied| *applied >= entries);
        match tokio::time::timeout(CATCH_UP_WITHIN, caught_up).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(Failure::Stopping),
            Err(_) => Err(Failure::NoLeader { leader: None }),
        }
    }

    /// A probe of the leader has come in through the client port.
    pub fn probe_arrived(&self, number: u64) {
        self.0.trays.probe_arrived(number);
    }

    /// Where clients reach this node, as they are told.
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

/// Whether a command opens a session, and so stands in the line ahead of everything else.
fn opens(command: &Command) -> bool {
    match command {
        Command::Open(_) => true,
        Command::Acquire(acquire) => matches!(acquire.by, AcquireBy::Opening(_)),
        _ => false,
    }
}

/// Since when a wait is counted, in cluster time as the machine counts it.
#[derive(Clone, Copy)]
struct Waiting {
    seen: ClusterTime,
    /// How long it had lasted when it was seen; only a wait that is far down the line is not seen at all.
    before: Duration,
}

impl Waiting {
    fn of(machine: &Machine, session: &SessionId, resources: &[ResourceName]) -> Waiting {
        let line = resources.first().and_then(|name| machine.lease(name)).map(|lease| lease.waiters);
        let own = line.into_iter().flatten().find(|waiter| waiter.session == session.number);
        Waiting { seen: machine.time(), before: own.map(|waiter| waiter.waited).unwrap_or_default() }
    }

    /// Never zero: whoever stood in line is told so.
    fn until(self, machine: &Machine) -> Duration {
        (self.before + machine.time().since(self.seen)).max(Duration::from_micros(1))
    }
}

/// What became of a wait, if it is over.
fn wait_over(
    machine: &Machine,
    session: &SessionId,
    number: Option<u64>,
    resources: &[ResourceName],
    waiting: Waiting,
) -> Option<Answer> {
    let waited = waiting.until(machine);
    let Some(grants) = machine.leases_of(session) else {
        // The session ended: its wait timed out, or it was not renewed.
        return Some(Err(held_by(machine, resources, waited)));
    };
    if pick(&grants, resources).len() == resources.len() {
        return Some(granted(machine, session, resources, waited));
    }
    let waits = machine.waits(session.number, number, resources);
    (!waits).then(|| Err(held_by(machine, resources, waited)))
}

fn granted(machine: &Machine, session: &SessionId, resources: &[ResourceName], waited: Duration) -> Answer {
    let grants = machine.leases_of(session).map(|grants| pick(&grants, resources)).unwrap_or_default();
    if grants.len() < resources.len() {
        return Err(Refusal::UnknownSession);
    }
    Ok(Done::Granted {
        grants: grants.into_iter().map(|grant| Grant { waited, ..grant }).collect(),
        opened: None,
    })
}

/// The grants of these resources, in this order.
fn pick(grants: &[Grant], resources: &[ResourceName]) -> Vec<Grant> {
    resources.iter().filter_map(|name| grants.iter().find(|grant| grant.resource == *name)).cloned().collect()
}

fn held_by(machine: &Machine, resources: &[ResourceName], waited: Duration) -> Refusal {
    let held = resources
        .iter()
        .filter_map(|name| machine.lease(name))
        .find_map(|lease| lease.holders.into_iter().next().map(|holder| (lease.resource, holder)));
    match held {
        Some((resource, by)) => Refusal::Held { resource, by: Some(Box::new(by)), waited },
        None => Refusal::Held { resource: resources[0].clone(), by: None, waited },
    }
}

/// Undoes a wait whose caller has gone away.
struct Undo {
    node: Node,
    session: SessionId,
    number: Option<u64>,
    implicit: bool,
    armed: bool,
}

impl Drop for Undo {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let by = Caller::unnumbered(self.session);
        let command = match self.number {
            _ if self.implicit => Command::Close { by, why: EndReason::Released },
            Some(number) => Command::Cancel { by, acquire: number },
            // Without a number nothing names this wait; it leaves with its session or its time-out.
            None => return,
        };
        let node = self.node.clone();
        tokio::spawn(async move {
            let _ = node.submit(command).await;
        });
    }
}
