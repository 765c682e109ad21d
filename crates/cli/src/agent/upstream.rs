//! The one renewal stream to a node, which carries the renewals of all clients: one message per tick.
//!
//! Unanswered renewals are not sent again here: each client repeats its own, under a new number and over the
//! network if necessary. So this file has one rule for every failure: report the outcome as unknown, and use
//! the next node.

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::header::HeaderValue;
use tenure_client::proto;
use tenure_client::proto::stream_client::StreamClient;
use tenure_core::{Renewal, SessionId, SessionNumber};
use tenure_wire::{ApiError, grpc};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Sleep, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::connections::Connections;
use super::counts::Counts;
use super::{no_node, presenting};

/// Questions of clients that may wait for the next tick.
const QUESTIONS_WAITING_MAX: usize = 4_096;
/// Messages that may wait to be written to the stream; one that is this far behind is as good as broken.
const MESSAGES_WAITING_MAX: usize = 16;
/// How long a message may stay unanswered before the next node is tried.
const PATIENCE: Duration = Duration::from_secs(1);
/// Renewals in one message, as many as a node takes.
const RENEWALS_PER_MESSAGE_MAX: usize = 65_536;
/// Sessions proved to one stream after which a new one is made: a node forgets those that are gone only then,
/// and takes a million.
const ATTACHED_MAX: usize = 500_000;

/// Where clients' renewals are handed in: one stream for all who present the same. A node takes a stream for one
/// caller's, so renewals of several callers are never on one, and no renewal carries a credential of its own.
pub struct Upstreams {
    connections: Arc<Connections>,
    tick: Duration,
    counts: Arc<Counts>,
    of: Mutex<HashMap<Option<HeaderValue>, mpsc::WeakSender<Said>>>,
}

/// Callers with a stream at once. A host has a few services, each with its credential.
const CALLERS_MAX: usize = 1_024;

impl Upstreams {
    pub fn new(connections: Arc<Connections>, tick: Duration, counts: Arc<Counts>) -> Upstreams {
        Upstreams { connections, tick, counts, of: Mutex::default() }
    }

    /// The stream of those who present this; it ends with the last of them.
    pub fn of(&self, presented: Option<HeaderValue>) -> Result<Upstream, ApiError> {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = of.get(&presented).and_then(mpsc::WeakSender::upgrade) {
            return Ok(Upstream(sender));
        }
        of.retain(|_, sender| sender.strong_count() > 0);
        if of.len() >= CALLERS_MAX {
            return Err(no_node("too many credentials are in use on this host"));
        }
        let upstream =
            Upstream::start(self.connections.clone(), presented.clone(), self.tick, self.counts.clone());
        of.insert(presented, upstream.0.downgrade());
        Ok(upstream)
    }
}

/// The stream of one caller.
#[derive(Clone)]
pub struct Upstream(mpsc::Sender<Said>);

/// What was said about one renewal.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// It was renewed under its number.
    Renewed {
        /// The revision of the session's last lease change.
        revision: u64,
        /// All that was said, now or when the revision changed; `None` if there has never been more to say.
        spelled_out: Option<Box<proto::Renewed>>,
    },
    /// There is no such session.
    Unknown,
    /// Nothing is known.
    Nothing,
}

type Verdicts = Result<Vec<Verdict>, ApiError>;

enum Said {
    Renew(Question),
    Forget(Vec<SessionNumber>),
}

struct Question {
    renewals: Vec<(SessionId, u64)>,
    reply: oneshot::Sender<Verdicts>,
}

impl Upstream {
    fn start(
        connections: Arc<Connections>,
        presented: Option<HeaderValue>,
        tick: Duration,
        counts: Arc<Counts>,
    ) -> Upstream {
        let (sender, inbox) = mpsc::channel(QUESTIONS_WAITING_MAX);
        let driver =
            Driver { connections, presented, tick, counts, inbox, waiting: Vec::new(), next_batch: 1 };
        tokio::spawn(driver.run());
        Upstream(sender)
    }

    /// Renews sessions with the next message; one verdict each, in order.
    pub async fn renew(&self, renewals: Vec<(SessionId, u64)>) -> Verdicts {
        let (reply, answer) = oneshot::channel();
        if self.0.send(Said::Renew(Question { renewals, reply })).await.is_err() {
            return Err(no_node("it is stopping"));
        }
        answer.await.unwrap_or_else(|_| Err(no_node("it is stopping")))
    }

