//! `/v1/leases` and `/v1/history`: who holds what, who waits, who held it before.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tenure_core::{Grant, ResourceName, Scope, SessionId, Token};
use tenure_wire::words::millis;
use tenure_wire::{ApiError, Code, Effect, json};

use super::request::HttpRequest;
use super::{HttpResult, Refused};
use crate::call_table::Call;
use crate::calls::{AcquireOutcome, page};
use crate::context::CallContext;
use crate::delivery::undone_unless_delivered;
use crate::front::Api;

pub(crate) async fn list(
    api: Arc<Api>,
    context: CallContext,
    request: HttpRequest,
) -> HttpResult<json::Leases> {
    let asked: json::ListQuery = request.query()?;
    let after = if asked.after.is_empty() { None } else { Some(asked.after.parse::<ResourceName>()?) };
    let (leases, next, revision) =
        api.leases(&context, &asked.prefix, after.as_ref(), page(asked.limit)?, asked.stale).await?;
    Ok(Json(json::Leases {
        leases: leases.iter().map(Into::into).collect(),
        next: next.map(|name| name.to_string()),
        revision: revision.get(),
    }))
}

pub(crate) async fn get(
    api: Arc<Api>,
    context: CallContext,
    request: HttpRequest,
) -> Result<Response, Refused> {
    let asked: json::LeaseQuery = request.query()?;
    let (lease, _) = api.lease(&context, &request.resource()?, asked.stale).await?;
    let lease = json::Lease::from(&lease);
    Ok(match asked.view {
        None => Json(lease).into_response(),
        Some(json::LeaseShape::Kubernetes) => {
            Json(json::KubernetesLease::of(&lease, api.clock.wall())).into_response()
        }
    })
}

pub(crate) async fn history(
    api: Arc<Api>,
    context: CallContext,
    request: HttpRequest,
) -> HttpResult<json::History> {
    Ok(Json((&api.history(&context, &request.resource()?).await?).into()))
}

/// The past of every resource that is remembered.
pub(crate) async fn histories(
    api: Arc<Api>,
    context: CallContext,
    request: HttpRequest,
) -> HttpResult<json::Histories> {
    let asked: json::ListQuery = request.query()?;
    let after = if asked.after.is_empty() { None } else { Some(asked.after.parse::<ResourceName>()?) };
    let (found, next) =
        api.histories(&context, &asked.prefix, after.as_ref(), page(asked.limit)?, asked.stale).await?;
    Ok(Json(json::Histories {
        histories: found.iter().map(Into::into).collect(),
        next: next.map(|name| name.to_string()),
    }))
}

pub(crate) async fn acquire(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> Result<Response, Refused> {
    let asked: json::AcquireQuery = request.query()?;
    let body: json::Acquire = request.body_of_session(&api).await?;
    let poll_ms = body.poll_ms;
    let acquire = body.acquire(Some(request.resource()?), api.node.draw_secret())?;
    let granted = match api.acquire(&context, acquire, poll_ms).await? {
        AcquireOutcome::Granted(granted) => granted,
        AcquireOutcome::Queued { session, ttl, ahead } => return Ok(queued(session, ttl, ahead)),
    };
    let grant = granted.grants.first().ok_or_else(nothing_granted)?;
    let sequencer = match asked.sequencer {
        false => None,
        true => match sequencer_of(&api, &context, grant).await {
            Ok(sequencer) => Some(sequencer),
            // This answer says that the lease is there. So it stays, if the answer arrives.
            Err(error) => {
                return Ok(undone_unless_delivered(Refused(error).into_response(), granted.hang_up));
            }
        },
    };
    let response = Json(json::GrantedSigned { granted: grant.into(), sequencer }).into_response();
    Ok(undone_unless_delivered(response, granted.hang_up))
}

pub(crate) async fn release(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::Released> {
    let body: json::Release = request.body_of_session(&api).await?;
    let resource = request.resource()?;
    let released = api.release(&context, body.command(resource.clone())?).await?;
    Ok(Json(json::Released { resource: resource.to_string(), released }))
}

pub(crate) async fn transfer(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::Granted> {
    let body: json::Transfer = request.body_of_session(&api).await?;
    let grant = api.transfer(&context, body.command(request.resource()?)?).await?;
    Ok(Json(json::Granted::to_another(&grant)))
}

pub(crate) async fn revoke(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::Revoked> {
    let body: json::Revoke = request.body(&api).await?;
    let resource = request.resource()?;
    let revoked = api.revoke(&context, body.command(resource.clone())?).await?;
    Ok(Json(json::Revoked {
        resource: resource.to_string(),
        holders: revoked.holdings.iter().map(Into::into).collect(),
        token: revoked.token.map(Token::get),
    }))
}

pub(crate) async fn barrier(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::TokenTaken> {
    let _: json::Nothing = request.body(&api).await?;
    let resource = request.resource()?;
    let token = api.barrier(&context, resource.clone()).await?.get();
    Ok(Json(json::TokenTaken { resource: resource.to_string(), token }))
}

pub(crate) async fn set_kind(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::Nothing> {
    let body: json::SetKind = request.body(&api).await?;
    api.submit_without_result(&context, body.command(request.resource()?)).await?;
    Ok(Json(json::Nothing {}))
}

/// Signs what was granted. If that fails the lease is there all the same, so the refusal says what to do with it.
async fn sequencer_of(api: &Api, context: &CallContext, grant: &Grant) -> Result<String, ApiError> {
    let context = context.within(Call::SequencersIssue);
    let scope = Scope { resource: grant.resource.clone(), slot: grant.slot };
    api.sequencer(&context, &grant.session, &scope, Some(grant.token)).await.map_err(|error| {
        let effect = Effect::Applied;
        let hint = format!(
            "the lease was granted to session {}; ask POST /v1/sequencers for it again",
            grant.session
        );
        ApiError { effect, ..error.hint(hint) }
    })
}

fn nothing_granted() -> ApiError {
    ApiError::new(Code::Internal, "a grant of nothing")
}

/// Several resources at once, all or none.
pub(crate) async fn acquire_many(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> Result<Response, Refused> {
    let body: json::Acquire = request.body_of_session(&api).await?;
    let poll_ms = body.poll_ms;
    let acquire = body.acquire(None, api.node.draw_secret())?;
    let granted = match api.acquire(&context, acquire, poll_ms).await? {
        AcquireOutcome::Granted(granted) => granted,
        AcquireOutcome::Queued { session, ttl, ahead } => return Ok(queued(session, ttl, ahead)),
    };
    let many = json::GrantedMany::new(&granted.grants).ok_or_else(nothing_granted)?;
    Ok(undone_unless_delivered(Json(many).into_response(), granted.hang_up))
}

/// 202: the acquire is queued, and the same request asks again.
fn queued(session: SessionId, ttl: Duration, ahead: u32) -> Response {
    let body = json::Queued { queued: true, session: session.to_string(), ttl_ms: millis(ttl), ahead };
    (StatusCode::ACCEPTED, Json(body)).into_response()
}

pub(crate) async fn cancel(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::Cancelled> {
    let body: json::Cancel = request.body_of_session(&api).await?;
    Ok(Json(json::Cancelled { released: api.cancel(&context, body.command()?).await? }))
}
