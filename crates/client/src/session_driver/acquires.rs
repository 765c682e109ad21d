//! Acquires in flight: each has a number until it is granted, refused or undone. If nobody waits for the
//! answer any more, what it granted is released.

use std::sync::Arc;

use tenure_core::{Acquire, AcquireBy, Command, Done, Grant, LeaseState, Wait};
use tenure_wire::{ApiError, Code, Effect};
use tokio::sync::{oneshot, watch};

use super::{Inside, Kept, SessionDriver, is_unknown_session};
use crate::error::{CallError, in_doubt};
use crate::lease::{Lease, LeaseStatus};
use crate::session::Handle;

/// An acquire that is not answered for good.
pub(super) struct Asked {
    /// Keeps the session open while somebody waits.
    handle: Arc<Handle>,
    pub(super) acquire: Acquire,
    /// Gone once it was notified.
    reply: Option<oneshot::Sender<Result<Vec<Lease>, CallError>>>,
}

impl Asked {
    /// Notifies whoever waits for it. If nobody does any more, the leases come back and are released by being
    /// dropped.
    pub(super) fn notify(self, answer: Result<Vec<Lease>, CallError>) {
        if let Some(reply) = self.reply {
            let _ = reply.send(answer);
        }
    }
}

impl SessionDriver {
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
        if inside.logic.session_ended() {
            inside.awaited.remove(&number);
            drop(inside);
            let _ = reply.send(Err(session_ended()));
            return (number, answer);
        }
        let held_back = inside.would_overtake(&acquire);
        if held_back {
            inside.order.hold_back(number);
        }
        inside.acquires.insert(number, Asked { handle, acquire: acquire.clone(), reply: Some(reply) });
        drop(inside);
        if !held_back {
            self.submit_acquires(vec![(number, acquire)]);
        }
        (number, answer)
    }

    /// Sends the acquires that nothing holds back any more.
    pub(super) fn send_held_back(self: &Arc<Self>) {
        let mut inside = self.lock();
        let free = inside.no_longer_held_back();
        drop(inside);
        self.submit_acquires(free);
    }

    /// What is said of an acquire whose answer was waited for in vain.
    pub fn acquire_unanswered(&self, number: u64) -> CallError {
        let never_sent = self.lock().order.is_held_back(number);
        self.unanswered(if never_sent { Effect::NotApplied } else { Effect::Unknown })
    }

    pub(super) fn submit_acquires(self: &Arc<Self>, acquires: Vec<(u64, Acquire)>) {
        for (number, acquire) in acquires {
            let driver = self.clone();
            let callback = Box::new(move |answer: Result<Done, CallError>| match answer {
                Ok(Done::Granted { grants, .. }) if driver.is_asked_for(number, &grants) => {
                    driver.granted(number, grants);
                }
                Ok(Done::Granted { grants, .. }) => {
                    let granted: Vec<String> =
                        grants.iter().map(|grant| grant.resource.to_string()).collect();
                    let what = format!(
                        "an acquire was answered with grants of [{}], which were not asked for",
                        granted.join(", ")
                    );
                    driver.acquire_unreadable(number, CallError::unreadable(what));
                }
                Ok(Done::Queued { .. }) => {}
                Ok(other) => {
                    driver.acquire_unreadable(number, CallError::unexpected("an acquire", &other));
                }
                Err(error) => driver.acquire_failed(number, error),
            });
            self.shared.store.submit(Command::Acquire(Box::new(acquire)), callback);
        }
    }

    /// Whether these are grants of just what the acquire with this number names, as far as somebody still
    /// waits for it.
    pub(super) fn is_asked_for(&self, number: u64, grants: &[Grant]) -> bool {
        let inside = self.lock();
        inside.acquires.get(&number).is_none_or(|asked| {
            let wanted = &asked.acquire.resources;
            wanted.len() == grants.len()
                && wanted.iter().all(|name| grants.iter().any(|grant| grant.resource == *name))
        })
    }

    /// The answer to an acquire makes no sense. It may have been granted all the same: so it is undone.
    fn acquire_unreadable(self: &Arc<Self>, number: u64, error: CallError) {
        let mut inside = self.lock();
        let reply = inside.acquires.get_mut(&number).and_then(|asked| asked.reply.take());
        drop(inside);
        self.cancel(number);
        if let Some(reply) = reply {
            let _ = reply.send(Err(error));
        }
    }

    pub(super) fn granted(self: &Arc<Self>, number: u64, grants: Vec<Grant>) {
        let now = self.now();
        let mut inside = self.lock();
        // Nobody waits for it any more: it was answered before, or its cancel is on the way and gives it
        // back.
        let Some(asked) = inside.acquires.remove(&number) else { return };
        inside.awaited.remove(&number);
        let mut leases = Vec::with_capacity(grants.len());
        for grant in grants {
            inside.logic.granted(&grant, &asked.acquire.fences, now);
            let token = grant.token;
            let state = inside.logic.state(token, now).unwrap_or(LeaseState::Held);
            let status = watch::Sender::new(LeaseStatus { state, notice: inside.logic.notice(token) });
            leases.push(Lease::new(asked.handle.clone(), &grant, status.subscribe()));
            let kept =
                Kept { grant, status, stop: watch::Sender::new(false), returning: None, dropped: false };
            // The same lease may be granted again to a re-entrant acquire: what is known of it stays.
            inside.leases.entry(token).or_insert(kept);
        }
        inside.publish(self, now);
        drop(inside);
        self.nudge();
        asked.notify(Ok(leases));
    }

    fn acquire_failed(self: &Arc<Self>, number: u64, error: CallError) {
        let ended = is_unknown_session(&error);
        let mut inside = self.lock();
        let asked = inside.acquires.remove(&number);
        inside.awaited.remove(&number);
        drop(inside);
        if let Some(asked) = asked {
            asked.notify(Err(error));
        }
        if ended {
            self.session_gone(None);
        }
    }

    /// Nobody waits for this acquire any more: it is undone, however far it got.
    pub fn cancel(self: &Arc<Self>, number: u64) {
        let mut inside = self.lock();
        let Some(asked) = inside.acquires.remove(&number) else { return };
        if inside.order.drop_held_back(number) {
            // It was never sent.
            inside.awaited.remove(&number);
            drop(inside);
            return drop(asked);
        }
        // The number stays awaited until its cancel is answered, or the store would forget it before.
        let (cancel, by) = inside.next_caller();
        inside.order.sent(cancel, asked.acquire.resources.clone());
        drop(inside);
        let driver = self.clone();
        let callback = Box::new(move |_: Result<Done, CallError>| {
            let mut inside = driver.lock();
            inside.awaited.remove(&number);
            inside.awaited.remove(&cancel);
            inside.order.answered(cancel);
            drop(inside);
            driver.send_held_back();
            // Only now: closing the session, if this was its last user, comes after the cancel.
            drop(asked);
        });
        self.shared.store.submit(Command::Cancel { by, acquire: number }, callback);
    }
}

