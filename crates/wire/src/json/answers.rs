//! Bodies of answers, made from what the machine says.

use serde::{Deserialize, Serialize};
use tenure_core::{
    DroppedLeases, EndReason, FenceView, Grant, HistoryView, HolderName, Holding, LeaseView, OwnSession,
    PastLease, RenewalAnswer, RenewalEvents, ResourceName, SessionId, SessionView, Slot, Token, WaiterView,
};

use super::{Kind, Mode};
use crate::error::ApiError;
use crate::words::{calendar, millis};

/// The body of every error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Error"))]
pub struct ErrorBody {
    /// What went wrong.
    pub error: ApiError,
}

/// A body or an answer in which there is nothing to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// What the two health pages answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Health {
    /// `ok` or `ready`.
    pub status: String,
}

/// The name of a key that signs sequencers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct KeyName {
    /// The key's id.
    pub kid: String,
}

/// The public keys of all nodes, as RFC 7517 writes them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeySet {
    /// One per node, and the last one of each, if it was replaced.
    pub keys: Vec<PublicKey>,
}

/// A public key, as RFC 8037 writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PublicKey {
    /// `OKP`.
    pub kty: String,
    /// `Ed25519`.
    pub crv: String,
    /// The key's id.
    pub kid: String,
    /// The key, in base64 for URLs.
    pub x: String,
    /// `sig`.
    #[serde(rename = "use")]
    pub usage: String,
    /// `EdDSA`.
    pub alg: String,
}

/// A session is open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionOpened {
    /// Its whole id, for its opener alone.
    pub session: String,
    /// Its public number.
    pub session_number: u64,
    /// Who.
    pub holder: String,
    /// The TTL that the holder counts with, from the sending of transmission `number`.
    pub ttl_ms: u64,
    /// The number of the transmission that this answers.
    pub number: u64,
}

impl SessionOpened {
    /// The body for what an open answered.
    pub fn new(
        session: SessionId,
        holder: &HolderName,
        ttl: std::time::Duration,
        number: u64,
    ) -> SessionOpened {
        SessionOpened {
            session: session.to_string(),
            session_number: session.number.get(),
            holder: holder.to_string(),
            ttl_ms: millis(ttl),
            number,
        }
    }
}

/// A session was renewed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Renewed {
    /// Its whole id, as the caller named it.
    pub session: String,
    /// Who; left out where many are renewed at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// The TTL that the holder counts with, from the sending of transmission `number`.
    pub ttl_ms: u64,
    /// The number of the transmission that this answers.
    pub number: u64,
    /// The revision of the session's last lease change.
    pub last_lease_revision: u64,
    /// Leases under notice, to be taken in before the deadline moves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub noticed: Vec<LeaseChange>,
    /// Leases that ended without the holder asking for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<LeaseChange>,
    /// More ended than are remembered: ask for the leases still held.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
}

impl Renewed {
    /// The body for what a renewal answered.
    pub fn new(
        session: SessionId,
        holder: Option<&HolderName>,
        answer: &RenewalAnswer,
    ) -> Result<Renewed, ApiError> {
        match answer {
            RenewalAnswer::UnknownSession => Err(tenure_core::Refusal::UnknownSession.into()),
            RenewalAnswer::Renewed { number, ttl, last_lease_revision, events } => {
                let events = events.as_deref();
                Ok(Renewed {
                    session: session.to_string(),
                    holder: holder.map(ToString::to_string),
                    ttl_ms: millis(*ttl),
                    number: *number,
                    last_lease_revision: last_lease_revision.get(),
                    noticed: events.map(LeaseChange::noticed).unwrap_or_default(),
                    ended: events.map(LeaseChange::ended).unwrap_or_default(),
                    incomplete: events.is_some_and(|events| events.incomplete),
                })
            }
        }
    }
}

/// A lease of the session that is under notice or has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LeaseChange {
    /// The resource.
    pub resource: String,
    /// The token.
    pub token: u64,
    /// Why.
    pub why: String,
    /// What is left of a lease under notice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_ms: Option<u64>,
}

