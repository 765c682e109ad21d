//! Histories that were broken by hand, each of which must be rejected by the rule that it breaks, and honest
//! ones beside them, which must not.

use std::sync::Arc;

use tenure_checker::{
    Call, Death, FenceStep, Final, History, Operation, Outcome, PermitSpan, ProcessFailure, Response,
    SessionSpan, Sighting, Wait, judge,
};

fn name(text: &str) -> Arc<str> {
    text.into()
}

/// An operation that was called and answered at these moments.
fn answered(process: u32, call: Call, at: (u64, u64), answer: Response) -> Operation {
    Operation { process, call, invoked: at.0, ended: at.1, outcome: Outcome::Answered(answer) }
}

/// An operation that was called and never answered.
fn unanswered(process: u32, call: Call, at: u64) -> Operation {
    Operation { process, call, invoked: at, ended: u64::MAX, outcome: Outcome::Unknown }
}

fn acquire() -> Call {
    Call::Acquire { resource: name("r") }
}

fn release(token: u64) -> Call {
    Call::Release { resource: name("r"), token }
}

fn look() -> Call {
    Call::Look { resource: name("r") }
}

fn put(value: u64) -> Call {
    Call::Put { key: name("k"), value, token: None }
}

fn guarded(value: u64, token: u64) -> Call {
    Call::Put { key: name("k"), value, token: Some(token) }
}

fn get() -> Call {
    Call::Get { key: name("k") }
}

fn operations(operations: Vec<Operation>) -> History {
    History { operations, ..History::default() }
}

fn permit(process: u32, token: u64, from: u64, until: u64) -> PermitSpan {
    PermitSpan { process, resource: name("r"), token, from, until, excused: false }
}

fn step(token: u64, at: u64, accepted: bool) -> FenceStep {
    FenceStep { scope: name("r"), token, at, accepted }
}

#[track_caller]
fn accepted(history: &History) {
    let judged = judge(history);
    assert!(judged.violations.is_empty(), "{:?}", judged.violations);
    assert!(judged.undecided.is_empty());
}

#[track_caller]
fn rejected_by(rule: &str, history: &History) {
    let judged = judge(history);
    let broken: Vec<&str> = judged.violations.iter().map(|violation| violation.rule).collect();
    assert!(broken.contains(&rule), "{rule} saw nothing; broken: {broken:?}");
}

#[test]
fn an_honest_history_passes() {
    accepted(&operations(vec![
        answered(1, look(), (0, 1), Response::Free(None)),
        answered(1, acquire(), (2, 5), Response::Granted(7)),
        answered(2, acquire(), (3, 6), Response::Held),
        answered(1, put(1), (6, 8), Response::Written(Some(3))),
        answered(2, get(), (7, 9), Response::Value(None)),
        answered(2, get(), (10, 11), Response::Value(Some((1, 3)))),
        answered(1, release(7), (12, 13), Response::Released(true)),
        answered(2, acquire(), (14, 15), Response::Granted(9)),
        answered(3, look(), (16, 17), Response::HeldBy(9)),
    ]));
}

#[test]
fn a_lease_that_runs_out_is_nobodys_lie() {
    accepted(&operations(vec![
        answered(1, acquire(), (0, 1), Response::Granted(1)),
        answered(2, acquire(), (50, 51), Response::Granted(2)),
        answered(1, release(1), (60, 61), Response::Released(false)),
    ]));
}

#[test]
fn an_unknown_acquire_explains_a_token_that_nobody_was_given() {
    accepted(&operations(vec![
        unanswered(1, acquire(), 0),
        answered(2, acquire(), (5, 6), Response::Held),
        answered(2, look(), (7, 8), Response::HeldBy(4)),
        answered(2, look(), (9, 10), Response::Free(Some(4))),
        answered(2, acquire(), (11, 12), Response::Granted(5)),
    ]));
}

#[test]
fn an_unknown_write_may_happen_late_or_never() {
    accepted(&operations(vec![
        unanswered(1, put(1), 0),
        unanswered(1, put(2), 1),
        answered(2, get(), (10, 11), Response::Value(None)),
        answered(2, get(), (20, 21), Response::Value(Some((1, 9)))),
        answered(2, get(), (30, 31), Response::Value(Some((1, 9)))),
    ]));
}

