//! `GET /v1/sessions:events`: what happens to the caller's session, as server-sent events.
//!
//! These are hints, so that a holder with plain HTTP need not wait for its next renewal to learn of a grant, a notice
//! or an end. Nothing may rely on them: what counts is the renewal's answer. The first message has the current state;
//! another one follows whenever something was missed (the reader was slow, or a snapshot was installed).
//! The stream ends with the session.

use std::sync::Arc;

use axum::response::Response;
use futures_util::stream;
use tenure_core::{Event, EventKind, Identity, Machine, Refusal, SessionId};
use tenure_wire::{ApiError, json};

use super::Refused;
use super::request::HttpRequest;
use super::watch::{SIGN_OF_LIFE, as_json, event_stream, last_words};
use crate::calls::failed;
use crate::context::CallContext;
use crate::event_hub::Listener;
use crate::front::{Api, Turn};
use crate::metrics::UnderWay;
use crate::secrets;

/// One caller that follows its session.
struct Following {
    api: Arc<Api>,
    identity: Identity,
    session: SessionId,
    listener: Listener,
    _turn: Turn,
    _counted: UnderWay,
}

pub(crate) async fn events(
    api: Arc<Api>,
    context: CallContext,
    request: HttpRequest,
) -> Result<Response, Refused> {
    let session = request.session()?;
    let turn = api.turn(context.row.cost)?;
    // Subscribed before it is looked at, so that nothing falls in between.
    let listener = api.node.event_hub().listen(session.number);
    let standing = standing(&api, &context.identity, &session).await?;
    let counted = api.traffic.watching();
    let following =
        Following { api, identity: context.identity, session, listener, _turn: turn, _counted: counted };
    let begin = format!("retry: 1000\n{standing}");
    Ok(event_stream(stream::unfold((Some(begin), Some(following)), |(ready, following)| async move {
        if let Some(text) = ready {
            return Some((text, (None, following)));
        }
        let (text, following) = following?.next().await?;
        Some((text, (None, following)))
    })))
}

impl Following {
    /// What comes next, and who goes on following: nobody if it was the last. `None` when the node stops.
    async fn next(mut self) -> Option<(String, Option<Following>)> {
        let api = self.api.clone();
        let heard = tokio::select! {
            biased;
            () = api.stopping() => return None,
            heard = tokio::time::timeout(SIGN_OF_LIFE, self.listener.next()) => heard,
        };
        match heard {
            Err(_) => Some((":\n\n".into(), Some(self))),
            Ok(Some(event)) => {
                let over = matches!(event.kind, EventKind::Closed { .. });
                Some((message(&event), Some(self).filter(|_| !over)))
            }
            // Cut off: whoever got nothing for a while gets the current state.
            Ok(None) => {
                self.listener = api.node.event_hub().listen(self.session.number);
                match standing(&api, &self.identity, &self.session).await {
                    Ok(standing) => Some((standing, Some(self))),
                    Err(error) => Some((last_words(error), None)),
                }
            }
        }
    }
}

fn message(event: &Event) -> String {
    let event = json::Event::from(event);
    format!("event: {}\ndata: {}\n\n", event.kind.name(), as_json(&event))
}

/// How things stand with a session: what it is and what it holds.
async fn standing(api: &Api, identity: &Identity, id: &SessionId) -> Result<String, ApiError> {
    let look = |machine: &Machine| {
        let id = &secrets::stored_id(*id, machine);
        let found = machine.session_view(id.number).zip(machine.leases_of(id));
        found.filter(|_| machine.knows_as(identity, id))
    };
    let mut found = api.node.glance(look);
    if found.is_none() {
        // This node may be behind: only a confirmed reading may say that a session is unknown.
        found = api.node.read(look).await.map_err(failed)?;
    }
    let (view, grants) = found.ok_or(Refusal::UnknownSession)?;
    let session = json::SessionLeases {
        summary: (&view).into(),
        // Without its id: a stream is kept and shown more readily than an answer.
        held: grants.iter().map(json::Granted::to_another).collect(),
    };
    Ok(format!("event: session\ndata: {}\n\n", as_json(&session)))
}
