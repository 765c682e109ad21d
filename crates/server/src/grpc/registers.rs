//! `tenure.v1.Registers`.

use tenure_core::RegisterKey;
use tenure_wire::grpc;
use tenure_wire::proto::{self, registers_server::Registers};
use tonic::{Request, async_trait};

use super::{GrpcResult, Services, answer};
use crate::calls::page;

#[async_trait]
impl Registers for Services {
    async fn write(&self, request: Request<proto::WriteRequest>) -> GrpcResult<proto::WriteResponse> {
        answer(
            async {
                let written = self.0.write(grpc::write(request.into_inner())?).await?;
                Ok(proto::WriteResponse {
                    succeeded: written.succeeded,
                    revision: written.revision.get(),
                    results: written.results.iter().map(grpc::register).collect(),
                })
            }
            .await,
        )
    }

    async fn get(
        &self,
        request: Request<proto::RegisterGetRequest>,
    ) -> GrpcResult<proto::RegisterGetResponse> {
        let asked = request.into_inner();
        answer(
            async {
                let (register, revision) = self.0.register(&grpc::key(&asked.key)?, asked.stale).await?;
                Ok(proto::RegisterGetResponse {
                    register: Some(grpc::register(&register)),
                    revision: revision.get(),
                })
            }
            .await,
        )
    }

    async fn list(
        &self,
        request: Request<proto::RegisterListRequest>,
    ) -> GrpcResult<proto::RegisterListResponse> {
        let asked = request.into_inner();
        answer(
            async {
                let after: Option<RegisterKey> =
                    if asked.after.is_empty() { None } else { Some(grpc::key(&asked.after)?) };
                let limit = page(asked.limit.map(Into::into))?;
                let (registers, next, revision) =
                    self.0.registers(&asked.prefix, after.as_ref(), limit, asked.stale).await?;
                Ok(proto::RegisterListResponse {
                    registers: registers.iter().map(grpc::register).collect(),
                    next: next.map(|key| key.as_bytes().to_vec()).unwrap_or_default(),
                    revision: revision.get(),
                })
            }
            .await,
        )
    }
}
