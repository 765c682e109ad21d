//! What the store answered, in the shapes of the JSON interface: `--json` prints these and `render/` reads them,
//! so the command line and the HTTP surface cannot drift apart. Nothing is decided here.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use tenure_client::proto;
use tenure_core::{EndReason, RegisterKey, Revision, SessionNumber, WallTime};
use tenure_wire::json;
use tenure_wire::words::calendar;

/// Any shape as a value.
pub fn value(shape: &impl Serialize) -> Value {
    serde_json::to_value(shape).expect("shapes have text keys and numbers that JSON can say")
}

/// How a resource is held; what an older store does not say is exclusive.
pub fn mode(mode: Option<&proto::Mode>) -> json::Mode {
    let kind = mode.map(proto::Mode::kind).unwrap_or_default();
    match kind {
        proto::ModeKind::Unspecified | proto::ModeKind::Exclusive => json::Mode::Exclusive,
        proto::ModeKind::Shared => json::Mode::Shared,
        proto::ModeKind::Slots => json::Mode::Slots(mode.map_or(0, |mode| mode.slots)),
    }
}

/// The word for an end; none if there was no end.
pub fn why(why: proto::EndReason) -> Option<String> {
    let reason = match why {
        proto::EndReason::Unspecified => return None,
        proto::EndReason::Released => EndReason::Released,
        proto::EndReason::Expired => EndReason::Expired,
        proto::EndReason::Revoked => EndReason::Revoked,
        proto::EndReason::Transferred => EndReason::Transferred,
        proto::EndReason::HeldTooLong => EndReason::HeldTooLong,
        proto::EndReason::TakenOver => EndReason::TakenOver,
        proto::EndReason::Died => EndReason::Died,
    };
    Some(reason.to_string())
}

fn some_why(reason: proto::EndReason) -> String {
    why(reason).unwrap_or_else(|| "ended".to_owned())
}

