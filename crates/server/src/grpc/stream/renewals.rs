//! The renewal stream: heartbeats of many sessions as lists of small numbers, answered only where there is
//! something to say.
//!
//! A message may name thousands of sessions; it is one request to the leader loop and one answer back. Several
//! messages may be under way; answers come in the order of the messages.

use std::sync::Arc;

use futures_util::stream::FuturesOrdered;
use futures_util::{Stream, StreamExt, stream};
use hashbrown::HashMap;
use tenure_core::{Renewal, RenewalAnswer, Revision, SessionId, SessionNumber, Standing, Verb};
use tenure_wire::proto::{RenewalAnswers, RenewalAttach, RenewalFrames};
use tenure_wire::{ApiError, grpc};
use tonic::Streaming;

use crate::access::EVERYTHING;
use crate::calls::failed;
use crate::context::CallContext;
use crate::failure::Failure;
use crate::front::Api;
use crate::in_flight::InFlight;

/// Renewals in one message.
const RENEWALS_PER_MESSAGE_MAX: usize = 65_536;
/// Messages under way on one stream; the next is read when one of them is answered.
const MESSAGES_UNDER_WAY_MAX: usize = 8;
/// Sessions attached to one stream.
const SESSIONS_MAX: usize = 1_000_000;

/// One renewal stream.
struct Renewals {
    api: Arc<Api>,
    inbound: Streaming<RenewalFrames>,
    /// What this stream may renew, and the revision of each one's last lease change as it was last sent here.
    sessions: HashMap<SessionNumber, Attached>,
    under_way: FuturesOrdered<std::pin::Pin<Box<dyn Future<Output = Batch> + Send>>>,
    inbound_ended: bool,
    /// Whose stream this is, and where it says that it keeps sessions alive.
    context: CallContext,
    in_flight: Arc<InFlight>,
}

#[derive(Clone, Copy)]
enum Attached {
    /// Proved, and the revision of its last lease change as this stream was last sent.
    Sent(Revision),
    /// The id names no session: it has ended, or never was.
    Unknown,
}

/// One message that has been answered.
struct Batch {
    number: u64,
    /// One per renewal of the message, in order.
    verdicts: Vec<Verdict>,
    renewals: Vec<Renewal>,
    answers: Result<Vec<RenewalAnswer>, ApiError>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Sent to the leader.
    Sent,
    Unknown,
    Unattached,
}

/// Serves one stream until the client ends it or the node stops.
pub fn serve(
    api: Arc<Api>,
    context: CallContext,
    inbound: Streaming<RenewalFrames>,
) -> impl Stream<Item = Result<RenewalAnswers, ApiError>> + Send {
    let renewals = Renewals {
        api,
        inbound,
        sessions: HashMap::new(),
        under_way: FuturesOrdered::new(),
        inbound_ended: false,
        in_flight: context.stream(),
        context,
    };
    stream::unfold(Some(renewals), |renewals| async move {
        let mut renewals = renewals?;
        match renewals.next().await {
            Some(Ok(answers)) => Some((Ok(answers), Some(renewals))),
            Some(Err(error)) => Some((Err(error), None)),
            None => None,
        }
    })
}

impl Renewals {
    async fn next(&mut self) -> Option<Result<RenewalAnswers, ApiError>> {
        let api = self.api.clone();
        loop {
            let room = self.under_way.len() < MESSAGES_UNDER_WAY_MAX && !self.inbound_ended;
            if !room && self.under_way.is_empty() {
                return None;
            }
            tokio::select! {
                biased;
                () = api.stopping() => return Some(Err(failed(Failure::Stopping))),
                Some(batch) = self.under_way.next(), if !self.under_way.is_empty() => return Some(Ok(self.answers(batch))),
                message = self.inbound.message(), if room => match message {
                    Ok(Some(frames)) => if let Err(error) = self.take_in(frames).await {
                        return Some(Err(error));
                    },
                    Ok(None) => self.inbound_ended = true,
                    Err(status) => return Some(Err(super::unreadable(&status))),
                },
            }
        }
    }

    async fn take_in(&mut self, frames: RenewalFrames) -> Result<(), ApiError> {
        if frames.steps.len() > RENEWALS_PER_MESSAGE_MAX {
            return Err(ApiError::invalid(format!(
                "a message has {} renewals, {RENEWALS_PER_MESSAGE_MAX} are allowed",
                frames.steps.len()
            )));
        }
        self.check_standing()?;
        let held = self.in_flight.hold(bytes_of(&frames))?;
        let (number, verdicts, renewals) = self.unpack(frames).await?;
        let node = self.api.node.clone();
        self.under_way.push_back(Box::pin(async move {
            let answers =
                if renewals.is_empty() { Ok(Vec::new()) } else { node.renew_checked(renewals.clone()).await };
            drop(held);
            Batch { number, verdicts, renewals, answers: answers.map_err(failed) }
        }));
        Ok(())
    }

