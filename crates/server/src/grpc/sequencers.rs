//! `tenure.v1.Sequencers`.

use std::sync::Arc;

use tenure_core::Token;
use tenure_wire::{ApiError, grpc, proto};

use crate::context::CallContext;
use crate::front::Api;
use crate::signing::Verdict;

pub(crate) async fn issue(
    api: Arc<Api>,
    context: CallContext,
    request: proto::SequencerIssueRequest,
) -> Result<proto::SequencerIssueResponse, ApiError> {
    let scope = grpc::scope(request.scope)?;
    // Zero is what a caller sends that left it out.
    let token = (request.token > 0).then(|| Token::try_from(request.token)).transpose()?;
    let sequencer = api.sequencer(&context, &request.session.parse()?, &scope, token).await?;
    Ok(proto::SequencerIssueResponse { sequencer })
}

pub(crate) async fn check(
    api: Arc<Api>,
    context: CallContext,
    request: proto::SequencerCheckRequest,
) -> Result<proto::SequencerCheckResponse, ApiError> {
    let checked = api.check_sequencer(&context, &request.sequencer).await?;
    let verdict = match checked.verdict {
        Verdict::Valid => proto::SequencerVerdict::Valid,
        Verdict::Stale => proto::SequencerVerdict::Stale,
        Verdict::Unknown => proto::SequencerVerdict::Unknown,
    };
    Ok(proto::SequencerCheckResponse {
        verdict: verdict.into(),
        presented: checked.presented.map(Token::get),
        seen: checked.seen.map(Token::get),
    })
}
