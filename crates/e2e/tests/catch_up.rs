//! A follower was cut off for so long that it catches up by a snapshot, with clients connected to it. What happened in
//! between is told to nobody there, so everybody who listens must find out (`waiters_move`).

use std::time::{Duration, Instant};

use futures_util::stream;
use serde_json::{Value, json};
use tenure_client::proto::client_frame::Command as Asked;
use tenure_client::proto::server_frame::Content;
use tenure_client::proto::stream_client::StreamClient;
use tenure_client::proto::{self, ClientFrame, ClientFrames};
use tenure_client::{Channel, random_nonce};
use tenure_e2e::{Cluster, Http, Lan, SOON, Side, alone, client, until};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// More than the log keeps: a snapshot is due after 64 MiB.
const BULK_WRITES: usize = 1_200;
const BULK_BYTES: usize = 60_000;

/// Somebody holds it for longer than the test takes; the session.
fn hold(http: &mut Http, resource: &str) -> Value {
    let body = json!({"holder": "first", "ttl_ms": 3_600_000});
    http.post(&format!("/v1/leases/{resource}:acquire"), &body).expect(200)["session"].clone()
}

fn until_awaited(http: &mut Http, resource: &str) {
    until("a client waits", SOON, || {
        let lease = http.get(&format!("/v1/leases/{resource}")).expect(200);
        lease["waiters"].as_array().is_some_and(|waiters| !waiters.is_empty())
    });
}

/// What became of a queued acquire on a command stream.
#[derive(Debug, PartialEq, Eq)]
enum StreamOutcome {
    Granted,
    /// The stream has ended, so its client opens another and is told how things stand.
    StreamEnded,
}

/// A command stream as the library has one, without the library, which would ask another node after some silence: opens a
/// session, acquires, and listens for as long as it takes.
async fn wait_on_stream(endpoint: String, resource: &'static str) -> StreamOutcome {
    let channel = Channel::from_shared(format!("http://{endpoint}")).expect("an address");
    let channel = channel.connect().await.expect("the node accepts connections");
    let (frames, sent) = mpsc::channel(8);
    let sent = stream::unfold(sent, |mut sent| async move { Some((sent.recv().await?, sent)) });
    let mut answers = StreamClient::new(channel).commands(sent).await.expect("a stream").into_inner();
    let open = proto::StreamOpen {
        holder: "stream".into(),
        ttl_ms: 3_600_000,
        nonce: random_nonce().to_vec(),
        transmission: 1,
    };
    let frame = ClientFrame { frame: 1, command: Some(Asked::Open(open)), ..ClientFrame::default() };
    frames.send(ClientFrames { frames: vec![frame], credits: 100 }).await.expect("the stream is open");
    while let Ok(Some(message)) = answers.message().await {
        for frame in message.frames {
            match frame.content {
                Some(Content::Opened(_)) => {
                    let acquire = proto::StreamAcquire {
                        resources: vec![resource.into()],
                        wait: Some(proto::Wait { wait: Some(proto::wait::Wait::ForEver(true)) }),
                        ..proto::StreamAcquire::default()
                    };
                    let frame = ClientFrame {
                        frame: 2,
                        session: frame.session,
                        number: Some(1),
                        lowest_awaited: 1,
                        command: Some(Asked::Acquire(acquire)),
                    };
                    let frames = frames.send(ClientFrames { frames: vec![frame], credits: 0 });
                    frames.await.expect("the stream is open");
                }
                Some(Content::PushGranted(_)) => return StreamOutcome::Granted,
                Some(Content::Error(error)) => panic!("{error:?}"),
                _ => {}
            }
        }
    }
    StreamOutcome::StreamEnded
}

