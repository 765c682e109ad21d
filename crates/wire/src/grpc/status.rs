//! How an [`ApiError`] rides in a gRPC status, and comes out of one again.

use prost::Message;
use tonic::Status;

use crate::error::{About, ApiError, Code, Effect};
use crate::proto;

impl From<Effect> for proto::Effect {
    fn from(effect: Effect) -> proto::Effect {
        match effect {
            Effect::NotApplied => proto::Effect::NotApplied,
            Effect::Applied => proto::Effect::Applied,
            Effect::Unknown => proto::Effect::Unknown,
        }
    }
}

impl From<ApiError> for proto::Error {
    fn from(error: ApiError) -> proto::Error {
        let about = *error.about;
        proto::Error {
            code: error.code.as_str().into(),
            message: error.message,
            hint: error.hint,
            effect: proto::Effect::from(error.effect).into(),
            retry_after_ms: error.retry_after_ms,
            resource: about.resource.unwrap_or_default(),
            holder: about.holder.unwrap_or_default(),
            remaining_ms: about.remaining_ms,
            waited_ms: about.waited_ms,
            token: about.token,
            presented: about.presented,
            seen: about.seen,
            limit: about.limit.unwrap_or_default(),
            max: about.max,
            revision: about.revision,
            identity: about.identity.unwrap_or_default(),
            verb: about.verb.unwrap_or_default(),
            reason: about.reason.unwrap_or_default(),
            policy: about.policy.unwrap_or_default(),
            used: about.used,
        }
    }
}

impl From<proto::Error> for ApiError {
    fn from(error: proto::Error) -> ApiError {
        let some = |text: String| (!text.is_empty()).then_some(text);
        // A word that this build does not know is a newer server's; the effect still tells what to do.
        let code = error.code.parse().unwrap_or(Code::Internal);
        let effect = match error.effect() {
            proto::Effect::NotApplied => Effect::NotApplied,
            proto::Effect::Applied => Effect::Applied,
            proto::Effect::Unknown | proto::Effect::Unspecified => Effect::Unknown,
        };
        ApiError {
            code,
            message: error.message,
            hint: error.hint,
            effect,
            retry_after_ms: error.retry_after_ms,
            about: Box::new(About {
                resource: some(error.resource),
                holder: some(error.holder),
                remaining_ms: error.remaining_ms,
                waited_ms: error.waited_ms,
                token: error.token,
                presented: error.presented,
                seen: error.seen,
                limit: some(error.limit),
                max: error.max,
                revision: error.revision,
                identity: some(error.identity),
                verb: some(error.verb),
                reason: some(error.reason),
                policy: some(error.policy),
                used: error.used,
            }),
        }
    }
}

impl From<ApiError> for Status {
    fn from(error: ApiError) -> Status {
        let (code, message) = (error.code.grpc_code(), error.message.clone());
        let details = proto::Error::from(error).encode_to_vec();
        Status::with_details(code, message, details.into())
    }
}

/// What a status says. One without our detail came from a proxy or from the connection itself: whether the call
/// was applied is then unknown, unless the code rules it out.
impl From<&Status> for ApiError {
    fn from(status: &Status) -> ApiError {
        if !status.details().is_empty()
            && let Ok(detail) = proto::Error::decode(status.details())
            && !detail.code.is_empty()
        {
            return detail.into();
        }
        let message = if status.message().is_empty() {
            format!("the call failed: {}", status.code().description())
        } else {
            status.message().to_owned()
        };
        match status.code() {
            tonic::Code::Unimplemented => ApiError::new(Code::NoSuchCall, message),
            tonic::Code::InvalidArgument => ApiError::new(Code::InvalidArgument, message),
            tonic::Code::ResourceExhausted => ApiError::new(Code::Overloaded, message),
            _ => ApiError::new(Code::UnknownOutcome, message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::{Refusal, Token};

    #[test]
    fn an_error_survives_a_status() {
        let refusal = Refusal::StaleToken { presented: Token::FIRST, seen: Token::MAX };
        let error = ApiError::from(&refusal);
        let status = Status::from(error.clone());
        assert_eq!(status.code(), tonic::Code::FailedPrecondition);
        assert_eq!(ApiError::from(&status), error);
        let error = ApiError::no_leader(std::time::Duration::from_millis(300));
        assert_eq!(ApiError::from(&Status::from(error.clone())), error);
    }

    #[test]
    fn a_foreign_status_leaves_the_outcome_open() {
        let error = ApiError::from(&Status::unavailable("connection reset"));
        assert_eq!((error.code, error.effect), (Code::UnknownOutcome, Effect::Unknown));
        let error = ApiError::from(&Status::with_details(
            tonic::Code::Unavailable,
            "",
            b"\xff\xff\xff".as_slice().to_vec().into(),
        ));
        assert_eq!(error.effect, Effect::Unknown);
    }

    #[test]
    fn a_code_of_a_newer_server_keeps_its_effect() {
        let newer = proto::Error {
            code: "moonstruck".into(),
            effect: proto::Effect::NotApplied.into(),
            ..Default::default()
        };
        assert_eq!(ApiError::from(newer).effect, Effect::NotApplied);
    }
}