#[test]
fn a_lost_grant_is_rejected() {
    rejected_by(
        "linearizable",
        &operations(vec![
            answered(1, acquire(), (0, 1), Response::Granted(1)),
            answered(2, look(), (5, 6), Response::Free(None)),
        ]),
    );
}

#[test]
fn a_lease_held_twice_is_rejected() {
    // The release says that the first holder still had it when the second had been granted it.
    rejected_by(
        "linearizable",
        &operations(vec![
            answered(1, acquire(), (0, 1), Response::Granted(1)),
            answered(2, acquire(), (2, 3), Response::Granted(2)),
            answered(1, release(1), (4, 5), Response::Released(true)),
        ]),
    );
}

#[test]
fn a_refusal_for_a_free_resource_is_rejected() {
    rejected_by("linearizable", &operations(vec![answered(1, acquire(), (0, 1), Response::Held)]));
}

#[test]
fn a_stale_look_is_rejected() {
    rejected_by(
        "linearizable",
        &operations(vec![
            answered(1, acquire(), (0, 1), Response::Granted(1)),
            answered(1, release(1), (2, 3), Response::Released(true)),
            answered(2, acquire(), (4, 5), Response::Granted(2)),
            answered(3, look(), (6, 7), Response::HeldBy(1)),
        ]),
    );
}

#[test]
fn a_lost_write_is_rejected() {
    rejected_by(
        "linearizable",
        &operations(vec![
            answered(1, put(1), (0, 1), Response::Written(Some(2))),
            answered(2, get(), (5, 6), Response::Value(None)),
        ]),
    );
}

#[test]
fn a_stale_read_is_rejected() {
    rejected_by(
        "linearizable",
        &operations(vec![
            answered(1, put(1), (0, 1), Response::Written(Some(2))),
            answered(1, put(2), (2, 3), Response::Written(Some(3))),
            answered(2, get(), (4, 5), Response::Value(Some((1, 2)))),
        ]),
    );
}

#[test]
fn a_value_that_goes_back_is_rejected() {
    // Unknown writes may come late, but not come, go, and come again.
    rejected_by(
        "linearizable",
        &operations(vec![
            unanswered(1, put(1), 0),
            answered(1, put(2), (1, 2), Response::Written(Some(5))),
            answered(2, get(), (10, 11), Response::Value(Some((1, 6)))),
            answered(2, get(), (12, 13), Response::Value(Some((2, 5)))),
        ]),
    );
}

#[test]
fn a_write_that_was_said_to_have_failed_must_not_show() {
    let failed = Operation { process: 1, call: put(1), invoked: 0, ended: 1, outcome: Outcome::Failed };
    rejected_by(
        "linearizable",
        &operations(vec![failed, answered(2, get(), (5, 6), Response::Value(Some((1, 2))))]),
    );
}

#[test]
fn two_compare_and_sets_on_one_revision_are_rejected() {
    let put_if = |value| Call::PutIf { key: name("k"), value, revision: 2 };
    rejected_by(
        "linearizable",
        &operations(vec![
            answered(1, put(1), (0, 1), Response::Written(Some(2))),
            answered(1, put_if(2), (2, 9), Response::Written(None)),
            answered(2, put_if(3), (2, 9), Response::Written(None)),
        ]),
    );
}

// What follows is fed to each of the rules that keep the search short (`linear.rs`): an honest history that
// needs care there, and beside it one that is broken at that very place.

#[test]
fn looks_in_the_order_of_their_tokens_pass_and_in_no_other() {
    let looks = |first, second| {
        operations(vec![
            answered(1, acquire(), (0, 1), Response::Granted(1)),
            answered(2, acquire(), (2, 20), Response::Granted(2)),
            answered(3, look(), (3, 4), Response::HeldBy(first)),
            answered(3, look(), (5, 6), Response::HeldBy(second)),
        ])
    };
    accepted(&looks(1, 2));
    rejected_by("linearizable", &looks(2, 1));
}

