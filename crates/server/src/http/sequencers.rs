//! `/v1/sequencers` and the keys: signed statements of grants, which anybody can check without asking us.

use std::sync::Arc;

use axum::Json;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use tenure_core::{Scope, Slot, Token};
use tenure_wire::json;

use super::HttpResult;
use super::request::HttpRequest;
use crate::context::CallContext;
use crate::front::Api;
use crate::signing::{Checked, Verdict};

/// How long a key set may be kept. A key that is missing from an older one is a reason to ask again at once.
const KEYS_MAX_AGE: &str = "public, max-age=60";

pub(crate) async fn issue(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::SequencerIssued> {
    let body: json::IssueSequencer = request.body_of_session(&api).await?;
    let session = body.session_id()?;
    let scope = Scope { resource: body.resource.parse()?, slot: body.slot.map(Slot::new) };
    let sequencer = api.sequencer(&context, &session, &scope, None).await?;
    Ok(Json(json::SequencerIssued { sequencer }))
}

pub(crate) async fn check(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::SequencerChecked> {
    let body: json::CheckSequencer = request.body(&api).await?;
    let Checked { verdict, presented, seen } = api.check_sequencer(&context, &body.sequencer).await?;
    Ok(Json(json::SequencerChecked {
        verdict: match verdict {
            Verdict::Valid => "valid",
            Verdict::Stale => "stale",
            Verdict::Unknown => "unknown",
        }
        .into(),
        presented: presented.map(Token::get),
        seen: seen.map(Token::get),
    }))
}

/// Gives the node that is asked a new key.
pub(crate) async fn rotate(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::KeyName> {
    let _: json::Nothing = request.body(&api).await?;
    Ok(Json(json::KeyName { kid: api.rotate_key(&context).await? }))
}

pub(crate) async fn withdraw(
    api: Arc<Api>,
    context: CallContext,
    mut request: HttpRequest,
) -> HttpResult<json::Nothing> {
    let body: json::KeyName = request.body(&api).await?;
    api.withdraw_key(&context, body.kid.into()).await?;
    Ok(Json(json::Nothing {}))
}

/// The public keys of all nodes.
pub(crate) async fn keys(api: Arc<Api>, _: CallContext, _: HttpRequest) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/jwk-set+json"), (header::CACHE_CONTROL, KEYS_MAX_AGE)];
    (headers, api.jwks().await).into_response()
}
