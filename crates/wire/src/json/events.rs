//! Events as JSON: one object each, with its revision, its calendar time and its kind.
//!
//! Over server-sent events each is a message whose `event:` is its kind. Only the last one of a revision carries
//! `id:`, so that a watcher cut off in the middle of a revision gets the whole of it again.

use serde::{Deserialize, Serialize};
use tenure_core::Slot;

use super::{Mode, text_or_base64};
use crate::words::{calendar, millis};

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Event {
    /// The revision of the command that made the change.
    pub revision: u64,
    /// When, for people.
    pub at: String,
    /// What changed.
    #[serde(flatten)]
    pub kind: EventKind,
    /// Who opened the session that it is about; of what has no session, who changed it. Left out if not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
}

/// The events that are still remembered, in order: one page of whole revisions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Events {
    /// One page of them.
    pub events: Vec<Event>,
    /// Everything from this revision on is remembered; what was before is forgotten.
    pub complete_from: u64,
    /// The present revision.
    pub revision: u64,
    /// The `from` of the next page.
    pub next: Option<u64>,
}

/// What changed; the field `kind` says which of these it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
#[expect(
    missing_docs,
    reason = "the fields are those of the events in core, under the names of the JSON interface"
)]
pub enum EventKind {
    /// A session was opened.
    Opened { session_number: u64, holder: String },
    /// A session ended, after all of its leases.
    Closed { session_number: u64, holder: String, why: String },
    /// A session is past its TTL, not yet past its hard limit.
    Lapsed { session_number: u64, holder: String },
    /// A resource has a (further) holder.
    Granted {
        resource: String,
        session_number: u64,
        holder: String,
        mode: Mode,
        slot: Option<u32>,
        token: u64,
        generation: u64,
        waited_ms: u64,
        number: Option<u64>,
    },
    /// A lease ended.
    Ended {
        resource: String,
        session_number: u64,
        holder: String,
        slot: Option<u32>,
        token: u64,
        why: String,
        held_ms: u64,
        late_us: u64,
        reason: Option<String>,
    },
    /// A lease is to end: when the holder confirms, or when this much has passed.
    Noticed {
        resource: String,
        session_number: u64,
        token: u64,
        why: String,
        remaining_ms: u64,
        reason: Option<String>,
    },
    /// An acquire waits in the queue.
    Queued { resource: String, session_number: u64, holder: String, number: Option<u64> },
    /// An acquire left the queue without a grant.
    Unqueued { resource: String, session_number: u64, holder: String, number: Option<u64>, why: String },
    /// A register was written.
    Put {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key_base64: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value_base64: Option<String>,
        create_revision: u64,
        version: u64,
    },
    /// A register was removed.
    Deleted {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key_base64: Option<String>,
    },
    /// A token was taken without a holder.
    Barrier { resource: String, token: u64 },
    /// A fence installed a token.
    Armed { scope: String, fence: String, token: u64 },
    /// A fence refused stale writes.
    Refused { scope: String, fence: String, presented: u64, seen: u64, count: u32 },
    /// A holder reported that it had been paused.
    Paused { session_number: u64, holder: String, paused_ms: u64 },
    /// A node became leader.
    #[serde(rename = "took_office")]
    BecameLeader { node: u64, term: u64 },
    /// An administrator changed something about a resource or register.
    Changed { what: String, how: String },
}

impl EventKind {
    /// The value of `kind`.
    pub fn name(&self) -> &'static str {
        match self {
            EventKind::Opened { .. } => "opened",
            EventKind::Closed { .. } => "closed",
            EventKind::Lapsed { .. } => "lapsed",
            EventKind::Granted { .. } => "granted",
            EventKind::Ended { .. } => "ended",
            EventKind::Noticed { .. } => "noticed",
            EventKind::Queued { .. } => "queued",
            EventKind::Unqueued { .. } => "unqueued",
            EventKind::Put { .. } => "put",
            EventKind::Deleted { .. } => "deleted",
            EventKind::Barrier { .. } => "barrier",
            EventKind::Armed { .. } => "armed",
            EventKind::Refused { .. } => "refused",
            EventKind::Paused { .. } => "paused",
            EventKind::BecameLeader { .. } => "took_office",
            EventKind::Changed { .. } => "changed",
        }
    }
}

