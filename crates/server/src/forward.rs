//! From a follower to the leader and back: any one endpoint works, because a follower forwards what it gets
//! to the leader over the peer port. Nothing is redirected, and nothing is decided here.
//!
//! Commands (`forward/commands.rs`) and renewals (`forward/renewals.rs`) travel in batches, each with
//! bounded queues of its own. `forward/handler.rs` is the leader's side.

mod commands;
mod handler;
mod renewals;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_clock::Clock;
use tenure_core::{Answer, Command, FormatVersion, ProposerLimits, RenewalAnswer};
use tenure_replica::{Agreed, ForwardError, NodeId, Replica};
use tenure_wire::{ForwardFailure, Forwarded, ForwardedReply};
use tokio::sync::oneshot;

use self::commands::CommandQueues;
use self::renewals::RenewalQueue;
use crate::failure::Failure;
use crate::leader_loop::Reply;
use crate::replicated::Replicated;

pub use self::handler::handler;
pub(crate) use self::renewals::RenewalBatch;

/// How long a renewal may be on its way. One that is older is dropped: its holder has sent another one by
/// now, and asked elsewhere, or is no more; then a follower that was stopped and wakes up must not keep
/// its lease alive from the grave.
const NET: Duration = Duration::from_secs(1);

/// Carries requests to the leader.
#[derive(Clone)]
pub struct Forwarder {
    replica: Replica<Replicated>,
    commands: Arc<CommandQueues>,
    renewals: RenewalQueue,
    agreed: Agreed,
}

/// How much a follower has sent to its leader, or is about to, without an answer yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardNumbers {
    /// Commands, opens included.
    pub commands: usize,
    /// Their bytes.
    pub command_bytes: usize,
    /// Renewals.
    pub renewals: usize,
    /// Commands sent since the start.
    pub commands_sent: u64,
    /// The messages that they were in.
    pub messages_sent: u64,
    /// Commands and calls with renewals that were refused because too many were unanswered.
    pub overloaded: u64,
}

impl Forwarder {
    /// A forwarder that takes on no more for its leader than a leader with these limits takes on for itself.
    pub fn new(
        replica: Replica<Replicated>,
        clock: Arc<dyn Clock>,
        agreed: Agreed,
        limits: &ProposerLimits,
    ) -> Forwarder {
        let commands = CommandQueues::start(&replica, limits);
        let renewals = RenewalQueue::start(&replica, clock, &agreed, limits.renewals_waiting_max);
        Forwarder { replica, commands, renewals, agreed }
    }

    /// The format version that the cluster has agreed on, as far as this node has applied.
    pub fn format(&self) -> FormatVersion {
        format(&self.agreed)
    }

    /// The replica whose leader is asked.
    pub fn replica(&self) -> &Replica<Replicated> {
        &self.replica
    }

    /// Puts a command, encoded in this version, through the leader's log, together with whatever else goes
    /// there now. The answer goes to `reply`.
    pub fn command(
        &self,
        leader: NodeId,
        version: FormatVersion,
        encoded: Vec<u8>,
        command: &Command,
        reply: Reply<Answer>,
    ) {
        self.commands.put(leader, version, encoded, command, reply);
    }

    /// Puts renewals through the leader's log, together with whatever else goes there now.
    pub(crate) async fn renew(
        &self,
        leader: NodeId,
        batch: RenewalBatch,
    ) -> Result<Vec<RenewalAnswer>, Failure> {
        let (reply, answer) = oneshot::channel();
        self.renewals.put(leader, batch, reply)?;
        answer.await.unwrap_or(Err(Failure::Stopping))
    }

    /// Has another node do something for an operator; the answer as it travels.
    pub async fn administer(
        &self,
        node: NodeId,
        request: Vec<u8>,
        within: Duration,
    ) -> Result<Vec<u8>, Failure> {
        match ask(&self.replica, node, self.format(), &Forwarded::Administer(request), within).await? {
            ForwardedReply::Administered(answer) => Ok(answer),
            other => Err(failure(other)),
        }
    }

    /// How far a reader must have applied to see everything acknowledged before this call.
    pub async fn read_index(&self, leader: NodeId) -> Result<u64, Failure> {
        match ask(&self.replica, leader, self.format(), &Forwarded::ReadIndex, NET).await? {
            ForwardedReply::ReadIndex(entries) => Ok(entries),
            other => Err(failure(other)),
        }
    }

    /// What is unanswered now, and what was refused.
    pub fn numbers(&self) -> ForwardNumbers {
        let commands = self.commands.numbers();
        let (renewals, refused) = self.renewals.numbers();
        ForwardNumbers { renewals, overloaded: commands.overloaded + refused, ..commands }
    }
}

/// What was agreed on, as this build knows it: its machine has applied that.
fn format(agreed: &Agreed) -> FormatVersion {
    agreed.get().try_into().ok().and_then(FormatVersion::known).unwrap_or(FormatVersion::OLDEST)
}

async fn ask(
    replica: &Replica<Replicated>,
    leader: NodeId,
    version: FormatVersion,
    request: &Forwarded,
    within: Duration,
) -> Result<ForwardedReply, Failure> {
    let request = Bytes::from(tenure_wire::encode_forwarded(version, request));
    let reply = replica.forward(leader, request, within).await.map_err(|error| match error {
        ForwardError::Unreachable(node) => Failure::NoLeader { leader: Some(node) },
        ForwardError::NoAnswer(node) => no_answer(node),
    })?;
    tenure_wire::decode_forwarded_reply(FormatVersion::NEWEST, &reply)
        .map_err(|error| Failure::Unknown { reason: error.to_string() })
}

fn no_answer(node: NodeId) -> Failure {
    Failure::Unknown { reason: format!("node {node}, which leads, did not answer") }
}

/// Why a reply is not the one that was asked for.
fn failure(reply: ForwardedReply) -> Failure {
    match reply {
        ForwardedReply::Failed(failure) => failure.into(),
        _ => Failure::Unknown { reason: "the leader answered something else than was asked".into() },
    }
}

impl From<ForwardFailure> for Failure {
    fn from(failure: ForwardFailure) -> Failure {
        match failure {
            ForwardFailure::NoLeader => Failure::NoLeader { leader: None },
            ForwardFailure::Overloaded(millis) => {
                Failure::Overloaded { retry_after: Duration::from_millis(millis) }
            }
            ForwardFailure::Unknown(reason) => Failure::Unknown { reason },
            ForwardFailure::Stopping => Failure::Stopping,
        }
    }
}

impl From<Failure> for ForwardFailure {
    fn from(failure: Failure) -> ForwardFailure {
        match failure {
            Failure::NoLeader { .. } => ForwardFailure::NoLeader,
            Failure::Overloaded { retry_after } => ForwardFailure::Overloaded(retry_after.as_millis() as u64),
            Failure::Unknown { reason } => ForwardFailure::Unknown(reason),
            Failure::Stopping => ForwardFailure::Stopping,
            // Checked where the command came in, so it does not come up at the leader.
            failure @ Failure::NeedsUpgrade { .. } => ForwardFailure::Unknown(failure.to_string()),
        }
    }
}
