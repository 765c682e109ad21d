//! One ordered index of everything that time alone will bring about.
//!
//! A session's place here may be earlier than its true deadline: renewals are far too many to move it
//! each time, so it is moved when it comes up. It is never later.

use alloc::collections::BTreeSet;

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
}

#[derive(Clone, Debug, Default)]
pub(super) struct Deadlines(BTreeSet<(ClusterTime, Due)>);

impl Deadlines {
    pub fn add(&mut self, at: ClusterTime, due: Due) {
        self.0.insert((at, due));
    }

    pub fn remove(&mut self, at: ClusterTime, due: Due) {
        self.0.remove(&(at, due));
    }

    /// The first that has come by `time`, taken out.
    pub fn pop_due(&mut self, time: ClusterTime) -> Option<(ClusterTime, Due)> {
        (self.earliest()? <= time).then(|| self.0.pop_first()).flatten()
    }

    pub fn earliest(&self) -> Option<ClusterTime> {
        self.0.first().map(|(at, _)| *at)
    }
}
