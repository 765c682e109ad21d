//! The frames of the session stream, and the packing of renewals.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_core::{
    AcquireBy, Answer, Caller, Command, Done, EndReason, EventKind, OwnSession, Renewal, Revision, Secret,
    SessionId, SessionNumber, Token,
};

use super::answers::{event_kind, grant_to_another, register, renewal_event_parts};
use super::requests::{acquire_of, open_session, resource, scope, write_of};
use crate::error::ApiError;
use crate::proto;
use crate::proto::client_frame::Command as Asked;
use crate::proto::server_frame::Content;
use crate::words::millis;

/// The secret half of a session's id, as a stream proves it.
pub fn secret(bytes: &[u8]) -> Result<Secret, ApiError> {
    let bits: [u8; 16] = bytes
        .try_into()
        .map_err(|_| ApiError::invalid(format!("a session's secret has 16 bytes, not {}", bytes.len())))?;
    Ok(Secret::new(bits))
}

/// The command of a frame. `session` is the id under which the frame's session is attached to this stream, if it
/// is; `draw` gives a fresh secret, asked only if the frame opens one. `None` for attach and detach, which the stream
/// itself answers.
pub fn frame_command(
    frame: proto::ClientFrame,
    session: Option<SessionId>,
    draw: impl FnOnce() -> Secret,
) -> Result<Option<Command>, ApiError> {
    let attached = session.ok_or_else(|| {
        ApiError::invalid(format!("session {} is not attached to this stream", frame.session))
            .hint("attach it by its secret first")
    });
    let by = |session| Caller { session, number: frame.number, lowest_awaited: frame.lowest_awaited };
    let asked = frame.command.ok_or_else(|| {
        ApiError::invalid("the frame has no command, or one that this version does not know")
            .hint("upgrade the server, or use an older client")
    })?;
    Ok(Some(match asked {
        Asked::Open(proto::StreamOpen { holder, ttl_ms, nonce, transmission }) => {
            Command::Open(open_session(holder, ttl_ms, &nonce, transmission, draw())?)
        }
        Asked::Attach(_) | Asked::Detach(_) => return Ok(None),
        Asked::Close(close) => Command::Close {
            by: by(attached?),
            why: if close.died { EndReason::Died } else { EndReason::Released },
        },
        Asked::Acquire(proto::StreamAcquire { resources, mode, wait, policies, fences }) => {
            let by = AcquireBy::Session(by(attached?));
            Command::Acquire(Box::new(acquire_of(by, resources, mode, wait, policies, fences)?))
        }
        Asked::Cancel(cancel) => Command::Cancel { by: by(attached?), acquire: cancel.acquire },
        Asked::Release(release) => Command::Release {
            by: by(attached?),
            resource: resource(release.resource)?,
            token: release.token.map(Token::try_from).transpose()?,
            rest: release.rest_ms.map(Duration::from_millis),
        },
        Asked::Transfer(transfer) => Command::Transfer {
            by: by(attached?),
            resource: resource(transfer.resource)?,
            to: SessionNumber::new(transfer.to),
        },
        Asked::Seen(seen) => Command::Seen { session: attached?, revision: Revision::new(seen.revision) },
        Asked::Write(proto::StreamWrite { compares, then, otherwise }) => {
            // Session zero is nobody's: such a write is unnumbered and has no session.
            let by = if frame.session == 0 { None } else { Some(by(attached?)) };
            write_of(by, compares, then, otherwise)?
        }
        Asked::Arm(arm) => Command::Arm {
            scope: scope(arm.scope)?,
            fence: arm.fence.try_into()?,
            token: arm.token.try_into()?,
        },
        Asked::Refused(refused) => Command::Refused {
            scope: scope(refused.scope)?,
            fence: refused.fence.try_into()?,
            presented: refused.presented.try_into()?,
            seen: refused.seen.try_into()?,
            count: refused.count,
        },
        Asked::Paused(paused) => {
            Command::Paused { session: attached?, length: Duration::from_millis(paused.paused_ms) }
        }
    }))
}

