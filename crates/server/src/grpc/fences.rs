//! `tenure.v1.Fences`.

use std::sync::Arc;

use tenure_wire::{ApiError, grpc, proto};

use crate::calls::page;
use crate::context::CallContext;
use crate::front::Api;

pub(crate) async fn arm(
    api: Arc<Api>,
    context: CallContext,
    request: proto::ArmRequest,
) -> Result<proto::ArmResponse, ApiError> {
    api.submit_without_result(&context, grpc::arm(request)?).await?;
    Ok(proto::ArmResponse {})
}

pub(crate) async fn report_refused(
    api: Arc<Api>,
    context: CallContext,
    request: proto::ReportRefusedRequest,
) -> Result<proto::ReportRefusedResponse, ApiError> {
    api.submit_without_result(&context, grpc::report_refused(request)?).await?;
    Ok(proto::ReportRefusedResponse {})
}

pub(crate) async fn remove(
    api: Arc<Api>,
    context: CallContext,
    request: proto::FenceRemoveRequest,
) -> Result<proto::FenceRemoveResponse, ApiError> {
    api.submit_without_result(&context, grpc::remove_fence(request)?).await?;
    Ok(proto::FenceRemoveResponse {})
}

pub(crate) async fn list(
    api: Arc<Api>,
    context: CallContext,
    request: proto::FenceListRequest,
) -> Result<proto::FenceListResponse, ApiError> {
    let limit = page(request.limit.map(Into::into))?;
    let after = grpc::after_resource(request.after)?;
    let (fences, next) = api.fences(&context, &request.prefix, after.as_ref(), limit).await?;
    Ok(proto::FenceListResponse {
        fences: fences.iter().map(grpc::fence).collect(),
        next: next.map(|name| name.to_string()).unwrap_or_default(),
    })
}
