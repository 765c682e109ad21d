//! Admission: everything between a connection and a handler, for HTTP and gRPC alike.
//!
//! The front decides who is let in: a foreign web page is not, a body too large or too slow is not, and past
//! a number of requests under way the next one is refused with a time to retry. Renewals have turns and room of their
//! own, so that no flood of anything else keeps a heartbeat out. What a request may cost is in its row of the table of
//! calls; the front never looks at what it asks for.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tenure_clock::Clock;
use tenure_core::{Identity, Moment, Verb};
use tenure_wire::words::http_date;
use tenure_wire::{About, ApiError, Code};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Sleep;
use tower::ServiceExt;

use crate::access::may_call;
use crate::audit::{Audit, Audited, Subject};
use crate::auth::{Gate, Shares};
use crate::call_table::{Call, CallRow, Cost, OTHER, Routes};
use crate::connections::RequestGuard;
use crate::context::CallContext;
use crate::delivery::guarded;
use crate::http::{HttpRequest, Refused};
use crate::in_flight::{AllStreams, Arriving, InFlight};
use crate::listen::{Accept, ListenLimits, Serve, Source, listen};
use crate::metrics::{Surface, Traffic};
use crate::node::Node;
use crate::secure::ClientPortTls;
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
    /// Bytes that one session stream may have in flight: a message that is still arriving (4 MiB at most), and commands
    /// that have not been answered.
    pub stream_bytes_max: usize,
    /// The same for all session streams of commands together.
    pub streams_bytes_max: usize,
    /// The same for all session streams of renewals together.
    pub renewal_streams_bytes_max: usize,
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
            stream_bytes_max: 16 << 20,
            streams_bytes_max: 256 << 20,
            renewal_streams_bytes_max: 64 << 20,
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
        || matches!(
            name,
            "accept" | "authorization" | "content-length" | "content-type" | "last-event-id" | "te"
        )
}

/// When a request that found no turn may come back: a few commits later.
const COME_BACK_AFTER: Duration = Duration::from_millis(200);

/// What handlers stand on. One per node, shared by both surfaces.
pub(crate) struct Api {
    pub node: Node,
    pub clock: Arc<dyn Clock>,
    pub traffic: Arc<Traffic>,
    pub stop: watch::Receiver<bool>,
    /// Where clients reach this node: the advertised address.
    pub client_address: String,
    /// Who callers are, what each has under way, and where that is recorded.
    pub callers: Callers,
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
    streams: Arc<AllStreams>,
    renewal_streams: Arc<AllStreams>,
}

impl Api {
    /// The most bytes that one body may have.
    pub fn body_bytes_max(&self) -> usize {
        self.limits.body_bytes_max
    }

    /// A turn for a call of this cost; it is under way while the turn exists.
    pub fn turn(&self, cost: Cost) -> Result<Turn, ApiError> {
        let (turns, full) = match cost {
            // Bounded elsewhere, or too cheap to matter.
            Cost::Page | Cost::Check | Cost::Stream | Cost::RenewalStream => return Ok(Turn(None)),
            Cost::Read | Cost::Command | Cost::Open | Cost::Restore => {
                (&self.calls, "too many requests are under way")
            }
            Cost::Renewal => (&self.renewals, "too many renewals are under way"),
            Cost::Wait => (&self.waits, "too many acquires wait on this node"),
            Cost::Watch => (&self.watches, "too many watches are open on this node"),
        };
        turn(turns, full).map(|turn| Turn(Some(turn)))
    }

    /// Where a stream of this cost counts what it has in flight; `None` for calls that are no streams.
    fn in_flight(&self, cost: Cost) -> Option<Arc<InFlight>> {
        match cost {
            Cost::Stream => Some(self.streams.stream()),
            Cost::RenewalStream => Some(self.renewal_streams.stream()),
            _ => None,
        }
    }

    /// What all session streams of commands have in flight.
    #[cfg(test)]
    pub fn streams(&self) -> &AllStreams {
        &self.streams
    }

    /// Resolves when the node stops: long calls end then.
    pub async fn stopping(&self) {
        let mut stop = self.stop.clone();
        let _ = stop.wait_for(|stop| *stop).await;
    }
}

