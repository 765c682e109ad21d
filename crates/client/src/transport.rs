//! Calls to the store: over the endpoint that answered last, else over the others, for as long as the caller
//! is willing. This file decides whether a failed attempt may be repeated and what is known when none may;
//! it never reads an answer.
//!
//! The rule is short. An attempt whose connection could not be made was never sent, so it is repeated
//! elsewhere at once. A no that will pass (`no_leader`, `overloaded`, `shutting_down`) changed nothing, so it
//! is repeated after a while. An attempt that was sent and not answered may have been applied: it is repeated
//! only if the caller said that a second transmission is harmless ([`Repeat`]), and if it stays unanswered
//! the error says that its effect is unknown. Every other no is the answer.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tenure_clock::{Clock, SystemClock};
use tenure_wire::{ApiError, Code, Effect};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::chance;
use crate::channel::Channel;
use crate::dial::{Dial, Dialer};
use crate::endpoints::{Endpoint, Endpoints};
use crate::error::{CallError, Tried, passes, refusal_in, root_cause};
use crate::members::Directory;
use crate::retry::{Backoff, roll};

/// How long one endpoint may take to accept a connection before the next is tried.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// The first delay after a round over all endpoints, and the longest.
const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// How often a connection with a call in flight is probed, and how long the probe may take. A server that
/// disappears without a word is noticed within their sum, even by a call that waits for an hour.
const PROBE_EVERY: Duration = Duration::from_secs(5);
const PROBE_WITHIN: Duration = Duration::from_secs(5);

/// What a second transmission of a call would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Nothing: the call only reads.
    Read,
    /// The same as the first: it carries a number or a nonce, or it asks for a state and not for a change.
    Harmless,
    /// Perhaps something else. It is sent once.
    Never,
}

/// How a call is made.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// What a second transmission would do.
    pub repeat: Repeat,
    /// How long to go on asking; no attempt is begun after that.
    pub within: Duration,
    /// How long one attempt may take; `None` for a call that waits in the queue.
    pub attempt_within: Option<Duration>,
    /// Whether to go on when no endpoint can be reached. A program that serves wants to; a person at a
    /// terminal wants to see it.
    pub persistent: bool,
}

/// One transmission of a call.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// 1, 2, 3 …: every transmission has its own number.
    pub number: u64,
    /// How long ago the call began.
    pub elapsed: Duration,
}

/// The connections to a store. Cheap to share; calls do not wait for each other.
pub struct Transport {
    directory: Directory,
    /// The connections that were needed so far.
    connections: std::sync::Mutex<BTreeMap<Endpoint, Arc<EndpointConnection>>>,
    /// The endpoint that answered last.
    preferred: std::sync::Mutex<Endpoint>,
    clock: Arc<dyn Clock>,
    dialer: Dialer,
}

/// One endpoint, and the connection to it while there is one.
struct EndpointConnection {
    channel: Mutex<Option<Channel>>,
}

/// What came of one attempt that was not answered with a yes.
enum Failed {
    /// Nothing was sent.
    Unsent(String),
    /// It was sent; who knows.
    Unanswered(String),
    /// The store said no.
    Refused(ApiError),
}

impl Transport {
    /// A transport over these endpoints. Nothing is connected yet.
    pub fn new(endpoints: &Endpoints) -> Self {
        Self::with_clock(endpoints, Arc::new(SystemClock))
    }

    /// The same, with a clock of the caller's.
    pub fn with_clock(endpoints: &Endpoints, clock: Arc<dyn Clock>) -> Self {
        Self::dialling(Directory::new(endpoints), clock, Dialer::of(endpoints))
    }

    /// The same, over a network of the caller's.
    pub fn over(endpoints: &Endpoints, clock: Arc<dyn Clock>, dial: Arc<dyn Dial>) -> Self {
        Self::dialling(Directory::new(endpoints), clock, Dialer::over(dial, endpoints))
    }

    pub(crate) fn dialling(directory: Directory, clock: Arc<dyn Clock>, dialer: Dialer) -> Self {
        let preferred = std::sync::Mutex::new(directory.first());
        Self { directory, connections: std::sync::Mutex::default(), preferred, clock, dialer }
    }

