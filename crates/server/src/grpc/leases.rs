//! `tenure.v1.Leases`.

use std::sync::Arc;

use tenure_core::{ResourceName, Token};
use tenure_wire::words::millis;
use tenure_wire::{ApiError, grpc, proto};

use super::Delivered;
use crate::calls::{AcquireOutcome, page};
use crate::context::CallContext;
use crate::delivery::Delivery;
use crate::front::Api;

pub(crate) async fn acquire(
    api: Arc<Api>,
    context: CallContext,
    request: proto::AcquireRequest,
) -> Result<Delivered<proto::AcquireResponse>, ApiError> {
    let poll_ms = request.poll_ms;
    let acquire = grpc::acquire(request, api.node.draw_secret())?;
    Ok(match api.acquire(&context, acquire, poll_ms).await? {
        AcquireOutcome::Granted(granted) => {
            let response = proto::AcquireResponse {
                grants: granted.grants.iter().map(grpc::grant).collect(),
                opened: granted.opened,
                queued: None,
            };
            Delivered(response, Delivery::new(granted.hang_up))
        }
        AcquireOutcome::Queued { session, ttl, ahead } => {
            let queued = proto::StillQueued { session: session.to_string(), ttl_ms: millis(ttl), ahead };
            let response = proto::AcquireResponse { grants: Vec::new(), opened: None, queued: Some(queued) };
            Delivered(response, Delivery::new(None))
        }
    })
}

pub(crate) async fn cancel(
    api: Arc<Api>,
    context: CallContext,
    request: proto::CancelRequest,
) -> Result<proto::CancelResponse, ApiError> {
    let released = api.cancel(&context, grpc::cancel(request)?).await?;
    Ok(proto::CancelResponse { released })
}

pub(crate) async fn release(
    api: Arc<Api>,
    context: CallContext,
    request: proto::ReleaseRequest,
) -> Result<proto::ReleaseResponse, ApiError> {
    let released = api.release(&context, grpc::release(request)?).await?;
    Ok(proto::ReleaseResponse { released })
}

pub(crate) async fn transfer(
    api: Arc<Api>,
    context: CallContext,
    request: proto::TransferRequest,
) -> Result<proto::TransferResponse, ApiError> {
    let grant = api.transfer(&context, grpc::transfer(request)?).await?;
    Ok(proto::TransferResponse { grant: Some(grpc::grant_to_another(&grant)) })
}

pub(crate) async fn revoke(
    api: Arc<Api>,
    context: CallContext,
    request: proto::RevokeRequest,
) -> Result<proto::RevokeResponse, ApiError> {
    let revoked = api.revoke(&context, grpc::revoke(request)?).await?;
    Ok(proto::RevokeResponse {
        holdings: revoked.holdings.iter().map(grpc::holding).collect(),
        token: revoked.token.map(Token::get),
    })
}

pub(crate) async fn get(
    api: Arc<Api>,
    context: CallContext,
    request: proto::LeaseGetRequest,
) -> Result<proto::LeaseGetResponse, ApiError> {
    let (lease, revision) = api.lease(&context, &grpc::resource(request.resource)?, request.stale).await?;
    Ok(proto::LeaseGetResponse { lease: Some(grpc::lease(&lease)), revision: revision.get() })
}

pub(crate) async fn list(
    api: Arc<Api>,
    context: CallContext,
    request: proto::LeaseListRequest,
) -> Result<proto::LeaseListResponse, ApiError> {
    let after: Option<ResourceName> =
        if request.after.is_empty() { None } else { Some(grpc::resource(request.after)?) };
    let limit = page(request.limit.map(Into::into))?;
    let (leases, next, revision) =
        api.leases(&context, &request.prefix, after.as_ref(), limit, request.stale).await?;
    Ok(proto::LeaseListResponse {
        leases: leases.iter().map(grpc::lease).collect(),
        next: next.map(|name| name.to_string()).unwrap_or_default(),
        revision: revision.get(),
    })
}

pub(crate) async fn history(
    api: Arc<Api>,
    context: CallContext,
    request: proto::HistoryRequest,
) -> Result<proto::HistoryResponse, ApiError> {
    let history = api.history(&context, &grpc::resource(request.resource)?).await?;
    Ok(grpc::history(&history, request.limit.map_or(usize::MAX, |limit| limit as usize)))
}

pub(crate) async fn barrier(
    api: Arc<Api>,
    context: CallContext,
    request: proto::BarrierRequest,
) -> Result<proto::BarrierResponse, ApiError> {
    let token = api.barrier(&context, grpc::resource(request.resource)?).await?;
    Ok(proto::BarrierResponse { token: token.get() })
}