#[test]
fn reads_in_the_order_of_their_revisions_pass_and_in_no_other() {
    let reads = |first, second| {
        operations(vec![
            answered(1, put(1), (0, 1), Response::Written(Some(5))),
            answered(2, put(2), (2, 20), Response::Written(Some(6))),
            answered(3, get(), (3, 4), Response::Value(Some(first))),
            answered(3, get(), (5, 6), Response::Value(Some(second))),
        ])
    };
    accepted(&reads((1, 5), (2, 6)));
    rejected_by("linearizable", &reads((2, 6), (1, 5)));
    // Two writes that say they have one revision.
    let doubled = |revision| {
        operations(vec![
            answered(1, put(1), (0, 9), Response::Written(Some(5))),
            answered(2, put(2), (0, 9), Response::Written(Some(revision))),
        ])
    };
    accepted(&doubled(6));
    rejected_by("linearizable", &doubled(5));
}

#[test]
fn a_removal_is_not_taken_for_a_look_where_it_would_find_nothing() {
    let removed = |seen| {
        operations(vec![
            answered(1, put(3), (13, 19), Response::Written(Some(1))),
            answered(2, Call::Delete { key: name("k") }, (18, 24), Response::Written(Some(2))),
            answered(3, get(), (25, 26), Response::Value(seen)),
        ])
    };
    accepted(&removed(None));
    accepted(&removed(Some((3, 1))));
    // Nobody put it back.
    let mut history = removed(None);
    history.operations.push(answered(3, get(), (27, 28), Response::Value(Some((3, 1)))));
    rejected_by("linearizable", &history);
}

#[test]
fn a_release_is_not_taken_for_a_look_before_its_lease_was_granted() {
    let released = |seen| {
        operations(vec![
            answered(1, acquire(), (0, 20), Response::Granted(1)),
            answered(2, release(1), (10, 30), Response::Released(false)),
            answered(3, acquire(), (31, 32), seen),
        ])
    };
    accepted(&released(Response::Granted(2)));
    // It can have come before the grant, as far as these moments go.
    accepted(&released(Response::Held));
    let mut history = released(Response::Held);
    history.operations[1].invoked = 21;
    rejected_by("linearizable", &history);
}

#[test]
fn unanswered_calls_stand_for_each_other_but_not_for_more_than_they_are() {
    let grants = |second_called, second_seen| {
        operations(vec![
            unanswered(1, acquire(), 0),
            unanswered(1, acquire(), second_called),
            answered(2, look(), (5, 6), Response::HeldBy(4)),
            answered(2, look(), second_seen, Response::HeldBy(6)),
        ])
    };
    accepted(&grants(20, (30, 31)));
    rejected_by("linearizable", &grants(20, (10, 11)));
    accepted(&grants(8, (10, 11)));
}

#[test]
fn an_unanswered_acquire_is_granted_once() {
    let again = |answer| {
        operations(vec![
            unanswered(1, acquire(), 0),
            answered(2, acquire(), (5, 6), Response::Held),
            answered(2, look(), (7, 8), Response::HeldBy(4)),
            answered(2, look(), (9, 10), Response::Free(Some(4))),
            answered(2, acquire(), (11, 12), answer),
        ])
    };
    accepted(&again(Response::Granted(5)));
    rejected_by("linearizable", &again(Response::Held));
    let mut history = again(Response::Held);
    history.operations.push(unanswered(3, acquire(), 3));
    accepted(&history);
}

#[test]
fn an_unanswered_acquire_is_not_wasted_where_another_explains_as_much() {
    // The refusal can be explained by either grant, the look by the unanswered one alone.
    let seen = |also: Option<u64>| {
        let mut all = vec![
            unanswered(1, acquire(), 0),
            answered(2, acquire(), (1, 9), Response::Held),
            answered(3, acquire(), (2, 8), Response::Granted(3)),
            answered(3, release(3), (10, 11), Response::Released(true)),
            answered(2, look(), (20, 21), Response::HeldBy(7)),
        ];
        all.extend(also.map(|token| answered(2, look(), (30, 31), Response::HeldBy(token))));
        operations(all)
    };
    accepted(&seen(None));
    rejected_by("linearizable", &seen(Some(9)));
}

#[test]
fn an_unanswered_write_that_was_read_is_judged_as_if_it_had_been_answered() {
    let read = |called, found, later| {
        operations(vec![
            unanswered(1, put(1), called),
            answered(2, get(), (10, 11), Response::Value(Some((1, found)))),
            answered(2, put(2), (12, 13), Response::Written(Some(7))),
            answered(2, get(), (14, 15), Response::Value(Some(later))),
        ])
    };
    accepted(&read(0, 5, (2, 7)));
    // Read before it was called; written at a revision above the next one's; there again after that.
    rejected_by("linearizable", &read(12, 5, (2, 7)));
    rejected_by("linearizable", &read(0, 8, (2, 7)));
    rejected_by("linearizable", &read(0, 5, (1, 5)));
    // One write at two revisions.
    let mut history = read(0, 5, (2, 7));
    history.operations.insert(1, answered(3, get(), (8, 9), Response::Value(Some((1, 4)))));
    rejected_by("linearizable", &history);
}