/// The session that a command belongs to, if it does: the one that a frame of it names.
pub fn session_of(command: &Command) -> Option<SessionId> {
    match command {
        Command::Close { by, .. }
        | Command::Cancel { by, .. }
        | Command::Release { by, .. }
        | Command::Transfer { by, .. } => Some(by.session),
        Command::Acquire(acquire) => match &acquire.by {
            AcquireBy::Session(by) => Some(by.session),
            AcquireBy::Opening(_) => None,
        },
        Command::Write(write) => write.by.map(|by| by.session),
        Command::Seen { session, .. } | Command::Paused { session, .. } => Some(*session),
        _ => None,
    }
}

/// The frame of a command: the way back of [`frame_command`]. `None` for a command that the stream does not
/// carry, or not from a client: an open is numbered by the renewer, an acquire that opens its session is unary.
pub fn client_frame(frame: u64, command: &Command) -> Option<proto::ClientFrame> {
    let by = |by: &Caller| (by.number, by.lowest_awaited);
    let unnumbered = (None, 0);
    let ((number, lowest_awaited), asked) = match command {
        Command::Close { by: caller, why } => {
            (by(caller), Asked::Close(proto::StreamClose { died: *why == EndReason::Died }))
        }
        Command::Acquire(acquire) => {
            let AcquireBy::Session(caller) = &acquire.by else { return None };
            (by(caller), Asked::Acquire((&**acquire).into()))
        }
        Command::Cancel { by: caller, acquire } => {
            (by(caller), Asked::Cancel(proto::StreamCancel { acquire: *acquire }))
        }
        Command::Release { by: caller, resource, token, rest } => (
            by(caller),
            Asked::Release(proto::StreamRelease {
                resource: resource.to_string(),
                token: token.map(Token::get),
                rest_ms: rest.map(millis),
            }),
        ),
        Command::Transfer { by: caller, resource, to } => (
            by(caller),
            Asked::Transfer(proto::StreamTransfer { resource: resource.to_string(), to: to.get() }),
        ),
        Command::Seen { revision, .. } => {
            (unnumbered, Asked::Seen(proto::StreamSeen { revision: revision.get() }))
        }
        Command::Paused { length, .. } => {
            (unnumbered, Asked::Paused(proto::StreamPaused { paused_ms: millis(*length) }))
        }
        Command::Arm { scope, fence, token } => (
            unnumbered,
            Asked::Arm(proto::StreamArm {
                scope: Some(scope.into()),
                fence: fence.to_string(),
                token: token.get(),
            }),
        ),
        Command::Refused { scope, fence, presented, seen, count } => (
            unnumbered,
            Asked::Refused(proto::StreamRefused {
                scope: Some(scope.into()),
                fence: fence.to_string(),
                presented: presented.get(),
                seen: seen.get(),
                count: *count,
            }),
        ),
        Command::Write(write) => (write.by.as_ref().map_or(unnumbered, by), Asked::Write((&**write).into())),
        _ => return None,
    };
    let session = session_of(command).map_or(0, |id| id.number.get());
    Some(proto::ClientFrame { frame, session, number, lowest_awaited, command: Some(asked) })
}

/// The frame that attaches a session to a stream.
pub fn attach_frame(frame: u64, session: SessionId) -> proto::ClientFrame {
    let attach = proto::StreamAttach { secret: session.secret.as_bytes().to_vec() };
    proto::ClientFrame {
        frame,
        session: session.number.get(),
        command: Some(Asked::Attach(attach)),
        ..proto::ClientFrame::default()
    }
}

/// A session as a renewal stream attaches it.
pub fn renewal_attach(session: SessionId) -> proto::RenewalAttach {
    proto::RenewalAttach { session: session.number.get(), secret: session.secret.as_bytes().to_vec() }
}

