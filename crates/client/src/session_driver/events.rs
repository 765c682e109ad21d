//! Events that the store pushes, and the end of a session. Nothing relies on a push: the next renewal reports
//! what was missed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tenure_core::{EndReason, Moment};

use super::acquires::{Asked, session_ended, session_ended_meanwhile};
use super::{Inside, SessionDriver, SessionStatus};
use crate::error::CallError;
use crate::renewer::ToRenewer;
use crate::store::SessionEvent;

impl SessionDriver {
    pub(super) fn event_received(self: &Arc<Self>, event: SessionEvent) {
        let now = self.now();
        match event {
            SessionEvent::Granted { number, grants } if self.is_asked_for(number, &grants) => {
                self.granted(number, grants);
            }
            // Its number is asked, and answers.
            SessionEvent::Granted { number, .. } | SessionEvent::Unqueued { number } => {
                let inside = self.lock();
                let asked = inside.acquires.get(&number).map(|asked| (number, asked.acquire.clone()));
                drop(inside);
                self.submit_acquires(asked.into_iter().collect());
            }
            SessionEvent::Noticed { token, why } => {
                let mut inside = self.lock();
                inside.logic.noticed(token, why);
                inside.publish(self, now);
                drop(inside);
                self.nudge();
            }
            SessionEvent::Ended { token, why } => {
                let mut inside = self.lock();
                inside.logic.ended(token, why, now);
                inside.publish(self, now);
                drop(inside);
                self.send_held_back();
            }
            SessionEvent::Closed { why } => self.session_gone(why),
            SessionEvent::Missed => {
                let repeat = self.lock().repeated_acquires();
                self.submit_acquires(repeat);
            }
        }
    }

    /// The session has ended, by the store's word.
    pub fn session_gone(self: &Arc<Self>, why: Option<EndReason>) {
        let now = self.now();
        let mut inside = self.lock();
        inside.logic.end_session(why, now);
        let gone = inside.ended(self, now);
        drop(inside);
        self.farewell(gone);
    }

    /// After a session's end: nobody need speak of it any more, and those who waited in it are told.
    pub(super) fn farewell(&self, gone: Vec<(Asked, CallError)>) {
        if let Some(id) = self.id() {
            self.shared.store.forget(id.number);
        }
        for (asked, error) in gone {
            asked.notify(Err(error));
        }
        self.nudge();
    }

    pub fn nudge(&self) {
        // A renewer that is gone has no session left to keep.
        let _ = self.shared.renewer.send(ToRenewer::Nudge(self.key));
    }
}

impl Inside {
    /// After the session's end: everybody is notified, and those who waited are returned to be notified as
    /// well.
    pub(super) fn ended(&mut self, driver: &SessionDriver, now: Moment) -> Vec<(Asked, CallError)> {
        self.publish(driver, now);
        // Before anybody is notified of the end; and once, however often the end arrives.
        let first = !matches!(*driver.status.borrow(), SessionStatus::Ended);
        if first && self.ended_early().is_some() {
            driver.shared.early_ends.fetch_add(1, Ordering::Relaxed);
        }
        driver.status.send_replace(SessionStatus::Ended);
        let gone = std::mem::take(&mut self.acquires).into_iter();
        gone.map(|(number, asked)| {
            let never_sent = self.order.drop_held_back(number);
            (asked, if never_sent { session_ended() } else { session_ended_meanwhile() })
        })
        .collect()
    }
}
