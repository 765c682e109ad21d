//! `/v1/registers`: small values, guarded by leases where asked for.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tenure_core::{Command, Guard, RegisterKey};
use tenure_wire::{ApiError, json};

use super::error::no_such_call;
use super::extract::{Asked, Given, Nothing, Written, read};
use super::leases::Stale;
use super::{HttpResult, Refused};
use crate::calls::page;
use crate::front::Api;

/// Where a guard can be given instead of the body.
const GUARD_HEADER: &str = "tenure-token";

#[derive(Deserialize)]
pub(super) struct List {
    #[serde(default)]
    prefix: String,
    limit: Option<u64>,
    #[serde(default)]
    after: String,
    #[serde(default)]
    stale: bool,
}

pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Asked(asked): Asked<List>,
) -> HttpResult<json::Registers> {
    let after = if asked.after.is_empty() { None } else { Some(asked.after.parse::<RegisterKey>()?) };
    let (registers, next, revision) =
        api.registers(asked.prefix.as_bytes(), after.as_ref(), page(asked.limit)?, asked.stale).await?;
    Ok(Json(json::Registers {
        registers: registers.iter().map(Into::into).collect(),
        next: next.map(|key| key.to_string()),
        revision: revision.get(),
    }))
}

pub(super) async fn get(
    State(api): State<Arc<Api>>,
    written: Written,
    Asked(asked): Asked<Stale>,
) -> HttpResult<json::Register> {
    written.no_verb()?;
    let (register, _) = api.register(&written.key()?, asked.stale).await?;
    if register.value.is_none() {
        return Err(Refused(ApiError::not_found("register", &register.key.to_string())));
    }
    Ok(Json((&register).into()))
}

pub(super) async fn put(
    State(api): State<Arc<Api>>,
    written: Written,
    headers: HeaderMap,
    Given(body): Given<json::PutRegister>,
) -> HttpResult<json::Written> {
    written.no_verb()?;
    write_one(&api, body.command(written.key()?, guard(&headers)?)?).await
}

pub(super) async fn delete(
    State(api): State<Arc<Api>>,
    written: Written,
    headers: HeaderMap,
    Given(body): Given<json::DeleteRegister>,
) -> HttpResult<json::Written> {
    written.no_verb()?;
    write_one(&api, body.command(written.key()?, guard(&headers)?)?).await
}

async fn write_one(api: &Api, command: Command) -> HttpResult<json::Written> {
    let written = api.write(command).await?;
    Ok(Json(json::Written::new(written.succeeded, written.revision, &written.results)?))
}

fn guard(headers: &HeaderMap) -> Result<Option<Guard>, ApiError> {
    let Some(value) = headers.get(GUARD_HEADER) else { return Ok(None) };
    let text = std::str::from_utf8(value.as_bytes())
        .map_err(|_| ApiError::invalid("the header Tenure-Token is not UTF-8"))?;
    json::guard_from_header(text).map(Some)
}

pub(super) async fn write(
    State(api): State<Arc<Api>>,
    Given(body): Given<json::WriteRegisters>,
) -> HttpResult<json::WrittenMany> {
    let written = api.write(body.command()?).await?;
    Ok(Json(json::WrittenMany {
        succeeded: written.succeeded,
        revision: written.revision.get(),
        results: written.results.iter().map(Into::into).collect(),
    }))
}

pub(super) async fn verb(
    State(api): State<Arc<Api>>,
    written: Written,
    request: Request,
) -> Result<Response, Refused> {
    match written.verb() {
        "rebind" => {
            let body: json::Rebind = read(request, &api).await?;
            api.submit_without_result(body.command(written.key()?)?).await?;
            Ok(Json(Nothing {}).into_response())
        }
        verb => Err(Refused(no_such_call(&format!("the verb `{verb}` of a register")))),
    }
}
