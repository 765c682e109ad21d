//! Accepts connections and carries requests over them: HTTP/1.1 and HTTP/2 (which gRPC needs) on one port.
//!
//! This file decides how long each connection may keep us waiting: for its first bytes, for a request's head, for room
//! to write an answer. Which connections there may be is decided in `connections.rs`. It never looks into a request. Connections come
//! from an [`Accept`], so that a simulated network can supply them as well as a socket.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use tenure_tls::TlsStream;
use tenure_tls::{Prefixed, Secured};
use tenure_wire::{About, ApiError, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep, timeout};

use crate::connections::{Carrier, Connections, Place, RequestGuard, TableLimits};
use crate::handshakes::{HandshakeLimits, HandshakePlace, Handshakes};
use crate::metrics::Traffic;
use crate::secure::ClientPortTls;

/// Where connections come from.
pub trait Accept: Send + 'static {
    /// A connection.
    type Connection: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// The next connection, and who it is from.
    fn accept(&mut self) -> impl Future<Output = io::Result<(Self::Connection, Peer)>> + Send;
}

/// Who a connection is from.
#[derive(Clone, Debug)]
pub struct Peer {
    /// For people.
    pub name: String,
    /// Its address, if it has one.
    pub address: Option<IpAddr>,
    /// Whether it comes from one of the node's own addresses.
    pub own: bool,
}

/// Who sends the requests of a connection, as each of them carries it.
#[derive(Debug)]
pub(crate) struct Source {
    /// The address that it came from.
    pub address: Arc<str>,
    /// The client certificate that it has shown.
    pub certificate: Option<ClientCertificate>,
}

impl Accept for TcpListener {
    type Connection = tokio::net::TcpStream;

    async fn accept(&mut self) -> io::Result<(Self::Connection, Peer)> {
        let (connection, from) = TcpListener::accept(self).await?;
        // Answers are small and somebody waits for each of them. A connection that is gone already fails here; it is
        // served all the same and ends at the first read.
        let _ = connection.set_nodelay(true);
        let _ = detect_vanished(&connection);
        let own =
            from.ip().is_loopback() || connection.local_addr().is_ok_and(|local| local.ip() == from.ip());
        Ok((connection, Peer { name: from.to_string(), address: Some(from.ip().to_canonical()), own }))
    }
}

/// How soon a client that vanished without a word is noticed: after this much silence it is asked, every
/// [`VANISHED_ASK_EVERY`], [`VANISHED_ASKS`] times; and what was sent to it is acknowledged within [`VANISHED_WITHIN`].
const VANISHED_ASK_AFTER: Duration = Duration::from_secs(10);
const VANISHED_ASK_EVERY: Duration = Duration::from_secs(5);
const VANISHED_ASKS: u32 = 2;
const VANISHED_WITHIN: Duration = Duration::from_secs(20);

/// Has the kernel end a connection whose other side is gone.
fn detect_vanished(connection: &tokio::net::TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(connection, true)?;
    #[cfg(target_os = "linux")]
    {
        sockopt::set_tcp_keepidle(connection, VANISHED_ASK_AFTER)?;
        sockopt::set_tcp_keepintvl(connection, VANISHED_ASK_EVERY)?;
        sockopt::set_tcp_keepcnt(connection, VANISHED_ASKS)?;
        sockopt::set_tcp_user_timeout(connection, VANISHED_WITHIN.as_millis() as u32)?;
    }
    Ok(())
}

/// Opens the client port; gives it and the address that it really has.
pub async fn bind(listen: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// What answers requests.
pub trait Serve: Clone + Send + 'static {
    /// Answers one request. There is always an answer.
    fn serve(self, request: Request<Incoming>) -> impl Future<Output = Response<Body>> + Send + 'static;
}

/// Connections open at once, if there are descriptors for them.
pub(crate) const CONNECTIONS_MAX: usize = 16_384;
/// A probe needs one or two; the rest is for people and scrapers on the machine.
pub(crate) const OWN_RESERVE: usize = 64;

