//! The driver around one session's mind. It hands events and the time to `tenure_core::Holder` and carries out what
//! follows: it sends, tells and waits, and contains no lease rule of its own.
//!
//! One lock guards a session's mind. No store and nothing of the application's is ever called under it, so a
//! renewal waits at most for a few comparisons. What must be sent is collected under the lock and sent
//! after it; what must be dropped and might send something when dropped (a lease, a handle) is dropped after it too.

mod returns;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::{
    Acquire, AcquireBy, Caller, Command, Done, EndReason, Grant, Holder, HolderName, HolderOptions, LeaseEnd,
    LeaseState, Moment, NoPermit, Nonce, RenewalAnswer, Revision, SessionId, Taken, Timing, Token,
};
use tokio::sync::{oneshot, watch};

use self::returns::Returning;
pub(crate) use self::returns::To;
use crate::client::Shared;
use crate::error::{CallError, passes};
use crate::heart::ToHeart;
use crate::lease::{Lease, LeaseStatus};
use crate::retry::roll;
use crate::session::Handle;
use crate::store::{News, OpenSession, Opened, Route};
use tenure_wire::{ApiError, Code, Effect};

/// What is told about a session as a whole.
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
    pub mind: HolderOptions,
    /// How long to try to open it.
    pub open_within: Duration,
    /// What must be left of a lease, or its work is told to stop.
    pub stop_before: Duration,
    /// Whether this process's death is proof that nobody acts under the session any more.
    pub with_process: bool,
}

/// One session of this process.
pub(crate) struct Keeper {
    /// Names it within this process.
    pub key: u64,
    pub shared: Arc<Shared>,
    options: KeepOptions,
    nonce: Nonce,
    /// The process that opened it: a fork of it holds nothing.
    process: u32,
    status: watch::Sender<SessionStatus>,
    inside: Mutex<Inside>,
}

struct Inside {
    mind: Holder,
    id: Option<SessionId>,
    next_number: u64,
    /// Numbers whose answers are still awaited.
    awaited: BTreeSet<u64>,
    acquires: BTreeMap<u64, Asked>,
    leases: BTreeMap<Token, Kept>,
    closing: Closing,
    /// Transmissions of opens and renewals since the last answer.
    unanswered: u32,
    opening_since: Option<Moment>,
    last_failure: Option<CallError>,
    /// The revision of the session's last lease change that was taken in with everything before it.
    known: Revision,
}

/// An acquire that is not answered for good.
struct Asked {
    /// Keeps the session open while somebody waits.
    handle: Arc<Handle>,
    acquire: Acquire,
    reply: oneshot::Sender<Result<Vec<Lease>, CallError>>,
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

/// What the heart must do for a session now.
pub(crate) struct Beat {
    pub send: Option<Transmit>,
    /// When to look again; `None` once there is nothing left to do.
    pub wake: Option<Moment>,
}

/// One transmission to make.
pub(crate) enum Transmit {
    Open(OpenSession, Route),
    Renew(SessionId, u64, Route),
}

impl Keeper {
    pub fn new(key: u64, shared: Arc<Shared>, options: KeepOptions, nonce: Nonce) -> Arc<Keeper> {
        let mind = Holder::new(options.timing, options.mind);
        let inside = Inside {
            mind,
            id: None,
            next_number: 1,
            awaited: BTreeSet::new(),
            acquires: BTreeMap::new(),
            leases: BTreeMap::new(),
            closing: Closing::No,
            unanswered: 0,
            opening_since: None,
            last_failure: None,
            known: Revision::default(),
        };
        let status = watch::Sender::new(SessionStatus::Opening);
        let process = std::process::id();
        Arc::new(Keeper { key, shared, options, nonce, process, status, inside: Mutex::new(inside) })
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
        self.lock().mind.remaining(self.now())
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
        self.lock().mind.progressed(now);
        self.nudge();
    }

    /// The application gives up waiting for the store; false while it could still be acting.
    pub fn give_up(&self) -> bool {
        let now = self.now();
        let mut inside = self.lock();
        let may = inside.mind.give_up(now);
        if may {
            let gone = inside.ended(self, now);
            drop(inside);
            self.farewell(gone);
        }
        may
    }

    // --- the heart -------------------------------------------------------------------------------------------

