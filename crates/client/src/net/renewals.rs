//! Opens and renewals over the network, on connections that carry nothing else.
//!
//! There is one renewal stream per endpoint, opened when first needed. The preferred route is the endpoint
//! that answered last; the alternative is the next endpoint, or a new connection if there is only one. A
//! host's agent is an endpoint like the others: what it leaves unanswered goes to the next one, after a
//! quarter of R, and it is tried again from time to time. Everything here runs on the renewer's thread.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::{Renewal, RenewalAnswer, Revision, SessionId, SessionNumber};
use tenure_wire::proto::sessions_client::SessionsClient;
use tenure_wire::proto::stream_client::StreamClient;
use tenure_wire::{ApiError, Code, grpc, proto};
use tokio::sync::{mpsc, oneshot};
use tonic::Streaming;

use super::endpoint_errors::{EndpointErrors, reason};
use super::{CONNECT_WITHIN, connect, failure, frames, unanswered};
use crate::channel::Channel;
use crate::dial::Dialer;
use crate::endpoints::Endpoint;
use crate::error::{CallError, root_cause};
use crate::members::Directory;
use crate::store::{OpenSession, Opened, Route};

/// Messages that may wait to be written to one stream; a stream that is this far behind is as good as broken.
const MESSAGES_WAITING_MAX: usize = 64;
/// Where there is one endpoint only, a repetition is made over a fresh connection, but not every one: a
/// server that lives and is merely slow must not be buried under connections.
const FRESH_EVERY: u64 = 4;
/// Messages by the usual route after which an agent that was given up is tried again. Each attempt that it
/// leaves unanswered costs one retransmission, of which several fit into every TTL.
const AGENT_AGAIN_AFTER: u64 = 8;
/// How long an answer is remembered as awaited: longer than any TTL is useful to wait for.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

pub(super) struct Renewals {
    directory: Directory,
    dialer: Dialer,
    endpoint_errors: EndpointErrors,
    /// The links that were needed so far.
    links: Mutex<BTreeMap<Endpoint, Arc<EndpointLink>>>,
    /// The endpoint that answered last, or is tried since.
    preferred: Mutex<Endpoint>,
    /// What is known of each session, however it was learned.
    ttls: Arc<Mutex<BTreeMap<SessionNumber, Duration>>>,
    next_batch: AtomicU64,
    /// Transmissions by another route since the last answer.
    repeats: AtomicU64,
    /// Transmissions by the usual route since the agent was last asked.
    past_agent: AtomicU64,
}

/// One endpoint, and what there is to it.
struct EndpointLink {
    endpoint: Endpoint,
    dialer: Dialer,
    channel: tokio::sync::Mutex<Option<Channel>>,
    stream: tokio::sync::Mutex<Option<Arc<RenewalStream>>>,
}

/// One renewal stream.
struct RenewalStream {
    inside: Mutex<StreamInside>,
}

#[derive(Default)]
struct StreamInside {
    /// Sessions proved to this stream, and the revision of each one's last lease change as last sent on it.
    attached: BTreeMap<SessionNumber, Revision>,
    awaited: BTreeMap<u64, Awaited>,
    /// Gone when the stream is broken or given up; what is awaited may still be answered in the latter case.
    outbox: Option<mpsc::Sender<proto::RenewalFrames>>,
}

/// What became of one message: an answer for each of its renewals that has one.
type Answers = Result<Vec<Option<RenewalAnswer>>, CallError>;

/// A batch that is not answered yet.
struct Awaited {
    renewals: Vec<Renewal>,
    reply: oneshot::Sender<Answers>,
}

impl Renewals {
    pub fn new(directory: Directory, dialer: Dialer, endpoint_errors: EndpointErrors) -> Renewals {
        Renewals {
            preferred: Mutex::new(directory.first()),
            directory,
            dialer,
            endpoint_errors,
            links: Mutex::default(),
            ttls: Arc::default(),
            next_batch: AtomicU64::new(1),
            repeats: AtomicU64::new(0),
            past_agent: AtomicU64::new(0),
        }
    }

