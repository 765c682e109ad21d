//! Makes states that differ only in *when* they happen one state.
//!
//! No rule of the protocol compares a time with anything but another time of the same kind: cluster times
//! with cluster times, one clock's readings with that clock's. So each kind is moved back to [`BASE`] after
//! every step, and what has passed for good, or lies beyond the end of everything, is rounded to one value.
//! The model then has no horizon: it is explored until nothing new comes, however long that takes in the time
//! of the model.

use crate::logic::{Beats, Entry, Holder, ModelProposer, Request, TTL, TTL_LONG, usable};
use crate::world::State;

/// Where each kind of time stands after every step.
pub const BASE: Beats = 64;
/// Beyond this a deadline is one that never comes: of the session with a TTL of an hour.
const FAR: Beats = 1_000;
/// A reading of a leader's clock that is older than this might as well be exactly this old: the cap is
/// nearer.
const READING_AGE_MAX: Beats = 12;

/// How far each kind of time has been moved back since the beginning; for comparing with logic that uses
/// absolute time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shift {
    /// Real time, which is the leaders' clocks.
    pub now: i32,
    /// Cluster time.
    pub cluster: i32,
    /// The holders' clocks.
    pub clocks: [i32; 2],
    /// The numbers of holder 0's transmissions.
    pub numbers: u8,
}

/// Moves a time by which everything of its kind is moved, rounded down to a floor.
fn back(time: &mut Beats, by: i32, floor: Beats) {
    let moved = i32::from(*time) - by;
    *time = Beats::try_from(moved.max(i32::from(floor))).expect("times stay near the base");
}

/// A deadline, rounded up to "never".
fn back_deadline(time: &mut Beats, by: i32) {
    back(time, by, 0);
    if *time > BASE + FAR {
        *time = BASE + TTL_LONG;
    }
}

/// Moves everything back.
pub(crate) fn rebase(state: &mut State) {
    let now = i32::from(state.now) - i32::from(BASE);
    let cluster = i32::from(state.machine.time) - i32::from(BASE);
    state.shift.now += now;
    state.shift.cluster += cluster;
    state.now = BASE;
    state.machine.time = BASE;
    let proposers = state.proposers.iter_mut().flatten();
    proposers.chain(state.kept.iter_mut().flatten().map(|kept| &mut **kept)).for_each(|proposer| {
        rebase_proposer(proposer, now, cluster);
    });
    for session in state.machine.sessions.iter_mut().flatten() {
        back_deadline(&mut session.deadline, cluster);
    }
    for ends_at in state.machine.holds.iter_mut().filter_map(|hold| hold.ends_at.as_mut()) {
        back_deadline(ends_at, cluster);
    }
    for (who, holder) in state.holders.iter_mut().enumerate() {
        state.shift.clocks[who] += i32::from(holder.clock) - i32::from(BASE);
        rebase_holder(holder);
    }
}

fn rebase_proposer(proposer: &mut ModelProposer, now: i32, cluster: i32) {
    back(&mut proposer.last, now, BASE - READING_AGE_MAX);
    proposer.opened.iter_mut().for_each(|opened| back(opened, now, BASE - READING_AGE_MAX));
    for time in [&mut proposer.count, &mut proposer.last_stamp, &mut proposer.probed] {
        back(time, cluster, 0);
    }
    for tagged in &mut proposer.inbox {
        tagged.received.iter_mut().for_each(|received| back(received, cluster, 0));
        if tagged.received.is_some() {
            back(&mut tagged.truly, cluster, 0);
        }
    }
    for Entry { at, behind, .. } in &mut proposer.in_flight {
        back(at, cluster, 0);
        behind.iter_mut().for_each(|(_, _, received)| back(received, cluster, 0));
    }
}

fn rebase_holder(holder: &mut Holder) {
    let by = i32::from(holder.clock) - i32::from(BASE);
    holder.clock = BASE;
    // A send whose whole TTL has passed is worth nothing, however old it is.
    let oldest = BASE - TTL.min(holder.ttl);
    holder.sent.iter_mut().for_each(|sent| back(&mut sent.1, by, oldest));
    holder.asked.iter_mut().for_each(|asked| back(asked, by, oldest));
    if holder.ttl <= TTL {
        back(&mut holder.answered_from, by, BASE - usable(holder.ttl));
    } else {
        holder.answered_from = 0;
    }
    let deadline = |time: &mut Beats| {
        back_deadline(time, by);
        *time = (*time).max(BASE);
    };
    holder.deadline.iter_mut().for_each(deadline);
    holder.early.iter_mut().filter_map(|early| early.1.as_mut()).for_each(deadline);
    let lease = holder.lease.iter_mut();
    lease.filter_map(|lease| lease.notice.as_mut()?.as_mut()).for_each(deadline);
}

/// The highest number of a transmission by holder 0 that is applied or could be. What else was sent is lost,
/// and its number may be used again; for a stage without an end.
pub(crate) fn highest_number(state: &State) -> u8 {
    let proposers = state.proposers.iter().flatten();
    let waiting = proposers.flat_map(|proposer| {
        let under_way = proposer.in_flight.iter().flat_map(|entry| entry.batch.iter());
        proposer.inbox.iter().map(|tagged| &tagged.request).chain(under_way)
    });
    let numbers = waiting.filter_map(|request| match request {
        Request::Renew { number, .. } => Some(*number),
        _ => None,
    });
    let applied = state.machine.sessions[0].as_ref().map_or(0, |session| session.number);
    numbers.max().unwrap_or(0).max(applied)
}

/// Counts holder 0's transmissions from the highest that was applied; for a stage without an end.
pub(crate) fn renumber(state: &mut State) {
    let Some(by) = state.machine.sessions[0].as_ref().map(|session| session.number - 1) else { return };
    let back = |request: &mut Request| {
        if let Request::Renew { number, .. } | Request::Open { number, .. } = request {
            *number = number.saturating_sub(by);
        }
    };
    state.machine.sessions[0].iter_mut().for_each(|session| session.number -= by);
    state.holders[0].next_number -= by;
    state.holders[0].sent.iter_mut().for_each(|sent| sent.0 = sent.0.saturating_sub(by));
    state.requests.iter_mut().for_each(back);
    for reply in &mut state.replies {
        if let crate::logic::Reply::Renewed { number, .. } = reply {
            *number = number.saturating_sub(by);
        }
    }
    for proposer in state.proposers.iter_mut().flatten() {
        proposer.inbox.iter_mut().for_each(|tagged| back(&mut tagged.request));
        for entry in &mut proposer.in_flight {
            entry.batch.iter_mut().for_each(back);
            entry.behind.iter_mut().for_each(|behind| behind.1 = behind.1.saturating_sub(by));
        }
    }
    state.shift.numbers += by;
}
