//! The listening side: which peers are accepted, and how their requests are handled.

use super::frame::{self, Frame, FrameReader};
use super::handshake::{Hello, Loss, Purpose};
use super::link::Links;
use super::load::{Load, Share};
use super::memory::Memory;
use super::message::{self, kind};
use super::network::{ForwardHandler, Listener, Stream};
use super::pipeline::Pipeline;
use super::places::Places;
use super::receiving::Receiving;
use super::secure::PeerSecurity;
use super::standing::{Known, Standing};
use crate::NodeId;
use crate::config::Execution;
use crate::data_dir::{DataDir, Identity};
use crate::engine::{Engine, Member, Removed, Types, from_vote};
use crate::snapshot::SnapshotStore;
use bytes::Bytes;
use openraft::alias::VoteOf;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::{AppendEntriesRequest, StreamAppendResult};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tenure_tls::PeerProof;
use tokio::io::{AsyncWriteExt, BufWriter, WriteHalf};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::Instant;

/// How long a stranger may take to say who it is.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// How long a connection on which nothing happens is kept: a peer that vanished without a word must
/// not take a place for ever. One that only had nothing to say connects again.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// How many connections of those that have not been let in are open at a time. Members have their own (`places.rs`).
const STRANGERS_MAX: usize = 256;
/// How many connections one member has at a time: two, and those that they take the place of.
const PER_MEMBER_MAX: usize = 4;
/// How many speakers that this node does not know are asked about at a time.
const ASKED_ABOUT_MAX: usize = 2;

/// What every connection needs.
pub(crate) struct Host {
    pub engine: Engine,
    pub directory: Arc<DataDir>,
    pub links: Links,
    pub memory: Memory,
    pub removed: Removed,
    pub store: SnapshotStore,
    pub execution: Execution,
    pub handler: Arc<RwLock<Option<Arc<dyn ForwardHandler>>>>,
    /// The numbers that this node was started with.
    pub named: BTreeSet<NodeId>,
    pub security: PeerSecurity,
}

