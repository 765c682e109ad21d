//! The stories that `tenure demo` tells, as tests: each must show the damage without the protection, or it shows
//! nothing, and its absence with it. What is asserted is what happened, not how fast it was; one at a time all the
//! same, because leases of two seconds want a machine that is not busy with three clusters.

use serde_json::Value;
use tenure_e2e::{alone, run_tenure, scale, skipped_without};

/// Tells a story and gives back what was seen.
#[track_caller]
fn seen_in(story: &str) -> Value {
    let mut arguments = vec!["demo", story, "--json"];
    if !scale().full {
        arguments.push("--quick");
    }
    let output = run_tenure("127.0.0.1:1", &arguments);
    let narrated = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{story} ended with {}\n{narrated}", output.status);
    let seen_in: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(seen_in["story"], story);
    // Shown if an assertion below fails.
    eprintln!("{narrated}\n{seen_in}");
    seen_in["seen"].clone()
}

#[test]
fn a_pause_costs_a_write_without_a_fence_and_nothing_with_one() {
    let _turn = alone();
    let seen = seen_in("pause");
    let (without, with) = (&seen["without"], &seen["with"]);
    for half in [without, with] {
        assert_eq!(half["tokens"], serde_json::json!([33, 34]));
        assert!(half["paused_ms"].as_u64() >= half["ttl_ms"].as_u64(), "the pause is longer than the TTL");
    }
    assert_eq!((&without["late_write"], &without["value"]), (&"wrote".into(), &"90, says A".into()));
    assert_eq!((&with["late_write"], &with["value"]), (&"refused".into(), &"250, says B".into()));
    assert_eq!(
        (&with["code"], &with["presented"], &with["seen"]),
        (&"stale_token".into(), &33.into(), &34.into())
    );
    assert_eq!(seen["longer_ttl"]["late_write"], "wrote");
}

#[test]
fn a_silent_holder_keeps_a_lock_for_ever_and_a_lease_for_its_ttl() {
    let _turn = alone();
    let seen = seen_in("lock");
    for what in ["killed", "cut off", "stopped"] {
        let (without, with) = (&seen["without"][what], &seen["with"][what]);
        assert_eq!(without["granted_after_ms"], Value::Null, "{what}: the lock was not stuck: {seen}");
        assert!(with["granted_after_ms"].as_u64().is_some(), "{what}: {seen}");
        assert_eq!(with["acts_after_successor"], 0, "{what}: two acted: {seen}");
    }
    assert_eq!(
        (&seen["without"]["stopped"]["woke_to"], &seen["with"]["stopped"]["woke_to"]),
        (&"acted".into(), &"stopped".into()),
        "{seen}"
    );
}

#[test]
fn a_batch_runs_twice_without_a_fence_and_once_with_fence_and_cursor() {
    let _turn = alone();
    let seen = seen_in("paysetu");
    let (without, with) = (&seen["without"], &seen["with"]);
    assert_eq!(without["paid_twice"], without["rows"], "the whole batch ran twice: {without}");
    assert_eq!(without["refused"], 0);
    assert_eq!((&with["paid"], &with["paid_twice"]), (&with["rows"], &0.into()), "{with}");
    assert_eq!(with["resumed_at"], 16, "the successor resumes where the first one stopped");
    assert_eq!(with["refused"], 18, "every row that the first one went on to send");
    assert!(with["refused_by_metric"].as_u64() >= with["refused"].as_u64(), "{with}");
}

#[test]
fn a_deployment_leaves_a_gap_without_a_drain_and_hardly_one_with_it() {
    let _turn = alone();
    let seen = seen_in("cricstream");
    let gap = |half: &str| seen[half]["gap_ms"].as_u64().expect("a gap");
    assert!(gap("without") > seen["without"]["warm_up_ms"].as_u64().expect("a time"), "{seen}");
    assert!(gap("with") < gap("without") / 2, "{seen}");
}

#[test]
fn an_isolated_holder_acts_on_or_stops_in_time() {
    let _turn = alone();
    let seen = seen_in("partition");
    assert!(seen["without"]["acts_after_successor"].as_u64() > Some(0), "nothing went wrong: {seen}");
    assert_eq!(seen["with"]["acts_after_successor"], 0, "{seen}");
    assert!(seen["with"]["margin_ms"].as_u64() > Some(0), "{seen}");
}

#[test]
fn a_quorum_of_locks_has_two_holders_and_no_token() {
    if skipped_without("redis-server", "a_quorum_of_locks_has_two_holders_and_no_token") {
        return;
    }
    let _turn = alone();
    let seen = seen_in("redlock");
    let without = &seen["without"];
    assert_eq!(without["pause"]["value"], "90, says the first", "{seen}");
    for act in ["restart", "clock"] {
        if !without[act].is_null() {
            assert!(without[act]["first_left_ms"].as_u64() > Some(0), "{act}: {seen}");
            assert!(without[act]["second_left_ms"].as_u64() > Some(0), "{act}: {seen}");
        }
    }
    assert_eq!(
        (&seen["with"]["late_write"], &seen["with"]["value"]),
        (&"refused".into(), &"250, says B".into())
    );
}

#[test]
fn jitter_and_batching_calm_a_storm() {
    let _turn = alone();
    let seen = seen_in("storm");
    let (without, with) = (&seen["without"], &seen["with"]);
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("a number: {seen}"));
    assert_eq!(number(&without["peak_per_100ms"]), number(&seen["fleet"]), "all in step");
    assert!(number(&with["peak_per_100ms"]) * 5.0 < number(&without["peak_per_100ms"]), "{seen}");
    assert_eq!((&with["renewals"], &with["lost"]), (&seen["fleet"], &0.into()));
    assert!(number(&with["entries"]) * 5.0 < number(&with["renewals"]), "hardly batched: {seen}");
}
