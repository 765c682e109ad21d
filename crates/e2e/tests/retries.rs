//! Every answer is lost once, for every numbered command: the repeated command gets the first answer, and
//! no ghost lease, waiter or session remains.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_e2e::{Http, Node, Reply, alongside, until};

/// How the first answer gets lost.
#[derive(Clone, Copy, Debug)]
enum Lost {
    /// It is on its way when the caller has stopped listening.
    Unread,
    /// The caller hangs up as soon as it has sent; the server may or may not have taken it in.
    HungUp,
}

/// Sends a command, loses its answer, sends it again twice: both answers are the same.
fn lose_and_repeat(http: &mut Http, lost: Lost, method: &str, path: &str, body: &Value) -> Value {
    match lost {
        Lost::Unread => drop(call(http, method, path, body)),
        Lost::HungUp => http.send_and_hang_up(method, path, Some(body)),
    }
    let second = call(http, method, path, body);
    let third = call(http, method, path, body);
    assert_eq!(second.status, 200, "{lost:?} {method} {path}: {}", String::from_utf8_lossy(&second.body));
    // What remains of a lease shrinks between two answers; everything else is the remembered answer.
    let same = |reply: &Reply| {
        let mut body = reply.json();
        if let Some(fields) = body.as_object_mut() {
            fields.remove("remaining_ms");
        }
        body
    };
    assert_eq!(same(&second), same(&third), "{lost:?} {method} {path}");
    second.json()
}

fn call(http: &mut Http, method: &str, path: &str, body: &Value) -> Reply {
    http.call(method, path, Some(body)).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
}

fn held_now(http: &mut Http, prefix: &str) -> usize {
    let listed = http.get(&format!("/v1/leases?prefix={prefix}")).expect(200);
    listed["leases"].as_array().expect("a list of leases").len()
}

fn a_life_with_lost_answers(lost: Lost) {
    let node = Node::start("retries");
    let mut http = node.http();
    let nonce = "00112233445566778899aabbccddeeff";
    let open = json!({"holder": "a", "ttl_ms": 60_000, "nonce": nonce});
    let opened = lose_and_repeat(&mut http, lost, "POST", "/v1/sessions", &open);
    let session = opened["session"].as_str().expect("an id").to_string();
    let mut number = 0;
    let mut numbered = |mut body: Value| {
        number += 1;
        body["session"] = json!(session);
        body["number"] = json!(number);
        body["lowest_awaited"] = json!(number);
        body
    };

    let acquire = numbered(json!({}));
    let grant = lose_and_repeat(&mut http, lost, "POST", "/v1/leases/retry/one:acquire", &acquire);
    assert_eq!((&grant["token"], &grant["generation"]), (&json!(1), &json!(1)), "one grant, not three");
    assert_eq!(held_now(&mut http, "retry/"), 1);

    // A compare-and-set must not fail on its own success.
    let body = numbered(json!({"value": "1", "resource": "retry/one", "token": 1, "if_version": 0}));
    let written = lose_and_repeat(&mut http, lost, "PUT", "/v1/registers/retry/key", &body);
    assert_eq!(http.get("/v1/registers/retry/key").expect(200)["version"], 1, "written once: {written}");

    let release = numbered(json!({}));
    let released = lose_and_repeat(&mut http, lost, "POST", "/v1/leases/retry/one:release", &release);
    assert_eq!(released["released"], true, "the first answer, although nothing is left to release");
    assert_eq!(held_now(&mut http, "retry/"), 0);

    // The acquire arrives once more, late: its number is forgotten, so it is refused and grants nothing.
    let late = call(&mut http, "POST", "/v1/leases/retry/one:acquire", &acquire);
    assert_ne!(late.status, 200, "a ghost: {}", String::from_utf8_lossy(&late.body));
    assert_eq!(held_now(&mut http, "retry/"), 0, "no ghost lease");

    // A directed transfer, repeated, moves the lease once.
    let other = http.post("/v1/sessions", &json!({"holder": "b", "ttl_ms": 60_000})).expect(200);
    let acquire = numbered(json!({}));
    lose_and_repeat(&mut http, lost, "POST", "/v1/leases/retry/two:acquire", &acquire);
    // Waiting in the queue is how a session says that it is ready to take over.
    let mut connection = node.http();
    let waits = json!({"session": other["session"], "wait_ms": 60_000});
    let successor =
        std::thread::spawn(move || connection.post("/v1/leases/retry/two:acquire", &waits).expect(200));
    until("the successor is queued", Duration::from_secs(5), || {
        let lease = http.get("/v1/leases/retry/two").expect(200);
        lease["waiters"].as_array().is_some_and(|waiters| waiters.len() == 1)
    });
    let to = other["session_number"].clone();
    let transfer = numbered(json!({"to": to}));
    lose_and_repeat(&mut http, lost, "POST", "/v1/leases/retry/two:transfer", &transfer);
    assert_eq!(
        successor.join().expect("the successor does not panic")["generation"],
        2,
        "it is notified by push"
    );
    let lease = http.get("/v1/leases/retry/two").expect(200);
    assert_eq!((&lease["holder"], &lease["generation"]), (&json!("b"), &json!(2)));

    // Transmissions of a renewal have numbers of their own; each is answered with its own.
    for transmission in [1, 2, 2, 1] {
        let body = json!({"number": transmission});
        let answer = http.own(&session, "POST", "/v1/session:renew", Some(&body)).expect(200);
        assert_eq!(answer["number"], transmission);
    }

    // Closing twice is closing once; the other session and its lease are untouched.
    match lost {
        Lost::Unread => drop(http.own(&session, "DELETE", "/v1/session", None)),
        Lost::HungUp => http.send_as_and_hang_up(&session, "DELETE", "/v1/session"),
    }
    until("the session has ended", Duration::from_secs(5), || {
        http.own(&session, "POST", "/v1/session:renew", None).code() == "unknown_session"
    });
    assert_eq!(held_now(&mut http, "retry/"), 1);
    http.own(other["session"].as_str().expect("an id"), "DELETE", "/v1/session", None).expect(200);
    assert_eq!(held_now(&mut http, "retry/"), 0);
}

#[test]
fn an_answer_that_nobody_reads_does_no_harm() {
    let _turn = alongside();
    a_life_with_lost_answers(Lost::Unread);
}

#[test]
fn a_caller_that_hangs_up_does_no_harm() {
    let _turn = alongside();
    a_life_with_lost_answers(Lost::HungUp);
}

/// A nonce finds the live session that it opened; a shorter one is refused.
#[test]
fn a_repeated_open_finds_the_session_that_it_made() {
    let _turn = alongside();
    let node = Node::start("nonce");
    let mut http = node.http();
    let open = json!({"holder": "a", "ttl_ms": 60_000, "nonce": "ffeeddccbbaa99887766554433221100"});
    let first = http.post("/v1/sessions", &open).expect(200);
    let again = http.post("/v1/sessions", &open).expect(200);
    assert_eq!(first["session"], again["session"]);
    let other = http.post("/v1/sessions", &json!({"holder": "a", "ttl_ms": 60_000})).expect(200);
    assert_ne!(first["session"], other["session"]);
    let short = http.post("/v1/sessions", &json!({"holder": "a", "ttl_ms": 60_000, "nonce": "abcd"}));
    assert_eq!(short.status, 400, "{}", String::from_utf8_lossy(&short.body));
}