    /// The link to use. The alternative is remembered as the usual one only once it has answered.
    async fn link(&self, route: Route) -> Arc<EndpointLink> {
        let preferred = lock(&self.preferred).clone();
        match route {
            Route::Usual => match self.agent_due(&preferred) {
                Some(agent) => self.link_to(&agent),
                None => self.link_to(&preferred),
            },
            Route::Another => {
                let repeats = self.repeats.fetch_add(1, Ordering::Relaxed);
                let failures = usize::try_from(repeats).unwrap_or(usize::MAX).saturating_add(1);
                let next = self.directory.lock().after(&preferred, failures);
                // The next repetition tries the one after it, until one answers.
                *lock(&self.preferred) = next.clone();
                let link = self.link_to(&next);
                if next == preferred && repeats.is_multiple_of(FRESH_EVERY) {
                    // There is no other endpoint: then another connection.
                    link.disconnect().await;
                }
                link
            }
        }
    }

    fn link_to(&self, endpoint: &Endpoint) -> Arc<EndpointLink> {
        let mut links = lock(&self.links);
        if let Some(link) = links.get(endpoint) {
            return link.clone();
        }
        // Those that are no endpoints any more are forgotten with the next one that is new.
        let all = self.directory.all();
        links.retain(|endpoint, _| all.contains(endpoint));
        let link = EndpointLink {
            endpoint: endpoint.clone(),
            dialer: self.dialer.clone(),
            channel: tokio::sync::Mutex::new(None),
            stream: tokio::sync::Mutex::new(None),
        };
        links.entry(endpoint.clone()).or_insert_with(|| Arc::new(link)).clone()
    }

    /// The agent, if it was given up and is to be tried again. It stands first, and never becomes the usual
    /// link unless it answers.
    fn agent_due(&self, preferred: &Endpoint) -> Option<Endpoint> {
        let agent = self.directory.first();
        if agent == *preferred || agent.socket().is_none() {
            return None;
        }
        let past = self.past_agent.fetch_add(1, Ordering::Relaxed) + 1;
        past.is_multiple_of(AGENT_AGAIN_AFTER).then_some(agent)
    }

    /// Notes what came of one transmission.
    fn noted<T>(&self, link: &EndpointLink, came: Result<T, CallError>) -> Result<T, CallError> {
        match &came {
            Ok(_) => {
                *lock(&self.preferred) = link.endpoint.clone();
                self.repeats.store(0, Ordering::Relaxed);
                self.endpoint_errors.clear(&link.endpoint);
            }
            Err(error) => self.endpoint_errors.note(&link.endpoint, reason(error)),
        }
        came
    }

    pub async fn open(&self, open: OpenSession, route: Route) -> Result<Opened, CallError> {
        let link = self.link(route).await;
        self.endpoint_errors.note(&link.endpoint, "a session was to be opened, and nothing was answered");
        let opened = self.open_by(&link, open).await;
        self.noted(&link, opened)
    }

    async fn open_by(&self, link: &EndpointLink, open: OpenSession) -> Result<Opened, CallError> {
        let channel = link.connected().await?;
        let request = grpc::open_request(&open.holder, open.ttl, Some(open.nonce), open.number);
        let mut request = tonic::Request::new(request);
        if open.with_process && link.endpoint.socket().is_some() {
            request
                .metadata_mut()
                .insert(crate::WITH_PROCESS, tonic::metadata::MetadataValue::from_static("1"));
        }
        let answer = match SessionsClient::new(channel).open(request).await {
            Ok(answer) => answer.into_inner(),
            Err(status) => {
                let error = failure(&link.endpoint, &status);
                if !matches!(error, CallError::Refused(_)) {
                    link.disconnect().await;
                }
                return Err(error);
            }
        };
        let session: SessionId = answer
            .session
            .parse()
            .map_err(|_| CallError::Refused(ApiError::new(Code::Internal, "the answer has no session id")))?;
        let ttl = Duration::from_millis(answer.ttl_ms);
        lock(&self.ttls).insert(session.number, ttl);
        Ok(Opened { session, ttl, number: answer.number })
    }

