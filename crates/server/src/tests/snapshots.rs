//! A snapshot takes the machine's place while clients are connected: on a follower that was cut off and catches up.
//! Nobody gets the events in between, so every subscriber must notice the gap.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use serde_json::json;
use tenure_core::{Caller, Command, EndReason, Entry, SessionId};
use tenure_replica::StateMachine;
use tenure_wire::Captured;
use tenure_wire::proto::client_frame::Command as Asked;
use tenure_wire::proto::stream_client::StreamClient;
use tenure_wire::proto::watch_client::WatchClient;
use tenure_wire::proto::{self, server_frame::Content};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::Node;
use crate::replicated::Capture;

const SOON: Duration = Duration::from_secs(20);

/// Installs what the machine will be once this command was applied, as a snapshot: nobody is notified of the
/// command.
fn install(node: &Node, command: Command) {
    let replica = node.front.api().node.replica().clone();
    let mut replicated = replica.machine().write();
    let mut ahead = Captured::of(replicated.machine()).into_machine().expect("a state of a machine is sound");
    let (at, wall) = (ahead.time(), tenure_core::WallTime::default());
    let applied = ahead.apply(Entry { at, wall, renewals: Vec::new(), commands: vec![command] });
    assert!(applied.answers[0].is_ok(), "{applied:?}");
    replicated.restore(Capture::Loaded(Box::new(ahead)));
}

/// The listeners were cleared and nobody was notified: command streams stayed connected and were silent for
/// ever.
#[tokio::test(flavor = "multi_thread")]
async fn streams_waits_and_watches_survive_a_snapshot() {
    let node = Node::start().await;
    let held = node.acquire("s", "first").await["session"].as_str().unwrap().to_owned();
    let held: SessionId = held.parse().unwrap();

    // A command stream with a session of its own.
    let (frames, sent) = mpsc::channel(8);
    let sent = futures_util::stream::unfold(sent, |mut sent| async move { Some((sent.recv().await?, sent)) });
    let mut commands = StreamClient::new(node.channel()).commands(sent).await.unwrap().into_inner();
    let open = proto::StreamOpen { holder: "s".into(), ttl_ms: 60_000, nonce: vec![3; 16], transmission: 1 };
    let frame = proto::ClientFrame { frame: 1, command: Some(Asked::Open(open)), ..Default::default() };
    frames.send(proto::ClientFrames { frames: vec![frame], credits: 100 }).await.unwrap();
    let opened = |frames: &proto::ServerFrames| {
        frames.frames.iter().any(|frame| matches!(frame.content, Some(Content::Opened(_))))
    };
    while !opened(&timeout(SOON, commands.message()).await.unwrap().unwrap().unwrap()) {}

    // A watch over each surface.
    let mut watch =
        WatchClient::new(node.channel()).watch(proto::WatchRequest::default()).await.unwrap().into_inner();
    watch.message().await.unwrap();
    let request =
        Request::builder().uri("/v1/watch").header("host", "localhost").body(Body::empty()).unwrap();
    let mut events = node.send(request).await.into_body();
    events.frame().await.unwrap().unwrap();

    // Followers of two sessions: one that the snapshot leaves alive, and one that it does not.
    let follow = async |session: String| {
        let request = Request::builder().uri("/v1/sessions:events").header("host", "localhost");
        let request = request.header("tenure-session", session).body(Body::empty()).unwrap();
        let mut body = node.send(request).await.into_body();
        let begin = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(String::from_utf8_lossy(&begin).contains("event: session"));
        body
    };
    let living = node.open("living").await["session"].as_str().unwrap().to_owned();
    let (mut living, mut closed) = (follow(living).await, follow(held.to_string()).await);

    // An acquire that waits.
    let wait = json!({"holder": "second", "ttl_ms": 60_000, "wait_ms": 60_000});
    let waiting = node.post("/v1/leases/s:acquire", wait);
    let installed = async {
        node.until_waiting("s", 1).await;
        install(
            &node,
            Command::Close {
                by: Caller::unnumbered(crate::secrets::hashed_id(held)),
                why: EndReason::Released,
            },
        );
    };
    let (granted, ()) =
        timeout(SOON, async { tokio::join!(waiting, installed) }).await.expect("the wait ends");
    assert_eq!(granted.ok()["token"], 2);

    let ended = async { while commands.message().await.is_ok_and(|message| message.is_some()) {} };
    timeout(SOON, ended).await.expect("a stream that misses events ends");
    let status = commands.message().await;
    assert!(!matches!(status, Ok(Some(_))), "{status:?}");

    // Whoever follows a session gets its current state.
    let frame = timeout(SOON, living.frame()).await.expect("a follower learns that it missed something");
    let text = frame.unwrap().unwrap().into_data().unwrap();
    assert!(String::from_utf8_lossy(&text).starts_with("event: session"), "{text:?}");
    let frame = timeout(SOON, closed.frame()).await.expect("a follower learns that its session has ended");
    let text = frame.unwrap().unwrap().into_data().unwrap();
    assert!(String::from_utf8_lossy(&text).contains("unknown_session"), "{text:?}");
    assert!(timeout(SOON, closed.frame()).await.unwrap().is_none(), "its stream ends");

    // The events in between are sent, or that they are missing.
    let message = async {
        loop {
            match watch.message().await {
                Ok(Some(message))
                    if message.events.iter().any(|event| format!("{event:?}").contains("Ended")) =>
                {
                    break;
                }
                Ok(Some(_)) => {}
                Ok(None) => panic!("a watch that has missed something ends without a word"),
                Err(status) => {
                    assert_eq!(status.code(), tonic::Code::OutOfRange, "{status:?}");
                    break;
                }
            }
        }
    };
    timeout(SOON, message).await.expect("a watch over gRPC learns that it missed something");
    let message = async {
        loop {
            let frame = events.frame().await.expect("not without a word").unwrap().into_data().unwrap();
            let text = String::from_utf8_lossy(&frame).into_owned();
            if text.contains("event: ended") || text.contains("too_old") {
                break;
            }
        }
    };
    timeout(SOON, message).await.expect("a watch over HTTP learns that it missed something");
}

/// It ended with OK, as if the client had said all that it wanted to say.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_cannot_be_read_ends_its_stream_with_an_error() {
    let node = Node::start().await;
    for stream in ["Commands", "Renewals"] {
        for message in [&b"\0\0\0\0\x04\xff\xff\xff\xff"[..], b"\0\0\0\0\x04\xff", b"nonsense"] {
            let request = Request::builder().method("POST").uri(format!("/tenure.v1.Stream/{stream}"));
            let request = request.header("content-type", "application/grpc").header("te", "trailers");
            let response = node.send(request.body(Body::from(message)).unwrap()).await;
            let in_head = response.headers().get("grpc-status").cloned();
            let body = timeout(SOON, response.into_body().collect()).await.expect("the stream ends").unwrap();
            let status = in_head.or_else(|| body.trailers()?.get("grpc-status").cloned());
            let status = status.expect("a stream ends with a status");
            assert_eq!(status, "3", "{stream} with {message:?}: INVALID_ARGUMENT");
        }
    }
}