    /// The heart has come by: is there something to send, and when should it come again?
    pub fn beat(self: &Arc<Self>) -> Beat {
        let now = self.now();
        let mut inside = self.lock();
        if inside.mind.session_ended() {
            return Beat { send: None, wake: None };
        }
        if inside.id.is_none() && inside.opening_failed(self, now) {
            return Beat { send: None, wake: None };
        }
        let paused = inside.mind.woke(now);
        if matches!(inside.closing, Closing::Sent) {
            // It is not kept alive any more, so if the close is lost it ends by itself; past the deadline nobody
            // here need wait for that.
            if inside.mind.give_up(now) {
                let gone = inside.ended(self, now);
                drop(inside);
                self.farewell(gone);
                return Beat { send: None, wake: None };
            }
            let left = inside.mind.remaining(now);
            return Beat { send: None, wake: Some(now.plus(left.min(self.options.timing.detect()))) };
        }
        let send = inside.mind.send_due(now).then(|| {
            let number = inside.mind.transmit(now, roll());
            let route = if inside.unanswered > 0 { Route::Another } else { Route::Usual };
            inside.unanswered += 1;
            match inside.id {
                Some(id) => Transmit::Renew(id, number, route),
                None => Transmit::Open(
                    OpenSession {
                        holder: self.options.holder.clone(),
                        ttl: self.options.timing.ttl(),
                        nonce: self.nonce,
                        number,
                        with_process: self.options.with_process,
                    },
                    route,
                ),
            }
        });
        inside.publish(self, now);
        let mut wake = inside.mind.next_wake(now);
        if let Some(stop) = inside.next_stop(self, now)
            && wake.is_none_or(|wake| stop.longest_since(now) < wake.longest_since(now))
        {
            wake = wake.map(|_| stop);
        }
        let report = paused.zip(inside.id).filter(|_| !inside.leases.is_empty());
        drop(inside);
        if let Some((length, session)) = report {
            // For the history that people read. Nothing depends on it.
            self.shared.store.submit(Command::Paused { session, length }, Box::new(drop));
        }
        Beat { send, wake }
    }

    /// What came of one transmission of the open.
    pub fn opened(self: &Arc<Self>, number: u64, answer: Result<Opened, CallError>) {
        let now = self.now();
        let mut inside = self.lock();
        let listen = match answer {
            Ok(Opened { session, ttl, number }) => {
                inside.unanswered = 0;
                inside.mind.opened(number, ttl, now);
                let first = inside.id.is_none().then_some(session);
                inside.id.get_or_insert(session);
                first
            }
            Err(error) => {
                inside.mind.failed(number, now);
                let final_no = matches!(&error, CallError::Refused(no) if !passes(no));
                if inside.id.is_none() && final_no {
                    inside.mind.end_session(None, now);
                    self.status.send_replace(SessionStatus::Failed(error));
                } else {
                    inside.last_failure = Some(error);
                }
                None
            }
        };
        drop(inside);
        let Some(session) = listen else { return };
        // Weak: a store that outlives its sessions must not keep them.
        let keeper = Arc::downgrade(self);
        let ear = Arc::new(move |news| {
            if let Some(keeper) = keeper.upgrade() {
                keeper.heard(news);
            }
        });
        self.shared.store.listen(session, ear);
        self.status.send_if_modified(|status| {
            let opening = matches!(status, SessionStatus::Opening);
            if opening {
                *status = SessionStatus::Open;
            }
            opening
        });
        // Whoever wanted it may be gone.
        self.close_if_wanted();
    }

    /// What came of one transmission of a renewal; `None` if nothing is known.
    pub fn renewed(self: &Arc<Self>, number: u64, answer: Option<RenewalAnswer>) {
        let now = self.now();
        let mut inside = self.lock();
        let Some(answer) = answer else {
            inside.mind.failed(number, now);
            inside.publish(self, now);
            return;
        };
        inside.unanswered = 0;
        let (revision, has_news) = match &answer {
            RenewalAnswer::Renewed { last_lease_revision, news, .. } => {
                (*last_lease_revision, news.is_some())
            }
            RenewalAnswer::UnknownSession => (inside.known, false),
        };
        let taken = inside.mind.renewed(&answer, now);
        // Notices and ends are in the answer itself. What can be missing is the turn of an acquire that stands in
        // line: its number is simply asked again.
        let repeat = if revision == inside.known { Vec::new() } else { inside.repeated_acquires() };
        inside.known = revision;
        inside.publish(self, now);
        let id = inside.id;
        if taken == Taken::SessionEnded {
            let gone = inside.ended(self, now);
            drop(inside);
            return self.farewell(gone);
        }
        drop(inside);
        self.submit_acquires(repeat);
        let Some(session) = id else { return };
        match taken {
            Taken::All if has_news => {
                let seen = self.lock().mind.seen();
                self.shared.store.submit(Command::Seen { session, revision: seen }, Box::new(drop));
            }
            Taken::AskForLeases => self.ask_for_leases(session),
            Taken::All | Taken::SessionEnded => {}
        }
    }