impl LeaseChange {
    fn noticed(events: &RenewalEvents) -> Vec<LeaseChange> {
        events
            .noticed
            .iter()
            .map(|(resource, token, why, remaining)| LeaseChange {
                remaining_ms: Some(millis(*remaining)),
                ..LeaseChange::of(resource, *token, *why)
            })
            .collect()
    }

    fn ended(events: &RenewalEvents) -> Vec<LeaseChange> {
        events.ended.iter().map(|(resource, token, why)| LeaseChange::of(resource, *token, *why)).collect()
    }

    fn of(resource: &ResourceName, token: Token, why: EndReason) -> LeaseChange {
        LeaseChange {
            resource: resource.to_string(),
            token: token.get(),
            why: why.to_string(),
            remaining_ms: None,
        }
    }
}

/// Many renewals, answered in the order asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RenewedMany {
    /// One per renewal.
    pub answers: Vec<RenewedOrError>,
}

/// One answer of many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum RenewedOrError {
    /// It was not renewed.
    Error(Box<ErrorBody>),
    /// It was renewed.
    Renewed(Renewed),
}

impl From<Result<Renewed, ApiError>> for RenewedOrError {
    fn from(answer: Result<Renewed, ApiError>) -> RenewedOrError {
        match answer {
            Ok(renewed) => RenewedOrError::Renewed(renewed),
            Err(error) => RenewedOrError::Error(Box::new(ErrorBody { error })),
        }
    }
}

/// A session has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Closed {
    /// Its whole id, as the caller named it.
    pub session: String,
    /// How many leases it gave back.
    pub released: u32,
}

/// A session as anybody may see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionSummary {
    /// Its public number.
    pub session_number: u64,
    /// Who.
    pub holder: String,
    /// How long it lives without a renewal.
    pub ttl_ms: u64,
    /// What is left of that.
    pub remaining_ms: u64,
    /// How long it has been open.
    pub open_ms: u64,
    /// How many leases it has.
    pub leases: u64,
    /// How many acquires of it wait in the queue.
    pub waiting: u64,
    /// Past its TTL, not yet past its hard limit.
    pub lapsed: bool,
    /// Who opened the session, if that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
}

impl From<&SessionView> for SessionSummary {
    fn from(view: &SessionView) -> SessionSummary {
        SessionSummary {
            session_number: view.session.get(),
            holder: view.holder.to_string(),
            ttl_ms: millis(view.ttl),
            remaining_ms: millis(view.remaining),
            open_ms: millis(view.open_for),
            leases: view.leases as u64,
            waiting: view.waiters as u64,
            lapsed: view.lapsed,
            identity: view.identity.as_ref().map(ToString::to_string),
        }
    }
}

/// Sessions, in the order of their numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sessions {
    /// One page of them.
    pub sessions: Vec<SessionSummary>,
    /// The `after` of the next page.
    pub next: Option<u64>,
}

/// One's own session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionLeases {
    /// The session.
    #[serde(flatten)]
    pub summary: SessionSummary,
    /// What it holds.
    pub held: Vec<Granted>,
}

impl From<&OwnSession> for SessionLeases {
    fn from(own: &OwnSession) -> SessionLeases {
        SessionLeases {
            summary: (&own.view).into(),
            held: own.leases.iter().map(|lease| Granted::from(&lease.grant)).collect(),
        }
    }
}

/// A lease as its holder sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Granted {
    /// The resource.
    pub resource: String,
    /// The session's whole id; left out when the lease went to somebody else's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The session's public number.
    pub session_number: u64,
    /// Who.
    pub holder: String,
    /// How it is held.
    pub mode: Mode,
    /// Which slot, for a semaphore.
    pub slot: Option<u32>,
    /// The fencing token.
    pub token: u64,
    /// How often the resource has changed hands.
    pub generation: u64,
    /// What was left of the session at the grant. No deadline follows from it.
    pub remaining_ms: u64,
    /// The session's TTL.
    pub ttl_ms: u64,
    /// How long the acquire waited in the queue. If it is not zero, renew once before acting.
    pub waited_ms: u64,
    /// The fence set of the resource: where the token is to be installed before anything is read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fences: Vec<String>,
}

