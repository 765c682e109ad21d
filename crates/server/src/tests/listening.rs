//! Connections: both protocols on one port, patience with limits, and an orderly end. The connections are pipes in
//! memory, and time is tokio's own, so that a minute of silence takes no time.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use futures_util::StreamExt;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::connections::RequestGuard;
use crate::listen::{Accept, ListenLimits, Peer, Serve, listen};
use crate::metrics::Traffic;

/// Connections that a test hands over.
struct Handed(mpsc::Receiver<DuplexStream>);

impl Accept for Handed {
    type Connection = DuplexStream;

    async fn accept(&mut self) -> io::Result<(DuplexStream, Peer)> {
        match self.0.recv().await {
            Some(connection) => Ok((connection, Peer { name: "a test".into(), address: None, own: false })),
            None => std::future::pending().await,
        }
    }
}

/// Answers with the request's body, or with a megabyte for `/large`, or after a while for `/slow`, or without end for `/watch`.
#[derive(Clone)]
struct Echo;

impl Serve for Echo {
    async fn serve(self, request: Request<Incoming>) -> Response<Body> {
        request.extensions().get::<Arc<RequestGuard>>().expect("every request has its mark").set_busy(true);
        match request.uri().path() {
            "/large" => Response::new(Body::from(vec![b'x'; 1 << 20])),
            "/slow" => {
                tokio::time::sleep(Duration::from_secs(2)).await;
                Response::new(Body::from("slow"))
            }
            "/watch" => {
                let piece = || Ok::<_, io::Error>(bytes::Bytes::from_static(b"."));
                let begin = futures_util::stream::once(async move { piece() });
                Response::new(Body::from_stream(begin.chain(futures_util::stream::pending())))
            }
            _ => Response::new(Body::from(request.into_body().collect().await.unwrap().to_bytes())),
        }
    }
}

