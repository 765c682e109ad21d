//! The first five minutes: what the README shows, over HTTP and again with the CLI; and `tenure top` on a terminal.

#[path = "tour/terminal.rs"]
mod terminal;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_e2e::{Node, alongside, run_tenure, until_some};

/// A holder falls silent, a second takes over, and the first one's late write is refused.
#[test]
fn a_silent_holder_is_succeeded_and_its_late_write_refused() {
    let _turn = alongside();
    let node = Node::start("tour");
    let mut http = node.http();
    let acquire = "/v1/leases/settlement/cron:acquire";

    let first = http.post(acquire, &json!({"holder": "node-a", "ttl_ms": 2000})).expect(200);
    let granted = Instant::now();
    assert_eq!(first["token"], 1);
    assert_eq!(first["generation"], 1);
    assert_eq!(first["resource"], "settlement/cron");
    assert_eq!(first["holder"], "node-a");
    assert_eq!(first["ttl_ms"], 2000);

    let refused = http.post(acquire, &json!({"holder": "node-b", "ttl_ms": 2000}));
    let body = refused.expect(409);
    assert_eq!(refused.code(), "held");
    assert_eq!(body["error"]["holder"], "node-a");
    let remaining = body["error"]["remaining_ms"].as_u64().expect("a held lease says what remains");
    assert!((1..=2000).contains(&remaining), "{remaining} ms remain of 2000");
    assert_eq!(body["error"]["effect"], "not_applied");

    let register = "/v1/registers/settlement/cursor";
    let write = |token: u64| json!({"value": "row 17", "resource": "settlement/cron", "token": token});
    http.put(register, &write(1)).expect(200);

    let second = until_some("node-b is granted the lease", Duration::from_secs(4), || {
        let reply = http.post(acquire, &json!({"holder": "node-b", "ttl_ms": 2000}));
        (reply.status == 200).then(|| reply.json())
    });
    // Counted from after the first answer, so this is a lower bound of what the server counted.
    assert!(granted.elapsed() > Duration::from_millis(1900), "granted after {:?}", granted.elapsed());
    assert_eq!(second["token"], 2);
    assert_eq!(second["generation"], 2);

    let stale = http.put(register, &write(1));
    let body = stale.expect(412);
    assert_eq!(stale.code(), "stale_token");
    assert_eq!(body["error"]["presented"], 1);
    assert_eq!(body["error"]["seen"], 2);
    http.put(register, &write(2)).expect(200);

    let shown = http.get("/v1/leases/settlement/cron").expect(200);
    assert_eq!(shown["state"], "held");
    assert_eq!(shown["holder"], "node-b");
    assert_eq!(shown["token"], 2);
    let secret = second["session"].as_str().expect("a session has an id");
    assert!(!shown.to_string().contains(secret), "the session id is for its opener alone");

    let history = http.get("/v1/history/settlement/cron").expect(200).to_string();
    assert!(history.contains("expired"), "{history}");
}

/// A release frees at once, and a resource that was never seen is distinguished from a free one.
#[test]
fn a_released_lease_is_free_at_once() {
    let _turn = alongside();
    let node = Node::start("release");
    let mut http = node.http();
    assert_eq!(http.get("/v1/leases/jobs/never").status, 404);

    let grant =
        http.post("/v1/leases/jobs/one:acquire", &json!({"holder": "a", "ttl_ms": 60_000})).expect(200);
    let session = grant["session"].clone();
    let released = http.post("/v1/leases/jobs/one:release", &json!({"session": session})).expect(200);
    assert_eq!(released["released"], true);
    let free = http.get("/v1/leases/jobs/one").expect(200);
    assert_eq!(free["state"], "free");
    assert_eq!(free["holders"], json!([]));
    assert_eq!(free["holder"], Value::Null);
    assert_eq!(free["remaining_ms"], Value::Null);
    assert_eq!(free["token"], 1);

    let next =
        http.post("/v1/leases/jobs/one:acquire", &json!({"holder": "b", "ttl_ms": 60_000})).expect(200);
    assert_eq!(next["token"], 2);
}

