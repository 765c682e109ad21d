//! The driver of one session. It passes events and the time to its logic (`tenure_core::Holder`) and carries
//! out what follows: it sends, notifies and waits, and contains no lease rule of its own.
//!
//! One lock guards a session's logic. No store and no application code is ever called under it, so a renewal
//! waits at most for a few comparisons. What must be sent is collected under the lock and sent after it;
//! values that might send something when dropped (a lease, a handle) are dropped after it too.
//!
//! This file defines a session and the operations on its leases. `transmissions.rs` has opens and renewals,
//! `acquires.rs` unanswered acquires, `returns.rs` releases, `order.rs` the order between those two, and
//! `events.rs` events that the store pushes.

mod acquires;
mod events;
mod order;
mod returns;
mod transmissions;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::{
    Caller, Command, Done, EndReason, Grant, Holder, HolderName, HolderOptions, LeaseEnd, LeaseState, Moment,
    NoPermit, Nonce, Revision, SessionId, Timing, Token,
};
use tenure_wire::{Code, Effect};
use tokio::sync::watch;

use self::acquires::Asked;
use self::order::Order;
use self::returns::Returning;
pub(crate) use self::returns::To;
pub(crate) use self::transmissions::Transmit;
use crate::client::Shared;
use crate::error::CallError;
use crate::lease::LeaseStatus;

/// The state of a session as a whole.
#[derive(Clone, Debug)]
pub(crate) enum SessionStatus {
    /// The store has not answered yet.
    Opening,
    /// It lives, as far as is known.
    Open,
    /// It could not be opened.
    Failed(CallError),
    /// It has ended.
    Ended,
}

/// How a session is to be kept.
#[derive(Clone, Debug)]
pub(crate) struct KeepOptions {
    pub holder: HolderName,
    pub timing: Timing,
    pub logic: HolderOptions,
    /// How long to try to open it.
    pub open_within: Duration,
    /// What must be left of a lease, or its work gets the stop signal.
    pub stop_before: Duration,
    /// Whether this process's death is proof that nobody acts under the session any more.
    pub with_process: bool,
}

/// One session of this process.
pub(crate) struct SessionDriver {
    /// Names it within this process.
    pub key: u64,
    pub shared: Arc<Shared>,
    options: KeepOptions,
    /// The process that opened it: a fork of it holds nothing.
    process: u32,
    status: watch::Sender<SessionStatus>,
    inside: Mutex<Inside>,
}

struct Inside {
    logic: Holder,
    /// What finds the session again when the answer to its open was lost.
    nonce: Nonce,
    id: Option<SessionId>,
    next_number: u64,
    /// Numbers whose answers are still awaited.
    awaited: BTreeSet<u64>,
    acquires: BTreeMap<u64, Asked>,
    order: Order,
    leases: BTreeMap<Token, Kept>,
    closing: Closing,
    /// Transmissions of opens and renewals since the last answer.
    unanswered: u32,
    opening_since: Option<Moment>,
    last_failure: Option<CallError>,
    /// The revision of the session's last lease change that was taken in with everything before it.
    known: Revision,
}

/// A lease that somebody has, or that is being given back.
struct Kept {
    grant: Grant,
    status: watch::Sender<LeaseStatus>,
    stop: watch::Sender<bool>,
    returning: Option<Returning>,
    /// Nobody has it any more: forgotten once it has ended.
    dropped: bool,
}

enum Closing {
    No,
    /// As soon as no permit is out.
    Wanted(EndReason),
    Sent,
}

impl SessionDriver {
    pub fn new(key: u64, shared: Arc<Shared>, options: KeepOptions, nonce: Nonce) -> Arc<SessionDriver> {
        let logic = Holder::new(options.timing, options.logic);
        let inside = Inside {
            logic,
            nonce,
            id: None,
            next_number: 1,
            awaited: BTreeSet::new(),
            acquires: BTreeMap::new(),
            order: Order::default(),
            leases: BTreeMap::new(),
            closing: Closing::No,
            unanswered: 0,
            opening_since: None,
            last_failure: None,
            known: Revision::default(),
        };
        let status = watch::Sender::new(SessionStatus::Opening);
        let process = std::process::id();
        Arc::new(SessionDriver { key, shared, options, process, status, inside: Mutex::new(inside) })
    }

    pub fn status(&self) -> watch::Receiver<SessionStatus> {
        self.status.subscribe()
    }

    pub fn options(&self) -> &KeepOptions {
        &self.options
    }

    pub fn id(&self) -> Option<SessionId> {
        self.lock().id
    }

    /// What is left of the session's local deadline.
    pub fn remaining(&self) -> Duration {
        self.lock().logic.remaining(self.now())
    }

    /// What was left of the deadline when the store let the session run out; not if it was being closed here.
    pub fn ended_early(&self) -> Option<Duration> {
        self.lock().ended_early()
    }

    pub fn now(&self) -> Moment {
        self.shared.clock.now()
    }

    /// The process that opened the session.
    pub fn holder(&self) -> &HolderName {
        &self.options.holder
    }

    pub fn process(&self) -> u32 {
        self.process
    }

    /// The process that asks, if it is not the one that opened the session.
    pub fn forked(&self) -> Option<u32> {
        let process = std::process::id();
        (process != self.process).then_some(process)
    }

    pub fn progressed(&self) {
        let now = self.now();
        self.lock().logic.progressed(now);
        self.nudge();
    }

    /// The application gives up waiting for the store; false while it could still be acting.
    pub fn give_up(&self) -> bool {
        let now = self.now();
        let mut inside = self.lock();
        let may = inside.logic.give_up(now);
        if may {
            let gone = inside.ended(self, now);
            drop(inside);
            self.farewell(gone);
        }
        may
    }

