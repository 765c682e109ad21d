//! What a call that was refused or failed returns, on every surface: the one table of codes.
//!
//! A [`Code`] is a stable word to act on; each has one HTTP status, one gRPC code and one effect. An
//! [`ApiError`] adds what a person needs (the thing, the number, the next step) and the numbers that a program
//! may want. [`ApiError::from`] a [`Refusal`] is where the machine's answers get their words.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use tenure_core::{
    Denial, DenialReason, InvalidName, InvalidSessionId, InvalidToken, KindSetting, OverQuota, Refusal,
};
use tonic::Code as Grpc;

use crate::words::{millis, span};

/// What a call that did not succeed has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Nothing was changed.
    NotApplied,
    /// It was done all the same.
    Applied,
    /// It may have been done; asking again under the same number is safe.
    Unknown,
}

/// Declares the codes: variant, word, HTTP status, gRPC code, effect.
macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident = $word:literal, $status:literal, $grpc:ident, $effect:ident;)*) => {
        /// A stable word for what went wrong. New ones may appear; a client treats one that it does not know
        /// by its status and effect.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub enum Code {
            $($(#[$doc])* #[serde(rename = $word)] $code,)*
        }

        impl Code {
            /// All codes, in the order of the table.
            pub const ALL: &[Code] = &[$(Code::$code),*];

            /// The word.
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$code => $word,)* }
            }

            /// The status with which HTTP answers it.
            pub const fn http_status(self) -> u16 {
                match self { $(Code::$code => $status,)* }
            }

            /// The code with which gRPC answers it.
            pub const fn grpc_code(self) -> Grpc {
                match self { $(Code::$code => Grpc::$grpc,)* }
            }

            /// What the call has done, unless the error says otherwise.
            pub const fn effect(self) -> Effect {
                match self { $(Code::$code => Effect::$effect,)* }
            }
        }
    };
}

