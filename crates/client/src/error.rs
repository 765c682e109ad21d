//! What can come of a call besides its answer, and what the caller may believe then. Every error answers
//! [`CallError::effect`] without its text being read; the texts name the thing, the number and the next step.

use std::fmt;

use prost::Message;
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

/// The same refusal of a command of which an earlier transmission went unanswered. That its session has ended says nothing about
/// that one: it may have been applied, and its effect have ended with the session, or not.
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
    #[error("no store could be reached ({})", list(tried))]
    Unreachable {
        /// What was tried; each endpoint once, with its latest failure.
        tried: Vec<Tried>,
    },
    /// The call was sent, and no answer came.
    #[error("the store did not answer ({})", list(tried))]
    Unanswered {
        /// What was tried; each endpoint once, with its latest failure.
        tried: Vec<Tried>,
        /// `NotApplied` for a call that only reads, else `Unknown`.
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
}

fn list(tried: &[Tried]) -> String {
    let texts: Vec<String> = tried.iter().map(Tried::to_string).collect();
    texts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_the_store_is_read_whole() {
        let refused = ApiError::new(Code::Held, "settlement/cron is held by node-3").hint("wait in line");
        assert_eq!(refusal_in(&refused.clone().into()), Some(refused));
    }

    #[test]
    fn a_status_without_our_detail_is_not_taken_for_one() {
        assert_eq!(refusal_in(&tonic::Status::unavailable("gone")), None);
        let foreign = tonic::Status::with_details(tonic::Code::Internal, "x", vec![0xff, 0xff].into());
        assert_eq!(refusal_in(&foreign), None);
    }

    #[test]
    fn only_what_changed_nothing_is_asked_again_unasked() {
        assert!(passes(&ApiError::new(Code::NoLeader, "")));
        assert!(!passes(&ApiError::new(Code::Held, "")));
        let doubtful = ApiError { effect: Effect::Unknown, ..ApiError::new(Code::Overloaded, "") };
        assert!(!passes(&doubtful));
    }
}
