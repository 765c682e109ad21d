//! What the machine says, as messages.

use std::time::Duration;

use tenure_core::{
    DroppedLeases, EndReason, Event, EventKind, FenceView, Grant, HistoryView, HolderName, Holding,
    IdentityName, KindSetting, LeaseView, Mode, OwnSession, PastLease, Register, RenewalAnswer,
    RenewalEvents, ResourceName, Scope, SessionId, SessionNumber, SessionView, Slot, Token, WaiterView,
    WallTime,
};

use crate::proto;
use crate::words::millis;

impl From<EndReason> for proto::EndReason {
    fn from(why: EndReason) -> proto::EndReason {
        match why {
            EndReason::Released => proto::EndReason::Released,
            EndReason::Expired => proto::EndReason::Expired,
            EndReason::Revoked => proto::EndReason::Revoked,
            EndReason::Transferred => proto::EndReason::Transferred,
            EndReason::HeldTooLong => proto::EndReason::HeldTooLong,
            EndReason::TakenOver => proto::EndReason::TakenOver,
            EndReason::Died => proto::EndReason::Died,
        }
    }
}

/// The reason, or `None` for one that this build does not know.
impl From<proto::EndReason> for Option<EndReason> {
    fn from(why: proto::EndReason) -> Option<EndReason> {
        match why {
            proto::EndReason::Unspecified => None,
            proto::EndReason::Released => Some(EndReason::Released),
            proto::EndReason::Expired => Some(EndReason::Expired),
            proto::EndReason::Revoked => Some(EndReason::Revoked),
            proto::EndReason::Transferred => Some(EndReason::Transferred),
            proto::EndReason::HeldTooLong => Some(EndReason::HeldTooLong),
            proto::EndReason::TakenOver => Some(EndReason::TakenOver),
            proto::EndReason::Died => Some(EndReason::Died),
        }
    }
}

impl From<Mode> for proto::Mode {
    fn from(mode: Mode) -> proto::Mode {
        let (kind, slots) = match mode {
            Mode::Exclusive => (proto::ModeKind::Exclusive, 0),
            Mode::Shared => (proto::ModeKind::Shared, 0),
            Mode::Slots(slots) => (proto::ModeKind::Slots, slots),
        };
        proto::Mode { kind: kind.into(), slots }
    }
}

impl From<&Scope> for proto::Scope {
    fn from(scope: &Scope) -> proto::Scope {
        proto::Scope { resource: scope.resource.to_string(), slot: scope.slot.map(Slot::get) }
    }
}

fn end_reason(why: EndReason) -> i32 {
    proto::EndReason::from(why).into()
}

/// A lease, for its own holder.
pub fn grant(grant: &Grant) -> proto::Grant {
    proto::Grant { session: grant.session.to_string(), ..grant_to_another(grant) }
}

/// A lease without its session's id: for the stream, which names sessions by number, and for others.
pub fn grant_to_another(grant: &Grant) -> proto::Grant {
    proto::Grant {
        resource: grant.resource.to_string(),
        session: String::new(),
        session_number: grant.session.number.get(),
        holder: grant.holder.to_string(),
        mode: Some(grant.mode.into()),
        slot: grant.slot.map(Slot::get),
        token: grant.token.get(),
        generation: grant.generation.get(),
        remaining_ms: millis(grant.remaining),
        ttl_ms: millis(grant.ttl),
        waited_ms: millis(grant.waited),
        fences: grant.fences.iter().map(ToString::to_string).collect(),
    }
}

/// One holder of a resource.
pub fn holding(holding: &Holding) -> proto::Holding {
    proto::Holding {
        session_number: holding.session.get(),
        holder: holding.holder.to_string(),
        mode: Some(holding.mode.into()),
        slot: holding.slot.map(Slot::get),
        token: holding.token.get(),
        generation: holding.generation.get(),
        remaining_ms: millis(holding.remaining),
        ttl_ms: millis(holding.ttl),
        held_ms: millis(holding.held_for),
        notice: holding.notice.map_or(proto::EndReason::Unspecified.into(), end_reason),
        lapsed: holding.lapsed,
        identity: name(&holding.identity),
    }
}