#[test]
fn an_unanswered_write_that_nobody_read_excuses_nothing() {
    let lost = |seen| {
        operations(vec![
            answered(1, put(1), (0, 1), Response::Written(Some(2))),
            unanswered(1, put(9), 2),
            answered(2, get(), (5, 6), Response::Value(seen)),
        ])
    };
    accepted(&lost(Some((1, 2))));
    rejected_by("linearizable", &lost(None));
    rejected_by("linearizable", &lost(Some((1, 3))));
    // Only who compares can tell that it happened.
    let put_if = |value| Call::PutIf { key: name("k"), value, revision: 0 };
    let compared = |others: Vec<Operation>| {
        let not_equal = answered(2, put_if(7), (5, 6), Response::NotEqual);
        operations(others.into_iter().chain([not_equal]).collect())
    };
    accepted(&compared(vec![unanswered(1, put(9), 2)]));
    rejected_by("linearizable", &compared(vec![]));
    rejected_by("linearizable", &compared(vec![unanswered(1, put(9), 7)]));
}

#[test]
fn two_holders_in_one_state_are_rejected() {
    let sighting =
        Sighting { node: 1, at: 5, resource: name("r"), holders: vec![1, 2], last_token: 2, waiters: 0 };
    rejected_by("one_holder", &History { sightings: vec![sighting], ..History::default() });
}

#[test]
fn a_token_issued_twice_is_rejected() {
    let other = Call::Acquire { resource: name("other") };
    rejected_by(
        "tokens_rise",
        &operations(vec![
            answered(1, acquire(), (0, 9), Response::Granted(1)),
            answered(2, other, (0, 9), Response::Granted(1)),
        ]),
    );
}

#[test]
fn a_token_that_falls_is_rejected() {
    let other = Call::Acquire { resource: name("other") };
    rejected_by(
        "tokens_rise",
        &operations(vec![
            answered(1, acquire(), (0, 1), Response::Granted(5)),
            answered(2, other, (2, 3), Response::Granted(4)),
        ]),
    );
}

#[test]
fn a_fence_that_falls_is_rejected() {
    let steps = vec![step(1, 0, true), step(3, 1, true), step(2, 2, false), step(2, 3, true)];
    rejected_by("fence_never_falls", &History { fence_steps: steps, ..History::default() });
}

#[test]
fn a_refused_stale_write_is_what_a_fence_is_for() {
    let steps = vec![step(1, 0, true), step(3, 1, true), step(2, 2, false), step(3, 3, true)];
    accepted(&History { fence_steps: steps, ..History::default() });
}

#[test]
fn a_guarded_register_that_takes_an_old_token_is_rejected() {
    rejected_by(
        "fence_never_falls",
        &operations(vec![
            answered(1, guarded(1, 5), (0, 1), Response::Written(Some(2))),
            answered(2, guarded(2, 4), (2, 3), Response::Written(Some(3))),
        ]),
    );
}

#[test]
fn permits_that_overlap_are_rejected() {
    let permits = vec![permit(1, 1, 0, 100), permit(1, 1, 10, 20), permit(2, 2, 90, 120)];
    rejected_by("permits_never_overlap", &History { permits, ..History::default() });
}

#[test]
fn a_newer_grant_under_a_permit_is_rejected() {
    let sighting =
        Sighting { node: 2, at: 15, resource: name("r"), holders: vec![2], last_token: 2, waiters: 0 };
    let under =
        |permit| History { permits: vec![permit], sightings: vec![sighting.clone()], ..History::default() };
    rejected_by("permits_never_overlap", &under(permit(1, 1, 10, 20)));
    accepted(&under(permit(1, 1, 10, 15)));
    accepted(&under(permit(1, 2, 10, 20)));
    accepted(&under(PermitSpan { excused: true, ..permit(1, 1, 10, 20) }));
}