    /// The endpoints, the one that answered last first.
    fn endpoints(&self) -> Vec<Endpoint> {
        let mut all = self.directory.all();
        let preferred = self.preferred.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(at) = all.iter().position(|endpoint| *endpoint == preferred) {
            all.rotate_left(at);
        }
        all
    }

    fn connection(&self, endpoint: &Endpoint) -> Arc<EndpointConnection> {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connection) = connections.get(endpoint) {
            return connection.clone();
        }
        // Those that are no endpoints any more are forgotten with the next one that is new.
        let all = self.directory.all();
        connections.retain(|endpoint, _| all.contains(endpoint));
        connections
            .entry(endpoint.clone())
            .or_insert_with(|| Arc::new(EndpointConnection { channel: Mutex::new(None) }))
            .clone()
    }

    /// Makes a call. `send` transmits it once, over the given connection.
    pub async fn call<T, F, S>(&self, call: Call, send: F) -> Result<T, CallError>
    where
        F: Fn(Channel, Attempt) -> S,
        S: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let started = self.clock.now();
        let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MAX);
        let mut ledger = Ledger::new(call.repeat);
        let mut number = 0;
        loop {
            let mut round_reached_somebody = false;
            for endpoint in self.endpoints() {
                let elapsed = self.clock.now().longest_since(started);
                let Some(left) = call.within.checked_sub(elapsed).filter(|left| !left.is_zero()) else {
                    return Err(ledger.close());
                };
                number += 1;
                let attempt = Attempt { number, elapsed };
                let failed = match self.attempt(&endpoint, call, left, attempt, &send).await {
                    Ok(answer) => {
                        *self.preferred.lock().unwrap_or_else(PoisonError::into_inner) = endpoint;
                        return Ok(answer);
                    }
                    Err(failed) => failed,
                };
                round_reached_somebody |= !matches!(failed, Failed::Unsent(_));
                ledger.enter(&endpoint, failed)?;
            }
            if !round_reached_somebody && !call.persistent {
                return Err(ledger.close());
            }
            let delay = backoff.next_delay(roll()).max(ledger.retry_after());
            let elapsed = self.clock.now().longest_since(started);
            if elapsed + delay >= call.within {
                return Err(ledger.close());
            }
            tokio::time::sleep(delay).await;
        }
    }

    /// What a status means that came on a stream, behind the answer that opened it.
    pub(crate) fn stream_failed(&self, status: &tonic::Status) -> CallError {
        match judge(status) {
            Failed::Refused(refused) => CallError::Refused(refused),
            Failed::Unsent(why) | Failed::Unanswered(why) => {
                let endpoint = self.preferred.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let tried = vec![Tried { endpoint, why }];
                CallError::Unanswered { tried, effect: Effect::NotApplied }
            }
        }
    }

    async fn attempt<T, F, S>(
        &self,
        endpoint: &Endpoint,
        call: Call,
        left: Duration,
        attempt: Attempt,
        send: &F,
    ) -> Result<T, Failed>
    where
        F: Fn(Channel, Attempt) -> S,
        S: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let connection = self.connection(endpoint);
        let channel = connection.connect(endpoint, &self.dialer, left.min(CONNECT_WITHIN)).await?;
        let answer = match call.attempt_within {
            None => send(channel, attempt).await,
            // Not cut to what is left of the whole: an attempt that has begun gets its time, because what it
            // does is done anyway and an answer is worth more than punctuality.
            Some(limit) => match timeout(limit, send(channel, attempt)).await {
                Ok(answer) => answer,
                Err(_) => {
                    connection.disconnect().await;
                    return Err(Failed::Unanswered(format!("no answer within {limit:?}")));
                }
            },
        };
        match answer {
            Ok(answer) => Ok(answer.into_inner()),
            Err(status) => {
                let failed = judge(&status);
                if matches!(failed, Failed::Unanswered(_)) {
                    connection.disconnect().await;
                }
                Err(failed)
            }
        }
    }
}

