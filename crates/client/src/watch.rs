//! A watch that survives the server it runs on: it remembers how far it has delivered, and begins again there
//! on whichever endpoint answers. It never skips a revision and never delivers one twice.

use std::sync::Arc;
use std::time::Duration;

use tenure_wire::proto;
use tenure_wire::proto::watch_client::WatchClient;
use tonic::Streaming;

use crate::error::CallError;
use crate::retry::Backoff;
use crate::transport::{Call, Repeat, Transport};

/// How long the answer that begins a watch may take.
const OPEN_WITHIN: Duration = Duration::from_secs(5);
/// Delays between two attempts to begin again after a stream broke.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// The changes under a prefix, revision by revision.
pub struct Watch {
    transport: Arc<Transport>,
    prefix: String,
    /// The revision to begin with next; `None` before the store has named one.
    next: Option<u64>,
    stream: Option<Streaming<proto::WatchResponse>>,
    /// Whether it has ever run.
    begun: bool,
    /// How long to go on trying after a stream broke.
    patience: Duration,
    backoff: Backoff,
}

impl Watch {
    /// A watch of everything whose name begins with `prefix`, from revision `from` on, or from now on. After
    /// a broken stream it goes on trying for `patience`.
    pub fn new(transport: Arc<Transport>, prefix: String, from: Option<u64>, patience: Duration) -> Self {
        let backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MAX);
        Self { transport, prefix, next: from, stream: None, begun: false, patience, backoff }
    }

    /// The events of the next revision that has any. The first answer may have none: it names the revision
    /// after which the watch begins.
    pub async fn next(&mut self) -> Result<proto::WatchResponse, CallError> {
        loop {
            let stream = match &mut self.stream {
                Some(stream) => stream,
                // Until it has begun once, a store that is not there is an error and not an interruption.
                None => {
                    let opened = self.open(self.begun).await?;
                    self.begun = true;
                    self.stream.insert(opened)
                }
            };
            match stream.message().await {
                Ok(Some(response)) => {
                    self.backoff.reset();
                    // After a reconnect the opening message repeats what was sent before.
                    let is_new = self.next.is_none_or(|next| response.revision >= next);
                    self.next = Some(self.next.unwrap_or(0).max(response.revision.saturating_add(1)));
                    if is_new || response.events.is_empty() {
                        return Ok(response);
                    }
                }
                // A server that drains ends its streams; another one goes on.
                Ok(None) => {
                    self.stream = None;
                    self.backoff.wait().await;
                }
                Err(status) => {
                    self.stream = None;
                    match self.transport.stream_failed(&status) {
                        // `too_old`: nobody has these revisions any more. Asking again would not bring them
                        // back.
                        refused @ CallError::Refused(_) => return Err(refused),
                        _ => self.backoff.wait().await,
                    }
                }
            }
        }
    }

    async fn open(&self, persistent: bool) -> Result<Streaming<proto::WatchResponse>, CallError> {
        let request = proto::WatchRequest { prefix: self.prefix.clone(), from: self.next };
        let call = Call {
            repeat: Repeat::Read,
            within: self.patience,
            attempt_within: Some(OPEN_WITHIN.min(self.patience)),
            persistent,
        };
        let send = |channel, _| {
            let request = request.clone();
            async move { WatchClient::new(channel).watch(request).await }
        };
        self.transport.call(call, send).await
    }
}
