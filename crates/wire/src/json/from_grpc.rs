//! Messages of `tenure.v1` in the shapes of the JSON interface, so that a client of the one shows what the other
//! would answer. What an older server does not say has the value that it had then.

use tenure_core::{EndReason, WallTime};

use super::{
    ArmedBody, ClusterStatus, Event, EventKind, Fence, Granted, HistoryDropped, Holder, Lease, LeaseChange,
    Mode, NodeStatus, Register, Renewed, RestoreStaging, SessionOpened, SessionSummary, Transition, Waiter,
    text_or_base64,
};
use crate::grpc::{kind_of, read_mode};
use crate::proto;
use crate::words::calendar;

impl From<Option<&proto::Mode>> for Mode {
    fn from(mode: Option<&proto::Mode>) -> Mode {
        read_mode(mode).into()
    }
}

/// The word for an end; none if there was no end.
fn why(why: proto::EndReason) -> Option<String> {
    Option::<EndReason>::from(why).map(|why| why.to_string())
}

/// The word for the end of something that has ended.
fn some_why(reason: proto::EndReason) -> String {
    why(reason).unwrap_or_else(|| "ended".to_owned())
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// Calendar time as text.
fn at(unix_ms: u64) -> String {
    calendar(WallTime::from_unix_millis(unix_ms))
}

fn scope(scope: &proto::Scope) -> String {
    match scope.slot {
        None => scope.resource.clone(),
        Some(slot) => format!("{}#{slot}", scope.resource),
    }
}

impl From<&proto::Grant> for Granted {
    fn from(grant: &proto::Grant) -> Granted {
        Granted {
            resource: grant.resource.clone(),
            session: some(&grant.session),
            session_number: grant.session_number,
            holder: grant.holder.clone(),
            mode: grant.mode.as_ref().into(),
            slot: grant.slot,
            token: grant.token,
            generation: grant.generation,
            remaining_ms: grant.remaining_ms,
            ttl_ms: grant.ttl_ms,
            waited_ms: grant.waited_ms,
            fences: grant.fences.clone(),
        }
    }
}

impl From<&proto::Holding> for Holder {
    fn from(holding: &proto::Holding) -> Holder {
        Holder {
            session_number: holding.session_number,
            holder: holding.holder.clone(),
            mode: holding.mode.as_ref().into(),
            slot: holding.slot,
            token: holding.token,
            generation: holding.generation,
            remaining_ms: holding.remaining_ms,
            ttl_ms: holding.ttl_ms,
            held_ms: holding.held_ms,
            from: None,
            notice: why(holding.notice()),
            lapsed: holding.lapsed,
            identity: some(&holding.identity),
        }
    }
}

impl From<&proto::HistoryDropped> for HistoryDropped {
    fn from(dropped: &proto::HistoryDropped) -> HistoryDropped {
        HistoryDropped {
            leases: dropped.leases,
            limit: dropped.limit.clone(),
            max: dropped.max,
            token: dropped.token,
            ended: dropped.ended_unix_ms.map(at),
        }
    }
}

impl From<&proto::WaiterView> for Waiter {
    fn from(waiter: &proto::WaiterView) -> Waiter {
        Waiter {
            session_number: waiter.session_number,
            holder: waiter.holder.clone(),
            mode: waiter.mode.as_ref().into(),
            priority: waiter.priority,
            waited_ms: waiter.waited_ms,
            remaining_ms: waiter.remaining_ms,
            resources: waiter.resources.clone(),
            identity: some(&waiter.identity),
        }
    }
}

impl Lease {
    /// The resource of a message. Its fences are asked for separately: those among `fences` that are of this
    /// resource.
    pub fn of(lease: &proto::Lease, fences: &[proto::FenceView]) -> Lease {
        let newest = lease.holders.iter().max_by_key(|holding| holding.token);
        Lease {
            resource: lease.resource.clone(),
            state: if lease.holders.is_empty() { "free" } else { "held" }.to_owned(),
            kind: kind_of(lease).map(Into::into),
            holders: lease.holders.iter().map(Into::into).collect(),
            holder: newest.map(|holding| holding.holder.clone()),
            token: lease.token,
            generation: lease.generation,
            remaining_ms: newest.map(|holding| holding.remaining_ms),
            waiters: lease.waiters.iter().map(Into::into).collect(),
            // A node that does not count them shows them all.
            waiting: u64::from(lease.waiting).max(lease.waiters.len() as u64),
            delayed_ms: lease.delayed_ms,
            fences: fences.iter().filter(|fence| fence.resource == lease.resource).map(Into::into).collect(),
        }
    }
}

impl From<&proto::FenceView> for Fence {
    fn from(view: &proto::FenceView) -> Fence {
        let armed = view.armed.iter().map(|armed| ArmedBody { slot: armed.slot, token: armed.token });
        Fence {
            fence: view.fence.clone(),
            armed: armed.collect(),
            refused: view.refused,
            refused_at: view.refused_unix_ms.map(at),
        }
    }
}

impl Transition {
    /// The past lease of a message; none for one that has not ended.
    pub fn of(past: &proto::Transition) -> Option<Transition> {
        Some(Transition {
            token: past.token,
            generation: past.generation,
            session_number: past.session_number,
            holder: past.holder.clone(),
            mode: past.mode.as_ref().into(),
            slot: past.slot,
            from: at(past.from_unix_ms),
            to: at(past.to_unix_ms?),
            held_ms: past.held_ms,
            why: some_why(past.why()),
            reason: some(&past.reason),
            identity: some(&past.identity),
        })
    }
}

impl From<&proto::SessionSummary> for SessionSummary {
    fn from(summary: &proto::SessionSummary) -> SessionSummary {
        SessionSummary {
            session_number: summary.session_number,
            holder: summary.holder.clone(),
            ttl_ms: summary.ttl_ms,
            remaining_ms: summary.remaining_ms,
            open_ms: summary.open_ms.unwrap_or_default(),
            leases: summary.leases.into(),
            waiting: summary.waiting.into(),
            lapsed: summary.lapsed,
            identity: some(&summary.identity),
        }
    }
}

impl From<proto::SessionOpenResponse> for SessionOpened {
    fn from(opened: proto::SessionOpenResponse) -> SessionOpened {
        SessionOpened {
            session: opened.session,
            session_number: opened.session_number,
            holder: opened.holder,
            ttl_ms: opened.ttl_ms,
            number: opened.number,
        }
    }
}

impl From<&proto::LeaseChange> for LeaseChange {
    fn from(change: &proto::LeaseChange) -> LeaseChange {
        LeaseChange {
            resource: change.resource.clone(),
            token: change.token,
            why: some_why(change.why()),
            remaining_ms: change.remaining_ms,
        }
    }
}

impl Renewed {
    /// What a renewal of this session answered.
    pub fn of(session: &str, renewed: &proto::Renewed) -> Renewed {
        Renewed {
            session: session.to_owned(),
            holder: None,
            ttl_ms: renewed.ttl_ms,
            number: renewed.number,
            last_lease_revision: renewed.last_lease_revision,
            noticed: renewed.noticed.iter().map(Into::into).collect(),
            ended: renewed.ended.iter().map(Into::into).collect(),
            incomplete: renewed.incomplete,
        }
    }
}

impl From<&proto::Register> for Register {
    fn from(register: &proto::Register) -> Register {
        let (key, key_base64) = text_or_base64(&register.key);
        let (value, value_base64) = register.value.as_deref().map(text_or_base64).unwrap_or_default();
        Register {
            key,
            key_base64,
            value,
            value_base64,
            create_revision: register.create_revision,
            mod_revision: register.mod_revision,
            version: register.version,
            session_number: register.session_number,
            guard: register.guard.as_ref().map(scope),
        }
    }
}

impl From<&proto::NodeStatus> for NodeStatus {
    fn from(node: &proto::NodeStatus) -> NodeStatus {
        NodeStatus {
            node: node.node,
            peer_address: node.peer_address.clone(),
            client_address: node.client_address.clone(),
            role: node.role.clone(),
            reachable: node.reachable,
            last_log: node.last_log,
            version: node.version.clone(),
            identity: node.identity.clone(),
            format_newest: node.format_newest,
        }
    }
}

impl From<NodeStatus> for proto::NodeStatus {
    fn from(node: NodeStatus) -> proto::NodeStatus {
        proto::NodeStatus {
            node: node.node,
            peer_address: node.peer_address,
            client_address: node.client_address,
            role: node.role,
            reachable: node.reachable,
            last_log: node.last_log,
            version: node.version,
            identity: node.identity,
            format_newest: node.format_newest,
        }
    }
}

impl From<proto::RestoreStaging> for RestoreStaging {
    fn from(staging: proto::RestoreStaging) -> RestoreStaging {
        let proto::RestoreStaging { pieces, records, bytes, discarded_in_ms } = staging;
        RestoreStaging { pieces, records, bytes, discarded_in_ms }
    }
}

impl From<RestoreStaging> for proto::RestoreStaging {
    fn from(staging: RestoreStaging) -> proto::RestoreStaging {
        let RestoreStaging { pieces, records, bytes, discarded_in_ms } = staging;
        proto::RestoreStaging { pieces, records, bytes, discarded_in_ms }
    }
}

impl From<&proto::ClusterStatusResponse> for ClusterStatus {
    fn from(status: &proto::ClusterStatusResponse) -> ClusterStatus {
        ClusterStatus {
            cluster: status.cluster.clone(),
            leader: status.leader,
            term: status.term,
            nodes: status.nodes.iter().map(Into::into).collect(),
            node: status.node,
            applied: status.applied,
            committed: status.committed,
            revision: status.revision,
            last_token: status.last_token,
            cluster_time_us: status.cluster_time_us,
            sessions: status.sessions,
            leases: status.leases,
            waiters: status.waiters,
            state_hash: some(&status.state_hash),
            fault_tolerant: status.fault_tolerant,
            restoring_ms: status.restoring_ms,
            staging: status.staging.map(Into::into),
            format: status.format,
            format_next: status.format_next,
            insecure: status.insecure,
            plain_sessions: status.plain_sessions,
        }
    }
}

impl From<ClusterStatus> for proto::ClusterStatusResponse {
    fn from(status: ClusterStatus) -> proto::ClusterStatusResponse {
        proto::ClusterStatusResponse {
            cluster: status.cluster,
            leader: status.leader,
            term: status.term,
            nodes: status.nodes.into_iter().map(Into::into).collect(),
            node: status.node,
            applied: status.applied,
            committed: status.committed,
            revision: status.revision,
            last_token: status.last_token,
            cluster_time_us: status.cluster_time_us,
            sessions: status.sessions,
            leases: status.leases,
            waiters: status.waiters,
            state_hash: status.state_hash.unwrap_or_default(),
            fault_tolerant: status.fault_tolerant,
            restoring_ms: status.restoring_ms,
            staging: status.staging.map(Into::into),
            format: status.format,
            format_next: status.format_next,
            insecure: status.insecure,
            plain_sessions: status.plain_sessions,
        }
    }
}

impl Event {
    /// The events of one revision. A kind that this build does not know is left out: a newer store has more to
    /// tell.
    pub fn of(response: &proto::WatchResponse) -> Vec<Event> {
        let event = |event: &proto::Event| {
            Some(Event {
                revision: response.revision,
                at: at(response.unix_ms),
                kind: event.kind.as_ref()?.into(),
                identity: some(&event.identity),
            })
        };
        response.events.iter().filter_map(event).collect()
    }
}

impl From<&proto::event::Kind> for EventKind {
    fn from(kind: &proto::event::Kind) -> EventKind {
        use EventKind as Json;
        use proto::event::Kind as Proto;
        match kind.clone() {
            Proto::Opened(event) => {
                Json::Opened { session_number: event.session_number, holder: event.holder }
            }
            Proto::Closed(event) => {
                let why = some_why(event.why());
                Json::Closed { session_number: event.session_number, holder: event.holder, why }
            }
            Proto::Lapsed(event) => {
                Json::Lapsed { session_number: event.session_number, holder: event.holder }
            }
            Proto::Granted(event) => Json::Granted {
                resource: event.resource,
                session_number: event.session_number,
                holder: event.holder,
                mode: event.mode.as_ref().into(),
                slot: event.slot,
                token: event.token,
                generation: event.generation,
                waited_ms: event.waited_ms,
                number: event.number,
            },
            Proto::Ended(event) => Json::Ended {
                why: some_why(event.why()),
                reason: some(&event.reason),
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
                reason: some(&event.reason),
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
                let (key, key_base64) = text_or_base64(&event.key);
                let (value, value_base64) = text_or_base64(&event.value);
                Json::Put {
                    key,
                    key_base64,
                    value,
                    value_base64,
                    create_revision: event.create_revision,
                    version: event.version,
                }
            }
            Proto::Deleted(event) => {
                let (key, key_base64) = text_or_base64(&event.key);
                Json::Deleted { key, key_base64 }
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
}
