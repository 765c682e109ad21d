//! `/v1/fences`: which storages check the tokens of a resource, and what they have prevented.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use tenure_wire::json;

use super::error::no_such_call;
use super::extract::{Asked, Nothing, Written, read};
use super::leases::Stale;
use super::{HttpResult, Refused};
use crate::front::Api;

pub(super) async fn get(
    State(api): State<Arc<Api>>,
    written: Written,
    Asked(asked): Asked<Stale>,
) -> HttpResult<json::Fences> {
    written.no_verb()?;
    let (lease, _) = api.lease(&written.resource()?, asked.stale).await?;
    Ok(Json((&lease).into()))
}

pub(super) async fn verb(
    State(api): State<Arc<Api>>,
    written: Written,
    request: Request,
) -> Result<Response, Refused> {
    let command = match written.verb() {
        "arm" => read::<json::Arm>(request, &api).await?.command(written.resource()?)?,
        "refused" => read::<json::Refused>(request, &api).await?.command(written.resource()?)?,
        verb => return Err(Refused(no_such_call(&format!("the verb `{verb}` of a resource's fences")))),
    };
    api.submit_without_result(command).await?;
    Ok(Json(Nothing {}).into_response())
}
