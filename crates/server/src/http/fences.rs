//! `/v1/fences`: which storages check the tokens of a resource, and what they have prevented.

use std::sync::Arc;

use axum::Json;
use tenure_wire::json;

use super::HttpResult;
use super::request::HttpRequest;
use crate::context::CallContext;
use crate::front::Api;

pub(crate) async fn get(
    api: Arc<Api>,
    context: CallContext,
    request: HttpRequest,
) -> HttpResult<json::Fences> {
    let asked: json::ReadQuery = request.query()?;
    let (lease, _) = api.lease(&context, &request.resource()?, asked.stale).await?;
    Ok(Json((&lease).into()))
}

pub(crate) async fn arm(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::Nothing> {
    let body: json::Arm = request.body(&api).await?;
    api.submit_without_result(&context, body.command(request.resource()?)?).await?;
    Ok(Json(json::Nothing {}))
}

pub(crate) async fn report_refused(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::Nothing> {
    let body: json::Refused = request.body(&api).await?;
    api.submit_without_result(&context, body.command(request.resource()?)?).await?;
    Ok(Json(json::Nothing {}))
}