fn waiter(view: &WaiterView) -> proto::WaiterView {
    proto::WaiterView {
        session_number: view.session.get(),
        holder: view.holder.to_string(),
        mode: Some(view.mode.into()),
        priority: view.priority,
        waited_ms: millis(view.waited),
        remaining_ms: view.remaining.map(millis),
        resources: if view.resources.len() > 1 {
            view.resources.iter().map(ToString::to_string).collect()
        } else {
            Vec::new()
        },
        identity: name(&view.identity),
    }
}

fn name(identity: &Option<IdentityName>) -> String {
    identity.as_ref().map(ToString::to_string).unwrap_or_default()
}

/// A resource.
pub fn lease(view: &LeaseView) -> proto::Lease {
    let (kind, slots) = match view.kind {
        None => (proto::ResourceKind::Unspecified, 0),
        Some(KindSetting::Lock) => (proto::ResourceKind::Lock, 0),
        Some(KindSetting::Semaphore(slots)) => (proto::ResourceKind::Semaphore, slots),
    };
    proto::Lease {
        resource: view.resource.to_string(),
        holders: view.holders.iter().map(holding).collect(),
        token: view.token.map(Token::get),
        generation: view.generation.get(),
        waiters: view.waiters.iter().map(waiter).collect(),
        waiting: u32::try_from(view.waiting).unwrap_or(u32::MAX),
        delayed_ms: view.delayed.map(millis),
        kind: kind.into(),
        slots,
    }
}

/// A session.
pub fn session_summary(view: &SessionView) -> proto::SessionSummary {
    proto::SessionSummary {
        session_number: view.session.get(),
        holder: view.holder.to_string(),
        ttl_ms: millis(view.ttl),
        remaining_ms: millis(view.remaining),
        leases: u32::try_from(view.leases).unwrap_or(u32::MAX),
        waiting: u32::try_from(view.waiters).unwrap_or(u32::MAX),
        lapsed: view.lapsed,
        open_ms: Some(millis(view.open_for)),
        identity: name(&view.identity),
    }
}

/// What a history no longer has.
fn history_dropped(dropped: &DroppedLeases) -> proto::HistoryDropped {
    let newest = dropped.newest.as_ref();
    proto::HistoryDropped {
        leases: dropped.leases,
        limit: newest.map(|newest| newest.limit.as_str().to_owned()),
        max: newest.map(|newest| newest.max),
        token: newest.map(|newest| newest.token.get()),
        ended_unix_ms: newest.map(|newest| newest.to_wall.as_unix_millis()),
    }
}

/// A past lease.
pub fn transition(past: &PastLease) -> proto::Transition {
    proto::Transition {
        token: past.token.get(),
        generation: past.generation.get(),
        session_number: past.session.get(),
        holder: past.holder.to_string(),
        mode: Some(past.mode.into()),
        slot: past.slot.map(Slot::get),
        from_unix_ms: past.from_wall.as_unix_millis(),
        to_unix_ms: Some(past.to_wall.as_unix_millis()),
        held_ms: millis(past.to.since(past.from)),
        why: end_reason(past.why),
        reason: past.reason.as_deref().unwrap_or_default().into(),
        identity: name(&past.identity),
    }
}

/// The past leases of a resource, the newest first, at most `limit`.
pub fn history(view: &HistoryView, limit: usize) -> proto::HistoryResponse {
    proto::HistoryResponse {
        resource: view.resource.to_string(),
        transitions: view.past.iter().rev().take(limit).map(transition).collect(),
        dropped: view.dropped.as_ref().map(history_dropped),
    }
}

/// One fence of a resource.
pub fn fence(view: &FenceView) -> proto::FenceView {
    let armed = view.armed.iter().map(|armed| proto::ArmedToken {
        slot: armed.slot.map(Slot::get),
        token: armed.token.get(),
        current: armed.current,
    });
    proto::FenceView {
        resource: view.resource.to_string(),
        fence: view.fence.to_string(),
        armed: armed.collect(),
        refused: view.refused,
        refused_unix_ms: view.refused_wall.map(WallTime::as_unix_millis),
    }
}

