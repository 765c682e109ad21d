//! `tenure.v1.Watch`: the same pull from the machine's event log as over HTTP, one message per revision.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use tenure_wire::{ApiError, grpc, proto};

use super::Answers;
use crate::context::CallContext;
use crate::front::Api;
use crate::watching::{Batch, Watching};

/// A quiet stream says this often how far it has come, so that a watcher of a quiet prefix can resume although
/// the rest of the world has moved on.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);

struct State {
    watching: Watching,
    /// Messages that were pulled together and go out one by one.
    ready: VecDeque<proto::WatchResponse>,
}

pub(crate) async fn watch(
    api: Arc<Api>,
    context: CallContext,
    request: proto::WatchRequest,
) -> Result<Answers<proto::WatchResponse>, ApiError> {
    let watching = Watching::begin(&api, &context, request.prefix, request.from).await?;
    let ready = VecDeque::from([progress(&watching)]);
    Ok(Box::pin(stream::unfold(Some(State { watching, ready }), |state| async move {
        let mut state = state?;
        loop {
            if let Some(message) = state.ready.pop_front() {
                return Some((Ok(message), Some(state)));
            }
            match tokio::time::timeout(SIGN_OF_LIFE, state.watching.next()).await {
                Err(_) => state.ready.push_back(progress(&state.watching)),
                Ok(Ok(Some(batches))) if batches.is_empty() => {
                    state.ready.push_back(progress(&state.watching));
                }
                Ok(Ok(Some(batches))) => state.ready.extend(batches.iter().map(message)),
                Ok(Ok(None)) => return None,
                Ok(Err(error)) => return Some((Err(error), None)),
            }
        }
    })))
}

/// A message without events: everything up to this revision has been sent.
fn progress(watching: &Watching) -> proto::WatchResponse {
    proto::WatchResponse { revision: watching.sent_up_to().get(), unix_ms: 0, events: Vec::new() }
}

fn message(batch: &Batch) -> proto::WatchResponse {
    proto::WatchResponse {
        revision: batch.revision.get(),
        unix_ms: batch.wall.as_unix_millis(),
        events: batch.events.iter().map(grpc::event).collect(),
    }
}