/// How much patience there is, and for how many.
#[derive(Clone, Debug)]
pub struct ListenLimits {
    /// Connections open at once. Each costs a file and some tens of kilobytes.
    pub connections_max: usize,
    /// Connections from the node's own addresses on top of these: its probe, and an administrator on the machine.
    pub own_reserve: usize,
    /// How long the head of a connection's first request may take. A client sends it at once.
    pub head_within: Duration,
    /// How long a connection may be without a request under way, the head of its next request included. Longer than
    /// most clients keep an idle connection, and long enough to renew a session with a TTL of three minutes on one.
    pub idle_max: Duration,
    /// How long an answer may find no room at all in the connection's buffers.
    pub write_stall_max: Duration,
    /// Requests at once on one HTTP/2 connection. Each costs some four kilobytes even if it is refused at once, so
    /// sixty connections with as many as they may have cost less than 64 MiB.
    pub streams_max: u32,
    /// Bytes of an answer that one HTTP/2 stream may hold back for its reader.
    pub stream_buffer_bytes: usize,
    /// How often a quiet HTTP/2 peer is asked whether it is still there, and how long it may take to answer.
    pub ping_every: Duration,
    /// How long requests under way may take to finish once the server stops.
    pub drain_within: Duration,
}

impl Default for ListenLimits {
    fn default() -> Self {
        Self {
            connections_max: CONNECTIONS_MAX,
            own_reserve: OWN_RESERVE,
            head_within: Duration::from_secs(10),
            idle_max: Duration::from_secs(60),
            write_stall_max: Duration::from_secs(30),
            streams_max: 256,
            stream_buffer_bytes: 64 << 10,
            // Asked after ten seconds and given up after ten more: a vanished client is noticed within twenty.
            ping_every: Duration::from_secs(10),
            drain_within: Duration::from_secs(5),
        }
    }
}