    pub async fn renew(
        &self,
        renewals: Vec<(SessionId, u64)>,
        route: Route,
    ) -> Result<Vec<Option<RenewalAnswer>>, CallError> {
        let link = self.link(route).await;
        let renewed = self.renew_by(&link, renewals).await;
        self.noted(&link, renewed)
    }

    async fn renew_by(&self, link: &EndpointLink, renewals: Vec<(SessionId, u64)>) -> Answers {
        let stream = link.stream(&self.ttls).await?;
        let batch = self.next_batch.fetch_add(1, Ordering::Relaxed);
        let answer = stream.send(batch, renewals).map_err(|why| unanswered(&link.endpoint, why))?;
        match tokio::time::timeout(ANSWER_WITHIN, answer).await {
            Ok(Ok(answers)) => answers,
            Ok(Err(_)) => Err(unanswered(&link.endpoint, "the renewal stream broke")),
            Err(_) => {
                lock(&stream.inside).awaited.remove(&batch);
                Err(unanswered(&link.endpoint, "no answer to a renewal"))
            }
        }
    }

    /// Forgets a session that has ended.
    pub fn forget(&self, session: SessionNumber) {
        lock(&self.ttls).remove(&session);
        for link in lock(&self.links).values() {
            // A link that is busy connecting has no stream that could remember anything.
            if let Ok(stream) = link.stream.try_lock()
                && let Some(stream) = &*stream
            {
                lock(&stream.inside).attached.remove(&session);
            }
        }
    }
}

impl EndpointLink {
    async fn connected(&self) -> Result<Channel, CallError> {
        let mut channel = self.channel.lock().await;
        if let Some(channel) = &*channel {
            return Ok(channel.clone());
        }
        let made = connect(&self.endpoint, &self.dialer, CONNECT_WITHIN).await?;
        *channel = Some(made.clone());
        Ok(made)
    }

    async fn disconnect(&self) {
        *self.channel.lock().await = None;
        if let Some(stream) = self.stream.lock().await.take() {
            lock(&stream.inside).outbox = None;
        }
    }

    async fn stream(
        &self,
        ttls: &Arc<Mutex<BTreeMap<SessionNumber, Duration>>>,
    ) -> Result<Arc<RenewalStream>, CallError> {
        let mut stream = self.stream.lock().await;
        if let Some(stream) = stream.as_ref().filter(|stream| lock(&stream.inside).outbox.is_some()) {
            return Ok(stream.clone());
        }
        *stream = None;
        let channel = self.connected().await?;
        let (outbox, waiting) = mpsc::channel(MESSAGES_WAITING_MAX);
        let opened = StreamClient::new(channel).renewals(frames::outgoing(waiting)).await;
        let inbound = match opened {
            Ok(inbound) => inbound.into_inner(),
            Err(status) => {
                *self.channel.lock().await = None;
                return Err(failure(&self.endpoint, &status));
            }
        };
        let inside = StreamInside { outbox: Some(outbox), ..StreamInside::default() };
        let made = Arc::new(RenewalStream { inside: Mutex::new(inside) });
        tokio::spawn(take_in(made.clone(), inbound, ttls.clone(), self.endpoint.clone()));
        *stream = Some(made.clone());
        Ok(made)
    }
}

