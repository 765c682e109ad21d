//! Watching over HTTP: whole revisions, resumable, and learns where to start again.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use super::Node;

/// One server-sent event as a client sees it.
#[derive(Debug)]
struct Message {
    event: String,
    id: Option<u64>,
    data: Value,
}

/// A stream of them.
struct Events {
    body: Body,
    read: String,
}

impl Events {
    async fn open(node: &Node, query: &str, last: Option<u64>) -> Events {
        let mut request = Request::builder().uri(format!("/v1/watch{query}")).header("host", "localhost");
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let response = node.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Events { body: response.into_body(), read: String::new() }
    }

    /// What happens to one session.
    async fn of_session(node: &Node, session: &str) -> Events {
        let request = Request::builder().uri("/v1/sessions:events").header("host", "localhost");
        let request = request.header("tenure-session", session);
        let response = node.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Events { body: response.into_body(), read: String::new() }
    }

    /// The next message that tells something; `None` at the end of the stream.
    async fn next(&mut self) -> Option<Message> {
        loop {
            if let Some((block, rest)) = self.read.split_once("\n\n") {
                let mut message = Message { event: String::new(), id: None, data: Value::Null };
                for line in block.lines() {
                    match line.split_once(':').map(|(name, value)| (name, value.trim_start())) {
                        Some(("event", value)) => message.event = value.into(),
                        Some(("id", value)) => message.id = Some(value.parse().unwrap()),
                        Some(("data", value)) => message.data = serde_json::from_str(value).unwrap(),
                        _ => {}
                    }
                }
                self.read = rest.to_owned();
                if !message.data.is_null() {
                    return Some(message);
                }
                continue;
            }
            let frame =
                tokio::time::timeout(Duration::from_secs(10), self.body.frame()).await.expect("a message");
            let frame = frame?.unwrap().into_data().unwrap();
            self.read.push_str(std::str::from_utf8(&frame).unwrap());
        }
    }

    /// Messages until one carries an id: the whole of a revision.
    async fn revision(&mut self) -> (u64, Vec<Message>) {
        let mut messages = Vec::new();
        loop {
            messages.push(self.next().await.expect("the stream goes on"));
            if let Some(id) = messages.last().and_then(|message| message.id) {
                assert!(messages.iter().all(|message| message.data["revision"] == id), "{messages:?}");
                return (id, messages);
            }
        }
    }
}

