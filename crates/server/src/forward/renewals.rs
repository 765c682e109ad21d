//! Renewals on their way from a follower to its leader: whatever gathers while one message is
//! being made goes into the next one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tenure_clock::Clock;
use tenure_core::{FormatVersion, Moment, Renewal, RenewalAnswer};
use tenure_replica::{Agreed, NodeId, Replica};
use tenure_wire::{Forwarded, ForwardedReply};
use tokio::sync::{mpsc, oneshot};

use super::{NET, ask, failure, format};
use crate::failure::Failure;
use crate::replicated::Replicated;

/// Renewals in one forwarded message.
const RENEWALS_PER_MESSAGE_MAX: usize = 65_536;
/// Callers that may wait for the next message.
const CALLERS_WAITING_MAX: usize = 65_536;

/// Where a caller waits.
pub(super) type Replier = oneshot::Sender<Result<Vec<RenewalAnswer>, Failure>>;

/// The queue of renewals for the leader. It is theirs alone: nothing else that is forwarded has one refused.
#[derive(Clone)]
pub(super) struct RenewalQueue {
    parcels: mpsc::Sender<Parcel>,
    clock: Arc<dyn Clock>,
    counts: Arc<Counts>,
    unanswered_max: usize,
}

#[derive(Default)]
struct Counts {
    /// Renewals queued, or sent and not answered.
    unanswered: AtomicUsize,
    /// Calls that were refused.
    refused: AtomicU64,
}

/// Renewals that count as unanswered while this exists.
struct Counted {
    counts: Arc<Counts>,
    many: usize,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.counts.unanswered.fetch_sub(self.many, Relaxed);
    }
}

/// Renewals of sessions whose ids this node has checked, and what shows the leader that it knows them.
pub(crate) struct RenewalBatch {
    pub renewals: Vec<Renewal>,
    /// One for each, in the same order; none under format version 1.
    pub proofs: Vec<u64>,
}

impl RenewalBatch {
    /// As format version 1 has them.
    pub fn unproved(renewals: Vec<Renewal>) -> RenewalBatch {
        RenewalBatch { renewals, proofs: Vec::new() }
    }

    fn is_proved(&self) -> bool {
        !self.proofs.is_empty()
    }

    /// The message, and the version that it is written in.
    fn request(self, agreed: FormatVersion) -> (FormatVersion, Forwarded) {
        let RenewalBatch { renewals, proofs } = self;
        if proofs.is_empty() {
            // Whatever was agreed on meanwhile: the version says that there are no proofs.
            return (FormatVersion::V1, Forwarded::Renewals(renewals));
        }
        (agreed.max(FormatVersion::V2), Forwarded::ProvedRenewals { renewals, proofs })
    }
}

/// Renewals of one caller on their way.
struct Parcel {
    batch: RenewalBatch,
    received: Moment,
    to: NodeId,
    reply: Replier,
    counted: Counted,
}

impl RenewalQueue {
    /// A queue for so many renewals (16 bytes each), and the task that empties it.
    pub fn start(
        replica: &Replica<Replicated>,
        clock: Arc<dyn Clock>,
        agreed: &Agreed,
        unanswered_max: usize,
    ) -> RenewalQueue {
        let (queue, parcels) = RenewalQueue::new(clock.clone(), unanswered_max);
        tokio::spawn(carry(replica.clone(), clock, agreed.clone(), parcels));
        queue
    }

    fn new(clock: Arc<dyn Clock>, unanswered_max: usize) -> (RenewalQueue, mpsc::Receiver<Parcel>) {
        let (sender, parcels) = mpsc::channel(CALLERS_WAITING_MAX);
        (RenewalQueue { parcels: sender, clock, counts: Arc::default(), unanswered_max }, parcels)
    }

    /// Queues renewals. An error if nothing of them will be sent.
    pub fn put(&self, to: NodeId, batch: RenewalBatch, reply: Replier) -> Result<(), Failure> {
        let many = batch.renewals.len();
        let before = self.counts.unanswered.fetch_add(many, Relaxed);
        let counted = Counted { counts: self.counts.clone(), many };
        let parcel = Parcel { batch, received: self.clock.now(), to, reply, counted };
        let queued = match before + many > self.unanswered_max && before > 0 {
            true => Err(mpsc::error::TrySendError::Full(parcel)),
            false => self.parcels.try_send(parcel),
        };
        queued.map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                self.counts.refused.fetch_add(1, Relaxed);
                Failure::overloaded()
            }
            mpsc::error::TrySendError::Closed(_) => Failure::Stopping,
        })
    }

    /// How many are unanswered, and how many calls were refused.
    pub fn numbers(&self) -> (usize, u64) {
        (self.counts.unanswered.load(Relaxed), self.counts.refused.load(Relaxed))
    }
}

