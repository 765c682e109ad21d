//! Everything that can happen to a tree, in simulated time.

use super::*;

const MARGINS: Margins = Margins { soft: Duration::from_secs(3), hard: Duration::from_secs(1) };
const HUP: i32 = 1;

fn at(seconds: u64) -> MachineMoment {
    MachineMoment::from_readings(Duration::from_secs(1_000 + seconds), Duration::from_secs(500 + seconds))
}

fn held(left: u64) -> Hold {
    Hold::Held { left: Duration::from_secs(left) }
}

/// A tree under a deadline of ten seconds that both sides know.
fn running() -> RunLogic {
    RunLogic::new(MARGINS, None, at(10))
}

fn finish(logic: &mut RunLogic, left_over: usize) -> Finish {
    match logic.handle(Event::Empty { left_over, ending: None }, Hold::Ended, at(99)).as_slice() {
        [Action::Finish(finish)] => *finish,
        other => panic!("an empty tree is the end, not {other:?}"),
    }
}

#[test]
fn a_child_that_ends_takes_the_rest_with_it_before_anything_is_finished() {
    let mut logic = running();
    let ended = logic.handle(Event::ChildEnded(Some(Ending::Exited(7))), held(9), at(1));
    assert_eq!(
        ended,
        [Action::KillAll],
        "the rest is killed, and nothing is finished before it is seen dead"
    );
    assert_eq!(logic.handle(Event::Look, held(8), at(2)), [], "nothing is finished on a guess");
    let end = finish(&mut logic, 0);
    assert_eq!(end, Finish { clean: true, outcome: Outcome::Child(Ending::Exited(7)) });
    assert_eq!(
        logic.handle(Event::Empty { left_over: 0, ending: None }, held(8), at(3)),
        [],
        "and it is finished once"
    );
}

#[test]
fn what_had_to_be_killed_did_not_end_cleanly() {
    let mut logic = running();
    logic.handle(Event::ChildEnded(Some(Ending::Exited(0))), held(9), at(1));
    assert!(!finish(&mut logic, 1).clean, "somebody was left over");
    let mut logic = running();
    logic.handle(Event::ChildEnded(Some(Ending::Signaled(KILL))), held(9), at(1));
    let end = finish(&mut logic, 0);
    assert_eq!(end, Finish { clean: false, outcome: Outcome::Child(Ending::Signaled(KILL)) });
    assert_eq!(Ending::Signaled(KILL).code(), 137);
}

#[test]
fn soft_then_hard_deadline() {
    let mut logic = running();
    assert_eq!(logic.handle(Event::Look, held(4), at(6)), []);
    assert_eq!(logic.next_look(held(4), at(6)), Duration::from_secs(1), "until the soft deadline");
    assert_eq!(logic.handle(Event::Look, held(3), at(7)), [Action::StopAll(Cause::Lease)]);
    assert_eq!(logic.handle(Event::Look, held(2), at(8)), [], "said once");
    assert_eq!(logic.next_look(held(2), at(8)), Duration::from_secs(1), "until the hard deadline");
    assert_eq!(logic.handle(Event::Look, held(1), at(9)), [Action::KillAll]);
    let end = finish(&mut logic, 0);
    assert_eq!(end, Finish { clean: false, outcome: Outcome::Stopped(Cause::Lease) });
}

#[test]
fn a_child_that_heeds_the_soft_deadline_ends_cleanly_and_the_lease_is_lost_all_the_same() {
    for ending in [Ending::Exited(0), Ending::Signaled(TERM)] {
        let mut logic = running();
        logic.handle(Event::Look, held(3), at(7));
        logic.handle(Event::ChildEnded(Some(ending)), held(2), at(8));
        assert_eq!(finish(&mut logic, 0), Finish { clean: true, outcome: Outcome::Stopped(Cause::Lease) });
    }
}

#[test]
fn renewals_move_the_deadline_only_once_the_guardian_knows() {
    let mut logic = running();
    assert_eq!(logic.handle(Event::Look, held(10), at(6)), [Action::SendDeadline(at(16))]);
    assert_eq!(logic.handle(Event::Confirmed(at(16)), held(10), at(6)), []);
    assert_eq!(logic.handle(Event::Look, held(4), at(12)), [], "the guardian knows of sixteen");
    let mut logic = running();
    // The lease was renewed, and nobody has confirmed it: the guardian is stopped.
    let actions = logic.handle(Event::Look, held(9), at(7));
    assert_eq!(actions, [Action::SendDeadline(at(16)), Action::StopAll(Cause::Guardian)]);
    assert_eq!(logic.handle(Event::Look, held(7), at(9)), [Action::KillAll]);
    assert_eq!(finish(&mut logic, 0).outcome, Outcome::Stopped(Cause::Guardian));
}

#[test]
fn an_older_confirmation_takes_nothing_back() {
    let mut logic = running();
    logic.handle(Event::Confirmed(at(5)), held(9), at(1));
    assert_eq!(logic.handle(Event::Look, held(5), at(5)), []);
}

#[test]
fn an_ended_lease_kills_at_once() {
    let mut logic = running();
    assert_eq!(logic.handle(Event::Look, Hold::Ended, at(1)), [Action::KillAll]);
    assert_eq!(finish(&mut logic, 0).outcome, Outcome::Stopped(Cause::Lease));
}

#[test]
fn a_notice_is_heeded_before_its_deadline() {
    let mut logic = running();
    let noticed = |left| Hold::Noticed { left: Duration::from_secs(left) };
    let actions = logic.handle(Event::Look, noticed(8), at(1));
    assert_eq!(actions, [Action::SendDeadline(at(9)), Action::StopAll(Cause::Lease)]);
    assert_eq!(logic.handle(Event::Look, noticed(1), at(8)), [Action::KillAll]);
}

