//! What `run` decides: when the tree is asked to stop, when it is killed, when the session may be ended, and
//! what the exit code says. It reads no clock, signals nobody and asks no store: `driver.rs` hands in what
//! happened, what the lease is and what time it is, and carries out the answer.
//!
//! Two moments bound the tree's life, and the earlier one counts: the lease's deadline as the client library
//! computes it, and the latest deadline that the guardian has *confirmed*. So a guardian that is stopped
//! costs the tree its life at the last deadline it knew of, just as a stopped `run` does: neither runs on
//! unguarded.
//!
//! The deadline is computed once per renewal, here, and sent to the guardian, which confirms exactly that
//! value. Which of the two came first, and so who is to blame, is decided by comparing these two values. It
//! is never decided by comparing a deadline with a later reading of what is left: two readings of one
//! deadline differ by the time between them.
//!
//! The session is ended only after the tree was seen empty. Nothing here ends it on a guess.

use std::time::Duration;

use tenure_clock::MachineMoment;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal.
    Signaled(i32),
}

impl Ending {
    /// The exit code by which a shell would pass it on.
    pub fn code(self) -> u8 {
        let code = match self {
            Ending::Exited(code) => code,
            Ending::Signaled(signal) => 128 + signal,
        };
        // Both are below 256 on Linux; anything else is a failure all the same.
        u8::try_from(code).unwrap_or(u8::MAX)
    }
}

/// A deadline that has moved by less is the same deadline, read again.
const MOVED: Duration = Duration::from_millis(5);

/// The number of the signal that ends a process politely.
pub const TERM: i32 = 15;
/// The number of the signal that ends a process.
pub const KILL: i32 = 9;

/// What the lease is at the moment of an event. What is left was read no earlier than the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Ours until the deadline, which may move.
    Held {
        /// What is left until the deadline.
        left: Duration,
    },
    /// The store wants it back: ours until the deadline, which will not move.
    Noticed {
        /// What is left until the deadline.
        left: Duration,
    },
    /// Another's, or nobody's.
    Ended,
}

impl Hold {
    fn left(self) -> Duration {
        match self {
            Hold::Held { left } | Hold::Noticed { left } => left,
            Hold::Ended => Duration::ZERO,
        }
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Nothing: time has passed.
    Look,
    /// The guardian knows this deadline.
    Confirmed(MachineMoment),
    /// The process that was started has ended; how, nobody may have said yet.
    ChildEnded(Option<Ending>),
    /// The guardian is dead.
    GuardianDied,
    /// Somebody sent `run` a signal.
    Signal(i32),
    /// Nothing of the tree is alive: it was looked for and not found.
    Empty {
        /// Processes besides the one that was started that had to be killed for that.
        left_over: usize,
        /// How the one that was started ended, if that was seen only now.
        ending: Option<Ending>,
    },
}

/// What has to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send the guardian the lease's new deadline.
    SendDeadline(MachineMoment),
    /// Pass a signal on to the process that was started.
    Forward(i32),
    /// Ask every process of the tree to end.
    StopAll(Cause),
    /// Kill everything, and look until nothing is left.
    KillAll,
    /// End the session, and then this process.
    Finish(Finish),
}

/// How it all ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finish {
    /// Whether the tree ended in its own time. If not, requests may still be on their way: the store is told
    /// that the holder died.
    pub clean: bool,
    /// What the exit code says.
    pub outcome: Outcome,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The child ended, by itself or because `run` was asked to end.
    Child(Ending),
    /// The tree was stopped, and this is why.
    Stopped(Cause),
}

/// Why `run` stops a tree of its own accord.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The lease is about to end, or has.
    Lease,
    /// The guardian is dead, or does not answer.
    Guardian,
}

/// How long before its deadline a tree is asked to stop, and killed.
#[derive(Clone, Copy, Debug)]
pub struct Margins {
    /// The soft deadline comes this much before the deadline.
    pub soft: Duration,
    /// Everything is killed this much before the deadline.
    pub hard: Duration,
}

/// What `run` knows about its tree.
#[derive(Debug)]
pub struct RunLogic {
    margins: Margins,
    /// How long a drain may take; what is left of the lease when it begins, if not said.
    grace: Option<Duration>,
    /// The lease's deadline, as the guardian was sent it last.
    deadline: MachineMoment,
    /// The latest deadline that the guardian has confirmed.
    confirmed: MachineMoment,
    phase: Phase,
    stopping: Option<Cause>,
    drained_by: Option<MachineMoment>,
    /// Signals that were passed on: dying of one of them is ending in one's own time.
    forwarded: Vec<i32>,
    ending: Option<Ending>,
    /// The child had ended before anything was killed.
    ended_by_itself: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    Killing,
    Dead,
}

impl RunLogic {
    /// A tree that was started under a deadline that the guardian knows.
    pub fn new(margins: Margins, grace: Option<Duration>, deadline: MachineMoment) -> RunLogic {
        RunLogic {
            margins,
            grace,
            deadline,
            confirmed: deadline,
            phase: Phase::Running,
            stopping: None,
            drained_by: None,
            forwarded: Vec::new(),
            ending: None,
            ended_by_itself: false,
        }
    }

