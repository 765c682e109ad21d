//! The seam between the holder's side and whatever keeps the leases.
//!
//! A [`Store`] is anything linearizable that can open sessions, renew them, apply numbered commands and tell
//! a session what happened to it. Nothing here decides anything: what a holder may believe is
//! `tenure_core::Holder`'s, and it needs only three promises of a store, written at the methods that make
//! them. The embedded store ([`Embedded`](crate::Embedded)) and the network
//! ([`Client::connect`](crate::Client::connect)) are the two that exist.
//!
//! Answers come through callbacks, because a store answers on whatever thread it lives on and must never need
//! the application's runtime to get on with it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{
    Command, Done, EndReason, Grant, HolderName, LeaseView, Nonce, Register, RegisterKey, RenewalAnswer,
    ResourceName, Revision, Scope, SessionId, SessionNumber, Token,
};
use tenure_wire::{ApiError, Code, proto};
use tokio::sync::mpsc;

use crate::error::{CallError, Tried};

/// The callback for an answer. Called once, on any thread, with no lock held.
pub type Callback<T> = Box<dyn FnOnce(Result<T, CallError>) + Send>;

/// A session's listener for what happens to it. Called on any thread, with no lock held; it never blocks.
pub type SessionListener = Arc<dyn Fn(SessionEvent) + Send + Sync>;

/// What a watcher receives: the events of a revision, or why there will be no more.
pub(crate) type WatchItem = Result<proto::WatchResponse, CallError>;

/// Revisions that may lie between the store and a watcher. One that reads more slowly is cut off, and
/// notified.
const EVENTS_WAITING_MAX: usize = 4_096;

/// Where a watch receives changes.
#[derive(Debug)]
pub struct Watcher(mpsc::Sender<WatchItem>);

impl Watcher {
    pub(crate) fn new() -> (Watcher, mpsc::Receiver<WatchItem>) {
        let (sender, items) = mpsc::channel(EVENTS_WAITING_MAX);
        (Watcher(sender), items)
    }

    /// Sends it something, without waiting. False if nothing more can be sent: it is gone, or reads too
    /// slowly.
    pub fn notify(&self, item: Result<proto::WatchResponse, CallError>) -> bool {
        self.0.try_send(item).is_ok()
    }

    /// Whether anybody still watches.
    pub fn is_watched(&self) -> bool {
        !self.0.is_closed()
    }

    /// Waits until nobody watches any more: then a store has nothing to keep for it.
    pub async fn unwatched(&self) {
        self.0.closed().await;
    }
}

/// By what a store counts the life of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeBase {
    /// Cluster time: the time that a replicated log keeps. It never runs fast, and stands still while there
    /// is no quorum or no leader.
    ClusterTime,
    /// The clock of this very process: holder and store pause together, so nothing outlives the process.
    ThisProcess,
}

impl fmt::Display for TimeBase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TimeBase::ClusterTime => "cluster time, kept by a replicated log",
            TimeBase::ThisProcess => "the clock of this process",
        })
    }
}

/// One transmission of an open.
#[derive(Clone, Debug)]
pub struct OpenSession {
    /// Who, for people.
    pub holder: HolderName,
    /// How long the session lives without a renewal.
    pub ttl: Duration,
    /// By which a repeated open finds the session that it made.
    pub nonce: Nonce,
    /// The number of this transmission.
    pub number: u64,
    /// Whether the session is this process's alone, so that whoever sees the process dead may end it at once.
    pub with_process: bool,
}

/// A session is open.
#[derive(Clone, Debug)]
pub struct Opened {
    /// Its id.
    pub session: SessionId,
    /// The TTL to count with.
    pub ttl: Duration,
    /// The number of the transmission that this answers.
    pub number: u64,
}

/// By which way a transmission goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The one that worked last.
    Usual,
    /// Another one, because an earlier transmission is unanswered: another endpoint, or a fresh connection.
    Another,
}

