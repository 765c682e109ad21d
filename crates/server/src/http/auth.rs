//! `/v1/auth`: credentials, policies, who one is and what one may do.

use std::sync::Arc;

use axum::Json;
use tenure_wire::json;

use super::HttpResult;
use super::request::HttpRequest;
use crate::calls::page;
use crate::context::CallContext;
use crate::front::Api;

pub(crate) async fn put_credential(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::Nothing> {
    let body: json::IssueCredential = request.body(&api).await?;
    api.submit_without_result(&context, body.command()?).await?;
    Ok(Json(json::Nothing {}))
}

pub(crate) async fn revoke_credential(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::Nothing> {
    let body: json::TakeAway = request.body(&api).await?;
    let id = request.named()?;
    api.submit_without_result(&context, tenure_core::Command::RevokeCredential { id, now: body.now }).await?;
    Ok(Json(json::Nothing {}))
}

pub(crate) async fn credentials(
    api: Arc<Api>,
    context: CallContext,
    request: HttpRequest,
) -> HttpResult<json::Credentials> {
    let asked: json::CredentialsQuery = request.query()?;
    let after = if asked.after.is_empty() { None } else { Some(asked.after.parse()?) };
    Ok(Json(api.credentials(&context, after, page(asked.limit)?).await?))
}

pub(crate) async fn put_policy(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::Nothing> {
    let body: json::PutPolicy = request.body(&api).await?;
    api.submit_without_result(&context, body.command(request.named()?)?).await?;
    Ok(Json(json::Nothing {}))
}

pub(crate) async fn remove_policy(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::Nothing> {
    let body: json::TakeAway = request.body(&api).await?;
    let name = request.named()?;
    api.submit_without_result(&context, tenure_core::Command::RemovePolicy { name, now: body.now }).await?;
    Ok(Json(json::Nothing {}))
}

pub(crate) async fn policies(
    api: Arc<Api>,
    context: CallContext,
    _: HttpRequest,
) -> HttpResult<json::PolicyList> {
    Ok(Json(api.policies(&context).await?))
}

pub(crate) async fn enforce(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::Nothing> {
    let body: json::Enforce = request.body(&api).await?;
    let command = tenure_core::Command::SetEnforced { enforced: body.enforced };
    api.submit_without_result(&context, command).await?;
    Ok(Json(json::Nothing {}))
}

pub(crate) async fn who_am_i(
    api: Arc<Api>,
    context: CallContext,
    _: HttpRequest,
) -> HttpResult<json::WhoAmI> {
    Ok(Json(api.who_am_i(&context).await?))
}

pub(crate) async fn explain(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::Explained> {
    let body: json::ExplainAccess = request.body(&api).await?;
    Ok(Json(api.explain_access(&context, &body).await?))
}