    fn ask_for_leases(self: &Arc<Self>, session: SessionId) {
        let keeper = self.clone();
        let asked = self.now();
        let then = Box::new(move |held: Result<Vec<Token>, CallError>| {
            // If this fails, the next renewal will say again that its list is incomplete.
            let Ok(held) = held else { return };
            let now = keeper.now();
            let mut inside = keeper.lock();
            inside.mind.listed(&held, asked, now);
            inside.publish(&keeper, now);
            let revision = inside.mind.seen();
            drop(inside);
            keeper.shared.store.submit(Command::Seen { session, revision }, Box::new(drop));
        });
        self.shared.store.held(session, then);
    }

    // --- acquires ---------------------------------------------------------------------------------------------

    /// Asks for leases under a new number. The answer comes as leases that are released when dropped.
    pub fn acquire(
        self: &Arc<Self>,
        handle: Arc<Handle>,
        mut acquire: Acquire,
    ) -> (u64, oneshot::Receiver<Result<Vec<Lease>, CallError>>) {
        let (reply, answer) = oneshot::channel();
        let mut inside = self.lock();
        let (number, caller) = inside.next_caller();
        acquire.by = AcquireBy::Session(caller);
        if inside.mind.session_ended() {
            inside.awaited.remove(&number);
            drop(inside);
            let _ = reply.send(Err(session_ended()));
            return (number, answer);
        }
        inside.acquires.insert(number, Asked { handle, acquire: acquire.clone(), reply });
        drop(inside);
        self.submit_acquires(vec![(number, acquire)]);
        (number, answer)
    }

    fn submit_acquires(self: &Arc<Self>, acquires: Vec<(u64, Acquire)>) {
        for (number, acquire) in acquires {
            let keeper = self.clone();
            let then = Box::new(move |answer: Result<Done, CallError>| match answer {
                Ok(Done::Granted { grants, .. }) => keeper.granted(number, grants),
                Ok(Done::Queued { .. }) => {}
                Ok(other) => panic!("an acquire was answered with {other:?}"),
                Err(error) => keeper.acquire_failed(number, error),
            });
            self.shared.store.submit(Command::Acquire(Box::new(acquire)), then);
        }
    }

    fn granted(self: &Arc<Self>, number: u64, grants: Vec<Grant>) {
        let now = self.now();
        let mut inside = self.lock();
        // Nobody waits for it any more: it was told before, or its cancel is on the way and gives it back.
        let Some(asked) = inside.acquires.remove(&number) else { return };
        inside.awaited.remove(&number);
        let mut leases = Vec::with_capacity(grants.len());
        for grant in grants {
            inside.mind.granted(&grant, &asked.acquire.fences, now);
            let token = grant.token;
            let state = inside.mind.state(token, now).unwrap_or(LeaseState::Held);
            let status = watch::Sender::new(LeaseStatus { state, notice: inside.mind.notice(token) });
            leases.push(Lease::new(asked.handle.clone(), &grant, status.subscribe()));
            let kept =
                Kept { grant, status, stop: watch::Sender::new(false), returning: None, dropped: false };
            // The same lease may be granted again to a re-entrant acquire: what is known of it stays.
            inside.leases.entry(token).or_insert(kept);
        }
        inside.publish(self, now);
        drop(inside);
        self.nudge();
        // If nobody listens any more, the leases come back here and are released by being dropped.
        drop(asked.reply.send(Ok(leases)));
    }

    fn acquire_failed(self: &Arc<Self>, number: u64, error: CallError) {
        let ended = is_unknown_session(&error);
        let mut inside = self.lock();
        let asked = inside.acquires.remove(&number);
        inside.awaited.remove(&number);
        drop(inside);
        if let Some(asked) = asked {
            let _ = asked.reply.send(Err(error));
        }
        if ended {
            self.session_gone(None);
        }
    }

    /// Nobody waits for this acquire any more: it is undone, however far it got.
    pub fn cancel(self: &Arc<Self>, number: u64) {
        let mut inside = self.lock();
        let Some(asked) = inside.acquires.remove(&number) else { return };
        // The number stays awaited until its cancel is answered, or the store would forget it before.
        let (cancel, by) = inside.next_caller();
        drop(inside);
        let keeper = self.clone();
        let then = Box::new(move |_: Result<Done, CallError>| {
            let mut inside = keeper.lock();
            inside.awaited.remove(&number);
            inside.awaited.remove(&cancel);
            drop(inside);
            // Only now: closing the session, if this was its last user, comes after the cancel.
            drop(asked);
        });
        self.shared.store.submit(Command::Cancel { by, acquire: number }, then);
    }

