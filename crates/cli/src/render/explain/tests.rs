//! What `explain` prints, with fixed values.

use expect_test::expect;
use tenure_client::proto;

use super::*;

const DRY: Paint = Paint::new(false);

fn holding(holder: &str, token: u64) -> proto::Holding {
    proto::Holding {
        session_number: 7,
        holder: holder.into(),
        token,
        generation: 4,
        remaining_ms: 7_200,
        ttl_ms: 10_000,
        held_ms: 252_000,
        ..Default::default()
    }
}

fn lease(holders: Vec<proto::Holding>) -> proto::Lease {
    proto::Lease {
        resource: "settlement/cron".into(),
        holders,
        token: Some(12),
        generation: 4,
        ..Default::default()
    }
}

fn waiter(holder: &str, session_number: u64) -> proto::WaiterView {
    proto::WaiterView { session_number, holder: holder.into(), waited_ms: 3_100, ..Default::default() }
}

fn past() -> Vec<Transition> {
    let lease = proto::Transition {
        token: 11,
        generation: 3,
        holder: "node-x".into(),
        to_unix_ms: Some(1_700_000_000_000),
        held_ms: 182_000,
        why: proto::EndReason::Expired.into(),
        ..Default::default()
    };
    tenure_wire::json::Transition::of(&lease).into_iter().collect()
}

fn fence(name: &str, token: u64, refused: u64) -> proto::FenceView {
    proto::FenceView {
        resource: "settlement/cron".into(),
        fence: name.into(),
        armed: vec![proto::ArmedToken { slot: None, token, current: token == 12 }],
        refused,
        refused_unix_ms: (refused > 0).then_some(1_700_000_000_000),
    }
}

#[test]
fn a_held_lease_with_a_queue_and_fences() {
    let mut view = lease(vec![holding("node-a", 12)]);
    view.waiters = vec![
        proto::WaiterView { remaining_ms: Some(6_900), priority: 5, ..waiter("node-b", 9) },
        waiter("node-c", 10),
    ];
    let fences = [fence("postgres:orders", 12, 0), fence("s3:reports", 11, 4)];
    let shape = tenure_wire::json::Lease::of(&view, &fences);
    expect![[r#"
        settlement/cron is held by node-a (session 7), for 4m 12s now.
        Its token is 12; storage that has seen it refuses every smaller one. The resource has changed hands 4 times.
        Its TTL is 10s, of which 7.2s are left. If node-a falls silent, the lease ends then: not earlier, and later only by a commit. If it renews, the 10s begin again.

        2 waiters in the queue, the next one first:
          1. node-b (session 9) for 3.1s, priority 5; gives up in 6.9s
          2. node-c (session 10) for 3.1s; waits as long as its session lives
        node-b waits for node-a and is granted it in the very step in which that lease ends.

        Fence postgres:orders has installed token 12: smaller ones are refused.
        Fence s3:reports has installed only token 11: until token 12 reaches it, late writes of the previous holder pass. It has refused 4 stale writes, last at 2023-11-14 22:13:20Z.

        Before:
          node-x held it under token 11 for 3m 2s, until 2023-11-14 22:13:20Z; it expired: no renewal came in time.
    "#]]
    .assert_eq(&explain(&shape, &past(), DRY));
}

#[test]
fn a_free_resource_says_what_was() {
    let shape = tenure_wire::json::Lease::of(&lease(vec![]), &[]);
    expect![[r#"
        settlement/cron is free. Its newest token is 12; it has changed hands 4 times.
        node-x held it last, for 3m 2s, until 2023-11-14 22:13:20Z; it expired: no renewal came in time.
        The next acquire is granted at once, under a higher token.

        Nobody waits for it.

        No fence is known for it: if a holder is paused and wakes up too late, nothing but its own clock keeps its writes out.

        Before:
          node-x held it under token 11 for 3m 2s, until 2023-11-14 22:13:20Z; it expired: no renewal came in time.
    "#]]
    .assert_eq(&explain(&shape, &past(), DRY));
}

#[test]
fn notices_lapses_and_delays_are_named() {
    let rendered = |view: &proto::Lease| explain(&tenure_wire::json::Lease::of(view, &[]), &[], DRY);
    let noticed = proto::Holding { notice: proto::EndReason::Revoked.into(), ..holding("node-a", 12) };
    assert!(
        rendered(&lease(vec![noticed]))
            .contains("under notice (revoked): it ends when node-a confirms, or in 7.2s")
    );
    let lapsed = proto::Holding { lapsed: true, ..holding("node-a", 12) };
    assert!(rendered(&lease(vec![lapsed])).contains("has lapsed: past its TTL of 10s"));
    let mut delayed = lease(vec![]);
    delayed.delayed_ms = Some(3_000);
    delayed.waiters = vec![waiter("node-b", 9)];
    let text = rendered(&delayed);
    assert!(text.contains("rests for another 3s"), "{text}");
    assert!(text.contains("1 waiter in the queue"), "{text}");
    assert!(text.contains("node-b is granted it when the lock-delay is over, in 3s"), "{text}");
}

#[test]
fn sharers_and_slots_are_shown_one_by_one() {
    let mode = |kind: proto::ModeKind, slots| Some(proto::Mode { kind: kind.into(), slots });
    let shared = |holder| proto::Holding { mode: mode(proto::ModeKind::Shared, 0), ..holding(holder, 12) };
    let mut view = lease(vec![shared("node-a"), shared("node-b")]);
    view.waiters = vec![waiter("node-w", 9)];
    let text = explain(&tenure_wire::json::Lease::of(&view, &[]), &[], DRY);
    assert!(text.contains("settlement/cron is shared by 2 holders"), "{text}");
    assert!(text.contains("node-w wants it alone and waits until all 2 have given it back"), "{text}");

    let slot =
        proto::Holding { slot: Some(3), mode: mode(proto::ModeKind::Slots, 5), ..holding("node-a", 12) };
    let text = explain(&tenure_wire::json::Lease::of(&lease(vec![slot]), &[]), &[], DRY);
    assert!(text.contains("is a semaphore: 1 of its 5 slots are held"), "{text}");
    assert!(
        text.contains("slot 3: node-a (session 7) under token 12, for 4m 12s; 7.2s of 10s left"),
        "{text}"
    );
}

#[test]
fn leases_that_are_never_given_back_are_called_by_the_name_of_the_bug() {
    let shape = tenure_wire::json::Lease::of(&lease(vec![holding("node-a", 12)]), &[]);
    let expired = past().remove(0);
    let released = Transition { why: "released".into(), ..expired.clone() };
    let habit = explain(&shape, &[expired.clone(), expired.clone(), released.clone()], DRY);
    assert!(habit.contains("2 of the last 3 leases expired") && habit.contains("no hand-over"), "{habit}");
    let orderly = explain(&shape, &[expired.clone(), released.clone(), released], DRY);
    assert!(!orderly.contains("no hand-over"), "{orderly}");
    assert!(
        !explain(&shape, &[expired.clone(), expired], DRY).contains("no hand-over"),
        "two may be accidents"
    );
}