/// What a connection too many is sent, whichever protocol it would have spoken.
fn too_many(connections_max: usize) -> Vec<u8> {
    let error = ApiError::overloaded("too many connections are open", Duration::from_secs(1));
    let error = error.hint("close idle connections, or ask another node").about(About {
        limit: Some("connections_max".into()),
        max: Some(connections_max as u64),
        ..About::default()
    });
    let body =
        serde_json::to_string(&json::ErrorBody { error }).expect("an error is made of text and numbers");
    let head = "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close";
    format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// A pause after a failed accept: files are short, and asking again at once would only burn a core.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Bytes of the fields of one HTTP/2 request's head, as HPACK counts them. Ours are below one kilobyte.
const HEAD_BYTES_MAX: u32 = 8 << 10;

/// How an HTTP/2 connection begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Accepts connections and serves them until `stop` turns true; then lets requests under way finish.
pub(crate) async fn listen(
    mut from: impl Accept,
    tls: Option<ClientPortTls>,
    serve: impl Serve,
    limits: ListenLimits,
    traffic: Arc<Traffic>,
    mut stop: watch::Receiver<bool>,
) {
    let limits = Arc::new(limits);
    let connections = Connections::new(TableLimits {
        connections_max: limits.connections_max,
        own_reserve: limits.own_reserve,
        head_within: limits.head_within,
        idle_max: limits.idle_max,
    });
    let handshakes = Handshakes::new(HandshakeLimits::beside(limits.connections_max));
    let refusal = too_many(limits.connections_max);
    let mut open = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = stopped(&mut stop) => break,
            Some(_) = open.join_next() => continue,
            accepted = from.accept() => accepted,
        };
        match accepted {
            Ok((connection, peer)) if tls.is_some() => {
                let Some(place) = handshakes.admit(peer.address, peer.own) else {
                    traffic.handshake_refused();
                    continue;
                };
                let tls = tls.clone().expect("just seen");
                let within = handshakes.within;
                let (connections, traffic) = (connections.clone(), traffic.clone());
                let (serve, limits, stop) = (serve.clone(), limits.clone(), stop.clone());
                open.spawn(async move {
                    let spoken = shake_hands(connection, tls, within, place, &traffic).await;
                    let Some((spoken, greeted)) = spoken else { return };
                    let Some((place, made_room)) = connections.admit(peer.own) else {
                        traffic.connection_refused();
                        let refusal = too_many(limits.connections_max);
                        let _ = match spoken {
                            Spoken::Tls(stream) => timeout(REFUSED_WITHIN, tell(*stream, &refusal)).await,
                            Spoken::Plaintext(stream) => {
                                timeout(REFUSED_WITHIN, tell(stream, &refusal)).await
                            }
                        };
                        return;
                    };
                    traffic.connection_opened();
                    if made_room {
                        traffic.connection_made_room();
                    }
                    match spoken {
                        Spoken::Tls(stream) => {
                            counted(*stream, greeted, serve, limits, stop, peer, place, traffic).await;
                        }
                        Spoken::Plaintext(stream) => {
                            counted(stream, greeted, serve, limits, stop, peer, place, traffic).await;
                        }
                    }
                });
            }
            Ok((connection, peer)) => match connections.admit(peer.own) {
                Some((place, made_room)) => {
                    traffic.connection_opened();
                    if made_room {
                        traffic.connection_made_room();
                    }
                    let (serve, limits, stop) = (serve.clone(), limits.clone(), stop.clone());
                    let greeted = Greeted::default();
                    open.spawn(counted(
                        connection,
                        greeted,
                        serve,
                        limits,
                        stop,
                        peer,
                        place,
                        traffic.clone(),
                    ));
                }
                None => {
                    traffic.connection_refused();
                    let limit = limits.connections_max;
                    tracing::debug!(peer = peer.name, limit, "connection refused: too many");
                    refuse(connection, &refusal);
                }
            },
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_AGAIN_AFTER).await;
            }
        }
    }
    drop(from);
    let drained = timeout(limits.drain_within, async { while open.join_next().await.is_some() {} }).await;
    if drained.is_err() {
        tracing::info!(connections = open.len(), "connections were still busy and are closed");
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // Whoever could say "stop" has gone: nobody will, and stopping is all that is left.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// What is known of a connection before its first request.
#[derive(Debug, Default)]
struct Greeted {
    /// Who it is, if it has shown a certificate.
    certificate: Option<ClientCertificate>,
    /// Whether HTTP/2 was agreed on; none if that was not spoken of.
    http_2: Option<bool>,
}

/// What a connection to a port with TLS turned out to speak.
enum Spoken<C> {
    Tls(Box<TlsStream<Prefixed<C>>>),
    /// Only if the port serves that as well.
    Plaintext(Prefixed<C>),
}

/// Speaks TLS with whoever has connected; none if that came to nothing.
async fn shake_hands<C: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    connection: C,
    port: ClientPortTls,
    within: Duration,
    place: HandshakePlace,
    traffic: &Traffic,
) -> Option<(Spoken<C>, Greeted)> {
    let shake = async {
        let connection = Prefixed::peek(connection, 4).await?;
        if connection.begins_tls() {
            let Secured { stream, client, http_2 } = port.tls.accept(connection).await?;
            let greeted = Greeted { certificate: client.map(ClientCertificate::from), http_2 };
            return Ok(Some((Spoken::Tls(Box::new(stream)), greeted)));
        }
        if port.plaintext_too {
            return Ok(Some((Spoken::Plaintext(connection), Greeted::default())));
        }
        // HTTP/2 begins with this word, and would not understand the answer.
        let http_1 = connection.head().first().is_some_and(u8::is_ascii_uppercase)
            && !connection.head().starts_with(b"PRI");
        if http_1 {
            speak_tls(connection.into_inner()).await?;
        }
        io::Result::Ok(None)
    };
    let shaken = tokio::select! {
        biased;
        () = place.close.notified() => None,
        shaken = timeout(within, shake) => shaken.ok(),
    };
    match shaken {
        Some(Ok(spoken)) => spoken,
        Some(Err(error)) => {
            traffic.handshake_failed();
            tracing::debug!(%error, "a client did not get through TLS");
            None
        }
        None => {
            traffic.handshake_failed();
            None
        }
    }
}