impl From<&tenure_core::Event> for Event {
    fn from(event: &tenure_core::Event) -> Event {
        Event {
            revision: event.revision.get(),
            at: calendar(event.wall),
            kind: EventKind::from(&event.kind),
            identity: event.identity.as_ref().map(ToString::to_string),
        }
    }
}

impl From<&tenure_core::EventKind> for EventKind {
    fn from(kind: &tenure_core::EventKind) -> EventKind {
        use tenure_core::EventKind as Core;
        match kind {
            Core::Opened { session, holder } => {
                EventKind::Opened { session_number: session.get(), holder: holder.to_string() }
            }
            Core::Closed { session, holder, why } => EventKind::Closed {
                session_number: session.get(),
                holder: holder.to_string(),
                why: why.to_string(),
            },
            Core::Lapsed { session, holder } => {
                EventKind::Lapsed { session_number: session.get(), holder: holder.to_string() }
            }
            Core::Granted { resource, session, holder, mode, slot, token, generation, waited, number } => {
                EventKind::Granted {
                    resource: resource.to_string(),
                    session_number: session.get(),
                    holder: holder.to_string(),
                    mode: (*mode).into(),
                    slot: slot.map(Slot::get),
                    token: token.get(),
                    generation: generation.get(),
                    waited_ms: millis(*waited),
                    number: *number,
                }
            }
            Core::Ended { resource, session, holder, slot, token, why, held_for, late, reason } => {
                EventKind::Ended {
                    resource: resource.to_string(),
                    session_number: session.get(),
                    holder: holder.to_string(),
                    slot: slot.map(Slot::get),
                    token: token.get(),
                    why: why.to_string(),
                    held_ms: millis(*held_for),
                    late_us: u64::try_from(late.as_micros()).unwrap_or(u64::MAX),
                    reason: reason.as_deref().map(Into::into),
                }
            }
            Core::Noticed { resource, session, token, why, remaining, reason } => EventKind::Noticed {
                resource: resource.to_string(),
                session_number: session.get(),
                token: token.get(),
                why: why.to_string(),
                remaining_ms: millis(*remaining),
                reason: reason.as_deref().map(Into::into),
            },
            Core::Queued { resource, session, holder, number } => EventKind::Queued {
                resource: resource.to_string(),
                session_number: session.get(),
                holder: holder.to_string(),
                number: *number,
            },
            Core::Unqueued { resource, session, holder, number, why } => EventKind::Unqueued {
                resource: resource.to_string(),
                session_number: session.get(),
                holder: holder.to_string(),
                number: *number,
                why: why.to_string(),
            },
            Core::Put { key, value, create_revision, version } => {
                let (key, key_base64) = text_or_base64(key.as_bytes());
                let (value, value_base64) = text_or_base64(value);
                EventKind::Put {
                    key,
                    key_base64,
                    value,
                    value_base64,
                    create_revision: create_revision.get(),
                    version: *version,
                }
            }
            Core::Deleted { key } => {
                let (key, key_base64) = text_or_base64(key.as_bytes());
                EventKind::Deleted { key, key_base64 }
            }
            Core::Barrier { resource, token } => {
                EventKind::Barrier { resource: resource.to_string(), token: token.get() }
            }
            Core::Armed { scope, fence, token } => {
                EventKind::Armed { scope: scope.to_string(), fence: fence.to_string(), token: token.get() }
            }
            Core::Refused { scope, fence, presented, seen, count } => EventKind::Refused {
                scope: scope.to_string(),
                fence: fence.to_string(),
                presented: presented.get(),
                seen: seen.get(),
                count: *count,
            },
            Core::Paused { session, holder, length } => EventKind::Paused {
                session_number: session.get(),
                holder: holder.to_string(),
                paused_ms: millis(*length),
            },
            Core::BecameLeader { node, term } => EventKind::BecameLeader { node: *node, term: *term },
            Core::Changed { what, how } => {
                EventKind::Changed { what: what.to_string(), how: (*how).to_string() }
            }
        }
    }
}
