//! How a lease, or a whole session, is released: first no new permit is given, then all permits are dropped,
//! then the command is sent; from then on there is no permit unless the store refuses the release.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Caller, Command, Done, EndReason, LeaseEnd, LeaseState, Moment, SessionNumber, Token};
use tokio::sync::oneshot;

use super::{Closing, Inside, Kept, SessionDriver, is_unknown_session};
use crate::error::CallError;

/// To whom a lease goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// To the store, and so to the next in the queue.
    Store,
    /// To another session.
    Session(SessionNumber),
}

/// A lease on its way back.
pub(super) struct Returning {
    to: To,
    sent: bool,
    reply: Option<oneshot::Sender<Result<LeaseEnd, CallError>>>,
}

impl Kept {
    /// Whether it goes back as soon as no permit is out.
    pub(super) fn is_to_be_returned(&self) -> bool {
        self.returning.as_ref().is_some_and(|returning| !returning.sent)
    }
}

impl Returning {
    pub(super) fn notify(&mut self, outcome: Result<LeaseEnd, CallError>) {
        if let Some(reply) = self.reply.take() {
            let _ = reply.send(outcome);
        }
    }
}

impl SessionDriver {
    /// Gives a lease back as soon as no permit is out. The receiver gets how it ended, or why it was not
    /// taken back.
    pub fn give_back(
        self: &Arc<Self>,
        token: Token,
        to: To,
    ) -> oneshot::Receiver<Result<LeaseEnd, CallError>> {
        let (reply, outcome) = oneshot::channel();
        let now = self.now();
        let mut inside = self.lock();
        if let Some(kept) = inside.leases.get_mut(&token) {
            kept.returning = Some(Returning { to, sent: false, reply: Some(reply) });
            inside.logic.drain(token);
        }
        inside.publish(self, now);
        let send = inside.next_return(token);
        drop(inside);
        self.send_return(token, send);
        outcome
    }

    /// Calls a give-back off that has not been sent, and opens the intake again. False if it is too late for
    /// that.
    pub fn keep_after_all(self: &Arc<Self>, token: Token) -> bool {
        let mut inside = self.lock();
        let Some(kept) = inside.leases.get_mut(&token) else { return false };
        if kept.returning.as_ref().is_some_and(|returning| returning.sent) {
            return false;
        }
        kept.returning = None;
        inside.logic.resume(token);
        drop(inside);
        self.send_held_back();
        true
    }

    /// How much longer the answer to a give-back is worth waiting for.
    pub fn give_back_wait(&self, token: Token, asked: Moment) -> Duration {
        self.lock().logic.give_back_wait(token, asked, self.now())
    }

    /// Nobody has the lease any more.
    pub fn lease_dropped(self: &Arc<Self>, token: Token) {
        let now = self.now();
        let mut inside = self.lock();
        let Some(kept) = inside.leases.get_mut(&token) else { return };
        kept.dropped = true;
        match &mut kept.returning {
            // On its way: to whomever it goes, and if that is refused, to the store.
            Some(returning) if returning.sent => {}
            _ => kept.returning = Some(Returning { to: To::Store, sent: false, reply: None }),
        }
        inside.logic.drain(token);
        inside.publish(self, now);
        let send = inside.next_return(token);
        drop(inside);
        self.send_return(token, send);
    }

    /// A permit has been dropped: what waited for the last one goes on.
    pub fn permit_returned(self: &Arc<Self>, token: Token) {
        let mut inside = self.lock();
        let send = inside.next_return(token);
        drop(inside);
        self.send_return(token, send);
        self.close_if_wanted();
    }

    fn send_return(self: &Arc<Self>, token: Token, send: Option<(u64, To, Command)>) {
        let Some((number, to, command)) = send else { return };
        let driver = self.clone();
        let callback = Box::new(move |answer| driver.returned(token, number, to, answer));
        self.shared.store.submit(command, callback);
    }

