//! Waiting is the server's job: the command that frees a resource grants it to the next in the queue, and the
//! next in the queue is notified by push (`waiters_move`).

use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tenure_e2e::{Cluster, Node, ServerSentEvent, alone, alongside, tenure_binary, until};

const WAITERS: usize = 100;

fn waiters(lease: &Value) -> usize {
    lease["waiters"].as_array().map_or(0, Vec::len)
}

/// What a message of the watch tells about: its own kind, and those of the events of its revision.
fn kinds(message: &ServerSentEvent) -> Vec<String> {
    let events = message.data["events"].as_array().cloned().unwrap_or_default();
    let mut kinds: Vec<String> = events
        .iter()
        .chain([&message.data])
        .filter_map(|event| event["kind"].as_str())
        .map(String::from)
        .collect();
    kinds.push(message.name.clone());
    kinds
}

/// With a hundred in the queue a release grants the first of them in the same revision; the others stay in
/// the queue.
#[test]
fn a_release_grants_the_first_in_the_queue_in_the_same_revision() {
    let _turn = alone();
    let node = Node::start("line");
    let mut http = node.http();
    let path = "/v1/leases/line/one:acquire";
    let first = http.post(path, &json!({"holder": "first", "ttl_ms": 60_000})).expect(200);
    let (tell, received) = mpsc::channel();
    std::thread::scope(|scope| {
        for number in 0..WAITERS {
            let tell = tell.clone();
            let mut waiter = node.http();
            scope.spawn(move || {
                let body = json!({"holder": format!("waiter-{number}"), "ttl_ms": 60_000, "wait_ms": 60_000});
                let reply = waiter.post(path, &body);
                // The test may be over already for whoever comes late.
                let _ = tell.send((number, Instant::now(), reply));
            });
            // One after the other, so that the order in the queue is known.
            until("the next one is queued", Duration::from_secs(10), || {
                waiters(&http.get("/v1/leases/line/one").expect(200)) == number + 1
            });
        }

        let watch = node.http().with_limit(Duration::from_secs(10)).events("/v1/watch?prefix=line/", None);
        let released = Instant::now();
        let body = json!({"session": first["session"]});
        assert_eq!(http.post("/v1/leases/line/one:release", &body).expect(200)["released"], true);
        let (number, at, reply) =
            received.recv_timeout(Duration::from_secs(5)).expect("the first in the queue is notified");
        let grant = reply.expect(200);
        println!("granted {:?} after the release was sent", at - released);
        assert_eq!((number, &grant["token"], &grant["generation"]), (0, &json!(2), &json!(2)));
        assert!(at - released < Duration::from_secs(1), "a push, not a poll");
        assert!(grant["waited_ms"].as_u64().is_some(), "a waited grant says how long: {grant}");
        assert_eq!(waiters(&http.get("/v1/leases/line/one").expect(200)), WAITERS - 1);

        let (mut ended, mut granted) = (None, None);
        for message in watch {
            for kind in kinds(&message) {
                match kind.as_str() {
                    "ended" => ended = message.data["revision"].as_u64(),
                    "granted" => granted = message.data["revision"].as_u64(),
                    _ => {}
                }
            }
            if granted.is_some() {
                break;
            }
        }
        assert!(ended.is_some(), "the watch tells of the end");
        assert_eq!(ended, granted, "the end and the next grant are one revision");

        // The rest of the queue moves one by one, in order, until nobody waits.
        let mut session = grant["session"].clone();
        for expected in 1..WAITERS {
            http.post("/v1/leases/line/one:release", &json!({"session": session})).expect(200);
            let (number, _, reply) =
                received.recv_timeout(Duration::from_secs(5)).expect("the next in the queue is notified");
            assert_eq!(number, expected, "first come, first served");
            session = reply.expect(200)["session"].clone();
        }
    });
}

/// Any node will do. A follower learns that the caller waits in the queue before it has applied that itself;
/// it must not take the wait for one that is over (it did: who asked a follower was refused at once and left
/// a waiter behind).
#[test]
fn a_wait_through_a_follower_is_a_wait() {
    let _turn = alongside();
    let cluster = Cluster::start("follower-wait", 3);
    let leader = cluster.leader();
    let follower = (1..=3).find(|node| *node != leader).expect("three nodes");
    let mut http = cluster.node(leader).http();
    let path = "/v1/leases/line/three:acquire";
    let first = http.post(path, &json!({"holder": "first", "ttl_ms": 60_000})).expect(200);

    let mut patient = cluster.node(follower).http();
    for _ in 0..10 {
        let reply = patient.post(path, &json!({"holder": "patient", "ttl_ms": 5_000, "wait_ms": 200}));
        assert_eq!((reply.status, reply.code().as_str()), (409, "held"));
        let waited = reply.json()["error"]["waited_ms"].as_u64().unwrap_or(0);
        assert!(waited >= 150, "asked for 200 ms, told of {waited} ms");
    }
    assert_eq!(waiters(&http.get("/v1/leases/line/three").expect(200)), 0);

    std::thread::scope(|scope| {
        let next = scope.spawn(move || {
            patient.post(path, &json!({"holder": "next", "ttl_ms": 60_000, "wait_ms": 60_000})).expect(200)
        });
        until("it is queued", Duration::from_secs(10), || {
            waiters(&http.get("/v1/leases/line/three").expect(200)) == 1
        });
        http.post("/v1/leases/line/three:release", &json!({"session": first["session"]})).expect(200);
        let grant = next.join().expect("no panic");
        assert_eq!((&grant["holder"], &grant["token"]), (&json!("next"), &json!(2)));
    });
}