    // --- what the store says --------------------------------------------------------------------------------------

    fn heard(self: &Arc<Self>, news: News) {
        let now = self.now();
        match news {
            News::Granted { number, grants } => self.granted(number, grants),
            News::Unqueued { number } => {
                let inside = self.lock();
                let asked = inside.acquires.get(&number).map(|asked| (number, asked.acquire.clone()));
                drop(inside);
                self.submit_acquires(asked.into_iter().collect());
            }
            News::Noticed { token, why } => {
                let mut inside = self.lock();
                inside.mind.noticed(token, why);
                inside.publish(self, now);
                drop(inside);
                self.nudge();
            }
            News::Ended { token, why } => {
                let mut inside = self.lock();
                inside.mind.ended(token, why, now);
                inside.publish(self, now);
            }
            News::Closed { why } => self.session_gone(why),
            News::Missed => {
                let repeat = self.lock().repeated_acquires();
                self.submit_acquires(repeat);
            }
        }
    }

    /// The session has ended, by the store's word.
    pub fn session_gone(self: &Arc<Self>, why: Option<EndReason>) {
        let now = self.now();
        let mut inside = self.lock();
        inside.mind.end_session(why, now);
        let gone = inside.ended(self, now);
        drop(inside);
        self.farewell(gone);
    }

    /// After a session's end: nobody need speak of it any more, and those who waited in it are told.
    fn farewell(&self, gone: Vec<Asked>) {
        if let Some(id) = self.id() {
            self.shared.store.forget(id.number);
        }
        for asked in gone {
            let _ = asked.reply.send(Err(session_ended_meanwhile()));
        }
        self.nudge();
    }

    pub fn nudge(&self) {
        // A heart that is gone has no session left to keep.
        let _ = self.shared.heart.send(ToHeart::Nudge(self.key));
    }

    // --- leases ------------------------------------------------------------------------------------------------------

    pub fn permit<P>(&self, ask: impl FnOnce(&Holder, Moment) -> Result<P, NoPermit>) -> Result<P, NoPermit> {
        let inside = self.lock();
        // Read under the lock: nothing that was known when the permit is given is older than this.
        let now = self.now();
        ask(&inside.mind, now)
    }

    pub fn lease_status(&self, token: Token) -> Option<(LeaseStatus, Duration)> {
        let inside = self.lock();
        let now = self.now();
        let state = inside.mind.state(token, now)?;
        let status = LeaseStatus { state, notice: inside.mind.notice(token) };
        Some((status, inside.mind.lease_remaining(token, now)))
    }

    pub fn stop_signal(&self, token: Token) -> Option<watch::Receiver<bool>> {
        self.lock().leases.get(&token).map(|kept| kept.stop.subscribe())
    }

    /// Changes something about the mind, then tells whom it concerns.
    pub fn with_mind<T>(&self, change: impl FnOnce(&mut Holder, Moment) -> T) -> T {
        let mut inside = self.lock();
        let now = self.now();
        let out = change(&mut inside.mind, now);
        inside.publish(self, now);
        out
    }

    /// A lease past its deadline under which permits are still out; else how long it is until the next deadline of any
    /// lease, whether or not a permit is out now.
    pub fn overstaying(&self) -> Result<Token, Option<Duration>> {
        let inside = self.lock();
        let now = self.now();
        let mut next = None;
        for token in inside.leases.keys() {
            let left = inside.mind.lease_remaining(*token, now);
            if !left.is_zero() {
                next = Some(next.map_or(left, |next: Duration| next.min(left)));
            } else if inside.mind.permits_out(*token) > 0 {
                return Ok(*token);
            }
        }
        Err(next)
    }

    /// What the store said to a fence's arming. It accepts the live token only, so a no is the end of the lease.
    pub fn arming_answered(self: &Arc<Self>, token: Token, answer: Result<Done, CallError>) {
        let Err(CallError::Refused(no)) = answer else { return };
        match (no.code, no.about.seen.and_then(|seen| Token::try_from(seen).ok())) {
            (Code::StaleToken, Some(seen)) => self.with_mind(|mind, _| mind.barrier_refused(token, seen)),
            (Code::StaleToken | Code::LeaseEnded | Code::NotHeld | Code::UnknownToken, _) => {
                // It has ended without a successor. How, is for the store to say: whatever it does not list has ended.
                if let Some(session) = self.id() {
                    self.ask_for_leases(session);
                }
            }
            // A limit, or a leader that was not there: the fence has the token all the same.
            _ => {}
        }
    }