/// What a client is sent that attaches its session: everything that it may have missed.
pub fn attached(own: &OwnSession) -> proto::Attached {
    let (noticed, ended, incomplete) = renewal_event_parts(&own.events);
    proto::Attached {
        ttl_ms: millis(own.view.ttl),
        holder: own.view.holder.to_string(),
        leases: own.leases.iter().map(|lease| grant_to_another(&lease.grant)).collect(),
        waiting: own.waits.iter().filter_map(|wait| wait.number).collect(),
        noticed,
        ended,
        incomplete,
        last_lease_revision: own.last_lease_revision.get(),
    }
}

/// What a command answered, as the content of the frame that answers it.
pub fn answer_content(answer: &Answer) -> Content {
    let done = match answer {
        Ok(done) => done,
        Err(refusal) => return Content::Error(ApiError::from(refusal).into()),
    };
    match done {
        Done::Nothing
        | Done::Revoked { .. }
        | Done::BarrierTaken { .. }
        | Done::Staged { .. }
        | Done::Restored { .. } => Content::Done(proto::Done {}),
        Done::Opened { session, holder, ttl, number } => Content::Opened(proto::StreamOpened {
            secret: session.secret.as_bytes().to_vec(),
            holder: holder.to_string(),
            ttl_ms: millis(*ttl),
            transmission: *number,
        }),
        Done::Closed { released } => Content::Closed(proto::StreamClosed { released: *released }),
        Done::Granted { grants, opened: _ } => {
            Content::Granted(proto::StreamGranted { grants: grants.iter().map(grant_to_another).collect() })
        }
        Done::Queued { ahead, session: _, ttl: _ } => Content::Queued(proto::StreamQueued { ahead: *ahead }),
        Done::Cancelled { released } => Content::Cancelled(proto::StreamCancelled { released: *released }),
        Done::Released { released } => Content::Released(proto::StreamReleased { released: *released }),
        Done::Transferred(grant) => {
            Content::Transferred(proto::StreamTransferred { grant: Some(grant_to_another(grant)) })
        }
        Done::Written { succeeded, revision, results } => Content::Written(proto::WriteResponse {
            succeeded: *succeeded,
            revision: revision.get(),
            results: results.iter().map(register).collect(),
        }),
    }
}

/// The push that an event is to the session that it is about; `None` for events that do not concern it.
/// Grants are left out: those of one acquire are pushed together, and the caller knows which they are.
pub fn push_content(kind: &EventKind, revision: Revision) -> Option<Content> {
    use proto::event::Kind;
    match event_kind(kind) {
        Kind::Noticed(noticed) => Some(Content::PushNoticed(noticed)),
        Kind::Ended(ended) => Some(Content::PushEnded(ended)),
        Kind::Closed(closed) => Some(Content::PushClosed(closed)),
        Kind::Unqueued(unqueued) => Some(Content::PushUnqueued(proto::PushUnqueued {
            number: unqueued.number,
            why: unqueued.why,
            revision: revision.get(),
        })),
        _ => None,
    }
}

/// Packs renewals: steps between session numbers, and one number for all where they agree.
pub fn pack_renewals(batch: u64, renewals: &[Renewal]) -> proto::RenewalFrames {
    let mut last = 0u64;
    let steps = renewals
        .iter()
        .map(|renewal| {
            let session = renewal.session.get();
            let step = session.wrapping_sub(last) as i64;
            last = session;
            step
        })
        .collect();
    let first = renewals.first().map(|renewal| renewal.number);
    let number = first.filter(|first| renewals.iter().all(|renewal| renewal.number == *first));
    let numbers =
        if number.is_some() { Vec::new() } else { renewals.iter().map(|renewal| renewal.number).collect() };
    proto::RenewalFrames { batch, steps, number, numbers, attach: Vec::new() }
}

