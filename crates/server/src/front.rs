//! What stands between a connection and a handler, for HTTP and gRPC alike.
//!
//! The front decides who is let in: a foreign web page is not, a body too large or too slow is not, and past
//! a number of requests under way the next one is told to come back. Renewals have turns and room of their
//! own, so that no flood of anything else keeps a heartbeat out. It never looks at what a request asks for.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, Request, Response, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tenure_clock::Clock;
use tenure_wire::words::http_date;
use tenure_wire::{About, ApiError, Code};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Sleep;
use tower::ServiceExt;

use crate::admin::RESTORE_BYTES_MAX;
use crate::connections::RequestGuard;
use crate::delivery::guarded;
use crate::http::Refused;
use crate::listen::{Accept, ListenLimits, Serve, listen};
use crate::metrics::{Surface, Traffic};
use crate::node::Node;
use crate::{grpc, http};

/// How much the front ends take on at once.
#[derive(Clone, Debug)]
pub struct FrontLimits {
    /// Bytes of one request's body. The largest useful one, a write of several registers, is well below.
    pub body_bytes_max: usize,
    /// Bytes of all bodies being read, renewals apart: what slow senders may pin in memory together.
    pub bodies_bytes_max: usize,
    /// The same for renewals.
    pub renewal_bodies_bytes_max: usize,
    /// How long a body may take, from the request's head to the body's end. One megabyte at 35 kB/s.
    pub body_within: Duration,
    /// Requests of which the head is there and the body is not, renewals apart. A body usually comes with its head, so
    /// few are in between; each costs some ten kilobytes, so a crowd of heads costs some 20 MiB.
    pub unread_max: usize,
    /// The same for renewals.
    pub unread_renewals_max: usize,
    /// Requests under way, renewals, waits and watches apart.
    pub calls_max: usize,
    /// Renewal requests under way.
    pub renewals_max: usize,
    /// Acquires that wait for their turn here.
    pub waits_max: usize,
    /// Watches open here.
    pub watches_max: usize,
}

impl Default for FrontLimits {
    fn default() -> Self {
        Self {
            body_bytes_max: 1 << 20,
            bodies_bytes_max: 256 << 20,
            renewal_bodies_bytes_max: 64 << 20,
            body_within: Duration::from_secs(30),
            unread_max: 2_048,
            unread_renewals_max: 1_024,
            calls_max: 8_192,
            renewals_max: 8_192,
            waits_max: 65_536,
            watches_max: 4_096,
        }
    }
}

/// Header fields of one request. A browser sends about twenty.
const FIELDS_MAX: usize = 64;

/// Whether anything behind the front reads this header field.
fn is_read(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("tenure-")
        || name.starts_with("grpc-")
        || matches!(name, "accept" | "content-length" | "content-type" | "last-event-id" | "te")
}

/// Calls that open or renew a session: their connection keeps it alive.
const KEEPS_SESSION: [&str; 3] = ["sessions.open", "sessions.renew", "leases.acquire"];

/// When a request that found no turn may come back: a few commits later.
const COME_BACK_AFTER: Duration = Duration::from_millis(200);

/// What handlers stand on. One per node, shared by both surfaces.
pub(crate) struct Api {
    pub node: Node,
    pub clock: Arc<dyn Clock>,
    pub traffic: Arc<Traffic>,
    pub stop: watch::Receiver<bool>,
    /// Where clients reach this node, as they are told.
    pub client_address: String,
    limits: FrontLimits,
    hosts: Hosts,
    calls: Arc<Semaphore>,
    renewals: Arc<Semaphore>,
    unread: Arc<Semaphore>,
    unread_renewals: Arc<Semaphore>,
    waits: Arc<Semaphore>,
    watches: Arc<Semaphore>,
    bodies: Arc<AtomicUsize>,
    renewal_bodies: Arc<AtomicUsize>,
}

impl Api {
    /// The most bytes that one body may have.
    pub fn body_bytes_max(&self) -> usize {
        self.limits.body_bytes_max
    }

    /// A turn for a short call; the call is under way while it exists.
    pub fn call_turn(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        turn(&self.calls, "too many requests are under way")
    }