    /// A message's number, what becomes of each of its renewals, and those that go to the leader.
    async fn unpack(&mut self, frames: RenewalFrames) -> Result<(u64, Vec<Verdict>, Vec<Renewal>), ApiError> {
        self.attach(&frames.attach).await?;
        let number = frames.batch;
        let all = grpc::unpack_renewals(&frames)?;
        let mut verdicts = Vec::with_capacity(all.len());
        let mut renewals = all;
        renewals.retain(|renewal| {
            let verdict = match self.sessions.get(&renewal.session) {
                Some(Attached::Sent(_)) => Verdict::Sent,
                Some(Attached::Unknown) => Verdict::Unknown,
                None => Verdict::Unattached,
            };
            verdicts.push(verdict);
            verdict == Verdict::Sent
        });
        Ok((number, verdicts, renewals))
    }

    /// A stream lives long: a credential that has ended renews nothing more on it.
    fn check_standing(&self) -> Result<(), ApiError> {
        let identity = &self.context.identity;
        if identity.credential().is_none() {
            return Ok(());
        }
        self.api.node.glance(|machine| {
            let ended = machine.enforced() && machine.standing(identity) == Standing::Ended;
            let denied = || machine.denial_of_standing(identity, Verb::Hold, EVERYTHING);
            if ended { Err(ApiError::from(&denied())) } else { Ok(()) }
        })
    }

    /// Proves sessions to this stream by their whole ids.
    async fn attach(&mut self, attach: &[RenewalAttach]) -> Result<(), ApiError> {
        if attach.is_empty() {
            return Ok(());
        }
        if self.sessions.len() + attach.len() > SESSIONS_MAX {
            return Err(ApiError::overloaded(
                "the sessions of this stream",
                std::time::Duration::from_secs(1),
            ));
        }
        let ids = attach
            .iter()
            .map(|one| {
                Ok(SessionId { number: SessionNumber::new(one.session), secret: grpc::secret(&one.secret)? })
            })
            .collect::<Result<Vec<_>, ApiError>>()?;
        let mut known = self.api.node.known(&self.context.identity, &ids);
        if known.contains(&false) {
            // This node may be behind: only a confirmed reading may say that a session is unknown.
            self.api.node.ready().await.map_err(failed)?;
            known = self.api.node.known(&self.context.identity, &ids);
        }
        for (id, known) in ids.iter().zip(known) {
            let attached = if known { Attached::Sent(Revision::default()) } else { Attached::Unknown };
            self.sessions.insert(id.number, attached);
        }
        Ok(())
    }

    /// The answer to one message: only what is out of the ordinary is spelled out.
    fn answers(&mut self, batch: Batch) -> RenewalAnswers {
        let mut message = RenewalAnswers {
            batch: batch.number,
            first: 0,
            count: batch.verdicts.len() as u32,
            ..Default::default()
        };
        let answers = match batch.answers {
            Ok(answers) => answers,
            Err(error) => {
                message.error = Some(error.into());
                return message;
            }
        };
        let ttl = |answer: &RenewalAnswer| match answer {
            RenewalAnswer::Renewed { ttl, .. } => Some(*ttl),
            RenewalAnswer::UnknownSession => None,
        };
        if let (Some(mark), Some(longest)) = (&self.context.connection, answers.iter().filter_map(ttl).max())
        {
            mark.keeps_session(longest);
        }
        let mut sent = batch.renewals.iter().zip(answers);
        let (mut unknown, mut unattached) = (Vec::new(), Vec::new());
        for (verdict, position) in batch.verdicts.iter().zip(0u32..) {
            match verdict {
                Verdict::Unattached => unattached.push(position),
                Verdict::Unknown => unknown.push(position),
                Verdict::Sent => {
                    let (renewal, answer) = sent.next().expect("one answer per renewal that was sent");
                    match &answer {
                        RenewalAnswer::UnknownSession => {
                            self.sessions.insert(renewal.session, Attached::Unknown);
                            unknown.push(position);
                        }
                        RenewalAnswer::Renewed { last_lease_revision, events, .. } => {
                            let sent =
                                self.sessions.insert(renewal.session, Attached::Sent(*last_lease_revision));
                            let same =
                                matches!(sent, Some(Attached::Sent(sent)) if sent == *last_lease_revision);
                            if !same || events.is_some() {
                                message.renewed.extend(grpc::renewed(renewal.session, &answer));
                            }
                        }
                    }
                }
            }
        }
        message.unknown = grpc::pack_positions(unknown);
        message.unattached = grpc::pack_positions(unattached);
        message
    }
}

/// About what a message takes in memory until it is answered.
fn bytes_of(frames: &RenewalFrames) -> usize {
    (frames.steps.len() + frames.numbers.len()) * size_of::<u64>()
        + frames.attach.len() * size_of::<RenewalAttach>()
}