/// A wait that is over, and a waiter that hung up, leave nothing in the queue.
#[test]
fn who_gave_up_is_not_queued() {
    let _turn = alongside();
    let node = Node::start("gave-up");
    let mut http = node.http();
    let path = "/v1/leases/line/two:acquire";
    http.post(path, &json!({"holder": "first", "ttl_ms": 60_000})).expect(200);

    let reply = http.post(path, &json!({"holder": "patient", "ttl_ms": 5_000, "wait_ms": 300}));
    assert_eq!((reply.status, reply.code().as_str()), (409, "held"));
    let waited = reply.json()["error"]["waited_ms"].as_u64().expect("a refused wait says how long it was");
    assert!((250..30_000).contains(&waited), "asked for 300 ms, told of {waited} ms");
    assert_eq!(waiters(&http.get("/v1/leases/line/two").expect(200)), 0);

    let mut hasty = node.http();
    hasty.send_and_hang_up(
        "POST",
        path,
        Some(&json!({"holder": "hasty", "ttl_ms": 1_000, "wait_ms": 60_000})),
    );
    // Its implicit session is kept alive only while the request is open, so at the latest its TTL ends it.
    until("nobody is queued", Duration::from_secs(5), || {
        waiters(&http.get("/v1/leases/line/two").expect(200)) == 0
    });
}

/// `tenure acquire --wait` ended by a signal: its place in the queue was kept until its TTL had passed.
#[test]
fn who_is_interrupted_leaves_the_queue_at_once() {
    let _turn = alongside();
    let node = Node::start("interrupted");
    let mut http = node.http();
    http.post("/v1/leases/line/cli:acquire", &json!({"holder": "first", "ttl_ms": 3_600_000})).expect(200);
    for (signal, exit) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut command = Command::new(tenure_binary());
        command
            .args(["acquire", "line/cli", "--wait", "--ttl", "1h"])
            .env("TENURE_ENDPOINTS", node.endpoint());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be started");
        until("it is queued", Duration::from_secs(10), || {
            waiters(&http.get("/v1/leases/line/cli").expect(200)) == 1
        });
        kill_process(Pid::from_child(&child), signal).expect("a child can be signalled");
        let output = child.wait_with_output().expect("a child can be waited for");
        assert_eq!(waiters(&http.get("/v1/leases/line/cli").expect(200)), 0, "{output:?}");
        assert_eq!(output.status.code(), Some(exit), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("no longer queued for line/cli"), "{said}");
        assert!(output.stdout.is_empty(), "nothing was granted: {output:?}");
    }
}

/// A session that waits in the queue of a cluster is told of its grant, its notice and its end by the node that it
/// follows, a follower: long before its next renewal would have told it.
#[test]
fn a_session_is_told_its_grant_at_any_node() {
    let _turn = alongside();
    let cluster = Cluster::start("session-events", 3);
    let leader = cluster.leader();
    let mut http = cluster.node(leader).http();
    let mut follower = cluster.node(leader % 3 + 1).http();
    let held = http.post("/v1/leases/r:acquire", &json!({"holder": "a", "ttl_ms": 60_000})).expect(200);
    let opened = follower.post("/v1/sessions", &json!({"holder": "b", "ttl_ms": 60_000})).expect(200);
    let session = opened["session"].as_str().expect("an id").to_string();
    let mut events = follower.session_events(&session);
    assert_eq!(events.next().expect("how things stand").name, "session");
    let wait = json!({"number": 1, "wait_ms": 60_000, "poll_ms": 1});
    follower.own(&session, "POST", "/v1/leases/r:acquire", Some(&wait)).expect(202);
    http.post("/v1/leases/r:release", &json!({"session": held["session"]})).expect(200);
    let granted = events.next().expect("the grant");
    assert_eq!((granted.name.as_str(), &granted.data["resource"]), ("granted", &json!("r")));
    http.own(&session, "DELETE", "/v1/session", None).expect(200);
    let ended: Vec<String> = events.by_ref().map(|event| event.name).collect();
    assert_eq!(ended, ["ended", "closed"], "and the stream ends with the session");
}
