//! The side that listens: who may speak, and what becomes of what they say.

use super::frame::{self, Frame, FrameReader};
use super::handshake::{Hello, Loss, Purpose};
use super::link::Links;
use super::memory::Memory;
use super::message::{self, kind};
use super::network::{ForwardHandler, Listener, Stream};
use super::pipeline::Pipeline;
use super::places::Places;
use super::receiving::Receiving;
use crate::NodeId;
use crate::config::Execution;
use crate::data_dir::DataDir;
use crate::engine::{Engine, Member, Removed, Types, was_removed};
use crate::snapshot::SnapshotStore;
use bytes::Bytes;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::{AppendEntriesRequest, StreamAppendResult};
use parking_lot::{Mutex, RwLock};
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, BufWriter, WriteHalf};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::Instant;

/// How long a stranger may take to say who it is.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// How long a connection on which nothing happens is kept: a peer that vanished without a word must
/// not take a place for ever. One that only had nothing to say connects again.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// How many connections are open at a time, strangers included. A member has two at most; the rest is for those that
/// are being replaced, and for strangers, who go first (`places.rs`).
const CONNECTIONS_MAX: usize = 256;
/// How many requests of one connection are worked on at a time.
const REQUESTS_MAX: usize = 1024;

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
}

/// Accepts connections for as long as the returned task is not aborted.
pub(crate) fn listen(host: Arc<Host>, mut listener: Box<dyn Listener>) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        let places = Arc::new(Mutex::new(Places::<Arc<Notify>>::new(CONNECTIONS_MAX)));
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
                    let host = host.clone();
                    connections.spawn(async move {
                        let ended = tokio::select! {
                            biased;
                            () = close.notified() => Err(io::Error::other("it made room for another")),
                            ended = serve(host, stream, &place) => ended,
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
    /// It has said who it is, or has said something since.
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
pub(super) struct Answers(mpsc::UnboundedSender<Frame>);

impl Answers {
    /// Queues an answer. Their number is bounded by the calls that are worked on.
    pub fn send(&self, call: u64, kind: u8, body: Bytes) {
        // The connection may be gone; then nobody waits.
        let _ = self.0.send(Frame { kind, call, body });
    }
}

async fn serve(host: Arc<Host>, stream: Box<dyn Stream>, place: &Place) -> io::Result<()> {
    let (reader, writer) = tokio::io::split(stream);
    let (mut reader, mut writer) = (FrameReader::new(reader), BufWriter::with_capacity(64 << 10, writer));
    let shake = async {
        let hello = Hello::receive(&mut reader).await?;
        let (answer, welcome) = host.greet(&hello);
        answer.send(&mut writer).await?;
        io::Result::Ok((hello, welcome))
    };
    let timed_out = |_| io::Error::from(io::ErrorKind::TimedOut);
    let (hello, welcome) = tokio::time::timeout(HANDSHAKE_MAX, shake).await.map_err(timed_out)??;
    if !welcome || hello.purpose == Purpose::Probe {
        return Ok(());
    }
    place.note_contact();
    let (answers, queued) = mpsc::unbounded_channel();
    let mut connection = Connection {
        from: hello.from.node,
        cluster: hello.from.cluster,
        answers: Answers(answers),
        pipeline: None,
        receiving: None,
        permits: Arc::new(Semaphore::new(REQUESTS_MAX)),
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
    mut queued: mpsc::UnboundedReceiver<Frame>,
) -> io::Result<()> {
    while let Some(frame) = queued.recv().await {
        frame::write(&mut writer, &frame).await?;
        while let Ok(frame) = queued.try_recv() {
            frame::write(&mut writer, &frame).await?;
        }
        writer.flush().await?;
    }
    Ok(())
}

impl Host {
    /// Our answer to a hello: who we are, whom we remember, and whether we object; and whether we go on talking.
    fn greet(&self, hello: &Hello) -> (Hello, bool) {
        let ours = self.directory.identity();
        let remembered = self.remembered(hello.from.node);
        let mut answer = Hello::new(hello.purpose, ours, hello.from.node, self.memory.spoken.own());
        answer.remembered = remembered;
        let removed = remembered.is_none() && self.removed.contains(hello.from.node);
        let objection = hello.objection(ours, self.memory.spoken.own(), remembered);
        let objection = objection.or_else(|| self.memory.spoken.disagreement(hello));
        answer.refusal = objection.or_else(|| removed.then(|| was_removed(hello.from.node)));
        answer.log = Some(self.memory.log_end());
        answer.acknowledged = self.memory.acknowledged(hello.from.node);
        if answer.refusal.is_none() {
            match self.memory.loss(hello, ours) {
                // It is told what it has acknowledged instead of a refusal: then it finds out by itself, and stops.
                Some(Loss::Theirs(why)) => {
                    tracing::debug!(from = hello.from.node, %why, "a peer was turned away");
                    return (answer, false);
                }
                Some(Loss::Ours(why)) => answer.refusal = Some(why),
                None => {}
            }
        }
        if answer.refusal.is_none() && hello.purpose != Purpose::Probe {
            self.memory.spoken.receive(hello.from.node, hello.versions);
        }
        if let Some(refusal) = &answer.refusal {
            // Whoever was turned away says so loudly, once; it will try again many times.
            tracing::debug!(from = hello.from.node, %refusal, "a peer was turned away");
        }
        let welcome = answer.refusal.is_none();
        (answer, welcome)
    }

    /// The identity that the membership names for a node.
    fn remembered(&self, node: NodeId) -> Option<u128> {
        self.member(node).map(|member| member.identity)
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
    from: NodeId,
    cluster: Option<u128>,
    answers: Answers,
    pipeline: Option<Pipeline>,
    receiving: Option<Receiving>,
    permits: Arc<Semaphore>,
}

impl Connection {
    async fn handle(&mut self, frame: Frame) -> io::Result<()> {
        self.join()?;
        let Frame { kind, call, body } = frame;
        let engine = self.host.engine.clone();
        match kind {
            kind::APPEND => self.append(call, body.len(), message::decode_append(body)?).await?,
            kind::HEARTBEAT => {
                let request = message::decode_append(body)?;
                let (previous, last) = (request.prev_log_id, request.prev_log_id);
                self.spawn(call, async move {
                    let answer = engine.append_entries(request).await.map_err(io::Error::other)?;
                    let result: StreamAppendResult<Types> = answer.into_stream_result(previous, last);
                    Ok(message::encode_appended(&result))
                })
                .await;
            }
            kind::VOTE => {
                let request = message::decode_vote(body)?;
                self.spawn(call, async move {
                    let answer = engine.vote(request).await.map_err(io::Error::other)?;
                    Ok(message::encode_voted(&answer))
                })
                .await;
            }
            kind::PRE_VOTE => {
                let request = message::decode_vote(body)?;
                self.spawn(call, async move {
                    let answer = engine.pre_vote(request).await.map_err(io::Error::other)?;
                    Ok(message::encode_voted(&answer))
                })
                .await;
            }
            kind::TRANSFER => {
                let request = message::decode_transfer(body)?;
                self.spawn(call, async move {
                    let answer = engine.handle_transfer_leader(request).await.map_err(io::Error::other)?;
                    answer.map(|()| Bytes::new()).map_err(io::Error::other)
                })
                .await;
            }
            kind::SNAPSHOT_BEGIN => {
                message::decode_bare_vote(body)?;
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
                let missing = || io::Error::new(io::ErrorKind::InvalidData, "the end of no snapshot");
                let receiving = self.receiving.take().ok_or_else(missing)?;
                let execution = self.host.execution;
                self.spawn(call, async move {
                    let snapshot = execution.blocking(move || receiving.complete()).await?;
                    let installed = engine.install_full_snapshot(vote, snapshot.into_engine()).await;
                    Ok(message::encode_bare_vote(&installed.map_err(io::Error::other)?.vote))
                })
                .await;
            }
            kind::FORWARD => {
                let handler = self.host.handler.read().clone();
                let from = self.from;
                self.spawn(call, async move {
                    let handler =
                        handler.ok_or_else(|| io::Error::other("this node serves no requests yet"))?;
                    Ok(handler.handle(from, body).await)
                })
                .await;
            }
            kind::PING => self.answers.send(call, kind::ANSWER, Bytes::new()),
            kind::REACH => {
                let (links, from) = (self.host.links.clone(), self.from);
                let member = self.host.member(from);
                self.spawn(call, async move {
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
        self.permits.available_permits() == REQUESTS_MAX
    }

    /// A node without a cluster joins that of the first member that has checked its identity and
    /// goes on talking.
    fn join(&mut self) -> io::Result<()> {
        match self.cluster {
            Some(cluster) if self.host.directory.identity().cluster.is_none() => {
                self.host.directory.join(cluster)
            }
            _ => Ok(()),
        }
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
        let pipeline = Pipeline::start(&self.host.engine, self.answers.clone(), self.host.execution);
        let pushed = pipeline.push(call, bytes, request).await;
        self.pipeline = Some(pipeline);
        pushed.map_err(|_| io::Error::other("the engine takes no appends"))
    }

    /// Works on a call beside others. Past the limit the connection is read no further.
    async fn spawn(&self, call: u64, work: impl Future<Output = io::Result<Bytes>> + Send + 'static) {
        let permits = self.permits.clone();
        let permit = permits.acquire_owned().await.expect("the permits are never closed");
        let answers = self.answers.clone();
        tokio::spawn(async move {
            match work.await {
                Ok(body) => answers.send(call, kind::ANSWER, body),
                Err(error) => answers.send(call, kind::FAILED, error.to_string().into()),
            }
            drop(permit);
        });
    }
}