impl EndpointConnection {
    /// The connection, made now if there is none. Made before anything is sent, never on the way: so a
    /// failure here proves that nothing was.
    async fn connect(
        &self,
        endpoint: &Endpoint,
        dialer: &Dialer,
        within: Duration,
    ) -> Result<Channel, Failed> {
        let mut channel = self.channel.lock().await;
        if let Some(channel) = &*channel {
            return Ok(channel.clone());
        }
        let made = tonic::transport::Endpoint::from_shared(endpoint.uri())
            .map_err(|error| Failed::Unsent(root_cause(&error)))?
            .connect_timeout(within)
            .http2_keep_alive_interval(PROBE_EVERY)
            .keep_alive_timeout(PROBE_WITHIN);
        // The connector's own limit covers the connection alone; ours covers the name's lookup too.
        let made = match timeout(within, dialer.connect(made)).await {
            Ok(Ok(made)) => made,
            Ok(Err(error)) => return Err(Failed::Unsent(root_cause(&error))),
            Err(_) => return Err(Failed::Unsent(format!("no connection within {within:?}"))),
        };
        *channel = Some(made.clone());
        Ok(made)
    }

    /// Forgets the connection, so that the next attempt makes a new one.
    async fn disconnect(&self) {
        *self.channel.lock().await = None;
    }
}

/// What a status says about the attempt that it ended.
fn judge(status: &tonic::Status) -> Failed {
    if let Some(refused) = refusal_in(status) {
        return Failed::Refused(refused);
    }
    // Without our detail it was not the store that spoke: the connection, something in between, or another
    // kind of server. Only what such a speaker cannot have passed on to the store is known to be undone.
    match status.code() {
        tonic::Code::Unimplemented => Failed::Refused(
            ApiError::new(Code::NoSuchCall, "the server does not know this call")
                .hint("an older Tenure, or something else, listens there"),
        ),
        tonic::Code::InvalidArgument => Failed::Refused(ApiError::invalid(status.message())),
        _ => Failed::Unanswered(root_cause(status)),
    }
}

/// What is known about a call after some failed attempts.
struct Ledger {
    repeat: Repeat,
    tried: Vec<Tried>,
    /// An attempt was sent and not answered.
    unanswered: bool,
    /// The latest no that will pass.
    refused: Option<ApiError>,
}

impl Ledger {
    fn new(repeat: Repeat) -> Self {
        Self { repeat, tried: Vec::new(), unanswered: false, refused: None }
    }

    /// Takes in a failed attempt; an error ends the call.
    fn enter(&mut self, endpoint: &Endpoint, failed: Failed) -> Result<(), CallError> {
        let why = match failed {
            Failed::Unsent(why) => why,
            Failed::Unanswered(why) => {
                self.unanswered = true;
                self.note(endpoint, why);
                return if self.repeat == Repeat::Never { Err(self.close()) } else { Ok(()) };
            }
            Failed::Refused(refused) => {
                let repeatable = refused.code == Code::UnknownOutcome && self.repeat != Repeat::Never;
                if !passes(&refused) && !repeatable {
                    return Err(CallError::Refused(refused));
                }
                self.unanswered |= refused.effect == Effect::Unknown;
                let why = refused.to_string();
                self.refused = Some(refused);
                why
            }
        };
        self.note(endpoint, why);
        Ok(())
    }

    fn note(&mut self, endpoint: &Endpoint, why: String) {
        match self.tried.iter_mut().find(|tried| tried.endpoint == *endpoint) {
            Some(tried) => tried.why = why,
            None => self.tried.push(Tried { endpoint: endpoint.clone(), why }),
        }
    }

    fn retry_after(&self) -> Duration {
        let after = self.refused.as_ref().and_then(|refused| refused.retry_after_ms);
        Duration::from_millis(after.unwrap_or_default())
    }

    /// The error of a call that is given up.
    fn close(&mut self) -> CallError {
        let tried = std::mem::take(&mut self.tried);
        if self.unanswered {
            // One attempt that may have been applied outweighs any number that certainly were not.
            let effect = if self.repeat == Repeat::Read { Effect::NotApplied } else { Effect::Unknown };
            return CallError::Unanswered { tried, effect };
        }
        match self.refused.take() {
            Some(refused) => CallError::Refused(refused),
            None => CallError::Unreachable { tried },
        }
    }
}

/// 128 random bits, by which a repeated open finds the session that it made.
///
/// # Panics
///
/// If the operating system has no randomness to give. A guessable nonce would let two clients find each
/// other's sessions.
pub fn random_nonce() -> [u8; 16] {
    let draw = || chance::draw().expect("the operating system gives random bits");
    let bits = (u128::from(draw()) << 64) | u128::from(draw());
    bits.to_be_bytes()
}

#[cfg(test)]
mod tests;
