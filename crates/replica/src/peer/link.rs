//! The engine's network: calls to peers, over channels that all its clients share.

use super::channel::{Channel, Target};
use super::handshake::{Purpose, Spoken};
use super::message::{self, kind};
use super::network::Network;
use crate::NodeId;
use crate::config::{Execution, Timing};
use crate::data_dir::DataDir;
use crate::engine::{Member, Types};
use crate::snapshot::SnapshotFile;
use bytes::Bytes;
use futures_util::future::{BoxFuture, Either, select};
use futures_util::stream::{BoxStream, FuturesOrdered};
use futures_util::{Stream, StreamExt};
use openraft::StorageError;
use openraft::alias::{LogIdOf, SnapshotOf, VoteOf};
use openraft::entry::RaftEntry;
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long news of a commit waits for entries to ride with. Every message wakes two processes, and the next
/// entry is often right behind; a follower that applies a millisecond later disturbs nobody.
const COMMIT_HELD: Duration = Duration::from_millis(1);
/// How many appends are on their way to one follower at a time.
const APPENDS_IN_FLIGHT_MAX: usize = 32;
/// How much of a snapshot is sent at a time.
const PIECE_BYTES: usize = 256 << 10;

/// The channels to all peers. Clones share them.
#[derive(Clone)]
pub(crate) struct Links(Arc<Shared>);

struct Shared {
    network: Arc<dyn Network>,
    directory: Arc<DataDir>,
    spoken: Arc<Spoken>,
    execution: Execution,
    patience: Duration,
    peers: Mutex<BTreeMap<NodeId, Peer>>,
}

#[derive(Clone)]
struct Peer {
    member: Member,
    consensus: Channel,
    bulk: Channel,
}

impl Links {
    pub fn new(
        network: Arc<dyn Network>,
        directory: Arc<DataDir>,
        spoken: Arc<Spoken>,
        timing: Timing,
        execution: Execution,
    ) -> Self {
        let peers = Mutex::default();
        let patience = timing.election_max;
        Self(Arc::new(Shared { network, directory, spoken, execution, patience, peers }))
    }

    /// The channels to a member; new ones if it has moved.
    fn peer(&self, node: NodeId, member: &Member) -> Peer {
        let mut peers = self.0.peers.lock();
        if let Some(peer) = peers.get(&node).filter(|peer| peer.member == *member) {
            return peer.clone();
        }
        let target = Target {
            network: self.0.network.clone(),
            directory: self.0.directory.clone(),
            spoken: self.0.spoken.clone(),
            node,
            address: member.address.clone(),
            identity: Some(member.identity),
            patience: self.0.patience,
        };
        let consensus = Channel::open(target.clone(), Purpose::Consensus);
        let bulk = Channel::open(target, Purpose::Bulk);
        let peer = Peer { member: member.clone(), consensus, bulk };
        peers.insert(node, peer.clone());
        peer
    }

    /// Sends a forwarded request.
    pub async fn forward(
        &self,
        node: NodeId,
        member: &Member,
        request: Bytes,
        deadline: Duration,
    ) -> io::Result<Bytes> {
        self.peer(node, member).bulk.call(kind::FORWARD, request, deadline).await
    }

    /// Closes all connections.
    pub fn close(&self) {
        self.0.peers.lock().clear();
    }
}

impl RaftNetworkFactory<Types> for Links {
    type Network = Link;

    async fn new_client(&mut self, node: NodeId, member: &Member) -> Link {
        Link { links: self.clone(), peer: self.peer(node, member), append: kind::APPEND }
    }

    /// A heartbeat must not wait behind appends that wait for a disk.
    async fn new_heartbeat_client(&mut self, node: NodeId, member: &Member) -> Link {
        Link { append: kind::HEARTBEAT, ..self.new_client(node, member).await }
    }
}

/// One of the engine's clients for one peer.
pub(crate) struct Link {
    links: Links,
    peer: Peer,
    append: u8,
}

impl Link {
    /// Answers to appends come after the follower's disk: no sooner than the patience is it lost.
    fn append_deadline(&self, option: &RPCOption) -> Duration {
        match self.append {
            kind::HEARTBEAT => option.soft_ttl(),
            _ => option.soft_ttl().max(self.links.0.patience),
        }
    }

    async fn ask(&self, kind: u8, body: Bytes, deadline: Duration) -> Result<Bytes, RPCError<Types>> {
        self.peer.consensus.call(kind, body, deadline).await.map_err(lost)
    }

    async fn send_snapshot(
        &self,
        vote: VoteOf<Types>,
        snapshot: SnapshotFile,
        deadline: Duration,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let bulk = &self.peer.bulk;
        let patience = self.links.0.patience.max(Duration::from_secs(2));
        let vote = message::encode_bare_vote(&vote);
        bulk.call(kind::SNAPSHOT_BEGIN, vote.clone(), patience).await.map_err(lost)?;
        let file = snapshot.bytes().clone();
        let length = file.len().map_err(unreadable)?;
        let mut offset = 0;
        while offset < length {
            let file = file.clone();
            let bytes = (length - offset).min(PIECE_BYTES as u64) as usize;
            let read = move || {
                let mut piece = vec![0; bytes];
                file.read_at(&mut piece, offset).map(|()| piece)
            };
            let piece = self.links.0.execution.blocking(read).await.map_err(unreadable)?;
            let body = message::encode_piece(offset, &piece);
            bulk.call(kind::SNAPSHOT_PIECE, body, patience).await.map_err(lost)?;
            offset += bytes as u64;
        }
        let answer = bulk.call(kind::SNAPSHOT_END, vote, deadline).await.map_err(lost)?;
        let vote = message::decode_bare_vote(answer).map_err(lost)?;
        Ok(SnapshotResponse::new(vote))
    }
}