    /// A turn for a renewal.
    pub fn renewal_turn(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        turn(&self.renewals, "too many renewals are under way")
    }

    /// A turn for an acquire that may wait.
    pub fn wait_turn(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        turn(&self.waits, "too many acquires wait on this node")
    }

    /// A turn for a watch.
    pub fn watch_turn(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        turn(&self.watches, "too many watches are open on this node")
    }

    /// Resolves when the node stops: long calls end then.
    pub async fn stopping(&self) {
        let mut stop = self.stop.clone();
        let _ = stop.wait_for(|stop| *stop).await;
    }
}

fn turn(turns: &Arc<Semaphore>, full: &str) -> Result<OwnedSemaphorePermit, ApiError> {
    turns.clone().try_acquire_owned().map_err(|_| ApiError::overloaded(full, COME_BACK_AFTER))
}

/// Both front ends of a node behind one door.
#[derive(Clone)]
pub struct Front {
    api: Arc<Api>,
    http: Router,
    grpc: Router,
}

impl Front {
    /// The front ends of `node`, which clients reach at `listen` and under the names in `advertise`.
    pub fn new(
        node: Node,
        clock: Arc<dyn Clock>,
        listen: SocketAddr,
        advertise: Option<&str>,
        limits: FrontLimits,
        stop: watch::Receiver<bool>,
    ) -> Front {
        let api = Arc::new(Api {
            node,
            clock,
            traffic: Arc::default(),
            stop,
            client_address: advertise.map_or_else(|| listen.to_string(), str::to_owned),
            hosts: Hosts::new(listen, advertise),
            calls: Arc::new(Semaphore::new(limits.calls_max)),
            renewals: Arc::new(Semaphore::new(limits.renewals_max)),
            unread: Arc::new(Semaphore::new(limits.unread_max)),
            unread_renewals: Arc::new(Semaphore::new(limits.unread_renewals_max)),
            waits: Arc::new(Semaphore::new(limits.waits_max)),
            watches: Arc::new(Semaphore::new(limits.watches_max)),
            bodies: Arc::default(),
            renewal_bodies: Arc::default(),
            limits,
        });
        Front { http: http::router(api.clone()), grpc: grpc::router(api.clone()), api }
    }

    /// What its handlers stand on.
    #[cfg(test)]
    pub(crate) fn api(&self) -> &Arc<Api> {
        &self.api
    }

    /// Serves what comes in until the node stops, then gives requests under way so long to end.
    pub async fn serve(self, accept: impl Accept, connections_max: usize, drain_within: Duration) {
        let limits = ListenLimits { connections_max, drain_within, ..ListenLimits::default() };
        let (traffic, stop) = (self.api.traffic.clone(), self.api.stop.clone());
        listen(accept, self, limits, traffic, stop).await;
    }

    /// Answers one request; there is always an answer.
    pub(crate) async fn answer<B>(self, mut request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let api = self.api;
        let started = api.clock.now();
        let surface = if is_grpc(request.headers()) { Surface::Grpc } else { Surface::Http };
        let path = request.uri().path();
        let call = match surface {
            Surface::Http => http::call(request.method(), path),
            Surface::Grpc => grpc::call(path),
        };
        let (method, path) = (request.method().clone(), path.to_owned());
        let authority = request.uri().authority().map(|authority| authority.as_str().to_owned());
        // Tests hand requests over without a connection.
        let mark = request.extensions().get::<Arc<RequestGuard>>().cloned();
        let let_in = api.hosts.check(authority.as_deref(), request.headers());
        let mut response = match let_in.and_then(|()| api.let_in(surface, call, &mut request, mark.as_ref()))
        {
            Err(error) => refuse(surface, error),
            Ok(unread) => {
                let mark = mark.clone();
                let request = request.map(|body| Body::new(api.metered(surface, call, body, unread, mark)));
                let router = match surface {
                    Surface::Http => self.http,
                    Surface::Grpc => self.grpc,
                };
                match router.oneshot(request).await {
                    Ok(response) => response,
                    Err(never) => match never {},
                }
            }
        };
        let code = code_of(&response);
        let took = api.clock.now().longest_since(started);
        api.traffic.answered(surface, call, code, took);
        if let Some(mark) = mark.as_deref().filter(|_| code == "ok" && KEEPS_SESSION.contains(&call)) {
            mark.keeps_session(Duration::ZERO);
        }
        if code != "ok" {
            tracing::debug!(%method, path, code, status = response.status().as_u16(), ?took, "request refused");
        }
        if surface == Surface::Http
            && let Some(date) = http_date(api.clock.wall()).and_then(|date| date.parse().ok())
        {
            response.headers_mut().insert(header::DATE, date);
        }
        guarded(response)
    }
}

