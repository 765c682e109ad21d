//! What one node asks of another on behalf of its clients, as bytes on the peer port.
//!
//! Followers forward to the leader, never redirect, so that any one endpoint works. Every message begins with the format
//! version that it is written in: the one that the sender's state has agreed on.

use tenure_core::{Answer, FormatVersion, Renewal, RenewalAnswer, RenewalEvents};

use crate::codec::{Coded, Output, Reader, WireError, choice, put_bytes, put_varint, record};
use crate::log::{RENEWAL_BYTES_MIN, put_renewals, take_renewals};

const REQUEST: &str = "forwarded request";
const REPLY: &str = "forwarded reply";
/// What proves one renewal.
const PROOF_BYTES: usize = size_of::<u64>();

/// What a node asks the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forwarded {
    /// Put this command through the log. It is encoded in the version of the message.
    Command(Vec<u8>),
    /// Put these renewals through the log. The asking node has checked the sessions' ids against its own
    /// applied state. A cluster that has agreed on version 2 wants proofs.
    Renewals(Vec<Renewal>),
    /// Confirm that you lead, and say up to where a reader must have applied.
    ReadIndex,
    /// Something for an administrator, as the server encodes it.
    Administer(Vec<u8>),
    /// Put these commands through the log, in this order; each gets an answer of its own. They are encoded in the
    /// version of the message. Since version 2.
    Commands(Vec<Vec<u8>>),
    /// Put these renewals through the log. The asking node has checked the sessions' ids, and shows of each what only a
    /// node or the session's opener can know ([`Secret::proof`](tenure_core::Secret::proof)). Since version 2.
    ProvedRenewals {
        /// The heartbeats.
        renewals: Vec<Renewal>,
        /// The proof of each, in the same order.
        proofs: Vec<u64>,
    },
}

/// What the leader answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForwardedReply {
    /// What applying the command answered.
    Answer(Box<Answer>),
    /// What applying the renewals answered, in order.
    Renewals(Vec<RenewalAnswer>),
    /// A reader that has applied this index sees everything acknowledged before it asked.
    ReadIndex(u64),
    /// The administrator's answer, as the server encodes it.
    Administered(Vec<u8>),
    /// There is no answer.
    Failed(ForwardFailure),
    /// What became of each of the commands, in their order. Since version 2.
    Answers(Vec<Result<Answer, ForwardFailure>>),
}

/// Why a forwarded request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForwardFailure {
    /// Not applied: the node asked does not lead.
    NoLeader,
    /// Not applied: a queue is full. Ask again after so many milliseconds.
    Overloaded(u64),
    /// Applied or not, nobody knows.
    Unknown(String),
    /// Not applied: the node asked is stopping.
    Stopping,
}

record!(RenewalEvents { noticed, ended, incomplete });
choice!(RenewalAnswer {
    1 => Renewed { number, ttl, last_lease_revision, events },
    2 => UnknownSession,
});

impl Coded for Forwarded {
    fn put(&self, out: &mut Output) {
        match self {
            Forwarded::Command(command) => {
                out.push(1);
                put_bytes(command, out);
            }
            Forwarded::Renewals(renewals) => {
                out.push(2);
                put_varint(renewals.len() as u64, out);
                put_renewals(renewals, out);
            }
            Forwarded::ReadIndex => out.push(3),
            Forwarded::Administer(request) => {
                out.push(4);
                put_bytes(request, out);
            }
            Forwarded::Commands(commands) => {
                out.push(5);
                put_varint(commands.len() as u64, out);
                commands.iter().for_each(|command| put_bytes(command, out));
            }
            Forwarded::ProvedRenewals { renewals, proofs } => {
                debug_assert_eq!(renewals.len(), proofs.len(), "one proof for each");
                out.push(6);
                put_varint(renewals.len() as u64, out);
                put_renewals(renewals, out);
                // As they are: random bits do not become shorter.
                proofs.iter().for_each(|proof| out.extend_from_slice(&proof.to_be_bytes()));
            }
        }
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(match input.byte()? {
            1 => Forwarded::Command(take_bytes(input)?),
            2 => {
                let count = input.length(RENEWAL_BYTES_MIN)?;
                Forwarded::Renewals(take_renewals(input, count)?)
            }
            3 => Forwarded::ReadIndex,
            4 => Forwarded::Administer(take_bytes(input)?),
            5 if input.version >= FormatVersion::V2 => {
                let count = input.length(1)?;
                Forwarded::Commands((0..count).map(|_| take_bytes(input)).collect::<Result<_, _>>()?)
            }
            6 if input.version >= FormatVersion::V2 => {
                let count = input.length(RENEWAL_BYTES_MIN + PROOF_BYTES)?;
                let renewals = take_renewals(input, count)?;
                let proof = |_| Ok(u64::from_be_bytes(input.array()?));
                Forwarded::ProvedRenewals {
                    renewals,
                    proofs: (0..count).map(proof).collect::<Result<_, _>>()?,
                }
            }
            tag => return Err(input.corrupt(format!("{tag} is no request"))),
        })
    }
}