codes! {
    /// Somebody else holds it, or waits in the queue before the caller.
    Held = "held", 409, FailedPrecondition, NotApplied;
    /// The resource rests after an unclean end.
    Delayed = "delayed", 409, FailedPrecondition, NotApplied;
    /// The session has ended, or never was.
    UnknownSession = "unknown_session", 404, NotFound, NotApplied;
    /// The session is past its TTL; a renewal may make it live again.
    Lapsed = "lapsed", 409, FailedPrecondition, NotApplied;
    /// The session that should get the lease does not wait for it.
    NotReady = "not_ready", 409, FailedPrecondition, NotApplied;
    /// The session does not hold this resource (with this token).
    NotHeld = "not_held", 409, FailedPrecondition, NotApplied;
    /// The lease is under notice and cannot be transferred.
    UnderNotice = "under_notice", 409, FailedPrecondition, NotApplied;
    /// The resource is of another kind.
    WrongKind = "wrong_kind", 409, FailedPrecondition, NotApplied;
    /// A newer token was granted for this scope.
    StaleToken = "stale_token", 412, FailedPrecondition, NotApplied;
    /// The lease of this token has ended, and no newer one was granted.
    LeaseEnded = "lease_ended", 412, FailedPrecondition, NotApplied;
    /// No grant of this scope ever had this token, or it is a sharer's.
    UnknownToken = "unknown_token", 412, FailedPrecondition, NotApplied;
    /// The register is guarded by something else.
    WrongGuard = "wrong_guard", 412, FailedPrecondition, NotApplied;
    /// A comparison of a conditional write did not hold.
    CompareFailed = "compare_failed", 412, FailedPrecondition, NotApplied;
    /// This command number was answered and forgotten: what it did then, it did.
    ForgottenNumber = "forgotten_number", 409, FailedPrecondition, Unknown;
    /// The acquire was cancelled before it arrived, or while it was queued.
    Cancelled = "cancelled", 409, Aborted, NotApplied;
    /// The session that this nonce opened has ended, or its acquire was refused or cancelled.
    NonceUsed = "nonce_used", 409, FailedPrecondition, Unknown;
    /// A limit would be passed.
    Limit = "limit", 429, ResourceExhausted, NotApplied;
    /// The resource is held; this can only be done while it is free.
    InUse = "in_use", 409, FailedPrecondition, NotApplied;
    /// No such thing has ever been seen here.
    NotFound = "not_found", 404, NotFound, NotApplied;
    /// The cluster was restored from a backup and grants nothing yet.
    Restoring = "restoring", 503, Unavailable, NotApplied;
    /// The token floor of a restore is not above what the backup itself has issued.
    FloorTooLow = "floor_too_low", 409, FailedPrecondition, NotApplied;
    /// A backup can be restored only into a cluster that nobody has used.
    NotEmpty = "not_empty", 409, FailedPrecondition, NotApplied;
    /// What was staged of a restore was discarded, or a piece of it is missing.
    NotStaged = "not_staged", 409, FailedPrecondition, NotApplied;
    /// The tokens below 2^53 are used up.
    TokensExhausted = "tokens_exhausted", 503, ResourceExhausted, NotApplied;
    /// The TTL is outside the limits.
    InvalidTtl = "invalid_ttl", 400, InvalidArgument, NotApplied;
    /// A name of a resource, holder, register or fence breaks its rules.
    InvalidName = "invalid_name", 400, InvalidArgument, NotApplied;
    /// A text is no session id.
    InvalidSession = "invalid_session", 400, InvalidArgument, NotApplied;
    /// A number is no token.
    InvalidToken = "invalid_token", 400, InvalidArgument, NotApplied;
    /// The nonce is too short, or not written as it should be.
    InvalidNonce = "invalid_nonce", 400, InvalidArgument, NotApplied;
    /// The body is not the JSON that it should be.
    InvalidBody = "invalid_body", 400, InvalidArgument, NotApplied;
    /// What was asked for contradicts itself or lacks something.
    InvalidArgument = "invalid_argument", 400, InvalidArgument, NotApplied;
    /// The body or message is larger than allowed.
    TooLarge = "too_large", 413, ResourceExhausted, NotApplied;
    /// There is no such path or verb, or not with this method.
    NoSuchCall = "no_such_call", 404, Unimplemented, NotApplied;
    /// The path exists, but not with this method.
    MethodNotAllowed = "method_not_allowed", 405, Unimplemented, NotApplied;
    /// The caller may not do this: no policy allows it, or its credential has ended.
    Forbidden = "forbidden", 403, PermissionDenied, NotApplied;
    /// Nobody has said who calls, or what proves it is not accepted.
    Unauthenticated = "unauthenticated", 401, Unauthenticated, NotApplied;
    /// The caller's policy allows no more of this.
    Quota = "quota", 429, ResourceExhausted, NotApplied;
    /// The call came from a foreign web page, or names a foreign host.
    ForeignOrigin = "foreign_origin", 403, PermissionDenied, NotApplied;
    /// The events asked for are no longer remembered.
    TooOld = "too_old", 410, OutOfRange, NotApplied;
    /// The node has more to do than it can; renewals have a share of their own.
    Overloaded = "overloaded", 429, ResourceExhausted, NotApplied;
    /// Nobody leads at the moment, so nothing was tried.
    NoLeader = "no_leader", 503, Unavailable, NotApplied;
    /// The node is shutting down, so nothing was tried.
    ShuttingDown = "shutting_down", 503, Unavailable, NotApplied;
    /// It was sent to the cluster, and what became of it is not known.
    UnknownOutcome = "unknown_outcome", 504, DeadlineExceeded, Unknown;
    /// The cluster has no such node.
    UnknownNode = "unknown_node", 404, NotFound, NotApplied;
    /// Another change of membership has not ended yet.
    ChangeInProgress = "change_in_progress", 409, FailedPrecondition, NotApplied;
    /// The agreed format version cannot say this, or not every member knows the next one.
    UpgradeNeeded = "upgrade_needed", 409, FailedPrecondition, NotApplied;
    /// The audit log cannot be written, and this node does nothing that is not recorded.
    AuditFailed = "audit_failed", 503, Unavailable, NotApplied;
    /// A bug of this node; its log says more.
    Internal = "internal", 500, Internal, Unknown;
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for Code {
    type Err = UnknownCode;
    fn from_str(word: &str) -> Result<Code, UnknownCode> {
        Code::ALL.iter().copied().find(|code| code.as_str() == word).ok_or(UnknownCode)
    }
}

/// A word that is no code of this build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no code of this version")]
pub struct UnknownCode;

/// A call that was refused or failed, as its caller sees it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[error("{message}")]
pub struct ApiError {
    /// The word to act on.
    #[serde(deserialize_with = "code_or_internal")]
    pub code: Code,
    /// For people: the thing and the number.
    pub message: String,
    /// For people: the next step.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
    /// What the call has done.
    pub effect: Effect,
    /// When it is worth asking again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// The numbers and names of it, for programs. Apart, so that a result with an error in it stays small.
    #[serde(flatten)]
    pub about: Box<About>,
}

/// What an error is about; each code says something else, and most say little.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct About {
    /// The resource or register.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Who has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// What is left of the lease, delay or grace in the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_ms: Option<u64>,
    /// How long the call waited in the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// The token in the way, for `held`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// The token presented.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub presented: Option<u64>,
    /// The newest token of the scope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<u64>,
    /// The limit that would be passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// Its value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u64>,
    /// Where a watch can begin again, or the revision of the register in the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// Who asked, for `forbidden` and `quota`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// The right that it needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verb: Option<String>,
    /// Why it is forbidden, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The policy that comes nearest, or that sets the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// What there would be of the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
}

