//! `tenure.v1.Leases`.

use tenure_core::{ResourceName, Token};
use tenure_wire::grpc;
use tenure_wire::proto::{self, leases_server::Leases};
use tenure_wire::words::millis;
use tonic::{Request, async_trait};

use super::{GrpcResult, Services, answer, status};
use crate::calls::{AcquireOutcome, page};
use crate::delivery::Delivery;

#[async_trait]
impl Leases for Services {
    async fn acquire(&self, request: Request<proto::AcquireRequest>) -> GrpcResult<proto::AcquireResponse> {
        let api = &self.0;
        let request = request.into_inner();
        let poll_ms = request.poll_ms;
        let acquire = grpc::acquire(request, api.node.draw_secret()).map_err(status)?;
        match api.acquire(acquire, poll_ms).await.map_err(status)? {
            AcquireOutcome::Granted(granted) => {
                let mut response = tonic::Response::new(proto::AcquireResponse {
                    grants: granted.grants.iter().map(grpc::grant).collect(),
                    opened: granted.opened,
                    queued: None,
                });
                response.extensions_mut().insert(Delivery::new(granted.hang_up));
                Ok(response)
            }
            AcquireOutcome::Queued { session, ttl, ahead } => {
                let queued = proto::StillQueued { session: session.to_string(), ttl_ms: millis(ttl), ahead };
                let queued = Some(queued);
                Ok(tonic::Response::new(proto::AcquireResponse { grants: Vec::new(), opened: None, queued }))
            }
        }
    }

    async fn cancel(&self, request: Request<proto::CancelRequest>) -> GrpcResult<proto::CancelResponse> {
        answer(
            async {
                let released = self.0.cancel(grpc::cancel(request.into_inner())?).await?;
                Ok(proto::CancelResponse { released })
            }
            .await,
        )
    }

    async fn release(&self, request: Request<proto::ReleaseRequest>) -> GrpcResult<proto::ReleaseResponse> {
        answer(
            async {
                let released = self.0.release(grpc::release(request.into_inner())?).await?;
                Ok(proto::ReleaseResponse { released })
            }
            .await,
        )
    }

    async fn transfer(
        &self,
        request: Request<proto::TransferRequest>,
    ) -> GrpcResult<proto::TransferResponse> {
        answer(
            async {
                let grant = self.0.transfer(grpc::transfer(request.into_inner())?).await?;
                Ok(proto::TransferResponse { grant: Some(grpc::grant_to_another(&grant)) })
            }
            .await,
        )
    }

    async fn revoke(&self, request: Request<proto::RevokeRequest>) -> GrpcResult<proto::RevokeResponse> {
        answer(
            async {
                let revoked = self.0.revoke(grpc::revoke(request.into_inner())?).await?;
                Ok(proto::RevokeResponse {
                    holdings: revoked.holdings.iter().map(grpc::holding).collect(),
                    token: revoked.token.map(Token::get),
                })
            }
            .await,
        )
    }

    async fn get(&self, request: Request<proto::LeaseGetRequest>) -> GrpcResult<proto::LeaseGetResponse> {
        let asked = request.into_inner();
        answer(
            async {
                let (lease, revision) = self.0.lease(&grpc::resource(asked.resource)?, asked.stale).await?;
                Ok(proto::LeaseGetResponse { lease: Some(grpc::lease(&lease)), revision: revision.get() })
            }
            .await,
        )
    }

    async fn list(&self, request: Request<proto::LeaseListRequest>) -> GrpcResult<proto::LeaseListResponse> {
        let asked = request.into_inner();
        answer(
            async {
                let after: Option<ResourceName> =
                    if asked.after.is_empty() { None } else { Some(grpc::resource(asked.after)?) };
                let limit = page(asked.limit.map(Into::into))?;
                let (leases, next, revision) =
                    self.0.leases(&asked.prefix, after.as_ref(), limit, asked.stale).await?;
                Ok(proto::LeaseListResponse {
                    leases: leases.iter().map(grpc::lease).collect(),
                    next: next.map(|name| name.to_string()).unwrap_or_default(),
                    revision: revision.get(),
                })
            }
            .await,
        )
    }

    async fn history(&self, request: Request<proto::HistoryRequest>) -> GrpcResult<proto::HistoryResponse> {
        let asked = request.into_inner();
        answer(
            async {
                let (lease, past) = self.0.history(&grpc::resource(asked.resource)?).await?;
                let limit = asked.limit.map_or(usize::MAX, |limit| limit as usize);
                Ok(proto::HistoryResponse {
                    resource: lease.resource.to_string(),
                    transitions: past.iter().rev().take(limit).map(grpc::transition).collect(),
                })
            }
            .await,
        )
    }

    async fn barrier(&self, request: Request<proto::BarrierRequest>) -> GrpcResult<proto::BarrierResponse> {
        answer(
            async {
                let token = self.0.barrier(grpc::resource(request.into_inner().resource)?).await?;
                Ok(proto::BarrierResponse { token: token.get() })
            }
            .await,
        )
    }
}
