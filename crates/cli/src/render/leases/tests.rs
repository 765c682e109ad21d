//! What people and programs see, with fixed values.

use expect_test::expect;
use tenure_client::proto;

use super::*;
use crate::render::Paint;

const EYES: Form = Form::Terminal(Paint::new(false));

fn grant(resource: &str, token: u64) -> Granted {
    tenure_wire::json::Granted::from(&proto::Grant {
        resource: resource.into(),
        session: "7-9f86d081884c7d659a2feaa0c55ad015".into(),
        session_number: 7,
        holder: "it's me".into(),
        token,
        generation: 3,
        remaining_ms: 10_000,
        ttl_ms: 10_000,
        ..Default::default()
    })
}

fn holding() -> proto::Holding {
    proto::Holding {
        session_number: 7,
        holder: "node-a".into(),
        token: 12,
        generation: 4,
        remaining_ms: 7_250,
        ttl_ms: 10_000,
        held_ms: 252_000,
        ..Default::default()
    }
}

fn held() -> Lease {
    let waiter = proto::WaiterView { session_number: 9, holder: "node-b".into(), ..Default::default() };
    let lease = proto::Lease {
        resource: "settlement/cron".into(),
        holders: vec![holding()],
        token: Some(12),
        generation: 4,
        waiters: vec![waiter],
        waiting: 1,
        ..Default::default()
    };
    tenure_wire::json::Lease::of(&lease, &[])
}

fn free() -> Lease {
    let lease = proto::Lease {
        resource: "jobs/nightly".into(),
        token: Some(3),
        generation: 2,
        delayed_ms: Some(1_500),
        ..Default::default()
    };
    tenure_wire::json::Lease::of(&lease, &[])
}

fn fence(resource: &str, slot: Option<u32>, token: u64) -> proto::FenceView {
    proto::FenceView {
        resource: resource.into(),
        fence: format!("postgres:{token}"),
        armed: vec![proto::ArmedToken { slot, token, current: false }],
        refused: 14,
        refused_unix_ms: None,
    }
}

/// Held, with one fence that has the newest token and one that has not.
fn fenced() -> Lease {
    let mut lease = held();
    let fences = [fence("settlement/cron", None, 12), fence("settlement/cron", None, 11)];
    let named = proto::Lease { resource: "settlement/cron".into(), ..Default::default() };
    lease.fences = tenure_wire::json::Lease::of(&named, &fences).fences;
    lease
}