impl About {
    fn resource(name: impl std::fmt::Display) -> About {
        About { resource: Some(name.to_string()), ..About::default() }
    }
}

impl ApiError {
    /// An error with its code's own effect, and no hint yet.
    pub fn new(code: Code, message: impl Into<String>) -> ApiError {
        ApiError {
            code,
            message: message.into(),
            hint: String::new(),
            effect: code.effect(),
            retry_after_ms: None,
            about: Box::default(),
        }
    }

    /// With the next step.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> ApiError {
        self.hint = hint.into();
        self
    }

    /// With a time after which it is worth asking again.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> ApiError {
        self.retry_after_ms = Some(millis(after));
        self
    }

    /// With what it is about.
    #[must_use]
    pub fn about(mut self, about: About) -> ApiError {
        *self.about = about;
        self
    }

    /// What was asked for contradicts itself or lacks something.
    pub fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(Code::InvalidArgument, message)
    }

    /// Nobody leads at the moment.
    pub fn no_leader(retry_after: Duration) -> ApiError {
        ApiError::new(Code::NoLeader, "the cluster has no leader at the moment; nothing was done")
            .hint("ask again; an election takes about a second. `tenure cluster status` shows who is missing")
            .retry_after(retry_after)
    }

    /// The node has more to do than it can.
    pub fn overloaded(what: &str, retry_after: Duration) -> ApiError {
        ApiError::new(Code::Overloaded, format!("this node is overloaded: {what}; nothing was done"))
            .hint("ask again after `retry_after_ms`, with growing pauses")
            .retry_after(retry_after)
    }

    /// It was sent, and what became of it is not known.
    pub fn unknown_outcome(why: &str) -> ApiError {
        ApiError::new(Code::UnknownOutcome, format!("{why}; the command may or may not have been done"))
            .hint("ask again under the same number, which is safe, or look before acting")
    }

    /// The events after a revision are no longer remembered; a watch can begin again at another.
    pub fn too_old(asked: u64, restart: u64) -> ApiError {
        ApiError::new(Code::TooOld, format!("events of revision {asked} are no longer remembered"))
            .hint(format!("read the present state, then watch from revision {restart}"))
            .about(About { revision: Some(restart), ..About::default() })
    }

    /// No resource or register of this name has been seen.
    pub fn not_found(what: &str, name: &str) -> ApiError {
        ApiError::new(Code::NotFound, format!("{what} {name} has never been seen here"))
            .hint("check the name; what was free for long may also have been forgotten")
            .about(About::resource(name))
    }
}

