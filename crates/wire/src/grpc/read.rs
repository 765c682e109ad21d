//! Messages as the values that they were made from: the way back of `answers.rs`, for clients.
//!
//! A message that cannot be read is an error of the code `internal`: it says nothing of what was done. Times are
//! whole milliseconds here, so what comes back is the value that was sent, rounded down.

use std::time::Duration;

use tenure_core::{
    Done, EndReason, FenceName, Generation, Grant, Holding, IdentityName, KindSetting, LeaseView, Mode,
    Register, RegisterKey, RenewalAnswer, RenewalEvents, ResourceName, Revision, Scope, SessionId,
    SessionNumber, Slot, Token, WaiterView,
};

use crate::error::{ApiError, Code};
use crate::proto;
use crate::proto::server_frame::Content;

/// What the content of an answering frame means for the command that it answers; `session` is that command's.
pub fn read_done(content: Content, session: Option<SessionId>) -> Result<Done, ApiError> {
    match content {
        Content::Error(error) => Err(error.into()),
        content => done(content, session).map_err(|error| match error.code {
            Code::Internal => error,
            // A name or token in it that makes no sense.
            _ => unreadable(&error.message),
        }),
    }
}

fn done(content: Content, session: Option<SessionId>) -> Result<Done, ApiError> {
    let whose = || session.ok_or_else(|| unreadable("the answer is about no session"));
    Ok(match content {
        Content::Done(_) => Done::Nothing,
        Content::Closed(closed) => Done::Closed { released: closed.released },
        Content::Granted(granted) => {
            Done::Granted { grants: read_grants(granted.grants, whose()?)?, opened: None }
        }
        Content::Queued(queued) => {
            Done::Queued { session: whose()?, ttl: Duration::ZERO, ahead: queued.ahead }
        }
        Content::Cancelled(cancelled) => Done::Cancelled { released: cancelled.released },
        Content::Released(released) => Done::Released { released: released.released },
        Content::Transferred(transferred) => {
            let to = transferred.grant.ok_or_else(|| unreadable("the transfer names no grant"))?;
            // The new holder's secret is not ours to know; its number is what counts.
            Done::Transferred(Box::new(read_grant(to, whose()?)?))
        }
        Content::Written(written) => Done::Written {
            succeeded: written.succeeded,
            revision: Revision::new(written.revision),
            results: written.results.into_iter().map(read_register).collect::<Result<_, _>>()?,
        },
        _ => return Err(unreadable("the answer is of a kind that this version does not know")),
    })
}

/// What a server says about a session of its own accord.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Push {
    /// An acquire that waited in the queue was granted. No grants: they have ended meanwhile, or cannot be read.
    Granted {
        /// The acquire's number, if it had one.
        number: Option<u64>,
        /// One per resource.
        grants: Vec<Grant>,
    },
    /// An acquire left the queue without a grant.
    Unqueued {
        /// The acquire's number, if it had one.
        number: Option<u64>,
    },
    /// A lease is to end.
    Noticed {
        /// Which.
        token: Token,
        /// Why.
        why: EndReason,
    },
    /// A lease has ended.
    Ended {
        /// Which.
        token: Token,
        /// Why.
        why: EndReason,
    },
    /// The session has ended; why, if this version knows the reason.
    Closed {
        /// Why.
        why: Option<EndReason>,
    },
}

/// The push in a frame about `session`; `None` for what is none, or what this version does not know.
pub fn read_push(content: Content, session: SessionId) -> Option<Push> {
    Some(match content {
        Content::PushGranted(push) => Push::Granted {
            number: push.number,
            grants: read_grants(push.grants, session).unwrap_or_default(),
        },
        Content::PushUnqueued(push) => Push::Unqueued { number: push.number },
        Content::PushNoticed(push) => {
            Push::Noticed { token: Token::try_from(push.token).ok()?, why: end_reason(push.why)? }
        }
        Content::PushEnded(push) => {
            Push::Ended { token: Token::try_from(push.token).ok()?, why: end_reason(push.why)? }
        }
        Content::PushClosed(push) => Push::Closed { why: end_reason(push.why) },
        _ => return None,
    })
}

/// Why something ended; `None` for no reason, or one that this version does not know.
pub fn end_reason(why: i32) -> Option<EndReason> {
    proto::EndReason::try_from(why).ok().and_then(Into::into)
}

fn read_grants(all: Vec<proto::Grant>, session: SessionId) -> Result<Vec<Grant>, ApiError> {
    all.into_iter().map(|one| read_grant(one, session)).collect()
}

/// A grant; `session` is its holder's id, which the message may not name.
pub fn read_grant(grant: proto::Grant, session: SessionId) -> Result<Grant, ApiError> {
    Ok(Grant {
        resource: grant.resource.try_into()?,
        session,
        holder: grant.holder.try_into()?,
        mode: read_mode(grant.mode.as_ref()),
        slot: grant.slot.map(Slot::new),
        token: grant.token.try_into()?,
        generation: Generation::new(grant.generation),
        remaining: Duration::from_millis(grant.remaining_ms),
        ttl: Duration::from_millis(grant.ttl_ms),
        waited: Duration::from_millis(grant.waited_ms),
        fences: grant.fences.into_iter().map(FenceName::try_from).collect::<Result<_, _>>()?,
    })
}