    /// The next number of the session, for a command of it.
    pub fn numbered<T>(
        self: &Arc<Self>,
        command: impl FnOnce(Caller) -> Command,
        then: impl FnOnce(Result<Done, CallError>) -> T + Send + 'static,
    ) {
        let mut inside = self.lock();
        let (number, by) = inside.next_caller();
        drop(inside);
        let keeper = self.clone();
        let then = Box::new(move |answer| {
            keeper.lock().awaited.remove(&number);
            then(answer);
        });
        self.shared.store.submit(command(by), then);
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
    /// The next command number, awaited from now on.
    fn next_caller(&mut self) -> (u64, Caller) {
        let session = self.id.expect("a session without an id sends no commands");
        let number = self.next_number;
        self.next_number += 1;
        self.awaited.insert(number);
        let lowest_awaited = *self.awaited.first().expect("at least this one is awaited");
        (number, Caller { session, number: Some(number), lowest_awaited })
    }

    /// The acquires without a final answer, to be sent again under their numbers.
    fn repeated_acquires(&self) -> Vec<(u64, Acquire)> {
        self.acquires.iter().map(|(number, asked)| (*number, asked.acquire.clone())).collect()
    }

    /// Tells everybody what has changed about the leases, and forgets those that nobody has.
    fn publish(&mut self, keeper: &Keeper, now: Moment) {
        let mut forgotten = Vec::new();
        for (token, kept) in &mut self.leases {
            let Some(state) = self.mind.state(*token, now) else { continue };
            let status = LeaseStatus { state, notice: self.mind.notice(*token) };
            let remaining = self.mind.lease_remaining(*token, now);
            let must_stop = status.must_stop() || remaining <= keeper.options.stop_before;
            if must_stop {
                kept.stop.send_if_modified(|stopped| !std::mem::replace(stopped, true));
            } else if *kept.stop.borrow() {
                // Held again. Who was told to stop stays told; whoever asks from now on starts afresh.
                kept.stop = watch::Sender::new(false);
            }
            kept.status.send_if_modified(|told| std::mem::replace(told, status) != status);
            if let LeaseState::Ended(end) = state {
                kept.tell_returned(end);
                if kept.dropped {
                    forgotten.push(*token);
                }
            }
        }
        for token in forgotten {
            self.leases.remove(&token);
            self.mind.forget(token);
        }
    }

    /// When the next lease comes to its soft deadline, or to the end of its notice.
    fn next_stop(&self, keeper: &Keeper, now: Moment) -> Option<Moment> {
        let margin = keeper.options.stop_before;
        let tokens = self.leases.keys().map(|token| self.mind.lease_remaining(*token, now));
        let ahead =
            tokens.flat_map(|left| [left, left.saturating_sub(margin)]).filter(|left| !left.is_zero());
        ahead.min().map(|left| now.plus(left))
    }

    /// Whether it has taken too long to open the session.
    fn opening_failed(&mut self, keeper: &Keeper, now: Moment) -> bool {
        let since = *self.opening_since.get_or_insert(now);
        let late = now.longest_since(since) >= keeper.options.open_within;
        // Whatever was sent and not answered may have opened it. Nobody renews it, so it ends by itself.
        if late {
            let error = self
                .last_failure
                .take()
                .unwrap_or_else(|| CallError::Unanswered { tried: Vec::new(), effect: Effect::Unknown });
            self.mind.end_session(None, now);
            keeper.status.send_replace(SessionStatus::Failed(error));
        }
        late
    }

    /// After the session's end: everybody is told, and those who waited are returned to be told as well.
    fn ended(&mut self, keeper: &Keeper, now: Moment) -> Vec<Asked> {
        self.publish(keeper, now);
        keeper.status.send_replace(SessionStatus::Ended);
        std::mem::take(&mut self.acquires).into_values().collect()
    }
}

impl Kept {
    fn tell_returned(&mut self, end: LeaseEnd) {
        if let Some(returning) = &mut self.returning {
            returning.tell(Ok(end));
        }
    }
}

pub(crate) fn is_unknown_session(error: &CallError) -> bool {
    matches!(error, CallError::Refused(no) if no.code == Code::UnknownSession)
}

fn session_ended() -> CallError {
    CallError::Refused(ApiError::new(Code::UnknownSession, "the session has ended"))
}

/// The same for what was sent while it lived: it may have been granted, and have ended with the session.
fn session_ended_meanwhile() -> CallError {
    let error = ApiError::new(Code::UnknownSession, "the session has ended");
    CallError::Refused(ApiError { effect: tenure_wire::Effect::Unknown, ..error })
}
