//! `tenure.v1.Sequencers`.

use tenure_core::Token;
use tenure_wire::proto::{self, sequencers_server::Sequencers};
use tenure_wire::{ApiError, grpc};
use tonic::{Request, async_trait};

use super::{GrpcResult, Services, answer};
use crate::signing::Verdict;

#[async_trait]
impl Sequencers for Services {
    async fn issue(
        &self,
        request: Request<proto::SequencerIssueRequest>,
    ) -> GrpcResult<proto::SequencerIssueResponse> {
        let asked = request.into_inner();
        answer(
            async {
                let scope = grpc::scope(asked.scope)?;
                // Zero is what a caller sends that left it out.
                let token = (asked.token > 0).then(|| Token::try_from(asked.token)).transpose()?;
                let sequencer = self.0.sequencer(&asked.session.parse()?, &scope, token).await?;
                Ok::<_, ApiError>(proto::SequencerIssueResponse { sequencer })
            }
            .await,
        )
    }

    async fn check(
        &self,
        request: Request<proto::SequencerCheckRequest>,
    ) -> GrpcResult<proto::SequencerCheckResponse> {
        let asked = request.into_inner();
        answer(
            async {
                let checked = self.0.check_sequencer(&asked.sequencer).await?;
                let verdict = match checked.verdict {
                    Verdict::Valid => proto::SequencerVerdict::Valid,
                    Verdict::Stale => proto::SequencerVerdict::Stale,
                    Verdict::Unknown => proto::SequencerVerdict::Unknown,
                };
                Ok::<_, ApiError>(proto::SequencerCheckResponse {
                    verdict: verdict.into(),
                    presented: checked.presented.map(Token::get),
                    seen: checked.seen.map(Token::get),
                })
            }
            .await,
        )
    }
}