impl RenewalStream {
    /// Sends one message, and returns where its answer will come.
    fn send(
        &self,
        batch: u64,
        renewals: Vec<(SessionId, u64)>,
    ) -> Result<oneshot::Receiver<Answers>, &'static str> {
        let (reply, answer) = oneshot::channel();
        let mut inside = lock(&self.inside);
        let attach = renewals
            .iter()
            .filter(|(id, _)| !inside.attached.contains_key(&id.number))
            .map(|(id, _)| grpc::renewal_attach(*id))
            .collect();
        let plain: Vec<Renewal> =
            renewals.iter().map(|(id, number)| Renewal { session: id.number, number: *number }).collect();
        let frames = proto::RenewalFrames { attach, ..grpc::pack_renewals(batch, &plain) };
        if inside.outbox.as_ref().is_none_or(|outbox| outbox.try_send(frames).is_err()) {
            inside.outbox = None;
            return Err("the renewal stream is broken or does not keep up");
        }
        for renewal in &plain {
            inside.attached.entry(renewal.session).or_default();
        }
        inside.awaited.insert(batch, Awaited { renewals: plain, reply });
        Ok(answer)
    }
}

/// Hands answers out until the stream ends, then fails what is left.
async fn take_in(
    stream: Arc<RenewalStream>,
    mut inbound: Streaming<proto::RenewalAnswers>,
    ttls: Arc<Mutex<BTreeMap<SessionNumber, Duration>>>,
    endpoint: Endpoint,
) {
    let error = loop {
        match inbound.message().await {
            Ok(Some(answers)) => stream.answered(answers, &ttls),
            Ok(None) => break unanswered(&endpoint, "the server ended the renewal stream"),
            Err(status) => break unanswered(&endpoint, &root_cause(&status)),
        }
    };
    let mut inside = lock(&stream.inside);
    inside.outbox = None;
    let left = std::mem::take(&mut inside.awaited);
    drop(inside);
    for (_, awaited) in left {
        let _ = awaited.reply.send(Err(error.clone()));
    }
}

impl RenewalStream {
    fn answered(&self, answers: proto::RenewalAnswers, ttls: &Mutex<BTreeMap<SessionNumber, Duration>>) {
        let mut inside = lock(&self.inside);
        let Some(Awaited { renewals, reply }) = inside.awaited.remove(&answers.batch) else { return };
        if let Some(error) = answers.error {
            drop(inside);
            let _ = reply.send(Err(CallError::Refused(error.into())));
            return;
        }
        let said = answers.first..answers.first.saturating_add(answers.count);
        let unknown = grpc::unpack_positions(&answers.unknown);
        let unattached = grpc::unpack_positions(&answers.unattached);
        let mut spelled_out: BTreeMap<(u64, u64), proto::Renewed> =
            answers.renewed.into_iter().map(|said| ((said.session_number, said.number), said)).collect();
        let mut ttls = lock(ttls);
        let answers = renewals
            .iter()
            .zip(0u32..)
            .map(|(renewal, position)| {
                let session = renewal.session;
                if !said.contains(&position) {
                    return None;
                }
                if unattached.contains(&position) {
                    inside.attached.remove(&session);
                    return None;
                }
                if unknown.contains(&position) {
                    inside.attached.remove(&session);
                    ttls.remove(&session);
                    return Some(RenewalAnswer::UnknownSession);
                }
                let last_seen = inside.attached.entry(session).or_default();
                let Some(full) = spelled_out.remove(&(session.get(), renewal.number)) else {
                    // Nothing out of the ordinary: renewed under its number, with the TTL and the revision
                    // last sent.
                    let ttl = *ttls.get(&session)?;
                    return Some(RenewalAnswer::Renewed {
                        number: renewal.number,
                        ttl,
                        last_lease_revision: *last_seen,
                        events: None,
                    });
                };
                *last_seen = Revision::new(full.last_lease_revision);
                ttls.insert(session, Duration::from_millis(full.ttl_ms));
                // A list that cannot be read must not pass for an empty one.
                grpc::read_renewed(full).ok()
            })
            .collect();
        drop((inside, ttls));
        let _ = reply.send(Ok(answers));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Every change under these locks is complete in itself.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
