//! `/v1/registers`: small values, guarded by leases where asked for.

use std::sync::Arc;

use axum::Json;
use tenure_core::{Command, Guard, RegisterKey};
use tenure_wire::{ApiError, json};

use super::request::HttpRequest;
use super::{HttpResult, Refused};
use crate::calls::page;
use crate::context::CallContext;
use crate::front::Api;

/// Where a guard can be given instead of the body.
const GUARD_HEADER: &str = "tenure-token";

pub(crate) async fn list(
    api: Arc<Api>,
    context: CallContext,
    request: HttpRequest,
) -> HttpResult<json::Registers> {
    let asked: json::ListQuery = request.query()?;
    let after = if asked.after.is_empty() { None } else { Some(asked.after.parse::<RegisterKey>()?) };
    let (prefix, limit) = (asked.prefix.as_bytes(), page(asked.limit)?);
    let (registers, next, revision) =
        api.registers(&context, prefix, after.as_ref(), limit, asked.stale).await?;
    Ok(Json(json::Registers {
        registers: registers.iter().map(Into::into).collect(),
        next: next.map(|key| key.to_string()),
        revision: revision.get(),
    }))
}

pub(crate) async fn get(
    api: Arc<Api>,
    context: CallContext,
    request: HttpRequest,
) -> HttpResult<json::Register> {
    let asked: json::ReadQuery = request.query()?;
    let (register, _) = api.register(&context, &request.key()?, asked.stale).await?;
    if register.value.is_none() {
        return Err(Refused(ApiError::not_found("register", &register.key.to_string())));
    }
    Ok(Json((&register).into()))
}

pub(crate) async fn put(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::Written> {
    let body: json::PutRegister = request.body_of_session(&api).await?;
    write_one(&api, &context, body.command(request.key()?, guard(&request)?)?).await
}

pub(crate) async fn delete(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::Written> {
    let body: json::DeleteRegister = request.body_of_session(&api).await?;
    write_one(&api, &context, body.command(request.key()?, guard(&request)?)?).await
}

async fn write_one(api: &Api, context: &CallContext, command: Command) -> HttpResult<json::Written> {
    let written = api.write(context, command).await?;
    Ok(Json(json::Written::new(written.succeeded, written.revision, &written.results)?))
}

fn guard(request: &HttpRequest) -> Result<Option<Guard>, ApiError> {
    request.header(GUARD_HEADER)?.map(json::guard_from_header).transpose()
}

pub(crate) async fn write(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::WrittenMany> {
    let body: json::WriteRegisters = request.body_of_session(&api).await?;
    let written = api.write(&context, body.command()?).await?;
    Ok(Json(json::WrittenMany {
        succeeded: written.succeeded,
        revision: written.revision.get(),
        results: written.results.iter().map(Into::into).collect(),
    }))
}

pub(crate) async fn rebind(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::Nothing> {
    let body: json::Rebind = request.body(&api).await?;
    api.submit_without_result(&context, body.command(request.key()?)?).await?;
    Ok(Json(json::Nothing {}))
}
