//! The holder: what a process may believe about one session and its leases.
//!
//! It decides whether a permit may be given now, when the next renewal is sent, and how a lease is to be
//! called: held, in jeopardy, or ended and how. It never reads a clock, sends anything, or learns of time
//! in any way but its arguments; a driver does that. That these rules keep two permits from overlapping is
//! proved at the head of `proposer.rs`; what is needed of this side is:
//!
//! - *The deadline counts from before the send.* Every transmission of an open or a renewal has a number
//!   and its own moment of sending; the answer names the number, and the deadline becomes that moment + ttl
//!   (1 - rho) - sigma. The server stamped the transmission later than that. An answer whose number is not
//!   known any more moves nothing.
//! - *Only these answers move it, and only forward.* A grant, above all a waited one, moves nothing: the
//!   session may be nearly at its end when its turn comes.
//! - *Notices and ends first.* What the answer says about single leases is taken in before the deadline
//!   moves, because the longer deadline is not theirs. Where the list is incomplete, the deadline waits for
//!   the full one. What speaks of a lease whose own grant is still on its way is kept until that arrives.
//! - *From the sending of a release, transfer or confirmation on there is no permit*, unless the store said
//!   no: it may have been applied, whatever became of the answer.
//! - *The longer of the two clocks counts.* If they disagree by more than rho, one of them is wrong: jeopardy.
//! - *A pause is not slept over.* A renewer that runs late by more than it should has been stopped, and so
//!   has the work: nothing is permitted until a renewal sent afterwards is answered.

mod leases;
#[cfg(test)]
mod tests;
mod words;

use alloc::collections::{BTreeMap, VecDeque};
use core::time::Duration;

use crate::answer::RenewalAnswer;
use crate::event::EndReason;
use crate::numbers::{Revision, Token};
use crate::time::Moment;
use crate::timing::{Deadline, Timing};

use leases::{EarlyNotices, Forgotten, Lease};

/// Transmissions that are remembered while unanswered. At the fastest they follow each other every R/4 once
/// the backoff is spent, so this is several TTLs; the answer to an older one would move nothing anyway.
const TRANSMISSIONS_MAX: usize = 64;

/// How a holder wants to be held to its lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HolderOptions {
    /// No permit from the first failed renewal on, until one succeeds again.
    pub strict: bool,
    /// No renewal once no progress was reported for this long: a heartbeat must not keep a dead-locked worker as leader.
    pub progress_within: Option<Duration>,
    /// A renewer that runs this late has been paused; R/4 if not set.
    pub pause_noticed: Option<Duration>,
}

/// Why a lease that may still be ours is in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jeopardy {
    /// Renewals fail or go unanswered. Permits are given until the deadline, except in strict mode.
    NotRenewed,
    /// The local deadline has passed. No permit until the store names the lease as ours.
    PastDeadline,
    /// The process stood still. No permit until a renewal sent after that is answered.
    Paused {
        /// For how long, as far as it showed.
        length: Duration,
    },
    /// The two clocks disagree by more than rho. Permits are given until the deadline, except in strict mode.
    ClocksDisagree {
        /// By how much.
        by: Duration,
    },
    /// The worker reported no progress for too long, so renewals have stopped. Permits are given until the deadline.
    NoProgress,
}

/// How a lease ended, as its holder has to see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseEnd {
    /// We gave it back.
    Released,
    /// We handed it to another session.
    Transferred,
    /// It ended, and we had stopped in time: nothing of ours is in doubt.
    Expired {
        /// What the store called it, if it said.
        why: Option<EndReason>,
    },
    /// The store ended it while we could have been acting.
    Lost {
        /// What the store called it, if it said.
        why: Option<EndReason>,
        /// What is in doubt.
        suspect: Suspect,
    },
    /// A fence had seen a newer token when ours was to be installed.
    Fenced {
        /// The newer token.
        seen: Token,
    },
}

/// The stretch of time whose work is in doubt after a loss: from the last acknowledged renewal on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// When the last acknowledged open or renewal was sent.
    pub from: Moment,
    /// How long after that we could have been acting.
    pub length: Duration,
}

/// What a lease is to its holder at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// Ours.
    Held,
    /// Perhaps still ours.
    Jeopardy(Jeopardy),
    /// Not ours any more, and never again under this token.
    Ended(LeaseEnd),
}