impl From<&Grant> for Granted {
    fn from(grant: &Grant) -> Granted {
        Granted {
            resource: grant.resource.to_string(),
            session: Some(grant.session.to_string()),
            session_number: grant.session.number.get(),
            holder: grant.holder.to_string(),
            mode: grant.mode.into(),
            slot: grant.slot.map(Slot::get),
            token: grant.token.get(),
            generation: grant.generation.get(),
            remaining_ms: millis(grant.remaining),
            ttl_ms: millis(grant.ttl),
            waited_ms: millis(grant.waited),
            fences: grant.fences.iter().map(ToString::to_string).collect(),
        }
    }
}

impl Granted {
    /// The body for a grant to another session, whose id is not the caller's to know.
    pub fn to_another(grant: &Grant) -> Granted {
        Granted { session: None, ..Granted::from(grant) }
    }
}

/// A grant, and the signed statement of it where that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GrantedSigned {
    /// The grant.
    #[serde(flatten)]
    pub granted: Granted,
    /// A compact JWS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequencer: Option<String>,
}

/// Several leases, granted together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GrantedMany {
    /// The session's whole id.
    pub session: String,
    /// Who.
    pub holder: String,
    /// The session's TTL.
    pub ttl_ms: u64,
    /// How long the acquire waited in the queue.
    pub waited_ms: u64,
    /// One per resource, in the order asked for.
    pub leases: Vec<Granted>,
}

impl GrantedMany {
    /// The body for grants of one acquire; `None` for no grants, which no acquire answers.
    pub fn new(grants: &[Grant]) -> Option<GrantedMany> {
        let first = grants.first()?;
        Some(GrantedMany {
            session: first.session.to_string(),
            holder: first.holder.to_string(),
            ttl_ms: millis(first.ttl),
            waited_ms: millis(first.waited),
            leases: grants.iter().map(Granted::from).collect(),
        })
    }
}

/// An acquire is queued; the same request asks again and keeps its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Queued {
    /// Always true: tells this answer from a grant.
    pub queued: bool,
    /// The session that waits.
    pub session: String,
    /// Its TTL. Without a session of its own before, ask again well within this.
    pub ttl_ms: u64,
    /// How many are queued before it, over all of its resources the largest count.
    pub ahead: u32,
}

/// An acquire was undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cancelled {
    /// Whether it had been granted, and is released by this.
    pub released: bool,
}

/// A lease was given back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Released {
    /// The resource.
    pub resource: String,
    /// False if there was nothing left to give back.
    pub released: bool,
}

/// Holders were given notice, or their leases were ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Revoked {
    /// The resource.
    pub resource: String,
    /// The leases touched, with what is left of each.
    pub holders: Vec<Holder>,
    /// The token taken without a holder, where the leases ended at once.
    pub token: Option<u64>,
}

/// A token was taken without a holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenTaken {
    /// The resource.
    pub resource: String,
    /// The token, to be installed in the resource's fences.
    pub token: u64,
}

/// One holder of a resource, as anybody may see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Holder {
    /// The session's public number.
    pub session_number: u64,
    /// Who.
    pub holder: String,
    /// How it is held.
    pub mode: Mode,
    /// Which slot, for a semaphore.
    pub slot: Option<u32>,
    /// The fencing token.
    pub token: u64,
    /// How often the resource had changed hands.
    pub generation: u64,
    /// What is left before it ends without a renewal, or by the notice.
    pub remaining_ms: u64,
    /// The session's TTL.
    pub ttl_ms: u64,
    /// How long it has been held, in cluster time.
    pub held_ms: u64,
    /// When it was granted, by the leader's calendar, for people; part of histories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Why it is about to end, if notice was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
    /// The session has lapsed: the first contender takes it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lapsed: bool,
    /// Who opened the session, if that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
}