fn said(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// Calendar time as text.
fn at(unix_ms: u64) -> String {
    calendar(WallTime::from_unix_millis(unix_ms))
}

/// A lease as its holder sees it.
pub fn granted(grant: &proto::Grant) -> json::Granted {
    json::Granted {
        resource: grant.resource.clone(),
        session: said(&grant.session),
        session_number: grant.session_number,
        holder: grant.holder.clone(),
        mode: mode(grant.mode.as_ref()),
        slot: grant.slot,
        token: grant.token,
        generation: grant.generation,
        remaining_ms: grant.remaining_ms,
        ttl_ms: grant.ttl_ms,
        waited_ms: grant.waited_ms,
        fences: grant.fences.clone(),
    }
}

/// One holder of a resource.
pub fn holder(holding: &proto::Holding) -> json::Holder {
    json::Holder {
        session_number: holding.session_number,
        holder: holding.holder.clone(),
        mode: mode(holding.mode.as_ref()),
        slot: holding.slot,
        token: holding.token,
        generation: holding.generation,
        remaining_ms: holding.remaining_ms,
        ttl_ms: holding.ttl_ms,
        held_ms: holding.held_ms,
        from: None,
        notice: why(holding.notice()),
        lapsed: holding.lapsed,
    }
}

/// A resource and all that is known of it; its fences are asked for separately.
pub fn lease(lease: &proto::Lease, fences: &[proto::FenceView]) -> json::Lease {
    let newest = lease.holders.iter().max_by_key(|holding| holding.token);
    let waiter = |waiter: &proto::WaiterView| json::Waiter {
        session_number: waiter.session_number,
        holder: waiter.holder.clone(),
        mode: mode(waiter.mode.as_ref()),
        priority: waiter.priority,
        waited_ms: waiter.waited_ms,
        remaining_ms: waiter.remaining_ms,
        resources: Vec::new(),
    };
    let kind = newest.map(|holding| match mode(holding.mode.as_ref()) {
        json::Mode::Exclusive | json::Mode::Shared => json::Kind::Lock,
        json::Mode::Slots(slots) => json::Kind::Semaphore(slots),
    });
    json::Lease {
        resource: lease.resource.clone(),
        state: if lease.holders.is_empty() { "free" } else { "held" }.to_owned(),
        kind,
        holders: lease.holders.iter().map(holder).collect(),
        holder: newest.map(|holding| holding.holder.clone()),
        token: lease.token,
        generation: lease.generation,
        remaining_ms: newest.map(|holding| holding.remaining_ms),
        waiters: lease.waiters.iter().map(waiter).collect(),
        // A node that does not count them shows them all.
        waiting: u64::from(lease.waiting).max(lease.waiters.len() as u64),
        delayed_ms: lease.delayed_ms,
        fences: fences.iter().filter(|fence| fence.resource == lease.resource).map(fence).collect(),
    }
}

fn fence(view: &proto::FenceView) -> json::Fence {
    json::Fence {
        fence: view.fence.clone(),
        armed: view
            .armed
            .iter()
            .map(|armed| json::ArmedBody { slot: armed.slot, token: armed.token })
            .collect(),
        refused: view.refused,
        refused_at: view.refused_unix_ms.map(at),
    }
}

/// A past lease; none for one that has not ended.
pub fn transition(past: &proto::Transition) -> Option<json::Transition> {
    Some(json::Transition {
        token: past.token,
        generation: past.generation,
        session_number: past.session_number,
        holder: past.holder.clone(),
        mode: mode(past.mode.as_ref()),
        slot: past.slot,
        from: at(past.from_unix_ms),
        to: at(past.to_unix_ms?),
        held_ms: past.held_ms,
        why: some_why(past.why()),
        reason: said(&past.reason),
    })
}

/// A lease that has not ended, in the shape of those that have.
pub fn present(holder: &json::Holder) -> Value {
    let mut shape = value(holder);
    shape["to"] = Value::Null;
    shape["why"] = Value::Null;
    shape
}

/// A session as anybody may see it.
pub fn session(summary: &proto::SessionSummary) -> Value {
    json!({
        "session_number": summary.session_number,
        "holder": summary.holder,
        "ttl_ms": summary.ttl_ms,
        "remaining_ms": summary.remaining_ms,
        "leases": summary.leases,
        "waiting": summary.waiting,
        "lapsed": summary.lapsed,
    })
}

/// What a renewal answered.
pub fn renewed(session: &str, answer: &proto::Renewed) -> json::Renewed {
    let change = |change: &proto::LeaseNews| json::LeaseNews {
        resource: change.resource.clone(),
        token: change.token,
        why: some_why(change.why()),
        remaining_ms: change.remaining_ms,
    };
    json::Renewed {
        session: session.to_owned(),
        holder: None,
        ttl_ms: answer.ttl_ms,
        number: answer.number,
        last_lease_revision: answer.last_lease_revision,
        noticed: answer.noticed.iter().map(change).collect(),
        ended: answer.ended.iter().map(change).collect(),
        incomplete: answer.incomplete,
    }
}

/// A register; a key that the store could not have is shown as it came.
pub fn register(register: &proto::Register) -> json::Register {
    let guard = register.guard.as_ref().map(scope);
    let key = RegisterKey::try_from(register.key.as_slice());
    let shown = key.map(|key| {
        json::Register::from(&tenure_core::Register {
            key,
            value: register.value.as_deref().map(Arc::from),
            create_revision: Revision::new(register.create_revision),
            mod_revision: Revision::new(register.mod_revision),
            version: register.version,
            session: register.session_number.map(SessionNumber::new),
            guard: None,
        })
    });
    let empty = json::Register {
        key: None,
        key_base64: None,
        value: None,
        value_base64: None,
        create_revision: register.create_revision,
        mod_revision: register.mod_revision,
        version: register.version,
        session_number: register.session_number,
        guard: None,
    };
    json::Register { guard, ..shown.unwrap_or(empty) }
}

/// Who leads an election.
#[derive(Serialize)]
pub struct Leadership {
    /// Its name.
    pub election: String,
    /// Who leads; none if nobody does.
    pub leader: Option<json::Holder>,
    /// What the leader has published, if it is text.
    pub value: Option<String>,
    /// The same, if it is not.
    pub value_base64: Option<String>,
    /// How many wait in the queue.
    pub candidates: u64,
    /// For how long nobody can be elected, after an unclean end.
    pub delayed_ms: Option<u64>,
}

impl Leadership {
    /// What makes another leadership of it: time that passes and candidates that come do not.
    pub fn identity(&self) -> (Option<u64>, Option<String>, Option<String>) {
        let token = self.leader.as_ref().map(|leader| leader.token);
        (token, self.value.clone(), self.value_base64.clone())
    }
}

/// Who leads, from the lease and the register that leaders publish in.
pub fn leadership(election: &str, lease: &proto::Lease, published: &proto::Register) -> Leadership {
    let leader = lease.holders.iter().max_by_key(|holding| holding.token);
    // Only what this very session has published: the last leader's value may not be cleared away yet.
    let ours = leader.is_some_and(|leader| published.session_number == Some(leader.session_number));
    let published = ours.then(|| register(published));
    Leadership {
        election: election.to_owned(),
        leader: leader.map(holder),
        value: published.as_ref().and_then(|register| register.value.clone()),
        value_base64: published.and_then(|register| register.value_base64),
        candidates: u64::from(lease.waiting).max(lease.waiters.len() as u64),
        delayed_ms: lease.delayed_ms,
    }
}

fn scope(scope: &proto::Scope) -> String {
    match scope.slot {
        None => scope.resource.clone(),
        Some(slot) => format!("{}#{slot}", scope.resource),
    }
}

/// The cluster, as the node that answered sees it.
pub fn cluster(status: &proto::ClusterStatusResponse) -> json::ClusterStatus {
    let node = |node: &proto::NodeStatus| json::NodeStatus {
        node: node.node,
        peer_address: node.peer_address.clone(),
        client_address: node.client_address.clone(),
        role: node.role.clone(),
        reachable: node.reachable,
        last_log: node.last_log,
        version: node.version.clone(),
        identity: node.identity.clone(),
        format_newest: node.format_newest,
    };
    json::ClusterStatus {
        cluster: status.cluster.clone(),
        leader: status.leader,
        term: status.term,
        nodes: status.nodes.iter().map(node).collect(),
        node: status.node,
        applied: status.applied,
        committed: status.committed,
        revision: status.revision,
        last_token: status.last_token,
        cluster_time_us: status.cluster_time_us,
        sessions: status.sessions,
        leases: status.leases,
        waiters: status.waiters,
        state_hash: said(&status.state_hash),
        fault_tolerant: status.fault_tolerant,
        restoring_ms: status.restoring_ms,
        format: status.format,
        format_next: status.format_next,
    }
}

/// The events of one revision. A kind that this build does not know is left out: a newer store has more to tell.
pub fn events(response: &proto::WatchResponse) -> Vec<json::Event> {
    let event = |event: &proto::Event| {
        Some(json::Event {
            revision: response.revision,
            at: at(response.unix_ms),
            kind: event_kind(event.kind.as_ref()?),
        })
    };
    response.events.iter().filter_map(event).collect()
}

fn event_kind(kind: &proto::event::Kind) -> json::EventKind {
    use json::EventKind as Json;
    use proto::event::Kind as Proto;
    match kind.clone() {
        Proto::Opened(event) => Json::Opened { session_number: event.session_number, holder: event.holder },
        Proto::Closed(event) => {
            let why = some_why(event.why());
            Json::Closed { session_number: event.session_number, holder: event.holder, why }
        }
        Proto::Lapsed(event) => Json::Lapsed { session_number: event.session_number, holder: event.holder },
        Proto::Granted(event) => Json::Granted {
            resource: event.resource,
            session_number: event.session_number,
            holder: event.holder,
            mode: mode(event.mode.as_ref()),
            slot: event.slot,
            token: event.token,
            generation: event.generation,
            waited_ms: event.waited_ms,
            number: event.number,
        },
        Proto::Ended(event) => Json::Ended {
            why: some_why(event.why()),
            reason: said(&event.reason),
            resource: event.resource,
            session_number: event.session_number,
            holder: event.holder,
            slot: event.slot,
            token: event.token,
            held_ms: event.held_ms,
            late_us: event.late_us,
        },
        Proto::Noticed(event) => Json::Noticed {
            why: some_why(event.why()),
            reason: said(&event.reason),
            resource: event.resource,
            session_number: event.session_number,
            token: event.token,
            remaining_ms: event.remaining_ms,
        },
        Proto::Queued(event) => Json::Queued {
            resource: event.resource,
            session_number: event.session_number,
            holder: event.holder,
            number: event.number,
        },
        Proto::Unqueued(event) => Json::Unqueued {
            why: some_why(event.why()),
            resource: event.resource,
            session_number: event.session_number,
            holder: event.holder,
            number: event.number,
        },
        Proto::Put(event) => {
            let written =
                register(&proto::Register { key: event.key, value: Some(event.value), ..Default::default() });
            Json::Put {
                key: written.key,
                key_base64: written.key_base64,
                value: written.value,
                value_base64: written.value_base64,
                create_revision: event.create_revision,
                version: event.version,
            }
        }
        Proto::Deleted(event) => {
            let gone = register(&proto::Register { key: event.key, ..Default::default() });
            Json::Deleted { key: gone.key, key_base64: gone.key_base64 }
        }
        Proto::Barrier(event) => Json::Barrier { resource: event.resource, token: event.token },
        Proto::Armed(event) => Json::Armed {
            scope: event.scope.as_ref().map(scope).unwrap_or_default(),
            fence: event.fence,
            token: event.token,
        },
        Proto::Refused(event) => Json::Refused {
            scope: event.scope.as_ref().map(scope).unwrap_or_default(),
            fence: event.fence,
            presented: event.presented,
            seen: event.seen,
            count: event.count,
        },
        Proto::Paused(event) => Json::Paused {
            session_number: event.session_number,
            holder: event.holder,
            paused_ms: event.paused_ms,
        },
        Proto::TookOffice(event) => Json::BecameLeader { node: event.node, term: event.term },
        Proto::Changed(event) => Json::Changed { what: event.what, how: event.how },
    }
}