impl From<InvalidName> for ApiError {
    fn from(error: InvalidName) -> ApiError {
        let rule = match error.what() {
            "resource" => "1 to 512 bytes of UTF-8, segments split by `/`, none of them empty, `.` or `..`",
            "holder" => "1 to 256 bytes of UTF-8 without control characters",
            "fence" => "1 to 128 bytes of UTF-8 without control characters",
            "identity" => "a source and a name: cred/…, cert/…, jwt/… or host/…, at most 256 bytes",
            "policy" => "1 to 128 letters, digits, `-`, `_` and `.`",
            "prefix" => "1 to 1024 bytes, such as `pay/`; `*` is everything",
            "verb" => "one of read, hold, write, manage, observe, operate, grant",
            "credential" => "16 hexadecimal digits",
            _ => "1 to 1024 bytes",
        };
        ApiError::new(Code::InvalidName, error.to_string())
            .hint(format!("a {} name has {rule}", error.what()))
    }
}

impl From<InvalidToken> for ApiError {
    fn from(error: InvalidToken) -> ApiError {
        ApiError::new(Code::InvalidToken, error.to_string()).hint("present the token that the grant answered")
    }
}

impl From<InvalidSessionId> for ApiError {
    fn from(error: InvalidSessionId) -> ApiError {
        ApiError::new(Code::InvalidSession, error.to_string())
            .hint("the number shown in lists is not enough: only the whole id opens the door")
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> ApiError {
        ApiError::from(&refusal)
    }
}

/// The words of every refusal: the thing, the number, the next step.
impl From<&Refusal> for ApiError {
    fn from(refusal: &Refusal) -> ApiError {
        use ApiError as E;
        match refusal {
            Refusal::Held { resource, by: Some(by), waited } => {
                let left = span(by.remaining);
                E::new(Code::Held, format!("{resource} is held by {} for another {left}", by.holder))
                    .hint(if waited.is_zero() {
                        "queue for it (`wait_ms`, --wait), or ask again later; a holder that renews stays longer"
                    } else {
                        "the wait was too short; wait longer, or find out what keeps the holder (`tenure explain`)"
                    })
                    .about(About {
                        holder: Some(by.holder.to_string()),
                        remaining_ms: Some(millis(by.remaining)),
                        waited_ms: Some(millis(*waited)),
                        token: Some(by.token.get()),
                        ..About::resource(resource)
                    })
            }
            Refusal::Held { resource, by: None, waited } => {
                E::new(Code::Held, format!("{resource} is about to go to others who are queued for it"))
                    .hint("queue for it (`wait_ms`, --wait)")
                    .about(About { waited_ms: Some(millis(*waited)), ..About::resource(resource) })
            }
            Refusal::Delayed { resource, remaining } => {
                let left = span(*remaining);
                E::new(Code::Delayed, format!("{resource} rests for another {left} after an unclean end"))
                    .hint("its last holder asked for this lock-delay; queue for it, or ask again then")
                    .retry_after(*remaining)
                    .about(About { remaining_ms: Some(millis(*remaining)), ..About::resource(resource) })
            }
            Refusal::UnknownSession => E::new(Code::UnknownSession, "this session has ended, or never was")
                .hint("stop what its leases allowed; open a new session and acquire again"),
            Refusal::Lapsed => E::new(Code::Lapsed, "this session is past its TTL and counts as not live")
                .hint("renew it; if nobody has contended, it lives again under the same tokens"),
            Refusal::NotReady { resource, session } => E::new(
                Code::NotReady,
                format!(
                    "session {session} is not queued for {resource} alone, so it is not ready to take it"
                ),
            )
            .hint("let the successor acquire it with a wait first, then transfer")
            .about(About::resource(resource)),
            Refusal::NotHeld { resource } => {
                E::new(Code::NotHeld, format!("this session does not hold {resource} (with this token)"))
                    .hint("`tenure get` shows who does")
                    .about(About::resource(resource))
            }
            Refusal::UnderNotice { resource } => E::new(
                Code::UnderNotice,
                format!("the lease of {resource} is under notice and cannot be handed on"),
            )
            .hint("release it: that confirms the notice, and the next in the queue gets it")
            .about(About::resource(resource)),
            Refusal::WrongKind { resource, is } => {
                E::new(Code::WrongKind, format!("{resource} is {}", kind_in_words(*is)))
                    .hint("ask in that mode, or let an administrator change the kind while it is free")
                    .about(About::resource(resource))
            }
            Refusal::StaleToken { presented, seen } => E::new(
                Code::StaleToken,
                format!("token {presented} is stale: {seen} has been granted since"),
            )
            .hint("stop writing: another holder has taken over")
            .about(About {
                presented: Some(presented.get()),
                seen: Some(seen.get()),
                ..About::default()
            }),
            Refusal::LeaseEnded { presented } => {
                E::new(Code::LeaseEnded, format!("the lease of token {presented} has ended"))
                    .hint("stop writing and acquire again")
                    .about(About { presented: Some(presented.get()), ..About::default() })
            }
            Refusal::UnknownToken { presented } => E::new(
                Code::UnknownToken,
                format!("token {presented} was never granted for writing to this resource"),
            )
            .hint("present the token of an exclusive grant (or of that slot); a sharer only reads")
            .about(About { presented: Some(presented.get()), ..About::default() }),
            Refusal::WrongGuard { key, guard: Some(guard) } => {
                E::new(Code::WrongGuard, format!("register {key} is guarded by {guard}"))
                    .hint(format!("write it with the token of {guard}, or let an administrator re-bind it"))
                    .about(About::resource(key))
            }
            Refusal::WrongGuard { key, guard: None } => {
                E::new(Code::WrongGuard, format!("register {key} cannot be written under this guard"))
                    .hint("let an administrator re-bind it")
                    .about(About::resource(key))
            }
            Refusal::ForgottenNumber { number } => {
                E::new(Code::ForgottenNumber, format!("command number {number} was answered and forgotten"))
                    .hint("numbers rise within a session, and `lowest_awaited` says which answers are still wanted")
            }
            Refusal::Cancelled { released: false } => {
                E::new(Code::Cancelled, "this acquire was cancelled").hint("acquire again under a new number")
            }
            Refusal::Cancelled { released: true } => E {
                effect: Effect::Applied,
                ..E::new(Code::Cancelled, "this acquire was granted, and its cancel gave the lease back")
                    .hint("acquire again under a new number")
            },
            Refusal::NonceUsed => E::new(
                Code::NonceUsed,
                "this nonce was used: its session has ended, or its acquire was refused or cancelled",
            )
            .hint("this request did nothing; draw a new nonce to begin again"),
            Refusal::Limit { limit, max } => {
                E::new(Code::Limit, format!("the limit {limit} = {max} would be passed"))
                    .hint("give something back first, or ask for less")
                    .about(About { limit: Some((*limit).into()), max: Some(*max), ..About::default() })
            }
            Refusal::InvalidTtl { ttl, min, max } => E::new(
                Code::InvalidTtl,
                format!("a TTL of {} is outside the limits, {} to {}", span(*ttl), span(*min), span(*max)),
            )
            .hint("it is refused, never clamped: ask for one within the limits"),
            Refusal::Invalid(why) => E::invalid(*why),
            Refusal::InUse { resource } => {
                E::new(Code::InUse, format!("{resource} is held; this can only be done while it is free"))
                    .hint("wait for its release, or revoke it first")
                    .about(About::resource(resource))
            }
            Refusal::NotFound => E::new(Code::NotFound, "no such thing has ever been seen here")
                .hint("check the name; what was free for long may also have been forgotten"),
            Refusal::Restoring { remaining } => E::new(
                Code::Restoring,
                format!(
                    "this cluster was restored from a backup and grants nothing for another {}",
                    span(*remaining)
                ),
            )
            .hint("holders from before the backup may still be acting; wait until all of them must have stopped")
            .retry_after(*remaining)
            .about(About { remaining_ms: Some(millis(*remaining)), ..About::default() }),
            Refusal::FloorTooLow { floor, issued } => E::new(
                Code::FloorTooLow,
                format!("the token floor {floor} is not above {issued}, which the backup itself has issued"),
            )
            .hint("give a floor above every token ever seen: look at the marks in your fences and at the last tokens in your logs"),
            Refusal::NotEmpty => E::new(Code::NotEmpty, "this cluster has been used; a backup is restored into a new one")
                .hint("form a cluster with empty data directories and restore there"),
            Refusal::NotStaged { next: None } => E::new(
                Code::NotStaged,
                "this restore is not staged any more: another one has begun, or nothing came for ten minutes",
            )
            .hint("nothing was restored; run `tenure cluster restore` again, and only one at a time"),
            Refusal::NotStaged { next: Some(next) } => {
                E::new(Code::NotStaged, format!("piece {next} of the backup is missing"))
                    .hint("run `tenure cluster restore` again with the same file: it goes on with that piece")
            }
            Refusal::Forbidden(denial) => {
                let Denial { identity, verb, on, why, nearest } = &**denial;
                E::new(Code::Forbidden, denial.to_string()).hint(denial_hint(*why)).about(About {
                    identity: Some(identity.to_string()),
                    verb: Some(verb.to_string()),
                    reason: Some(why.as_str().into()),
                    policy: nearest.as_ref().map(ToString::to_string),
                    ..About::resource(on)
                })
            }
            Refusal::OverQuota(over) => {
                let OverQuota { identity, limit, max, used, policy } = &**over;
                E::new(Code::Quota, over.to_string())
                    .hint("give something back first, or ask whoever manages the policy for more")
                    .about(About {
                        identity: Some(identity.to_string()),
                        limit: Some((*limit).into()),
                        max: Some(*max),
                        used: Some(*used),
                        policy: policy.as_ref().map(ToString::to_string),
                        ..About::default()
                    })
            }
            Refusal::TokensExhausted => E::new(Code::TokensExhausted, "the tokens below 2^53 are used up")
                .hint("form a new cluster; fences must then be repaired to its tokens"),
        }
    }
}

/// A word that this build does not know is a newer server's; the effect still tells what to do.
fn code_or_internal<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Code, D::Error> {
    Ok(String::deserialize(input)?.parse().unwrap_or(Code::Internal))
}

fn denial_hint(why: DenialReason) -> &'static str {
    match why {
        DenialReason::NoPolicy => "`tenure auth explain VERB NAME` shows which policies there are for you",
        DenialReason::Expired => {
            "issue a new credential (`tenure auth new`); what is held can be kept for a day"
        }
        DenialReason::Revoked => "issue a new credential (`tenure auth new`)",
        DenialReason::OtherSession => "use the session with the credential that opened it",
        DenialReason::OtherHolder => "only the identity that holds the lease may use its token",
        DenialReason::HolderName => "open the session with your own name as its holder",
        DenialReason::BeyondOwn => "ask somebody who has the right to give it",
    }
}