/// All or none: two resources are taken together, or neither is.
#[test]
fn several_resources_are_taken_together_or_not_at_all() {
    let _turn = alongside();
    let node = Node::start("several");
    let mut http = node.http();
    http.post("/v1/leases/shard/2:acquire", &json!({"holder": "other", "ttl_ms": 60_000})).expect(200);
    let both = json!({"resources": ["shard/1", "shard/2"], "holder": "a", "ttl_ms": 60_000});
    assert_eq!(http.post("/v1/leases:acquire", &both).code(), "held");
    assert_eq!(http.get("/v1/leases/shard/1").status, 404, "nothing was taken");
    let both = json!({"resources": ["shard/1", "shard/3"], "holder": "a", "ttl_ms": 60_000});
    http.post("/v1/leases:acquire", &both).expect(200);
    assert_eq!(http.get("/v1/leases/shard/3").expect(200)["state"], "held");
}

/// The CLI tells the same story, with exit codes that a script can act on.
#[test]
fn the_cli_tells_the_same_story() {
    let _turn = alongside();
    let node = Node::start("cli");
    let run = |arguments: &[&str]| {
        let output = run_tenure(&node.endpoint(), arguments);
        let body: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        (output.status.code(), body, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let acquire =
        |holder: &'static str| ["acquire", "settlement/cron", "--ttl", "2s", "--holder", holder, "--json"];
    let (code, first, talk) = run(&acquire("node-a"));
    assert_eq!(code, Some(0), "{talk}");
    assert_eq!(first["token"], 1);

    let (code, _, talk) = run(&acquire("node-b"));
    assert_eq!(code, Some(3), "held by another: {talk}");
    assert!(talk.contains("node-a"), "{talk}");

    let (code, second, talk) =
        run(&["acquire", "settlement/cron", "--ttl", "2s", "--holder", "node-b", "--wait", "10s", "--json"]);
    assert_eq!(code, Some(0), "{talk}");
    assert_eq!(second["token"], 2);

    let (code, _, talk) =
        run(&["kv", "put", "settlement/cursor", "row 17", "--resource", "settlement/cron", "--token", "1"]);
    assert_eq!(code, Some(5), "stale token: {talk}");

    let (code, view, talk) = run(&["get", "settlement/cron", "-o", "k8s-lease"]);
    assert_eq!(code, Some(0), "{talk}");
    assert_eq!(view["spec"]["holderIdentity"], "node-b");
    assert_eq!(
        (&view["spec"]["leaseDurationSeconds"], &view["spec"]["leaseTransitions"]),
        (&2.into(), &1.into())
    );

    let (_, _, talk) =
        run(&["kv", "put", "services/api", "10.0.0.7:80", "--session", "1-0123456789abcdef0123456789abcdef"]);
    assert!(talk.contains("attached to nothing"), "who may have forgotten to attach it is told: {talk:?}");
    run(&["kv", "put", "settlement/cursor", "row 17", "--resource", "settlement/cron", "--token", "2"]);
    let litter = run_tenure(&node.endpoint(), &["kv", "ls", "--unattached"]);
    let litter = String::from_utf8_lossy(&litter.stdout).into_owned();
    assert!(litter.contains("services/api") && !litter.contains("settlement/cursor"), "{litter}");

    let session = second["session"].as_str().expect("a session has an id");
    let (code, _, talk) = run(&["release", "settlement/cron", "--session", session]);
    assert_eq!(code, Some(0), "{talk}");
    let (code, _, _) = run(&["get", "never/seen", "--json"]);
    assert_eq!(code, Some(7), "not found");

    let nowhere = run_tenure("127.0.0.1:1", &["ls"]);
    assert_eq!(nowhere.status.code(), Some(6), "no store reachable");
}
