//! From a follower to the leader and back: any one endpoint works, because what arrives at a follower is
//! carried to the leader over the peer port. Nothing is redirected, and nothing is decided here.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tenure_clock::Clock;
use tenure_core::{Answer, FormatVersion, Moment, Renewal, RenewalAnswer};
use tenure_replica::{Agreed, ForwardError, ForwardHandler, NodeId, Replica};
use tenure_wire::{Forwarded, ForwardedReply};
use tokio::sync::{mpsc, oneshot};

use crate::failure::Failure;
use crate::node::Node;
use crate::replicated::Replicated;

/// How long a renewal may be on its way. One that is older is dropped: its holder has sent another one by
/// now, and asked elsewhere, or is no more; then a follower that was stopped and wakes up must not keep
/// its lease alive from the grave.
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
    clock: Arc<dyn Clock>,
    renewals: mpsc::Sender<Parcel>,
    agreed: Agreed,
}

/// Where a caller waits.
type Replier = oneshot::Sender<Result<Vec<RenewalAnswer>, Failure>>;

/// Renewals of one caller on their way.
struct Parcel {
    renewals: Vec<Renewal>,
    received: Moment,
    to: NodeId,
    reply: Replier,
}

impl Forwarder {
    pub fn new(replica: Replica<Replicated>, clock: Arc<dyn Clock>, agreed: Agreed) -> Forwarder {
        let (renewals, parcels) = mpsc::channel(CALLERS_WAITING_MAX);
        tokio::spawn(carry_renewals(replica.clone(), clock.clone(), agreed.clone(), parcels));
        Forwarder { replica, clock, renewals, agreed }
    }

    /// The format version that the cluster has agreed on, as far as this node has applied.
    pub fn format(&self) -> FormatVersion {
        format(&self.agreed)
    }

    /// The replica whose leader is asked.
    pub fn replica(&self) -> &Replica<Replicated> {
        &self.replica
    }

    /// Puts an encoded command through the leader's log.
    pub async fn command(
        &self,
        leader: NodeId,
        version: FormatVersion,
        encoded: Vec<u8>,
    ) -> Result<Answer, Failure> {
        match ask(&self.replica, leader, version, &Forwarded::Command(encoded), COMMAND_WITHIN).await? {
            ForwardedReply::Answer(answer) => Ok(*answer),
            other => Err(failure(other)),
        }
    }

