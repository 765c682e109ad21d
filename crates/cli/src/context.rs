//! What every command that uses the store has: the store, and how long to wait for it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tenure_client::{Attempt, Call, CallError, Channel, Endpoints, Repeat, Response, Status, Transport};

use crate::args::{Globals, TlsArgs};
use crate::output::Output;

/// How long one attempt may take before another endpoint is asked.
const ATTEMPT_WITHIN: Duration = Duration::from_secs(3);
/// What an acquire that waits in the queue gets on top of its wait: the grant has to travel, too.
const WAIT_SLACK: Duration = Duration::from_secs(5);

/// What one transmission comes to.
type Sent<A> = Result<Response<A>, Status>;

/// The store and the outputs.
pub struct Context<'a> {
    /// Where results go.
    pub output: &'a Output,
    /// The endpoints that were named.
    pub endpoints: &'a Endpoints,
    /// How they are reached over TLS.
    pub tls: &'a TlsArgs,
    /// The connections to them.
    pub transport: Arc<Transport>,
    timeout: Duration,
}

impl<'a> Context<'a> {
    /// A context from the options. Nothing is connected yet.
    pub fn new(globals: &'a Globals, output: &'a Output) -> Self {
        let transport = Arc::new(Transport::new(&globals.endpoints));
        Self {
            output,
            endpoints: &globals.endpoints,
            tls: &globals.tls,
            transport,
            timeout: globals.timeout.get(),
        }
    }

    /// How long a call may take altogether.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Asks for something that changes nothing.
    pub async fn read<Q, A, S>(&self, request: Q, send: impl Fn(Channel, Q) -> S) -> Result<A, CallError>
    where
        Q: Clone,
        S: Future<Output = Sent<A>>,
    {
        self.transport.call(self.call(Repeat::Read), |channel, _| send(channel, request.clone())).await
    }

    /// Asks for a change. Without a number a second transmission could be a second change, so it is sent
    /// once.
    pub async fn change<Q, A, S>(&self, request: Q, send: impl Fn(Channel, Q) -> S) -> Result<A, CallError>
    where
        Q: Clone,
        S: Future<Output = Sent<A>>,
    {
        self.transport.call(self.call(Repeat::Never), |channel, _| send(channel, request.clone())).await
    }

    /// Asks for a change that a second transmission does not repeat; `send` gets each transmission's number.
    pub async fn change_repeatably<A, S>(&self, send: impl Fn(Channel, Attempt) -> S) -> Result<A, CallError>
    where
        S: Future<Output = Sent<A>>,
    {
        self.transport.call(self.call(Repeat::Harmless), send).await
    }

    /// The same for a call that waits in the queue: at most so long, or for ever.
    pub async fn wait_repeatably<A, S>(
        &self,
        at_most: Option<Duration>,
        send: impl Fn(Channel, Attempt) -> S,
    ) -> Result<A, CallError>
    where
        S: Future<Output = Sent<A>>,
    {
        let patience = at_most.map(|wait| wait.saturating_add(WAIT_SLACK).max(self.timeout));
        let call = Call {
            within: patience.unwrap_or(Duration::MAX),
            attempt_within: patience,
            ..self.call(Repeat::Harmless)
        };
        self.transport.call(call, send).await
    }

    /// Asks for something that takes as long as it takes, such as a node learning everything: an answer may
    /// come `within` so long, but nobody is asked anew once the caller's patience is over.
    pub async fn operate<Q, A, S>(
        &self,
        request: Q,
        within: Duration,
        send: impl Fn(Channel, Q) -> S,
    ) -> Result<A, CallError>
    where
        Q: Clone,
        S: Future<Output = Sent<A>>,
    {
        let call = Call { attempt_within: Some(within.max(self.timeout)), ..self.call(Repeat::Never) };
        self.transport.call(call, |channel, _| send(channel, request.clone())).await
    }

    /// Sends something large that a second transmission does not repeat, as long as it takes: over another
    /// endpoint if the first one breaks off. The caller ends it when it does not move.
    pub async fn send_repeatably<A, S>(&self, send: impl Fn(Channel, Attempt) -> S) -> Result<A, CallError>
    where
        S: Future<Output = Sent<A>>,
    {
        let call = Call { within: Duration::MAX, attempt_within: None, ..self.call(Repeat::Harmless) };
        self.transport.call(call, send).await
    }

    fn call(&self, repeat: Repeat) -> Call {
        let attempt_within = Some(ATTEMPT_WITHIN.min(self.timeout));
        Call { repeat, within: self.timeout, attempt_within, persistent: false }
    }
}
