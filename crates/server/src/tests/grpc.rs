//! gRPC: every service, through the same front as HTTP.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use serde_json::json;
use tenure_wire::proto::client_frame::Command as Asked;
use tenure_wire::proto::cluster_client::ClusterClient;
use tenure_wire::proto::fences_client::FencesClient;
use tenure_wire::proto::leases_client::LeasesClient;
use tenure_wire::proto::registers_client::RegistersClient;
use tenure_wire::proto::server_frame::Content;
use tenure_wire::proto::sessions_client::SessionsClient;
use tenure_wire::proto::stream_client::StreamClient;
use tenure_wire::proto::watch_client::WatchClient;
use tenure_wire::proto::{self, acquire_request, event, operation};
use tenure_wire::{ApiError, Code};
use tokio::sync::mpsc;
use tonic::Status;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::util::BoxCloneService;

use super::Node;
use crate::front::FrontLimits;

pub(super) type Channel = BoxCloneService<Request<tonic::body::Body>, axum::http::Response<Body>, Infallible>;

impl Node {
    pub(super) fn channel(&self) -> Channel {
        let front = self.front.clone();
        BoxCloneService::new(tower::service_fn(move |request: Request<tonic::body::Body>| {
            let front = front.clone();
            async move { Ok(front.answer(request).await) }
        }))
    }
}

fn opening(holder: &str) -> proto::AcquireRequest {
    let opening = proto::Opening { holder: holder.into(), ttl_ms: 60_000, nonce: Vec::new(), number: 1 };
    proto::AcquireRequest {
        by: Some(acquire_request::By::Opening(opening)),
        resources: vec!["g/1".into()],
        ..Default::default()
    }
}

fn caller(session: &str) -> Option<proto::Caller> {
    Some(proto::Caller { session: session.into(), number: None, lowest_awaited: 0 })
}

