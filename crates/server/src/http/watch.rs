//! `GET /v1/watch`: what changes, as server-sent events; `GET /v1/events`: what did.
//!
//! Each event is a message whose `event:` is its kind. Only the last one of a revision carries `id:`, so that a
//! watcher cut off in the middle of a revision gets the whole of it again when it resumes.

use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use serde::Serialize;
use tenure_core::Revision;
use tenure_wire::{ApiError, json};

use super::request::HttpRequest;
use super::{HttpResult, Refused};
use crate::calls::page;
use crate::context::CallContext;
use crate::front::Api;
use crate::watching::{Batch, Watching};

/// A quiet stream says this often that it is alive, and how far it has come: so that a watcher of a quiet prefix
/// can resume although the rest of the world has moved on.
pub(super) const SIGN_OF_LIFE: Duration = Duration::from_secs(15);

/// What happened, as far as it is remembered.
pub(crate) async fn events(
    api: Arc<Api>,
    context: CallContext,
    request: HttpRequest,
) -> HttpResult<json::Events> {
    let asked: json::EventsQuery = request.query()?;
    let found = api.events(&context, &asked.prefix, asked.from, page(asked.limit)?, asked.stale).await?;
    Ok(Json(json::Events {
        events: found.events.iter().map(Into::into).collect(),
        complete_from: found.complete_from.get(),
        revision: found.revision.get(),
        next: found.next.map(Revision::get),
    }))
}

pub(crate) async fn watch(
    api: Arc<Api>,
    context: CallContext,
    request: HttpRequest,
) -> Result<Response, Refused> {
    let asked: json::WatchQuery = request.query()?;
    // A browser that reconnects repeats the address, with `from` as it was, and adds where it got to.
    let from = match request.header("last-event-id")? {
        None => asked.from,
        Some(last) => {
            let last = last.trim().parse::<u64>().ok();
            let last = last.ok_or_else(|| ApiError::invalid("Last-Event-ID is not a revision"))?;
            Some(last.saturating_add(1))
        }
    };
    let watching = Watching::begin(&api, &context, asked.prefix, from).await?;
    let begin = format!("retry: 1000\nid: {}\n\n", watching.sent_up_to());
    Ok(event_stream(stream::unfold(Some((watching, Some(begin))), |state| async move {
        let (mut watching, begin) = state?;
        if let Some(begin) = begin {
            return Some((begin, Some((watching, None))));
        }
        let next = tokio::time::timeout(SIGN_OF_LIFE, watching.next()).await;
        match next {
            // Nothing to report but how far it has come.
            Ok(Ok(Some(batches))) if batches.is_empty() => {
                Some((still_here(&watching), Some((watching, None))))
            }
            Err(_) => Some((still_here(&watching), Some((watching, None)))),
            Ok(Ok(Some(batches))) => Some((messages(&batches), Some((watching, None)))),
            Ok(Ok(None)) => None,
            Ok(Err(error)) => Some((last_words(error), None)),
        }
    })))
}

/// Server-sent events as an answer, each text a piece of it.
pub(super) fn event_stream(texts: impl Stream<Item = String> + Send + 'static) -> Response {
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    (headers, Body::from_stream(texts.map(|text| Ok::<_, Infallible>(Bytes::from(text))))).into_response()
}

fn still_here(watching: &Watching) -> String {
    format!(":\nid: {}\n\n", watching.sent_up_to())
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
pub(super) fn last_words(error: ApiError) -> String {
    format!("event: error\ndata: {}\n\n", as_json(&json::ErrorBody { error }))
}

pub(super) fn as_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("an event is made of text and numbers")
}