    pub fn permit<P>(&self, ask: impl FnOnce(&Holder, Moment) -> Result<P, NoPermit>) -> Result<P, NoPermit> {
        let inside = self.lock();
        // Read under the lock: nothing that was known when the permit is given is older than this.
        let now = self.now();
        ask(&inside.logic, now)
    }

    pub fn lease_status(&self, token: Token) -> Option<(LeaseStatus, Duration)> {
        let inside = self.lock();
        let now = self.now();
        let state = inside.logic.state(token, now)?;
        let status = LeaseStatus { state, notice: inside.logic.notice(token) };
        Some((status, inside.logic.lease_remaining(token, now)))
    }

    pub fn stop_signal(&self, token: Token) -> Option<watch::Receiver<bool>> {
        self.lock().leases.get(&token).map(|kept| kept.stop.subscribe())
    }

    /// Changes something about the logic, then notifies whom it concerns.
    pub fn with_logic<T>(&self, change: impl FnOnce(&mut Holder, Moment) -> T) -> T {
        let mut inside = self.lock();
        let now = self.now();
        let out = change(&mut inside.logic, now);
        inside.publish(self, now);
        out
    }

    /// A lease past its deadline under which permits are still out; else how long it is until the next
    /// deadline of any lease, whether or not a permit is out now.
    pub fn overstaying(&self) -> Result<Token, Option<Duration>> {
        let inside = self.lock();
        let now = self.now();
        let mut next = None;
        for token in inside.leases.keys() {
            let left = inside.logic.lease_remaining(*token, now);
            if !left.is_zero() {
                next = Some(next.map_or(left, |next: Duration| next.min(left)));
            } else if inside.logic.permits_out(*token) > 0 {
                return Ok(*token);
            }
        }
        Err(next)
    }

    /// What the store said to a fence's arming. It accepts the live token only, so a no is the end of the
    /// lease.
    pub fn arming_answered(self: &Arc<Self>, token: Token, answer: Result<Done, CallError>) {
        let Err(CallError::Refused(no)) = answer else { return };
        match (no.code, no.about.seen.and_then(|seen| Token::try_from(seen).ok())) {
            (Code::StaleToken, Some(seen)) => self.with_logic(|logic, _| logic.barrier_refused(token, seen)),
            (Code::StaleToken | Code::LeaseEnded | Code::NotHeld | Code::UnknownToken, _) => {
                // It has ended without a successor. How, is for the store to say: whatever it does not list
                // has ended.
                if let Some(session) = self.id() {
                    self.ask_for_leases(session);
                }
            }
            // A limit, or a leader that was not there: the fence has the token all the same.
            _ => {}
        }
    }

    /// What is said of a command whose answer was waited for in vain.
    pub fn unanswered(&self, effect: Effect) -> CallError {
        CallError::Unanswered { tried: self.shared.store.tried(), effect }
    }

    /// The next number of the session, for a command of it.
    pub fn numbered<T>(
        self: &Arc<Self>,
        command: impl FnOnce(Caller) -> Command,
        callback: impl FnOnce(Result<Done, CallError>) -> T + Send + 'static,
    ) {
        let mut inside = self.lock();
        let (number, by) = inside.next_caller();
        drop(inside);
        let driver = self.clone();
        let callback = Box::new(move |answer| {
            driver.lock().awaited.remove(&number);
            callback(answer);
        });
        self.shared.store.submit(command(by), callback);
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        // Nothing of the application's runs under this lock; if one of our own asserts failed under it, no
        // permit may ever be given again.
        self.inside.lock().unwrap_or_else(|broken: PoisonError<_>| {
            panic!("session {} has stopped after a broken invariant: {broken}", self.key)
        })
    }
}

impl Inside {
    fn ended_early(&self) -> Option<Duration> {
        self.logic.ended_early().filter(|_| !matches!(self.closing, Closing::Sent))
    }

    /// The next command number, awaited from now on.
    fn next_caller(&mut self) -> (u64, Caller) {
        let session = self.id.expect("a session without an id sends no commands");
        let number = self.next_number;
        self.next_number += 1;
        self.awaited.insert(number);
        let lowest_awaited = *self.awaited.first().expect("at least this one is awaited");
        (number, Caller { session, number: Some(number), lowest_awaited })
    }

    /// Notifies everybody of what has changed about the leases, and forgets those that nobody has.
    fn publish(&mut self, driver: &SessionDriver, now: Moment) {
        let mut forgotten = Vec::new();
        for (token, kept) in &mut self.leases {
            let Some(state) = self.logic.state(*token, now) else { continue };
            let status = LeaseStatus { state, notice: self.logic.notice(*token) };
            let remaining = self.logic.lease_remaining(*token, now);
            let must_stop = status.must_stop() || remaining <= driver.options.stop_before;
            if must_stop {
                kept.stop.send_if_modified(|stopped| !std::mem::replace(stopped, true));
            } else if *kept.stop.borrow() {
                // Held again. Work that got the stop signal stays stopped; whoever asks from now on starts afresh.
                kept.stop = watch::Sender::new(false);
            }
            kept.status.send_if_modified(|last| std::mem::replace(last, status) != status);
            if let LeaseState::Ended(end) = state {
                kept.notify_returned(end);
                if kept.dropped {
                    forgotten.push(*token);
                }
            }
        }
        for token in forgotten {
            self.leases.remove(&token);
            self.logic.forget(token);
        }
    }
}

impl Kept {
    fn notify_returned(&mut self, end: LeaseEnd) {
        if let Some(returning) = &mut self.returning {
            returning.notify(Ok(end));
        }
    }
}

pub(crate) fn is_unknown_session(error: &CallError) -> bool {
    matches!(error, CallError::Refused(no) if no.code == Code::UnknownSession)
}