/// Whether this is a session stream: it lives as long as its client and has frames and credits of its own.
fn is_stream(surface: Surface, call: &str) -> bool {
    surface == Surface::Grpc && call == grpc::STREAM
}

impl Api {
    /// Counts a request from its head on, and drops the header fields that nobody reads: a head that waits for its
    /// body, or a call that waits for its turn, must not hold what a stranger chose to send with it.
    fn let_in<B: http_body::Body>(
        &self,
        surface: Surface,
        call: &'static str,
        request: &mut Request<B>,
        mark: Option<&Arc<RequestGuard>>,
    ) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
        if request.headers().len() > FIELDS_MAX {
            return Err(ApiError::new(Code::TooLarge, format!("the head has more than {FIELDS_MAX} fields"))
                .hint("send only what the call needs"));
        }
        let all = std::mem::take(request.headers_mut());
        request.headers_mut().extend(
            all.into_iter()
                .scan(false, |kept, (name, value)| {
                    // Further values of a field come without its name.
                    *kept = name.as_ref().map_or(*kept, is_read);
                    Some(kept.then_some((name, value)))
                })
                .flatten(),
        );
        if is_stream(surface, call) {
            let room = mark.is_none_or(|mark| mark.is_stream());
            let full = || ApiError::overloaded("too many session streams on one connection", COME_BACK_AFTER);
            return if room { Ok(None) } else { Err(full()) };
        }
        if request.body().is_end_stream() {
            mark.into_iter().for_each(|mark| mark.set_busy(true));
            return Ok(None);
        }
        let unread = if call == "sessions.renew" { &self.unread_renewals } else { &self.unread };
        turn(unread, "too many requests have been begun and not sent to their end").map(Some)
    }

    fn metered<B>(
        &self,
        surface: Surface,
        call: &'static str,
        body: B,
        unread: Option<OwnedSemaphorePermit>,
        mark: Option<Arc<RequestGuard>>,
    ) -> Metered<B> {
        let renewal = call == "sessions.renew";
        let streams = is_stream(surface, call);
        let restore = surface == Surface::Grpc && call == grpc::RESTORE;
        Metered {
            body,
            seen: 0,
            bytes_max: match call {
                _ if streams => None,
                _ if restore => Some(2 * RESTORE_BYTES_MAX),
                _ => Some(self.limits.body_bytes_max),
            },
            all: if renewal { self.renewal_bodies.clone() } else { self.bodies.clone() },
            all_max: if renewal {
                self.limits.renewal_bodies_bytes_max
            } else {
                self.limits.bodies_bytes_max
            },
            within: (!streams).then_some(self.limits.body_within),
            // A backup is large; it may take its time as long as it moves.
            restarts: restore,
            late: None,
            surface,
            // A stream says by itself when it keeps a session alive.
            unread: Unread { _turn: unread, mark: mark.filter(|_| !streams) },
        }
    }
}

impl Serve for Front {
    fn serve(self, request: Request<Incoming>) -> impl Future<Output = Response<Body>> + Send + 'static {
        self.answer(request)
    }
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

fn refuse(surface: Surface, error: ApiError) -> Response<Body> {
    match surface {
        Surface::Http => Refused(error).into_response(),
        Surface::Grpc => grpc::status(error).into_http(),
    }
}