impl RaftNetworkV2<Types> for Link {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        let body = message::encode_append(request);
        let answer = self.ask(self.append, body, self.append_deadline(&option)).await?;
        Ok(message::decode_appended(answer).map_err(lost)?.into())
    }

    /// Sends requests as they come, without waiting for the answers to those before: the channel and
    /// the other side keep their order.
    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<
        's,
        Result<BoxStream<'s, Result<StreamAppendResult<Types>, RPCError<Types>>>, RPCError<Types>>,
    >
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + Send + Unpin + 'static,
    {
        let deadline = self.append_deadline(&option);
        let flow = Flow {
            channel: self.peer.consensus.clone(),
            kind: self.append,
            deadline,
            input: Some(input),
            answers: FuturesOrdered::new(),
            sent: None,
            held: None,
        };
        let stream = futures_util::stream::unfold(Some(flow), |flow| async move {
            let mut flow = flow?;
            let result = flow.next().await?;
            // What follows a failure would only fail as well.
            let goes_on = matches!(result, Ok(Ok(_)));
            Some((result, goes_on.then_some(flow)))
        });
        Box::pin(async move { Ok(Box::pin(stream) as BoxStream<'s, _>) })
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let answer = self.ask(kind::VOTE, message::encode_vote(&request), option.soft_ttl()).await?;
        message::decode_voted(answer).map_err(lost)
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let answer = self.ask(kind::PRE_VOTE, message::encode_vote(&request), option.soft_ttl()).await?;
        message::decode_voted(answer).map_err(lost)
    }

    async fn full_snapshot(
        &mut self,
        vote: VoteOf<Types>,
        snapshot: SnapshotOf<Types, SnapshotFile>,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let send = self.send_snapshot(vote, snapshot.snapshot, option.soft_ttl());
        match select(std::pin::pin!(cancel), std::pin::pin!(send)).await {
            Either::Left((closed, _)) => Err(StreamingError::Closed(closed)),
            Either::Right((sent, _)) => sent,
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        self.ask(kind::TRANSFER, message::encode_transfer(&request), option.soft_ttl()).await?;
        Ok(Ok(()))
    }
}

type Appended = Result<StreamAppendResult<Types>, RPCError<Types>>;

/// Appends on their way, oldest first.
struct Flow<S> {
    channel: Channel,
    kind: u8,
    deadline: Duration,
    input: Option<S>,
    answers: FuturesOrdered<BoxFuture<'static, io::Result<Bytes>>>,
    /// The last entry that was sent in this run.
    sent: Option<LogIdOf<Types>>,
    /// News of a commit and nothing else, and until when it may wait for entries to ride with.
    held: Option<(Append, Instant)>,
}

type Append = AppendEntriesRequest<Types>;

impl<S: Stream<Item = Append> + Send + Unpin + 'static> Flow<S> {
    /// The next answer; meanwhile, requests go out as they come in.
    async fn next(&mut self) -> Option<Appended> {
        loop {
            if self.answers.is_empty() && self.input.is_none() && self.held.is_none() {
                return None;
            }
            let may_send = self.answers.len() < APPENDS_IN_FLIGHT_MAX;
            let input = async {
                match &mut self.input {
                    Some(input) if may_send => input.next().await,
                    _ => std::future::pending().await,
                }
            };
            let until = self.held.as_ref().map(|(_, until)| *until);
            let held_long_enough = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            let request = tokio::select! {
                biased;
                Some(answer) = self.answers.next() => {
                    return Some(answer.and_then(message::decode_appended).map_err(lost));
                }
                request = input => request,
                () = held_long_enough => {
                    self.send_held();
                    continue;
                }
            };
            match request {
                Some(request) if self.tells_of_a_commit_only(&request) => {
                    let until = until.unwrap_or_else(|| Instant::now() + COMMIT_HELD);
                    self.held = Some((request, until));
                }
                // Whatever is held tells less than this one, and needs no answer: the engine counts by
                // entries, not by requests.
                Some(request) => {
                    self.held = None;
                    self.send(request);
                }
                None => {
                    self.input = None;
                    self.send_held();
                }
            }
        }
    }

    /// Whether everything up to the request's place was sent in this run already, so that nobody waits
    /// for its answer. At the start of a run the engine asks for the other's place with such a request.
    fn tells_of_a_commit_only(&self, request: &Append) -> bool {
        request.entries.is_empty() && self.sent.is_some() && request.prev_log_id == self.sent
    }

    fn send_held(&mut self) {
        if let Some((request, _)) = self.held.take() {
            self.send(request);
        }
    }

    fn send(&mut self, request: Append) {
        if let Some(last) = request.entries.last() {
            self.sent = Some(last.log_id());
        }
        let body = message::encode_append(request);
        self.answers.push_back(Box::pin(self.channel.call(self.kind, body, self.deadline)));
    }
}

/// Everything that can go wrong on the way looks the same to the engine: wait a little, try again.
fn lost(error: io::Error) -> RPCError<Types> {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::Other => RPCError::Network(NetworkError::new(&error)),
        _ => RPCError::Unreachable(Unreachable::new(&error)),
    }
}

fn unreadable(error: io::Error) -> StreamingError<Types> {
    StreamingError::StorageError(StorageError::from_io_error(
        openraft::ErrorSubject::Snapshot(None),
        openraft::ErrorVerb::Read,
        error,
    ))
}
