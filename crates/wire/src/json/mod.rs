//! The JSON twin of the gRPC interface: what HTTP bodies look like.
//!
//! Requests refuse fields that they do not know: a policy that is silently ignored is worse than an error.
//! Answers may grow fields. `session` is always the whole id, which only its opener gets;
//! `session_number` is its public number. Calendar times are RFC 3339 text for people.

mod answers;
mod auth;
mod cluster;
mod events;
mod from_grpc;
mod kubernetes;
mod queries;
mod registers;
mod requests;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tenure_core::{KindSetting, RegisterKey};

use crate::error::{ApiError, Code};

pub use answers::{
    ArmedBody, Cancelled, Closed, ErrorBody, Fence, Fences, Granted, GrantedMany, GrantedSigned, Health,
    Histories, History, HistoryDropped, Holder, KeyName, KeySet, Lease, LeaseChange, Leases, Nothing,
    PublicKey, Queued, Released, Renewed, RenewedMany, RenewedOrError, Revoked, SessionLeases, SessionOpened,
    SessionSummary, Sessions, TokenTaken, Transition, Waiter,
};
pub use auth::{
    Credential, Credentials, Enforce, ExplainAccess, Explained, IssueCredential, NamedPolicy, Policy,
    PolicyLimits, PolicyList, PutPolicy, TakeAway, Used, WhoAmI, credential_hash, standing,
};
pub use cluster::{
    CheckSequencer, ClusterStatus, IssueSequencer, NodeStatus, RestoreStaging, SequencerChecked,
    SequencerIssued, StepDown, Upgraded,
};
pub use events::{Event, EventKind, Events};
pub use kubernetes::{KubernetesAnnotations, KubernetesLease, KubernetesMetadata, KubernetesSpec};
pub use queries::{
    AcquireQuery, CredentialsQuery, EventsQuery, LeaseQuery, LeaseShape, ListQuery, ReadQuery, SessionsQuery,
    StatusQuery, WatchQuery,
};
pub use registers::{
    Compare, DeleteRegister, OnRegister, Operation, PutRegister, Rebind, Register, Registers, WriteRegisters,
    Written, WrittenMany, guard_from_header,
};
pub use requests::{
    Acquire, Arm, Cancel, CloseSession, Forever, OfSession, OpenSession, Paused, Refused, Release,
    RenewSession, RenewSessions, Renewal, Revoke, Seen, SetKind, Transfer, WaitMs,
};
pub(crate) use requests::{checked_reason, of_session, session_of};

/// How a resource is held: `"exclusive"`, `"shared"` or `{"slots":n}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// One holder, with write authority.
    Exclusive,
    /// Many readers.
    Shared,
    /// One of `n` slots.
    Slots(u32),
}

impl From<tenure_core::Mode> for Mode {
    fn from(mode: tenure_core::Mode) -> Mode {
        match mode {
            tenure_core::Mode::Exclusive => Mode::Exclusive,
            tenure_core::Mode::Shared => Mode::Shared,
            tenure_core::Mode::Slots(slots) => Mode::Slots(slots),
        }
    }
}

impl From<Mode> for tenure_core::Mode {
    fn from(mode: Mode) -> tenure_core::Mode {
        match mode {
            Mode::Exclusive => tenure_core::Mode::Exclusive,
            Mode::Shared => tenure_core::Mode::Shared,
            Mode::Slots(slots) => tenure_core::Mode::Slots(slots),
        }
    }
}

/// The kind of a resource: `"lock"` or `{"semaphore":n}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Exclusive and shared grants.
    Lock,
    /// A semaphore of `n` slots.
    Semaphore(u32),
}

impl From<KindSetting> for Kind {
    fn from(kind: KindSetting) -> Kind {
        match kind {
            KindSetting::Lock => Kind::Lock,
            KindSetting::Semaphore(slots) => Kind::Semaphore(slots),
        }
    }
}

impl From<Kind> for KindSetting {
    fn from(kind: Kind) -> KindSetting {
        match kind {
            Kind::Lock => KindSetting::Lock,
            Kind::Semaphore(slots) => KindSetting::Semaphore(slots),
        }
    }
}

/// Reads a request's body. An empty one is read as `{}`: every call that needs a field says which.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let body = if body.trim_ascii().is_empty() { b"{}" } else { body };
    // A list would otherwise be taken for the fields of a struct in their order.
    if !matches!(body.trim_ascii_start().first(), Some(b'{')) {
        return Err(ApiError::new(Code::InvalidBody, "the body is not a JSON object")
            .hint("send an object such as {\"holder\":\"node-a\",\"ttl_ms\":10000}"));
    }
    serde_json::from_slice(body).map_err(|error| {
        ApiError::new(Code::InvalidBody, format!("the body cannot be read: {error}"))
            .hint("GET /openapi.json describes every body")
    })
}

/// Bytes as JSON shows them: text where they are UTF-8, base64 in a field of its own where not.
fn text_or_base64(bytes: &[u8]) -> (Option<String>, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text.into()), None),
        Err(_) => (None, Some(STANDARD.encode(bytes))),
    }
}

/// The bytes of a field that is given as text or as base64; `None` if neither is there.
fn bytes_of(what: &str, text: Option<String>, base64: Option<String>) -> Result<Option<Vec<u8>>, ApiError> {
    match (text, base64) {
        (None, None) => Ok(None),
        (Some(text), None) => Ok(Some(text.into_bytes())),
        (None, Some(base64)) => STANDARD.decode(base64).map(Some).map_err(|error| {
            ApiError::invalid(format!("{what}_base64 is not base64: {error}"))
                .hint("use the standard alphabet, with padding")
        }),
        (Some(_), Some(_)) => {
            Err(ApiError::invalid(format!("give either {what} or {what}_base64, not both")))
        }
    }
}

fn key_of(text: Option<String>, base64: Option<String>) -> Result<RegisterKey, ApiError> {
    let bytes = bytes_of("key", text, base64)?
        .ok_or_else(|| ApiError::invalid("key is missing").hint("name the register"))?;
    Ok(RegisterKey::try_from(bytes.as_slice())?)
}