fn kinds(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|message| message.event.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revision_is_sent_whole_and_a_watch_resumes_after_it() {
    let node = Node::start().await;
    let mut events = Events::open(&node, "", None).await;
    let grant = node.acquire("w/1", "a").await;
    let (first, messages) = events.revision().await;
    assert_eq!(kinds(&messages), ["opened", "granted"]);
    assert_eq!(messages[1].data["token"], 1);
    node.post("/v1/leases/w/1:release", json!({"session": grant["session"]})).await.ok();
    let (second, messages) = events.revision().await;
    assert_eq!(second, first + 1);
    assert_eq!(kinds(&messages), ["ended", "closed"]);
    drop(events);

    let mut resumed = Events::open(&node, "?from=1", Some(first)).await;
    assert_eq!(resumed.revision().await.0, second, "where it got to goes before where it began");
    let mut from = Events::open(&node, &format!("?from={first}"), None).await;
    assert_eq!(from.revision().await.0, first);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_and_the_next_grant_are_one_revision() {
    let node = Node::start().await;
    let first = node.acquire("line", "first").await;
    let mut events = Events::open(&node, "?prefix=line", None).await;
    let wait = json!({"holder": "second", "ttl_ms": 60_000, "wait_ms": 30_000});
    let (granted, ()) = tokio::join!(node.post("/v1/leases/line:acquire", wait), async {
        node.until_waiting("line", 1).await;
        node.post("/v1/leases/line:release", json!({"session": first["session"]})).await.ok();
    });
    granted.ok();
    assert_eq!(kinds(&events.revision().await.1), ["queued"]);
    assert_eq!(kinds(&events.revision().await.1), ["ended", "granted"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_receives_only_its_own_events() {
    let node = Node::start().await;
    let mut events = Events::open(&node, "?prefix=mine/", None).await;
    node.acquire("yours/1", "a").await;
    node.put("/v1/registers/mine/key", json!({"value": "v"})).await.ok();
    node.acquire("mine/1", "a").await;
    let (_, messages) = events.revision().await;
    assert_eq!((messages[0].event.as_str(), &messages[0].data["key"]), ("put", &json!("mine/key")));
    let (_, messages) = events.revision().await;
    assert_eq!((kinds(&messages), &messages[0].data["resource"]), (vec!["granted"], &json!("mine/1")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revision_that_is_not_there_is_refused() {
    let node = Node::start().await;
    let ask = |query: &'static str| node.get(query);
    ask("/v1/watch?from=999999").await.refused("invalid_argument");
    ask("/v1/watch?from=soon").await.refused("invalid_argument");
    let mut request = Request::builder().uri("/v1/watch").header("host", "localhost");
    request = request.header("last-event-id", "soon");
    node.reply(request.body(Body::empty()).unwrap()).await.refused("invalid_argument");
}

/// A node that remembers few events in memory, and on disk so many bytes of them.
async fn forgetful(bytes_max: u64) -> Node {
    Node::configured(|config| {
        config.limits.events_max = 8;
        config.event_files.bytes_max = bytes_max;
    })
    .await
}

/// What memory no longer has is read from the disk: by watchers and by those who ask for pages, every revision once.
#[tokio::test(flavor = "multi_thread")]
async fn what_memory_no_longer_has_is_read_from_disk() {
    let node = forgetful(64 << 20).await;
    for number in 0..60 {
        node.put(&format!("/v1/registers/{}/{number}", ["a", "b"][number % 2]), json!({"value": "v"}))
            .await
            .ok();
    }
    let mut all = Events::open(&node, "?from=1", None).await;
    let mut of_a = Events::open(&node, "?from=1&prefix=a/", None).await;
    let last = node.get("/v1/events").await.ok()["revision"].as_u64().unwrap();
    assert!(last > 60);
    for revision in 1..=last {
        assert_eq!(all.revision().await.0, revision);
    }
    for number in (0..60).step_by(2) {
        assert_eq!(of_a.revision().await.1[0].data["key"], format!("a/{number}"));
    }
    node.put("/v1/registers/a/new", json!({"value": "v"})).await.ok();
    assert_eq!(all.revision().await.0, last + 1, "and it goes on with what happens");
    assert_eq!(of_a.revision().await.0, last + 1);

    let (mut found, mut next) = (Vec::new(), None);
    loop {
        let from = next.map_or(String::new(), |next: u64| format!("&from={next}"));
        let page = node.get(&format!("/v1/events?limit=7{from}")).await.ok();
        assert_eq!(page["complete_from"], 1);
        let events = page["events"].as_array().unwrap();
        found.extend(events.iter().map(|event| event["revision"].as_u64().unwrap()));
        next = page["next"].as_u64();
        if next.is_none() {
            break;
        }
    }
    found.dedup();
    assert_eq!(found, (1..=last + 1).collect::<Vec<_>>());
}

/// Neither memory nor files have it: the answer names where to go on, and from there nothing is missing.
#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_has_any_more_is_refused_with_where_to_go_on() {
    let node = forgetful(100 << 10).await;
    let value = "v".repeat(4 << 10);
    for _ in 0..100 {
        node.put("/v1/registers/big", json!({"value": value})).await.ok();
    }
    let restart = node.get("/v1/watch?from=1").await.refused("too_old")["revision"].as_u64().unwrap();
    let page = node.get("/v1/events").await.ok();
    assert_eq!(page["complete_from"], restart);
    let last = page["revision"].as_u64().unwrap();
    assert!(restart > 10 && restart < last - 8, "{restart} of {last}: files reach further back than memory");
    let mut again = Events::open(&node, &format!("?from={restart}"), None).await;
    for revision in restart..=last {
        assert_eq!(again.revision().await.0, revision);
    }
    node.get("/v1/events?from=1").await.refused("too_old");
}

/// The log of events is bounded in bytes, so enough large values push old revisions out.
#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_that_comes_too_late_learns_where_to_start() {
    let node = Node::configured(|config| config.event_files.bytes_max = 0).await;
    let value = "v".repeat(64 << 10);
    let mut slow = Events::open(&node, "", None).await;
    for _ in 0..1_100 {
        node.put("/v1/registers/big", json!({"value": value})).await.ok();
    }
    let error = node.get("/v1/watch?from=1").await.refused("too_old");
    let restart = error["revision"].as_u64().unwrap();
    let mut again = Events::open(&node, &format!("?from={restart}"), None).await;
    assert_eq!(again.revision().await.0, restart, "nothing of what is left is missed");

    // One that did not keep up gets the same as its last message.
    let message = loop {
        let message = slow.next().await.expect("the stream ends with the reason");
        if message.event == "error" {
            break message;
        }
    };
    assert_eq!(message.data["error"]["code"], "too_old");
    assert!(slow.next().await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_when_the_node_stops() {
    let node = Node::start().await;
    let mut events = Events::open(&node, "", None).await;
    node.stop.send_replace(true);
    assert!(events.next().await.is_none());
}

/// Whoever has plain HTTP only learns of a grant, a notice or an end at once, and not with the next renewal.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_told_its_grants_notices_and_ends() {
    let node = Node::start().await;
    let first = node.acquire("r", "first").await;
    let second = node.open("second").await;
    let id = second["session"].as_str().unwrap();
    let mut events = Events::of_session(&node, id).await;
    let begin = events.next().await.unwrap();
    assert_eq!((begin.event.as_str(), &begin.data["held"]), ("session", &json!([])));
    assert_eq!(begin.data["session_number"], second["session_number"]);
    let metrics = String::from_utf8(node.get("/metrics").await.body).unwrap();
    assert!(metrics.contains("\ntenure_watchers 1\n"), "it counts as a watch");

    let wait = json!({"session": id, "number": 1, "wait_ms": 30_000});
    let (granted, ()) = tokio::join!(node.post("/v1/leases/r:acquire", wait), async {
        node.until_waiting("r", 1).await;
        node.post("/v1/leases/r:release", json!({"session": first["session"]})).await.ok();
    });
    let token = granted.ok()["token"].clone();
    let message = events.next().await.unwrap();
    assert_eq!((message.event.as_str(), &message.data["token"]), ("granted", &token));
    node.post("/v1/leases/r:revoke", json!({"reason": "maintenance"})).await.ok();
    let message = events.next().await.unwrap();
    assert_eq!((message.event.as_str(), &message.data["resource"]), ("noticed", &json!("r")));
    // What happens to others is not sent.
    node.acquire("other", "third").await;
    node.post("/v1/leases/r:release", json!({"session": id})).await.ok();
    let message = events.next().await.unwrap();
    assert_eq!((message.event.as_str(), &message.data["why"]), ("ended", &json!("revoked")));
    // One that begins now gets the current state.
    node.post("/v1/leases/s:acquire", json!({"session": id})).await.ok();
    let standing = Events::of_session(&node, id).await.next().await.unwrap();
    assert_eq!(standing.data["held"][0]["resource"], "s");
    let secret = id.split_once('-').unwrap().1;
    assert!(!standing.data.to_string().contains(secret), "{standing:?}");

    node.call_as(id, axum::http::Method::DELETE, "/v1/session", Body::empty()).await.ok();
    assert_eq!(events.next().await.unwrap().event, "ended");
    assert_eq!(events.next().await.unwrap().event, "closed");
    assert!(events.next().await.is_none(), "the stream ends with its session");
    let gone = node.call_as(id, axum::http::Method::GET, "/v1/sessions:events", Body::empty()).await;
    gone.refused("unknown_session");
    node.get("/v1/sessions:events").await.refused("invalid_session");
}

#[tokio::test(flavor = "multi_thread")]
async fn following_a_session_is_bounded_and_ends_when_the_node_stops() {
    let limits = crate::front::FrontLimits { watches_max: 1, ..Default::default() };
    let node = Node::start_with(limits).await;
    let opened = node.open("a").await;
    let id = opened["session"].as_str().unwrap();
    let mut events = Events::of_session(&node, id).await;
    let second = node.call_as(id, axum::http::Method::GET, "/v1/sessions:events", Body::empty()).await;
    second.refused("overloaded");
    events.next().await.unwrap();
    node.stop.send_replace(true);
    assert!(events.next().await.is_none());
}
