//! `GET /v1/watch`: what changes, as server-sent events; `GET /v1/events`: what did.
//!
//! Each event is a message whose `event:` is its kind. Only the last one of a revision carries `id:`, so that a
//! watcher cut off in the middle of a revision gets the whole of it again when it resumes.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use serde::{Deserialize, Serialize};
use tenure_core::Revision;
use tenure_wire::{ApiError, json};

use super::extract::Asked;
use super::{HttpResult, Refused};
use crate::calls::page;
use crate::front::Api;
use crate::watching::{Batch, Watching};

/// A quiet stream says this often that it is alive, and how far it has come: so that a watcher of a quiet prefix
/// can resume although the rest of the world has moved on.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);

#[derive(Deserialize)]
pub(super) struct Watch {
    #[serde(default)]
    prefix: String,
    from: Option<u64>,
}

#[derive(Deserialize)]
pub(super) struct Past {
    #[serde(default)]
    prefix: String,
    from: Option<u64>,
    limit: Option<u64>,
    #[serde(default)]
    stale: bool,
}

/// What happened, as far as it is remembered.
pub(super) async fn events(
    State(api): State<Arc<Api>>,
    Asked(asked): Asked<Past>,
) -> HttpResult<json::Events> {
    let found = api.events(&asked.prefix, asked.from, page(asked.limit)?, asked.stale).await?;
    Ok(Json(json::Events {
        events: found.events.iter().map(Into::into).collect(),
        complete_from: found.complete_from.get(),
        revision: found.revision.get(),
        next: found.next.map(Revision::get),
    }))
}

pub(super) async fn watch(
    State(api): State<Arc<Api>>,
    Asked(asked): Asked<Watch>,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    // A browser that reconnects repeats the address, with `from` as it was, and adds where it got to.
    let from = match headers.get("last-event-id") {
        None => asked.from,
        Some(last) => {
            let last = last.to_str().ok().and_then(|last| last.trim().parse::<u64>().ok());
            let last = last.ok_or_else(|| ApiError::invalid("Last-Event-ID is not a revision"))?;
            Some(last.saturating_add(1))
        }
    };
    let watching = Watching::begin(&api, asked.prefix, from).await?;
    let begin = format!("retry: 1000\nid: {}\n\n", watching.sent_up_to());
    let chunks = stream::unfold(Some((watching, Some(begin))), |state| async move {
        let (mut watching, begin) = state?;
        if let Some(begin) = begin {
            return Some((chunk(begin), Some((watching, None))));
        }
        let next = tokio::time::timeout(SIGN_OF_LIFE, watching.next()).await;
        match next {
            Err(_) => Some((chunk(format!(":\nid: {}\n\n", watching.sent_up_to())), Some((watching, None)))),
            Ok(Ok(Some(batches))) => Some((chunk(messages(&batches)), Some((watching, None)))),
            Ok(Ok(None)) => None,
            Ok(Err(error)) => Some((chunk(last_words(error)), None)),
        }
    });
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(chunks)).into_response())
}

fn chunk(text: String) -> Result<Bytes, std::convert::Infallible> {
    Ok(text.into())
}

fn messages(batches: &[Batch]) -> String {
    let mut text = String::new();
    for batch in batches {
        for (at, event) in batch.events.iter().enumerate() {
            let event = json::Event::from(event);
            let _ = writeln!(text, "event: {}", event.kind.name());
            if at + 1 == batch.events.len() {
                let _ = writeln!(text, "id: {}", batch.revision);
            }
            let _ = write!(text, "data: {}\n\n", as_json(&event));
        }
    }
    text
}

/// Why the stream ends although the watcher is still there: it fell too far behind.
fn last_words(error: ApiError) -> String {
    format!("event: error\ndata: {}\n\n", as_json(&json::ErrorBody { error }))
}

fn as_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("an event is made of text and numbers")
}
