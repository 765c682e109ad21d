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

/// The log of events is bounded in bytes, so enough large values push old revisions out.
#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_that_comes_too_late_learns_where_to_start() {
    let node = Node::start().await;
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