impl Coded for ForwardedReply {
    fn put(&self, out: &mut Output) {
        match self {
            ForwardedReply::Answer(answer) => {
                out.push(1);
                answer.put(out);
            }
            ForwardedReply::Renewals(answers) => {
                out.push(2);
                answers.put(out);
            }
            ForwardedReply::ReadIndex(index) => {
                out.push(3);
                index.put(out);
            }
            ForwardedReply::Administered(answer) => {
                out.push(4);
                put_bytes(answer, out);
            }
            ForwardedReply::Failed(failure) => failure.put(out),
            ForwardedReply::Answers(answers) => {
                out.push(9);
                put_varint(answers.len() as u64, out);
                answers.iter().for_each(|answer| put_answer(answer, out));
            }
        }
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(match input.byte()? {
            1 => ForwardedReply::Answer(Coded::take(input)?),
            2 => ForwardedReply::Renewals(Coded::take(input)?),
            3 => ForwardedReply::ReadIndex(Coded::take(input)?),
            4 => ForwardedReply::Administered(take_bytes(input)?),
            9 if input.version >= FormatVersion::V2 => {
                let count = input.length(1)?;
                ForwardedReply::Answers((0..count).map(|_| take_answer(input)).collect::<Result<_, _>>()?)
            }
            tag => ForwardedReply::Failed(ForwardFailure::take(tag, input)?),
        })
    }
}

/// One of many answers: tagged like a reply that is one answer.
fn put_answer(answer: &Result<Answer, ForwardFailure>, out: &mut Output) {
    match answer {
        Ok(answer) => {
            out.push(1);
            answer.put(out);
        }
        Err(failure) => failure.put(out),
    }
}

fn take_answer(input: &mut Reader<'_>) -> Result<Result<Answer, ForwardFailure>, WireError> {
    Ok(match input.byte()? {
        1 => Ok(Answer::take(input)?),
        tag => Err(ForwardFailure::take(tag, input)?),
    })
}

impl ForwardFailure {
    fn put(&self, out: &mut Output) {
        match self {
            ForwardFailure::NoLeader => out.push(5),
            ForwardFailure::Overloaded(retry_after_ms) => {
                out.push(6);
                retry_after_ms.put(out);
            }
            ForwardFailure::Unknown(reason) => {
                out.push(7);
                put_bytes(reason.as_bytes(), out);
            }
            ForwardFailure::Stopping => out.push(8),
        }
    }

    /// Reads what follows the tag.
    fn take(tag: u8, input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(match tag {
            5 => ForwardFailure::NoLeader,
            6 => ForwardFailure::Overloaded(Coded::take(input)?),
            7 => ForwardFailure::Unknown(String::from_utf8_lossy(&take_bytes(input)?).into_owned()),
            8 => ForwardFailure::Stopping,
            _ => return Err(input.corrupt(format!("{tag} is no reply"))),
        })
    }
}

fn take_bytes(input: &mut Reader<'_>) -> Result<Vec<u8>, WireError> {
    let length = input.length(1)?;
    input.bytes(length).map(<[u8]>::to_vec)
}

/// A forwarded request as bytes, in this version.
pub fn encode_forwarded(version: FormatVersion, request: &Forwarded) -> Vec<u8> {
    encode(version, request)
}

/// Reads a forwarded request and the version that it was written in; nothing may follow it.
pub fn decode_forwarded(
    newest: FormatVersion,
    bytes: &[u8],
) -> Result<(FormatVersion, Forwarded), WireError> {
    decode(REQUEST, newest, bytes)
}

/// A reply to a forwarded request as bytes, in this version.
pub fn encode_forwarded_reply(version: FormatVersion, reply: &ForwardedReply) -> Vec<u8> {
    encode(version, reply)
}