/// Carries renewals, everything that came together while the last message was being made in the next one.
async fn carry(
    replica: Replica<Replicated>,
    clock: Arc<dyn Clock>,
    agreed: Agreed,
    mut parcels: mpsc::Receiver<Parcel>,
) {
    while let Some(first) = parcels.recv().await {
        let waiting = std::iter::once(first).chain(std::iter::from_fn(|| parcels.try_recv().ok()));
        let Some(load) = Load::pack(waiting, clock.now()) else { continue };
        let (replica, agreed) = (replica.clone(), format(&agreed));
        tokio::spawn(async move {
            let (version, request) = load.batch.request(agreed);
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
    batch: RenewalBatch,
    /// What is left until the oldest of them is too old.
    within: Duration,
    callers: WaitingCallers,
}

/// Who waits for a load's answers, in its order, and for how many.
struct WaitingCallers(Vec<(Counted, Replier)>);

impl Load {
    /// Packs as much as one message takes for one leader. Whoever waited too long gets an error now, and
    /// nothing of his is sent.
    fn pack(mut parcels: impl Iterator<Item = Parcel>, now: Moment) -> Option<Load> {
        let mut load: Option<Load> = None;
        while load.as_ref().is_none_or(|load| load.batch.renewals.len() < RENEWALS_PER_MESSAGE_MAX)
            && let Some(parcel) = parcels.next()
        {
            let left = NET.saturating_sub(now.longest_since(parcel.received));
            if left.is_zero() {
                let _ = parcel.reply.send(Err(Failure::overloaded()));
                continue;
            }
            let load = load.get_or_insert_with(|| Load {
                to: parcel.to,
                batch: RenewalBatch::unproved(Vec::new()),
                within: left,
                callers: WaitingCallers(Vec::new()),
            });
            let other_form =
                !load.batch.renewals.is_empty() && parcel.batch.is_proved() != load.batch.is_proved();
            if parcel.to != load.to || other_form {
                // The leader or the format version changed between two callers; the later one asks again.
                let _ = parcel.reply.send(Err(Failure::NoLeader { leader: None }));
                continue;
            }
            load.within = load.within.min(left);
            load.callers.0.push((parcel.counted, parcel.reply));
            load.batch.renewals.extend(parcel.batch.renewals);
            load.batch.proofs.extend(parcel.batch.proofs);
        }
        load
    }
}

impl WaitingCallers {
    /// Gives each caller his part of the answers.
    fn answer(self, outcome: Result<Vec<RenewalAnswer>, Failure>) {
        let expected: usize = self.0.iter().map(|(counted, _)| counted.many).sum();
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
                for (counted, reply) in self.0 {
                    let _ = reply.send(Ok(answers.by_ref().take(counted.many).collect()));
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
        let batch = RenewalBatch::unproved(vec![Renewal { session: SessionNumber::new(session), number: 1 }]);
        let counts = Arc::new(Counts { unanswered: AtomicUsize::new(1), refused: AtomicU64::new(0) });
        let counted = Counted { counts, many: 1 };
        (Parcel { batch, received, to, reply, counted }, answered)
    }

    #[test]
    fn a_renewal_older_than_the_network_is_answered_and_not_sent() {
        let (old, mut old_answer) = parcel(1, 2, at(0));
        let (young, mut young_answer) = parcel(2, 2, at(700));
        let load = Load::pack([old, young].into_iter(), at(1_000)).expect("the young one goes");
        assert_eq!(load.batch.renewals, [Renewal { session: SessionNumber::new(2), number: 1 }]);
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
        assert_eq!((load.to, load.batch.renewals.len()), (2, 1));
        assert!(matches!(other_answer.try_recv(), Ok(Err(Failure::NoLeader { .. }))));
    }

    #[test]
    fn too_few_answers_are_nobodys() {
        let (first, mut answer) = parcel(1, 2, at(0));
        let load = Load::pack([first].into_iter(), at(1)).expect("it goes");
        load.callers.answer(Ok(Vec::new()));
        assert!(matches!(answer.try_recv(), Ok(Err(Failure::Unknown { .. }))));
    }

    #[tokio::test]
    async fn renewals_are_bounded_by_their_own_number() {
        let clock = Arc::new(tenure_clock::SystemClock);
        let (queue, mut parcels) = RenewalQueue::new(clock, 3);
        let put = |many: u64| {
            let renewal = |number| Renewal { session: SessionNumber::new(number), number: 1 };
            let batch = RenewalBatch::unproved((0..many).map(renewal).collect());
            queue.put(2, batch, oneshot::channel().0)
        };
        assert_eq!((put(2), put(2)), (Ok(()), Err(Failure::overloaded())));
        assert_eq!((put(1), queue.numbers()), (Ok(()), (3, 1)));
        let taken: Vec<Parcel> = std::iter::from_fn(|| parcels.try_recv().ok()).collect();
        assert_eq!(put(1), Err(Failure::overloaded()), "what was sent and has no answer counts");
        drop(taken);
        assert_eq!((put(9), queue.numbers().0), (Ok(()), 9), "an empty queue takes any number");
    }
}
