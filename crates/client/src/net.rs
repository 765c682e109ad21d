//! The store behind the network: a Tenure cluster, over the session stream.
//!
//! Renewals and opens use connections that are opened and driven on the renewer's thread; commands use one
//! stream on the thread for calls; lookups are single calls. This file and its folder decide which endpoint
//! is used and what is sent again. They never decide what a holder may believe.

mod commands;
mod endpoint_errors;
mod follow;
mod frames;
mod patience;
mod renewals;

use std::sync::Arc;
use std::time::Duration;

use tenure_clock::Clock;
use tenure_core::{
    Command, Done, Register, RegisterKey, RenewalAnswer, ResourceName, Revision, Scope, SessionId,
    SessionNumber, Token,
};
use tenure_wire::proto::leases_client::LeasesClient;
use tenure_wire::proto::registers_client::RegistersClient;
use tenure_wire::proto::sequencers_client::SequencersClient;
use tenure_wire::proto::sessions_client::SessionsClient;
use tenure_wire::{ApiError, Code, grpc, proto};

use self::commands::Commands;
use self::endpoint_errors::EndpointErrors;
use self::renewals::Renewals;
use crate::channel::Channel;
use crate::dial::Dialer;
use crate::endpoints::{Endpoint, Endpoints};
use crate::error::{CallError, Tried, root_cause};
use crate::execution::{Execution, Work};
use crate::members::Directory;
use crate::store::{
    Callback, LeaseInfo, OpenSession, Opened, Route, SessionListener, Store, TimeBase, Watcher,
};
use crate::transport::{Call, Repeat, Transport};
use crate::watch::Watch;

/// How long a reading may take in all, and one attempt at it.
const READ_WITHIN: Duration = Duration::from_secs(10);
const READ_ATTEMPT_WITHIN: Duration = Duration::from_secs(2);
/// How long one endpoint may take to accept a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// How often a connection with something under way is probed, and how long the probe may take.
const PROBE_EVERY: Duration = Duration::from_secs(2);
const PROBE_WITHIN: Duration = Duration::from_secs(3);
/// How long a watch goes on trying after its stream broke.
const WATCH_PATIENCE: Duration = Duration::from_secs(3_600);

/// A cluster, reached over its endpoints.
pub(crate) struct Network {
    directory: Directory,
    /// EndpointErrors with commands and, apart, with opens and renewals: one may come through where the other
    /// does not.
    endpoint_errors: [EndpointErrors; 2],
    execution: Execution,
    transport: Arc<Transport>,
    commands: Commands,
    renewals: Arc<Renewals>,
}

impl Network {
    pub fn new(
        endpoints: &Endpoints,
        clock: Arc<dyn Clock>,
        dialer: Dialer,
        execution: &Execution,
    ) -> Network {
        let directory = Directory::new(endpoints);
        let endpoint_errors: [EndpointErrors; 2] = Default::default();
        let [of_commands, of_renewals] = endpoint_errors.clone();
        Network {
            execution: execution.clone(),
            transport: Arc::new(Transport::dialling(directory.clone(), clock, dialer.clone())),
            commands: Commands::start(directory.clone(), dialer.clone(), of_commands, execution),
            renewals: Arc::new(Renewals::new(directory.clone(), dialer, of_renewals)),
            endpoint_errors,
            directory,
        }
    }

    /// Makes a reading call with the calls, so that the caller's runtime is not needed for it.
    fn read<Q, A, T, S>(
        &self,
        question: Q,
        send: impl Fn(Channel, Q) -> S + Send + Sync + 'static,
        convert: impl FnOnce(A) -> Result<T, ApiError> + Send + 'static,
        callback: Callback<T>,
    ) where
        Q: Clone + Send + Sync + 'static,
        A: Send + 'static,
        T: Send + 'static,
        S: Future<Output = Result<tonic::Response<A>, tonic::Status>> + Send + 'static,
    {
        let transport = self.transport.clone();
        self.execution.spawn(Work::Calls, async move {
            let call = Call {
                repeat: Repeat::Read,
                within: READ_WITHIN,
                attempt_within: Some(READ_ATTEMPT_WITHIN),
                persistent: true,
            };
            let answer = transport.call(call, |channel, _| send(channel, question.clone())).await;
            callback(answer.and_then(|answer| convert(answer).map_err(CallError::Refused)));
        });
    }
}

impl Store for Network {
    fn time_base(&self) -> TimeBase {
        TimeBase::ClusterTime
    }

    fn open(&self, open: OpenSession, route: Route, callback: Callback<Opened>) {
        let renewals = self.renewals.clone();
        self.execution.spawn(Work::Renewer, async move { callback(renewals.open(open, route).await) });
    }

    fn renew(
        &self,
        renewals: Vec<(SessionId, u64)>,
        route: Route,
        callback: Callback<Vec<Option<RenewalAnswer>>>,
    ) {
        let streams = self.renewals.clone();
        self.execution.spawn(Work::Renewer, async move { callback(streams.renew(renewals, route).await) });
    }

