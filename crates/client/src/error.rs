//! What can come of a call besides its answer, and what the caller may believe then. Every error answers
//! [`CallError::effect`] without its text being read; the texts name the thing, the number and the next step.

use std::fmt;
use std::time::Duration;

use prost::Message;
use tenure_wire::proto;
use tenure_wire::{Code, Effect};

use crate::endpoints::Endpoint;

/// A no of the store, with all that it said. What is absent was not said.
///
/// The code is kept as the store wrote it: a newer store may use words that this build has never heard, and
/// its message, hint and effect count all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// A stable word to act on, such as `held` or `stale_token`.
    pub code: String,
    /// For people: the thing and the number.
    pub message: String,
    /// For people: the next step.
    pub hint: Option<String>,
    /// What the call has done.
    pub effect: Effect,
    /// When it is worth asking again.
    pub retry_after: Option<Duration>,
    /// What it is about: a resource or a register.
    pub resource: Option<String>,
    /// Who has it.
    pub holder: Option<String>,
    /// What is left of the lease, the delay or the grace in the way.
    pub remaining: Option<Duration>,
    /// How long the call stood in line.
    pub waited: Option<Duration>,
    /// The token in the way.
    pub token: Option<u64>,
    /// The token presented.
    pub presented: Option<u64>,
    /// The newest token of the scope.
    pub seen: Option<u64>,
    /// The limit that would be passed.
    pub limit: Option<String>,
    /// Its value.
    pub max: Option<u64>,
    /// Where a watch can begin again.
    pub revision: Option<u64>,
}

impl Refused {
    /// A no without details beyond the words.
    pub(crate) fn plain(code: Code, message: impl Into<String>, effect: Effect) -> Self {
        let detail =
            proto::Error { code: code.as_str().to_owned(), message: message.into(), ..Default::default() };
        Self { effect, ..Self::from(detail) }
    }

    /// The code, if this build knows it.
    pub fn code(&self) -> Option<Code> {
        self.code.parse().ok()
    }

    /// Whether the store may answer otherwise in a moment, so that a transport asks again by itself.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self.code(), Some(Code::NoLeader | Code::Overloaded | Code::ShuttingDown))
            && self.effect == Effect::NotApplied
    }

    /// The no inside a gRPC status, if the store wrote one there.
    pub(crate) fn in_status(status: &tonic::Status) -> Option<Self> {
        let detail = proto::Error::decode(status.details()).ok()?;
        (!detail.code.is_empty()).then(|| detail.into())
    }
}

impl From<proto::Error> for Refused {
    fn from(detail: proto::Error) -> Self {
        let effect = match detail.effect() {
            proto::Effect::NotApplied => Effect::NotApplied,
            proto::Effect::Applied => Effect::Applied,
            // A word that this build does not know promises nothing.
            proto::Effect::Unknown | proto::Effect::Unspecified => Effect::Unknown,
        };
        let said = |text: String| (!text.is_empty()).then_some(text);
        Self {
            effect,
            code: detail.code,
            message: detail.message,
            hint: said(detail.hint),
            retry_after: detail.retry_after_ms.map(Duration::from_millis),
            resource: said(detail.resource),
            holder: said(detail.holder),
            remaining: detail.remaining_ms.map(Duration::from_millis),
            waited: detail.waited_ms.map(Duration::from_millis),
            token: detail.token,
            presented: detail.presented,
            seen: detail.seen,
            limit: said(detail.limit),
            max: detail.max,
            revision: detail.revision,
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.message.is_empty() { &self.code } else { &self.message })
    }
}

impl std::error::Error for Refused {}

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
    Refused(Box<Refused>),
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
    fn a_detail_is_read_field_by_field() {
        let detail = proto::Error {
            code: "held".into(),
            message: "settlement/cron is held by node-3 for another 4.2s".into(),
            effect: proto::Effect::NotApplied.into(),
            holder: "node-3".into(),
            remaining_ms: Some(4200),
            ..Default::default()
        };
        let status = tonic::Status::with_details(
            tonic::Code::FailedPrecondition,
            "held",
            detail.encode_to_vec().into(),
        );
        let refused = Refused::in_status(&status).expect("it has a detail");
        assert_eq!(refused.code, "held");
        assert_eq!(refused.holder.as_deref(), Some("node-3"));
        assert_eq!(refused.remaining, Some(Duration::from_millis(4200)));
        assert_eq!((refused.hint, refused.token, refused.resource), (None, None, None));
        assert_eq!(refused.effect, Effect::NotApplied);
    }

    #[test]
    fn a_status_without_our_detail_is_not_taken_for_one() {
        assert_eq!(Refused::in_status(&tonic::Status::unavailable("gone")), None);
        let foreign = tonic::Status::with_details(tonic::Code::Internal, "x", vec![0xff, 0xff].into());
        assert_eq!(Refused::in_status(&foreign), None);
    }

    #[test]
    fn an_effect_that_was_not_said_is_unknown() {
        let refused = Refused::from(proto::Error { code: "new_word".into(), ..Default::default() });
        assert_eq!(refused.effect, Effect::Unknown);
        assert_eq!(refused.to_string(), "new_word");
    }
}
