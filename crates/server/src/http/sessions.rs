//! `/v1/sessions`: opening, renewing, closing and listing what is alive; `/v1/session`: the caller's own, which the
//! header `Tenure-Session` names.

use std::sync::Arc;

use axum::Json;
use tenure_core::{SessionId, SessionNumber};
use tenure_wire::{ApiError, json};

use super::HttpResult;
use super::request::HttpRequest;
use crate::calls::page;
use crate::context::CallContext;
use crate::front::Api;

pub(crate) async fn open(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::SessionOpened> {
    let body: json::OpenSession = request.body(&api).await?;
    let opened = api.open(&context, body.command(api.node.draw_secret())?).await?;
    Ok(Json(json::SessionOpened::new(opened.session, &opened.holder, opened.ttl, opened.number)))
}

pub(crate) async fn list(
    api: Arc<Api>,
    context: CallContext,
    request: HttpRequest,
) -> HttpResult<json::Sessions> {
    let asked: json::SessionsQuery = request.query()?;
    let after = asked.after.map(SessionNumber::new);
    let (sessions, next) = api.sessions(&context, after, page(asked.limit)?).await?;
    Ok(Json(json::Sessions {
        sessions: sessions.iter().map(Into::into).collect(),
        next: next.map(SessionNumber::get),
    }))
}

/// One's own session: only its opener can name it.
pub(crate) async fn get(
    api: Arc<Api>,
    context: CallContext,
    request: HttpRequest,
) -> HttpResult<json::SessionLeases> {
    Ok(Json((&api.own_session(&context, &request.session()?).await?).into()))
}

pub(crate) async fn renew(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::Renewed> {
    let body: json::RenewSession = request.body(&api).await?;
    let session = request.session()?;
    let answers = api.renew(&context, vec![(session, body.number.unwrap_or_default())]).await?;
    let answer = answers.first().expect("one answer per renewal");
    let holder = api.node.glance(|machine| machine.session_view(session.number).map(|view| view.holder));
    Ok(Json(json::Renewed::new(session, holder.as_ref(), answer)?))
}

/// Many at once. A session that has ended is an answer among the others, not a refusal of them all; a text
/// that is no session id is a mistake, and nothing is renewed.
pub(crate) async fn renew_many(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::RenewedMany> {
    let body: json::RenewSessions = request.body(&api).await?;
    let renewals = body
        .renewals
        .iter()
        .map(|renewal| Ok((renewal.session.parse()?, renewal.number.unwrap_or_default())))
        .collect::<Result<Vec<(SessionId, u64)>, ApiError>>()?;
    let answers = api.renew(&context, renewals.clone()).await?;
    let answers = renewals.iter().zip(&answers);
    Ok(Json(json::RenewedMany {
        answers: answers.map(|((id, _), answer)| json::Renewed::new(*id, None, answer).into()).collect(),
    }))
}

pub(crate) async fn seen(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::Nothing> {
    let body: json::Seen = request.body(&api).await?;
    api.submit_without_result(&context, body.command(request.session()?)).await?;
    Ok(Json(json::Nothing {}))
}

pub(crate) async fn paused(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::Nothing> {
    let body: json::Paused = request.body(&api).await?;
    api.submit_without_result(&context, body.command(request.session()?)).await?;
    Ok(Json(json::Nothing {}))
}

pub(crate) async fn close(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::Closed> {
    let body: json::CloseSession = request.body(&api).await?;
    let session = request.session()?;
    let released = api.close(&context, body.command(session)).await?;
    Ok(Json(json::Closed { session: session.to_string(), released }))
}
