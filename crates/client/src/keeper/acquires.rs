//! Acquires under way: each has a number until it is granted, refused or undone, and an answer that nobody waits for any more
//! gives back what it brought.

use std::sync::Arc;

use tenure_core::{Acquire, AcquireBy, Command, Done, Grant, LeaseState};
use tenure_wire::{ApiError, Code};
use tokio::sync::{oneshot, watch};

use super::{Inside, Keeper, Kept, is_unknown_session};
use crate::error::{CallError, in_doubt};
use crate::lease::{Lease, LeaseStatus};
use crate::session::Handle;

/// An acquire that is not answered for good.
pub(super) struct Asked {
    /// Keeps the session open while somebody waits.
    handle: Arc<Handle>,
    pub(super) acquire: Acquire,
    pub(super) reply: oneshot::Sender<Result<Vec<Lease>, CallError>>,
}

impl Keeper {
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

    pub(super) fn submit_acquires(self: &Arc<Self>, acquires: Vec<(u64, Acquire)>) {
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

    pub(super) fn granted(self: &Arc<Self>, number: u64, grants: Vec<Grant>) {
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
}

impl Inside {
    /// The acquires without a final answer, to be sent again under their numbers.
    pub(super) fn repeated_acquires(&self) -> Vec<(u64, Acquire)> {
        self.acquires.iter().map(|(number, asked)| (*number, asked.acquire.clone())).collect()
    }
}

fn session_ended() -> CallError {
    CallError::Refused(ApiError::new(Code::UnknownSession, "the session has ended"))
}

/// The same for what was sent while it lived: it may have been granted, and have ended with the session.
pub(super) fn session_ended_meanwhile() -> CallError {
    CallError::Refused(in_doubt(ApiError::new(Code::UnknownSession, "the session has ended")))
}