    /// Puts renewals through the leader's log, together with whatever else goes there now.
    pub async fn renew(&self, leader: NodeId, renewals: Vec<Renewal>) -> Result<Vec<RenewalAnswer>, Failure> {
        let (reply, answer) = oneshot::channel();
        let received = self.clock.now();
        match self.renewals.try_send(Parcel { renewals, received, to: leader, reply }) {
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
}

/// Carries renewals, everything that came together while the last message was being made in the next one.
async fn carry_renewals(
    replica: Replica<Replicated>,
    clock: Arc<dyn Clock>,
    agreed: Agreed,
    mut parcels: mpsc::Receiver<Parcel>,
) {
    while let Some(first) = parcels.recv().await {
        let waiting = std::iter::once(first).chain(std::iter::from_fn(|| parcels.try_recv().ok()));
        let Some(load) = Load::pack(waiting, clock.now()) else { continue };
        let (replica, version) = (replica.clone(), format(&agreed));
        tokio::spawn(async move {
            let request = Forwarded::Renewals(load.renewals);
            let outcome = match ask(&replica, load.to, version, &request, load.within).await {
                Ok(ForwardedReply::Renewals(answers)) => Ok(answers),
                Ok(other) => Err(failure(other)),
                Err(failure) => Err(failure),
            };
            load.callers.answer(outcome);
        });
    }
}

/// One message of renewals to the leader.
struct Load {
    to: NodeId,
    renewals: Vec<Renewal>,
    /// What is left until the oldest of them is too old.
    within: Duration,
    callers: WaitingCallers,
}

/// Who waits for a load's answers, in its order, and for how many.
struct WaitingCallers(Vec<(usize, Replier)>);

impl Load {
    /// Packs as much as one message takes for one leader. Whoever waited too long gets an error now, and
    /// nothing of his is sent.
    fn pack(mut parcels: impl Iterator<Item = Parcel>, now: Moment) -> Option<Load> {
        let mut load: Option<Load> = None;
        while load.as_ref().is_none_or(|load| load.renewals.len() < RENEWALS_PER_MESSAGE_MAX)
            && let Some(parcel) = parcels.next()
        {
            let left = NET.saturating_sub(now.longest_since(parcel.received));
            if left.is_zero() {
                let _ = parcel.reply.send(Err(Failure::overloaded()));
                continue;
            }
            let load = load.get_or_insert_with(|| Load {
                to: parcel.to,
                renewals: Vec::new(),
                within: left,
                callers: WaitingCallers(Vec::new()),
            });
            if parcel.to != load.to {
                // The leader changed between two callers; the later one asks again.
                let _ = parcel.reply.send(Err(Failure::NoLeader { leader: None }));
                continue;
            }
            load.within = load.within.min(left);
            load.callers.0.push((parcel.renewals.len(), parcel.reply));
            load.renewals.extend(parcel.renewals);
        }
        load
    }
}

impl WaitingCallers {
    /// Gives each caller his part of the answers.
    fn answer(self, outcome: Result<Vec<RenewalAnswer>, Failure>) {
        let expected: usize = self.0.iter().map(|(many, _)| many).sum();
        let outcome = outcome.and_then(|answers| match answers.len() == expected {
            true => Ok(answers),
            false => {
                let reason = format!("{} answers to {expected} renewals", answers.len());
                Err(Failure::Unknown { reason })
            }
        });
        match outcome {
            Ok(answers) => {
                let mut answers = answers.into_iter();
                for (many, reply) in self.0 {
                    let _ = reply.send(Ok(answers.by_ref().take(many).collect()));
                }
            }
            Err(failure) => {
                for (_, reply) in self.0 {
                    let _ = reply.send(Err(failure.clone()));
                }
            }
        }
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
        ForwardError::NoAnswer(node) => {
            Failure::Unknown { reason: format!("node {node}, which leads, did not answer") }
        }
    })?;
    tenure_wire::decode_forwarded_reply(FormatVersion::NEWEST, &reply)
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
struct LocalHandler(Node);

impl ForwardHandler for LocalHandler {
    fn handle(&self, _from: NodeId, request: Bytes) -> BoxFuture<'static, Bytes> {
        let node = self.0.clone();
        async move {
            let reply = match tenure_wire::decode_forwarded(FormatVersion::NEWEST, &request) {
                Ok((version, request)) => answer(&node, version, request).await,
                Err(error) => ForwardedReply::Unknown(error.to_string()),
            };
            Bytes::from(tenure_wire::encode_forwarded_reply(node.format(), &reply))
        }
        .boxed()
    }
}

/// Answers here or not at all: a request is forwarded once, so that two nodes that each believe the other
/// leads do not pass it to and fro.
async fn answer(node: &Node, version: FormatVersion, request: Forwarded) -> ForwardedReply {
    let answered = match request {
        Forwarded::Command(encoded) => {
            node.submit_here(version, encoded).await.map(|answer| ForwardedReply::Answer(Box::new(answer)))
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
        // Checked where the command came in, so it does not come up here.
        failure @ Failure::NeedsUpgrade { .. } => ForwardedReply::Unknown(failure.to_string()),
    })
}

/// The handler for [`Replica::serve_forwarded`].
pub fn handler(node: Node) -> Arc<dyn ForwardHandler> {
    Arc::new(LocalHandler(node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::SessionNumber;

    fn at(millis: u64) -> Moment {
        let reading = Duration::from_millis(millis);
        Moment::from_readings(reading, reading)
    }

    type Answered = oneshot::Receiver<Result<Vec<RenewalAnswer>, Failure>>;

    fn parcel(session: u64, to: NodeId, received: Moment) -> (Parcel, Answered) {
        let (reply, answered) = oneshot::channel();
        let renewals = vec![Renewal { session: SessionNumber::new(session), number: 1 }];
        (Parcel { renewals, received, to, reply }, answered)
    }

    #[test]
    fn a_renewal_older_than_the_network_is_answered_and_not_sent() {
        let (old, mut old_answer) = parcel(1, 2, at(0));
        let (young, mut young_answer) = parcel(2, 2, at(700));
        let load = Load::pack([old, young].into_iter(), at(1_000)).expect("the young one goes");
        assert_eq!(load.renewals, [Renewal { session: SessionNumber::new(2), number: 1 }]);
        assert_eq!(load.within, Duration::from_millis(700), "what is left for the young one");
        assert!(matches!(old_answer.try_recv(), Ok(Err(Failure::Overloaded { .. }))), "nothing was applied");
        assert!(young_answer.try_recv().is_err(), "its answer is still to come");
    }

    #[test]
    fn a_follower_that_wakes_up_sends_nothing_of_before() {
        let (old, mut answer) = parcel(1, 2, at(0));
        assert!(Load::pack([old].into_iter(), at(40_000)).is_none());
        assert!(matches!(answer.try_recv(), Ok(Err(Failure::Overloaded { .. }))));
    }

    #[test]
    fn a_message_goes_to_one_leader() {
        let (first, _first_answer) = parcel(1, 2, at(0));
        let (other, mut other_answer) = parcel(2, 3, at(0));
        let load = Load::pack([first, other].into_iter(), at(1)).expect("the first goes");
        assert_eq!((load.to, load.renewals.len()), (2, 1));
        assert!(matches!(other_answer.try_recv(), Ok(Err(Failure::NoLeader { .. }))));
    }

    #[test]
    fn too_few_answers_are_nobodys() {
        let (first, mut answer) = parcel(1, 2, at(0));
        let load = Load::pack([first].into_iter(), at(1)).expect("it goes");
        load.callers.answer(Ok(Vec::new()));
        assert!(matches!(answer.try_recv(), Ok(Err(Failure::Unknown { .. }))));
    }
}
