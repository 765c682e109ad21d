//! From a follower to the leader and back: any one endpoint works, because what arrives at a follower is
//! carried to the leader over the peer port. Nothing is redirected, and nothing is decided here.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tenure_core::{Answer, Renewal, RenewalAnswer};
use tenure_replica::{ForwardError, ForwardHandler, NodeId, Replica};
use tenure_wire::{Forwarded, ForwardedReply};
use tokio::sync::{mpsc, oneshot};

use crate::failure::Failure;
use crate::node::Node;
use crate::replicated::Replicated;

/// How long the leader may take to answer. A renewal that is older than this is dropped: its holder has
/// sent another one by now, and asked elsewhere.
const NET: Duration = Duration::from_secs(1);
/// A command may wait for a slow disk; its caller decides when to give up.
const COMMAND_WITHIN: Duration = Duration::from_secs(10);
/// Renewals in one forwarded message.
const RENEWALS_PER_MESSAGE_MAX: usize = 65_536;
/// Callers that may wait for the next message.
const CALLERS_WAITING_MAX: usize = 65_536;

/// Carries requests to the leader.
#[derive(Clone)]
pub struct Forwarder {
    replica: Replica<Replicated>,
    renewals: mpsc::Sender<Parcel>,
}

/// Renewals of one caller on their way.
struct Parcel {
    renewals: Vec<Renewal>,
    to: NodeId,
    reply: oneshot::Sender<Result<Vec<RenewalAnswer>, Failure>>,
}

impl Forwarder {
    pub fn new(replica: Replica<Replicated>) -> Forwarder {
        let (renewals, parcels) = mpsc::channel(CALLERS_WAITING_MAX);
        tokio::spawn(carry_renewals(replica.clone(), parcels));
        Forwarder { replica, renewals }
    }

    /// Puts an encoded command through the leader's log.
    pub async fn command(&self, leader: NodeId, encoded: Vec<u8>) -> Result<Answer, Failure> {
        match ask(&self.replica, leader, &Forwarded::Command(encoded), COMMAND_WITHIN).await? {
            ForwardedReply::Answer(answer) => Ok(*answer),
            other => Err(failure(other)),
        }
    }

    /// Puts renewals through the leader's log, together with whatever else goes there now.
    pub async fn renew(&self, leader: NodeId, renewals: Vec<Renewal>) -> Result<Vec<RenewalAnswer>, Failure> {
        let (reply, answer) = oneshot::channel();
        match self.renewals.try_send(Parcel { renewals, to: leader, reply }) {
            Ok(()) => answer.await.unwrap_or(Err(Failure::Stopping)),
            Err(mpsc::error::TrySendError::Full(_)) => Err(Failure::overloaded()),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Failure::Stopping),
        }
    }

    /// Has another node do something for an operator; the answer as it travels.
    pub async fn administer(
        &self,
        node: NodeId,
        request: Vec<u8>,
        within: Duration,
    ) -> Result<Vec<u8>, Failure> {
        match ask(&self.replica, node, &Forwarded::Administer(request), within).await? {
            ForwardedReply::Administered(answer) => Ok(answer),
            other => Err(failure(other)),
        }
    }

    /// How far a reader must have applied to see everything acknowledged before this call.
    pub async fn read_index(&self, leader: NodeId) -> Result<u64, Failure> {
        match ask(&self.replica, leader, &Forwarded::ReadIndex, NET).await? {
            ForwardedReply::ReadIndex(entries) => Ok(entries),
            other => Err(failure(other)),
        }
    }
}