/// A session, for the one who knows its id.
pub fn own_session(own: &OwnSession) -> proto::SessionGetResponse {
    let waits = own.waits.iter().map(|wait| proto::SessionWait {
        number: wait.number,
        resources: wait.resources.iter().map(ToString::to_string).collect(),
    });
    proto::SessionGetResponse {
        summary: Some(session_summary(&own.view)),
        leases: own.leases.iter().map(|lease| holding(&lease.holding)).collect(),
        resources: own.leases.iter().map(|lease| lease.grant.resource.to_string()).collect(),
        waits: waits.collect(),
        last_lease_revision: own.last_lease_revision.get(),
        number: own.number,
    }
}

/// A register.
pub fn register(register: &Register) -> proto::Register {
    proto::Register {
        key: register.key.as_bytes().to_vec(),
        value: register.value.as_deref().map(<[u8]>::to_vec),
        create_revision: register.create_revision.get(),
        mod_revision: register.mod_revision.get(),
        version: register.version,
        session_number: register.session.map(SessionNumber::get),
        guard: register.guard.as_ref().map(Into::into),
    }
}

/// What a renewal of `session` answered; `None` if the session has ended.
pub fn renewed(session: SessionNumber, answer: &RenewalAnswer) -> Option<proto::Renewed> {
    match answer {
        RenewalAnswer::UnknownSession => None,
        RenewalAnswer::Renewed { number, ttl, last_lease_revision, events } => {
            let (noticed, ended, incomplete) = events.as_deref().map(renewal_event_parts).unwrap_or_default();
            Some(proto::Renewed {
                session_number: session.get(),
                number: *number,
                ttl_ms: millis(*ttl),
                last_lease_revision: last_lease_revision.get(),
                noticed,
                ended,
                incomplete,
            })
        }
    }
}

/// What `Sessions.Renew` answers: what each renewal did, and which sessions have ended.
pub fn renewed_many<'a>(
    answers: impl IntoIterator<Item = (&'a SessionId, &'a RenewalAnswer)>,
) -> proto::SessionRenewResponse {
    let mut response = proto::SessionRenewResponse::default();
    for (id, answer) in answers {
        match renewed(id.number, answer) {
            Some(renewed) => response.renewed.push(renewed),
            None => response.unknown.push(id.to_string()),
        }
    }
    response
}

/// What `Sessions.Open` answers.
pub fn opened(
    session: SessionId,
    holder: &HolderName,
    ttl: Duration,
    number: u64,
) -> proto::SessionOpenResponse {
    proto::SessionOpenResponse {
        session: session.to_string(),
        session_number: session.number.get(),
        holder: holder.to_string(),
        ttl_ms: millis(ttl),
        number,
    }
}

/// What a session must take in before its deadline moves: leases under notice, ended ones, and whether that is
/// not all.
pub fn renewal_event_parts(
    events: &RenewalEvents,
) -> (Vec<proto::LeaseChange>, Vec<proto::LeaseChange>, bool) {
    let of = |resource: &ResourceName, token: Token, why: EndReason| proto::LeaseChange {
        resource: resource.to_string(),
        token: token.get(),
        why: end_reason(why),
        remaining_ms: None,
    };
    let noticed = events.noticed.iter().map(|(resource, token, why, remaining)| proto::LeaseChange {
        remaining_ms: Some(millis(*remaining)),
        ..of(resource, *token, *why)
    });
    let ended = events.ended.iter().map(|(resource, token, why)| of(resource, *token, *why));
    (noticed.collect(), ended.collect(), events.incomplete)
}

/// The message of a watch for the events of one revision, which belong together; `None` for no events.
pub fn events_of(events: &[&Event]) -> Option<proto::WatchResponse> {
    let first = events.first()?;
    Some(proto::WatchResponse {
        revision: first.revision.get(),
        unix_ms: first.wall.as_unix_millis(),
        events: events.iter().map(|one| event(one)).collect(),
    })
}

