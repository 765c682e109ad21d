//! An ordered index of everything that time alone will bring about.
//!
//! A session's place here may be earlier than its true deadline: renewals are far too many to move it
//! each time, so it is moved when it comes up. It is never later.

use alloc::collections::BTreeSet;

use super::packed::Packed;
use super::state::{ResourceNumber, WaiterNumber};
use crate::numbers::{SessionNumber, Token};
use crate::time::ClusterTime;

/// What comes due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// A session ends, or a lapsed one reaches its hard limit.
    Session(SessionNumber),
    /// A lease under notice ends.
    Notice(ResourceNumber, Token),
    /// A wait's own time is up.
    Wait(WaiterNumber),
    /// A resource has rested long enough.
    Delay(ResourceNumber),
    /// A lease must be given notice, or it would be held too long.
    Hold(ResourceNumber, Token),
    /// A restored cluster may grant again.
    Grace,
    /// A staged restore was abandoned.
    Staging,
}

/// Sessions are many and all alike, so they have an index of their own that takes a quarter of the memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Deadlines {
    sessions: Packed<(ClusterTime, SessionNumber)>,
    others: BTreeSet<(ClusterTime, Due)>,
}

impl Deadlines {
    pub fn add(&mut self, at: ClusterTime, due: Due) {
        match due {
            Due::Session(session) => self.sessions.insert((at, session)),
            other => self.others.insert((at, other)),
        };
    }

    pub fn remove(&mut self, at: ClusterTime, due: Due) {
        match due {
            Due::Session(session) => self.sessions.remove(&(at, session)),
            other => self.others.remove(&(at, other)),
        };
    }

    /// The first that has come by `time`, taken out; of what comes at the same time, sessions first.
    pub fn pop_due(&mut self, time: ClusterTime) -> Option<(ClusterTime, Due)> {
        let session = self.sessions.first().map(|(at, _)| *at);
        let other = self.others.first().map(|(at, _)| *at);
        match (session, other) {
            (Some(at), other) if at <= time && other.is_none_or(|other| at <= other) => {
                self.sessions.pop_first().map(|(at, session)| (at, Due::Session(session)))
            }
            (_, Some(at)) if at <= time => self.others.pop_first(),
            _ => None,
        }
    }

    pub fn earliest(&self) -> Option<ClusterTime> {
        let session = self.sessions.first().map(|(at, _)| *at);
        let other = self.others.first().map(|(at, _)| *at);
        session.into_iter().chain(other).min()
    }
}
