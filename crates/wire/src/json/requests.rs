//! Bodies of requests, and the commands that they become.
//!
//! A `number` in a command that names a session is the command's place in that session's numbering; in an
//! open, a renewal and an acquire that opens its session it is the number of the transmission. Without one the
//! call is at-least-once.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_core::{
    AcquireBy, Caller, Command, EndReason, FenceName, HolderName, Open, Policies, ResourceName, Revision,
    Scope, Secret, SessionId, SessionNumber, Slot, Token, Wait,
};

use super::{Kind, Mode};
use crate::error::{ApiError, Code};
use crate::words::nonce_from_hex;

/// `POST /v1/sessions`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OpenSession {
    /// Who, for people.
    pub holder: String,
    /// How long the session lives without a renewal.
    pub ttl_ms: u64,
    /// At least 32 hexadecimal digits; lets a repeated open find the session that it made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<String>,
    /// The number of this transmission, from 1 on; the answer names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
}

impl OpenSession {
    /// The command; `secret` is drawn by the proposer.
    pub fn command(self, secret: Secret) -> Result<Command, ApiError> {
        open(Some(self.holder), Some(self.ttl_ms), self.nonce, self.number, secret).map(Command::Open)
    }
}

fn open(
    holder: Option<String>,
    ttl_ms: Option<u64>,
    nonce: Option<String>,
    number: Option<u64>,
    secret: Secret,
) -> Result<Open, ApiError> {
    let missing = |what: &str| {
        ApiError::invalid(format!("{what} is missing"))
            .hint("give `holder` and `ttl_ms`, or the `session` that you have")
    };
    Ok(Open {
        holder: HolderName::try_from(holder.ok_or_else(|| missing("holder"))?)?,
        ttl: Duration::from_millis(ttl_ms.ok_or_else(|| missing("ttl_ms"))?),
        nonce: nonce.as_deref().map(nonce_from_hex).transpose()?,
        secret,
        number: number.unwrap_or_default(),
    })
}

/// `POST /v1/session:renew`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RenewSession {
    /// The number of this transmission, from 1 on. Without one (or with zero) it always counts as the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
}

/// `POST /v1/sessions:renew`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RenewSessions {
    /// Many at once; the answers come in the same order.
    pub renewals: Vec<Renewal>,
}

/// One of many renewals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Renewal {
    /// The session's whole id.
    pub session: String,
    /// The number of this transmission, from 1 on. Without one (or with zero) it always counts as the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
}

/// `DELETE /v1/session`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CloseSession {
    /// A supervisor has seen all of the session's processes dead.
    #[serde(default)]
    pub died: bool,
    /// The command's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// The lowest number whose answer is still awaited.
    #[serde(default)]
    pub lowest_awaited: u64,
}

impl CloseSession {
    /// The command.
    pub fn command(self, session: SessionId) -> Command {
        let why = if self.died { EndReason::Died } else { EndReason::Released };
        Command::Close {
            by: Caller { session, number: self.number, lowest_awaited: self.lowest_awaited },
            why,
        }
    }
}

/// `POST /v1/session:seen`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Seen {
    /// The holder has taken in its events up to this revision.
    pub revision: u64,
}

impl Seen {
    /// The command.
    pub fn command(self, session: SessionId) -> Command {
        Command::Seen { session, revision: Revision::new(self.revision) }
    }
}

/// `POST /v1/session:paused`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Paused {
    /// For how long the holder had been paused.
    pub paused_ms: u64,
}

impl Paused {
    /// The command.
    pub fn command(self, session: SessionId) -> Command {
        Command::Paused { session, length: Duration::from_millis(self.paused_ms) }
    }
}

/// How long to wait in the queue: milliseconds, or `"forever"` for as long as the session lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum WaitMs {
    /// At most this long; zero is not at all.
    AtMost(u64),
    /// As long as the session lives.
    Forever(Forever),
}

/// The word `forever`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Forever {
    /// As long as the session lives.
    #[serde(rename = "forever")]
    Forever,
}

fn wait(wait: Option<WaitMs>) -> Wait {
    match wait {
        None | Some(WaitMs::AtMost(0)) => Wait::No,
        Some(WaitMs::AtMost(millis)) => Wait::For(Duration::from_millis(millis)),
        Some(WaitMs::Forever(_)) => Wait::Forever,
    }
}

