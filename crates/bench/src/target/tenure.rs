//! Tenure over its session stream: many sessions on one connection, many frames in one message.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::stream;
use parking::Awaited;
use tenure_client::{Channel, ClientTls, Credential, Endpoints};
use tenure_wire::proto::client_frame::Command as Asked;
use tenure_wire::proto::server_frame::Content;
use tenure_wire::proto::{self, ClientFrame, ClientFrames, RenewalFrames, ServerFrame};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tonic::Streaming;
use tonic::transport::Endpoint;

use super::connections::{Breaks, Connections};
use super::{Ask, Fleet, Result, Session, Store, draw};
use crate::error::BenchError;
use crate::plan::Plan;

/// Frames in one message, and frames unanswered on one stream: below what the server allows.
const FRAMES_PER_MESSAGE_MAX: usize = 1_024;
const FRAMES_UNDER_WAY_MAX: usize = 4_000;
/// Server frames taken in before the server is granted new credit.
const CREDITS_OWED_MAX: u32 = 256;
/// Renewals in one message: what the server allows.
const RENEWALS_PER_MESSAGE_MAX: usize = 65_536;

/// A cluster.
pub struct Tenure {
    connections: Connections<Connection>,
    endpoints: Vec<String>,
    access: Access,
}

/// How a cluster is reached, and what is presented there.
#[derive(Clone)]
struct Access {
    tls: Option<ClientTls>,
    credential: Option<Credential>,
}

impl Tenure {
    async fn connection(&self, way: usize) -> Result<Arc<Connection>> {
        let access = &self.access;
        self.connections.get(way, |endpoint| Connection::connect(endpoint, access)).await
    }

    async fn dial(&self, way: usize) -> Result<Channel> {
        dial(&self.endpoints[way % self.endpoints.len()], &self.access).await
    }
}

/// One command stream.
struct Connection {
    channel: Channel,
    frames: mpsc::UnboundedSender<Option<ClientFrame>>,
    shared: Arc<Shared>,
    room: Semaphore,
}

#[derive(Default)]
struct Shared {
    awaited: Awaited,
    next_frame: AtomicU64,
    credits_owed: AtomicU32,
    broken: AtomicBool,
}

impl Breaks for Connection {
    fn broken(&self) -> bool {
        self.shared.broken.load(Ordering::Acquire)
    }
}

async fn dial(endpoint: &str, access: &Access) -> Result<Channel> {
    let made = Endpoint::from_shared(format!("http://{endpoint}"))
        .map_err(|error| BenchError::new(format!("{endpoint} is no address: {error}")))?
        .tcp_nodelay(true)
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(16 << 20);
    let mut endpoints = Endpoints::default();
    if let Some(tls) = &access.tls {
        endpoints = endpoints.secured(tls.clone());
    }
    if let Some(credential) = &access.credential {
        endpoints = endpoints.with_credential(credential.clone());
    }
    let connected = endpoints.connect(made).await;
    connected
        .map_err(|error| BenchError::unreachable(format!("{error}: {:?}", std::error::Error::source(&error))))
}

impl Connection {
    async fn connect(endpoint: String, access: &Access) -> Result<Connection> {
        let (frames, waiting) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared::default());
        let outgoing = outgoing(waiting, shared.clone());
        let channel = dial(&endpoint, access).await?;
        let mut client = proto::stream_client::StreamClient::new(channel.clone());
        let inbound = client.commands(outgoing).await?.into_inner();
        tokio::spawn(listen(inbound, shared.clone(), frames.clone()));
        Ok(Connection { channel, frames, shared, room: Semaphore::new(FRAMES_UNDER_WAY_MAX) })
    }

    /// Sends a command and waits for its answer.
    async fn ask(&self, session: u64, number: Option<u64>, command: Asked) -> Result<(u64, Content)> {
        let _room = self.room.acquire().await.map_err(|_| lost())?;
        let frame = self.shared.next_frame.fetch_add(1, Ordering::Relaxed);
        let answer = self.shared.awaited.frame(frame);
        let asked = ClientFrame {
            frame,
            session,
            number,
            // One command at a time: whatever came before this one has been answered.
            lowest_awaited: number.unwrap_or(0),
            command: Some(command),
        };
        if self.broken() || self.frames.send(Some(asked)).is_err() {
            return Err(lost());
        }
        match answer.await {
            Ok((_, Content::Error(error))) => {
                Err(BenchError::new(format!("{}: {}", error.code, error.message)))
            }
            Ok(answer) => Ok(answer),
            Err(_) => Err(lost()),
        }
    }

    async fn open(&self, ttl: Duration) -> Result<(u64, Vec<u8>)> {
        let open = proto::StreamOpen {
            holder: "bench".into(),
            ttl_ms: ttl.as_millis() as u64,
            nonce: draw().to_le_bytes().to_vec(),
            transmission: 1,
        };
        match self.ask(0, None, Asked::Open(open)).await? {
            (session, Content::Opened(opened)) => Ok((session, opened.secret)),
            _ => Err(strange()),
        }
    }
}

