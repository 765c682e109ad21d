//! The screen as it is printed.

use std::time::Duration;

use expect_test::expect;
use serde_json::json;

use super::*;

fn glance(numbers: Option<Numbers>) -> Glance {
    let node = |number: u64, role: &str, reachable: bool, last_log: Option<u64>| {
        json!({
            "node": number, "peer_address": format!("10.0.0.{number}:7500"), "client_address": format!("10.0.0.{number}:7400"),
            "role": role, "reachable": reachable, "last_log": last_log, "version": "0.1.0", "identity": "00",
        })
    };
    let cluster = json!({
        "cluster": "50d3ef887bd783b56b13de44afb2aa63", "leader": 1, "term": 3, "node": 1, "applied": 900, "committed": 900,
        "nodes": [node(1, "leader", true, Some(900)), node(2, "follower", true, Some(897)), node(3, "follower", false, None)],
        "revision": 812, "last_token": 337, "cluster_time_us": 83_000_000_u64, "sessions": 7, "leases": 302, "waiters": 2,
        "fault_tolerant": true,
    });
    let holder = |holder: &str, token: u64, slot: Option<u32>, left: u64| {
        json!({
            "session_number": token, "holder": holder, "mode": "exclusive", "slot": slot, "token": token, "generation": 5,
            "remaining_ms": left, "ttl_ms": 10_000, "held_ms": 61_000,
        })
    };
    let waiter = json!({
        "session_number": 9, "holder": "node-c", "mode": "exclusive", "priority": 0, "waited_ms": 400, "remaining_ms": null,
    });
    let fences = json!([
        {"fence": "pg:ledger", "armed": [{"token": 336}], "refused": 14},
        {"fence": "s3:reports", "armed": [{"token": 12}], "refused": 0},
    ]);
    let lease = |resource: &str, holders: Vec<serde_json::Value>, waiters: Vec<serde_json::Value>, fences| {
        json!({
            "resource": resource, "state": "held", "kind": null, "holders": holders, "holder": "x", "token": 337,
            "generation": 5, "remaining_ms": 1, "waiting": waiters.len(), "waiters": waiters, "fences": fences,
        })
    };
    let mut noticed = holder("reporter", 12, None, 4_200);
    noticed["notice"] = json!("revoked");
    let leases = json!([
        lease("settlement/cron", vec![holder("node-b:4711", 336, None, 1_900)], vec![waiter], fences),
        lease(
            "gpu/pool",
            vec![holder("trainer-0", 306, Some(0), 10_000), holder("trainer-1", 307, Some(1), 0)],
            vec![],
            json!([])
        ),
        lease(
            "reports/with a name that no screen has room for, whatever one does",
            vec![noticed],
            vec![],
            json!([])
        ),
    ]);
    Glance {
        cluster: serde_json::from_value(cluster).expect("a status"),
        leases: serde_json::from_value(leases).expect("leases"),
        more: true,
        numbers,
    }
}

fn frame(height: Option<usize>, width: usize) -> Frame {
    Frame { height, width, skipped: 0, trouble: None, keys: None }
}

const NUMBERS: Numbers = Numbers {
    grants: 337,
    renewals: 14_000,
    expired: 2,
    refused: 14,
    near_misses: 0,
    dropped_seconds: 0.012,
    late_seconds: Some(0.005),
};