/// Accepts connections for as long as the returned task is not aborted.
pub(crate) fn listen(host: Arc<Host>, mut listener: Box<dyn Listener>) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        let places = Arc::new(Mutex::new(Places::<Arc<Notify>>::new(STRANGERS_MAX, PER_MEMBER_MAX)));
        let asked_about = Arc::new(Semaphore::new(ASKED_ABOUT_MAX));
        loop {
            let accepted = tokio::select! {
                biased;
                Some(_) = connections.join_next() => continue,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok(stream) => {
                    let close = Arc::new(Notify::new());
                    let (number, closed) = places.lock().admit(close.clone(), Instant::now());
                    if let Some(closed) = closed {
                        closed.notify_one();
                    }
                    let place = Place { places: places.clone(), number };
                    let (host, asked_about) = (host.clone(), asked_about.clone());
                    connections.spawn(async move {
                        let ended = tokio::select! {
                            biased;
                            () = close.notified() => Err(io::Error::other("it made room for another")),
                            ended = serve(host, stream, &place, &asked_about) => ended,
                        };
                        if let Err(error) = ended {
                            tracing::debug!(%error, "a peer's connection ended");
                        }
                    });
                }
                Err(error) => {
                    // Out of descriptors, most likely: let some go before trying again.
                    tracing::warn!(%error, "a peer's connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    })
}

/// The place of one connection; given back when dropped.
struct Place {
    places: Arc<Mutex<Places<Arc<Notify>>>>,
    number: u64,
}

impl Place {
    /// It has said who it is and was let in.
    fn let_in(&self, member: NodeId) {
        if let Some(closed) = self.places.lock().let_in(self.number, member, Instant::now()) {
            closed.notify_one();
        }
    }

    /// It has said something since.
    fn note_contact(&self) {
        self.places.lock().note_contact(self.number, Instant::now());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().left(self.number);
    }
}

/// The way back to the caller.
#[derive(Clone)]
pub(super) struct Answers(mpsc::UnboundedSender<(Frame, Option<Share>)>);

impl Answers {
    /// Queues an answer whose number is bounded by the calls that its sender works on, or that is no larger than its request.
    pub fn send(&self, call: u64, kind: u8, body: Bytes) {
        // The connection may be gone; then nobody waits.
        let _ = self.0.send((Frame { kind, call, body }, None));
    }

    /// Queues the answer to a request whose share of the load ends when the answer was handed to the connection.
    fn send_with(&self, call: u64, kind: u8, body: Bytes, share: Share) {
        let _ = self.0.send((Frame { kind, call, body }, Some(share)));
    }
}

async fn serve(
    host: Arc<Host>,
    stream: Box<dyn Stream>,
    place: &Place,
    asked_about: &Semaphore,
) -> io::Result<()> {
    let shake = async {
        let (stream, proof) = host.security.accept(stream).await?;
        let (reader, writer) = tokio::io::split(stream);
        let (mut reader, mut writer) = (FrameReader::new(reader), BufWriter::with_capacity(64 << 10, writer));
        let hello = Hello::receive(&mut reader).await?;
        let standing = host.standing_asked(&hello, proof, asked_about).await;
        let (answer, welcome) = host.greet(&hello, standing);
        answer.send(&mut writer).await?;
        if welcome && standing == Standing::Member {
            host.memory.proved(hello.from.node, hello.from.identity, proof);
        }
        io::Result::Ok((hello, proof, welcome, reader, writer))
    };
    let timed_out = |_| io::Error::from(io::ErrorKind::TimedOut);
    let shaken = tokio::time::timeout(HANDSHAKE_MAX, shake).await.map_err(timed_out)?;
    let (hello, proof, welcome, mut reader, writer) = shaken?;
    if !welcome || hello.purpose == Purpose::Probe {
        return Ok(());
    }
    place.let_in(hello.from.node);
    let (answers, queued) = mpsc::unbounded_channel();
    let mut connection = Connection {
        from: hello.from,
        proof,
        believed: None,
        answers: Answers(answers),
        pipeline: None,
        receiving: None,
        load: Load::new(),
        host,
    };
    reader.trust();
    let read = async {
        loop {
            match tokio::time::timeout(IDLE_MAX, reader.next()).await {
                Ok(frame) => {
                    let frame = frame?;
                    place.note_contact();
                    connection.handle(frame).await?;
                }
                Err(_) if connection.idle() => return Err(io::ErrorKind::TimedOut.into()),
                Err(_) => {}
            }
        }
    };
    let result = tokio::select! {
        biased;
        result = write(writer, queued) => result,
        result = read => result,
    };
    if let Some(receiving) = connection.receiving.take() {
        receiving.discard();
    }
    result
}

async fn write(
    mut writer: BufWriter<WriteHalf<Box<dyn Stream>>>,
    mut queued: mpsc::UnboundedReceiver<(Frame, Option<Share>)>,
) -> io::Result<()> {
    while let Some((frame, share)) = queued.recv().await {
        frame::write(&mut writer, &frame).await?;
        drop(share);
        while let Ok((frame, share)) = queued.try_recv() {
            frame::write(&mut writer, &frame).await?;
            drop(share);
        }
        writer.flush().await?;
    }
    Ok(())
}

impl Host {
    /// Our answer to a hello: who we are, whom we remember, and whether we object; and whether we go on talking.
    fn greet(&self, hello: &Hello, standing: Standing) -> (Hello, bool) {
        let (ours, from) = (self.directory.identity(), hello.from);
        let mut answer =
            Hello::new(hello.purpose, standing.identity_shown(ours), from.node, self.memory.spoken.own());
        answer.remembered = standing.own_identity_shown(from);
        let remembered = self.member(from.node).map(|member| member.identity);
        let objection = hello.objection(ours, self.memory.spoken.own(), remembered);
        let objection = objection.or_else(|| self.memory.spoken.disagreement(hello));
        let probe = hello.purpose == Purpose::Probe;
        answer.refusal = objection.or_else(|| standing.refusal(hello, ours.node, probe));
        if standing.may_speak() {
            answer.log = Some(self.memory.log_end());
            answer.acknowledged = self.memory.acknowledged(from.node);
        }
        if answer.refusal.is_none() && standing.may_speak() {
            match self.memory.loss(hello, ours) {
                // It is told what it has acknowledged instead of a refusal: then it finds out by itself, and
                // stops.
                Some(Loss::Theirs(why)) => {
                    tracing::debug!(from = from.node, %why, "a peer was turned away");
                    return (answer, false);
                }
                Some(Loss::Ours(why)) => answer.refusal = Some(why),
                None => {}
            }
        }
        if let Some(refusal) = &answer.refusal {
            // Whoever was turned away says so loudly, once; it will try again many times.
            tracing::debug!(from = from.node, %refusal, "a peer was turned away");
        }
        let welcome = answer.refusal.is_none() && standing.may_speak();
        if welcome && !probe {
            self.memory.spoken.receive(from.node, hello.versions);
        }
        (answer, welcome)
    }

    /// Who a speaker is to this node.
    fn standing(&self, from: Identity, proof: Option<PeerProof>) -> Standing {
        let metrics = self.engine.server_metrics();
        let membership = metrics.borrow_watched().membership_config.clone();
        let member = membership.membership().get_node(&from.node);
        let known = Known {
            remembered: member.map(|member| member.identity),
            key: member.and_then(|member| member.key),
            removed: self.removed.contains(from.node),
            forming: membership.membership().nodes().next().is_none(),
            named: self.named.contains(&from.node),
        };
        Standing::of(from, proof, known)
    }

    /// The same, after asking the members about one that this node does not know. A membership is entered before its
    /// newcomers speak, and a majority of those before them has it: so whoever belongs is known to a member that this
    /// node knows, unless all of them are gone. Only who knows the cluster and this node is asked about.
    async fn standing_asked(
        &self,
        hello: &Hello,
        proof: Option<PeerProof>,
        asked_about: &Semaphore,
    ) -> Standing {
        let (ours, standing) = (self.directory.identity(), self.standing(hello.from, proof));
        let in_the_know = ours.cluster.is_some()
            && hello.from.cluster == ours.cluster
            && hello.remembered == Some(ours.identity);
        if standing != Standing::Stranger || !in_the_know || hello.purpose == Purpose::Probe {
            return standing;
        }
        let _turn = asked_about.acquire().await;
        let metrics = self.engine.server_metrics();
        let membership = metrics.borrow_watched().membership_config.membership().clone();
        let others = membership.nodes().filter(|(node, _)| **node != ours.node);
        let key = proof.map(|proof| proof.key);
        match self.links.is_known_to(others, hello.from.node, hello.from.identity, key).await {
            true => Standing::Vouched,
            false => standing,
        }
    }

    /// A member, as the membership names it.
    fn member(&self, node: NodeId) -> Option<Member> {
        let metrics = self.engine.server_metrics();
        let membership = metrics.borrow_watched().membership_config.clone();
        membership.membership().get_node(&node).cloned()
    }
}

/// One connection, after its handshake.
struct Connection {
    host: Arc<Host>,
    from: Identity,
    proof: Option<PeerProof>,
    /// The term that was last found to be plausible.
    believed: Option<u64>,
    answers: Answers,
    pipeline: Option<Pipeline>,
    receiving: Option<Receiving>,
    load: Load,
}

impl Connection {
    async fn handle(&mut self, frame: Frame) -> io::Result<()> {
        self.join()?;
        let Frame { kind, call, body } = frame;
        let bytes = body.len();
        let engine = self.host.engine.clone();
        match kind {
            kind::APPEND => {
                let request = message::decode_append(body)?;
                self.believe(&request.vote)?;
                self.append(call, bytes, request).await?;
            }
            kind::HEARTBEAT => {
                let request = message::decode_append(body)?;
                self.believe(&request.vote)?;
                let (previous, last) = (request.prev_log_id, request.prev_log_id);
                self.spawn(call, bytes, async move {
                    let answer = engine.append_entries(request).await.map_err(io::Error::other)?;
                    let result: StreamAppendResult<Types> = answer.into_stream_result(previous, last);
                    Ok(message::encode_appended(&result))
                })
                .await;
            }
            kind::VOTE => {
                let request = message::decode_vote(body)?;
                self.believe(&request.vote)?;
                self.spawn(call, bytes, async move {
                    let answer = engine.vote(request).await.map_err(io::Error::other)?;
                    Ok(message::encode_voted(&answer))
                })
                .await;
            }
            kind::PRE_VOTE => {
                let request = message::decode_vote(body)?;
                self.believe(&request.vote)?;
                self.spawn(call, bytes, async move {
                    let answer = engine.pre_vote(request).await.map_err(io::Error::other)?;
                    Ok(message::encode_voted(&answer))
                })
                .await;
            }
            kind::TRANSFER => {
                let request = message::decode_transfer(body)?;
                self.believe(request.from_leader())?;
                self.spawn(call, bytes, async move {
                    let answer = engine.handle_transfer_leader(request).await.map_err(io::Error::other)?;
                    answer.map(|()| Bytes::new()).map_err(io::Error::other)
                })
                .await;
            }
            kind::SNAPSHOT_BEGIN => {
                self.believe(&message::decode_bare_vote(body)?)?;
                if let Some(interrupted) = self.receiving.take() {
                    interrupted.discard();
                }
                self.receiving = Some(Receiving::begin(&self.host.store)?);
                self.answers.send(call, kind::ANSWER, Bytes::new());
            }
            kind::SNAPSHOT_PIECE => {
                let (offset, bytes) = message::decode_piece(body)?;
                let missing = || io::Error::new(io::ErrorKind::InvalidData, "a piece of no snapshot");
                let receiving = self.receiving.take().ok_or_else(missing)?;
                let added = self.host.execution.blocking(move || receiving.add(offset, &bytes)).await?;
                self.receiving = Some(added);
                self.answers.send(call, kind::ANSWER, Bytes::new());
            }
            kind::SNAPSHOT_END => {
                let vote = message::decode_bare_vote(body)?;
                self.believe(&vote)?;
                let missing = || io::Error::new(io::ErrorKind::InvalidData, "the end of no snapshot");
                let receiving = self.receiving.take().ok_or_else(missing)?;
                let execution = self.host.execution;
                self.spawn(call, bytes, async move {
                    let snapshot = execution.blocking(move || receiving.complete()).await?;
                    let installed = engine.install_full_snapshot(vote, snapshot.into_engine()).await;
                    Ok(message::encode_bare_vote(&installed.map_err(io::Error::other)?.vote))
                })
                .await;
            }
            kind::FORWARD => {
                // Asked each time: a connection outlives the membership of whoever opened it.
                if !self.host.standing(self.from, self.proof).may_forward() {
                    let refusal = format!("node {} is no member, and only members forward", self.from.node);
                    self.answers.send(call, kind::FAILED, refusal.into());
                    return Ok(());
                }
                let handler = self.host.handler.read().clone();
                let from = self.from.node;
                self.spawn(call, bytes, async move {
                    let handler =
                        handler.ok_or_else(|| io::Error::other("this node serves no requests yet"))?;
                    Ok(handler.handle(from, body).await)
                })
                .await;
            }
            kind::PING => self.answers.send(call, kind::ANSWER, Bytes::new()),
            kind::KNOWS => {
                let (node, identity, key) = message::decode_knows(body)?;
                let asked = Identity { node, identity, cluster: None };
                let proof = key.map(|key| PeerProof { node, key });
                let known = self.host.standing(asked, proof) == Standing::Member;
                self.answers.send(call, kind::ANSWER, vec![known.into()].into());
            }
            kind::REACH => {
                let (links, from) = (self.host.links.clone(), self.from.node);
                let member = self.host.member(from);
                self.spawn(call, bytes, async move {
                    let member = member.ok_or_else(|| io::Error::other("the one that asks is no member"))?;
                    let reached = links.reaches(from, &member).await;
                    let vote = engine.server_metrics().borrow_watched().vote;
                    Ok([&[reached.into()], &message::encode_bare_vote(&vote)[..]].concat().into())
                })
                .await;
            }
            // A newer peer that asks for something we do not know, although the versions overlap.
            other => self.answers.send(call, kind::FAILED, format!("unknown call {other}").into()),
        }
        Ok(())
    }

    /// Whether no call of this connection is being worked on.
    fn idle(&self) -> bool {
        self.load.is_idle()
    }

    /// A node without a cluster has joined the speaker's as soon as the membership names both of them. What the speaker
    /// says of its cluster is not enough: it would be for ever.
    fn join(&mut self) -> io::Result<()> {
        let Some(cluster) = self.from.cluster else { return Ok(()) };
        let ours = self.host.directory.identity();
        let joins = ours.cluster.is_none()
            && self.host.standing(ours, None) == Standing::Member
            && self.host.standing(self.from, self.proof) == Standing::Member;
        if joins {
            self.host.directory.join(cluster)?;
        }
        if joins || ours.cluster.is_some() {
            // Nothing is left to be done by the frames that follow.
            self.from.cluster = None;
        }
        Ok(())
    }

    /// Checks a vote before the engine sees it: its term is never forgotten. A speaker speaks for itself.
    fn believe(&mut self, vote: &VoteOf<Types>) -> io::Result<()> {
        let vote = from_vote(vote);
        if vote.node != self.from.node {
            let what = format!("node {} speaks for node {}", self.from.node, vote.node);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        if self.believed != Some(vote.term) {
            self.host.memory.plausible(self.from.node, vote.term)?;
            self.believed = Some(vote.term);
        }
        Ok(())
    }

    /// Hands an append to the current run of them, or begins another if that one has ended. A fresh run
    /// that takes nothing means that the engine, or the whole runtime, is going down: the connection
    /// ends with it. (Trying again here once kept a runtime from ever shutting down.)
    async fn append(
        &mut self,
        call: u64,
        bytes: usize,
        request: AppendEntriesRequest<Types>,
    ) -> io::Result<()> {
        let request = match &self.pipeline {
            Some(pipeline) => match pipeline.push(call, bytes, request).await {
                Ok(()) => return Ok(()),
                Err(request) => request,
            },
            None => request,
        };
        let pipeline =
            Pipeline::start(&self.host.engine, self.answers.clone(), self.host.links.low_latency());
        let pushed = pipeline.push(call, bytes, request).await;
        self.pipeline = Some(pipeline);
        pushed.map_err(|_| io::Error::other("the engine takes no appends"))
    }

    /// Works on a call beside others. Past the limit the connection is read no further.
    async fn spawn(
        &self,
        call: u64,
        bytes: usize,
        work: impl Future<Output = io::Result<Bytes>> + Send + 'static,
    ) {
        let share = self.load.admit(bytes).await;
        let answers = self.answers.clone();
        tokio::spawn(async move {
            match work.await {
                Ok(body) => answers.send_with(call, kind::ANSWER, body, share),
                Err(error) => answers.send_with(call, kind::FAILED, error.to_string().into(), share),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, duplex};

    /// A peer that asks and does not read must not pile up answers here.
    #[tokio::test]
    async fn a_request_counts_until_the_connection_took_its_answer() {
        let (ours, mut theirs) = duplex(1 << 10);
        let (_, writer) = tokio::io::split(Box::new(ours) as Box<dyn Stream>);
        let (sender, queued) = mpsc::unbounded_channel();
        let (answers, load) = (Answers(sender), Load::new());
        let share = load.admit(1).await;
        answers.send_with(1, kind::ANSWER, vec![0; 1 << 20].into(), share);
        let writing = tokio::spawn(write(BufWriter::with_capacity(64 << 10, writer), queued));
        let mut piece = vec![0; 4 << 10];
        theirs.read_exact(&mut piece).await.unwrap();
        assert!(!load.is_idle(), "most of the answer is still here");
        let mut rest = vec![0; (1 << 20) + 13 - piece.len()];
        theirs.read_exact(&mut rest).await.unwrap();
        drop(answers);
        writing.await.unwrap().unwrap();
        assert!(load.is_idle());
    }
}
