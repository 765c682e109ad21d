//! `tenure.v1.Registers`.

use std::sync::Arc;

use tenure_core::RegisterKey;
use tenure_wire::{ApiError, grpc, proto};

use crate::calls::page;
use crate::context::CallContext;
use crate::front::Api;

pub(crate) async fn write(
    api: Arc<Api>,
    context: CallContext,
    request: proto::WriteRequest,
) -> Result<proto::WriteResponse, ApiError> {
    let written = api.write(&context, grpc::write(request)?).await?;
    Ok(proto::WriteResponse {
        succeeded: written.succeeded,
        revision: written.revision.get(),
        results: written.results.iter().map(grpc::register).collect(),
    })
}

pub(crate) async fn get(
    api: Arc<Api>,
    context: CallContext,
    request: proto::RegisterGetRequest,
) -> Result<proto::RegisterGetResponse, ApiError> {
    let (register, revision) = api.register(&context, &grpc::key(&request.key)?, request.stale).await?;
    Ok(proto::RegisterGetResponse { register: Some(grpc::register(&register)), revision: revision.get() })
}

pub(crate) async fn list(
    api: Arc<Api>,
    context: CallContext,
    request: proto::RegisterListRequest,
) -> Result<proto::RegisterListResponse, ApiError> {
    let after: Option<RegisterKey> =
        if request.after.is_empty() { None } else { Some(grpc::key(&request.after)?) };
    let limit = page(request.limit.map(Into::into))?;
    let (registers, next, revision) =
        api.registers(&context, &request.prefix, after.as_ref(), limit, request.stale).await?;
    Ok(proto::RegisterListResponse {
        registers: registers.iter().map(grpc::register).collect(),
        next: next.map(|key| key.as_bytes().to_vec()).unwrap_or_default(),
        revision: revision.get(),
    })
}
