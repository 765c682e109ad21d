//! What can come of a call besides its answer, and what the caller may believe then. Every error answers
//! [`CallError::effect`] without its text being read; the texts name the thing, the number and the next step.

use std::fmt;

use prost::Message;
use tenure_core::Done;
use tenure_wire::{ApiError, Code, Effect, proto};

use crate::endpoints::Endpoint;

/// The no inside a gRPC status, if it was the store that spoke.
pub(crate) fn refusal_in(status: &tonic::Status) -> Option<ApiError> {
    let detail = proto::Error::decode(status.details()).ok()?;
    (!detail.code.is_empty()).then(|| detail.into())
}

/// Whether the store may answer otherwise in a moment, so that a transport asks again by itself.
pub(crate) fn passes(refused: &ApiError) -> bool {
    matches!(refused.code, Code::NoLeader | Code::Overloaded | Code::ShuttingDown)
        && refused.effect == Effect::NotApplied
}

/// The same refusal of a command of which an earlier transmission went unanswered. That its session has ended
/// says nothing about that one: it may have been applied, and its effect have ended with the session, or not.
pub(crate) fn in_doubt(refused: ApiError) -> ApiError {
    match refused.code {
        Code::UnknownSession => ApiError { effect: Effect::Unknown, ..refused },
        _ => refused,
    }
}

/// One endpoint that was tried in vain, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// What came of it.
    pub why: String,
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.endpoint, self.why)
    }
}

/// Why a call has no answer, or not the one asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The store said no.
    #[error(transparent)]
    Refused(#[from] ApiError),
    /// No endpoint could be reached, so nothing was sent.
    #[error("no store could be reached{}", list(tried))]
    Unreachable {
        /// What was tried; each endpoint once, with its latest failure.
        tried: Vec<Tried>,
    },
    /// The call was sent, and no answer came.
    #[error("the store did not answer{}", list(tried))]
    Unanswered {
        /// What was tried; each endpoint once, with its latest failure.
        tried: Vec<Tried>,
        /// `NotApplied` for a call that only reads or was never sent, else `Unknown`.
        effect: Effect,
    },
}

impl CallError {
    /// What the call has done.
    pub fn effect(&self) -> Effect {
        match self {
            CallError::Refused(refused) => refused.effect,
            CallError::Unreachable { .. } => Effect::NotApplied,
            CallError::Unanswered { effect, .. } => *effect,
        }
    }

    /// An answer that is none to what was asked. What was asked may have been done.
    pub(crate) fn unexpected(asked: &str, came: &Done) -> CallError {
        CallError::unreadable(format!("{asked} was answered with {}", kind(came)))
    }

    /// An answer that makes no sense. What was asked may have been done.
    pub(crate) fn unreadable(what: String) -> CallError {
        let error = ApiError::new(Code::Internal, what)
            .hint("the store is of another version; upgrade this program, or the store");
        CallError::Refused(ApiError { effect: Effect::Unknown, ..error })
    }

    /// The same, naming all endpoints that are known to have failed.
    pub(crate) fn naming(self, all: Vec<Tried>) -> CallError {
        let more = |mut tried: Vec<Tried>| {
            let new = all.into_iter().filter(|one| !tried.iter().any(|known| known.endpoint == one.endpoint));
            let new: Vec<Tried> = new.collect();
            tried.extend(new);
            tried
        };
        match self {
            CallError::Unreachable { tried } => CallError::Unreachable { tried: more(tried) },
            CallError::Unanswered { tried, effect } => CallError::Unanswered { tried: more(tried), effect },
            refused => refused,
        }
    }
}

/// What kind of answer it is. Not the answer itself: that may contain the secret of a session.
fn kind(done: &Done) -> &'static str {
    match done {
        Done::Nothing => "nothing but `done`",
        Done::Opened { .. } => "`opened`",
        Done::Closed { .. } => "`closed`",
        Done::Granted { .. } => "`granted`",
        Done::Queued { .. } => "`queued`",
        Done::Cancelled { .. } => "`cancelled`",
        Done::Released { .. } => "`released`",
        Done::Transferred(_) => "`transferred`",
        Done::Revoked { .. } => "`revoked`",
        Done::Written { .. } => "`written`",
        Done::Staged { .. } => "`staged`",
        Done::Restored { .. } => "`restored`",
        Done::BarrierTaken { .. } => "`barrier taken`",
    }
}

/// The innermost reason of an error: `Connection refused` says more than `transport error`.
pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

/// The endpoints that were tried, in brackets; nothing if there is none to name.
fn list(tried: &[Tried]) -> String {
    if tried.is_empty() {
        return String::new();
    }
    let texts: Vec<String> = tried.iter().map(Tried::to_string).collect();
    format!(" ({})", texts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_the_store_is_read_whole() {
        let refused =
            ApiError::new(Code::Held, "settlement/cron is held by node-3").hint("wait in the queue");
        assert_eq!(refusal_in(&refused.clone().into()), Some(refused));
    }

    #[test]
    fn a_status_without_our_detail_is_not_taken_for_one() {
        assert_eq!(refusal_in(&tonic::Status::unavailable("gone")), None);
        let foreign = tonic::Status::with_details(tonic::Code::Internal, "x", vec![0xff, 0xff].into());
        assert_eq!(refusal_in(&foreign), None);
    }

    #[test]
    fn an_error_lists_endpoints_with_reasons_and_has_no_empty_brackets() {
        let tried = |port: u16, why: &str| Tried {
            endpoint: format!("node:{port}").parse().expect("an endpoint"),
            why: why.into(),
        };
        let silent = CallError::Unanswered { tried: Vec::new(), effect: Effect::Unknown };
        assert_eq!(silent.to_string(), "the store did not answer");
        let named = CallError::Unanswered { tried: vec![tried(1, "silent")], effect: Effect::Unknown }
            .naming(vec![tried(1, "older"), tried(2, "Connection refused")]);
        assert_eq!(
            named.to_string(),
            "the store did not answer (node:1: silent; node:2: Connection refused)"
        );
        assert_eq!(named.effect(), Effect::Unknown);
    }

    #[test]
    fn an_unexpected_answer_may_have_done_something() {
        let error = CallError::unexpected("a write", &Done::Closed { released: 1 });
        assert_eq!(error.effect(), Effect::Unknown);
        assert_eq!(error.to_string(), "a write was answered with `closed`");
    }

    #[test]
    fn only_what_changed_nothing_is_asked_again_unasked() {
        assert!(passes(&ApiError::new(Code::NoLeader, "")));
        assert!(!passes(&ApiError::new(Code::Held, "")));
        let doubtful = ApiError { effect: Effect::Unknown, ..ApiError::new(Code::Overloaded, "") };
        assert!(!passes(&doubtful));
    }
}