/// Reads a reply to a forwarded request; nothing may follow it.
pub fn decode_forwarded_reply(newest: FormatVersion, bytes: &[u8]) -> Result<ForwardedReply, WireError> {
    decode(REPLY, newest, bytes).map(|(_, reply)| reply)
}

fn encode(version: FormatVersion, value: &impl Coded) -> Vec<u8> {
    let mut bytes = vec![version.get()];
    Output::append(version, &mut bytes, |out| value.put(out));
    bytes
}

fn decode<T: Coded>(
    what: &'static str,
    newest: FormatVersion,
    bytes: &[u8],
) -> Result<(FormatVersion, T), WireError> {
    let mut input = Reader::versioned(what, newest, bytes)?;
    let value = T::take(&mut input)?;
    let version = input.version;
    input.finish()?;
    Ok((version, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tenure_core::{Done, EndReason, Refusal, Revision, SessionNumber, Token};

    const VERSION: FormatVersion = FormatVersion::NEWEST;

    #[test]
    fn what_is_forwarded_arrives() {
        let renewal = |session, number| Renewal { session: SessionNumber::new(session), number };
        for request in [
            Forwarded::Command(vec![1, 2, 3]),
            Forwarded::Renewals(vec![renewal(7, 1), renewal(3, 900), renewal(u64::MAX, 0)]),
            Forwarded::ReadIndex,
            Forwarded::Administer(vec![]),
            Forwarded::Commands(vec![vec![1, 2, 3], vec![], vec![4]]),
            Forwarded::ProvedRenewals {
                renewals: vec![renewal(7, 1), renewal(3, 900)],
                proofs: vec![u64::MAX, 1 << 63],
            },
        ] {
            let bytes = encode_forwarded(VERSION, &request);
            assert_eq!(decode_forwarded(VERSION, &bytes).unwrap(), (VERSION, request));
        }
        let events = RenewalEvents {
            noticed: vec![("a".parse().unwrap(), Token::FIRST, EndReason::Revoked, Duration::from_millis(5))],
            ended: vec![("b".parse().unwrap(), Token::MAX, EndReason::HeldTooLong)],
            incomplete: true,
        };
        for reply in [
            ForwardedReply::Answer(Box::new(Ok(Done::Closed { released: 3 }))),
            ForwardedReply::Answer(Box::new(Err(Refusal::UnknownSession))),
            ForwardedReply::Renewals(vec![
                RenewalAnswer::UnknownSession,
                RenewalAnswer::Renewed {
                    number: 4,
                    ttl: Duration::from_secs(10),
                    last_lease_revision: Revision::new(8),
                    events: Some(Box::new(events)),
                },
            ]),
            ForwardedReply::ReadIndex(12),
            ForwardedReply::Administered(vec![1]),
            ForwardedReply::Failed(ForwardFailure::NoLeader),
            ForwardedReply::Failed(ForwardFailure::Overloaded(100)),
            ForwardedReply::Failed(ForwardFailure::Unknown("lost".into())),
            ForwardedReply::Failed(ForwardFailure::Stopping),
            ForwardedReply::Answers(vec![
                Ok(Ok(Done::Closed { released: 3 })),
                Ok(Err(Refusal::UnknownSession)),
                Err(ForwardFailure::NoLeader),
                Err(ForwardFailure::Overloaded(7)),
                Err(ForwardFailure::Unknown("lost".into())),
                Err(ForwardFailure::Stopping),
            ]),
        ] {
            let bytes = encode_forwarded_reply(VERSION, &reply);
            assert_eq!(decode_forwarded_reply(VERSION, &bytes).unwrap(), reply);
        }
        assert!(matches!(decode_forwarded(VERSION, &[9, 3]), Err(WireError::Newer { found: 9, .. })));
    }

    /// The release that wrote version 1 knew no batches: a message of that version that has one is damaged.
    #[test]
    fn version_1_has_no_batches_of_commands() {
        assert!(matches!(decode_forwarded(VERSION, &[1, 5, 1, 1, 7]), Err(WireError::Corrupt { .. })));
        assert!(matches!(decode_forwarded_reply(VERSION, &[1, 9, 1, 8]), Err(WireError::Corrupt { .. })));
        assert!(decode_forwarded(VERSION, &[2, 5, 1, 1, 7]).is_ok());
        assert!(decode_forwarded_reply(VERSION, &[2, 9, 1, 8]).is_ok());
    }
}