#[test]
fn a_screen_tells_everything_at_a_glance() {
    let before = glance(Some(Numbers { grants: 335, renewals: 13_900, ..NUMBERS }));
    let now = glance(Some(NUMBERS));
    let since = Some((&before, Duration::from_secs(2)));
    expect![[r#"
        tenure 50d3ef8…  degraded  node 1 leads in term 3  2 of 3 nodes answer
        7 sessions  302 resources in use  2 queued  revision 812  last token 337  cluster time 1m 23s
        grants 1.0/s  renewals 50.0/s  expired 2  refused stale writes 14  near misses 0  dropped 12ms  expiry late <= 5ms

        NODE  ROLE      HEARD  LOG  BEHIND  CLIENTS
           1  leader    yes    900       0  10.0.0.1:7400
           2  follower  yes    897       3  10.0.0.2:7400
           3  follower  no       -       -  10.0.0.3:7400

        RESOURCE                                 HOLDER       TOKEN  GEN  LEFT                      LINE  FENCES
        settlement/cron                          node-b:4711    336    5  ██········  1.9s             1     1/2
        gpu/pool#0                               trainer-0      306    5  ██████████  10s                      -
        gpu/pool#1                               trainer-1      307    5  ··········  0ms                      -
        reports/with a name that no screen has…  reporter        12    5  █████·····  4.2s revoked             -
        and more; name a prefix to see others
    "#]]
    .assert_eq(&render(&now, since, &frame(None, 120), Paint::new(false)));
}

#[test]
fn a_first_look_counts_instead_of_comparing_and_fits_the_screen() {
    let keys = Frame { keys: Some("q ends it".into()), ..frame(Some(24), 80) };
    for paint in [Paint::new(false), Paint::new(true)] {
        let text = render(&glance(Some(NUMBERS)), None, &keys, paint);
        assert_eq!(text.lines().count(), 24, "{text}");
        assert!(text.lines().all(|line| visible(line) <= 80), "{text}");
        assert!(text.contains("grants 337  renewals 14000"), "{text}");
        assert!(text.lines().last().expect("a line").contains("1-4 of the first 4  q ends it"), "{text}");
    }
    let without = render(&glance(None), None, &frame(None, 80), Paint::new(false));
    assert!(!without.contains("grants"), "{without}");
}

#[test]
fn a_small_screen_is_scrolled_and_never_past_its_end() {
    let shown = |skipped| {
        let frame = Frame { skipped, keys: Some("q".into()), ..frame(Some(14), 80) };
        render(&glance(Some(NUMBERS)), None, &frame, Paint::new(false))
    };
    assert!(shown(0).contains("settlement/cron") && !shown(0).contains("reports/"), "{}", shown(0));
    assert!(!shown(99).contains("settlement/cron") && shown(99).contains("reports/"), "{}", shown(99));
    assert_eq!(shown(99).lines().count(), 14);
}

#[test]
fn leases_are_sorted_as_asked_for() {
    let first = |by: Sort| {
        let mut glance = glance(None);
        glance.sort(by);
        glance.leases[0].resource.clone()
    };
    assert_eq!(first(Sort::Left), "gpu/pool");
    assert_eq!(first(Sort::Waiters), "settlement/cron");
    assert_eq!(first(Sort::Name), "gpu/pool");
    let round = (0..4).fold(Sort::Left, |by, _| by.next());
    assert_eq!(round, Sort::Left);
}

#[test]
fn a_line_is_cut_where_the_screen_ends_and_its_colours_with_it() {
    let painted = Paint::new(true).warn("degraded");
    assert_eq!(visible(&painted), 8);
    assert_eq!(clip(&painted, 3), Paint::new(true).warn("deg"));
}

#[test]
fn numbers_are_read_from_the_metrics_of_a_node() {
    let page = "# HELP tenure_grants_total Leases granted.\n# TYPE tenure_grants_total counter\ntenure_grants_total 337\n\
        tenure_renewals_total 14000\ntenure_ends_total{why=\"released\"} 9\ntenure_ends_total{why=\"expired\"} 2\n\
        tenure_fence_refusals_total 13\ntenure_register_refusals_total 1\ntenure_time_dropped_seconds_total 0.012\n\
        tenure_expiry_lateness_seconds_bucket{le=\"0.001\"} 1\ntenure_expiry_lateness_seconds_bucket{le=\"0.005\"} 2\n\
        tenure_expiry_lateness_seconds_bucket{le=\"+Inf\"} 2\n";
    assert_eq!(Numbers::read(page), NUMBERS);
    assert_eq!(Numbers::read(""), Numbers::default());
}

#[test]
fn a_bar_is_as_long_as_what_is_left() {
    assert_eq!(bar(10_000, 10_000, 10), "██████████");
    assert_eq!(bar(1, 10_000, 10), "█·········");
    assert_eq!(bar(0, 10_000, 6), "······");
    assert_eq!(bar(20_000, 10_000, 6), "██████");
}
