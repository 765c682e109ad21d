//! Every route: what it answers, and what it refuses.

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use serde_json::{Value, json};

use super::Node;

#[tokio::test(flavor = "multi_thread")]
async fn a_session_lives_from_open_to_close() {
    let node = Node::start().await;
    let opened = node.post("/v1/sessions", json!({"holder": "a", "ttl_ms": 60_000, "number": 3})).await.ok();
    assert_eq!(
        (&opened["holder"], &opened["ttl_ms"], &opened["number"]),
        (&json!("a"), &json!(60_000), &json!(3))
    );
    let id = opened["session"].as_str().unwrap();

    // A renewal needs no body; one with a number is answered with it.
    let renewed = node.call(Method::POST, &format!("/v1/sessions/{id}:renew"), Body::empty()).await.ok();
    assert_eq!((&renewed["session"], &renewed["holder"]), (&opened["session"], &json!("a")));
    assert_eq!(node.post(&format!("/v1/sessions/{id}:renew"), json!({"number": 9})).await.ok()["number"], 9);

    let listed = node.get("/v1/sessions").await.ok();
    assert_eq!(listed["sessions"][0]["session_number"], opened["session_number"]);
    assert_eq!(listed["next"], Value::Null);
    assert!(!listed.to_string().contains(id), "the id is for its opener alone: {listed}");

    let grant = node.post("/v1/leases/own:acquire", json!({"session": id})).await.ok();
    let own = node.get(&format!("/v1/sessions/{id}")).await.ok();
    assert_eq!((&own["leases"], &own["held"][0]["token"]), (&json!(1), &grant["token"]));

    node.post(&format!("/v1/sessions/{id}:seen"), json!({"revision": 1})).await.ok();
    node.post(&format!("/v1/sessions/{id}:paused"), json!({"paused_ms": 4_000})).await.ok();

    let closed = node.delete(&format!("/v1/sessions/{id}"), json!({})).await.ok();
    assert_eq!(closed["released"], 1);
    node.delete(&format!("/v1/sessions/{id}"), json!({})).await.refused("unknown_session");
    node.post(&format!("/v1/sessions/{id}:renew"), json!({})).await.refused("unknown_session");
    node.get(&format!("/v1/sessions/{id}")).await.refused("unknown_session");
    node.post(&format!("/v1/sessions/{id}:seen"), json!({"revision": 1})).await.refused("unknown_session");
}

/// The header names the session, so that its id is in no path; a body may leave it out.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_named_by_a_header() {
    let node = Node::start().await;
    let opened = node.open("a").await;
    let id = opened["session"].as_str().unwrap();
    let own = |method: Method, path: &'static str, body: Value| {
        let body = body.to_string();
        async { node.call_as(id, method, path, body).await }
    };
    let renewed = own(Method::POST, "/v1/session:renew", json!({"number": 9})).await.ok();
    assert_eq!((&renewed["session"], &renewed["number"]), (&opened["session"], &json!(9)));
    let grant = own(Method::POST, "/v1/leases/own:acquire", json!({})).await.ok();
    assert_eq!(grant["session"], opened["session"]);
    let shown = own(Method::GET, "/v1/session", json!({})).await.ok();
    assert_eq!((&shown["leases"], &shown["held"][0]["token"]), (&json!(1), &grant["token"]));
    own(Method::POST, "/v1/session:seen", json!({"revision": 1})).await.ok();
    own(Method::POST, "/v1/session:paused", json!({"paused_ms": 4_000})).await.ok();
    own(Method::PUT, "/v1/registers/mine", json!({"value": "x", "ephemeral": true})).await.ok();
    own(Method::POST, "/v1/sequencers", json!({"resource": "own"})).await.ok();
    own(Method::POST, "/v1/leases:acquire", json!({"resources": ["b"], "number": 1})).await.ok();
    own(Method::POST, "/v1/leases:cancel", json!({"acquire": 1})).await.ok();
    own(Method::POST, "/v1/leases/own:transfer", json!({"to": 7})).await.refused("not_ready");
    // The same id in both places is fine, two different ones are not.
    let other = node.open("b").await["session"].clone();
    own(Method::POST, "/v1/leases/own:release", json!({"session": other})).await.refused("invalid_argument");
    own(Method::POST, "/v1/leases/own:release", json!({"session": id})).await.ok();
    own(Method::POST, "/v1/leases/own:acquire", json!({"holder": "a", "ttl_ms": 5_000}))
        .await
        .refused("invalid_argument");
    let closed = own(Method::DELETE, "/v1/session", json!({})).await.ok();
    assert_eq!(closed["released"], 0);
    own(Method::POST, "/v1/session:renew", json!({})).await.refused("unknown_session");

    node.get("/v1/session").await.refused("invalid_session");
    node.call_as("nonsense", Method::GET, "/v1/session", Body::empty()).await.refused("invalid_session");
    node.post("/v1/leases/own:release", json!({})).await.refused("invalid_body");
    node.get(&format!("/v1/session/{id}")).await.refused("no_such_call");
}

