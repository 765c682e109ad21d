//! Everything about the node itself: the cluster, metrics, health, the probe.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tenure_wire::{ApiError, json};

use super::extract::{Asked, Written};
use super::{HttpResult, Refused};
use crate::front::Api;
use crate::metrics;

#[derive(Deserialize)]
pub(super) struct Status {
    #[serde(default)]
    state_hash: bool,
}

/// The cluster as this node sees it; it answers without a leader, too, because that is when it is asked.
pub(super) async fn cluster(
    State(api): State<Arc<Api>>,
    Asked(asked): Asked<Status>,
) -> HttpResult<json::ClusterStatus> {
    Ok(Json(api.cluster(asked.state_hash).await?))
}

/// The leader's probe of its own client port has come in. Any other number is refused and changes nothing.
pub(super) async fn probe(State(api): State<Arc<Api>>, written: Written) -> Result<StatusCode, Refused> {
    match api.node.probe_arrived(written.probe()?) {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ApiError::not_found("probe", "with this number").into()),
    }
}

pub(super) async fn metrics(State(api): State<Arc<Api>>) -> Response {
    let page = metrics::render(&api.node, &api.traffic);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response()
}

/// What the two health pages answer.
#[derive(Serialize)]
pub(super) struct Health {
    status: &'static str,
}

/// The process is there and answers.
pub(super) async fn healthz() -> Json<Health> {
    Json(Health { status: "ok" })
}

/// A leader is known and serves.
pub(super) async fn readyz(State(api): State<Arc<Api>>) -> HttpResult<Health> {
    api.ready().await?;
    Ok(Json(Health { status: "ready" }))
}