#[test]
fn a_dead_guardian_costs_the_tree_its_life_at_once() {
    let mut logic = running();
    assert_eq!(logic.handle(Event::GuardianDied, held(9), at(1)), [Action::KillAll]);
    assert_eq!(finish(&mut logic, 3), Finish { clean: false, outcome: Outcome::Stopped(Cause::Guardian) });
}

#[test]
fn term_drains_within_what_is_left() {
    let mut logic = running();
    assert_eq!(logic.handle(Event::Signal(TERM), held(6), at(4)), [Action::Forward(TERM)]);
    logic.handle(Event::Confirmed(at(20)), held(10), at(8));
    assert_eq!(logic.next_look(held(10), at(8)), Duration::from_secs(2), "the drain ends first");
    assert_eq!(logic.handle(Event::Look, held(8), at(10)), [Action::KillAll], "six seconds were left");
    assert_eq!(finish(&mut logic, 0).outcome, Outcome::Child(Ending::Signaled(KILL)), "it was asked for");
}

#[test]
fn term_drains_within_the_grace_that_was_given() {
    let mut logic = RunLogic::new(MARGINS, Some(Duration::from_secs(60)), at(100));
    logic.handle(Event::Signal(TERM), held(96), at(4));
    assert_eq!(logic.handle(Event::Look, held(37), at(63)), []);
    assert_eq!(
        logic.handle(Event::Signal(TERM), held(37), at(63)),
        [Action::Forward(TERM)],
        "twice is not longer"
    );
    assert_eq!(logic.handle(Event::Look, held(36), at(64)), [Action::KillAll]);
}

#[test]
fn a_drained_child_ends_cleanly_with_its_own_code() {
    let mut logic = running();
    logic.handle(Event::Signal(TERM), held(9), at(1));
    logic.handle(Event::ChildEnded(Some(Ending::Signaled(TERM))), held(8), at(2));
    assert_eq!(
        finish(&mut logic, 0),
        Finish { clean: true, outcome: Outcome::Child(Ending::Signaled(TERM)) }
    );
}

#[test]
fn other_signals_are_passed_on_and_end_nothing() {
    let mut logic = running();
    assert_eq!(logic.handle(Event::Signal(HUP), held(9), at(1)), [Action::Forward(HUP)]);
    assert_eq!(logic.next_look(held(9), at(1)), Duration::from_secs(6), "no drain has begun");
}

#[test]
fn after_a_pause_the_deadline_is_seen_before_the_childs_end() {
    // This process was stopped; the guardian killed the tree at the deadline. What is received first on
    // waking is that the child was killed, and that must not look like a child that somebody shot.
    let mut logic = running();
    let actions = logic.handle(Event::ChildEnded(Some(Ending::Signaled(KILL))), held(0), at(30));
    assert_eq!(actions, [Action::KillAll]);
    assert_eq!(finish(&mut logic, 0), Finish { clean: false, outcome: Outcome::Stopped(Cause::Lease) });
}

#[test]
fn what_happens_while_everything_is_being_killed_changes_nothing() {
    let mut logic = running();
    logic.handle(Event::ChildEnded(Some(Ending::Exited(0))), held(9), at(1));
    for event in [
        Event::GuardianDied,
        Event::Signal(TERM),
        Event::ChildEnded(Some(Ending::Signaled(KILL))),
        Event::Look,
    ] {
        assert_eq!(logic.handle(event, Hold::Ended, at(50)), [], "{event:?}");
    }
    assert_eq!(finish(&mut logic, 0), Finish { clean: true, outcome: Outcome::Child(Ending::Exited(0)) });
}

#[test]
fn how_the_child_ended_may_be_seen_last() {
    // The guardian is stopped: that the child is dead is seen, how it ended only when it can be waited for.
    let mut logic = running();
    assert_eq!(logic.handle(Event::ChildEnded(None), held(9), at(1)), [Action::KillAll]);
    let seen = Event::Empty { left_over: 0, ending: Some(Ending::Exited(3)) };
    let end = Finish { clean: true, outcome: Outcome::Child(Ending::Exited(3)) };
    assert_eq!(logic.handle(seen, held(9), at(1)), [Action::Finish(end)]);
}

#[test]
fn an_unreachable_store_is_not_the_guardians_fault() {
    // The guardian has confirmed the deadline, and no renewal has moved it since. What is left of the lease
    // was read a little after the clock, so the two readings of the same deadline never agree to the
    // microsecond.
    let noise = Duration::from_micros(40);
    let read = |left: u64| Hold::Held { left: Duration::from_secs(left) + noise };
    let mut logic = running();
    assert_eq!(logic.handle(Event::Look, read(4), at(6)), []);
    assert_eq!(logic.handle(Event::Look, read(3), at(7)), [Action::StopAll(Cause::Lease)]);
    assert_eq!(logic.handle(Event::Look, read(1), at(9)), [Action::KillAll]);
    assert_eq!(finish(&mut logic, 0).outcome, Outcome::Stopped(Cause::Lease));
}

#[test]
fn the_same_deadline_read_again_is_not_sent_again() {
    let mut logic = running();
    for noise in [0, 40, 4_000] {
        let hold = Hold::Held { left: Duration::from_secs(5) + Duration::from_micros(noise) };
        assert_eq!(logic.handle(Event::Look, hold, at(5)), [], "{noise} us");
    }
    // After a pause there is nothing left, and the present is not a new deadline.
    assert_eq!(logic.handle(Event::Look, held(0), at(30)), [Action::KillAll]);
    assert_eq!(finish(&mut logic, 0).outcome, Outcome::Stopped(Cause::Lease));
}