/// Takes everything that has come together while the last message was being made into the next one.
async fn carry_renewals(replica: Replica<Replicated>, mut parcels: mpsc::Receiver<Parcel>) {
    while let Some(first) = parcels.recv().await {
        let to = first.to;
        let mut message = first.renewals;
        let mut waiting = vec![(message.len(), first.reply)];
        while message.len() < RENEWALS_PER_MESSAGE_MAX
            && let Ok(parcel) = parcels.try_recv()
        {
            if parcel.to != to {
                // The leader changed between two callers; the later one asks again.
                let _ = parcel.reply.send(Err(Failure::NoLeader { leader: None }));
                continue;
            }
            waiting.push((parcel.renewals.len(), parcel.reply));
            message.extend(parcel.renewals);
        }
        let replica = replica.clone();
        tokio::spawn(async move {
            let many = message.len();
            match ask(&replica, to, &Forwarded::Renewals(message), NET).await {
                Ok(ForwardedReply::Renewals(answers)) if answers.len() == many => {
                    let mut answers = answers.into_iter();
                    for (many, reply) in waiting {
                        let _ = reply.send(Ok(answers.by_ref().take(many).collect()));
                    }
                }
                outcome => {
                    let failure = outcome.map_or_else(|failure| failure, failure);
                    for (_, reply) in waiting {
                        let _ = reply.send(Err(failure.clone()));
                    }
                }
            }
        });
    }
}

async fn ask(
    replica: &Replica<Replicated>,
    leader: NodeId,
    request: &Forwarded,
    within: Duration,
) -> Result<ForwardedReply, Failure> {
    let request = Bytes::from(tenure_wire::encode_forwarded(request));
    let reply = replica.forward(leader, request, within).await.map_err(|error| match error {
        ForwardError::Unreachable(node) => Failure::NoLeader { leader: Some(node) },
        ForwardError::NoAnswer(node) => {
            Failure::Unknown { reason: format!("node {node}, which leads, did not answer") }
        }
    })?;
    tenure_wire::decode_forwarded_reply(&reply)
        .map_err(|error| Failure::Unknown { reason: error.to_string() })
}

fn failure(reply: ForwardedReply) -> Failure {
    match reply {
        ForwardedReply::NoLeader => Failure::NoLeader { leader: None },
        ForwardedReply::Overloaded(millis) => {
            Failure::Overloaded { retry_after: Duration::from_millis(millis) }
        }
        ForwardedReply::Unknown(reason) => Failure::Unknown { reason },
        ForwardedReply::Stopping => Failure::Stopping,
        _ => Failure::Unknown { reason: "the leader answered something else than was asked".into() },
    }
}

/// Answers what other nodes forward to this one.
struct Desked(Node);

impl ForwardHandler for Desked {
    fn handle(&self, _from: NodeId, request: Bytes) -> BoxFuture<'static, Bytes> {
        let node = self.0.clone();
        async move {
            let reply = match tenure_wire::decode_forwarded(&request) {
                Ok(request) => answer(&node, request).await,
                Err(error) => ForwardedReply::Unknown(error.to_string()),
            };
            Bytes::from(tenure_wire::encode_forwarded_reply(&reply))
        }
        .boxed()
    }
}

/// Answers here or not at all: a request is forwarded once, so that two nodes that each believe the other
/// leads do not pass it to and fro.
async fn answer(node: &Node, request: Forwarded) -> ForwardedReply {
    let answered = match request {
        Forwarded::Command(encoded) => {
            node.submit_here(encoded).await.map(|answer| ForwardedReply::Answer(Box::new(answer)))
        }
        Forwarded::Renewals(renewals) => node.renew_here(renewals).await.map(ForwardedReply::Renewals),
        Forwarded::ReadIndex => node.read_index_here().await.map(ForwardedReply::ReadIndex),
        Forwarded::Administer(request) => {
            Ok(ForwardedReply::Administered(node.administer_here(&request).await))
        }
    };
    answered.unwrap_or_else(|failure| match failure {
        Failure::NoLeader { .. } => ForwardedReply::NoLeader,
        Failure::Overloaded { retry_after } => ForwardedReply::Overloaded(retry_after.as_millis() as u64),
        Failure::Unknown { reason } => ForwardedReply::Unknown(reason),
        Failure::Stopping => ForwardedReply::Stopping,
    })
}

/// The handler for [`Replica::serve_forwarded`].
pub fn handler(node: Node) -> Arc<dyn ForwardHandler> {
    Arc::new(Desked(node))
}
