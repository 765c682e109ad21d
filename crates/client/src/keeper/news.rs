//! What the store says of its own accord, and the end of a session. Nothing pushed is relied on: whatever is missed here is
//! found by the next renewal.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tenure_core::{EndReason, Moment};

use super::acquires::{Asked, session_ended, session_ended_meanwhile};
use super::{Inside, Keeper, SessionStatus};
use crate::error::CallError;
use crate::heart::ToHeart;
use crate::store::News;

impl Keeper {
    pub(super) fn heard(self: &Arc<Self>, news: News) {
        let now = self.now();
        match news {
            News::Granted { number, grants } if self.is_asked_for(number, &grants) => {
                self.granted(number, grants);
            }
            // Its number is asked, and answers.
            News::Granted { number, .. } | News::Unqueued { number } => {
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
                drop(inside);
                self.send_held_back();
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
    pub(super) fn farewell(&self, gone: Vec<(Asked, CallError)>) {
        if let Some(id) = self.id() {
            self.shared.store.forget(id.number);
        }
        for (asked, error) in gone {
            asked.tell(Err(error));
        }
        self.nudge();
    }

    pub fn nudge(&self) {
        // A heart that is gone has no session left to keep.
        let _ = self.shared.heart.send(ToHeart::Nudge(self.key));
    }
}

impl Inside {
    /// After the session's end: everybody is told, and those who waited are returned to be told as well.
    pub(super) fn ended(&mut self, keeper: &Keeper, now: Moment) -> Vec<(Asked, CallError)> {
        self.publish(keeper, now);
        // Before anybody hears of the end; and once, however often the end is heard of.
        let first = !matches!(*keeper.status.borrow(), SessionStatus::Ended);
        if first && self.ended_early().is_some() {
            keeper.shared.early_ends.fetch_add(1, Ordering::Relaxed);
        }
        keeper.status.send_replace(SessionStatus::Ended);
        let gone = std::mem::take(&mut self.acquires).into_iter();
        gone.map(|(number, asked)| {
            let never_sent = self.order.drop_held_back(number);
            (asked, if never_sent { session_ended() } else { session_ended_meanwhile() })
        })
        .collect()
    }
}
