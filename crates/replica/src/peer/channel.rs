//! An outgoing connection: calls in order, answers as they come.
//!
//! It is opened when there is something to send, checked by a handshake, and closed when the other side owes
//! an answer and stays silent. Calls that wait for an answer then fail immediately; the engine decides
//! whether to repeat them.

use super::frame::{self, Frame, FrameReader};
use super::handshake::{Hello, Loss, Purpose};
use super::memory::Memory;
use super::message::kind;
use super::network::{Network, Stream};
use super::secure::PeerSecurity;
use super::standing::other_key;
use crate::NodeId;
use crate::data_dir::DataDir;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tenure_tls::PeerProof;
use tokio::io::{AsyncWriteExt, BufWriter, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// Whom to talk to, and as whom.
#[derive(Clone)]
pub(crate) struct Target {
    pub network: Arc<dyn Network>,
    pub security: PeerSecurity,
    pub directory: Arc<DataDir>,
    pub memory: Memory,
    pub node: NodeId,
    pub address: String,
    /// The identity that the membership names; none if there is no membership to name one.
    pub identity: Option<u128>,
    /// How long connecting may take, and how long silence may last while an answer is due.
    pub patience: Duration,
}

/// Calls under way below which there is nothing worth forgetting.
const SWEEP_MIN: usize = 64;

type ReplySender = oneshot::Sender<io::Result<Bytes>>;

struct Call {
    kind: u8,
    body: Bytes,
    /// Nobody waits for the answer longer than this, so it is not sent later either.
    until: Instant,
    answer: ReplySender,
}

impl Call {
    fn is_overdue(&self) -> bool {
        self.answer.is_closed() || Instant::now() >= self.until
    }
}

/// Calls that were sent and not answered, by number.
#[derive(Default)]
struct Owed {
    next: u64,
    sweep_at: usize,
    answers: BTreeMap<u64, ReplySender>,
}

impl Owed {
    /// Numbers a call. Answers that nobody waits for any more are forgotten whenever their number may have
    /// doubled, so that a call costs the same however many are under way.
    fn enter(&mut self, answer: ReplySender) -> u64 {
        if self.answers.len() >= self.sweep_at {
            self.answers.retain(|_, answer| !answer.is_closed());
            self.sweep_at = 2 * self.answers.len().max(SWEEP_MIN);
        }
        self.next += 1;
        self.answers.insert(self.next, answer);
        self.next
    }
}

/// The way to one peer. The connection is closed when all clones are gone.
#[derive(Clone)]
pub(crate) struct Channel(mpsc::UnboundedSender<Call>);

impl Channel {
    pub fn open(target: Target, purpose: Purpose) -> Self {
        let (sender, calls) = mpsc::unbounded_channel();
        tokio::spawn(serve(target, purpose, calls, sender.downgrade()));
        Self(sender)
    }

    /// Sends a call, now, in the order of these calls; the future is its answer, or a timeout.
    pub fn call(
        &self,
        kind: u8,
        body: Bytes,
        deadline: Duration,
    ) -> impl Future<Output = io::Result<Bytes>> + Send + 'static + use<> {
        let (answer, receiver) = oneshot::channel();
        let until = Instant::now() + deadline;
        let sent = self.0.send(Call { kind, body, until, answer });
        async move {
            sent.map_err(|_| io::Error::from(io::ErrorKind::NotConnected))?;
            match tokio::time::timeout_at(until, receiver).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => Err(io::ErrorKind::ConnectionReset.into()),
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }
}

async fn serve(
    target: Target,
    purpose: Purpose,
    mut calls: mpsc::UnboundedReceiver<Call>,
    own: mpsc::WeakUnboundedSender<Call>,
) {
    let mut last_refusal = String::new();
    let mut reachable = true;
    // Both connections to a peer fail together; one of them tells.
    let tells = purpose == Purpose::Consensus;
    while let Some(first) = calls.recv().await {
        if first.is_overdue() {
            continue;
        }
        match connect(&target, purpose).await {
            Ok((reader, writer)) => {
                if !std::mem::replace(&mut reachable, true) && tells {
                    tracing::info!(node = target.node, "a peer is reached again");
                }
                let owed = Arc::new(Mutex::new(Owed::default()));
                let error = tokio::select! {
                    biased;
                    error = receive(reader, owed.clone(), target.patience, &own) => error,
                    error = send(writer, owed.clone(), first, &mut calls) => error,
                };
                tracing::debug!(node = target.node, ?purpose, %error, "a peer connection ended");
                // Dropping what is owed tells everybody who waits.
            }
            Err(error) => {
                // Tried many times a second; logged once.
                let refusal = error.to_string();
                if error.kind() == io::ErrorKind::PermissionDenied && refusal != last_refusal {
                    tracing::warn!(node = target.node, %refusal, "no connection to a peer");
                    last_refusal = refusal;
                }
                let changed = std::mem::replace(&mut reachable, false) && tells;
                if changed && error.kind() != io::ErrorKind::PermissionDenied {
                    tracing::warn!(node = target.node, address = %target.address, %error, "a peer cannot be reached");
                }
                let _ = first.answer.send(Err(io::Error::new(error.kind(), error.to_string())));
                // Those that queued up meanwhile would only find the same.
                while let Ok(call) = calls.try_recv() {
                    let _ = call.answer.send(Err(io::Error::new(error.kind(), error.to_string())));
                }
            }
        }
    }
}

type Halves = (FrameReader<ReadHalf<Box<dyn Stream>>>, BufWriter<WriteHalf<Box<dyn Stream>>>);

/// Connects and shakes hands, within the patience.
async fn connect(target: &Target, purpose: Purpose) -> io::Result<Halves> {
    let attempt = async {
        let (stream, proof) = target.security.connect(&*target.network, &target.address).await?;
        // Before anything is said: who is asked by mistake, or in the place of another, learns nothing.
        if let Some(why) = proof.and_then(|proof| mistaken(target, proof)) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let (reader, writer) = tokio::io::split(stream);
        let (mut reader, mut writer) = (FrameReader::new(reader), BufWriter::with_capacity(64 << 10, writer));
        let ours = target.directory.identity();
        let mut hello = Hello::new(purpose, ours, target.node, target.memory.spoken.own());
        hello.remembered = target.identity;
        hello.log = Some(target.memory.log_end());
        hello.acknowledged = target.memory.acknowledged(target.node);
        hello.send(&mut writer).await?;
        let answer = Hello::receive(&mut reader).await?;
        io::Result::Ok((reader, writer, answer, proof))
    };
    let timed_out = |_| io::Error::from(io::ErrorKind::TimedOut);
    let (mut reader, writer, answer, proof) =
        tokio::time::timeout(target.patience, attempt).await.map_err(timed_out)??;
    let objection =
        answer.objection(target.directory.identity(), target.memory.spoken.own(), target.identity);
    let loss = || match target.memory.loss(&answer, target.directory.identity())? {
        Loss::Ours(why) | Loss::Theirs(why) => Some(why),
    };
    let disagreement = || target.memory.spoken.disagreement(&answer);
    match answer.refusal.clone().or(objection).or_else(disagreement).or_else(loss) {
        None => {
            target.memory.spoken.receive(answer.from.node, answer.versions);
            if target.identity == Some(answer.from.identity) {
                target.memory.proved(target.node, answer.from.identity, proof);
            }
            reader.trust();
            Ok((reader, writer))
        }
        Some(refusal) => Err(io::Error::new(io::ErrorKind::PermissionDenied, refusal)),
    }
}

/// Why the one that was reached is not the one that was meant, if it is not.
fn mistaken(target: &Target, proof: PeerProof) -> Option<String> {
    let Target { node, address, .. } = target;
    if proof.node != *node {
        return Some(format!(
            "the certificate at {address} is that of node {}, not of node {node}: look at the peer addresses",
            proof.node
        ));
    }
    let known = target.memory.key_of(*node)?;
    (known != proof.key).then(|| other_key(*node))
}

/// Hands answers to those who wait, until the connection ends or falls silent.
async fn receive(
    mut reader: FrameReader<ReadHalf<Box<dyn Stream>>>,
    owed: Arc<Mutex<Owed>>,
    patience: Duration,
    own: &mpsc::WeakUnboundedSender<Call>,
) -> io::Error {
    // Held so that the ping counts as a call that somebody waits for.
    let mut ping = None;
    loop {
        match tokio::time::timeout(patience, reader.next()).await {
            Ok(Ok(frame)) => {
                ping = None;
                let Some(answer) = owed.lock().answers.remove(&frame.call) else { continue };
                let result = match frame.kind {
                    kind::ANSWER => Ok(frame.body),
                    _ => Err(io::Error::other(String::from_utf8_lossy(&frame.body).into_owned())),
                };
                let _ = answer.send(result);
            }
            Ok(Err(error)) => return error,
            Err(_) if ping.is_some() => return io::ErrorKind::TimedOut.into(),
            // Silence while an answer is due: it may only take its time. Ask whether anybody is there.
            Err(_) if !owed.lock().answers.is_empty() => {
                let (answer, receiver) = oneshot::channel();
                let until = Instant::now() + patience;
                let call = Call { kind: kind::PING, body: Bytes::new(), until, answer };
                match own.upgrade() {
                    Some(own) if own.send(call).is_ok() => ping = Some(receiver),
                    _ => return io::ErrorKind::NotConnected.into(),
                }
            }
            Err(_) => {}
        }
    }
}

/// Sends calls, flushing whenever there is no other to send with it.
async fn send(
    mut writer: BufWriter<WriteHalf<Box<dyn Stream>>>,
    owed: Arc<Mutex<Owed>>,
    first: Call,
    calls: &mut mpsc::UnboundedReceiver<Call>,
) -> io::Error {
    let mut next = Some(first);
    loop {
        let call = match next.take() {
            Some(call) => call,
            None => {
                if let Err(error) = writer.flush().await {
                    return error;
                }
                match calls.recv().await {
                    Some(call) => call,
                    None => return io::ErrorKind::NotConnected.into(),
                }
            }
        };
        if !call.is_overdue() {
            let number = owed.lock().enter(call.answer);
            let frame = Frame { kind: call.kind, call: number, body: call.body };
            if let Err(error) = frame::write(&mut writer, &frame).await {
                return error;
            }
        }
        next = calls.try_recv().ok();
    }
}
