//! `tenure.v1.Fences`.

use tenure_core::{Command, FenceName};
use tenure_wire::proto::{self, fences_server::Fences};
use tenure_wire::{ApiError, grpc};
use tonic::{Request, async_trait};

use super::{GrpcResult, Services, answer};
use crate::calls::{FenceView, page};

#[async_trait]
impl Fences for Services {
    async fn arm(&self, request: Request<proto::ArmRequest>) -> GrpcResult<proto::ArmResponse> {
        answer(
            async {
                self.0.submit_without_result(grpc::arm(request.into_inner())?).await?;
                Ok(proto::ArmResponse {})
            }
            .await,
        )
    }

    async fn report_refused(
        &self,
        request: Request<proto::ReportRefusedRequest>,
    ) -> GrpcResult<proto::ReportRefusedResponse> {
        answer(
            async {
                self.0.submit_without_result(grpc::report_refused(request.into_inner())?).await?;
                Ok(proto::ReportRefusedResponse {})
            }
            .await,
        )
    }

    async fn remove(
        &self,
        request: Request<proto::FenceRemoveRequest>,
    ) -> GrpcResult<proto::FenceRemoveResponse> {
        let asked = request.into_inner();
        answer(
            async {
                let (resource, fence) = (grpc::resource(asked.resource)?, FenceName::try_from(asked.fence)?);
                self.0.submit_without_result(Command::RemoveFence { resource, fence }).await?;
                Ok(proto::FenceRemoveResponse {})
            }
            .await,
        )
    }

    async fn list(&self, request: Request<proto::FenceListRequest>) -> GrpcResult<proto::FenceListResponse> {
        let asked = request.into_inner();
        answer(
            async {
                let limit = page(asked.limit.map(Into::into))?;
                let (fences, next) = self.0.fences(&asked.prefix, &asked.after, limit).await?;
                Ok::<_, ApiError>(proto::FenceListResponse {
                    fences: fences.iter().map(fence).collect(),
                    next: next.unwrap_or_default(),
                })
            }
            .await,
        )
    }
}

fn fence(view: &FenceView) -> proto::FenceView {
    let armed = view.record.armed.iter();
    proto::FenceView {
        resource: view.resource.to_string(),
        fence: view.fence.to_string(),
        armed: armed
            .map(|(slot, token)| proto::ArmedToken {
                slot: slot.map(|slot| slot.get()),
                token: token.get(),
                current: view.newest.get(slot) == Some(token),
            })
            .collect(),
        refused: view.record.refused,
        refused_unix_ms: (view.record.refused > 0).then(|| view.record.refused_wall.as_unix_millis()),
    }
}