fn kind_in_words(kind: KindSetting) -> String {
    match kind {
        KindSetting::Lock => "held exclusively or shared, not by slots".into(),
        KindSetting::Semaphore(slots) => format!("a semaphore of {slots} slots"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_word_of_its_own_and_reads_it() {
        for (at, code) in Code::ALL.iter().enumerate() {
            assert_eq!(code.as_str().parse(), Ok(*code));
            assert!(Code::ALL[..at].iter().all(|other| other.as_str() != code.as_str()));
            assert!((400..600).contains(&code.http_status()));
            let invalid = code.as_str().starts_with("invalid_");
            assert_eq!(invalid, code.http_status() == 400, "{code}: 400 and `invalid_…` go together");
        }
        assert_eq!("no_such_word".parse::<Code>(), Err(UnknownCode));
    }

    #[test]
    fn the_codes_of_the_design_keep_their_status() {
        for (word, status) in [
            ("held", 409),
            ("stale_token", 412),
            ("lease_ended", 412),
            ("wrong_guard", 412),
            ("unknown_session", 404),
            ("overloaded", 429),
            ("no_leader", 503),
            ("unknown_outcome", 504),
            ("too_old", 410),
        ] {
            assert_eq!(word.parse::<Code>().unwrap().http_status(), status, "{word}");
        }
    }
}