/// Two wait through the follower, on a bare command stream and by the client library, and one watches; while the follower
/// is cut off both are granted what they wait for, and all of that reaches the follower in a snapshot.
#[test]
fn streams_and_watches_survive_the_snapshot_of_a_follower() {
    if Lan::missing("streams_and_watches_survive_the_snapshot_of_a_follower") {
        return;
    }
    let _turn = alone();
    let cluster = Cluster::start_in("catch-up", Lan::new(3));
    let leader = cluster.leader();
    let (follower, other) = (cluster.others(leader)[0], cluster.others(leader)[1]);
    let mut http = cluster.node(leader).http();
    let held: Vec<Value> = ["line/stream", "line/library"].map(|resource| hold(&mut http, resource)).to_vec();

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let on_stream = runtime.spawn(wait_on_stream(cluster.node(follower).endpoint(), "line/stream"));
    let follower_first: Vec<String> =
        cluster.addresses_from(follower - 1).iter().map(ToString::to_string).collect();
    let endpoints = follower_first.join(",");
    let by_library = runtime.spawn(async move {
        let session = client(&endpoints).session().ttl(Duration::from_secs(60)).open().await.expect("opened");
        let lease = session.acquire("line/library").wait().await.expect("granted");
        (session, lease)
    });
    until_awaited(&mut http, "line/stream");
    until_awaited(&mut http, "line/library");
    let watcher = cluster.node(follower).http().with_limit(SOON);
    let mut watch = watcher.events("/v1/watch?prefix=line/", None);

    let had = cluster.node(follower).metric("tenure_log_last_index");
    cluster.lan().cut(follower, Side::Peers);
    let started = Instant::now();
    for (resource, session) in ["line/stream", "line/library"].iter().zip(&held) {
        http.post(&format!("/v1/leases/{resource}:release"), &json!({"session": session})).expect(200);
    }
    let value = "x".repeat(BULK_BYTES);
    for number in 0..BULK_WRITES {
        http.put(&format!("/v1/registers/bulk/{}", number % 50), &json!({ "value": value })).expect(200);
    }
    for number in [leader, other] {
        until("what the follower missed is cut from the log", SOON, || {
            cluster.node(number).metric("tenure_log_purged_index") > had + 1.0
        });
    }
    let cut_for = started.elapsed();
    assert!(!on_stream.is_finished(), "the stream must be open when the snapshot comes");
    cluster.lan().heal(follower);
    let healed = Instant::now();
    until("the follower has taken a snapshot", SOON, || {
        cluster.node(follower).metric("tenure_log_purged_index") > had
    });
    let caught_up = healed.elapsed();

    let outcome = runtime.block_on(async { timeout(SOON, on_stream).await });
    let outcome = outcome.expect("a stream that misses events ends").expect("no panic");
    let event = watch.find(|event| {
        let text = event.data.to_string();
        text.contains("granted") || text.contains("too_old")
    });
    let event = event.expect("a watch says what happened, or that it has missed it");
    let (session, lease) = runtime
        .block_on(async { timeout(SOON, by_library).await })
        .expect("a grant arrives")
        .expect("no panic");
    lease.permit().map(drop).expect("it holds");
    println!(
        "cut off for {cut_for:?}, caught up {caught_up:?} after healing; the stream: {outcome:?}; the watch: {} {}",
        event.name, event.data
    );

    // And on it goes: what is granted now arrives through the follower.
    let mut watch = watcher.events("/v1/watch?prefix=after/", None);
    runtime
        .block_on(async { timeout(SOON, session.acquire("after/lease")).await })
        .expect("answered")
        .expect("granted");
    let event = watch.find(|event| event.data.to_string().contains("granted"));
    event.expect("a new watch tells of a new grant");
    let first = hold(&mut http, "after/stream");
    let on_stream = runtime.spawn(wait_on_stream(cluster.node(follower).endpoint(), "after/stream"));
    until_awaited(&mut http, "after/stream");
    http.post("/v1/leases/after/stream:release", &json!({"session": first})).expect(200);
    let outcome = runtime.block_on(async { timeout(SOON, on_stream).await });
    assert_eq!(outcome.expect("a push arrives").expect("no panic"), StreamOutcome::Granted);
}