impl Inside {
    /// The acquires that were sent and have no final answer, to be sent again under their numbers.
    pub(super) fn repeated_acquires(&self) -> Vec<(u64, Acquire)> {
        let sent = self.acquires.iter().filter(|(number, _)| !self.order.is_held_back(**number));
        sent.map(|(number, asked)| (*number, asked.acquire.clone())).collect()
    }

    /// Whether an acquire would overtake what the session has given up before: what is sent and unanswered,
    /// and, if it is willing to wait, a lease that goes back as soon as its last permit is dropped.
    fn would_overtake(&self, acquire: &Acquire) -> bool {
        let waits_for_permits = |kept: &Kept| {
            acquire.resources.contains(&kept.grant.resource)
                && kept.is_to_be_returned()
                && !matches!(kept.status.borrow().state, LeaseState::Ended(_))
        };
        self.order.would_overtake(&acquire.resources)
            || (acquire.wait != Wait::No && self.leases.values().any(waits_for_permits))
    }

    /// Takes those out that may be sent now.
    fn no_longer_held_back(&mut self) -> Vec<(u64, Acquire)> {
        let free = self.order.held_back().filter_map(|number| {
            let asked = self.acquires.get(&number)?;
            (!self.would_overtake(&asked.acquire)).then(|| (number, asked.acquire.clone()))
        });
        let free: Vec<(u64, Acquire)> = free.collect();
        for (number, _) in &free {
            self.order.drop_held_back(*number);
        }
        free
    }
}

pub(super) fn session_ended() -> CallError {
    CallError::Refused(ApiError::new(Code::UnknownSession, "the session has ended"))
}

/// The same for what was sent while it lived: it may have been granted, and have ended with the session.
pub(super) fn session_ended_meanwhile() -> CallError {
    CallError::Refused(in_doubt(ApiError::new(Code::UnknownSession, "the session has ended")))
}
