//! `tenure.v1.Sessions`.

use std::sync::Arc;

use tenure_core::{SessionId, SessionNumber};
use tenure_wire::{ApiError, grpc, proto};

use crate::calls::page;
use crate::context::CallContext;
use crate::front::Api;

pub(crate) async fn open(
    api: Arc<Api>,
    context: CallContext,
    request: proto::SessionOpenRequest,
) -> Result<proto::SessionOpenResponse, ApiError> {
    let opened = api.open(&context, grpc::open(request, api.node.draw_secret())?).await?;
    Ok(grpc::opened(opened.session, &opened.holder, opened.ttl, opened.number))
}

pub(crate) async fn renew(
    api: Arc<Api>,
    context: CallContext,
    request: proto::SessionRenewRequest,
) -> Result<proto::SessionRenewResponse, ApiError> {
    let renewals = grpc::renewals(&request)?;
    let answers = api.renew(&context, renewals.clone()).await?;
    Ok(grpc::renewed_many(renewals.iter().map(|(id, _)| id).zip(&answers)))
}

pub(crate) async fn close(
    api: Arc<Api>,
    context: CallContext,
    request: proto::SessionCloseRequest,
) -> Result<proto::SessionCloseResponse, ApiError> {
    let released = api.close(&context, grpc::close(request)?).await?;
    Ok(proto::SessionCloseResponse { released })
}

pub(crate) async fn list(
    api: Arc<Api>,
    context: CallContext,
    request: proto::SessionListRequest,
) -> Result<proto::SessionListResponse, ApiError> {
    let after = request.after.map(SessionNumber::new);
    let (sessions, next) = api.sessions(&context, after, page(request.limit.map(Into::into))?).await?;
    Ok(proto::SessionListResponse {
        sessions: sessions.iter().map(grpc::session_summary).collect(),
        next: next.map(SessionNumber::get),
    })
}

pub(crate) async fn get(
    api: Arc<Api>,
    context: CallContext,
    request: proto::SessionGetRequest,
) -> Result<proto::SessionGetResponse, ApiError> {
    let id: SessionId = request.session.parse()?;
    Ok(grpc::own_session(&api.own_session(&context, &id).await?))
}

pub(crate) async fn seen(
    api: Arc<Api>,
    context: CallContext,
    request: proto::SessionSeenRequest,
) -> Result<proto::SessionSeenResponse, ApiError> {
    api.submit_without_result(&context, grpc::seen(&request)?).await?;
    Ok(proto::SessionSeenResponse {})
}

pub(crate) async fn report_pause(
    api: Arc<Api>,
    context: CallContext,
    request: proto::ReportPauseRequest,
) -> Result<proto::ReportPauseResponse, ApiError> {
    api.submit_without_result(&context, grpc::report_pause(&request)?).await?;
    Ok(proto::ReportPauseResponse {})
}