    /// These are renewed by nobody any more.
    pub fn forget(&self, sessions: Vec<SessionNumber>) {
        // If there is no room they are forgotten with the stream.
        let _ = self.0.try_send(Said::Forget(sessions));
    }
}

struct Driver {
    connections: Arc<Connections>,
    presented: Option<HeaderValue>,
    tick: Duration,
    counts: Arc<Counts>,
    inbox: mpsc::Receiver<Said>,
    waiting: Vec<Question>,
    next_batch: u64,
}

/// One stream to a node.
struct RenewalStream {
    index: usize,
    outbox: mpsc::Sender<proto::RenewalFrames>,
    inbound: Streaming<proto::RenewalAnswers>,
    /// Sessions proved to it, and what was last spelled out about each.
    attached: HashMap<SessionNumber, Option<Box<proto::Renewed>>>,
    attached_ever: usize,
    awaited: BTreeMap<u64, Message>,
}

/// A message that is not answered yet: the questions in it, in order.
struct Message {
    renewals: Vec<Renewal>,
    questions: Vec<(usize, oneshot::Sender<Verdicts>)>,
}

/// Nobody will ask any more.
struct Stopping;

impl Driver {
    async fn run(mut self) {
        loop {
            while self.waiting.is_empty() {
                match self.inbox.recv().await {
                    Some(said) => self.receive(said, None),
                    None => return,
                }
            }
            match self.connect().await {
                Ok(stream) => {
                    if let Err(Stopping) = self.stream(stream).await {
                        return;
                    }
                }
                Err(error) => {
                    for question in self.waiting.drain(..) {
                        let _ = question.reply.send(Err(error.clone()));
                    }
                }
            }
        }
    }

    async fn connect(&mut self) -> Result<RenewalStream, ApiError> {
        let (index, channel) = self.connections.connected().await?;
        let (outbox, waiting) = mpsc::channel(MESSAGES_WAITING_MAX);
        let mut client = StreamClient::new(channel);
        let request = presenting(ReceiverStream::new(waiting), self.presented.as_ref());
        let opened = tokio::time::timeout(PATIENCE, client.renewals(request)).await;
        let inbound = match opened {
            Ok(Ok(inbound)) => inbound.into_inner(),
            Ok(Err(status)) => {
                self.connections.leave(index);
                return Err(no_node(status.message()));
            }
            Err(_) => {
                self.connections.leave(index);
                return Err(no_node("a node did not open a stream in time"));
            }
        };
        Ok(RenewalStream {
            index,
            outbox,
            inbound,
            attached: HashMap::new(),
            attached_ever: 0,
            awaited: BTreeMap::new(),
        })
    }

    /// Carries renewals over one stream until it breaks or is left.
    async fn stream(&mut self, mut stream: RenewalStream) -> Result<(), Stopping> {
        // Whoever asked while there was no stream has waited long enough.
        let mut tick: Option<Pin<Box<Sleep>>> =
            (!self.waiting.is_empty()).then(|| Box::pin(sleep(Duration::ZERO)));
        let mut patience: Option<Pin<Box<Sleep>>> = None;
        let broken = loop {
            tokio::select! {
                biased;
                answers = stream.inbound.message() => match answers {
                    Ok(Some(answers)) => {
                        if let Err(why) = stream.answered(answers) {
                            break why;
                        }
                        patience = (!stream.awaited.is_empty()).then(|| Box::pin(sleep(PATIENCE)));
                    }
                    Ok(None) => break no_node("the node ended the stream"),
                    Err(status) => break no_node(status.message()),
                },
                () = over(&mut patience) => break no_node("a renewal stayed unanswered"),
                said = self.inbox.recv() => match said {
                    Some(said) => {
                        self.receive(said, Some(&mut stream));
                        if !self.waiting.is_empty() && tick.is_none() {
                            tick = Some(Box::pin(sleep(self.tick)));
                        }
                    }
                    None => return Err(Stopping),
                },
                () = over(&mut tick) => {
                    tick = None;
                    if let Err(why) = self.send(&mut stream) {
                        break why;
                    }
                    patience.get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
                    self.counts.sessions_are(stream.attached.len());
                    if stream.attached_ever > ATTACHED_MAX {
                        break no_node("the stream has grown old");
                    }
                }
            }
        };
        self.connections.leave(stream.index);
        self.counts.failed(stream.awaited.len());
        for (_, message) in stream.awaited {
            for (_, reply) in message.questions {
                let _ = reply.send(Err(broken.clone()));
            }
        }
        Ok(())
    }