/// Unpacks renewals, in their order. The sessions' ids are not checked here.
pub fn unpack_renewals(frames: &proto::RenewalFrames) -> Result<Vec<Renewal>, ApiError> {
    let mut last = 0u64;
    let sessions = frames.steps.iter().map(|step| {
        last = last.wrapping_add(*step as u64);
        SessionNumber::new(last)
    });
    match frames.number {
        Some(_) if !frames.numbers.is_empty() => {
            Err(ApiError::invalid("renewals have either one number for all or one each, not both"))
        }
        Some(number) => Ok(sessions.map(|session| Renewal { session, number }).collect()),
        None if frames.numbers.len() != frames.steps.len() => Err(ApiError::invalid(format!(
            "{} sessions are renewed with {} numbers",
            frames.steps.len(),
            frames.numbers.len()
        ))),
        None => {
            Ok(sessions.zip(&frames.numbers).map(|(session, &number)| Renewal { session, number }).collect())
        }
    }
}

/// Packs positions in a list, which rise: the steps between them.
pub fn pack_positions(positions: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut last = 0;
    positions.into_iter().map(|position| position - std::mem::replace(&mut last, position)).collect()
}

/// Unpacks positions.
pub fn unpack_positions(steps: &[u32]) -> BTreeSet<u32> {
    let mut last = 0u32;
    let next = |step: &u32| {
        last = last.saturating_add(*step);
        last
    };
    steps.iter().map(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    fn renewals(numbers: impl IntoIterator<Item = (u64, u64)>) -> Vec<Renewal> {
        let one = |(session, number)| Renewal { session: SessionNumber::new(session), number };
        numbers.into_iter().map(one).collect()
    }

    #[test]
    fn renewals_survive_packing() {
        for all in [
            renewals([]),
            renewals([(7, 1)]),
            renewals([(7, 1), (3, 1), (u64::MAX, 1), (0, 1)]),
            renewals([(7, 1), (8, 2)]),
        ] {
            assert_eq!(unpack_renewals(&pack_renewals(4, &all)).unwrap(), all);
        }
    }

    #[test]
    fn positions_survive_packing() {
        for all in [&[][..], &[0], &[3, 4, 1_000], &[0, u32::MAX]] {
            let steps = pack_positions(all.iter().copied());
            assert!(unpack_positions(&steps).into_iter().eq(all.iter().copied()), "{all:?}");
        }
        assert_eq!(unpack_positions(&[u32::MAX, 1]).len(), 1, "nonsense is no overflow");
    }

    #[test]
    fn renewals_of_neighbours_take_one_byte_each() {
        let all = renewals((0..10_000).map(|n| (1_000_000 + n, 4711)));
        assert!(pack_renewals(1, &all).encoded_len() < 10_000 + 32);
    }

    #[test]
    fn renewals_that_do_not_match_are_refused() {
        let frames = proto::RenewalFrames { steps: vec![1, 1], numbers: vec![1], ..Default::default() };
        assert!(unpack_renewals(&frames).is_err());
        let both =
            proto::RenewalFrames { steps: vec![1], number: Some(1), numbers: vec![1], ..Default::default() };
        assert!(unpack_renewals(&both).is_err());
    }

    #[test]
    fn a_frame_needs_its_session_attached() {
        let frame = proto::ClientFrame {
            session: 7,
            command: Some(Asked::Release(proto::StreamRelease {
                resource: "a".into(),
                token: None,
                rest_ms: None,
            })),
            ..Default::default()
        };
        assert!(frame_command(frame.clone(), None, || Secret::new([0; 16])).is_err());
        let id = SessionId { number: SessionNumber::new(7), secret: Secret::new([1; 16]) };
        let command = frame_command(frame, Some(id), || Secret::new([0; 16])).unwrap();
        assert!(matches!(command, Some(Command::Release { by, .. }) if by.session == id));
    }
}
