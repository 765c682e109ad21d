//! The host agent: one unix socket that the clients of a host use instead of the network.
//!
//! It *coalesces*: the renewals of all clients that arrive within one tick leave as one message. It never
//! *vouches*: a renewal goes out only because its own client asked for it, under the client's own number, and
//! the answer goes back under that number. So the agent has no deadline of its own and moves nobody's: each
//! client counts from its own send, exactly as without an agent, and a client that has stopped is not
//! renewed. Everything else is passed on unread. If the agent stops answering, clients repeat over the
//! network after a quarter of R; nobody needs it.
//!
//! One thing it knows better than the store: whether a process on this host is dead (`processes.rs`).

mod admission;
mod connections;
mod counts;
mod processes;
mod renewals;
mod upstream;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tenure_client::{Endpoints, WITH_PROCESS, proto};
use tenure_core::SessionId;
use tenure_wire::{ApiError, Code};
use tokio::net::{UnixListener, UnixStream};
use tonic::body::Body;
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

pub use admission::Admission;
use connections::Connections;
pub use counts::Counts;
use processes::{Process, Processes};
use upstream::Upstreams;

/// A pause after a failed accept: files are short, and asking again at once would only burn a core.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// Requests at once on one client's connection.
const STREAMS_MAX: u32 = 1_024;

/// The agent. Cheap to clone; all connections share it.
#[derive(Clone)]
pub struct Agent {
    connections: Arc<Connections>,
    upstreams: Arc<Upstreams>,
    processes: Arc<Processes>,
    counts: Arc<Counts>,
}

impl Agent {
    /// An agent for the cluster behind these endpoints. Nothing is connected yet.
    pub fn new(endpoints: &Endpoints, tick: Duration) -> Agent {
        let counts = Arc::new(Counts::default());
        let connections = Arc::new(Connections::new(endpoints));
        Agent {
            upstreams: Arc::new(Upstreams::new(connections.clone(), tick, counts.clone())),
            processes: Arc::new(Processes::new(endpoints, counts.clone())),
            connections,
            counts,
        }
    }

    /// What it has done so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Serves whoever connects and is let in, for ever.
    pub async fn serve(self, listener: UnixListener, admission: Admission) {
        loop {
            match listener.accept().await {
                Ok((connection, _)) => match admission.admit(&connection) {
                    Some(place) => {
                        let agent = self.clone();
                        tokio::spawn(async move {
                            agent.serve_connection(connection).await;
                            drop(place);
                        });
                    }
                    // Hung up: its client goes on over the network.
                    None => self.counts.turned_away(),
                },
                Err(_) => tokio::time::sleep(ACCEPT_AGAIN_AFTER).await,
            }
        }
    }

    async fn serve_connection(self, connection: UnixStream) {
        self.counts.client_came();
        let process = self.processes.at_the_other_end(&connection);
        let counts = self.counts.clone();
        let answer = hyper::service::service_fn(move |request| {
            let (agent, process) = (self.clone(), process.clone());
            async move { Ok::<_, Infallible>(agent.answer(request, process).await) }
        });
        // However it ends, its client finds out by itself.
        let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            // Hyper panics when it writes the date of a clock that is set beyond the year 9999.
            .auto_date_header(false)
            .max_concurrent_streams(STREAMS_MAX)
            .serve_connection(TokioIo::new(connection), answer)
            .await;
        counts.client_went();
    }

    async fn answer(self, request: Request<Incoming>, process: Option<Arc<Process>>) -> Response<Body> {
        // What a client presents is passed on with what it asks for, and used for nothing else.
        let presented = request.headers().get(AUTHORIZATION).cloned();
        match request.uri().path() {
            "/tenure.v1.Stream/Renewals" => {
                let serve = service_fn(|inbound: tonic::Request<tonic::Streaming<proto::RenewalFrames>>| {
                    let upstream = self.upstreams.of(presented.clone());
                    let answers = upstream.map(|upstream| renewals::serve(inbound.into_inner(), upstream));
                    let answers = answers.map(tonic::Response::new);
                    std::future::ready(answers.map_err(|error| status(&error)))
                });
                let codec = ProstCodec::<proto::RenewalAnswers, proto::RenewalFrames>::default();
                tonic::server::Grpc::new(codec).streaming(serve, request).await
            }
            "/tenure.v1.Sessions/Open" => {
                let serve = service_fn(|open| self.open(open, presented.clone(), process.clone()));
                let codec = ProstCodec::<proto::SessionOpenResponse, proto::SessionOpenRequest>::default();
                tonic::server::Grpc::new(codec).unary(serve, request).await
            }
            _ => self.pass_on(request).await,
        }
    }

    /// Opens a session for a client, and remembers whose it is.
    async fn open(
        &self,
        open: tonic::Request<proto::SessionOpenRequest>,
        presented: Option<HeaderValue>,
        process: Option<Arc<Process>>,
    ) -> Result<tonic::Response<proto::SessionOpenResponse>, tonic::Status> {
        let with_process = open.metadata().contains_key(WITH_PROCESS);
        let (connection, channel) = self.connections.connected().await.map_err(|error| status(&error))?;
        let mut client = proto::sessions_client::SessionsClient::new(channel);
        let opened = client
            .open(presenting(open.into_inner(), presented.as_ref()))
            .await
            .inspect_err(|status| self.connections.failed(connection, status))?;
        if let (true, Some(process)) = (with_process, process)
            && let Ok(session) = opened.get_ref().session.parse::<SessionId>()
        {
            self.processes.opened(&process, session, presented);
        }
        Ok(opened)
    }

    /// Passes on what is none of the agent's business.
    async fn pass_on(&self, request: Request<Incoming>) -> Response<Body> {
        let (connection, mut channel) = match self.connections.connected().await {
            Ok(connected) => connected,
            Err(error) => return status(&error).into_http(),
        };
        let ready = std::future::poll_fn(|context| channel.poll_ready(context)).await;
        let answer = match ready {
            Ok(()) => channel.call(request.map(Body::new)).await,
            Err(error) => Err(error),
        };
        answer.unwrap_or_else(|error| {
            // Sent or not, nobody here knows; the client's own rule for silence applies.
            let status = tonic::Status::unavailable(format!("the agent lost its connection: {error}"));
            self.connections.failed(connection, &status);
            status.into_http()
        })
    }
}

/// A message that presents what its client did.
fn presenting<M>(message: M, presented: Option<&HeaderValue>) -> tonic::Request<M> {
    let mut request = tonic::Request::new(message);
    if let Some(presented) = presented
        && let Ok(presented) = tonic::metadata::AsciiMetadataValue::try_from(presented.as_bytes())
    {
        request.metadata_mut().insert("authorization", presented);
    }
    request
}

/// A refusal of the agent's own, in the words of the store.
fn status(error: &ApiError) -> tonic::Status {
    let detail = prost::Message::encode_to_vec(&proto::Error::from(error.clone()));
    tonic::Status::with_details(tonic::Code::Unavailable, error.message.clone(), detail.into())
}

/// No node can be reached from here. Nothing was sent, so whoever asked may ask elsewhere.
fn no_node(why: &str) -> ApiError {
    ApiError::new(Code::NoLeader, format!("the agent reaches no node: {why}"))
        .hint("ask a node directly; clients of the library do")
}