/// `POST /v1/leases/{resource}:acquire` and `POST /v1/leases:acquire`: with `session`, or with `holder` and `ttl_ms`
/// for a session that the acquire opens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Acquire {
    /// The session's whole id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Who, for a session that this opens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// Its TTL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Its nonce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<String>,
    /// The command's number; without `session` the number of this transmission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// The lowest number whose answer is still awaited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lowest_awaited: Option<u64>,
    /// What, where the path does not name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Vec<String>>,
    /// How long to wait in the queue; without it, not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<WaitMs>,
    /// How long this request stays open while the acquire is queued; then it is answered 202 `queued`, and the same
    /// request asks again. Needs a number or a nonce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll_ms: Option<u64>,
    /// Exclusive without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// After an unclean end nobody is granted the resource for this long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_delay_ms: Option<u64>,
    /// The lease ends by notice at the latest after this long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_hold_ms: Option<u64>,
    /// Past the TTL the session lapses instead of ending, until this long after its last renewal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hard_limit_ms: Option<u64>,
    /// Higher goes first in the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// A further acquire by the session that holds the resource is counted instead of refused.
    #[serde(default)]
    pub reentrant: bool,
    /// Fences to be added to the resources' fence sets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fences: Vec<String>,
}

impl Acquire {
    /// The acquire; `resource` is the path's, and `secret` is drawn by the proposer in case this opens a session.
    pub fn acquire(
        self,
        resource: Option<ResourceName>,
        secret: Secret,
    ) -> Result<tenure_core::Acquire, ApiError> {
        let resources = match (resource, self.resources) {
            (Some(resource), None) => vec![resource],
            (None, Some(names)) => {
                names.into_iter().map(ResourceName::try_from).collect::<Result<Vec<_>, _>>()?
            }
            (Some(_), Some(_)) => {
                return Err(ApiError::invalid("the path names the resource already")
                    .hint("POST /v1/leases:acquire takes several `resources`"));
            }
            (None, None) => return Err(ApiError::invalid("resources is missing").hint("name at least one")),
        };
        let by = match self.session {
            Some(_) if self.holder.is_some() || self.ttl_ms.is_some() || self.nonce.is_some() => {
                return Err(ApiError::invalid("an open session has its holder, ttl_ms and nonce already")
                    .hint("give either `session`, or `holder` and `ttl_ms`"));
            }
            Some(session) => AcquireBy::Session(Caller {
                session: session.parse()?,
                number: self.number,
                lowest_awaited: self.lowest_awaited.unwrap_or_default(),
            }),
            None => AcquireBy::Opening(open(self.holder, self.ttl_ms, self.nonce, self.number, secret)?),
        };
        Ok(tenure_core::Acquire {
            by,
            resources,
            mode: self.mode.unwrap_or(Mode::Exclusive).into(),
            wait: wait(self.wait_ms),
            policies: Policies {
                lock_delay: self.lock_delay_ms.map(Duration::from_millis),
                max_hold: self.max_hold_ms.map(Duration::from_millis),
                hard_limit: self.hard_limit_ms.map(Duration::from_millis),
                priority: self.priority.unwrap_or_default(),
                reentrant: self.reentrant,
            },
            fences: self.fences.into_iter().map(FenceName::try_from).collect::<Result<_, _>>()?,
            transmission: None,
        })
    }
}

/// A body that names the session that it is from, unless the request's header `Tenure-Session` does.
pub trait OfSession {
    /// The session's whole id.
    fn session(&mut self) -> &mut Option<String>;
}

/// Implements [`OfSession`] for bodies with a field `session`.
macro_rules! of_session {
    ($($body:ty),*) => {$(
        impl $crate::json::OfSession for $body {
            fn session(&mut self) -> &mut Option<String> {
                &mut self.session
            }
        }
    )*};
}
pub(crate) use of_session;

of_session!(Acquire, Cancel, Release, Transfer);

/// The session that a body must name.
pub(crate) fn session_of(session: Option<&str>) -> Result<SessionId, ApiError> {
    let session = session.ok_or_else(|| {
        ApiError::new(Code::InvalidBody, "session is missing")
            .hint("send the header `Tenure-Session:` with the session's whole id, or `session` in the body")
    })?;
    Ok(session.parse()?)
}

/// Implements the caller of bodies that have `session`, `number` and `lowest_awaited`.
macro_rules! caller {
    ($body:ident) => {
        Caller {
            session: session_of($body.session.as_deref())?,
            number: $body.number,
            lowest_awaited: $body.lowest_awaited.unwrap_or_default(),
        }
    };
}

/// `POST /v1/leases:cancel`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Cancel {
    /// The session's whole id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The number of the acquire to undo.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acquire: Option<u64>,
    /// Instead of these: the nonce of an acquire that opened its own session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<String>,
    /// The command's own number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// The lowest number whose answer is still awaited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lowest_awaited: Option<u64>,
}