/// Tells a client that speaks HTTP/1.1 without TLS what is wrong.
async fn speak_tls(mut connection: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let error = ApiError::invalid("this port speaks TLS").hint(
        "use https:// and the certificate of its authority; `tenure` takes --ca, --root or a credential",
    );
    let body =
        serde_json::to_string(&json::ErrorBody { error }).expect("an error is made of text and numbers");
    let head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close";
    let answer = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    connection.write_all(answer.as_bytes()).await?;
    connection.shutdown().await?;
    // What is still being sent is taken off: otherwise the kernel would take back the answer with the connection.
    let mut rest = [0; 4 << 10];
    for _ in 0..16 {
        if connection.read(&mut rest).await? == 0 {
            break;
        }
    }
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "what one connection is made of, put together in one place")]
async fn counted(
    connection: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    greeted: Greeted,
    serve: impl Serve,
    limits: Arc<ListenLimits>,
    stop: watch::Receiver<bool>,
    peer: Peer,
    place: Place,
    traffic: Arc<Traffic>,
) {
    let carrier = place.carrier.clone();
    let ended = tokio::select! {
        biased;
        () = place.close.notified() => Err(Hangup::MadeRoom),
        () = idle(&carrier, limits.idle_max) => Err(Hangup::Idle),
        ended = serve_connection(connection, greeted, serve, limits.clone(), stop, carrier.clone(), &peer) => ended,
    };
    if let Err(why) = ended {
        if matches!(why, Hangup::Idle) {
            traffic.connection_idle();
        }
        tracing::debug!(peer = peer.name, %why, "connection ended");
    }
    traffic.connection_closed();
    drop(place);
}

/// Resolves once a connection has been idle for too long.
async fn idle(carrier: &Carrier, idle_max: Duration) {
    loop {
        match carrier.closes_in() {
            Some(Duration::ZERO) => return,
            Some(left) => sleep(left).await,
            // A request is under way: it is not idle before that has ended and as long again has passed.
            None => sleep(idle_max).await,
        }
    }
}

/// Tells a connection too many why, as far as its buffers take it without waiting, and hangs up.
fn refuse(mut connection: impl AsyncWrite + Unpin, refusal: &[u8]) {
    let mut context = Context::from_waker(std::task::Waker::noop());
    let _ = Pin::new(&mut connection).poll_write(&mut context, refusal);
}

/// How long a connection too many may take to be told so inside of TLS.
const REFUSED_WITHIN: Duration = Duration::from_secs(1);

/// The same inside of TLS, where words have to be encrypted first.
async fn tell(mut connection: impl AsyncWrite + Unpin, refusal: &[u8]) -> io::Result<()> {
    connection.write_all(refusal).await?;
    connection.shutdown().await
}

/// Why a connection ended before its time.
#[derive(Debug, thiserror::Error)]
enum Hangup {
    #[error("it was idle, and made room for another")]
    MadeRoom,
    #[error("it was idle for too long")]
    Idle,
    #[error("it speaks another version of HTTP than was agreed on")]
    OtherProtocol,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Http(#[from] hyper::Error),
}

/// Serves one connection, whatever it is made of, until its end or until the server stops.
async fn serve_connection(
    mut connection: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    Greeted { certificate, http_2 }: Greeted,
    serve: impl Serve,
    limits: Arc<ListenLimits>,
    mut stop: watch::Receiver<bool>,
    carrier: Carrier,
    peer: &Peer,
) -> Result<(), Hangup> {
    let source = Arc::new(Source { address: peer.name.as_str().into(), certificate });
    let mut head = Vec::new();
    let second = tokio::select! {
        biased;
        () = stopped(&mut stop) => return Ok(()),
        second = is_second(&mut connection, &mut head) => second?,
    };
    // Whoever has agreed to one protocol and speaks the other wants to get past something in between.
    if http_2.is_some_and(|http_2| http_2 != second) {
        return Err(Hangup::OtherProtocol);
    }
    let connection = TokioIo::new(Patient::new(connection, head, limits.write_stall_max));
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        let mark = Arc::new(carrier.request());
        request.extensions_mut().insert(mark.clone());
        request.extensions_mut().insert(source.clone());
        let answer = serve.clone().serve(request);
        async move {
            let answer = answer.await;
            Ok::<_, std::convert::Infallible>(answer.map(|body| Body::new(UnderWay { body, _mark: mark })))
        }
    });
    // Hyper would write the date itself, and panics when the clock is set beyond the year 9999. The front writes it.
    if second {
        let mut builder = http2::Builder::new(AtOnce);
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(limits.streams_max)
            .max_send_buf_size(limits.stream_buffer_bytes)
            .max_header_list_size(HEAD_BYTES_MAX)
            .auto_date_header(false)
            .keep_alive_interval(limits.ping_every)
            .keep_alive_timeout(limits.ping_every);
        let mut serving = std::pin::pin!(builder.serve_connection(connection, service));
        tokio::select! {
            biased;
            () = stopped(&mut stop) => serving.as_mut().graceful_shutdown(),
            ended = serving.as_mut() => return Ok(ended?),
        }
        Ok(serving.await?)
    } else {
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(limits.idle_max).max_buf_size(64 << 10);
        builder.auto_date_header(false);
        let mut serving = std::pin::pin!(builder.serve_connection(connection, service));
        tokio::select! {
            biased;
            () = stopped(&mut stop) => serving.as_mut().graceful_shutdown(),
            ended = serving.as_mut() => return Ok(ended?),
        }
        Ok(serving.await?)
    }
}

