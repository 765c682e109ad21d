//! Opens and renewals of a session, for the renewer: whether there is something to send, and what the answer
//! means. Every answer goes through the logic before anybody is notified.

use std::sync::Arc;

use tenure_core::{Command, Moment, Nonce, RenewalAnswer, SessionId, Taken, Token};
use tenure_wire::{Code, Effect};

use super::{Closing, Inside, SessionDriver, SessionStatus};
use crate::error::{CallError, passes};
use crate::retry::roll;
use crate::store::{OpenSession, Opened, Route};
use crate::transport::random_nonce;

/// What the renewer must do for a session now.
pub(crate) struct NextTransmission {
    pub send: Option<Transmit>,
    /// When to look again; `None` once there is nothing left to do.
    pub wake: Option<Moment>,
}

/// One transmission to make.
pub(crate) enum Transmit {
    Open(OpenSession, Route),
    Renew(SessionId, u64, Route),
}

impl SessionDriver {
    /// Called by the renewer: is there something to send, and when should it call again?
    pub fn next_transmission(self: &Arc<Self>) -> NextTransmission {
        let now = self.now();
        let mut inside = self.lock();
        if inside.logic.session_ended() {
            return NextTransmission { send: None, wake: None };
        }
        if inside.id.is_none()
            && let Some(failure) = inside.opening_failed(self, now)
        {
            drop(inside);
            let error = failure.unwrap_or_else(|| self.unanswered(Effect::Unknown));
            self.status.send_replace(SessionStatus::Failed(error.naming(self.shared.store.tried())));
            return NextTransmission { send: None, wake: None };
        }
        let paused = inside.logic.woke(now);
        if matches!(inside.closing, Closing::Sent) {
            // It is not kept alive any more, so if the close is lost it ends by itself; past the deadline
            // nobody here need wait for that.
            if inside.logic.give_up(now) {
                let gone = inside.ended(self, now);
                drop(inside);
                self.farewell(gone);
                return NextTransmission { send: None, wake: None };
            }
            let left = inside.logic.remaining(now);
            return NextTransmission {
                send: None,
                wake: Some(now.plus(left.min(self.options.timing.detect()))),
            };
        }
        let send = inside.logic.send_due(now).then(|| {
            let number = inside.logic.transmit(now, roll());
            let route = if inside.unanswered > 0 { Route::Another } else { Route::Usual };
            inside.unanswered += 1;
            match inside.id {
                Some(id) => Transmit::Renew(id, number, route),
                None => Transmit::Open(
                    OpenSession {
                        holder: self.options.holder.clone(),
                        ttl: self.options.timing.ttl(),
                        nonce: inside.nonce,
                        number,
                        with_process: self.options.with_process,
                    },
                    route,
                ),
            }
        });
        inside.publish(self, now);
        let mut wake = inside.logic.next_wake(now);
        if let Some(stop) = inside.next_stop(self, now)
            && wake.is_none_or(|wake| stop.longest_since(now) < wake.longest_since(now))
        {
            wake = wake.map(|_| stop);
        }
        let report = paused.zip(inside.id).filter(|_| !inside.leases.is_empty());
        drop(inside);
        // A lease that ended by itself holds back nobody either.
        self.send_held_back();
        if let Some((length, session)) = report {
            // For the history that people read. Nothing depends on it.
            self.shared.store.submit(Command::Paused { session, length }, Box::new(drop));
        }
        NextTransmission { send, wake }
    }

    /// What came of one transmission of the open.
    pub fn opened(self: &Arc<Self>, number: u64, answer: Result<Opened, CallError>) {
        let now = self.now();
        let mut inside = self.lock();
        let listen = match answer {
            Ok(Opened { session, ttl, number }) => {
                inside.unanswered = 0;
                inside.logic.opened(number, ttl, now);
                let first = inside.id.is_none().then_some(session);
                inside.id.get_or_insert(session);
                first
            }
            Err(error) => {
                inside.logic.failed(number, now);
                let used = matches!(&error, CallError::Refused(no) if no.code == Code::NonceUsed);
                if used && inside.id.is_none() {
                    // An open whose answer was lost made a session, and its TTL is over. Nothing was done
                    // under it.
                    inside.nonce = Nonce::new(random_nonce());
                }
                let final_no = !used && matches!(&error, CallError::Refused(no) if !passes(no));
                if inside.id.is_none() && final_no {
                    inside.logic.end_session(None, now);
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
        let driver = Arc::downgrade(self);
        let listener = Arc::new(move |event| {
            if let Some(driver) = driver.upgrade() {
                driver.event_received(event);
            }
        });
        self.shared.store.detect_within(session.number, self.options.timing.detect());
        self.shared.store.listen(session, listener);
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
            inside.logic.failed(number, now);
            inside.publish(self, now);
            return;
        };
        inside.unanswered = 0;
        let (revision, has_events) = match &answer {
            RenewalAnswer::Renewed { last_lease_revision, events, .. } => {
                (*last_lease_revision, events.is_some())
            }
            RenewalAnswer::UnknownSession => (inside.known, false),
        };
        let taken = inside.logic.renewed(&answer, now);
        // Notices and ends are in the answer itself. What can be missing is the turn of an acquire that
        // is queued: its number is simply asked again.
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
            Taken::All if has_events => {
                let seen = self.lock().logic.seen();
                self.shared.store.submit(Command::Seen { session, revision: seen }, Box::new(drop));
            }
            Taken::AskForLeases => self.ask_for_leases(session),
            Taken::All | Taken::SessionEnded => {}
        }
    }

    pub(super) fn ask_for_leases(self: &Arc<Self>, session: SessionId) {
        let driver = self.clone();
        let asked = self.now();
        let callback = Box::new(move |held: Result<Vec<Token>, CallError>| {
            // If this fails, the next renewal will say again that its list is incomplete.
            let Ok(held) = held else { return };
            let now = driver.now();
            let mut inside = driver.lock();
            inside.logic.listed(&held, asked, now);
            inside.publish(&driver, now);
            let revision = inside.logic.seen();
            drop(inside);
            driver.shared.store.submit(Command::Seen { session, revision }, Box::new(drop));
        });
        self.shared.store.held(session, callback);
    }
}

impl Inside {
    /// When the next lease comes to its soft deadline, or to the end of its notice.
    fn next_stop(&self, driver: &SessionDriver, now: Moment) -> Option<Moment> {
        let margin = driver.options.stop_before;
        let tokens = self.leases.keys().map(|token| self.logic.lease_remaining(*token, now));
        let ahead =
            tokens.flat_map(|left| [left, left.saturating_sub(margin)]).filter(|left| !left.is_zero());
        ahead.min().map(|left| now.plus(left))
    }

    /// Whether it has taken too long to open the session, and what failed last.
    fn opening_failed(&mut self, driver: &SessionDriver, now: Moment) -> Option<Option<CallError>> {
        let since = *self.opening_since.get_or_insert(now);
        if now.longest_since(since) < driver.options.open_within {
            return None;
        }
        // Whatever was sent and not answered may have opened it. Nobody renews it, so it ends by itself.
        self.logic.end_session(None, now);
        Some(self.last_failure.take())
    }
}