impl From<&Holding> for Holder {
    fn from(holding: &Holding) -> Holder {
        Holder {
            session_number: holding.session.get(),
            holder: holding.holder.to_string(),
            mode: holding.mode.into(),
            slot: holding.slot.map(Slot::get),
            token: holding.token.get(),
            generation: holding.generation.get(),
            remaining_ms: millis(holding.remaining),
            ttl_ms: millis(holding.ttl),
            held_ms: millis(holding.held_for),
            from: None,
            notice: holding.notice.map(|why| why.to_string()),
            lapsed: holding.lapsed,
            identity: holding.identity.as_ref().map(ToString::to_string),
        }
    }
}

/// One who waits in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Waiter {
    /// The session's public number.
    pub session_number: u64,
    /// Who.
    pub holder: String,
    /// How it wants to hold the resource.
    pub mode: Mode,
    /// Higher goes first.
    pub priority: i32,
    /// Since how long it waits.
    pub waited_ms: u64,
    /// How long it will still wait; `null` for as long as its session lives.
    pub remaining_ms: Option<u64>,
    /// Everything that it waits for, if that is more than this resource.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    /// Who opened the session, if that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
}

impl From<&WaiterView> for Waiter {
    fn from(view: &WaiterView) -> Waiter {
        let resources: &[ResourceName] = if view.resources.len() > 1 { &view.resources } else { &[] };
        Waiter {
            session_number: view.session.get(),
            holder: view.holder.to_string(),
            mode: view.mode.into(),
            priority: view.priority,
            waited_ms: millis(view.waited),
            remaining_ms: view.remaining.map(millis),
            resources: resources.iter().map(ToString::to_string).collect(),
            identity: view.identity.as_ref().map(ToString::to_string),
        }
    }
}

/// A resource as anybody may see it. `holder`, `token` and `remaining_ms` are those of the newest grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Lease {
    /// The resource.
    pub resource: String,
    /// `held` or `free`.
    pub state: String,
    /// Its kind, once fixed.
    pub kind: Option<Kind>,
    /// Who holds it; empty if it is free.
    pub holders: Vec<Holder>,
    /// Who got it last, if it is still held.
    pub holder: Option<String>,
    /// The newest token of it; `null` before the first grant.
    pub token: Option<u64>,
    /// How often it has changed hands.
    pub generation: u64,
    /// What is left of the newest lease; `null` if it is free.
    pub remaining_ms: Option<u64>,
    /// Who waits in the queue, the next first; the first 128 of them.
    pub waiters: Vec<Waiter>,
    /// How many wait in the queue, shown or not.
    #[serde(default)]
    pub waiting: u64,
    /// Nobody is granted it for this long, after an unclean end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delayed_ms: Option<u64>,
    /// Its fences and what each has installed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fences: Vec<Fence>,
}

impl From<&LeaseView> for Lease {
    fn from(view: &LeaseView) -> Lease {
        let newest = view.holders.iter().max_by_key(|holding| holding.token);
        Lease {
            resource: view.resource.to_string(),
            state: if view.holders.is_empty() { "free" } else { "held" }.into(),
            kind: view.kind.map(Into::into),
            holders: view.holders.iter().map(Into::into).collect(),
            holder: newest.map(|holding| holding.holder.to_string()),
            token: view.token.map(Token::get),
            generation: view.generation.get(),
            remaining_ms: newest.map(|holding| millis(holding.remaining)),
            waiters: view.waiters.iter().map(Into::into).collect(),
            waiting: view.waiting as u64,
            delayed_ms: view.delayed.map(millis),
            fences: view.fences.iter().map(Into::into).collect(),
        }
    }
}

/// Resources that are held, in the order of their names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Leases {
    /// One page of them.
    pub leases: Vec<Lease>,
    /// The `after` of the next page.
    pub next: Option<String>,
    /// The revision at which they were read.
    pub revision: u64,
}

/// One fence of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Fence {
    /// Its name.
    pub fence: String,
    /// What it has installed.
    pub armed: Vec<ArmedBody>,
    /// How many stale writes it has refused.
    pub refused: u64,
    /// When it last did, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused_at: Option<String>,
}

