//! What the guardian decides: when it kills the tree in place of `run`, and whether it may end the session in
//! place of `run`.
//!
//! It trusts only its own clock and the last deadline that it received. If `run` is dead, the tree is killed
//! immediately. A stopped `run` stops renewing, too, so the tree is killed at the deadline. Only if `run` is
//! *dead* and the tree was seen empty does the guardian end the session: a stopped `run` may wake up.

use std::time::Duration;

use tenure_clock::MachineMoment;

use crate::run::logic::Ending;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Nothing: time has passed.
    Look,
    /// The tree was started, or its deadline has moved.
    Deadline(MachineMoment),
    /// The process that was started has ended.
    ChildEnded(Ending),
    /// `run` is dead.
    RunDied,
    /// Nothing of the tree is alive.
    Empty,
}

/// What has to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Tell `run` that this deadline is known.
    Confirm(MachineMoment),
    /// Tell `run` how the child ended.
    Report(Ending),
    /// Kill everything, and look until nothing is left.
    KillAll,
    /// Everything that could act is dead: tell the store.
    EndSession,
    /// There is nothing left to guard.
    Exit,
}

/// What the guardian knows.
#[derive(Debug, Default)]
pub struct GuardianLogic {
    kill_before: Duration,
    deadline: Option<MachineMoment>,
    run_died: bool,
    killing: bool,
    done: bool,
}

impl GuardianLogic {
    /// Takes an event in, and says what has to be done.
    pub fn handle(&mut self, event: Event, now: MachineMoment) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.done {
            return actions;
        }
        match event {
            Event::Look => {}
            Event::Deadline(deadline) => {
                self.deadline = Some(deadline);
                actions.push(Action::Confirm(deadline));
            }
            Event::ChildEnded(ending) => actions.push(Action::Report(ending)),
            Event::RunDied => {
                self.run_died = true;
                match self.deadline {
                    // Nothing was started, so there is nothing to end.
                    None => self.exit(&mut actions),
                    Some(_) => self.kill(&mut actions),
                }
            }
            Event::Empty if self.killing => {
                if self.run_died {
                    actions.push(Action::EndSession);
                }
                self.exit(&mut actions);
            }
            Event::Empty => {}
        }
        if self.deadline.is_some_and(|deadline| deadline.left_at(now) <= self.kill_before) && !self.done {
            self.kill(&mut actions);
        }
        actions
    }

    /// How long before the deadline everything is killed.
    pub fn kill_before(&mut self, length: Duration) {
        self.kill_before = length;
    }

    /// How long nothing is due by itself.
    pub fn next_look(&self, now: MachineMoment) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.left_at(now).saturating_sub(self.kill_before))
    }

    fn kill(&mut self, actions: &mut Vec<Action>) {
        if !std::mem::replace(&mut self.killing, true) {
            actions.push(Action::KillAll);
        }
    }

    fn exit(&mut self, actions: &mut Vec<Action>) {
        self.done = true;
        actions.push(Action::Exit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> MachineMoment {
        MachineMoment::from_readings(Duration::from_secs(1_000 + seconds), Duration::from_secs(500 + seconds))
    }

    fn guarding() -> GuardianLogic {
        let mut logic = GuardianLogic::default();
        logic.kill_before(Duration::from_secs(1));
        assert_eq!(logic.handle(Event::Deadline(at(10)), at(0)), [Action::Confirm(at(10))]);
        logic
    }

    #[test]
    fn a_dead_run_costs_the_tree_its_life_and_the_session_ends_after_it() {
        let mut logic = guarding();
        assert_eq!(logic.handle(Event::RunDied, at(1)), [Action::KillAll]);
        assert_eq!(logic.handle(Event::Look, at(2)), [], "nothing is ended on a guess");
        assert_eq!(logic.handle(Event::Empty, at(3)), [Action::EndSession, Action::Exit]);
    }

    #[test]
    fn a_stopped_run_does_so_at_the_deadline_and_the_session_is_left_to_it() {
        let mut logic = guarding();
        assert_eq!(logic.next_look(at(4)), Some(Duration::from_secs(5)));
        assert_eq!(logic.handle(Event::Look, at(8)), []);
        assert_eq!(logic.handle(Event::Look, at(9)), [Action::KillAll]);
        assert_eq!(logic.handle(Event::Look, at(10)), [], "once");
        assert_eq!(logic.handle(Event::Empty, at(10)), [Action::Exit]);
    }

    #[test]
    fn a_run_that_dies_while_its_tree_is_being_killed_is_seen() {
        let mut logic = guarding();
        logic.handle(Event::Look, at(9));
        assert_eq!(logic.handle(Event::RunDied, at(9)), []);
        assert_eq!(logic.handle(Event::Empty, at(10)), [Action::EndSession, Action::Exit]);
    }

    #[test]
    fn the_last_deadline_counts_later_or_earlier() {
        let mut logic = guarding();
        logic.handle(Event::Deadline(at(20)), at(5));
        assert_eq!(logic.handle(Event::Look, at(15)), []);
        // A notice: the lease ends earlier than its session would.
        let actions = logic.handle(Event::Deadline(at(16)), at(15));
        assert_eq!(actions, [Action::Confirm(at(16)), Action::KillAll]);
    }

    #[test]
    fn a_deadline_that_has_passed_on_the_way_starts_nothing() {
        let mut logic = GuardianLogic::default();
        logic.kill_before(Duration::from_secs(1));
        assert!(logic.handle(Event::Deadline(at(1)), at(5)).contains(&Action::KillAll));
    }

    #[test]
    fn suspended_time_counts() {
        let mut logic = guarding();
        let woken = MachineMoment::from_readings(Duration::from_secs(1_400), Duration::from_secs(501));
        assert_eq!(logic.handle(Event::Look, woken), [Action::KillAll]);
    }

    #[test]
    fn before_anything_was_started_a_dead_run_ends_the_guardian() {
        let mut logic = GuardianLogic::default();
        assert_eq!(logic.handle(Event::RunDied, at(1)), [Action::Exit]);
    }

    #[test]
    fn an_ended_child_is_reported_and_the_rest_is_left_to_run() {
        let mut logic = guarding();
        let ending = Ending::Exited(0);
        assert_eq!(logic.handle(Event::ChildEnded(ending), at(1)), [Action::Report(ending)]);
    }
}