impl Cancel {
    /// The command.
    pub fn command(self) -> Result<Command, ApiError> {
        match (self.session, self.acquire, self.nonce) {
            (Some(session), Some(acquire), None) => Ok(Command::Cancel {
                by: Caller {
                    session: session.parse()?,
                    number: self.number,
                    lowest_awaited: self.lowest_awaited.unwrap_or_default(),
                },
                acquire,
            }),
            (None, None, Some(nonce)) => Ok(Command::CancelNonce { nonce: nonce_from_hex(&nonce)? }),
            _ => Err(ApiError::invalid("a cancel names an acquire")
                .hint("give `session` and `acquire`, its number; or the `nonce` of an acquire that opened its session")),
        }
    }
}

/// `POST /v1/leases/{resource}:release`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// The session's whole id, unless the header `Tenure-Session` names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Only if the lease still has this token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// Nobody is granted the resource for this long afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest_ms: Option<u64>,
    /// The command's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// The lowest number whose answer is still awaited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lowest_awaited: Option<u64>,
}

impl Release {
    /// The command.
    pub fn command(self, resource: ResourceName) -> Result<Command, ApiError> {
        let token = self.token.map(Token::try_from).transpose()?;
        let rest = self.rest_ms.map(Duration::from_millis);
        Ok(Command::Release { by: caller!(self), resource, token, rest })
    }
}

/// `POST /v1/leases/{resource}:transfer`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    /// The whole id of the session that holds it, unless the header `Tenure-Session` names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The public number of the session that gets it.
    pub to: u64,
    /// The command's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// The lowest number whose answer is still awaited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lowest_awaited: Option<u64>,
}

impl Transfer {
    /// The command.
    pub fn command(self, resource: ResourceName) -> Result<Command, ApiError> {
        Ok(Command::Transfer { by: caller!(self), resource, to: SessionNumber::new(self.to) })
    }
}

/// `POST /v1/leases/{resource}:revoke`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Revoke {
    /// Only the lease of the session with this public number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_number: Option<u64>,
    /// At once, where only fences protect.
    #[serde(default)]
    pub now: bool,
    /// For people; kept in the history.
    #[serde(default)]
    pub reason: String,
}

impl Revoke {
    /// The longest reason, in bytes: it is kept in every history that it touches.
    pub const REASON_BYTES_MAX: usize = 512;

    /// The command.
    pub fn command(self, resource: ResourceName) -> Result<Command, ApiError> {
        let reason = checked_reason(&self.reason)?;
        let session = self.session_number.map(SessionNumber::new);
        Ok(Command::Revoke { resource, session, now: self.now, reason })
    }
}

pub(crate) fn checked_reason(reason: &str) -> Result<std::sync::Arc<str>, ApiError> {
    if reason.len() > Revoke::REASON_BYTES_MAX {
        return Err(ApiError::invalid(format!(
            "the reason has {} bytes, {} are allowed",
            reason.len(),
            Revoke::REASON_BYTES_MAX
        )));
    }
    Ok(reason.into())
}

/// `POST /v1/fences/{resource}:arm`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Arm {
    /// The fence.
    pub fence: String,
    /// The slot that it guards, for a semaphore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// The live token that it has installed.
    pub token: u64,
}

impl Arm {
    /// The command.
    pub fn command(self, resource: ResourceName) -> Result<Command, ApiError> {
        Ok(Command::Arm {
            scope: Scope { resource, slot: self.slot.map(Slot::new) },
            fence: self.fence.try_into()?,
            token: self.token.try_into()?,
        })
    }
}

/// `POST /v1/fences/{resource}:refused`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Refused {
    /// The fence.
    pub fence: String,
    /// The slot that it guards, for a semaphore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// The token that was presented last.
    pub presented: u64,
    /// The token that the fence had seen.
    pub seen: u64,
    /// How many writes were refused since the last report.
    pub count: u32,
}

impl Refused {
    /// The command.
    pub fn command(self, resource: ResourceName) -> Result<Command, ApiError> {
        Ok(Command::Refused {
            scope: Scope { resource, slot: self.slot.map(Slot::new) },
            fence: self.fence.try_into()?,
            presented: self.presented.try_into()?,
            seen: self.seen.try_into()?,
            count: self.count,
        })
    }
}

/// `POST /v1/leases/{resource}:kind`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SetKind {
    /// `"lock"`, `{"semaphore":n}`, or `null` to let the next grant fix it.
    pub kind: Option<Kind>,
}

impl SetKind {
    /// The command.
    pub fn command(self, resource: ResourceName) -> Command {
        Command::SetKind { resource, kind: self.kind.map(Into::into) }
    }
}