/// Why no permit is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPermit {
    /// No lease with this token is known here.
    Unknown,
    /// The lease has ended.
    Ended(LeaseEnd),
    /// A release, transfer or confirmation has been sent.
    GivingBack,
    /// The intake is closed: the lease is being drained.
    Draining,
    /// It is a sharer's lease, which cannot write.
    ReadOnly,
    /// Some of its fences have not answered the barrier.
    NotArmed {
        /// How many.
        missing: usize,
    },
    /// The lease is in doubt, and in this way or in strict mode that forbids work.
    Jeopardy(Jeopardy),
    /// What is left does not cover the operation.
    TooShort {
        /// What is left.
        remaining: Duration,
        /// What was asked for.
        max_op: Duration,
    },
}

/// What became of a renewal's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// All that it said has been taken in.
    All,
    /// More leases ended than it lists. Ask the store which leases the session holds, and hand the list in: the
    /// deadline does not move before that.
    AskForLeases,
    /// The session has ended, and every lease with it.
    SessionEnded,
}

/// The logic of one session's holder. A clone shares the counts of the permits that are out.
#[derive(Clone, Debug)]
pub struct Holder {
    timing: Timing,
    options: HolderOptions,
    next_number: u64,
    /// Sent and unanswered, oldest first.
    transmissions: VecDeque<Transmission>,
    /// The highest number that was answered.
    answered: Option<u64>,
    deadline: Option<Deadline>,
    schedule: Schedule,
    /// The last transmission failed, and none has been answered since.
    failing: bool,
    /// An answer whose deadline waits for the list of leases.
    waiting_for_list: Option<Deadline>,
    /// A pause ended here; renewals sent before prove nothing.
    pause: Option<Pause>,
    planned_wake: Option<Moment>,
    progress: Option<Moment>,
    seen: Revision,
    session_ended: bool,
    /// What was left of the deadline when the store let the session run out.
    ended_early: Option<Duration>,
    leases: BTreeMap<Token, Lease>,
    forgotten: Forgotten,
    early_notices: EarlyNotices,
}

#[derive(Clone, Copy, Debug)]
struct Transmission {
    number: u64,
    sent: Moment,
    jitter: u32,
}

/// When the next open or renewal goes out.
#[derive(Clone, Copy, Debug)]
enum Schedule {
    /// Nothing has been sent yet.
    AtOnce,
    /// The last one was answered; the next is due at this moment.
    Regular(Moment),
    /// `tries` are without an answer; the next follows `wait` after `from`.
    Repeat { from: Moment, wait: Duration, tries: u32 },
}

#[derive(Clone, Copy, Debug)]
struct Pause {
    ended: Moment,
    length: Duration,
}

impl Holder {
    /// The logic of a session that is not open yet.
    pub fn new(timing: Timing, options: HolderOptions) -> Holder {
        Holder {
            timing,
            options,
            next_number: 1,
            transmissions: VecDeque::new(),
            answered: None,
            deadline: None,
            schedule: Schedule::AtOnce,
            failing: false,
            waiting_for_list: None,
            pause: None,
            planned_wake: None,
            progress: None,
            seen: Revision::default(),
            session_ended: false,
            ended_early: None,
            leases: BTreeMap::new(),
            forgotten: Forgotten::default(),
            early_notices: EarlyNotices::default(),
        }
    }

    /// The numbers that it counts with.
    pub fn timing(&self) -> &Timing {
        &self.timing
    }