/// The header in which gRPC answers carry the stable code, for whoever does not decode the details.
pub(crate) const CODE_HEADER: &str = "tenure-code";

/// The stable code of an answer, for metrics.
fn code_of(response: &Response<Body>) -> &'static str {
    if let Some(code) = response.extensions().get::<Code>() {
        return code.as_str();
    }
    let word = response.headers().get(CODE_HEADER).and_then(|word| word.to_str().ok());
    match word.and_then(|word| word.parse::<Code>().ok()) {
        Some(code) => code.as_str(),
        None if response.status().is_success() && !failed_grpc(response) => "ok",
        None => "other",
    }
}

fn failed_grpc(response: &Response<Body>) -> bool {
    response.headers().get("grpc-status").is_some_and(|status| status != "0")
}

/// The names under which this server may be addressed.
///
/// A web page of another site can make a browser send requests here, and by pointing a name of its own at a
/// loopback address it can even read the answers. Browsers tell on it: `Origin` names the page's site, `Host`
/// the name that was used. So both must be ours. An address is never such a name, because whoever was reached
/// by its address is who the page came from.
struct Hosts {
    names: Vec<String>,
    listen: IpAddr,
}

impl Hosts {
    fn new(listen: SocketAddr, advertise: Option<&str>) -> Hosts {
        let advertised = advertise.map(|address| host(address).to_ascii_lowercase());
        Hosts { names: std::iter::once("localhost".into()).chain(advertised).collect(), listen: listen.ip() }
    }

    fn check(&self, authority: Option<&str>, headers: &HeaderMap) -> Result<(), ApiError> {
        let named = headers.get(header::HOST).map(|host| host.to_str().unwrap_or_default()).or(authority);
        if let Some(named) = named
            && !self.ours(host(named))
        {
            return Err(ApiError::new(
                Code::ForeignOrigin,
                format!("this server is not called {}", host(named)),
            )
            .hint("use its address, or start it with --advertise and the name that clients use"));
        }
        let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
        let site = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, site)| site);
        if site.is_some_and(|site| named.is_some_and(|named| site.eq_ignore_ascii_case(named))) {
            return Ok(());
        }
        Err(ApiError::new(Code::ForeignOrigin, "a web page of another site asked for this")
            .hint("only this server's own pages may call it from a browser"))
    }

    fn ours(&self, host: &str) -> bool {
        match host.parse::<IpAddr>() {
            // A server that listens on every address does not know which ones those are.
            Ok(address) => address.is_loopback() || address == self.listen || self.listen.is_unspecified(),
            Err(_) => self.names.iter().any(|name| host.eq_ignore_ascii_case(name)),
        }
    }
}

/// The host of `host:port`, `host`, `[v6]:port` or `[v6]`.
fn host(authority: &str) -> &str {
    if let Some(bracketed) = authority.strip_prefix('[') {
        return bracketed.split(']').next().unwrap_or_default();
    }
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

/// A request's body that may be neither too large, nor too slow, nor one too many.
struct Metered<B> {
    body: B,
    seen: usize,
    bytes_max: Option<usize>,
    /// Bytes of all bodies of this kind that are being read now.
    all: Arc<AtomicUsize>,
    all_max: usize,
    /// How long it may take in all, or without moving if every piece restarts the count.
    within: Option<Duration>,
    restarts: bool,
    late: Option<Pin<Box<Sleep>>>,
    surface: Surface,
    unread: Unread,
}

/// What a request occupies until its body has been read.
#[derive(Default)]
struct Unread {
    _turn: Option<OwnedSemaphorePermit>,
    mark: Option<Arc<RequestGuard>>,
}

impl Unread {
    /// The whole request is there: from now on it is a call, a wait or a watch, with limits of its own, and closing its
    /// connection would cost its caller something.
    fn read(&mut self) {
        if let Some(mark) = std::mem::take(self).mark {
            mark.set_busy(true);
        }
    }
}

impl<B> Metered<B> {
    fn refuse(&self, error: ApiError) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        Poll::Ready(Some(Err(match self.surface {
            Surface::Http => error.into(),
            // The gRPC decoder passes a status on as it is.
            Surface::Grpc => grpc::status(error).into(),
        })))
    }

    /// Takes in what arrived, or says why not.
    fn take(&mut self, bytes: usize) -> Result<(), ApiError> {
        let Some(bytes_max) = self.bytes_max else { return Ok(()) };
        self.seen += bytes;
        let all = self.all.fetch_add(bytes, Relaxed) + bytes;
        if self.seen > bytes_max {
            return Err(too_large(bytes_max));
        }
        if all > self.all_max {
            return Err(ApiError::overloaded("too much is being sent to it at once", COME_BACK_AFTER));
        }
        Ok(())
    }
}