struct Listening {
    hand_over: mpsc::Sender<DuplexStream>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

fn start(limits: ListenLimits) -> Listening {
    let (hand_over, handed) = mpsc::channel(16);
    let (stop, stopping) = watch::channel(false);
    let task = tokio::spawn(listen(Handed(handed), None, Echo, limits, Arc::<Traffic>::default(), stopping));
    Listening { hand_over, stop, task }
}

impl Listening {
    async fn connect(&self) -> DuplexStream {
        let (ours, theirs) = duplex(16 << 10);
        self.hand_over.send(theirs).await.unwrap();
        ours
    }
}

/// All that comes until the server hangs up.
async fn rest(mut connection: DuplexStream) -> String {
    let mut answer = Vec::new();
    // A reset is an end, too.
    let _ = connection.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(start_paused = true)]
async fn both_protocols_are_served_on_one_port() {
    let listening = start(ListenLimits::default());
    let mut first = listening.connect().await;
    // Byte by byte, so that the server must wait before it knows which protocol this is.
    for byte in b"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi" {
        first.write_all(&[*byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    let answer = rest(first).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("hi"), "{answer}");

    let io = hyper_util::rt::TokioIo::new(listening.connect().await);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut send, connection) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    let driver = tokio::spawn(connection);
    let request = Request::post("http://a/").body(Body::from("hello")).unwrap();
    let answer = send.send_request(request).await.unwrap().into_body().collect().await.unwrap().to_bytes();
    assert_eq!(&answer[..], b"hello");
    driver.abort();
}

#[tokio::test(start_paused = true)]
async fn silence_ends_a_connection() {
    let listening = start(ListenLimits::default());
    let served = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    for begun in [&b""[..], b"PRI * HT", b"POST / HTTP/1.1\r\nhost: a\r\nconte", served] {
        let mut connection = listening.connect().await;
        connection.write_all(begun).await.unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(180), rest(connection)).await;
        assert!(answer.is_ok(), "{begun:?} is waited for without end");
    }
}

/// A byte now and then is no progress: a head has so long in all, in either protocol.
#[tokio::test(start_paused = true)]
async fn a_head_that_trickles_is_not_waited_for() {
    let listening = start(ListenLimits::default());
    for begun in [&b"GET / HTTP/1.1\r\nx: "[..], b"PRI * HT", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let (mut reader, mut writer) = tokio::io::split(listening.connect().await);
        writer.write_all(begun).await.unwrap();
        let mut answer = Vec::new();
        let mut ended = std::pin::pin!(reader.read_to_end(&mut answer));
        let mut written = 0;
        // What HTTP/2 would go on with, and a value in HTTP/1: nothing that is refused before it is complete.
        let rest: &[u8] = if begun.len() > 20 { &[0, 0, 80, 1, 4, 0, 0, 0, 1] } else { b"TP/2.0aaa" };
        for byte in rest {
            tokio::select! {
                _ = &mut ended => break,
                () = tokio::time::sleep(Duration::from_secs(3)) => {}
            }
            written += usize::from(writer.write_all(&[*byte]).await.is_ok());
        }
        assert!(written <= 3, "{begun:?} is waited for: {written} more bytes were taken");
    }
}

/// Each stream of an HTTP/2 connection costs memory before anybody looks at its request.
#[tokio::test(start_paused = true)]
async fn an_http2_connection_has_so_many_requests_and_no_more() {
    let listening = start(ListenLimits { streams_max: 4, ..ListenLimits::default() });
    let io = hyper_util::rt::TokioIo::new(listening.connect().await);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut send, connection) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    tokio::spawn(connection);
    // The first answer comes after the server's settings, which say how many there may be.
    let echo = Request::post("http://a/").body(Body::empty()).unwrap();
    send.send_request(echo).await.unwrap().into_body().collect().await.unwrap();
    let mut watches = Vec::new();
    for _ in 0..4 {
        let watch = Request::post("http://a/watch").body(Body::empty()).unwrap();
        watches.push(send.send_request(watch).await.unwrap());
    }
    let fifth = send.send_request(Request::post("http://a/watch").body(Body::empty()).unwrap());
    let fifth = tokio::time::timeout(Duration::from_secs(300), fifth).await;
    assert!(fifth.is_err(), "a fifth one is answered beside {} others", watches.len());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_nobody_reads_ends_its_connection() {
    let listening = start(ListenLimits::default());
    let mut connection = listening.connect().await;
    connection.write_all(b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let answer = rest(connection).await;
    assert!(answer.len() < 1 << 20, "the rest was thrown away, not kept: {} bytes", answer.len());
}

/// A connection with an answer that has begun and does not end.
async fn watching(listening: &Listening) -> DuplexStream {
    let mut watch = listening.connect().await;
    watch.write_all(b"GET /watch HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut head = [0; 12];
    watch.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    watch
}

/// Silent connections filled the table, and everybody else was refused for a minute.
#[tokio::test(start_paused = true)]
async fn a_full_table_closes_what_was_idle_longest() {
    let listening = start(ListenLimits { connections_max: 3, ..ListenLimits::default() });
    let mut watch = watching(&listening).await;
    let mut silent = listening.connect().await;
    let mut half = listening.connect().await;
    half.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n1234").await.unwrap();
    let mut newcomer = listening.connect().await;
    newcomer.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut head = [0; 12];
    newcomer.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    let closed = tokio::time::timeout(Duration::from_secs(1), silent.read(&mut head)).await;
    assert!(matches!(closed, Ok(Ok(0) | Err(_))), "the silent one is still there: {closed:?}");
    // The watch is the oldest of all, and goes on.
    let mut buffer = [0; 1 << 10];
    while let Ok(read) = tokio::time::timeout(Duration::from_secs(300), watch.read(&mut buffer)).await {
        assert!(read.unwrap() > 0, "the watch was cut off");
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_http2_connection_ends_and_one_with_a_stream_does_not() {
    let listening = start(ListenLimits::default());
    let connect = async |path: &str| {
        let io = hyper_util::rt::TokioIo::new(listening.connect().await);
        let executor = hyper_util::rt::TokioExecutor::new();
        let (mut send, connection) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
        let driver = tokio::spawn(connection);
        let request = Request::post(format!("http://a{path}")).body(Body::empty()).unwrap();
        let mut answer = send.send_request(request).await.unwrap().into_body();
        if path == "/" {
            assert!(answer.frame().await.is_none());
        }
        (send, driver, answer)
    };
    let (_idle_sender, idle, _) = connect("/").await;
    let (_sender, busy, _answer) = connect("/watch").await;
    tokio::time::timeout(Duration::from_secs(120), idle)
        .await
        .expect("an idle connection stays")
        .unwrap()
        .ok();
    tokio::time::sleep(Duration::from_secs(1_200)).await;
    assert!(!busy.is_finished(), "a stream was cut off");
}

#[tokio::test(start_paused = true)]
async fn one_connection_too_many_is_notified_and_room_comes_back() {
    let listening = start(ListenLimits { connections_max: 2, ..ListenLimits::default() });
    let first = watching(&listening).await;
    let _second = watching(&listening).await;
    let refused = rest(listening.connect().await).await;
    let (head, body) = refused.split_once("\r\n\r\n").expect("an answer");
    assert!(head.starts_with("HTTP/1.1 429 "), "{head}");
    assert!(head.contains(&format!("content-length: {}", body.len())), "{refused}");
    assert!(body.contains("\"overloaded\"") && body.contains("\"max\":2"), "{body}");

    drop(first);
    // The server learns of the end when it next looks; then there is room again.
    loop {
        let mut connection = listening.connect().await;
        connection.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.ok();
        if rest(connection).await.starts_with("HTTP/1.1 200") {
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn requests_under_way_may_end_when_the_server_stops() {
    let listening = start(ListenLimits::default());
    let mut busy = listening.connect().await;
    busy.write_all(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut idle = listening.connect().await;
    idle.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut head = [0; 12];
    idle.read_exact(&mut head).await.unwrap();
    listening.stop.send_replace(true);
    let answer = rest(busy).await;
    assert!(answer.ends_with("slow"), "{answer}");
    rest(idle).await;
    listening.task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn bytes_that_are_no_http_are_hung_up_on() {
    let listening = start(ListenLimits::default());
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"[..],
        b"GET\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nrubbish that is no frame",
    ] {
        let mut connection = listening.connect().await;
        connection.write_all(garbage).await.unwrap();
        let answer = rest(connection).await;
        assert!(!answer.contains(" 200 "), "{garbage:?}: {answer}");
    }
}

/// Hyper writes a `Date` by itself and panics when the clock is set beyond the year 9999. It must not be asked to, by either protocol.
#[tokio::test(start_paused = true)]
async fn no_date_is_written_but_the_fronts_own() {
    let listening = start(ListenLimits::default());
    let mut first = listening.connect().await;
    first.write_all(b"GET /x HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let answer = rest(first).await.to_lowercase();
    assert!(answer.starts_with("http/1.1 200") && !answer.contains("date:"), "{answer}");

    let io = hyper_util::rt::TokioIo::new(listening.connect().await);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut send, connection) =
        hyper::client::conn::http2::handshake::<_, _, Body>(executor, io).await.unwrap();
    tokio::spawn(connection);
    let answer = send.send_request(Request::get("http://x/x").body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.headers().get("date")), (200, None));
}