    fn submit(&self, command: Command, callback: Callback<Done>) {
        self.commands.submit(command, callback);
    }

    fn held(&self, session: SessionId, callback: Callback<Vec<Token>>) {
        let question = proto::SessionGetRequest { session: session.to_string() };
        let send = |channel, question| async move { SessionsClient::new(channel).get(question).await };
        let convert = |answer: proto::SessionGetResponse| {
            let tokens = answer.leases.iter().map(|holding| Token::try_from(holding.token));
            tokens.collect::<Result<Vec<_>, _>>().map_err(ApiError::from)
        };
        self.read(question, send, convert, callback);
    }

    fn detect_within(&self, session: SessionNumber, detect: Duration) {
        self.commands.detect_within(session, detect);
    }

    fn listen(&self, session: SessionId, listener: SessionListener) {
        self.commands.listen(session, listener);
    }

    fn tried(&self) -> Vec<Tried> {
        let endpoints = self.directory.all();
        let mut tried: Vec<Tried> =
            self.endpoint_errors.iter().flat_map(|endpoint_errors| endpoint_errors.of(&endpoints)).collect();
        // Each endpoint once, and what is wrong with commands first.
        let mut named = std::collections::BTreeSet::new();
        tried.retain(|one| named.insert(one.endpoint.clone()));
        tried
    }

    fn forget(&self, session: SessionNumber) {
        self.commands.forget(session);
        self.renewals.forget(session);
    }

    fn lease(&self, resource: ResourceName, callback: Callback<Option<LeaseInfo>>) {
        let question = proto::LeaseGetRequest { resource: resource.to_string(), stale: false };
        let send = |channel, question| async move { LeasesClient::new(channel).get(question).await };
        let callback: Callback<LeaseInfo> = Box::new(move |answer| {
            callback(match answer {
                Ok(info) => Ok(Some(info)),
                Err(CallError::Refused(no)) if no.code == Code::NotFound => Ok(None),
                Err(error) => Err(error),
            });
        });
        self.read(question, send, frames::lease_info, callback);
    }

    fn register(&self, key: RegisterKey, callback: Callback<Register>) {
        let question = proto::RegisterGetRequest { key: key.as_bytes().to_vec(), stale: false };
        let send = |channel, question| async move { RegistersClient::new(channel).get(question).await };
        let convert = move |answer: proto::RegisterGetResponse| match answer.register {
            Some(register) => grpc::read_register(register),
            None => Ok(frames::absent(key)),
        };
        self.read(question, send, convert, callback);
    }

    fn sequencer(&self, session: SessionId, scope: Scope, token: Token, callback: Callback<String>) {
        let question = proto::SequencerIssueRequest {
            session: session.to_string(),
            scope: Some((&scope).into()),
            token: token.get(),
        };
        let send = |channel, question| async move { SequencersClient::new(channel).issue(question).await };
        // It changes nothing but the set of published keys, and that only once.
        self.read(question, send, |answer: proto::SequencerIssueResponse| Ok(answer.sequencer), callback);
    }

    fn watch(&self, prefix: String, from: Option<Revision>, watcher: Watcher) {
        let mut watch = Watch::new(self.transport.clone(), prefix, from.map(Revision::get), WATCH_PATIENCE);
        self.execution.spawn(Work::Calls, async move {
            loop {
                let response = tokio::select! {
                    biased;
                    () = watcher.unwatched() => return,
                    response = watch.next() => response,
                };
                let failed = response.is_err();
                if !watcher.notify(response) || failed {
                    return;
                }
            }
        });
    }
}

/// A connection of its own to one endpoint. Made before anything is sent: so a failure here proves that
/// nothing was.
async fn connect(endpoint: &Endpoint, dialer: &Dialer, within: Duration) -> Result<Channel, CallError> {
    let unreachable =
        |why: String| CallError::Unreachable { tried: vec![Tried { endpoint: endpoint.clone(), why }] };
    let made = tonic::transport::Endpoint::from_shared(endpoint.uri())
        .map_err(|error| unreachable(error.to_string()))?
        .connect_timeout(within)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PROBE_EVERY)
        .keep_alive_timeout(PROBE_WITHIN)
        .keep_alive_while_idle(true);
    match tokio::time::timeout(within, dialer.connect(made)).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(error)) => Err(unreachable(root_cause(&error))),
        Err(_) => Err(unreachable(format!("no connection within {within:?}"))),
    }
}

/// What a failed status of a stream or a call says, if it was the store that spoke; else nobody knows.
fn failure(endpoint: &Endpoint, status: &tonic::Status) -> CallError {
    match crate::error::refusal_in(status) {
        Some(refused) => CallError::Refused(refused),
        None => unanswered(endpoint, &root_cause(status)),
    }
}

fn unanswered(endpoint: &Endpoint, why: &str) -> CallError {
    CallError::Unanswered {
        tried: vec![Tried { endpoint: endpoint.clone(), why: why.to_owned() }],
        effect: tenure_wire::Effect::Unknown,
    }
}