/// The old paths work for one release more, and their answers say so.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_in_a_path_is_deprecated() {
    let node = Node::start().await;
    let id = node.open("a").await["session"].as_str().unwrap().to_owned();
    for (method, verb, body) in [
        (Method::GET, "", json!({})),
        (Method::POST, ":renew", json!({})),
        (Method::POST, ":seen", json!({"revision": 1})),
        (Method::POST, ":paused", json!({"paused_ms": 4_000})),
        (Method::DELETE, "", json!({})),
    ] {
        let path = format!("/v1/sessions/{id}{verb}");
        let answer = node.call(method.clone(), &path, body.to_string()).await;
        answer.ok();
        assert_eq!(answer.headers["deprecation"], "@1794960000", "{method} {verb}");
        let new = node.call_as(&id, method.clone(), &format!("/v1/session{verb}"), body.to_string()).await;
        assert!(new.headers.get("deprecation").is_none(), "{method} {verb}");
    }
    assert!(node.get("/v1/sessions").await.headers.get("deprecation").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_is_a_get_without_its_body() {
    let node = Node::start().await;
    let get = node.get("/v1/cluster").await;
    let head = node.call(Method::HEAD, "/v1/cluster", Body::empty()).await;
    assert_eq!((head.status, head.body.len()), (StatusCode::OK, 0));
    assert_eq!(head.headers["content-length"], get.body.len().to_string().as_str());
    assert_eq!(node.call(Method::HEAD, "/nowhere", Body::empty()).await.status, StatusCode::NOT_FOUND);
}

/// A number that another command of the session has had was reported as a bug of the server.
#[tokio::test(flavor = "multi_thread")]
async fn a_number_is_for_one_command() {
    let node = Node::start().await;
    let id = node.open("a").await["session"].clone();
    let acquired = json!({"session": id, "number": 1});
    let first = node.post("/v1/leases/own:acquire", acquired.clone()).await.ok();
    assert_eq!(node.post("/v1/leases/own:acquire", acquired).await.ok()["token"], first["token"]);
    node.post("/v1/leases/own:release", json!({"session": id, "number": 1}))
        .await
        .refused("invalid_argument");
    let transfer = json!({"session": id, "number": 1, "to": 1});
    node.post("/v1/leases/own:transfer", transfer).await.refused("invalid_argument");
    assert_eq!(node.get("/v1/leases/own").await.ok()["token"], first["token"], "nothing was done");
    node.post("/v1/leases/own:release", json!({"session": id, "number": 2})).await.ok();
    node.post("/v1/leases/own:acquire", json!({"session": id, "number": 2}))
        .await
        .refused("invalid_argument");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_sessions_are_renewed_at_once_and_listed_in_pages() {
    let node = Node::start().await;
    let mut ids = Vec::new();
    for number in 0..5 {
        ids.push(node.open(&format!("h-{number}")).await["session"].clone());
    }
    node.delete(&format!("/v1/sessions/{}", ids[1].as_str().unwrap()), json!({})).await.ok();
    let renewals: Vec<Value> = ids.iter().map(|id| json!({"session": id, "number": 2})).collect();
    let answers =
        node.post("/v1/sessions:renew", json!({"renewals": renewals})).await.ok()["answers"].clone();
    let answers = answers.as_array().unwrap();
    assert_eq!(answers.len(), 5);
    for (at, answer) in answers.iter().enumerate() {
        if at == 1 {
            assert_eq!(answer["error"]["code"], "unknown_session");
        } else {
            assert_eq!((&answer["session"], &answer["number"]), (&ids[at], &json!(2)));
        }
    }
    node.post("/v1/sessions:renew", json!({"renewals": [{"session": "nonsense"}]}))
        .await
        .refused("invalid_session");

    let first = node.get("/v1/sessions?limit=3").await.ok();
    assert_eq!(first["sessions"].as_array().unwrap().len(), 3);
    let rest = node.get(&format!("/v1/sessions?limit=3&after={}", first["next"])).await.ok();
    assert_eq!((rest["sessions"].as_array().unwrap().len(), &rest["next"]), (1, &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_held_released_and_reported() {
    let node = Node::start().await;
    let first = node.acquire("settlement/cron", "node-a").await;
    assert_eq!(
        (&first["token"], &first["generation"], &first["waited_ms"]),
        (&json!(1), &json!(1), &json!(0))
    );
    assert_eq!((&first["mode"], &first["slot"]), (&json!("exclusive"), &Value::Null));

    let held =
        node.post("/v1/leases/settlement/cron:acquire", json!({"holder": "node-b", "ttl_ms": 2_000})).await;
    let error = held.refused("held");
    assert_eq!(
        (&error["holder"], &error["token"], &error["effect"]),
        (&json!("node-a"), &json!(1), &json!("not_applied"))
    );
    assert!(error["remaining_ms"].as_u64().is_some_and(|left| left <= 60_000), "{error}");

    let shown = node.get("/v1/leases/settlement/cron").await.ok();
    assert_eq!((&shown["state"], &shown["holder"]), (&json!("held"), &json!("node-a")));
    assert!(!shown.to_string().contains(first["session"].as_str().unwrap()), "{shown}");

    let session = json!({"session": first["session"]});
    assert_eq!(node.post("/v1/leases/settlement/cron:release", session.clone()).await.ok()["released"], true);
    // The session that the acquire had opened ended with its last lease.
    node.post("/v1/leases/settlement/cron:release", session).await.refused("unknown_session");

    let free = node.get("/v1/leases/settlement/cron").await.ok();
    assert_eq!(
        (&free["state"], &free["holders"], &free["holder"]),
        (&json!("free"), &json!([]), &Value::Null)
    );
    assert_eq!(
        (&free["remaining_ms"], &free["token"], &free["generation"]),
        (&Value::Null, &json!(1), &json!(1))
    );
    let history = node.get("/v1/history/settlement/cron").await.ok();
    assert_eq!(history["transitions"][0]["why"], "released");
    assert_eq!(history["transitions"][0]["holder"], "node-a");

    let opened = node.open("c").await;
    let nothing =
        node.post("/v1/leases/settlement/cron:release", json!({"session": opened["session"]})).await;
    assert_eq!(nothing.ok()["released"], false);
    node.get("/v1/leases/never/seen").await.refused("not_found");
    node.get("/v1/history/never/seen").await.refused("not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn colons_and_slashes_in_names_are_distinguished_from_verbs() {
    let node = Node::start().await;
    for (path, name) in [("a%3Ab", "a:b"), ("x:y/z", "x:y/z"), ("p%2Fq", "p/q"), ("sch%C3%B6n", "schön")] {
        assert_eq!(node.acquire(path, "h").await["resource"], name);
        assert_eq!(node.get(&format!("/v1/leases/{path}")).await.ok()["resource"], name);
    }
    node.get("/v1/leases/a:b").await.refused("no_such_call");
    node.post("/v1/leases/a:shout", json!({})).await.refused("no_such_call");
    node.post("/v1/leases/a", json!({})).await.refused("no_such_call");
    for (path, methods) in [
        ("/v1/leases/a:acquire", "POST"),
        ("/v1/leases/a", "GET,HEAD"),
        ("/v1/registers/a", "GET,HEAD,PUT,DELETE"),
        ("/v1/sessions", "GET,HEAD,POST"),
    ] {
        let reply = node.call(Method::PATCH, path, Body::empty()).await;
        reply.refused("method_not_allowed");
        assert_eq!(reply.headers["allow"], methods, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_are_listed_by_prefix_in_pages() {
    let node = Node::start().await;
    for name in ["a/1", "a/2", "a/3", "b/1"] {
        node.acquire(name, "h").await;
    }
    let page = node.get("/v1/leases?prefix=a/&limit=2").await.ok();
    assert_eq!(page["leases"].as_array().unwrap().len(), 2);
    assert_eq!(page["next"], "a/2");
    let rest = node.get("/v1/leases?prefix=a/&limit=2&after=a/2").await.ok();
    assert_eq!((&rest["leases"][0]["resource"], &rest["next"]), (&json!("a/3"), &Value::Null));
    assert_eq!(node.get("/v1/leases?stale=true").await.ok()["leases"].as_array().unwrap().len(), 4);
    node.get("/v1/leases?limit=0").await.refused("invalid_argument");
    node.get("/v1/leases?limit=many").await.refused("invalid_argument");
    node.get("/v1/leases?after=a//b").await.refused("invalid_name");
}

#[tokio::test(flavor = "multi_thread")]
async fn several_resources_are_taken_all_or_none() {
    let node = Node::start().await;
    node.acquire("shard/2", "other").await;
    let body = |names: &[&str]| json!({"resources": names, "holder": "a", "ttl_ms": 60_000});
    node.post("/v1/leases:acquire", body(&["shard/1", "shard/2"])).await.refused("held");
    node.get("/v1/leases/shard/1").await.refused("not_found");
    let both = node.post("/v1/leases:acquire", body(&["shard/1", "shard/3"])).await.ok();
    assert_eq!(both["leases"].as_array().unwrap().len(), 2);
    assert_eq!(both["leases"][1]["resource"], "shard/3");
    node.post("/v1/leases:acquire", body(&[])).await.refused("invalid_argument");
    node.post("/v1/leases:acquire", body(&["x", "x"])).await.refused("invalid_argument");
    node.post("/v1/leases:acquire", json!({"holder": "a", "ttl_ms": 60_000}))
        .await
        .refused("invalid_argument");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_is_granted_when_the_holder_releases() {
    let node = Node::start().await;
    let first = node.acquire("line", "first").await;
    let body = json!({"holder": "second", "ttl_ms": 60_000, "wait_ms": 30_000});
    let (granted, ()) = tokio::join!(node.post("/v1/leases/line:acquire", body), async {
        node.until_waiting("line", 1).await;
        node.post("/v1/leases/line:release", json!({"session": first["session"]})).await.ok();
    });
    let granted = granted.ok();
    assert_eq!((&granted["holder"], &granted["token"]), (&json!("second"), &json!(2)));
    let late =
        node.post("/v1/leases/line:acquire", json!({"holder": "x", "ttl_ms": 5_000, "wait_ms": 50})).await;
    assert_eq!(late.refused("held")["holder"], "second");
    assert_eq!(node.get("/v1/leases/line").await.ok()["waiters"], json!([]));
}

/// Whoever hangs up does not wait in the queue any more, at the latest when its TTL is over: the server keeps
/// no session alive for nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_hangs_up_leaves_the_queue() {
    let node = Node::start().await;
    node.acquire("line", "first").await;
    let body = json!({"holder": "hasty", "ttl_ms": 1_000, "wait_ms": 60_000});
    tokio::select! {
        reply = node.post("/v1/leases/line:acquire", body) => panic!("granted or refused: {reply:?}"),
        () = node.until_waiting("line", 1) => {}
    }
    node.until_waiting("line", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_numbered_acquire_can_be_cancelled() {
    let node = Node::start().await;
    let session = node.open("a").await["session"].clone();
    node.post("/v1/leases/c:acquire", json!({"session": session, "number": 1})).await.ok();
    let cancelled =
        node.post("/v1/leases:cancel", json!({"session": session, "acquire": 1, "number": 2})).await.ok();
    assert_eq!(cancelled["released"], true);
    assert_eq!(node.get("/v1/leases/c").await.ok()["state"], "free");
    let again = node.post("/v1/leases/c:acquire", json!({"session": session, "number": 1})).await;
    assert_ne!(again.status, StatusCode::OK, "no ghost acquire: {again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_goes_to_the_session_that_waits_for_it() {
    let node = Node::start().await;
    let from = node.open("from").await;
    let to = node.open("to").await;
    node.post("/v1/leases/t:acquire", json!({"session": from["session"]})).await.ok();
    let transfer = json!({"session": from["session"], "to": to["session_number"]});
    node.post("/v1/leases/t:transfer", transfer.clone()).await.refused("not_ready");
    let wait = json!({"session": to["session"], "wait_ms": 30_000});
    let (granted, transferred) = tokio::join!(node.post("/v1/leases/t:acquire", wait), async {
        node.until_waiting("t", 1).await;
        node.post("/v1/leases/t:transfer", transfer).await.ok()
    });
    assert_eq!(granted.ok()["token"], 2);
    assert_eq!((&transferred["holder"], &transferred["token"]), (&json!("to"), &json!(2)));
    assert_eq!(transferred["session"], Value::Null, "its id is its own");
    node.post("/v1/leases/t:transfer", json!({"session": from["session"], "to": 1}))
        .await
        .refused("not_held");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_revokes_by_notice_or_at_once() {
    let node = Node::start().await;
    let grant = node.acquire("r", "a").await;
    let notice = node.post("/v1/leases/r:revoke", json!({"reason": "maintenance"})).await.ok();
    assert_eq!(notice["holders"][0]["notice"], "revoked");
    assert_eq!(notice["token"], Value::Null);
    let id = grant["session"].as_str().unwrap();
    let renewed = node.post(&format!("/v1/sessions/{id}:renew"), json!({})).await.ok();
    assert_eq!(renewed["noticed"][0]["resource"], "r", "{renewed}");
    let now = node.post("/v1/leases/r:revoke", json!({"now": true})).await.ok();
    assert_eq!(now["token"], 2, "a token without a holder");
    assert_eq!(node.get("/v1/leases/r").await.ok()["state"], "free");
    assert_eq!(node.post("/v1/leases/r:barrier", json!({})).await.ok()["token"], 3);
    node.post("/v1/leases/never:revoke", json!({})).await.refused("not_found");
    node.post("/v1/leases/r:revoke", json!({"reason": "x".repeat(513)})).await.refused("invalid_argument");
}

#[tokio::test(flavor = "multi_thread")]
async fn modes_and_kinds() {
    let node = Node::start().await;
    let slots = |holder: &str| json!({"holder": holder, "ttl_ms": 60_000, "mode": {"slots": 2}});
    let first = node.post("/v1/leases/sem:acquire", slots("a")).await.ok();
    let second = node.post("/v1/leases/sem:acquire", slots("b")).await.ok();
    assert_eq!((&first["slot"], &second["slot"]), (&json!(0), &json!(1)));
    assert_eq!(second["mode"], json!({"slots": 2}));
    node.post("/v1/leases/sem:acquire", slots("c")).await.refused("held");
    node.post("/v1/leases/sem:acquire", json!({"holder": "d", "ttl_ms": 60_000})).await.refused("wrong_kind");
    let shared = json!({"holder": "r", "ttl_ms": 60_000, "mode": "shared"});
    node.post("/v1/leases/rw:acquire", shared.clone()).await.ok();
    assert_eq!(node.post("/v1/leases/rw:acquire", shared).await.ok()["mode"], "shared");
    assert_eq!(node.get("/v1/leases/rw").await.ok()["holders"].as_array().unwrap().len(), 2);
    node.post("/v1/leases/rw:kind", json!({"kind": {"semaphore": 3}})).await.refused("in_use");
    node.post("/v1/leases/new:kind", json!({"kind": {"semaphore": 3}})).await.ok();
    assert_eq!(node.get("/v1/leases/new").await.ok()["kind"], json!({"semaphore": 3}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_write_is_refused_with_both_tokens() {
    let node = Node::start().await;
    let first = node.acquire("settlement/cron", "node-a").await;
    let write = |token: u64| json!({"value": "row 17", "resource": "settlement/cron", "token": token});
    let written = node.put("/v1/registers/settlement/cursor", write(1)).await.ok();
    assert_eq!((&written["key"], &written["version"]), (&json!("settlement/cursor"), &json!(1)));
    assert_eq!(written["guard"], "settlement/cron");

    node.post("/v1/leases/settlement/cron:release", json!({"session": first["session"]})).await.ok();
    let ended = node.put("/v1/registers/settlement/cursor", write(1)).await;
    assert_eq!(ended.refused("lease_ended")["presented"], 1);
    node.acquire("settlement/cron", "node-b").await;
    let stale = node.put("/v1/registers/settlement/cursor", write(1)).await.refused("stale_token");
    assert_eq!((&stale["presented"], &stale["seen"]), (&json!(1), &json!(2)));
    node.put("/v1/registers/settlement/cursor", write(9)).await.refused("unknown_token");
    node.put("/v1/registers/settlement/cursor", json!({"value": "x"})).await.refused("wrong_guard");

    // The guard may ride in a header instead of the body.
    let with_header = |guard: &str| {
        let request = Request::builder().method(Method::PUT).uri("/v1/registers/settlement/cursor");
        let body = Body::from(json!({"value": "row 18"}).to_string());
        request.header("host", "localhost").header("tenure-token", guard).body(body).unwrap()
    };
    node.reply(with_header("settlement/cron=2")).await.ok();
    node.reply(with_header("settlement/cron")).await.refused("invalid_argument");
    node.reply(with_header("settlement/cron=0")).await.refused("invalid_token");

    node.post("/v1/registers/settlement/cursor:rebind", json!({})).await.ok();
    node.put("/v1/registers/settlement/cursor", json!({"value": "free"})).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn registers_compare_and_set_list_and_go() {
    let node = Node::start().await;
    let created = node.put("/v1/registers/k", json!({"value": "1", "if_version": 0})).await.ok();
    node.put("/v1/registers/k", json!({"value": "2", "if_version": 0})).await.refused("compare_failed");
    let next = json!({"value": "2", "if_mod_revision": created["mod_revision"]});
    assert_eq!(node.put("/v1/registers/k", next).await.ok()["version"], 2);
    assert_eq!(node.get("/v1/registers/k").await.ok()["value"], "2");

    node.put("/v1/registers/bytes%FF", json!({"value_base64": "/w=="})).await.ok();
    let bytes = node.get("/v1/registers/bytes%FF").await.ok();
    assert_eq!((&bytes["value_base64"], &bytes["value"]), (&json!("/w=="), &Value::Null));
    assert_eq!(node.get("/v1/registers?prefix=k").await.ok()["registers"].as_array().unwrap().len(), 1);
    let page = node.get("/v1/registers?limit=1").await.ok();
    assert_eq!(page["registers"].as_array().unwrap().len(), 1);
    assert_ne!(page["next"], Value::Null);

    let write = json!({
        "compares": [{"key": "k", "version": 2}],
        "then": [{"put": {"key": "k2", "value": "x"}}, {"delete": {"key": "k"}}, {"get": {"key": "k2"}}],
        "otherwise": [{"get": {"key": "k"}}],
    });
    let done = node.post("/v1/registers:write", write.clone()).await.ok();
    assert_eq!((&done["succeeded"], &done["results"][2]["value"]), (&json!(true), &json!("x")));
    assert_eq!(node.post("/v1/registers:write", write).await.ok()["succeeded"], false);
    node.get("/v1/registers/k").await.refused("not_found");
    node.delete("/v1/registers/k2", json!({"if_version": 7})).await.refused("compare_failed");
    node.delete("/v1/registers/k2", json!({})).await.ok();

    let session = node.open("e").await["session"].clone();
    node.put("/v1/registers/mine", json!({"value": "x", "ephemeral": true, "session": session})).await.ok();
    node.delete(&format!("/v1/sessions/{}", session.as_str().unwrap()), json!({})).await.ok();
    node.get("/v1/registers/mine").await.refused("not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_is_armed_with_the_live_token_only() {
    let node = Node::start().await;
    let body = json!({"holder": "a", "ttl_ms": 60_000, "fences": ["pg:orders"]});
    node.post("/v1/leases/f:acquire", body).await.ok();
    node.post("/v1/fences/f:arm", json!({"fence": "pg:orders", "token": 1})).await.ok();
    let refused = json!({"fence": "pg:orders", "presented": 1, "seen": 2, "count": 3});
    node.post("/v1/fences/f:refused", refused).await.ok();
    let fences = node.get("/v1/fences/f").await.ok();
    assert_eq!(
        (&fences["fences"][0]["armed"][0]["token"], &fences["fences"][0]["refused"]),
        (&json!(1), &json!(3))
    );
    let made_up = node.post("/v1/fences/f:arm", json!({"fence": "pg:orders", "token": 99})).await;
    assert_eq!(made_up.status, StatusCode::PRECONDITION_FAILED, "{made_up:?}");
    node.post("/v1/fences/f:shout", json!({})).await.refused("no_such_call");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pages_of_the_node() {
    let node = Node::start().await;
    node.acquire("a", "h").await;
    let cluster = node.get("/v1/cluster?state_hash=true").await.ok();
    assert_eq!(
        (&cluster["leader"], &cluster["node"], &cluster["nodes"][0]["role"]),
        (&json!(1), &json!(1), &json!("leader"))
    );
    assert_eq!(cluster["fault_tolerant"], false);
    assert_eq!(cluster["state_hash"].as_str().map(str::len), Some(32));
    node.get("/healthz").await.ok();

    let metrics = node.get("/metrics").await;
    let text = String::from_utf8(metrics.body).unwrap();
    for line in [
        "tenure_grants_total 1",
        "tenure_is_leader 1",
        "tenure_sessions 1",
        "# TYPE tenure_hold_seconds histogram",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    assert!(
        text.contains(r#"tenure_requests_total{surface="http",call="leases.acquire",code="ok"} 1"#),
        "{text}"
    );
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(name.starts_with("tenure_") && value.parse::<f64>().is_ok(), "{line}");
    }

    let page = node.get("/").await;
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    for path in ["/web/app.js", "/web/style.css", "/web/icon.svg", "/web/logic/timing.js"] {
        assert_eq!(node.get(path).await.status, StatusCode::OK, "{path}");
    }
    node.get("/web/nothing.js").await.refused("no_such_call");
    // The numbers of probes are random: a stranger's changes nothing, not even that it was asked.
    node.post(&format!("/v1/probe/{:032x}", 1), json!({})).await.refused("not_found");
    node.post("/v1/probe/1", json!({})).await.refused("invalid_argument");
    node.post("/v1/probe/soon", json!({})).await.refused("invalid_argument");
}

/// Events as pages of whole revisions, histories as pages of whole resources.
#[tokio::test(flavor = "multi_thread")]
async fn the_past_is_returned_in_pages() {
    let node = Node::start().await;
    for (resource, times) in [("a", 2), ("b", 1), ("c/d", 1)] {
        for _ in 0..times {
            let session = node.acquire(resource, "h").await["session"].clone();
            node.post(&format!("/v1/leases/{resource}:release"), json!({"session": session})).await.ok();
        }
    }
    let all = node.get("/v1/events?limit=1000").await.ok();
    let events = all["events"].as_array().unwrap();
    assert_eq!((&all["complete_from"], &all["next"]), (&json!(1), &Value::Null));
    assert_eq!(events.last().unwrap()["revision"], all["revision"]);
    let granted = events.iter().filter(|event| event["kind"] == "granted").count();
    assert_eq!(granted, 4);

    // Page after page it is the same, and no revision is cut.
    let (mut paged, mut from) = (Vec::new(), json!(1));
    while let Some(next) = from.as_u64() {
        let page = node.get(&format!("/v1/events?limit=2&from={next}")).await.ok();
        let found = page["events"].as_array().unwrap().clone();
        assert!(found.iter().all(|event| event["revision"].as_u64() >= Some(next)), "{page}");
        paged.extend(found);
        from = page["next"].clone();
    }
    assert_eq!(&paged, events);
    let few = node.get("/v1/events?prefix=c/").await.ok();
    assert!(few["events"].as_array().unwrap().iter().all(|event| event["resource"] == "c/d"), "{few}");
    assert_eq!(few["events"].as_array().unwrap().len(), 2);

    let first = node.get("/v1/history?limit=3").await.ok();
    let names = |page: &Value| -> Vec<String> {
        let found = page["histories"].as_array().unwrap();
        found.iter().map(|one| one["resource"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!((names(&first), &first["next"]), (vec!["a".into(), "b".into()], &json!("b")));
    assert_eq!(first["histories"][0]["transitions"].as_array().unwrap().len(), 2);
    let rest = node.get("/v1/history?limit=3&after=b").await.ok();
    assert_eq!((names(&rest), &rest["next"]), (vec!["c/d".into()], &Value::Null));
    // One resource is listed even where it alone is more than was asked for.
    assert_eq!(names(&node.get("/v1/history?limit=1").await.ok()), ["a"]);
    assert_eq!(names(&node.get("/v1/history?prefix=c").await.ok()), ["c/d"]);
}

/// The numbers that say how good holders and handovers are, each after what it counts has happened.
#[tokio::test(flavor = "multi_thread")]
async fn what_people_watch_is_counted() {
    let node = Node::start().await;
    let first = node.acquire("job", "a").await;
    let session = first["session"].as_str().unwrap().to_owned();
    node.post(&format!("/v1/sessions/{session}:renew"), json!({})).await.ok();
    node.post("/v1/leases/job:release", json!({"session": session})).await.ok();
    let body = json!({"holder": "b", "ttl_ms": 500, "fences": ["pg:orders"]});
    node.post("/v1/leases/job:acquire", body).await.ok();
    let refused = json!({"fence": "pg:orders", "presented": 1, "seen": 2, "count": 3});
    node.post("/v1/fences/job:refused", refused).await.ok();
    // Waits until the second has expired.
    node.post("/v1/leases/job:acquire", json!({"holder": "c", "ttl_ms": 60_000, "wait_ms": 20_000}))
        .await
        .ok();
    let text = String::from_utf8(node.get("/metrics").await.body).unwrap();
    for line in [
        "tenure_renewal_margin_ratio_bucket{le=\"0.875\"} 0",
        "tenure_renewal_near_misses_total 0",
        "tenure_handover_gap_seconds_count 1",
        "tenure_holder_gap_seconds_count 1",
        "tenure_expiry_lateness_seconds_count 1",
        "tenure_fence_refusals_total 3",
        "tenure_fence_refusals_by_adapter_total{adapter=\"pg\"} 3",
        "tenure_ends_total{why=\"expired\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    // The server renews those who wait at its door, too.
    let margins = text.lines().find_map(|line| line.strip_prefix("tenure_renewal_margin_ratio_count "));
    assert!(margins.is_some_and(|many| many != "0"), "{text}");
}

/// What `/openapi.json` describes is there, and what it does not describe is not.
#[tokio::test(flavor = "multi_thread")]
async fn the_description_fits_the_routes() {
    let node = Node::start().await;
    let described = node.get("/openapi.json").await.ok();
    for (path, methods) in described["paths"].as_object().unwrap() {
        let path =
            path.replace("{session}", "1-00000000000000000000000000000000").replace("{resource}", "a/b");
        let path = path.replace("{key}", "k");
        let session = "1-00000000000000000000000000000000";
        for method in ["get", "put", "post", "delete"] {
            if path == "/v1/watch" {
                // It never ends.
                continue;
            }
            let upper = method.to_uppercase().parse().unwrap();
            let reply = match path.starts_with("/v1/session") {
                true => node.call_as(session, upper, &path, Body::from("{}")).await,
                false => node.call(upper, &path, Body::from("{}")).await,
            };
            let code = reply.json()["error"]["code"].as_str().unwrap_or_default().to_owned();
            let there = !["no_such_call", "method_not_allowed"].contains(&code.as_str());
            assert_eq!(there, methods.get(method).is_some(), "{method} {path}: {} {code}", reply.status);
            let Some(call) = methods.get(method) else { continue };
            let status = reply.status.as_u16().to_string();
            let answer = &call["responses"][&status];
            assert!(answer.is_object(), "{method} {path} answers {status} {code}, which is not described");
            let message = answer["description"].as_str().unwrap();
            assert!(
                code.is_empty() || message.contains(&code),
                "{method} {path}: {code} is not in {message}"
            );
        }
    }
}

/// The date comes from the node's clock, and a clock beyond the year 9999 costs the date, not the connection.
#[tokio::test]
async fn a_clock_beyond_the_year_9999_is_answered_without_a_date() {
    let node = Node::start().await;
    let clock = tenure_clock::ManualClock::new();
    let api = node.front.api();
    let address: std::net::SocketAddr = "127.0.0.1:7400".parse().unwrap();
    let front = crate::front::Front::new(
        api.node.clone(),
        std::sync::Arc::new(clock.clone()),
        address,
        (None, &[]),
        crate::front::FrontLimits::default(),
        crate::front::Callers::default(),
        node.stop.subscribe(),
    );
    for (millis, date) in [
        (784_111_777_000, Some("Sun, 06 Nov 1994 08:49:37 GMT")),
        (253_402_300_800_000, None),
        (u64::MAX, None),
    ] {
        clock.set_wall(tenure_core::WallTime::from_unix_millis(millis));
        let request = Request::get("/v1/cluster").header("host", "127.0.0.1:7400");
        let answer = front.clone().answer(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status(), StatusCode::OK);
        let message = answer.headers().get("date").map(|date| date.to_str().unwrap().to_owned());
        assert_eq!(message.as_deref(), date);
    }
}

/// A history that was cut says so: how much is gone, by which limit, and from where on it is complete.
#[tokio::test(flavor = "multi_thread")]
async fn a_history_says_where_it_was_cut() {
    let node = Node::configured(|config| config.limits.history_per_resource_max = 2).await;
    for _ in 0..2 {
        let session = node.acquire("r", "a").await["session"].clone();
        node.post("/v1/leases/r:release", json!({ "session": session })).await.ok();
    }
    assert!(node.get("/v1/history/r").await.ok().get("dropped").is_none(), "nothing was dropped yet");
    for _ in 0..3 {
        let session = node.acquire("r", "a").await["session"].clone();
        node.post("/v1/leases/r:release", json!({ "session": session })).await.ok();
    }
    let history = node.get("/v1/history/r").await.ok();
    let tokens: Vec<u64> = history["transitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|past| past["token"].as_u64().unwrap())
        .collect();
    assert_eq!(tokens, [5, 4]);
    let dropped = &history["dropped"];
    assert_eq!((&dropped["leases"], &dropped["max"], &dropped["token"]), (&json!(3), &json!(2), &json!(3)));
    assert_eq!(dropped["limit"], "history_per_resource_max");
    assert!(dropped["ended"].is_string(), "{dropped}");
    assert_eq!(&node.get("/v1/history?prefix=r").await.ok()["histories"][0]["dropped"], dropped);
}