fn lost() -> BenchError {
    BenchError::unreachable("the connection broke")
}

fn strange() -> BenchError {
    BenchError::new("the store answered something else than was asked")
}

fn acquire(resource: &str) -> Asked {
    Asked::Acquire(proto::StreamAcquire {
        resources: vec![resource.to_owned()],
        wait: Some(proto::Wait { wait: Some(proto::wait::Wait::ForEver(true)) }),
        ..Default::default()
    })
}

/// Whatever has come together goes out as one message.
fn outgoing(
    waiting: mpsc::UnboundedReceiver<Option<ClientFrame>>,
    shared: Arc<Shared>,
) -> impl stream::Stream<Item = ClientFrames> + Send {
    stream::unfold((waiting, shared), |(mut waiting, shared)| async move {
        let mut taken = Vec::new();
        if waiting.recv_many(&mut taken, FRAMES_PER_MESSAGE_MAX).await == 0 {
            return None;
        }
        let frames = taken.into_iter().flatten().collect();
        let credits = shared.credits_owed.swap(0, Ordering::Relaxed);
        Some((ClientFrames { frames, credits }, (waiting, shared)))
    })
}

async fn listen(
    mut inbound: Streaming<proto::ServerFrames>,
    shared: Arc<Shared>,
    frames: mpsc::UnboundedSender<Option<ClientFrame>>,
) {
    while let Ok(Some(message)) = inbound.message().await {
        let many = message.frames.len() as u32;
        if shared.credits_owed.fetch_add(many, Ordering::Relaxed) + many >= CREDITS_OWED_MAX {
            // Something to say, even if no command is: there is room again.
            let _ = frames.send(None);
        }
        for frame in message.frames {
            shared.awaited.arrived(frame);
        }
    }
    shared.broken.store(true, Ordering::Release);
    shared.awaited.give_up();
}

/// Who waits for which frame, and for which push.
mod parking {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    pub struct Awaited(Mutex<Inside>);

    #[derive(Default)]
    struct Inside {
        frames: HashMap<u64, oneshot::Sender<(u64, Content)>>,
        /// By session and the number of the acquire.
        grants: HashMap<(u64, u64), oneshot::Sender<bool>>,
        given_up: bool,
    }

    impl Awaited {
        fn inside(&self) -> std::sync::MutexGuard<'_, Inside> {
            self.0.lock().expect("no holder of this lock panics")
        }

        pub fn frame(&self, frame: u64) -> oneshot::Receiver<(u64, Content)> {
            let (sender, receiver) = oneshot::channel();
            let mut inside = self.inside();
            if !inside.given_up {
                inside.frames.insert(frame, sender);
            }
            receiver
        }

        pub fn grant(&self, session: u64, number: u64) -> oneshot::Receiver<bool> {
            let (sender, receiver) = oneshot::channel();
            let mut inside = self.inside();
            if !inside.given_up {
                inside.grants.insert((session, number), sender);
            }
            receiver
        }

        pub fn forget_grant(&self, session: u64, number: u64) {
            self.inside().grants.remove(&(session, number));
        }

        pub fn arrived(&self, frame: ServerFrame) {
            let Some(content) = frame.content else { return };
            let mut inside = self.inside();
            let (number, granted) = match (&content, frame.frame) {
                (_, Some(awaited)) => {
                    if let Some(sender) = inside.frames.remove(&awaited) {
                        let _ = sender.send((frame.session, content));
                    }
                    return;
                }
                (Content::PushGranted(push), None) => (push.number, true),
                (Content::PushUnqueued(push), None) => (push.number, false),
                _ => return,
            };
            let waiting = number.and_then(|number| inside.grants.remove(&(frame.session, number)));
            if let Some(waiting) = waiting {
                let _ = waiting.send(granted);
            }
        }

