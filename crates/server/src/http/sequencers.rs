//! `/v1/sequencers` and the keys: signed statements of grants, which anybody can check without asking us.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tenure_core::{Scope, Slot, Token};
use tenure_wire::json;

use super::HttpResult;
use super::extract::{Given, Nothing};
use crate::front::Api;
use crate::signing::{Checked, Verdict};

/// How long a key set may be kept. A key that is missing from an older one is a reason to ask again at once.
const KEYS_MAX_AGE: &str = "public, max-age=60";

pub(super) async fn issue(
    State(api): State<Arc<Api>>,
    Given(body): Given<json::IssueSequencer>,
) -> HttpResult<json::SequencerIssued> {
    let scope = Scope { resource: body.resource.parse()?, slot: body.slot.map(Slot::new) };
    let sequencer = api.sequencer(&body.session.parse()?, &scope, None).await?;
    Ok(Json(json::SequencerIssued { sequencer }))
}

pub(super) async fn check(
    State(api): State<Arc<Api>>,
    Given(body): Given<json::CheckSequencer>,
) -> HttpResult<json::SequencerChecked> {
    let Checked { verdict, presented, seen } = api.check_sequencer(&body.sequencer).await?;
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

/// The name of a key.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyName {
    kid: String,
}

/// Gives the node that is asked a new key.
pub(super) async fn rotate(
    State(api): State<Arc<Api>>,
    Given(Nothing {}): Given<Nothing>,
) -> HttpResult<KeyName> {
    Ok(Json(KeyName { kid: api.rotate_key().await? }))
}

pub(super) async fn withdraw(
    State(api): State<Arc<Api>>,
    Given(body): Given<KeyName>,
) -> HttpResult<Nothing> {
    api.withdraw_key(body.kid.into()).await?;
    Ok(Json(Nothing {}))
}

/// The public keys of all nodes.
pub(super) async fn keys(State(api): State<Arc<Api>>) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/jwk-set+json"), (header::CACHE_CONTROL, KEYS_MAX_AGE)];
    (headers, api.jwks().await).into_response()
}