    fn returned(self: &Arc<Self>, token: Token, number: u64, to: To, answer: Result<Done, CallError>) {
        let now = self.now();
        let answer = match (answer, to) {
            (Ok(Done::Released { .. }), To::Store) | (Ok(Done::Transferred(_)), To::Session(_)) => Ok(()),
            (Ok(other), To::Store) => Err(CallError::unexpected("a release", &other)),
            (Ok(other), To::Session(_)) => Err(CallError::unexpected("a transfer", &other)),
            (Err(error), _) => Err(error),
        };
        let mut inside = self.lock();
        inside.awaited.remove(&number);
        inside.order.answered(number);
        match answer {
            Ok(()) => {
                let why = if to == To::Store { EndReason::Released } else { EndReason::Transferred };
                inside.logic.gave_back(token, why);
                inside.publish(self, now);
                drop(inside);
            }
            Err(error) if is_unknown_session(&error) => {
                drop(inside);
                self.session_gone(None);
            }
            Err(error) => {
                let untouched = error.effect() == tenure_wire::Effect::NotApplied;
                if untouched {
                    inside.logic.give_back_refused(token);
                    inside.logic.resume(token);
                }
                if let Some(kept) = inside.leases.get_mut(&token) {
                    if let Some(mut returning) = kept.returning.take() {
                        returning.notify(Err(error));
                    }
                    // Nobody has it: what was to be another's goes to the store.
                    if kept.dropped && untouched && to != To::Store {
                        kept.returning = Some(Returning { to: To::Store, sent: false, reply: None });
                    }
                }
                let send = inside.next_return(token);
                drop(inside);
                self.send_return(token, send);
            }
        }
        self.send_held_back();
    }

    /// Ends the session as soon as no permit is out, and with it all of its leases.
    pub fn close(self: &Arc<Self>, why: EndReason) {
        let now = self.now();
        let mut inside = self.lock();
        if inside.logic.session_ended() || matches!(inside.closing, Closing::Sent) {
            return;
        }
        inside.closing = Closing::Wanted(why);
        let tokens: Vec<Token> = inside.logic.tokens().collect();
        tokens.into_iter().for_each(|token| inside.logic.drain(token));
        inside.publish(self, now);
        drop(inside);
        self.close_if_wanted();
    }

    pub(super) fn close_if_wanted(self: &Arc<Self>) {
        let mut inside = self.lock();
        let Closing::Wanted(why) = inside.closing else { return };
        // A session that is still being opened is closed once it has a name.
        if inside.id.is_none() || inside.logic.give_back_all().is_err() {
            return;
        }
        inside.closing = Closing::Sent;
        let (_, by) = inside.next_caller();
        drop(inside);
        let driver = self.clone();
        let callback = Box::new(move |answer: Result<Done, CallError>| {
            // The session ends with any answer: closed, ended before, or given up on and so expiring by
            // itself.
            drop(answer);
            driver.session_gone(Some(EndReason::Released));
        });
        self.shared.store.submit(Command::Close { by, why }, callback);
    }
}

impl Inside {
    /// The command that gives the lease back, if it is wanted and no permit is out.
    fn next_return(&mut self, token: Token) -> Option<(u64, To, Command)> {
        let kept = self.leases.get(&token)?;
        let to = kept.returning.as_ref().filter(|returning| !returning.sent)?.to;
        let ended = matches!(kept.status.borrow().state, LeaseState::Ended(_));
        if ended || self.logic.session_ended() || self.logic.give_back(token).is_err() {
            return None;
        }
        let resource = kept.grant.resource.clone();
        let (number, by): (u64, Caller) = self.next_caller();
        self.order.sent(number, vec![resource.clone()]);
        if let Some(returning) = self.leases.get_mut(&token).and_then(|kept| kept.returning.as_mut()) {
            returning.sent = true;
        }
        let command = match to {
            To::Store => Command::Release { by, resource, token: Some(token), rest: None },
            To::Session(to) => Command::Transfer { by, resource, to },
        };
        Some((number, to, command))
    }
}