/// A call's turn, while it is under way.
pub(crate) struct Turn(#[expect(dead_code, reason = "kept for its drop")] Option<OwnedSemaphorePermit>);

fn turn(turns: &Arc<Semaphore>, full: &str) -> Result<OwnedSemaphorePermit, ApiError> {
    turns.clone().try_acquire_owned().map_err(|_| ApiError::overloaded(full, COME_BACK_AFTER))
}

/// How a front end finds out who its callers are, and what it remembers of them. Shared by all fronts of a node.
#[derive(Clone)]
pub(crate) struct Callers {
    /// Who a caller is.
    pub gate: Arc<Gate>,
    /// What each caller has under way.
    pub shares: Arc<Shares>,
    /// What callers have asked for.
    pub audit: Arc<Audit>,
}

impl Default for Callers {
    /// Nobody is known, and nothing is recorded.
    fn default() -> Callers {
        let gate = Arc::new(Gate::new(Arc::default()));
        Callers { gate, shares: Arc::default(), audit: Arc::default() }
    }
}

/// Both front ends of a node behind one door.
#[derive(Clone)]
pub struct Front {
    api: Arc<Api>,
    routes: Arc<Routes>,
    /// gRPC services that are not ours.
    grpc_services: Router,
}

impl Front {
    /// The front ends of `node`, which clients reach at `listen`, at the advertised address, and under other names.
    pub fn new(
        node: Node,
        clock: Arc<dyn Clock>,
        listen: SocketAddr,
        (advertise, names): (Option<&str>, &[String]),
        limits: FrontLimits,
        callers: Callers,
        stop: watch::Receiver<bool>,
    ) -> Front {
        let tables = [Call::rows()];
        Front::with_calls(&tables, node, clock, listen, (advertise, names), limits, callers, stop)
    }

    /// What is counted about its connections.
    pub(crate) fn traffic(&self) -> &Arc<Traffic> {
        &self.api.traffic
    }

    /// The same for other tables of calls: a test adds one.
    #[expect(clippy::too_many_arguments, reason = "each is one part of a node, put together once")]
    pub(crate) fn with_calls(
        tables: &[&'static [CallRow]],
        node: Node,
        clock: Arc<dyn Clock>,
        listen: SocketAddr,
        (advertise, names): (Option<&str>, &[String]),
        limits: FrontLimits,
        callers: Callers,
        stop: watch::Receiver<bool>,
    ) -> Front {
        let api = Arc::new(Api {
            callers,
            node,
            clock,
            traffic: Arc::default(),
            stop,
            client_address: advertise.map_or_else(|| listen.to_string(), str::to_owned),
            hosts: Hosts::new(listen, advertise.into_iter().chain(names.iter().map(String::as_str))),
            calls: Arc::new(Semaphore::new(limits.calls_max)),
            renewals: Arc::new(Semaphore::new(limits.renewals_max)),
            unread: Arc::new(Semaphore::new(limits.unread_max)),
            unread_renewals: Arc::new(Semaphore::new(limits.unread_renewals_max)),
            waits: Arc::new(Semaphore::new(limits.waits_max)),
            watches: Arc::new(Semaphore::new(limits.watches_max)),
            bodies: Arc::default(),
            renewal_bodies: Arc::default(),
            streams: AllStreams::new(limits.streams_bytes_max, limits.stream_bytes_max),
            renewal_streams: AllStreams::new(limits.renewal_streams_bytes_max, limits.stream_bytes_max),
            limits,
        });
        let routes = Arc::new(Routes::new(tables));
        Front { routes, grpc_services: grpc::services(api.clone()), api }
    }

    /// What its handlers stand on.
    #[cfg(test)]
    pub(crate) fn api(&self) -> &Arc<Api> {
        &self.api
    }

    /// Serves what comes in until the node stops, then gives requests under way so long to end.
    pub async fn serve(
        self,
        accept: impl Accept,
        tls: Option<ClientPortTls>,
        connections_max: usize,
        drain_within: Duration,
    ) {
        let limits = ListenLimits { connections_max, drain_within, ..ListenLimits::default() };
        let (traffic, stop) = (self.api.traffic.clone(), self.api.stop.clone());
        listen(accept, tls, self, limits, traffic, stop).await;
    }

    /// Answers one request; there is always an answer.
    pub(crate) async fn answer<B>(self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<axum::BoxError>,
    {
        match is_grpc(request.headers()) {
            false => self.answer_http(request).await,
            true => self.answer_grpc(request).await,
        }
    }

    async fn answer_http<B>(self, mut request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let found = self.routes.http(method.as_str(), &path);
        let row = found.as_ref().map_or(&OTHER, |found| found.row);
        let name = found.as_ref().map_or("", |found| found.shown_name());
        let mut asked = Asked::new(&self.api, Surface::Http, row, &request);
        asked.is_about(name);
        let (mut response, binding, name) = match (asked.admit(&mut request).await, found) {
            (Err(error), _) => (Refused(error).into_response(), None, ""),
            (Ok(_), Err(missing)) => (http::missing(missing, &method, &path), None, ""),
            (Ok(unread), Ok(found)) => match may_call(&self.api.node, &asked.context).await {
                Err(error) => (Refused(error).into_response(), Some(found.binding), found.shown_name()),
                Ok(()) => {
                    let (parts, body) = request.into_parts();
                    let body = Body::new(asked.metered(body, unread));
                    let request = HttpRequest::new(parts, body, found.name.map(str::to_owned));
                    let answered = (found.binding.handler)(self.api.clone(), asked.context.clone(), request);
                    (answered.await, Some(found.binding), found.shown_name())
                }
            },
        };
        response = http::finish(response, &method, binding);
        if let Some(date) = http_date(self.api.clock.wall()).and_then(|date| date.parse().ok()) {
            response.headers_mut().insert(header::DATE, date);
        }
        asked.answered(&response, binding.map_or("-", |binding| binding.pattern), name);
        guarded(asked.expiring(response))
    }

    async fn answer_grpc<B>(self, mut request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let found = self.routes.grpc(request.uri().path());
        let row = found.map_or(&OTHER, |(row, _)| row);
        let mut asked = Asked::new(&self.api, Surface::Grpc, row, &request);
        let response = match (asked.admit(&mut request).await, found) {
            (Err(error), _) => grpc::status(error).into_http(),
            (Ok(_), None) => grpc::status(http::no_such_call(request.uri().path())).into_http(),
            (Ok(unread), Some((_, binding))) => match may_call(&self.api.node, &asked.context).await {
                Err(error) => grpc::status(error).into_http(),
                Ok(()) => {
                    let request = request.map(|body| Body::new(asked.metered(body, unread)));
                    match binding {
                        Some(binding) => {
                            (binding.handler)(self.api.clone(), asked.context.clone(), request).await
                        }
                        None => match self.grpc_services.oneshot(request).await {
                            Ok(response) => response,
                            Err(never) => match never {},
                        },
                    }
                }
            },
        };
        let method = found.and_then(|(_, binding)| binding).map_or("-", |binding| binding.path);
        asked.answered(&response, method, "");
        guarded(asked.expiring(response))
    }
}

/// One request on its way through the front.
struct Asked {
    api: Arc<Api>,
    surface: Surface,
    context: CallContext,
    source: Option<Arc<Source>>,
    authority: Option<String>,
    started: Moment,
}

impl Asked {
    fn new<B>(api: &Arc<Api>, surface: Surface, row: &'static CallRow, request: &Request<B>) -> Asked {
        let source = request.extensions().get::<Arc<Source>>();
        Asked {
            api: api.clone(),
            surface,
            context: CallContext {
                // Until `identify` has found out. A test may say it.
                identity: match request.extensions().get::<Identity>() {
                    Some(identity) if cfg!(test) => identity.clone(),
                    _ => Identity::Anyone,
                },
                identity_expires_ms: None,
                share: None,
                source: source.map(|source| source.address.clone()),
                subject: api.callers.audit.subject(),
                row,
                connection: request.extensions().get::<Arc<RequestGuard>>().cloned(),
                in_flight: api.in_flight(row.cost),
            },
            source: source.cloned(),
            authority: request.uri().authority().map(|authority| authority.as_str().to_owned()),
            started: api.clock.now(),
        }
    }

    /// Notes what the path names, until the call itself says more.
    fn is_about(&self, name: &str) {
        if let Some(subject) = self.context.subject.as_ref().filter(|_| !name.is_empty()) {
            subject.lock().name = Some(name.to_owned());
        }
    }

    /// Everything that comes before a call: whether the request is let in, who sent it, whether that caller has room
    /// left here, and whether it can be recorded.
    async fn admit<B: http_body::Body>(
        &mut self,
        request: &mut Request<B>,
    ) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
        let unread = self.let_in(request)?;
        self.identify(request.headers_mut()).await?;
        self.context.share = (self.api.callers.shares)
            .take(&self.context.identity, self.context.row.cost, self.started)?
            .map(Arc::new);
        if let Some(subject) = &self.context.subject {
            let subject = subject.lock().clone();
            self.api.callers.audit.before(&self.audited(&subject)).await?;
        }
        Ok(unread)
    }

    /// Finds out who the caller is. Pages for everybody need no identity; what was presented goes no further.
    async fn identify(&mut self, headers: &mut HeaderMap) -> Result<(), ApiError> {
        if cfg!(test) && self.context.identity != Identity::Anyone {
            return Ok(());
        }
        let CallRow { verb, cost, .. } = self.context.row;
        if *verb == Verb::Public && matches!(cost, Cost::Page | Cost::Check) {
            headers.remove(header::AUTHORIZATION);
            return Ok(());
        }
        let certificate = self.source.as_ref().and_then(|source| source.certificate.as_ref());
        let (gate, node, clock) = (&self.api.callers.gate, &self.api.node, &*self.api.clock);
        let identified = gate.identify(node, clock, headers, certificate).await?;
        self.context.identity = identified.identity;
        self.context.identity_expires_ms = identified.expires_ms;
        Ok(())
    }

    /// A stream of a caller with a token ends with the token: whoever listens comes back with a new one, or not at all.
    fn expiring(&self, response: Response<Body>) -> Response<Body> {
        let cost = self.context.row.cost;
        let Some(expires_ms) =
            self.context.identity_expires_ms.filter(|_| cost.is_stream() || cost == Cost::Watch)
        else {
            return response;
        };
        let left = expires_ms.saturating_sub(self.api.clock.wall().as_unix_millis());
        let over = Box::pin(tokio::time::sleep(Duration::from_millis(left)));
        response.map(|body| Body::new(Expiring { body, over }))
    }

    /// The call as the audit log sees it.
    fn audited<'a>(&'a self, subject: &'a Subject) -> Audited<'a> {
        let CallContext { identity, row, source, .. } = &self.context;
        Audited { identity, source: source.as_deref(), row, subject }
    }

    /// Counts a request that was answered.
    fn answered(&self, response: &Response<Body>, route: &str, name: &str) {
        let (code, row) = (code_of(response), self.context.row);
        let took = self.api.clock.now().longest_since(self.started);
        self.api.traffic.answered(self.surface, row.label(), code, took);
        if let Some(subject) = &self.context.subject {
            let refused = refusal_of(response);
            let mut subject = subject.lock().clone();
            // A reading says what it was about only when it is denied.
            subject.name = subject.name.or_else(|| refused.resource.clone());
            let code = (code != "ok").then(|| code.parse().unwrap_or(Code::Internal));
            self.api.callers.audit.after(&self.audited(&subject), code, refused.policy.as_deref());
        }
        if code == "ok" {
            if let Some(mark) = self.context.connection.as_deref().filter(|_| row.cost.keeps_session()) {
                mark.keeps_session(Duration::ZERO);
            }
            return;
        }
        // The route and what it names, never the path: it may have a session's id in it, which is a secret.
        let status = response.status().as_u16();
        tracing::debug!(call = row.name, route, name, code, status, ?took, "request refused");
    }

    /// Counts a request from its head on, and drops the header fields that nobody reads: a head that waits for its
    /// body, or a call that waits for its turn, must not hold what a stranger chose to send with it.
    fn let_in<B: http_body::Body>(
        &self,
        request: &mut Request<B>,
    ) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
        self.api.hosts.check(self.authority.as_deref(), request.headers(), self.context.row.cost)?;
        let mark = self.context.connection.as_deref();
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
        let cost = self.context.row.cost;
        if cost.is_stream() {
            let room = mark.is_none_or(|mark| mark.is_stream());
            let full = || ApiError::overloaded("too many session streams on one connection", COME_BACK_AFTER);
            return if room { Ok(None) } else { Err(full()) };
        }
        if request.body().is_end_stream() {
            mark.into_iter().for_each(|mark| mark.set_busy(true));
            return Ok(None);
        }
        let unread = if cost.is_renewal() { &self.api.unread_renewals } else { &self.api.unread };
        turn(unread, "too many requests have been begun and not sent to their end").map(Some)
    }

    fn metered<B>(&self, body: B, unread: Option<OwnedSemaphorePermit>) -> Metered<B> {
        let (api, cost) = (&self.api, self.context.row.cost);
        let streams = cost.is_stream();
        let (all, all_max) = match cost.is_renewal() {
            true => (api.renewal_bodies.clone(), api.limits.renewal_bodies_bytes_max),
            false => (api.bodies.clone(), api.limits.bodies_bytes_max),
        };
        Metered {
            body,
            seen: 0,
            bytes_max: match cost {
                // A restore is read message by message, and has as many as it has.
                _ if streams || cost == Cost::Restore => None,
                _ => Some(api.limits.body_bytes_max),
            },
            all,
            all_max,
            within: (!streams).then_some(api.limits.body_within),
            // A backup is large; it may take its time as long as it moves.
            restarts: cost == Cost::Restore,
            late: None,
            surface: self.surface,
            arriving: self.context.in_flight.clone().map(|stream| (stream, Arriving::default(), 0)),
            // A stream says by itself when it keeps a session alive.
            unread: Unread { _turn: unread, mark: self.context.connection.clone().filter(|_| !streams) },
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

/// What an answer that is a refusal is about, as far as it says so.
fn refusal_of(response: &Response<Body>) -> About {
    if let Some(about) = response.extensions().get::<Arc<About>>() {
        return (**about).clone();
    }
    let status = tonic::Status::from_header_map(response.headers());
    let details = status.filter(|status| !status.details().is_empty());
    let error = details.and_then(|status| prost::Message::decode(status.details()).ok());
    error.map(|error: tenure_wire::proto::Error| *ApiError::from(error).about).unwrap_or_default()
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
    fn new<'a>(listen: SocketAddr, names: impl IntoIterator<Item = &'a str>) -> Hosts {
        let named = names.into_iter().map(|address| host(address).to_ascii_lowercase());
        Hosts { names: std::iter::once("localhost".into()).chain(named).collect(), listen: listen.ip() }
    }

    fn check(&self, authority: Option<&str>, headers: &HeaderMap, cost: Cost) -> Result<(), ApiError> {
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
        let foreign = || {
            ApiError::new(Code::ForeignOrigin, "a web page of another site asked for this")
                .hint("only this server's own pages may call it from a browser")
        };
        // A picture or a script of a foreign page is asked for without `Origin`. A link to the dashboard is no attack.
        let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
        if matches!(site, Some(b"cross-site" | b"same-site")) && cost != Cost::Page {
            return Err(foreign());
        }
        let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
        let site = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, site)| site);
        if site.is_some_and(|site| named.is_some_and(|named| site.eq_ignore_ascii_case(named))) {
            return Ok(());
        }
        Err(foreign())
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

/// An answer that ends when its caller's proof does.
struct Expiring {
    body: Body,
    over: Pin<Box<Sleep>>,
}

impl http_body::Body for Expiring {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.over.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        Pin::new(&mut self.body).poll_frame(context)
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
    /// For a session stream: where the message that is still arriving counts, and how much of it does.
    arriving: Option<(Arc<InFlight>, Arriving, usize)>,
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
    fn take(&mut self, data: &[u8]) -> Result<(), ApiError> {
        if let Some((stream, message, counted)) = &mut self.arriving {
            // What is whole goes to the stream, which counts it until it is answered.
            let arrived = message.add(data);
            stream.give_back(std::mem::take(counted));
            stream.take(arrived)?;
            *counted = arrived;
        }
        let Some(bytes_max) = self.bytes_max else { return Ok(()) };
        let bytes = data.len();
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
                match this.take(frame.data_ref().map_or(&[][..], |data| data)) {
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
        if let Some((stream, _, counted)) = &self.arriving {
            stream.give_back(*counted);
        }
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
        hosts.check(None, &headers, Cost::Read).is_ok()
    }

    #[test]
    fn a_foreign_name_or_page_is_refused() {
        let hosts = Hosts::new("127.0.0.1:7400".parse().unwrap(), ["Lease.Example:7400"]);
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
        let everywhere = Hosts::new("0.0.0.0:7400".parse().unwrap(), []);
        assert!(checked(&everywhere, "10.0.0.1:7400", None), "it may well be ours");
        assert!(!checked(&everywhere, "evil.example:7400", None));
        assert!(hosts.check(None, &HeaderMap::new(), Cost::Read).is_ok(), "no browser leaves the name out");
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
