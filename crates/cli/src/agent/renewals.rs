//! The renewal stream of one client: the same that a node serves, answered from a node's answers.
//!
//! It decides only what has to be sent in full: a client takes an empty answer to mean the revision that it
//! last received on *this* stream, and the agent's own stream to the node may have received another one.

use std::collections::HashMap;

use futures_util::stream::FuturesUnordered;
use futures_util::{Stream, StreamExt, stream};
use tenure_client::proto;
use tenure_core::{Renewal, Secret, SessionId, SessionNumber};
use tenure_wire::{ApiError, grpc};
use tonic::{Status, Streaming};

use super::upstream::{Upstream, Verdict};

/// Messages of one client under way; the next is read when one of them is answered.
const MESSAGES_UNDER_WAY_MAX: usize = 8;
/// Renewals in one message, as many as a node takes.
const RENEWALS_PER_MESSAGE_MAX: usize = 65_536;

struct Renewals {
    inbound: Streaming<proto::RenewalFrames>,
    inbound_ended: bool,
    upstream: Upstream,
    sessions: HashMap<SessionNumber, Attached>,
    under_way: FuturesUnordered<std::pin::Pin<Box<dyn Future<Output = Batch> + Send>>>,
}

struct Attached {
    secret: Secret,
    /// The revision of its last lease change as last sent to this client.
    last_sent: u64,
}

struct Batch {
    number: u64,
    /// `None` for a session that is not attached.
    renewals: Vec<(Renewal, bool)>,
    verdicts: Result<Vec<Verdict>, ApiError>,
}

/// Serves one client's stream until it ends.
pub fn serve(
    inbound: Streaming<proto::RenewalFrames>,
    upstream: Upstream,
) -> impl Stream<Item = Result<proto::RenewalAnswers, Status>> + Send {
    let renewals = Renewals {
        inbound,
        inbound_ended: false,
        upstream,
        sessions: HashMap::new(),
        under_way: FuturesUnordered::new(),
    };
    stream::unfold(Some(renewals), |renewals| async move {
        let mut renewals = renewals?;
        match renewals.next().await {
            Some(Ok(answers)) => Some((Ok(answers), Some(renewals))),
            Some(Err(error)) => Some((Err(super::status(&error)), None)),
            None => None,
        }
    })
}

impl Drop for Renewals {
    fn drop(&mut self) {
        self.upstream.forget(self.sessions.keys().copied().collect());
    }
}

impl Renewals {
    async fn next(&mut self) -> Option<Result<proto::RenewalAnswers, ApiError>> {
        loop {
            let room = self.under_way.len() < MESSAGES_UNDER_WAY_MAX && !self.inbound_ended;
            if !room && self.under_way.is_empty() {
                return None;
            }
            tokio::select! {
                biased;
                Some(batch) = self.under_way.next(), if !self.under_way.is_empty() => return Some(Ok(self.answers(batch))),
                message = self.inbound.message(), if room => match message {
                    Ok(Some(frames)) => if let Err(error) = self.take_in(&frames) {
                        return Some(Err(error));
                    },
                    Ok(None) => self.inbound_ended = true,
                    Err(_) => return None,
                },
            }
        }
    }

    fn take_in(&mut self, frames: &proto::RenewalFrames) -> Result<(), ApiError> {
        if frames.steps.len() > RENEWALS_PER_MESSAGE_MAX {
            return Err(ApiError::invalid(format!(
                "a message has {} renewals, {RENEWALS_PER_MESSAGE_MAX} are allowed",
                frames.steps.len()
            )));
        }
        for attach in &frames.attach {
            let attached = Attached { secret: grpc::secret(&attach.secret)?, last_sent: 0 };
            self.sessions.insert(SessionNumber::new(attach.session), attached);
        }
        let mut asked = Vec::new();
        let mut renewals = Vec::new();
        for renewal in grpc::unpack_renewals(frames)? {
            let attached = self.sessions.get(&renewal.session);
            asked.extend(attached.map(|attached| {
                (SessionId { number: renewal.session, secret: attached.secret }, renewal.number)
            }));
            renewals.push((renewal, attached.is_some()));
        }
        let upstream = self.upstream.clone();
        let number = frames.batch;
        self.under_way.push(Box::pin(async move {
            let verdicts = if asked.is_empty() { Ok(Vec::new()) } else { upstream.renew(asked).await };
            Batch { number, renewals, verdicts }
        }));
        Ok(())
    }

    fn answers(&mut self, batch: Batch) -> proto::RenewalAnswers {
        let mut message = proto::RenewalAnswers {
            batch: batch.number,
            first: 0,
            count: batch.renewals.len() as u32,
            ..Default::default()
        };
        let verdicts = match batch.verdicts {
            Ok(verdicts) => verdicts,
            Err(error) => {
                message.error = Some(error.into());
                return message;
            }
        };
        let mut verdicts = verdicts.into_iter();
        let (mut unknown, mut unattached) = (Vec::new(), Vec::new());
        for ((renewal, sent), position) in batch.renewals.into_iter().zip(0u32..) {
            let verdict = if sent { verdicts.next().unwrap_or(Verdict::Nothing) } else { Verdict::Nothing };
            match verdict {
                Verdict::Unknown => {
                    self.sessions.remove(&renewal.session);
                    unknown.push(position);
                }
                // The client proves it again and asks again.
                Verdict::Nothing => unattached.push(position),
                Verdict::Renewed { revision, spelled_out } => {
                    let Some(attached) = self.sessions.get_mut(&renewal.session) else { continue };
                    let last_sent = std::mem::replace(&mut attached.last_sent, revision);
                    match spelled_out {
                        Some(said) if last_sent != revision || has_events(&said) => {
                            message.renewed.push(proto::Renewed { number: renewal.number, ..*said });
                        }
                        _ => {}
                    }
                }
            }
        }
        message.unknown = grpc::pack_positions(unknown);
        message.unattached = grpc::pack_positions(unattached);
        message
    }
}

fn has_events(said: &proto::Renewed) -> bool {
    !said.noticed.is_empty() || !said.ended.is_empty() || said.incomplete
}