#[track_caller]
fn code(status: &Status) -> Code {
    let error = ApiError::from(status);
    assert_eq!(status.metadata().get("tenure-code").unwrap(), error.code.as_str());
    error.code
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_and_leases() {
    let node = Node::start().await;
    let mut sessions = SessionsClient::new(node.channel());
    let mut leases = LeasesClient::new(node.channel());
    let open =
        proto::SessionOpenRequest { holder: "a".into(), ttl_ms: 60_000, nonce: vec![7; 16], number: 4 };
    let opened = sessions.open(open.clone()).await.unwrap().into_inner();
    assert_eq!(opened.number, 4);
    assert_eq!(sessions.open(open).await.unwrap().into_inner().session, opened.session, "the nonce finds it");

    let mut acquire = opening("x");
    acquire.by = Some(acquire_request::By::Caller(caller(&opened.session).unwrap()));
    let granted = leases.acquire(acquire).await.unwrap().into_inner();
    assert_eq!((granted.grants[0].token, granted.opened), (1, None));
    let held = leases.acquire(opening("b")).await.unwrap_err();
    assert_eq!((held.code(), code(&held)), (tonic::Code::FailedPrecondition, Code::Held));
    assert_eq!(ApiError::from(&held).about.holder.as_deref(), Some("a"));

    let own = sessions
        .get(proto::SessionGetRequest { session: opened.session.clone() })
        .await
        .unwrap()
        .into_inner();
    assert_eq!((own.resources, own.leases[0].token), (vec!["g/1".to_string()], 1));
    let renewals = [&opened.session[..], "99-00000000000000000000000000000000"]
        .map(|id| proto::SessionRenewal { session: id.into(), number: 9 });
    let renewed =
        sessions.renew(proto::SessionRenewRequest { renewals: renewals.into() }).await.unwrap().into_inner();
    assert_eq!((renewed.renewed[0].number, renewed.unknown.len()), (9, 1));

    let release = proto::ReleaseRequest {
        caller: caller(&opened.session),
        resource: "g/1".into(),
        token: Some(1),
        rest_ms: None,
    };
    assert!(leases.release(release).await.unwrap().into_inner().released);
    let history =
        leases.history(proto::HistoryRequest { resource: "g/1".into(), limit: None }).await.unwrap();
    assert_eq!(history.into_inner().transitions[0].why(), proto::EndReason::Released);
    assert_eq!(
        leases.barrier(proto::BarrierRequest { resource: "g/1".into() }).await.unwrap().into_inner().token,
        2
    );
    let listed = leases.list(proto::LeaseListRequest::default()).await.unwrap().into_inner();
    assert_eq!(listed.leases.len(), 0);
    let got = leases.get(proto::LeaseGetRequest { resource: "g/1".into(), stale: false }).await.unwrap();
    assert_eq!(got.into_inner().lease.unwrap().generation, 1);

    let close = proto::SessionCloseRequest { caller: caller(&opened.session), died: true };
    assert_eq!(sessions.close(close.clone()).await.unwrap().into_inner().released, 0);
    assert_eq!(code(&sessions.close(close).await.unwrap_err()), Code::UnknownSession);
    assert_eq!(
        sessions.list(proto::SessionListRequest::default()).await.unwrap().into_inner().sessions.len(),
        0
    );
}

/// One command stream.
pub(super) struct CommandStream {
    frames: mpsc::UnboundedSender<proto::ClientFrames>,
    frames_in: tonic::Streaming<proto::ServerFrames>,
    waiting: VecDeque<proto::ServerFrame>,
    said: u64,
}

impl CommandStream {
    pub(super) async fn connect(node: &Node) -> CommandStream {
        let (frames, outgoing) = mpsc::unbounded_channel();
        let outgoing =
            futures_util::stream::unfold(outgoing, |mut outgoing: mpsc::UnboundedReceiver<_>| async {
                outgoing.recv().await.map(|frames| (frames, outgoing))
            });
        let frames_in = StreamClient::new(node.channel()).commands(outgoing).await.unwrap().into_inner();
        let mut stream = CommandStream { frames, frames_in, waiting: VecDeque::new(), said: 0 };
        assert!(matches!(stream.next().await, Content::Welcome(_)));
        stream
    }

    /// Says one thing, as the command with this number.
    pub(super) async fn ask(&mut self, session: u64, number: Option<u64>, command: Asked) -> Content {
        self.said += 1;
        let frame = proto::ClientFrame {
            frame: self.said,
            session,
            number,
            lowest_awaited: 0,
            command: Some(command),
        };
        self.frames.send(proto::ClientFrames { frames: vec![frame], credits: 0 }).unwrap();
        self.next().await
    }

    /// The next thing that arrives, whatever it is.
    async fn next(&mut self) -> Content {
        while self.waiting.is_empty() {
            self.waiting.extend(self.frames_in.message().await.unwrap().expect("the stream goes on").frames);
        }
        self.waiting.pop_front().and_then(|frame| frame.content).expect("a frame says something")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_releases_is_notified_once_and_so_are_others_of_the_session() {
    let node = Node::start().await;
    let mut one = CommandStream::connect(&node).await;
    let open = proto::StreamOpen { holder: "a".into(), ttl_ms: 60_000, nonce: vec![7; 16], transmission: 1 };
    let Content::Opened(opened) = one.ask(0, None, Asked::Open(open)).await else { panic!("not opened") };
    let session = 1; // the first of its store
    let mut other = CommandStream::connect(&node).await;
    let attach = Asked::Attach(proto::StreamAttach { secret: opened.secret });
    assert!(matches!(other.ask(session, None, attach).await, Content::Attached(_)));
    for round in 0..2 {
        let acquire = proto::StreamAcquire { resources: vec!["g/1".into()], ..Default::default() };
        let granted = one.ask(session, Some(2 * round + 1), Asked::Acquire(acquire)).await;
        assert!(matches!(granted, Content::Granted(_)), "nothing but the answer: {granted:?}");
        let release =
            || Asked::Release(proto::StreamRelease { resource: "g/1".into(), token: None, rest_ms: None });
        let released = one.ask(session, Some(2 * round + 2), release()).await;
        assert!(matches!(released, Content::Released(ref released) if released.released), "{released:?}");
        let Content::PushEnded(ended) = other.next().await else { panic!("the other one is not notified") };
        assert_eq!((ended.token, ended.why()), (round + 1, proto::EndReason::Released));
        // Nothing came in between, and a release of nothing leaves nothing behind that would hide the next one's end.
        let nothing = one.ask(session, None, release()).await;
        assert!(matches!(nothing, Content::Released(ref nothing) if !nothing.released), "{nothing:?}");
    }
    // What the other one releases, this one has not asked for.
    let acquire = proto::StreamAcquire { resources: vec!["g/1".into()], ..Default::default() };
    one.ask(session, Some(5), Asked::Acquire(acquire)).await;
    let release = Asked::Release(proto::StreamRelease { resource: "g/1".into(), token: None, rest_ms: None });
    other.ask(session, Some(6), release).await;
    assert!(matches!(one.next().await, Content::PushEnded(ended) if ended.token == 3));
}

fn stream_write(bytes: usize) -> Asked {
    let put = proto::Put { key: b"k".to_vec(), value: vec![7; bytes], guard: None, ephemeral: false };
    let operation = proto::Operation { operation: Some(operation::Operation::Put(put)) };
    Asked::Write(proto::StreamWrite { then: vec![operation], ..Default::default() })
}

/// Streams were not metered: a client could have as much in flight as it had credits for, each of any size.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_stream_has_in_flight_is_bounded() {
    let limits = FrontLimits { stream_bytes_max: 8 << 10, ..FrontLimits::default() };
    let node = Node::start_with(limits).await;
    let mut stream = CommandStream::connect(&node).await;
    let Content::Error(refused) = stream.ask(0, None, stream_write(16 << 10)).await else {
        panic!("a command that is too large for the stream is not refused");
    };
    let refused = ApiError::from(refused);
    assert_eq!((refused.code, refused.about.limit.as_deref()), (Code::Overloaded, Some("stream_bytes_max")));
    assert_eq!(refused.about.max, Some(8 << 10));
    // The stream goes on, and what was answered makes room.
    for _ in 0..4 {
        let written = stream.ask(0, None, stream_write(6 << 10)).await;
        assert!(matches!(written, Content::Written(_)), "{written:?}");
    }
    assert_eq!(node.front.api().streams().bytes(), 0, "everything was answered");
}

/// Half a message of every stream was held in memory for as long as its client liked.
#[tokio::test(flavor = "multi_thread")]
async fn messages_that_are_still_arriving_are_bounded_over_all_streams() {
    let limits = FrontLimits { streams_bytes_max: 48 << 10, ..FrontLimits::default() };
    let node = Node::start_with(limits).await;
    // The head of a message of a megabyte, and the first 32 KiB of it.
    let half = [&[0, 0, 0x10, 0, 0][..], &[0; 32 << 10]].concat();
    let (sender, mut first) = half_a_message(&node, half.clone()).await;
    let soon = std::time::Duration::from_secs(20);
    let counted = async {
        while node.front.api().streams().bytes() < 32 << 10 {
            first.frame().await;
        }
    };
    tokio::time::timeout(soon, counted).await.expect("half a message counts");
    let (_second, mut body) = half_a_message(&node, half).await;
    let mut trailers = None;
    let ended = async {
        while let Some(frame) = body.frame().await {
            trailers = frame.unwrap().into_trailers().ok().or(trailers.take());
        }
    };
    tokio::time::timeout(soon, ended).await.expect("a stream that is too much ends");
    let status = Status::from_header_map(&trailers.expect("the stream ends with a status")).unwrap();
    assert_eq!(code(&status), Code::Overloaded);
    assert_eq!(ApiError::from(&status).about.limit.as_deref(), Some("streams_bytes_max"));
    // When the first is gone, there is room again.
    drop((sender, first));
    let gone = async {
        while node.front.api().streams().bytes() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(soon, gone).await.expect("a stream that is gone takes no room");
    CommandStream::connect(&node).await;
}

/// A command stream on which so much has arrived, and nothing follows.
async fn half_a_message(node: &Node, bytes: Vec<u8>) -> (mpsc::Sender<bytes::Bytes>, Body) {
    let (sender, receiver) = mpsc::channel(4);
    sender.send(bytes.into()).await.unwrap();
    let chunks = futures_util::stream::unfold(receiver, |mut receiver: mpsc::Receiver<bytes::Bytes>| async {
        receiver.recv().await.map(|chunk| (Ok::<_, Infallible>(chunk), receiver))
    });
    let request = Request::builder().method("POST").uri("/tenure.v1.Stream/Commands");
    let request = request.header("content-type", "application/grpc").header("te", "trailers");
    (sender, node.send(request.body(Body::from_stream(chunks)).unwrap()).await.into_body())
}

#[tokio::test(flavor = "multi_thread")]
async fn registers_fences_and_the_cluster() {
    let node = Node::start().await;
    let mut leases = LeasesClient::new(node.channel());
    let mut registers = RegistersClient::new(node.channel());
    let mut fences = FencesClient::new(node.channel());
    let mut cluster = ClusterClient::new(node.channel());
    leases.acquire(proto::AcquireRequest { fences: vec!["pg".into()], ..opening("a") }).await.unwrap();
    let scope = Some(proto::Scope { resource: "g/1".into(), slot: None });
    let put = |token| proto::WriteRequest {
        then: vec![proto::Operation {
            operation: Some(operation::Operation::Put(proto::Put {
                key: b"k\xff".to_vec(),
                value: b"v".to_vec(),
                guard: Some(proto::Guard { scope: scope.clone(), token }),
                ephemeral: false,
            })),
        }],
        ..Default::default()
    };
    assert!(registers.write(put(1)).await.unwrap().into_inner().succeeded);
    assert_eq!(code(&registers.write(put(5)).await.unwrap_err()), Code::UnknownToken);
    assert_eq!(code(&registers.write(put(0)).await.unwrap_err()), Code::InvalidToken);
    let get = proto::RegisterGetRequest { key: b"k\xff".to_vec(), stale: true };
    assert_eq!(
        registers.get(get).await.unwrap().into_inner().register.unwrap().value.as_deref(),
        Some(&b"v"[..])
    );
    let listed = registers.list(proto::RegisterListRequest::default()).await.unwrap().into_inner();
    assert_eq!((listed.registers.len(), listed.next.len()), (1, 0));

    fences.arm(proto::ArmRequest { scope: scope.clone(), fence: "pg".into(), token: 1 }).await.unwrap();
    let report = proto::ReportRefusedRequest { scope, fence: "pg".into(), presented: 1, seen: 2, count: 4 };
    fences.report_refused(report).await.unwrap();
    let listed = fences.list(proto::FenceListRequest::default()).await.unwrap().into_inner();
    assert_eq!((listed.fences[0].refused, listed.fences[0].armed[0].current), (4, true));
    let remove = proto::FenceRemoveRequest { resource: "g/1".into(), fence: "pg".into() };
    fences.remove(remove).await.unwrap();
    assert_eq!(fences.list(proto::FenceListRequest::default()).await.unwrap().into_inner().fences.len(), 0);

    let status =
        cluster.status(proto::ClusterStatusRequest { with_state_hash: true }).await.unwrap().into_inner();
    assert_eq!((status.leader, status.last_token, status.state_hash.len()), (Some(1), 1, 32));
    let refused = cluster.step_down(proto::StepDownRequest::default()).await.unwrap_err();
    assert_eq!(code(&refused), Code::InvalidArgument, "there is nobody to hand leadership to");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_alone_says_what_it_cannot_do_and_can_be_backed_up() {
    let node = Node::start().await;
    let mut cluster = ClusterClient::new(node.channel());
    node.acquire("b", "a").await;
    let another = proto::NodeAddRequest { node: 2, peer_address: "localhost:1".into(), ..Default::default() };
    let refused = cluster.add(another).await.unwrap_err();
    assert_eq!(code(&refused), Code::InvalidArgument, "it has no port for peers");
    let refused = cluster.remove(proto::NodeRemoveRequest { node: 1 }).await.unwrap_err();
    assert_eq!(code(&refused), Code::InvalidArgument, "it is the last one");
    let refused = cluster.remove(proto::NodeRemoveRequest { node: 9 }).await.unwrap_err();
    assert_eq!(code(&refused), Code::UnknownNode);

    let mut pieces = cluster.backup(proto::BackupRequest::default()).await.unwrap().into_inner();
    let mut backup = Vec::new();
    while let Some(message) = pieces.message().await.unwrap() {
        backup.extend(message.piece);
    }
    let (head, _) = tenure_wire::read_backup(&mut backup.as_slice()).unwrap();
    assert_eq!(head.last_token, 1);
    let restore = |token_floor, piece: &[u8]| proto::RestoreRequest {
        token_floor,
        holders_stopped: false,
        piece: piece.to_vec(),
        checksum: Vec::new(),
    };
    for (message, expected) in [
        (restore(10, &backup), Code::NotEmpty),
        (restore(0, &backup), Code::InvalidToken),
        (restore(10, b"something else"), Code::InvalidArgument),
        (proto::RestoreRequest { checksum: vec![1], ..restore(10, &backup) }, Code::InvalidArgument),
    ] {
        let refused = cluster.restore(futures_util::stream::iter([message])).await.unwrap_err();
        assert_eq!(code(&refused), expected);
    }
}

/// A backup without its last byte is staged and never restored; the same file, sent whole, goes on from there.
#[tokio::test(flavor = "multi_thread")]
async fn a_restore_that_broke_off_is_continued() {
    let old = Node::start().await;
    old.acquire("b", "a").await;
    let mut pieces =
        ClusterClient::new(old.channel()).backup(proto::BackupRequest::default()).await.unwrap().into_inner();
    let mut backup = Vec::new();
    while let Some(message) = pieces.message().await.unwrap() {
        backup.extend(message.piece);
    }
    let checksum = backup[backup.len() - 16..].to_vec();
    let message = |piece: &[u8]| proto::RestoreRequest {
        token_floor: 10,
        holders_stopped: true,
        piece: piece.to_vec(),
        checksum: checksum.clone(),
    };
    let new = Node::start().await;
    let mut cluster = ClusterClient::new(new.channel());
    let cut: Vec<_> = backup[..backup.len() - 1].chunks(7).map(message).collect();
    let refused = cluster.restore(futures_util::stream::iter(cut)).await.unwrap_err();
    assert_eq!(code(&refused), Code::InvalidArgument, "it is no whole backup");
    let status = cluster.status(proto::ClusterStatusRequest::default()).await.unwrap().into_inner();
    let staging = status.staging.expect("what arrived is staged");
    assert_eq!((staging.pieces, staging.records, status.last_token), (1, 1, 0), "and nothing is visible");
    assert!((1..=600_000).contains(&staging.discarded_in_ms), "{staging:?}");

    for _ in 0..2 {
        let whole: Vec<_> = backup.chunks(7).map(message).collect();
        let restored = cluster.restore(futures_util::stream::iter(whole)).await.unwrap().into_inner();
        assert_eq!((restored.token_floor, restored.grants_in_ms), (10, 0), "also if its answer was lost");
    }
    let status = cluster.status(proto::ClusterStatusRequest::default()).await.unwrap().into_inner();
    assert_eq!((status.staging, status.last_token), (None, 10));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_tells_whole_revisions() {
    let node = Node::start().await;
    let mut watch = WatchClient::new(node.channel());
    let mut events = watch.watch(proto::WatchRequest::default()).await.unwrap().into_inner();
    let begin = events.message().await.unwrap().unwrap();
    assert!(begin.events.is_empty());
    node.acquire("w", "a").await;
    let message = events.message().await.unwrap().unwrap();
    assert_eq!((message.revision, message.events.len()), (begin.revision + 1, 2));
    assert!(matches!(message.events[1].kind, Some(event::Kind::Granted(_))), "{message:?}");
    let refused =
        watch.watch(proto::WatchRequest { prefix: String::new(), from: Some(1 << 40) }).await.unwrap_err();
    assert_eq!(code(&refused), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_messages_are_refused() {
    let node = Node::start().await;
    let mut leases = LeasesClient::new(node.channel());
    let nobody = proto::AcquireRequest { by: None, ..opening("a") };
    assert_eq!(code(&leases.acquire(nobody).await.unwrap_err()), Code::InvalidArgument);
    let nameless = proto::AcquireRequest { resources: vec!["a//b".into()], ..opening("a") };
    assert_eq!(code(&leases.acquire(nameless).await.unwrap_err()), Code::InvalidName);
    let giant = proto::AcquireRequest { resources: vec!["x".repeat(2 << 20)], ..opening("a") };
    let refused = leases.acquire(giant).await.unwrap_err();
    assert_eq!(ApiError::from(&refused).code, Code::TooLarge, "{refused:?}");
    // Bytes that are no message.
    for body in [&b"\0\0\0\0\x04\xff\xff\xff\xff"[..], b"\0\0\0\0\x04\xff", b"nonsense"] {
        let request = Request::builder().method("POST").uri("/tenure.v1.Leases/Acquire");
        let request = request.header("content-type", "application/grpc").header("te", "trailers");
        let response = node.send(request.body(Body::from(body)).unwrap()).await;
        assert_ne!(response.headers()["grpc-status"], "0", "{body:?}");
    }
    // A foreign page finds no way in through here either.
    let request = Request::builder().method("POST").uri("/tenure.v1.Leases/Acquire");
    let request = request.header("content-type", "application/grpc").header("host", "evil.example");
    let response = node.send(request.body(Body::empty()).unwrap()).await;
    assert_eq!(response.headers()["tenure-code"], "foreign_origin");
    assert_eq!(node.get("/healthz").await.json(), json!({"status": "ok"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_reflection() {
    let node = Node::start().await;
    let mut health = HealthClient::new(node.channel());
    let check = |service: &str| HealthCheckRequest { service: service.into() };
    assert_eq!(health.check(check("")).await.unwrap().into_inner().status, 1);
    assert_eq!(health.check(check("tenure.v1.Leases")).await.unwrap().into_inner().status, 1);
    assert_eq!(health.check(check("nothing")).await.unwrap_err().code(), tonic::Code::NotFound);
    let mut watch = health.watch(check("")).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status, 1);

    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::{ServerReflectionRequest, server_reflection_response::MessageResponse};
    let ask = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut reflection = ServerReflectionClient::new(node.channel());
    let asked = futures_util::stream::iter([ask]);
    let mut answers = reflection.server_reflection_info(asked).await.unwrap().into_inner();
    let Some(MessageResponse::ListServicesResponse(listed)) =
        answers.message().await.unwrap().unwrap().message_response
    else {
        panic!("no list of services");
    };
    let names: Vec<&str> = listed.service.iter().map(|service| service.name.as_str()).collect();
    for name in ["tenure.v1.Sessions", "tenure.v1.Leases", "grpc.health.v1.Health"] {
        assert!(names.contains(&name), "{names:?}");
    }
}