#[test]
fn a_guard_that_refuses_whoever_has_a_permit_is_rejected() {
    let refused = |until| History {
        permits: vec![permit(1, 1, 10, until)],
        ..operations(vec![
            answered(1, acquire(), (0, 5), Response::Granted(1)),
            answered(1, guarded(7, 1), (12, 18), Response::Fenced),
        ])
    };
    rejected_by("permits_never_overlap", &refused(20));
    accepted(&refused(17));
}

#[test]
fn a_release_that_ended_nothing_is_rejected() {
    let released = |ended| {
        operations(vec![
            answered(1, acquire(), (0, 5), Response::Granted(1)),
            answered(2, acquire(), (10, 20), Response::Granted(2)),
            answered(1, release(1), (30, 40), Response::Released(ended)),
        ])
    };
    rejected_by("linearizable", &released(true));
    accepted(&released(false));
}

#[test]
fn permits_of_one_token_and_permits_that_touch_are_fine() {
    let permits = vec![permit(1, 1, 0, 100), permit(1, 1, 10, 20), permit(2, 2, 100, 120)];
    accepted(&History { permits, ..History::default() });
    let excused = PermitSpan { excused: true, ..permit(1, 1, 0, 100) };
    accepted(&History { permits: vec![excused, permit(2, 2, 50, 60)], ..History::default() });
}

#[test]
fn a_node_that_forgot_is_rejected() {
    let end = Final { node: 2, entries: 9, state: 1, last_token: 3, registers: vec![(name("k"), 1, 2)] };
    let mut history = operations(vec![answered(1, acquire(), (0, 1), Response::Granted(4))]);
    history.finals.push(end.clone());
    rejected_by("acknowledged_is_kept", &history);
    let mut history = operations(vec![answered(1, put(7), (0, 1), Response::Written(Some(3)))]);
    history.finals.push(end.clone());
    rejected_by("acknowledged_is_kept", &history);
    let mut history = operations(vec![answered(1, put(7), (0, 1), Response::Written(Some(2)))]);
    history.finals.push(end);
    rejected_by("acknowledged_is_kept", &history);
}

#[test]
fn a_healthy_holder_that_lost_its_session_is_rejected() {
    let session = |healthy| SessionSpan { process: 1, from: 0, until: 9, healthy, lost: true };
    rejected_by("healthy_holder_keeps", &History { sessions: vec![session(true)], ..History::default() });
    accepted(&History { sessions: vec![session(false)], ..History::default() });
}

#[test]
fn a_lease_that_lingers_is_rejected() {
    let death = |freed| Death { resource: name("r"), token: 1, at: 10, freed, bound: 5 };
    rejected_by("no_lingering_lease", &History { deaths: vec![death(Some(16))], ..History::default() });
    rejected_by("no_lingering_lease", &History { deaths: vec![death(None)], ..History::default() });
    accepted(&History { deaths: vec![death(Some(15))], ..History::default() });
}

#[test]
fn a_waiter_that_is_forgotten_is_rejected() {
    let wait = |granted| Wait { process: 1, resource: name("r"), since: 0, granted, bound: 10 };
    rejected_by("waiters_move", &History { waits: vec![wait(None)], ..History::default() });
    rejected_by("waiters_move", &History { waits: vec![wait(Some(11))], ..History::default() });
    accepted(&History { waits: vec![wait(Some(10))], ..History::default() });
    let idle = Sighting { node: 1, at: 5, resource: name("r"), holders: vec![], last_token: 0, waiters: 1 };
    rejected_by("waiters_move", &History { sightings: vec![idle], ..History::default() });
}

#[test]
fn a_node_that_fell_over_is_rejected() {
    let failure = |excused| ProcessFailure { node: Some(1), at: 5, why: "it panicked".into(), excused };
    rejected_by("no_one_takes_us_down", &History { failures: vec![failure(false)], ..History::default() });
    accepted(&History { failures: vec![failure(true)], ..History::default() });
}

#[test]
fn two_states_after_one_log_are_rejected() {
    let end = |node, state| Final { node, entries: 9, state, last_token: 3, registers: vec![] };
    rejected_by("same_log_same_state", &History { finals: vec![end(1, 1), end(2, 2)], ..History::default() });
    accepted(&History { finals: vec![end(1, 1), end(2, 1)], ..History::default() });
}