    fn receive(&mut self, said: Said, stream: Option<&mut RenewalStream>) {
        match (said, stream) {
            (Said::Renew(question), _) => self.waiting.push(question),
            (Said::Forget(sessions), Some(stream)) => {
                for session in sessions {
                    stream.attached.remove(&session);
                }
            }
            (Said::Forget(_), None) => {}
        }
    }

    /// Sends what has come in since the last tick: one message, unless there is more than a node takes.
    fn send(&mut self, stream: &mut RenewalStream) -> Result<(), ApiError> {
        while !self.waiting.is_empty() {
            let mut message = Message { renewals: Vec::new(), questions: Vec::new() };
            let mut attach = Vec::new();
            let fits = |question: &Question, taken: usize| {
                taken == 0 || taken + question.renewals.len() <= RENEWALS_PER_MESSAGE_MAX
            };
            let mut taken = 0;
            while self.waiting.get(taken).is_some_and(|question| fits(question, message.renewals.len())) {
                for (id, number) in &self.waiting[taken].renewals {
                    if let std::collections::hash_map::Entry::Vacant(vacant) =
                        stream.attached.entry(id.number)
                    {
                        vacant.insert(None);
                        stream.attached_ever += 1;
                        attach.push(grpc::renewal_attach(*id));
                    }
                    message.renewals.push(Renewal { session: id.number, number: *number });
                }
                taken += 1;
            }
            for question in self.waiting.drain(..taken) {
                message.questions.push((question.renewals.len(), question.reply));
            }
            let batch = self.next_batch;
            self.next_batch += 1;
            let frames = proto::RenewalFrames { attach, ..grpc::pack_renewals(batch, &message.renewals) };
            self.counts.sent(message.renewals.len());
            stream.awaited.insert(batch, message);
            stream.outbox.try_send(frames).map_err(|_| no_node("the node does not keep up"))?;
        }
        Ok(())
    }
}

impl RenewalStream {
    /// Hands one message's answers out. An error means that this node is no help now.
    fn answered(&mut self, answers: proto::RenewalAnswers) -> Result<(), ApiError> {
        let Some(message) = self.awaited.remove(&answers.batch) else { return Ok(()) };
        if let Some(error) = answers.error {
            let error = ApiError::from(error);
            for (_, reply) in message.questions {
                let _ = reply.send(Err(error.clone()));
            }
            return Err(error);
        }
        let said = answers.first..answers.first.saturating_add(answers.count);
        let (unknown, unattached) =
            (grpc::unpack_positions(&answers.unknown), grpc::unpack_positions(&answers.unattached));
        let mut spelled_out: HashMap<(u64, u64), proto::Renewed> =
            answers.renewed.into_iter().map(|said| ((said.session_number, said.number), said)).collect();
        let mut verdicts = message.renewals.iter().zip(0u32..).map(|(renewal, position)| {
            let session = renewal.session;
            if !said.contains(&position) || unattached.contains(&position) {
                self.attached.remove(&session);
                return Verdict::Nothing;
            }
            if unknown.contains(&position) {
                self.attached.remove(&session);
                return Verdict::Unknown;
            }
            let now = spelled_out.remove(&(session.get(), renewal.number)).map(Box::new);
            if let Some(now) = &now {
                // What is remembered for later answers is the revision and the TTL; events are sent once.
                let remembered = proto::Renewed {
                    noticed: Vec::new(),
                    ended: Vec::new(),
                    incomplete: false,
                    ..(**now).clone()
                };
                self.attached.insert(session, Some(Box::new(remembered)));
            }
            let spelled_out = now.or_else(|| self.attached.get(&session).cloned().flatten());
            let revision = spelled_out.as_ref().map_or(0, |said| said.last_lease_revision);
            Verdict::Renewed { revision, spelled_out }
        });
        for (count, reply) in message.questions {
            let _ = reply.send(Ok(verdicts.by_ref().take(count).collect()));
        }
        Ok(())
    }
}

/// Ends when the sleep does, if there is one.
async fn over(sleep: &mut Option<Pin<Box<Sleep>>>) {
    match sleep {
        Some(sleep) => sleep.await,
        None => std::future::pending().await,
    }
}