/// What a store says to a session of its own accord. Nothing of it is relied on: whatever is missed is found
/// by the next renewal, or by repeating a command under its number.
#[derive(Clone, Debug)]
pub enum SessionEvent {
    /// An acquire that waited in the queue was granted.
    Granted {
        /// The acquire's number.
        number: u64,
        /// One grant per resource.
        grants: Vec<Grant>,
    },
    /// An acquire left the queue without a grant. Why, its number will be answered when repeated.
    Unqueued {
        /// The acquire's number.
        number: u64,
    },
    /// A lease is to end.
    Noticed {
        /// Which.
        token: Token,
        /// Why.
        why: EndReason,
    },
    /// A lease has ended.
    Ended {
        /// Which.
        token: Token,
        /// Why.
        why: EndReason,
    },
    /// The session has ended.
    Closed {
        /// Why, if that was said.
        why: Option<EndReason>,
    },
    /// Something may have been missed: a connection was lost, or had no room.
    Missed,
}

/// Who holds a resource, as anybody may see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseInfo {
    /// The resource.
    pub resource: ResourceName,
    /// Its holders: the public number of the session, the name, the token.
    pub holders: Vec<(SessionNumber, HolderName, Token)>,
    /// Who waits in the queue, the next first: the public numbers of their sessions.
    pub waiters: Vec<SessionNumber>,
    /// The revision at which this was true.
    pub revision: Revision,
}

impl LeaseInfo {
    pub(crate) fn new(view: LeaseView, revision: Revision) -> LeaseInfo {
        LeaseInfo {
            resource: view.resource,
            holders: view.holders.into_iter().map(|by| (by.session, by.holder, by.token)).collect(),
            waiters: view.waiters.iter().map(|waiter| waiter.session).collect(),
            revision,
        }
    }
}

/// A lease store, as the holder's side needs it.
pub trait Store: Send + Sync + 'static {
    /// By what the store counts the life of a session.
    fn time_base(&self) -> TimeBase;

    /// Opens a session, once. *Promise: the session lives for at least its TTL, by the store's time, from
    /// some moment after this was called.* Called on the renewer's thread.
    fn open(&self, open: OpenSession, route: Route, callback: Callback<Opened>);

    /// Renews sessions, once; one answer each, in order, `None` where nothing is known. *Promise: the same as
    /// for an open, for each that is answered with its number; and what such an answer leaves unsaid about
    /// single leases did not happen before it was applied.* Called on the renewer's thread.
    fn renew(
        &self,
        renewals: Vec<(SessionId, u64)>,
        route: Route,
        callback: Callback<Vec<Option<RenewalAnswer>>>,
    );

    /// Carries out a command of a session. A numbered one is repeated, over any way there is, until it is
    /// answered or its session has ended. *Promise: a number is carried out once, however often it is sent.*
    fn submit(&self, command: Command, callback: Callback<Done>);

    /// The tokens that a session holds, read linearizably.
    fn held(&self, session: SessionId, callback: Callback<Vec<Token>>);

    /// How soon the session wants it noticed that nobody answers: the R/4 of its
    /// [`Timing`](tenure_core::Timing). Called before [`listen`](Self::listen). A store that has nothing to
    /// choose from passes it over.
    fn detect_within(&self, session: SessionNumber, detect: Duration) {
        let _ = (session, detect);
    }

    /// Calls `listener` with what happens to a session, until it ends or is [`forgotten`](Self::forget).
    fn listen(&self, session: SessionId, listener: SessionListener);

    /// Sends no more about a session.
    fn forget(&self, session: SessionNumber);

    /// Who holds a resource, read linearizably; `None` if it was never seen.
    fn lease(&self, resource: ResourceName, callback: Callback<Option<LeaseInfo>>);

    /// One register, read linearizably.
    fn register(&self, key: RegisterKey, callback: Callback<Register>);

    /// Why the store does not answer, as far as that is known: each endpoint that failed or is silent, with
    /// its latest reason. For the errors of those who have waited in vain.
    fn tried(&self) -> Vec<Tried> {
        Vec::new()
    }

    /// A signed statement of a lease that the session holds. A store that signs nothing refuses.
    fn sequencer(&self, session: SessionId, scope: Scope, token: Token, callback: Callback<String>) {
        let _ = (session, scope, token);
        let no = ApiError::new(Code::NoSuchCall, "this store signs no sequencers")
            .hint("a Tenure server does; an embedded store has nobody to convince");
        callback(Err(CallError::Refused(no)));
    }

    /// Sends `watcher` the changes under `prefix`, revision by revision, from `from` on or from now on. The
    /// first word may have no events: it names the revision after which the watch begins. Ends when nobody
    /// listens any more.
    fn watch(&self, prefix: String, from: Option<Revision>, watcher: Watcher);
}