    /// Takes an event in, and says what has to be done.
    pub fn handle(&mut self, event: Event, hold: Hold, now: MachineMoment) -> Vec<Action> {
        let mut actions = Vec::new();
        // First what the deadlines say: a child that our own kill has ended must not look as if it had ended
        // by itself, and after a pause of this process the deadline may have passed unseen.
        if let Event::Confirmed(deadline) = event
            && self.confirmed.is_before(deadline)
        {
            self.confirmed = deadline;
        }
        self.follow(hold, now, &mut actions);
        self.look(hold, now, &mut actions);
        match event {
            Event::Look | Event::Confirmed(_) => {}
            Event::ChildEnded(ending) => {
                self.ending = self.ending.or(ending);
                self.ended_by_itself |= self.phase == Phase::Running;
                self.kill(&mut actions);
            }
            Event::GuardianDied if self.phase == Phase::Running => {
                self.stopping = Some(Cause::Guardian);
                self.kill(&mut actions);
            }
            Event::GuardianDied => {}
            Event::Signal(signal) if self.phase == Phase::Running => {
                if signal == TERM && self.drained_by.is_none() {
                    let grace = self.grace.unwrap_or_else(|| self.left(hold, now).1);
                    self.drained_by = Some(now.plus(grace));
                }
                if !self.forwarded.contains(&signal) {
                    self.forwarded.push(signal);
                }
                actions.push(Action::Forward(signal));
            }
            Event::Signal(_) => {}
            Event::Empty { left_over, ending } if self.phase == Phase::Killing => {
                self.phase = Phase::Dead;
                self.ending = self.ending.or(ending);
                actions.push(Action::Finish(self.finish(left_over)));
            }
            Event::Empty { .. } => {}
        }
        actions
    }

    /// How long nothing is due by itself.
    pub fn next_look(&self, hold: Hold, now: MachineMoment) -> Duration {
        let (_, left) = self.left(hold, now);
        let soft = left.saturating_sub(self.margins.soft);
        let hard = left.saturating_sub(self.margins.hard);
        let deadline = if self.stopping.is_some() || soft.is_zero() { hard } else { soft };
        self.drained_by.map_or(deadline, |by| deadline.min(by.left_at(now)))
    }

    /// Takes over the lease's deadline when it has moved.
    fn follow(&mut self, hold: Hold, now: MachineMoment, actions: &mut Vec<Action>) {
        let left = hold.left();
        // A lease with nothing left has no new deadline: after a pause, `now` would look like a later one.
        if self.phase != Phase::Running || left.is_zero() {
            return;
        }
        let deadline = now.plus(left);
        if deadline.left_at(self.deadline) > MOVED || self.deadline.left_at(deadline) > MOVED {
            self.deadline = deadline;
            actions.push(Action::SendDeadline(deadline));
        }
    }

    /// What is left until the earlier of the two deadlines, and whose that is.
    fn left(&self, hold: Hold, now: MachineMoment) -> (Cause, Duration) {
        let left = hold.left();
        // The same value once it is confirmed, so equal means that the lease itself runs out.
        let whose = if self.confirmed.is_before(self.deadline) { Cause::Guardian } else { Cause::Lease };
        // A lease that has ended is itself the cause, whatever the guardian has confirmed.
        if left.is_zero() { (Cause::Lease, left) } else { (whose, left.min(self.confirmed.left_at(now))) }
    }

    fn look(&mut self, hold: Hold, now: MachineMoment, actions: &mut Vec<Action>) {
        if self.phase != Phase::Running {
            return;
        }
        let (whose, left) = self.left(hold, now);
        if left <= self.margins.hard {
            self.stopping.get_or_insert(whose);
            self.kill(actions);
        } else if self.drained_by.is_some_and(|by| by.left_at(now).is_zero()) {
            self.kill(actions);
        } else if self.stopping.is_none() {
            let cause = match hold {
                Hold::Noticed { .. } => Some(Cause::Lease),
                _ => (left <= self.margins.soft).then_some(whose),
            };
            if let Some(cause) = cause {
                self.stopping = Some(cause);
                self.forwarded.push(TERM);
                actions.push(Action::StopAll(cause));
            }
        }
    }

    fn kill(&mut self, actions: &mut Vec<Action>) {
        if self.phase == Phase::Running {
            self.phase = Phase::Killing;
            actions.push(Action::KillAll);
        }
    }

    fn finish(&self, left_over: usize) -> Finish {
        // A child whose end nobody saw was killed by us.
        let ending = self.ending.unwrap_or(Ending::Signaled(KILL));
        let in_its_own_time = match ending {
            Ending::Exited(_) => true,
            Ending::Signaled(signal) => self.forwarded.contains(&signal),
        };
        Finish {
            clean: self.ended_by_itself && in_its_own_time && left_over == 0,
            outcome: match self.stopping {
                Some(cause) => Outcome::Stopped(cause),
                None => Outcome::Child(ending),
            },
        }
    }
}

#[cfg(test)]
mod tests;
