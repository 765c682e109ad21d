//! How a holder's states and refusals are worded for people.

use core::fmt;

use crate::event::EndReason;

use super::{Jeopardy, LeaseEnd, LeaseState, NoPermit};

impl fmt::Display for Jeopardy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Jeopardy::NotRenewed => f.write_str("renewals are failing"),
            Jeopardy::PastDeadline => {
                f.write_str("the local deadline has passed and the store has not renewed the lease")
            }
            Jeopardy::Paused { length } => {
                write!(
                    f,
                    "the process stood still for {length:?} and the store has not renewed the lease since"
                )
            }
            Jeopardy::ClocksDisagree { by } => write!(f, "this machine's clocks disagree by {by:?}"),
            Jeopardy::NoProgress => f.write_str("the worker reports no progress, so renewals have stopped"),
        }
    }
}

impl fmt::Display for LeaseEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LeaseEnd::Released => f.write_str("released"),
            LeaseEnd::Transferred => f.write_str("transferred"),
            LeaseEnd::Expired { why: None } => f.write_str("expired; work had stopped in time"),
            LeaseEnd::Expired { why: Some(why) } => write!(f, "{why}; work had stopped in time"),
            LeaseEnd::Lost { why, suspect } => {
                f.write_str("lost")?;
                if let Some(why) = why {
                    write!(f, " ({why})")?;
                }
                if matches!(why, None | Some(EndReason::Expired)) {
                    // By our clock it had time left, so a store that counted as we do would have kept it.
                    f.write_str(" before its deadline by this machine's clock: the store's clock ran fast or the session was ended early")?;
                }
                write!(f, "; work of {:?} since the last acknowledged renewal is in doubt", suspect.length)
            }
            LeaseEnd::Fenced { seen } => write!(f, "fenced out; a fence has seen token {seen}"),
        }
    }
}

impl fmt::Display for LeaseState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LeaseState::Held => f.write_str("held"),
            LeaseState::Jeopardy(jeopardy) => write!(f, "in jeopardy: {jeopardy}"),
            LeaseState::Ended(end) => write!(f, "ended: {end}"),
        }
    }
}

impl fmt::Display for NoPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoPermit::Unknown => f.write_str("no permit: no lease with this token is known here"),
            NoPermit::Ended(end) => write!(f, "no permit: the lease has ended: {end}"),
            NoPermit::GivingBack => f.write_str("no permit: the lease is being given back"),
            NoPermit::Draining => f.write_str("no permit: the lease is being drained"),
            NoPermit::ReadOnly => f.write_str("no permit to write: the lease is shared; take a read permit"),
            NoPermit::NotArmed { missing } => {
                write!(
                    f,
                    "no permit yet: {missing} of the resource's fences have not answered the barrier; take them over first"
                )
            }
            NoPermit::Jeopardy(jeopardy) => write!(f, "no permit: {jeopardy}"),
            NoPermit::TooShort { remaining, max_op } => {
                write!(
                    f,
                    "no permit: {remaining:?} are left, the operation may take {max_op:?}; wait for the next renewal"
                )
            }
        }
    }
}

impl core::error::Error for NoPermit {}