        pub fn give_up(&self) {
            let mut inside = self.inside();
            inside.given_up = true;
            inside.frames.clear();
            inside.grants.clear();
        }
    }
}

impl Store for Tenure {
    type Session = TenureSession;
    type Fleet = TenureFleet;

    async fn reach(plan: &Plan) -> Result<Tenure> {
        let store = Tenure {
            connections: Connections::new(&plan.endpoints, plan.connections.min(plan.clients)),
            endpoints: plan.endpoints.clone(),
            access: Access { tls: plan.tls.clone(), credential: plan.credential.clone() },
        };
        store.connection(0).await?;
        Ok(store)
    }

    async fn open(&self, way: usize, ttl: Duration) -> Result<TenureSession> {
        let connection = self.connection(way).await?;
        let (session, secret) = connection.open(ttl).await?;
        Ok(TenureSession { connection, session, secret, next: 1, renewals: None })
    }

    async fn fleet(&self, ask: &Ask) -> Result<TenureFleet> {
        let connection = self.connection(ask.way).await?;
        let mut sessions = Vec::with_capacity(ask.count);
        let all: Vec<usize> = (ask.first..ask.first + ask.count).collect();
        for some in all.chunks(FRAMES_UNDER_WAY_MAX / 4) {
            let opened = some.iter().map(|number| {
                let (connection, ask) = (&connection, &ask);
                async move {
                    let opened = connection.open(ask.ttl).await?;
                    if ask.leases {
                        connection.ask(opened.0, Some(1), acquire(&ask.resource(*number))).await?;
                    }
                    Ok::<_, BenchError>(opened)
                }
            });
            sessions.extend(futures_util::future::try_join_all(opened).await?);
        }
        sessions.sort_unstable();
        Ok(TenureFleet {
            connection: RenewalStream::connect(self.dial(ask.way).await?).await?,
            sessions,
            attached: false,
        })
    }

    async fn leases(&self, _prefix: &str) -> Result<u64> {
        let channel = self.dial(0).await?;
        let mut cluster = proto::cluster_client::ClusterClient::new(channel);
        Ok(cluster.status(proto::ClusterStatusRequest::default()).await?.into_inner().leases)
    }

    async fn step_down(&self) -> Result<()> {
        let channel = self.dial(0).await?;
        proto::cluster_client::ClusterClient::new(channel)
            .step_down(proto::StepDownRequest { to: None })
            .await?;
        Ok(())
    }

    async fn watch(&self, way: usize, prefix: &str) -> Result<mpsc::UnboundedReceiver<String>> {
        let channel = self.dial(way).await?;
        let request = proto::WatchRequest { prefix: prefix.to_owned(), ..Default::default() };
        let mut watch = proto::watch_client::WatchClient::new(channel).watch(request).await?.into_inner();
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok(Some(message)) = watch.message().await {
                for event in message.events {
                    if let Some(proto::event::Kind::Granted(granted)) = event.kind
                        && sender.send(granted.resource).is_err()
                    {
                        return;
                    }
                }
            }
        });
        Ok(receiver)
    }
}

/// One session.
pub struct TenureSession {
    connection: Arc<Connection>,
    session: u64,
    secret: Vec<u8>,
    next: u64,
    renewals: Option<RenewalStream>,
}

impl TenureSession {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }
}

/// A place in the queue, or a lease.
pub struct Place {
    resource: String,
    waiting: Option<oneshot::Receiver<bool>>,
}

impl Session for TenureSession {
    type Place = Place;

    async fn queue(&mut self, resource: &str) -> Result<Place> {
        let number = self.number();
        // Awaited before it is asked for: the push may overtake the answer.
        let waiting = self.connection.shared.awaited.grant(self.session, number);
        match self.connection.ask(self.session, Some(number), acquire(resource)).await {
            Ok((_, Content::Granted(_))) => {
                self.connection.shared.awaited.forget_grant(self.session, number);
                Ok(Place { resource: resource.to_owned(), waiting: None })
            }
            Ok((_, Content::Queued(_))) => {
                Ok(Place { resource: resource.to_owned(), waiting: Some(waiting) })
            }
            Ok(_) => Err(strange()),
            Err(error) => {
                self.connection.shared.awaited.forget_grant(self.session, number);
                Err(error)
            }
        }
    }

