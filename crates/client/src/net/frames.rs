//! Between the core's values and the messages of the session stream. Shapes only.

use std::time::Duration;

use tenure_core::{
    AcquireBy, Caller, Command, Compare, CompareField, CompareOp, Done, EndReason, FenceName, Generation,
    Grant, Guard, HolderName, Mode, Operation, Policies, Register, RegisterKey, RenewalAnswer, RenewalEvents,
    ResourceName, Revision, Scope, SessionId, SessionNumber, Slot, Token, Wait,
};
use tenure_wire::proto::client_frame::Command as Asked;
use tenure_wire::proto::server_frame::Content;
use tenure_wire::words::millis;
use tenure_wire::{ApiError, Code, proto};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::store::{LeaseInfo, SessionEvent};

/// What is sent on a stream.
pub(super) fn outgoing<T>(waiting: mpsc::Receiver<T>) -> ReceiverStream<T> {
    ReceiverStream::new(waiting)
}

/// The session that a command belongs to.
pub(super) fn session_of(command: &Command) -> Option<SessionId> {
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

/// Whether sending a command twice does what sending it once does.
pub(super) fn is_repeatable(command: &Command) -> bool {
    match command {
        Command::Write(write) => write.by.is_some_and(|by| by.number.is_some()) || only_reads(&write.then),
        Command::Refused { .. } => false,
        _ => true,
    }
}

fn only_reads(operations: &[Operation]) -> bool {
    operations.iter().all(|operation| matches!(operation, Operation::Get { .. }))
}

/// The frame of a command; `None` for a command that the stream does not carry.
pub(super) fn client_frame(frame: u64, command: &Command) -> Option<proto::ClientFrame> {
    let by = |by: &Caller| (by.number, by.lowest_awaited);
    let unnumbered = (None, 0);
    let ((number, lowest_awaited), asked) = match command {
        Command::Close { by: caller, why } => {
            (by(caller), Asked::Close(proto::StreamClose { died: *why == EndReason::Died }))
        }
        Command::Acquire(acquire) => {
            let AcquireBy::Session(caller) = &acquire.by else { return None };
            let asked = proto::StreamAcquire {
                resources: acquire.resources.iter().map(ToString::to_string).collect(),
                mode: Some(acquire.mode.into()),
                wait: wait(acquire.wait),
                policies: Some(policies(&acquire.policies)),
                fences: acquire.fences.iter().map(ToString::to_string).collect(),
            };
            (by(caller), Asked::Acquire(asked))
        }
        Command::Cancel { by: caller, acquire } => {
            (by(caller), Asked::Cancel(proto::StreamCancel { acquire: *acquire }))
        }
        Command::Release { by: caller, resource, token, rest } => (
            by(caller),
            Asked::Release(proto::StreamRelease {
                resource: resource.to_string(),
                token: token.map(Token::get),
                rest_ms: rest.map(tenure_wire::words::millis),
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
        Command::Write(write) => (
            write.by.as_ref().map_or(unnumbered, by),
            Asked::Write(proto::StreamWrite {
                compares: write.compares.iter().map(compare).collect(),
                then: write.then.iter().map(operation).collect(),
                otherwise: write.otherwise.iter().map(operation).collect(),
            }),
        ),
        _ => return None,
    };
    let session = session_of(command).map_or(0, |id| id.number.get());
    Some(proto::ClientFrame { frame, session, number, lowest_awaited, command: Some(asked) })
}

fn wait(wait: Wait) -> Option<proto::Wait> {
    use proto::wait::Wait as Asked;
    let asked = match wait {
        Wait::No => return None,
        // A wait below a millisecond is still a wait.
        Wait::For(length) => Asked::AtMostMs(millis(length).max(1)),
        Wait::Forever => Asked::ForEver(true),
    };
    Some(proto::Wait { wait: Some(asked) })
}

fn policies(policies: &Policies) -> proto::Policies {
    proto::Policies {
        lock_delay_ms: policies.lock_delay.map(millis),
        max_hold_ms: policies.max_hold.map(millis),
        hard_limit_ms: policies.hard_limit.map(millis),
        priority: policies.priority,
        reentrant: policies.reentrant,
    }
}

fn compare(compare: &Compare) -> proto::Compare {
    use proto::compare::Field;
    let op = match compare.op {
        CompareOp::Equal => proto::CompareOp::Equal,
        CompareOp::NotEqual => proto::CompareOp::NotEqual,
        CompareOp::Greater => proto::CompareOp::Greater,
        CompareOp::Less => proto::CompareOp::Less,
    };
    let field = match &compare.field {
        CompareField::CreateRevision(revision) => Field::CreateRevision(*revision),
        CompareField::ModRevision(revision) => Field::ModRevision(*revision),
        CompareField::Version(version) => Field::Version(*version),
        CompareField::Value(value) => Field::Value(value.to_vec()),
    };
    proto::Compare { key: compare.key.as_bytes().to_vec(), op: op.into(), field: Some(field) }
}

fn guard(guard: &Guard) -> proto::Guard {
    proto::Guard { scope: Some((&guard.scope).into()), token: guard.token.get() }
}

fn operation(operation: &Operation) -> proto::Operation {
    use proto::operation::Operation as Asked;
    let asked = match operation {
        Operation::Put { key, value, guard: by, ephemeral } => Asked::Put(proto::Put {
            key: key.as_bytes().to_vec(),
            value: value.to_vec(),
            guard: by.as_ref().map(guard),
            ephemeral: *ephemeral,
        }),
        Operation::Delete { key, guard: by } => {
            Asked::Delete(proto::Delete { key: key.as_bytes().to_vec(), guard: by.as_ref().map(guard) })
        }
        Operation::Get { key } => Asked::Get(proto::Read { key: key.as_bytes().to_vec() }),
    };
    proto::Operation { operation: Some(asked) }
}

/// What the content of an answering frame means for the command that it answers. An answer that cannot be read says nothing of
/// what was done, whichever part of it is wrong.
pub(super) fn done(content: Content, session: Option<SessionId>) -> Result<Done, ApiError> {
    match content {
        Content::Error(error) => Err(error.into()),
        content => read_done(content, session).map_err(|error| match error.code {
            Code::Internal => error,
            _ => unreadable(&error.message),
        }),
    }
}

fn read_done(content: Content, session: Option<SessionId>) -> Result<Done, ApiError> {
    let whose = || session.ok_or_else(|| unreadable("the answer is about no session"));
    Ok(match content {
        Content::Done(_) => Done::Nothing,
        Content::Closed(closed) => Done::Closed { released: closed.released },
        Content::Granted(granted) => {
            Done::Granted { grants: grants(granted.grants, whose()?)?, opened: None }
        }
        Content::Queued(queued) => {
            Done::Queued { session: whose()?, ttl: Duration::ZERO, ahead: queued.ahead }
        }
        Content::Cancelled(cancelled) => Done::Cancelled { released: cancelled.released },
        Content::Released(released) => Done::Released { released: released.released },
        Content::Transferred(transferred) => {
            let to = transferred.grant.ok_or_else(|| unreadable("the transfer names no grant"))?;
            // The new holder's secret is not ours to know; its number is what counts.
            Done::Transferred(Box::new(grant(to, whose()?)?))
        }
        Content::Written(written) => Done::Written {
            succeeded: written.succeeded,
            revision: Revision::new(written.revision),
            results: written.results.into_iter().map(register).collect::<Result<_, _>>()?,
        },
        _ => return Err(unreadable("the answer is of a kind that this version does not know")),
    })
}

/// What a push says to the session; `None` for what does not concern it.
pub(super) fn session_event(content: Content, session: SessionId) -> Option<SessionEvent> {
    Some(match content {
        Content::PushGranted(push) => {
            let number = push.number?;
            match grants(push.grants, session) {
                Ok(grants) if !grants.is_empty() => SessionEvent::Granted { number, grants },
                // Granted and ended again meanwhile, or unreadable: the number is asked, and answers.
                _ => SessionEvent::Unqueued { number },
            }
        }
        Content::PushUnqueued(push) => SessionEvent::Unqueued { number: push.number? },
        Content::PushNoticed(push) => {
            SessionEvent::Noticed { token: Token::try_from(push.token).ok()?, why: why(push.why)? }
        }
        Content::PushEnded(push) => {
            SessionEvent::Ended { token: Token::try_from(push.token).ok()?, why: why(push.why)? }
        }
        Content::PushClosed(push) => SessionEvent::Closed { why: why(push.why) },
        _ => return None,
    })
}

fn why(why: i32) -> Option<EndReason> {
    proto::EndReason::try_from(why).ok().and_then(Into::into)
}

fn grants(all: Vec<proto::Grant>, session: SessionId) -> Result<Vec<Grant>, ApiError> {
    all.into_iter().map(|one| grant(one, session)).collect()
}

fn grant(grant: proto::Grant, session: SessionId) -> Result<Grant, ApiError> {
    let mode = match grant.mode {
        None => Mode::Exclusive,
        Some(mode) => match mode.kind() {
            proto::ModeKind::Unspecified | proto::ModeKind::Exclusive => Mode::Exclusive,
            proto::ModeKind::Shared => Mode::Shared,
            proto::ModeKind::Slots => Mode::Slots(mode.slots),
        },
    };
    Ok(Grant {
        resource: grant.resource.try_into()?,
        session,
        holder: grant.holder.try_into()?,
        mode,
        slot: grant.slot.map(Slot::new),
        token: grant.token.try_into()?,
        generation: Generation::new(grant.generation),
        remaining: Duration::from_millis(grant.remaining_ms),
        ttl: Duration::from_millis(grant.ttl_ms),
        waited: Duration::from_millis(grant.waited_ms),
        fences: grant.fences.into_iter().map(FenceName::try_from).collect::<Result<_, _>>()?,
    })
}

/// The answer to a renewal, spelled out.
pub(super) fn renewed(said: proto::Renewed) -> Result<RenewalAnswer, ApiError> {
    let reason = |code: i32| why(code).ok_or_else(|| unreadable("a lease ends for a reason unknown here"));
    let mut events = RenewalEvents { incomplete: said.incomplete, ..RenewalEvents::default() };
    for lease in said.noticed {
        let remaining = Duration::from_millis(lease.remaining_ms.unwrap_or_default());
        let (token, why) = (lease.token.try_into()?, reason(lease.why)?);
        events.noticed.push((lease.resource.try_into()?, token, why, remaining));
    }
    for lease in said.ended {
        let (token, why) = (lease.token.try_into()?, reason(lease.why)?);
        events.ended.push((lease.resource.try_into()?, token, why));
    }
    Ok(RenewalAnswer::Renewed {
        number: said.number,
        ttl: Duration::from_millis(said.ttl_ms),
        last_lease_revision: Revision::new(said.last_lease_revision),
        events: (events != RenewalEvents::default()).then(|| Box::new(events)),
    })
}

/// A register as it was answered.
pub(super) fn register(register: proto::Register) -> Result<Register, ApiError> {
    let guard = match register.guard {
        None => None,
        Some(scope) => Some(Scope { resource: scope.resource.try_into()?, slot: scope.slot.map(Slot::new) }),
    };
    Ok(Register {
        key: RegisterKey::try_from(register.key.as_slice())?,
        value: register.value.map(Into::into),
        create_revision: Revision::new(register.create_revision),
        mod_revision: Revision::new(register.mod_revision),
        version: register.version,
        session: register.session_number.map(SessionNumber::new),
        guard,
    })
}

/// A register that does not exist.
pub(super) fn absent(key: RegisterKey) -> Register {
    Register {
        key,
        value: None,
        create_revision: Revision::default(),
        mod_revision: Revision::default(),
        version: 0,
        session: None,
        guard: None,
    }
}

/// Who holds a resource, as it was answered.
pub(super) fn lease_info(answer: proto::LeaseGetResponse) -> Result<LeaseInfo, ApiError> {
    let lease = answer.lease.ok_or_else(|| unreadable("the answer has no lease"))?;
    let holder = |holding: proto::Holding| -> Result<_, ApiError> {
        let name: HolderName = holding.holder.try_into()?;
        Ok((SessionNumber::new(holding.session_number), name, Token::try_from(holding.token)?))
    };
    let resource: ResourceName = lease.resource.try_into()?;
    Ok(LeaseInfo {
        resource,
        holders: lease.holders.into_iter().map(holder).collect::<Result<_, _>>()?,
        waiters: lease.waiters.iter().map(|waiter| SessionNumber::new(waiter.session_number)).collect(),
        revision: Revision::new(answer.revision),
    })
}

fn unreadable(why: &str) -> ApiError {
    ApiError::new(Code::Internal, format!("an answer of the store cannot be read: {why}"))
        .hint("the store is of another version; upgrade this program")
}
