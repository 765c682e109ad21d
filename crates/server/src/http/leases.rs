//! `/v1/leases` and `/v1/history`: who holds what, who waits, who held it before.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tenure_core::state::Transition;
use tenure_core::{Grant, LeaseView, ResourceName, Scope, SessionId, Token};
use tenure_wire::words::{calendar, millis};
use tenure_wire::{ApiError, Code, Effect, json};

use super::error::no_such_call;
use super::extract::{Asked, Given, Nothing, Written, read};
use super::{HttpResult, Refused};
use crate::calls::{AcquireOutcome, page};
use crate::delivery::undone_unless_delivered;
use crate::front::Api;

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

pub(super) async fn list(State(api): State<Arc<Api>>, Asked(asked): Asked<List>) -> HttpResult<json::Leases> {
    let after = if asked.after.is_empty() { None } else { Some(asked.after.parse::<ResourceName>()?) };
    let (leases, next, revision) =
        api.leases(&asked.prefix, after.as_ref(), page(asked.limit)?, asked.stale).await?;
    Ok(Json(json::Leases {
        leases: leases.iter().map(Into::into).collect(),
        next: next.map(|name| name.to_string()),
        revision: revision.get(),
    }))
}

#[derive(Deserialize)]
pub(super) struct Stale {
    #[serde(default)]
    pub stale: bool,
}

#[derive(Deserialize)]
pub(super) struct Look {
    #[serde(default)]
    stale: bool,
    view: Option<View>,
}

/// In whose shape a lease is shown.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum View {
    Kubernetes,
}

pub(super) async fn get(
    State(api): State<Arc<Api>>,
    written: Written,
    Asked(asked): Asked<Look>,
) -> Result<Response, Refused> {
    written.no_verb()?;
    let (lease, _) = api.lease(&written.resource()?, asked.stale).await?;
    let lease = json::Lease::from(&lease);
    Ok(match asked.view {
        None => Json(lease).into_response(),
        Some(View::Kubernetes) => Json(json::KubernetesLease::of(&lease, api.clock.wall())).into_response(),
    })
}

pub(super) async fn history(State(api): State<Arc<Api>>, written: Written) -> HttpResult<json::History> {
    written.no_verb()?;
    let (lease, past, granted) = api.history_dated(&written.resource()?).await?;
    let mut history = history_of(&lease, &past);
    for holder in &mut history.holders {
        let since = granted.iter().find(|(token, _)| token.get() == holder.token);
        holder.from = since.map(|(_, wall)| calendar(*wall));
    }
    Ok(Json(history))
}

/// The past of every resource that is remembered.
pub(super) async fn histories(
    State(api): State<Arc<Api>>,
    Asked(asked): Asked<List>,
) -> HttpResult<json::Histories> {
    let after = if asked.after.is_empty() { None } else { Some(asked.after.parse::<ResourceName>()?) };
    let (found, next) = api.histories(&asked.prefix, after.as_ref(), page(asked.limit)?, asked.stale).await?;
    Ok(Json(json::Histories {
        histories: found.iter().map(|(lease, past)| history_of(lease, past)).collect(),
        next: next.map(|name| name.to_string()),
    }))
}

fn history_of(lease: &LeaseView, past: &[Transition]) -> json::History {
    json::History {
        resource: lease.resource.to_string(),
        holders: lease.holders.iter().map(Into::into).collect(),
        transitions: past.iter().rev().map(Into::into).collect(),
    }
}

pub(super) async fn verb(
    State(api): State<Arc<Api>>,
    written: Written,
    Asked(asked): Asked<Signed>,
    request: Request,
) -> Result<Response, Refused> {
    Ok(match written.verb() {
        "acquire" => {
            let body: json::Acquire = read(request, &api).await?;
            let poll_ms = body.poll_ms;
            let acquire = body.acquire(Some(written.resource()?), api.node.draw_secret())?;
            let granted = match api.acquire(acquire, poll_ms).await? {
                AcquireOutcome::Granted(granted) => granted,
                AcquireOutcome::Queued { session, ttl, ahead } => return Ok(queued(session, ttl, ahead)),
            };
            let grant = granted.grants.first().ok_or_else(nothing_granted)?;
            let sequencer = if asked.sequencer { Some(sequencer_of(&api, grant).await?) } else { None };
            let response = Json(GrantedSigned { granted: grant.into(), sequencer }).into_response();
            undone_unless_delivered(response, granted.hang_up)
        }
        "release" => {
            let body: json::Release = read(request, &api).await?;
            let resource = written.resource()?;
            let released = api.release(body.command(resource.clone())?).await?;
            Json(json::Released { resource: resource.to_string(), released }).into_response()
        }
        "transfer" => {
            let body: json::Transfer = read(request, &api).await?;
            let grant = api.transfer(body.command(written.resource()?)?).await?;
            Json(json::Granted::to_another(&grant)).into_response()
        }
        "revoke" => {
            let body: json::Revoke = read(request, &api).await?;
            let resource = written.resource()?;
            let revoked = api.revoke(body.command(resource.clone())?).await?;
            Json(json::Revoked {
                resource: resource.to_string(),
                holders: revoked.holdings.iter().map(Into::into).collect(),
                token: revoked.token.map(Token::get),
            })
            .into_response()
        }
        "barrier" => {
            let _: Nothing = read(request, &api).await?;
            let resource = written.resource()?;
            let token = api.barrier(resource.clone()).await?.get();
            Json(json::TokenTaken { resource: resource.to_string(), token }).into_response()
        }
        "kind" => {
            let body: json::SetKind = read(request, &api).await?;
            api.submit_without_result(body.command(written.resource()?)).await?;
            Json(Nothing {}).into_response()
        }
        verb => return Err(Refused(no_such_call(&format!("the verb `{verb}` of a lease")))),
    })
}

#[derive(Deserialize)]
pub(super) struct Signed {
    #[serde(default)]
    sequencer: bool,
}

/// A grant, and the signed statement of it where that was asked for.
#[derive(Serialize)]
struct GrantedSigned {
    #[serde(flatten)]
    granted: json::Granted,
    #[serde(skip_serializing_if = "Option::is_none")]
    sequencer: Option<String>,
}

/// Signs what was granted. If that fails the lease is there all the same, so the refusal says what to do with it.
async fn sequencer_of(api: &Api, grant: &Grant) -> Result<String, ApiError> {
    let scope = Scope { resource: grant.resource.clone(), slot: grant.slot };
    api.sequencer(&grant.session, &scope, Some(grant.token)).await.map_err(|error| {
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
pub(super) async fn acquire_many(
    State(api): State<Arc<Api>>,
    Given(body): Given<json::Acquire>,
) -> Result<Response, Refused> {
    let poll_ms = body.poll_ms;
    let granted = match api.acquire(body.acquire(None, api.node.draw_secret())?, poll_ms).await? {
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

pub(super) async fn cancel(
    State(api): State<Arc<Api>>,
    Given(body): Given<json::Cancel>,
) -> HttpResult<json::Cancelled> {
    Ok(Json(json::Cancelled { released: api.cancel(body.command()?).await? }))
}