    async fn granted(&mut self, place: &mut Place) -> Result<()> {
        match place.waiting.take() {
            None => Ok(()),
            Some(waiting) => match waiting.await {
                Ok(true) => Ok(()),
                Ok(false) => Err(BenchError::new("the wait ended without a grant")),
                Err(_) => Err(lost()),
            },
        }
    }

    async fn release(&mut self, place: Place) -> Result<()> {
        let number = self.number();
        let release = proto::StreamRelease { resource: place.resource, token: None, rest_ms: None };
        match self.connection.ask(self.session, Some(number), Asked::Release(release)).await? {
            (_, Content::Released(released)) if released.released => Ok(()),
            (_, Content::Released(_)) => Err(BenchError::new("there was nothing to release")),
            _ => Err(strange()),
        }
    }

    async fn clear(&mut self, resource: &str) -> Result<()> {
        let number = self.number();
        let release = proto::StreamRelease { resource: resource.to_owned(), token: None, rest_ms: None };
        self.connection.ask(self.session, Some(number), Asked::Release(release)).await.map(drop)
    }

    async fn renew(&mut self) -> Result<()> {
        if self.renewals.is_none() {
            self.renewals = Some(RenewalStream::connect(self.connection.channel.clone()).await?);
        }
        let (session, secret) = (self.session, self.secret.clone());
        let renewals = self.renewals.as_mut().expect("made above");
        match renewals.renew(&[(session, secret)], true).await? {
            1 => Ok(()),
            _ => Err(BenchError::new("the session has ended")),
        }
    }

    async fn died(&mut self) -> Result<()> {
        let number = self.number();
        let close = Asked::Close(proto::StreamClose { died: true });
        self.connection.ask(self.session, Some(number), close).await.map(drop)
    }

    fn fall_silent(&mut self) {
        // The stream is shared with others, who go on; nobody renews this session any more.
    }

    fn connected(&self) -> bool {
        !self.connection.broken()
    }
}

/// One renewal stream.
struct RenewalStream {
    messages: mpsc::UnboundedSender<RenewalFrames>,
    answers: Streaming<proto::RenewalAnswers>,
    batch: u64,
}

impl RenewalStream {
    async fn connect(channel: Channel) -> Result<RenewalStream> {
        let (messages, waiting) = mpsc::unbounded_channel();
        let outgoing = stream::unfold(waiting, |mut waiting: mpsc::UnboundedReceiver<_>| async move {
            waiting.recv().await.map(|message| (message, waiting))
        });
        let answers = proto::stream_client::StreamClient::new(channel).renewals(outgoing).await?.into_inner();
        // The first number is the open's.
        Ok(RenewalStream { messages, answers, batch: 1 })
    }

    /// Renews sessions, in rising order of their numbers; says how many were.
    async fn renew(&mut self, sessions: &[(u64, Vec<u8>)], attach: bool) -> Result<u64> {
        let mut messages = 0;
        for some in sessions.chunks(RENEWALS_PER_MESSAGE_MAX) {
            self.batch += 1;
            messages += 1;
            let mut last = 0;
            let step = |(session, _): &(u64, Vec<u8>)| {
                let before = std::mem::replace(&mut last, *session);
                *session as i64 - before as i64
            };
            let attached = |(session, secret): &(u64, Vec<u8>)| proto::RenewalAttach {
                session: *session,
                secret: secret.clone(),
            };
            let message = RenewalFrames {
                batch: self.batch,
                steps: some.iter().map(step).collect(),
                // Every transmission has its own number; here it is the batch's.
                number: Some(self.batch),
                numbers: Vec::new(),
                attach: if attach { some.iter().map(attached).collect() } else { Vec::new() },
            };
            self.messages.send(message).map_err(|_| lost())?;
        }
        let mut renewed = 0;
        for _ in 0..messages {
            let answer = self.answers.message().await?.ok_or_else(lost)?;
            if let Some(error) = answer.error {
                return Err(BenchError::new(format!("{}: {}", error.code, error.message)));
            }
            renewed += u64::from(answer.count) - (answer.unknown.len() + answer.unattached.len()) as u64;
        }
        Ok(renewed)
    }
}

/// Many sessions on one renewal stream.
pub struct TenureFleet {
    connection: RenewalStream,
    sessions: Vec<(u64, Vec<u8>)>,
    attached: bool,
}

impl Fleet for TenureFleet {
    async fn renew_all(&mut self) -> Result<u64> {
        let attach = !std::mem::replace(&mut self.attached, true);
        self.connection.renew(&self.sessions, attach).await
    }
}
