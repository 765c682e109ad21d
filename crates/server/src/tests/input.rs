//! Bad input: each mistake has its stable code, and nothing of it reaches the log.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request};
use serde_json::{Value, json};

use super::Node;
use crate::call_table::Cost;
use crate::front::FrontLimits;

#[tokio::test(flavor = "multi_thread")]
async fn every_mistake_has_its_code() {
    let node = Node::start().await;
    let ended = node.open("gone").await["session"].as_str().unwrap().to_owned();
    node.delete(&format!("/v1/sessions/{ended}"), json!({})).await.ok();
    let before = node.get("/v1/cluster").await.ok()["revision"].clone();

    let good = json!({"holder": "a", "ttl_ms": 5_000});
    let with = |field: &str, value: Value| {
        let mut body = good.clone();
        body[field] = value;
        body
    };
    let long = "x".repeat(513);
    let acquire = |name: &str| format!("/v1/leases/{name}:acquire");
    let table: Vec<(String, Value, &str)> = vec![
        // Names.
        (acquire(&long), good.clone(), "invalid_name"),
        (acquire(""), good.clone(), "invalid_name"),
        (acquire("a//b"), good.clone(), "invalid_name"),
        (acquire("a/%2E%2E/b"), good.clone(), "invalid_name"),
        (acquire("a%07b"), good.clone(), "invalid_name"),
        (acquire("%FF%FE"), good.clone(), "invalid_name"),
        (acquire("a"), with("holder", json!("")), "invalid_name"),
        (acquire("a"), with("holder", json!("h".repeat(257))), "invalid_name"),
        (acquire("a"), with("holder", json!("a\nb")), "invalid_name"),
        (acquire("a"), with("fences", json!([""])), "invalid_name"),
        // TTLs.
        (acquire("a"), with("ttl_ms", json!(0)), "invalid_ttl"),
        (acquire("a"), with("ttl_ms", json!(499)), "invalid_ttl"),
        (acquire("a"), with("ttl_ms", json!(3_600_001)), "invalid_ttl"),
        (acquire("a"), with("ttl_ms", json!(u64::MAX)), "invalid_ttl"),
        (acquire("a"), with("ttl_ms", json!(-1)), "invalid_body"),
        (acquire("a"), with("ttl_ms", json!(1.5)), "invalid_body"),
        (acquire("a"), with("ttl_ms", json!("soon")), "invalid_body"),
        // Shapes.
        (acquire("a"), json!([1, 2]), "invalid_body"),
        (acquire("a"), json!("text"), "invalid_body"),
        (acquire("a"), with("surprise", json!(1)), "invalid_body"),
        (acquire("a"), with("mode", json!("loud")), "invalid_body"),
        (acquire("a"), with("mode", json!({"slots": -1})), "invalid_body"),
        (acquire("a"), with("mode", json!({"slots": 0})), "invalid_argument"),
        (acquire("a"), with("mode", json!({"slots": 10_001})), "limit"),
        (acquire("a"), with("wait_ms", json!("a while")), "invalid_body"),
        (acquire("a"), with("resources", json!(["b"])), "invalid_argument"),
        (acquire("a"), with("max_hold_ms", json!(5_000)), "invalid_argument"),
        (acquire("a"), json!({}), "invalid_argument"),
        (acquire("a"), json!({"holder": "a"}), "invalid_argument"),
        (acquire("a"), with("nonce", json!("abcd")), "invalid_nonce"),
        (acquire("a"), with("nonce", json!("zz".repeat(16))), "invalid_nonce"),
        // Sessions and tokens.
        (acquire("a"), json!({"session": "nonsense"}), "invalid_session"),
        (acquire("a"), json!({"session": ended}), "unknown_session"),
        (acquire("a"), with("session", json!(ended)), "invalid_argument"),
        ("/v1/sessions/nonsense:renew".into(), json!({}), "invalid_session"),
        (format!("/v1/sessions/{ended}:renew"), json!({}), "unknown_session"),
        ("/v1/leases/a:release".into(), json!({}), "invalid_body"),
        ("/v1/leases/a:release".into(), json!({"session": ended, "token": 0}), "invalid_token"),
        ("/v1/leases/a:release".into(), json!({"session": ended, "token": 1_u64 << 53}), "invalid_token"),
        ("/v1/registers:write".into(), json!({"then": [{"put": {"key": "k"}}]}), "invalid_argument"),
        ("/v1/registers:write".into(), json!({"then": [{"put": {"key": "", "value": "v"}}]}), "invalid_name"),
        ("/v1/registers:write".into(), json!({"compares": [{"key": "k"}]}), "invalid_argument"),
        ("/v1/registers:write".into(), json!({"then": vec![json!({"get": {"key": "k"}}); 129]}), "limit"),
        // Places.
        ("/v1/nothing".into(), json!({}), "no_such_call"),
        ("/v2/leases/a:acquire".into(), json!({}), "no_such_call"),
        ("/v1/history/a".into(), json!({}), "method_not_allowed"),
    ];
    for (path, body, code) in table {
        let reply = node.post(&path, body.clone()).await;
        let error = reply.json()["error"].clone();
        assert_eq!(error["code"], code, "{path} {body}: {} {error}", reply.status);
        assert_eq!(error["effect"], "not_applied", "{path} {body}");
        assert_eq!(reply.status.as_u16() == 400, code.starts_with("invalid"), "{path} {body}");
    }
    assert_eq!(node.get("/v1/cluster").await.ok()["revision"], before, "nothing has changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_are_no_json_are_refused() {
    let node = Node::start().await;
    for body in [
        &b"{"[..],
        b"nonsense",
        b"\xff\xfe",
        b"{\"holder\":",
        b"[[[[",
        b"{\"holder\":\"a\",\"ttl_ms\":5000}{",
    ] {
        let reply = node.call(Method::POST, "/v1/leases/a:acquire", body.to_vec()).await;
        reply.refused("invalid_body");
    }
    let deep = format!("{{\"holder\":{}", "[".repeat(200_000));
    node.call(Method::POST, "/v1/sessions", deep).await.refused("invalid_body");
    // Read as JSON whatever the content type says.
    let request = Request::builder().method(Method::POST).uri("/v1/leases/a:acquire");
    let request =
        request.header("host", "127.0.0.1").header("content-type", "application/x-www-form-urlencoded");
    node.reply(request.body(Body::from(r#"{"holder":"a","ttl_ms":5000}"#)).unwrap()).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_too_large_is_refused_with_the_limit() {
    let node = Node::start().await;
    let reply = node.call(Method::POST, "/v1/sessions", vec![b' '; (1 << 20) + 1]).await;
    assert_eq!(reply.refused("too_large")["max"], 1 << 20);
    // One that does not say how long it is, is cut off when it becomes too long.
    let chunks = futures_util::stream::repeat_with(|| {
        Ok::<_, std::io::Error>(bytes::Bytes::from(vec![b' '; 64 << 10]))
    });
    let reply = node.call(Method::POST, "/v1/sessions", Body::from_stream(chunks)).await;
    assert_eq!(reply.refused("too_large")["max"], 1 << 20);
    // The largest value of a register fits, one byte more does not.
    node.put("/v1/registers/big", json!({"value": "v".repeat(64 << 10)})).await.ok();
    let reply = node.put("/v1/registers/big", json!({"value": "v".repeat((64 << 10) + 1)})).await;
    assert_eq!(reply.refused("limit")["limit"], "value_bytes_max");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_breaks_off_is_refused() {
    let node = Node::start().await;
    let broken =
        futures_util::stream::iter([Ok(bytes::Bytes::from("{")), Err(std::io::Error::other("reset"))]);
    node.call(Method::POST, "/v1/sessions", Body::from_stream(broken)).await.refused("invalid_body");
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_pages_are_refused() {
    let node = Node::start().await;
    let ask = |host: &str, origin: Option<&str>| {
        let request = Request::builder().method(Method::POST).uri("/v1/sessions").header("host", host);
        let request = match origin {
            Some(origin) => request.header("origin", origin),
            None => request,
        };
        node.reply(request.body(Body::from(r#"{"holder":"a","ttl_ms":5000}"#)).unwrap())
    };
    ask("127.0.0.1:7400", None).await.ok();
    ask("lease.example:7400", Some("http://lease.example:7400")).await.ok();
    ask("evil.example", None).await.refused("foreign_origin");
    ask("127.0.0.1:7400", Some("http://evil.example")).await.refused("foreign_origin");
    ask("127.0.0.1:7400", Some("null")).await.refused("foreign_origin");
}

/// Without a turn a call is refused with a time to retry, and renewals go on: they have turns of their own.
#[tokio::test(flavor = "multi_thread")]
async fn overload_keeps_no_renewal_out() {
    let node = Node::start().await;
    let session = node.open("a").await["session"].as_str().unwrap().to_owned();
    let full = node.front.clone();
    let turns: Vec<_> = std::iter::from_fn(|| full.api().turn(Cost::Command).ok()).collect();
    let refused = node.post("/v1/leases/x:acquire", json!({"holder": "b", "ttl_ms": 5_000})).await;
    assert!(refused.refused("overloaded")["retry_after_ms"].as_u64().is_some_and(|after| after > 0));
    assert_eq!(refused.headers["retry-after"], "1");
    node.get("/v1/leases").await.refused("overloaded");
    node.post(&format!("/v1/sessions/{session}:renew"), json!({})).await.ok();
    assert_eq!(node.get("/healthz").await.status, 200);
    drop(turns);
    node.acquire("x", "b").await;
}

/// What all slow senders together may pin in memory is bounded, too; renewals have room of their own.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_under_way_are_bounded_together() {
    let limits = FrontLimits { bodies_bytes_max: 1_000, ..FrontLimits::default() };
    let node = Node::start_with(limits).await;
    let session = node.open("a").await["session"].as_str().unwrap().to_owned();
    let large = json!({"value": "v".repeat(2_000)});
    node.put("/v1/registers/k", large).await.refused("overloaded");
    let renewals: Vec<Value> = (0..40).map(|_| json!({"session": session})).collect();
    node.post("/v1/sessions:renew", json!({"renewals": renewals})).await.ok();
    // What was refused gives its room back.
    node.put("/v1/registers/k", json!({"value": "v"})).await.ok();
}

/// A body that never comes to its end.
fn endless() -> Body {
    Body::from_stream(futures_util::stream::pending::<Result<bytes::Bytes, std::io::Error>>())
}

/// Only bodies were counted: a crowd of heads without a body cost gigabytes. Now a request counts from its head on, and
/// renewals have places of their own.
#[tokio::test(flavor = "multi_thread")]
async fn requests_count_from_their_heads_on() {
    let limits = FrontLimits { unread_max: 2, ..FrontLimits::default() };
    let node = Node::start_with(limits).await;
    let session = node.open("a").await["session"].as_str().unwrap().to_owned();
    let begun = || Box::pin(node.call(Method::POST, "/v1/sessions", endless()));
    let (mut first, mut second) = (begun(), begun());
    assert!(futures_util::poll!(&mut first).is_pending() && futures_util::poll!(&mut second).is_pending());
    begun().await.refused("overloaded");
    node.post(&format!("/v1/sessions/{session}:renew"), json!({})).await.ok();
    assert_eq!(node.get("/healthz").await.status, 200, "a request without a body is complete");
    drop(first);
    node.open("b").await;
}

/// A byte now and then kept a request and its place for ever: only a pause of thirty seconds ended it.
#[tokio::test(start_paused = true)]
async fn a_body_that_trickles_is_not_waited_for() {
    let node = Node::start().await;
    let trickle = futures_util::stream::unfold((), |()| async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        Some((Ok::<_, std::io::Error>(bytes::Bytes::from_static(b" ")), ()))
    });
    let reply = node.call(Method::POST, "/v1/sessions", Body::from_stream(trickle));
    let reply = tokio::time::timeout(Duration::from_secs(600), reply).await.expect("it is answered");
    reply.refused("invalid_body");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_with_too_many_fields_is_refused() {
    let node = Node::start().await;
    let with = |fields: usize| {
        let mut request = Request::builder().uri("/healthz").header("host", "localhost");
        for number in 1..fields {
            request = request.header("x", number.to_string());
        }
        node.reply(request.body(Body::empty()).unwrap())
    };
    assert_eq!(with(64).await.status, 200);
    with(65).await.refused("too_large");
}