/// Runs each request of an HTTP/2 connection as far as it comes, before the head of the next one is decoded; the rest
/// in a task of its own. Otherwise a thousand heads are in memory before the first of them can be refused.
#[derive(Clone, Copy)]
struct AtOnce;

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for AtOnce {
    fn execute(&self, request: F) {
        let mut request = Box::pin(request);
        // Nobody is to be woken: what is not ready is polled again as soon as it is a task.
        let mut context = Context::from_waker(std::task::Waker::noop());
        if request.as_mut().poll(&mut context).is_pending() {
            tokio::spawn(request);
        }
    }
}

/// Whether the peer begins HTTP/2; `head` keeps what was read to find out.
async fn is_second(connection: &mut (impl AsyncRead + Unpin), head: &mut Vec<u8>) -> io::Result<bool> {
    let mut buffer = [0; PREFACE.len()];
    while head.len() < PREFACE.len() {
        let room = PREFACE.len() - head.len();
        let read = connection.read(&mut buffer[..room]).await?;
        head.extend_from_slice(&buffer[..read]);
        if read == 0 || !PREFACE.starts_with(head) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// An answer's body, with the request that it answers: that is under way until all of this was sent.
struct UnderWay {
    body: Body,
    _mark: Arc<RequestGuard>,
}

impl http_body::Body for UnderWay {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection that first gives back what was read of it, and whose reader may be slow but not absent: a
/// write that finds no room for too long fails, and the connection with it.
struct Patient<C> {
    connection: C,
    /// What was read already, and how much of it was given back.
    head: Vec<u8>,
    given: usize,
    stall_max: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<C> Patient<C> {
    fn new(connection: C, head: Vec<u8>, stall_max: Duration) -> Self {
        Self { connection, head, given: 0, stall_max, stalled: None }
    }

    /// Passes progress on; turns waiting into an error once it took too long.
    fn judge<T>(&mut self, context: &mut Context<'_>, wrote: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if wrote.is_ready() {
            self.stalled = None;
            return wrote;
        }
        let stall_max = self.stall_max;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(stall_max)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the answer is not being read")))
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for Patient<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = &self.head[self.given..];
        if !left.is_empty() {
            let count = left.len().min(buffer.remaining());
            buffer.put_slice(&left[..count]);
            self.given += count;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.connection).poll_read(context, buffer)
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Patient<C> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.connection).poll_write(context, bytes);
        self.judge(context, wrote)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wrote = Pin::new(&mut self.connection).poll_flush(context);
        self.judge(context, wrote)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wrote = Pin::new(&mut self.connection).poll_shutdown(context);
        self.judge(context, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.connection).poll_write_vectored(context, slices);
        self.judge(context, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }
}