    /// An open or a renewal is about to leave: `now` was read before that. Returns the number that it must
    /// carry; a repetition is a transmission of its own, with a number of its own. `jitter` is drawn evenly from all of
    /// `u32` and spreads the renewal after this one.
    pub fn transmit(&mut self, now: Moment, jitter: u32) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        if self.transmissions.len() == TRANSMISSIONS_MAX {
            self.transmissions.pop_front();
        }
        self.transmissions.push_back(Transmission { number, sent: now, jitter });
        let tries = match self.schedule {
            Schedule::Repeat { tries, .. } => tries + 1,
            Schedule::AtOnce | Schedule::Regular(_) => 1,
        };
        self.schedule = Schedule::Repeat { from: now, wait: self.timing.detect(), tries };
        number
    }

    /// A transmission failed without reaching the store, or nobody knows whether it did.
    pub fn failed(&mut self, number: u64, now: Moment) {
        // Its answer may still come by another way, so it stays remembered.
        let latest = self.transmissions.back().is_some_and(|latest| latest.number == number);
        if let Schedule::Repeat { tries, .. } = self.schedule
            && latest
        {
            self.failing = true;
            self.schedule = Schedule::Repeat { from: now, wait: self.backoff(tries), tries };
        }
    }

    /// The answer to an open, or to an acquire that opened its session and did not wait.
    pub fn opened(&mut self, number: u64, ttl: Duration, now: Moment) {
        let known = self.deadline.is_some();
        // A repeated open that is applied late extends the session too, but unlike a renewal's its answer lists no
        // notices; so only the first one is believed, when there can be no lease yet that was given notice.
        if let Some(deadline) = self.acknowledged(number, ttl)
            && !known
        {
            self.move_deadline(deadline, now);
        }
    }

    /// The answer to a renewal.
    pub fn renewed(&mut self, answer: &RenewalAnswer, now: Moment) -> Taken {
        let (number, ttl, revision, events) = match answer {
            RenewalAnswer::Renewed { number, ttl, last_lease_revision, events } => {
                (*number, *ttl, *last_lease_revision, events.as_deref())
            }
            RenewalAnswer::UnknownSession => {
                self.end_session(None, now);
                return Taken::SessionEnded;
            }
        };
        // First what the answer says about single leases, by the deadline as it stands …
        for (_, token, why, _) in events.iter().flat_map(|events| &events.noticed) {
            self.noticed(*token, *why);
        }
        for (_, token, why) in events.iter().flat_map(|events| &events.ended) {
            self.ended(*token, *why, now);
        }
        self.seen = self.seen.max(revision);
        // … and only then the deadline, which is for the others.
        let Some(deadline) = self.acknowledged(number, ttl) else { return Taken::All };
        if events.is_some_and(|events| events.incomplete) {
            self.waiting_for_list = Some(deadline);
            return Taken::AskForLeases;
        }
        self.move_deadline(deadline, now);
        Taken::All
    }

    /// The store has listed the tokens that the session holds; it was asked at `asked`, after the answer that made
    /// asking necessary. What is ours and not in the list has ended.
    pub fn listed(&mut self, held: &[Token], asked: Moment, now: Moment) {
        let gone: alloc::vec::Vec<Token> = self
            .leases
            .iter()
            .filter(|(token, lease)| lease.known_before(asked) && !held.contains(token))
            .map(|(token, _)| *token)
            .collect();
        gone.into_iter().for_each(|token| self.end_lease(token, None, now));
        if let Some(deadline) = self.waiting_for_list.take() {
            self.move_deadline(deadline, now);
        }
    }

    /// The worker is getting on.
    pub fn progressed(&mut self, now: Moment) {
        self.progress = Some(now);
    }

    /// The driver has woken up, on time or not. Detects that the process stood still, and returns for how long.
    pub fn woke(&mut self, now: Moment) -> Option<Duration> {
        if self.options.progress_within.is_some() && self.progress.is_none() {
            self.progress = Some(now);
        }
        let late = self.late(now)?;
        self.pause = Some(Pause { ended: now, length: late });
        self.planned_wake = None;
        Some(late)
    }

    /// Whether an open or a renewal should be sent now.
    pub fn send_due(&self, now: Moment) -> bool {
        !self.session_ended
            && !self.stuck(now)
            && match self.schedule {
                Schedule::AtOnce => true,
                Schedule::Regular(at) => has_come(at, now) || self.pause.is_some(),
                Schedule::Repeat { from, wait, .. } => now.longest_since(from) >= wait,
            }
    }

    /// When the driver must wake up next, unless something happens earlier. At least every R/4, so that a
    /// pause shows. `None` once the session has ended.
    pub fn next_wake(&mut self, now: Moment) -> Option<Moment> {
        if self.session_ended {
            return None;
        }
        let beat = now.plus(self.timing.detect());
        let send = if self.send_due(now) {
            now
        } else {
            match self.schedule {
                Schedule::AtOnce => beat, // held back for want of progress
                Schedule::Regular(at) => at,
                Schedule::Repeat { from, wait, .. } => from.plus(wait),
            }
        };
        let left = self.deadline.map(|deadline| deadline.remaining(now)).filter(|left| !left.is_zero());
        let end = left.map_or(beat, |left| now.plus(left));
        let wake = [beat, send, end]
            .into_iter()
            .filter(|wake| *wake == now || !has_come(*wake, now))
            .min_by_key(|wake| wake.longest_since(now))
            .unwrap_or(beat);
        self.planned_wake = Some(wake);
        Some(wake)
    }

    /// The revision up to which the session's lease changes have been taken in: what to tell the store.
    pub fn seen(&self) -> Revision {
        self.seen
    }

    /// What is left of the session's local deadline.
    pub fn remaining(&self, now: Moment) -> Duration {
        self.deadline.map_or(Duration::ZERO, |deadline| deadline.remaining(now))
    }

    /// Whether the session has ended.
    pub fn session_ended(&self) -> bool {
        self.session_ended
    }

    /// What was left of the deadline when the store let the session run out, or knew nothing of it any more. The store counts
    /// a whole TTL from later than we do, so its clock ran faster than rho allows, or ours slower; unless somebody ended
    /// the session and we were not notified.
    pub fn ended_early(&self) -> Option<Duration> {
        self.ended_early
    }

    /// What puts the whole session in doubt at `now`, the gravest first.
    pub fn jeopardy(&self, now: Moment) -> Option<Jeopardy> {
        let Some(deadline) = self.deadline else { return Some(Jeopardy::PastDeadline) };
        if deadline.remaining(now).is_zero() {
            return Some(Jeopardy::PastDeadline);
        }
        // Seen by whoever looks first: the worker may run before the renewer does.
        if let Some(length) = self.late(now).or(self.pause.map(|pause| pause.length)) {
            return Some(Jeopardy::Paused { length });
        }
        let by = now.disagreement_since(deadline.sent());
        if by > self.timing.disagreement_max(now.longest_since(deadline.sent())) {
            return Some(Jeopardy::ClocksDisagree { by });
        }
        let overdue =
            self.unanswered_since().is_some_and(|since| now.longest_since(since) >= self.timing.detect());
        if self.failing || overdue {
            return Some(Jeopardy::NotRenewed);
        }
        self.stuck(now).then_some(Jeopardy::NoProgress)
    }

    /// When the oldest transmission above the last answered one was sent.
    fn unanswered_since(&self) -> Option<Moment> {
        let mut unanswered = self.transmissions.iter().filter(|sent| Some(sent.number) > self.answered);
        unanswered.next().map(|sent| sent.sent)
    }

    /// The store has answered transmission `number`: what the deadline becomes by it, if that is known.
    fn acknowledged(&mut self, number: u64, ttl: Duration) -> Option<Deadline> {
        let at = self.transmissions.iter().position(|sent| sent.number == number)?;
        let Transmission { sent, jitter, .. } = self.transmissions.remove(at)?;
        self.failing = false;
        if Some(number) > self.answered {
            self.answered = Some(number);
            // Older ones may still be answered, but could move nothing: each was sent earlier than this one.
            self.transmissions.retain(|other| other.number > number);
            if self.transmissions.is_empty() {
                self.schedule = Schedule::Regular(sent.plus(self.timing.renew_after(jitter)));
            }
        }
        if self.pause.is_some_and(|pause| has_come(pause.ended, sent)) {
            self.pause = None;
        }
        Some(self.timing.deadline(sent, ttl))
    }

    /// Forward only.
    fn move_deadline(&mut self, deadline: Deadline, now: Moment) {
        if self.deadline.is_none_or(|old| deadline.remaining(now) >= old.remaining(now))
            && !self.session_ended
        {
            self.deadline = Some(deadline);
        }
    }

    /// How late the driver is, if that is a pause.
    fn late(&self, now: Moment) -> Option<Duration> {
        let noticed = self.options.pause_noticed.unwrap_or(self.timing.detect());
        let late = now.longest_since(self.planned_wake?);
        (late > noticed).then_some(late)
    }

    /// Whether the progress guard holds renewals back.
    fn stuck(&self, now: Moment) -> bool {
        match (self.options.progress_within, self.progress) {
            (Some(within), Some(progress)) => now.longest_since(progress) >= within,
            _ => false,
        }
    }

    /// The first repetition follows a failure at once, the later ones at growing distances up to R/4.
    fn backoff(&self, tries: u32) -> Duration {
        let detect = self.timing.detect();
        match tries {
            0 | 1 => Duration::ZERO,
            _ => (detect / 8).saturating_mul(1 << (tries - 2).min(3)).min(detect),
        }
    }
}

/// Whether `now` is at or after `moment`.
fn has_come(moment: Moment, now: Moment) -> bool {
    now == moment || now.longest_since(moment) > Duration::ZERO
}
