//! Everything about the node itself: the cluster, metrics, health, the probe.

use std::sync::Arc;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use tenure_wire::{ApiError, json};

use super::request::HttpRequest;
use super::{HttpResult, Refused};
use crate::context::CallContext;
use crate::front::Api;
use crate::metrics;

/// The cluster as this node sees it; it answers without a leader, too, because that is when it is asked.
pub(crate) async fn cluster(
    api: Arc<Api>,
    context: CallContext,
    request: HttpRequest,
) -> HttpResult<json::ClusterStatus> {
    let asked: json::StatusQuery = request.query()?;
    Ok(Json(api.cluster(&context, asked.state_hash).await?))
}

/// The leader's probe of its own client port has come in. Any other number is refused and changes nothing.
pub(crate) async fn probe(
    api: Arc<Api>,
    _: CallContext,
    request: HttpRequest,
) -> Result<StatusCode, Refused> {
    match api.node.probe_arrived(request.probe()?) {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ApiError::not_found("probe", "with this number").into()),
    }
}

pub(crate) async fn metrics(api: Arc<Api>, context: CallContext, _: HttpRequest) -> Response {
    let page = metrics::render(&api.node, &context.identity, &api.traffic, &api.callers);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response()
}

/// The process is there and answers.
pub(crate) async fn healthz(_: Arc<Api>, _: CallContext, _: HttpRequest) -> Json<json::Health> {
    Json(json::Health { status: "ok".into() })
}

/// A leader is known and serves.
pub(crate) async fn readyz(api: Arc<Api>, _: CallContext, _: HttpRequest) -> HttpResult<json::Health> {
    api.ready().await?;
    Ok(Json(json::Health { status: "ready".into() }))
}