#[test]
fn exports_survive_the_shell() {
    expect![[r#"
        export TENURE_RESOURCE='settlement/cron'
        export TENURE_TOKEN='12'
        export TENURE_GENERATION='3'
        export TENURE_SESSION='7-9f86d081884c7d659a2feaa0c55ad015'
        export TENURE_HOLDER='it'\''s me'
        export TENURE_TTL_MS='10000'
        export TENURE_ENDPOINTS='127.0.0.1:7400'"#]]
    .assert_eq(&export(&[grant("settlement/cron", 12)], "127.0.0.1:7400"));
}

#[test]
fn several_exports_are_numbered_and_share_the_session() {
    expect![[r#"
        export TENURE_RESOURCE_1='shard/1'
        export TENURE_TOKEN_1='12'
        export TENURE_GENERATION_1='3'
        export TENURE_RESOURCE_2='shard/2'
        export TENURE_TOKEN_2='13'
        export TENURE_GENERATION_2='3'
        export TENURE_SESSION='7-9f86d081884c7d659a2feaa0c55ad015'
        export TENURE_HOLDER='it'\''s me'
        export TENURE_TTL_MS='10000'
        export TENURE_ENDPOINTS='a:1'"#]]
    .assert_eq(&export(&[grant("shard/1", 12), grant("shard/2", 13)], "a:1"));
}

#[test]
fn a_grant_names_token_and_session() {
    let mut waited = grant("settlement/cron", 12);
    waited.waited_ms = 3_100;
    expect![[r#"
        granted settlement/cron is it's me's after 3.1s in the queue: token 12, generation 3
        session 7-9f86d081884c7d659a2feaa0c55ad015, 10s unless renewed"#]]
    .assert_eq(&granted(&[waited.clone()], EYES));
    assert_eq!(
        granted(&[waited], Form::Plain),
        "settlement/cron\t12\t7-9f86d081884c7d659a2feaa0c55ad015\t10000\n"
    );
}

#[test]
fn one_resource_is_shown_line_by_line() {
    expect![[r#"
        resource    settlement/cron
        state       held
        holder      node-a (session 7, token 12, exclusive)
        token       12
        generation  4
        remaining   7.2s
        waiters     1
    "#]]
    .assert_eq(&lease(&held(), EYES));
    expect![[r#"
        resource	jobs/nightly
        state	free
        token	3
        generation	2
        delayed	1.5s (lock-delay after an unclean end)
        waiters	0
    "#]]
    .assert_eq(&lease(&free(), Form::Plain));
    let rendered = lease(&fenced(), EYES);
    expect![[r#"
        fence       postgres:12 (armed with token 12, refused 14 stale writes)
        fence       postgres:11 (armed with token 11 (behind), refused 14 stale writes)"#]]
    .assert_eq(&rendered.lines().skip(7).collect::<Vec<_>>().join("\n"));
}

#[test]
fn a_list_has_one_line_per_holder() {
    let mut slots = proto::Lease { resource: "api/quota".into(), token: Some(21), ..Default::default() };
    let mode = Some(proto::Mode { kind: proto::ModeKind::Slots.into(), slots: 5 });
    slots.holders = vec![
        proto::Holding { slot: Some(0), mode, ..holding() },
        proto::Holding {
            slot: Some(3),
            mode,
            holder: "node-c".into(),
            notice: proto::EndReason::Revoked.into(),
            ..holding()
        },
    ];
    expect![[r#"
        RESOURCE         HOLDER  TOKEN  GEN           LEFT  HELD AS           WAITING  FENCES
        settlement/cron  node-a     12    4           7.2s  exclusive               1  1 of 2 armed
        api/quota        node-a     12    4           7.2s  slot 0 (slots=5)        0  1 armed
        api/quota        node-c     12    4  7.2s (notice)  slot 3 (slots=5)        0  1 armed
        jobs/nightly     -           -    -              -  -                       0  none
    "#]]
    .assert_eq(&list(
        &[fenced(), tenure_wire::json::Lease::of(&slots, &[fence("api/quota", Some(0), 12)]), free()],
        EYES,
    ));
}

#[test]
fn history_says_why() {
    let present = tenure_wire::json::Holder::from(&proto::Holding { held_ms: 5_000, ..holding() });
    let past = proto::Transition {
        token: 11,
        generation: 3,
        session_number: 5,
        holder: "node-b".into(),
        from_unix_ms: 1_699_999_000_000,
        to_unix_ms: Some(1_699_999_990_000),
        held_ms: 990_000,
        why: proto::EndReason::Revoked.into(),
        reason: "stuck".into(),
        ..Default::default()
    };
    let past = tenure_wire::json::Transition::of(&past).expect("it has ended");
    expect![[r#"
        TOKEN  GEN  HOLDER  SESSION  HELD AS    FROM                  TO                       HELD  WHY
           12    4  node-a        7  exclusive  5s ago                now                        5s  held
           11    3  node-b        5  exclusive  2023-11-14 21:56:40Z  2023-11-14 22:13:10Z  16m 30s  revoked: stuck
    "#]]
    .assert_eq(&history(&[present], &[past], EYES));
}

#[test]
fn registers_stay_on_their_line() {
    let register = |key: &[u8], value: &[u8]| {
        tenure_wire::json::Register::from(&proto::Register {
            key: key.to_vec(),
            value: Some(value.to_vec()),
            create_revision: 3,
            mod_revision: 9,
            version: 2,
            guard: Some(proto::Scope { resource: "settlement/cron".into(), slot: Some(1) }),
            ..Default::default()
        })
    };
    expect![[r#"
        KEY     VERSION  REVISION  GUARD              VALUE
        cursor        2         9  settlement/cron#1  row\n17
        raw           2         9  settlement/cron#1  base64:/w==
    "#]]
    .assert_eq(&registers(&[register(b"cursor", b"row\n17"), register(b"raw", &[0xff])], EYES));
}

#[test]
fn a_single_node_is_called_what_it_is() {
    let status = proto::ClusterStatusResponse {
        cluster: "c0ffee".into(),
        leader: Some(1),
        term: 2,
        nodes: vec![proto::NodeStatus {
            node: 1,
            client_address: "127.0.0.1:7400".into(),
            role: "leader".into(),
            reachable: true,
            last_log: Some(17),
            version: "0.1.0".into(),
            ..Default::default()
        }],
        node: 1,
        applied: 17,
        committed: 17,
        revision: 8,
        last_token: 3,
        sessions: 1,
        format: 2,
        ..Default::default()
    };
    expect![[r#"
        cluster c0ffee: node 1 leads in term 2.
        A single node: durable, not fault-tolerant. While it is down nothing is granted.
        1 session, 0 resources in use, 0 waiters; last token 3, revision 8, format version 2; node 1 has applied 17 of 17.

        NODE  ROLE    CLIENTS         PEERS  LOG  BEHIND  HEARD  VERSION
           1  leader  127.0.0.1:7400          17       0  yes    0.1.0
    "#]]
    .assert_eq(&cluster(&tenure_wire::json::ClusterStatus::from(&status), EYES));

    // Two others have been added and do not vote yet.
    let mut growing = status;
    growing.nodes[0].peer_address = "a:1".into();
    for (node, address) in [(2, "b:1"), (3, "c:1")] {
        growing.nodes.push(proto::NodeStatus {
            node,
            peer_address: address.into(),
            role: "learner".into(),
            reachable: true,
            last_log: Some(9),
            version: "0.1.0".into(),
            ..Default::default()
        });
    }
    expect![[r#"
        cluster c0ffee: node 1 leads in term 2.
        A single node: durable, not fault-tolerant. While it is down nothing is granted.
        Nodes 2 and 3 learn and do not vote yet; if nobody is adding them: tenure cluster add 2=b:1 3=c:1
        1 session, 0 resources in use, 0 waiters; last token 3, revision 8, format version 2; node 1 has applied 17 of 17.

        NODE  ROLE     CLIENTS         PEERS  LOG  BEHIND  HEARD  VERSION
           1  leader   127.0.0.1:7400  a:1     17       0  yes    0.1.0
           2  learner                  b:1      9       8  yes    0.1.0
           3  learner                  c:1      9       8  yes    0.1.0
    "#]]
    .assert_eq(&cluster(&tenure_wire::json::ClusterStatus::from(&growing), EYES));
}

#[test]
fn a_history_says_where_it_was_cut() {
    let cut = |leases, limit: Option<&str>| {
        let known = limit.map(|limit| (limit.to_owned(), 1_000, 57, 1_794_775_729_123));
        dropped(&HistoryDropped::from(&proto::HistoryDropped {
            leases,
            limit: known.as_ref().map(|known| known.0.clone()),
            max: known.as_ref().map(|known| known.1),
            token: known.as_ref().map(|known| known.2),
            ended_unix_ms: known.as_ref().map(|known| known.3),
        }))
    };
    expect!["1 older lease was dropped"].assert_eq(&cut(1, None));
    let text = cut(12, Some("history_per_resource_max"));
    assert!(
        text.starts_with("12 older leases were dropped by the limit history_per_resource_max = 1000; "),
        "{text}"
    );
    assert!(text.contains("every lease above token 57 is listed"), "{text}");
}