impl From<&FenceView> for Fence {
    fn from(view: &FenceView) -> Fence {
        let armed = view.armed.iter();
        Fence {
            fence: view.fence.to_string(),
            armed: armed
                .map(|armed| ArmedBody { slot: armed.slot.map(Slot::get), token: armed.token.get() })
                .collect(),
            refused: view.refused,
            refused_at: view.refused_wall.map(calendar),
        }
    }
}

/// The newest token that a fence has installed for a resource, or for one slot of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ArmedBody {
    /// The slot, for a semaphore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// The token.
    pub token: u64,
}

/// The fences of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Fences {
    /// The resource.
    pub resource: String,
    /// Its newest token: what a fence should have installed.
    pub token: Option<u64>,
    /// Its fences.
    pub fences: Vec<Fence>,
}

impl From<&LeaseView> for Fences {
    fn from(view: &LeaseView) -> Fences {
        Fences {
            resource: view.resource.to_string(),
            token: view.token.map(Token::get),
            fences: view.fences.iter().map(Into::into).collect(),
        }
    }
}

/// A past lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Transition {
    /// The fencing token.
    pub token: u64,
    /// How often the resource had changed hands.
    pub generation: u64,
    /// The session's public number.
    pub session_number: u64,
    /// Who.
    pub holder: String,
    /// How it was held.
    pub mode: Mode,
    /// Which slot, for a semaphore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// From when, for people.
    pub from: String,
    /// Until when, for people.
    pub to: String,
    /// How long, in cluster time.
    pub held_ms: u64,
    /// Why it ended.
    pub why: String,
    /// The administrator's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who opened the session, if that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
}

impl From<&PastLease> for Transition {
    fn from(past: &PastLease) -> Transition {
        Transition {
            token: past.token.get(),
            generation: past.generation.get(),
            session_number: past.session.get(),
            holder: past.holder.to_string(),
            mode: past.mode.into(),
            slot: past.slot.map(Slot::get),
            from: calendar(past.from_wall),
            to: calendar(past.to_wall),
            held_ms: millis(past.to.since(past.from)),
            why: past.why.to_string(),
            reason: past.reason.as_deref().map(Into::into),
            identity: past.identity.as_ref().map(ToString::to_string),
        }
    }
}

/// The past leases of a resource, the newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct History {
    /// The resource.
    pub resource: String,
    /// Who holds it now.
    pub holders: Vec<Holder>,
    /// What was.
    pub transitions: Vec<Transition>,
    /// Past leases that are no longer remembered; absent if all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<HistoryDropped>,
}

/// Where a history was cut, and by what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HistoryDropped {
    /// How many past leases were dropped since the resource was first seen.
    pub leases: u64,
    /// The limit that dropped the newest of them; absent, with all that follows, if that was under format version 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// That limit: leases, seconds or bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u64>,
    /// The highest token that was dropped: every past lease with a higher one is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// When the one dropped last had ended, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
}

impl From<&DroppedLeases> for HistoryDropped {
    fn from(dropped: &DroppedLeases) -> HistoryDropped {
        let newest = dropped.newest.as_ref();
        HistoryDropped {
            leases: dropped.leases,
            limit: newest.map(|newest| newest.limit.as_str().to_owned()),
            max: newest.map(|newest| newest.max),
            token: newest.map(|newest| newest.token.get()),
            ended: newest.map(|newest| calendar(newest.to_wall)),
        }
    }
}

impl From<&HistoryView> for History {
    fn from(view: &HistoryView) -> History {
        let holder =
            |(holding, since): &(Holding, _)| Holder { from: Some(calendar(*since)), ..holding.into() };
        History {
            resource: view.resource.to_string(),
            holders: view.holders.iter().map(holder).collect(),
            transitions: view.past.iter().rev().map(Into::into).collect(),
            dropped: view.dropped.as_ref().map(Into::into),
        }
    }
}

/// The past leases of many resources, in the order of their names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Histories {
    /// One page of them: those that have a past.
    pub histories: Vec<History>,
    /// The `after` of the next page.
    pub next: Option<String>,
}