/// How a resource is held; what an older server does not say is exclusive.
pub fn read_mode(mode: Option<&proto::Mode>) -> Mode {
    match mode.map(proto::Mode::kind).unwrap_or_default() {
        proto::ModeKind::Unspecified | proto::ModeKind::Exclusive => Mode::Exclusive,
        proto::ModeKind::Shared => Mode::Shared,
        proto::ModeKind::Slots => Mode::Slots(mode.map_or(0, |mode| mode.slots)),
    }
}

/// One holder of a resource.
pub fn read_holding(holding: proto::Holding) -> Result<Holding, ApiError> {
    Ok(Holding {
        session: SessionNumber::new(holding.session_number),
        mode: read_mode(holding.mode.as_ref()),
        slot: holding.slot.map(Slot::new),
        token: holding.token.try_into()?,
        generation: Generation::new(holding.generation),
        remaining: Duration::from_millis(holding.remaining_ms),
        ttl: Duration::from_millis(holding.ttl_ms),
        held_for: Duration::from_millis(holding.held_ms),
        notice: end_reason(holding.notice),
        lapsed: holding.lapsed,
        holder: holding.holder.try_into()?,
        identity: read_identity(&holding.identity),
    })
}

/// Who opened a session. A name that this build does not accept is a newer server's, and only for people.
fn read_identity(name: &str) -> Option<IdentityName> {
    name.parse().ok()
}

fn read_waiter(waiter: proto::WaiterView, resource: &ResourceName) -> Result<WaiterView, ApiError> {
    let mut resources =
        waiter.resources.into_iter().map(ResourceName::try_from).collect::<Result<Vec<_>, _>>()?;
    if resources.is_empty() {
        resources.push(resource.clone());
    }
    Ok(WaiterView {
        session: SessionNumber::new(waiter.session_number),
        holder: waiter.holder.try_into()?,
        mode: read_mode(waiter.mode.as_ref()),
        priority: waiter.priority,
        waited: Duration::from_millis(waiter.waited_ms),
        remaining: waiter.remaining_ms.map(Duration::from_millis),
        resources,
        identity: read_identity(&waiter.identity),
    })
}

/// The kind of a resource, as far as the server says: release 0.1.0 does not, so it is guessed from how the
/// resource is held.
pub(crate) fn kind_of(lease: &proto::Lease) -> Option<KindSetting> {
    match lease.kind() {
        proto::ResourceKind::Lock => Some(KindSetting::Lock),
        proto::ResourceKind::Semaphore => Some(KindSetting::Semaphore(lease.slots)),
        proto::ResourceKind::Unspecified => {
            let newest = lease.holders.iter().max_by_key(|holding| holding.token)?;
            Some(match read_mode(newest.mode.as_ref()) {
                Mode::Exclusive | Mode::Shared => KindSetting::Lock,
                Mode::Slots(slots) => KindSetting::Semaphore(slots),
            })
        }
    }
}

/// A resource; its fences are asked for separately.
pub fn read_lease(lease: proto::Lease) -> Result<LeaseView, ApiError> {
    let kind = kind_of(&lease);
    let resource: ResourceName = lease.resource.try_into()?;
    let waiters = lease.waiters.into_iter().map(|waiter| read_waiter(waiter, &resource));
    let waiters = waiters.collect::<Result<Vec<_>, _>>()?;
    Ok(LeaseView {
        kind,
        holders: lease.holders.into_iter().map(read_holding).collect::<Result<_, _>>()?,
        token: lease.token.map(Token::try_from).transpose()?,
        generation: Generation::new(lease.generation),
        // A node that does not count them shows them all.
        waiting: (lease.waiting as usize).max(waiters.len()),
        waiters,
        delayed: lease.delayed_ms.map(Duration::from_millis),
        fences: Vec::new(),
        resource,
    })
}

/// What a renewal answered.
pub fn read_renewed(renewed: proto::Renewed) -> Result<RenewalAnswer, ApiError> {
    let reason =
        |code: i32| end_reason(code).ok_or_else(|| unreadable("a lease ends for a reason unknown here"));
    let mut events = RenewalEvents { incomplete: renewed.incomplete, ..RenewalEvents::default() };
    for lease in renewed.noticed {
        let remaining = Duration::from_millis(lease.remaining_ms.unwrap_or_default());
        let (token, why) = (lease.token.try_into()?, reason(lease.why)?);
        events.noticed.push((lease.resource.try_into()?, token, why, remaining));
    }
    for lease in renewed.ended {
        let (token, why) = (lease.token.try_into()?, reason(lease.why)?);
        events.ended.push((lease.resource.try_into()?, token, why));
    }
    Ok(RenewalAnswer::Renewed {
        number: renewed.number,
        ttl: Duration::from_millis(renewed.ttl_ms),
        last_lease_revision: Revision::new(renewed.last_lease_revision),
        events: (events != RenewalEvents::default()).then(|| Box::new(events)),
    })
}

/// A register.
pub fn read_register(register: proto::Register) -> Result<Register, ApiError> {
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

/// An answer that makes no sense to this version.
pub fn unreadable(why: &str) -> ApiError {
    ApiError::new(Code::Internal, format!("an answer of the store cannot be read: {why}"))
        .hint("the store is of another version; upgrade this program")
}