/// One event.
pub fn event(event: &Event) -> proto::Event {
    proto::Event { kind: Some(event_kind(&event.kind)), identity: name(&event.identity) }
}

/// What an event says has changed.
pub(crate) fn event_kind(kind: &EventKind) -> proto::event::Kind {
    use proto::event::Kind;
    match kind {
        EventKind::Opened { session, holder } => {
            Kind::Opened(proto::Opened { session_number: session.get(), holder: holder.to_string() })
        }
        EventKind::Closed { session, holder, why } => Kind::Closed(proto::Closed {
            session_number: session.get(),
            holder: holder.to_string(),
            why: end_reason(*why),
        }),
        EventKind::Lapsed { session, holder } => {
            Kind::Lapsed(proto::Lapsed { session_number: session.get(), holder: holder.to_string() })
        }
        EventKind::Granted { resource, session, holder, mode, slot, token, generation, waited, number } => {
            Kind::Granted(proto::Granted {
                resource: resource.to_string(),
                session_number: session.get(),
                holder: holder.to_string(),
                mode: Some((*mode).into()),
                slot: slot.map(Slot::get),
                token: token.get(),
                generation: generation.get(),
                waited_ms: millis(*waited),
                number: *number,
            })
        }
        EventKind::Ended { resource, session, holder, slot, token, why, held_for, late, reason } => {
            Kind::Ended(proto::Ended {
                resource: resource.to_string(),
                session_number: session.get(),
                holder: holder.to_string(),
                slot: slot.map(Slot::get),
                token: token.get(),
                why: end_reason(*why),
                held_ms: millis(*held_for),
                late_us: u64::try_from(late.as_micros()).unwrap_or(u64::MAX),
                reason: reason.as_deref().unwrap_or_default().into(),
            })
        }
        EventKind::Noticed { resource, session, token, why, remaining, reason } => {
            Kind::Noticed(proto::Noticed {
                resource: resource.to_string(),
                session_number: session.get(),
                token: token.get(),
                why: end_reason(*why),
                remaining_ms: millis(*remaining),
                reason: reason.as_deref().unwrap_or_default().into(),
            })
        }
        EventKind::Queued { resource, session, holder, number } => Kind::Queued(proto::Queued {
            resource: resource.to_string(),
            session_number: session.get(),
            holder: holder.to_string(),
            number: *number,
        }),
        EventKind::Unqueued { resource, session, holder, number, why } => Kind::Unqueued(proto::Unqueued {
            resource: resource.to_string(),
            session_number: session.get(),
            holder: holder.to_string(),
            number: *number,
            why: end_reason(*why),
        }),
        EventKind::Put { key, value, create_revision, version } => Kind::Put(proto::RegisterPut {
            key: key.as_bytes().to_vec(),
            value: value.to_vec(),
            create_revision: create_revision.get(),
            version: *version,
        }),
        EventKind::Deleted { key } => Kind::Deleted(proto::RegisterDeleted { key: key.as_bytes().to_vec() }),
        EventKind::Barrier { resource, token } => {
            Kind::Barrier(proto::BarrierTaken { resource: resource.to_string(), token: token.get() })
        }
        EventKind::Armed { scope, fence, token } => Kind::Armed(proto::Armed {
            scope: Some(scope.into()),
            fence: fence.to_string(),
            token: token.get(),
        }),
        EventKind::Refused { scope, fence, presented, seen, count } => Kind::Refused(proto::WritesRefused {
            scope: Some(scope.into()),
            fence: fence.to_string(),
            presented: presented.get(),
            seen: seen.get(),
            count: *count,
        }),
        EventKind::Paused { session, holder, length } => Kind::Paused(proto::Paused {
            session_number: session.get(),
            holder: holder.to_string(),
            paused_ms: millis(*length),
        }),
        EventKind::BecameLeader { node, term } => {
            Kind::TookOffice(proto::TookOffice { node: *node, term: *term })
        }
        EventKind::Changed { what, how } => {
            Kind::Changed(proto::Changed { what: what.to_string(), how: (*how).to_string() })
        }
    }
}