/// A body is larger than allowed.
pub(crate) fn too_large(bytes_max: usize) -> ApiError {
    ApiError::new(Code::TooLarge, format!("the body is larger than {bytes_max} bytes"))
        .hint("split it into several calls")
        .about(About {
            limit: Some("body_bytes_max".into()),
            max: Some(bytes_max as u64),
            ..About::default()
        })
}

impl<B> http_body::Body for Metered<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: Into<axum::BoxError>,
{
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        let this = &mut *self;
        match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                if this.restarts {
                    this.late = None;
                }
                if this.body.is_end_stream() {
                    this.unread.read();
                }
                match this.take(frame.data_ref().map_or(0, Bytes::len)) {
                    Ok(()) => Poll::Ready(Some(Ok(frame))),
                    Err(error) => this.refuse(error),
                }
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error.into()))),
            Poll::Ready(None) => {
                this.unread.read();
                Poll::Ready(None)
            }
            Poll::Pending => {
                let Some(within) = this.within else { return Poll::Pending };
                let late = this.late.get_or_insert_with(|| Box::pin(tokio::time::sleep(within)));
                ready!(late.as_mut().poll(context));
                this.refuse(
                    ApiError::new(Code::InvalidBody, format!("the body did not come within {within:?}"))
                        .hint("send it whole; it is at most a megabyte"),
                )
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> Drop for Metered<B> {
    fn drop(&mut self) {
        if self.bytes_max.is_some() {
            self.all.fetch_sub(self.seen, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(hosts: &Hosts, host: &str, origin: Option<&str>) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        hosts.check(None, &headers).is_ok()
    }

    #[test]
    fn a_foreign_name_or_page_is_refused() {
        let hosts = Hosts::new("127.0.0.1:7400".parse().unwrap(), Some("Lease.Example:7400"));
        for (host, origin, ours) in [
            ("127.0.0.1:7400", None, true),
            ("127.8.0.1", None, true),
            ("localhost:7400", Some("http://localhost:7400"), true),
            ("LOCALHOST:7400", Some("http://localhost:7400"), true),
            ("[::1]:7400", Some("http://[::1]:7400"), true),
            ("lease.example", None, true),
            ("evil.example", None, false),
            ("evil.example:7400", Some("http://evil.example:7400"), false),
            ("127.0.0.1.evil.example", None, false),
            ("10.0.0.1:7400", None, false),
            ("", None, false),
            // Another port is another site.
            ("127.0.0.1:7400", Some("http://127.0.0.1:3000"), false),
            ("127.0.0.1:7400", Some("http://evil.example"), false),
            ("127.0.0.1:7400", Some("null"), false),
        ] {
            assert_eq!(checked(&hosts, host, origin), ours, "Host {host}, Origin {origin:?}");
        }
        let everywhere = Hosts::new("0.0.0.0:7400".parse().unwrap(), None);
        assert!(checked(&everywhere, "10.0.0.1:7400", None), "it may well be ours");
        assert!(!checked(&everywhere, "evil.example:7400", None));
        assert!(hosts.check(None, &HeaderMap::new()).is_ok(), "no browser leaves the name out");
    }

    #[test]
    fn a_host_is_separated_from_its_port() {
        for (authority, name) in
            [("a:1", "a"), ("a", "a"), ("[::1]:7", "::1"), ("[::1]", "::1"), ("a:b", "a:b"), ("", "")]
        {
            assert_eq!(host(authority), name);
        }
    }
}
