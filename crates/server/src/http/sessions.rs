//! `/v1/sessions`: opening, renewing, closing and listing what is alive.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tenure_core::{SessionId, SessionNumber};
use tenure_wire::{ApiError, json};

use super::error::no_such_call;
use super::extract::{Asked, Given, Nothing, Written, read};
use super::{HttpResult, Refused};
use crate::calls::page;
use crate::front::Api;

pub(super) async fn open(
    State(api): State<Arc<Api>>,
    Given(body): Given<json::OpenSession>,
) -> HttpResult<json::SessionOpened> {
    let opened = api.open(body.command(api.node.draw_secret())?).await?;
    Ok(Json(json::SessionOpened::new(opened.session, &opened.holder, opened.ttl, opened.number)))
}

#[derive(Deserialize)]
pub(super) struct Page {
    limit: Option<u64>,
    after: Option<u64>,
}

pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Asked(asked): Asked<Page>,
) -> HttpResult<json::Sessions> {
    let (sessions, next) = api.sessions(asked.after.map(SessionNumber::new), page(asked.limit)?).await?;
    Ok(Json(json::Sessions {
        sessions: sessions.iter().map(Into::into).collect(),
        next: next.map(SessionNumber::get),
    }))
}

/// One's own session: only its opener can name it.
pub(super) async fn get(State(api): State<Arc<Api>>, written: Written) -> HttpResult<json::SessionLeases> {
    written.no_verb()?;
    let (view, grants) = api.session(&written.session()?).await?;
    Ok(Json(json::SessionLeases {
        summary: (&view).into(),
        held: grants.iter().map(json::Granted::from).collect(),
    }))
}

pub(super) async fn verb(
    State(api): State<Arc<Api>>,
    written: Written,
    request: Request,
) -> Result<Response, Refused> {
    match written.verb() {
        "renew" => {
            let body: json::RenewSession = read(request, &api).await?;
            Ok(Json(renew(&api, written.session()?, body.number).await?).into_response())
        }
        "seen" => {
            let body: json::Seen = read(request, &api).await?;
            api.submit_without_result(body.command(written.session()?)).await?;
            Ok(Json(Nothing {}).into_response())
        }
        "paused" => {
            let body: json::Paused = read(request, &api).await?;
            api.submit_without_result(body.command(written.session()?)).await?;
            Ok(Json(Nothing {}).into_response())
        }
        verb => Err(Refused(no_such_call(&format!("the verb `{verb}` of a session")))),
    }
}

async fn renew(api: &Api, session: SessionId, number: Option<u64>) -> Result<json::Renewed, ApiError> {
    let answers = api.renew(vec![(session, number.unwrap_or_default())]).await?;
    let answer = answers.first().expect("one answer per renewal");
    let holder = api.node.glance(|machine| machine.session_view(session.number).map(|view| view.holder));
    json::Renewed::new(session, holder.as_ref(), answer)
}

/// Many at once. A session that has ended is an answer among the others, not a refusal of them all; a text
/// that is no session id is a mistake, and nothing is renewed.
pub(super) async fn renew_many(
    State(api): State<Arc<Api>>,
    Given(body): Given<json::RenewSessions>,
) -> HttpResult<json::RenewedMany> {
    let renewals = body
        .renewals
        .iter()
        .map(|renewal| Ok((renewal.session.parse()?, renewal.number.unwrap_or_default())))
        .collect::<Result<Vec<(SessionId, u64)>, ApiError>>()?;
    let answers = api.renew(renewals.clone()).await?;
    let answers = renewals.iter().zip(&answers);
    Ok(Json(json::RenewedMany {
        answers: answers.map(|((id, _), answer)| json::Renewed::new(*id, None, answer).into()).collect(),
    }))
}

pub(super) async fn close(
    State(api): State<Arc<Api>>,
    written: Written,
    Given(body): Given<json::CloseSession>,
) -> HttpResult<json::Closed> {
    written.no_verb()?;
    let session = written.session()?;
    let released = api.close(body.command(session)).await?;
    Ok(Json(json::Closed { session: session.to_string(), released }))
}
