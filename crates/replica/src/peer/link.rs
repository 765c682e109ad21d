//! The engine's network: calls to peers, over channels that all its clients share.

use super::channel::{Channel, Target};
use super::handshake::Purpose;
use super::memory::Memory;
use super::message::{self, kind};
use super::network::Network;
use super::secure::PeerSecurity;
use crate::NodeId;
use crate::alarm::Alarm;
use crate::config::{Execution, RaftTiming};
use crate::data_dir::DataDir;
use crate::engine::{Member, Types, from_log_id, from_vote};
use crate::low_latency::{FollowerRanks, HoldTimes, LowLatency, yield_to_ready_tasks};
use crate::snapshot::SnapshotFile;
use bytes::{Buf, Bytes};
use futures_util::future::{BoxFuture, Either, select};
use futures_util::stream::{BoxStream, FuturesOrdered, FuturesUnordered};
use futures_util::{Stream, StreamExt};
use openraft::StorageError;
use openraft::alias::{LogIdOf, SnapshotOf, VoteOf};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::entry::RaftEntry;
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendError, StreamAppendResult,
    TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tenure_tls::KeyHash;
use tokio::time::Instant;

/// How long a commit notice may wait for the next entry, with which it costs no message of its own.
const COMMIT_NOTICE_DELAY: Duration = Duration::from_millis(1);
/// How many entries wait together, at most, for a follower that the majority does not need.
const HELD_ENTRIES_MAX: usize = 64;
/// How many appends are on their way to one follower at a time.
const APPENDS_IN_FLIGHT_MAX: usize = 32;
/// How much of a snapshot is sent at a time.
const PIECE_BYTES: usize = 256 << 10;

/// The channels to all peers. Clones share them.
#[derive(Clone)]
pub(crate) struct Links(Arc<Shared>);

struct Shared {
    network: Arc<dyn Network>,
    security: PeerSecurity,
    directory: Arc<DataDir>,
    memory: Memory,
    execution: Execution,
    patience: Duration,
    peers: Mutex<BTreeMap<NodeId, Peer>>,
    low_latency: LowLatency,
}

#[derive(Clone)]
struct Peer {
    member: Member,
    consensus: Channel,
    bulk: Channel,
}

impl Links {
    pub fn new(
        (network, security): (Arc<dyn Network>, PeerSecurity),
        directory: Arc<DataDir>,
        memory: Memory,
        timing: RaftTiming,
        execution: Execution,
        low_latency: LowLatency,
    ) -> Self {
        Self(Arc::new(Shared {
            network,
            security,
            directory,
            memory,
            execution,
            patience: timing.election_max,
            peers: Mutex::default(),
            low_latency,
        }))
    }

    /// How long an entry for a follower may wait, if it may.
    fn may_wait(&self, node: NodeId, now: Instant) -> Option<Duration> {
        let members = self.0.memory.members()?;
        let own_and_voters = || {
            let metrics = members.borrow_watched();
            (metrics.id, metrics.membership_config.voter_ids().collect())
        };
        self.0.low_latency.hold(node, own_and_voters, now)
    }

    /// What this replica shares of low-latency mode.
    pub fn low_latency(&self) -> LowLatency {
        self.0.low_latency.clone()
    }

    /// The channels to a member; new ones if it has moved.
    fn peer(&self, node: NodeId, member: &Member) -> Peer {
        let mut peers = self.0.peers.lock();
        if let Some(peer) = peers.get(&node).filter(|peer| is_there(&peer.member, member)) {
            return peer.clone();
        }
        let target = Target {
            network: self.0.network.clone(),
            security: self.0.security.clone(),
            directory: self.0.directory.clone(),
            memory: self.0.memory.clone(),
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

    /// Asks a peer whether it reaches this node's port, and for its vote. None if it does not answer or does
    /// not know the question.
    pub async fn is_reached_by(
        &self,
        node: NodeId,
        member: &Member,
        deadline: Duration,
    ) -> Option<(bool, VoteOf<Types>)> {
        let asked = self.peer(node, member).consensus.call(kind::REACH, Bytes::new(), deadline);
        let mut answer = asked.await.ok()?;
        let reaches_us = answer.try_get_u8().ok()? != 0;
        let vote = message::decode_bare_vote(answer).ok()?;
        self.0.memory.plausible(node, from_vote(&vote).term).ok()?;
        Some((reaches_us, vote))
    }

    /// Whether this node reaches the port of a peer. On the connection for consensus, which no forwarded
    /// request holds up.
    pub async fn reaches(&self, node: NodeId, member: &Member) -> bool {
        let pinged = self.peer(node, member).consensus.call(kind::PING, Bytes::new(), 2 * self.0.patience);
        pinged.await.is_ok()
    }

    /// Whether one of these members has a node in its membership. All are asked at once; the first yes counts.
    pub async fn is_known_to<'a>(
        &self,
        members: impl Iterator<Item = (&'a NodeId, &'a Member)>,
        node: NodeId,
        identity: u128,
        key: Option<KeyHash>,
    ) -> bool {
        let about = message::encode_knows(node, identity, key);
        let ask = |(asked, member): (&NodeId, &Member)| {
            self.peer(*asked, member).consensus.call(kind::KNOWS, about.clone(), 2 * self.0.patience)
        };
        let mut answers: FuturesUnordered<_> = members.map(ask).collect();
        while let Some(answer) = answers.next().await {
            if answer.is_ok_and(|answer| answer[..] == [1]) {
                return true;
            }
        }
        false
    }

    /// Checks the vote in a peer's answer before the engine sees it: its term is never forgotten.
    fn believe<T>(
        &self,
        node: NodeId,
        answer: io::Result<T>,
        vote: impl FnOnce(&T) -> Option<&VoteOf<Types>>,
    ) -> io::Result<T> {
        let answer = answer?;
        if let Some(vote) = vote(&answer) {
            self.0.memory.plausible(node, from_vote(vote).term)?;
        }
        Ok(answer)
    }

    /// Closes all connections.
    pub fn close(&self) {
        self.0.peers.lock().clear();
    }
}

/// Whether a member is where it was. Its key may have been entered since: whoever connects next reads it anew.
fn is_there(known: &Member, member: &Member) -> bool {
    (&known.address, known.identity) == (&member.address, member.identity)
}

impl RaftNetworkFactory<Types> for Links {
    type Network = Link;

    async fn new_client(&mut self, node: NodeId, member: &Member) -> Link {
        Link { links: self.clone(), node, peer: self.peer(node, member), append: kind::APPEND }
    }

    /// A heartbeat must not wait behind appends that wait for a disk.
    async fn new_heartbeat_client(&mut self, node: NodeId, member: &Member) -> Link {
        Link { append: kind::HEARTBEAT, ..self.new_client(node, member).await }
    }
}

/// One of the engine's clients for one peer.
pub(crate) struct Link {
    links: Links,
    node: NodeId,
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
        let (term, last) = (from_vote(&vote).term, snapshot.meta.last.as_ref().map(from_log_id));
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
        let vote = self
            .links
            .believe(self.node, message::decode_bare_vote(answer), |vote| Some(vote))
            .map_err(lost)?;
        if let Some(last) = last.filter(|_| from_vote(&vote).term == term) {
            self.links.0.memory.note(self.node, term, last);
        }
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
        Ok(self.links.believe(self.node, message::decode_appended(answer), higher_vote).map_err(lost)?.into())
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
            links: self.links.clone(),
            node: self.node,
            channel: self.peer.consensus.clone(),
            kind: self.append,
            deadline,
            input: Some(input),
            answers: FuturesOrdered::new(),
            sent_at: VecDeque::new(),
            term: 0,
            sent: None,
            held: None,
            alarm: Alarm::default(),
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
        self.links.believe(self.node, message::decode_voted(answer), |voted| Some(&voted.vote)).map_err(lost)
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let answer = self.ask(kind::PRE_VOTE, message::encode_vote(&request), option.soft_ttl()).await?;
        self.links.believe(self.node, message::decode_voted(answer), |voted| Some(&voted.vote)).map_err(lost)
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

/// The vote in the answer to an append, if it has one.
fn higher_vote(appended: &StreamAppendResult<Types>) -> Option<&VoteOf<Types>> {
    match appended {
        Err(StreamAppendError::HigherVote(vote)) => Some(vote),
        Ok(_) | Err(StreamAppendError::Conflict(_)) => None,
    }
}

type Appended = Result<StreamAppendResult<Types>, RPCError<Types>>;

/// Appends on their way to one follower, oldest first.
struct Flow<S> {
    links: Links,
    node: NodeId,
    channel: Channel,
    kind: u8,
    deadline: Duration,
    input: Option<S>,
    answers: FuturesOrdered<BoxFuture<'static, io::Result<Bytes>>>,
    /// When they were sent.
    sent_at: VecDeque<Instant>,
    /// Of the leader whose run this is.
    term: u64,
    /// The last entry that was sent in this run.
    sent: Option<LogIdOf<Types>>,
    held: Option<Held>,
    alarm: Alarm,
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
            let until = self.held.as_ref().map(|held| held.times.until);
            let request = tokio::select! {
                biased;
                Some(answer) = self.answers.next() => {
                    self.note_answer();
                    let appended = answer.and_then(message::decode_appended);
                    let appended = self.links.believe(self.node, appended, higher_vote);
                    self.note_acknowledged(&appended);
                    return Some(appended.map_err(lost));
                }
                request = input => request,
                () = self.alarm.rings(until) => {
                    if until.is_some_and(|until| Instant::now() >= until) {
                        self.send_held();
                    }
                    continue;
                }
            };
            match request {
                Some(request) => {
                    let now = Instant::now();
                    self.take(request, now);
                    if self.held.as_ref().is_some_and(|held| held.times.until <= now) {
                        // Among them is the answer to the client.
                        yield_to_ready_tasks().await;
                        self.send_held();
                    }
                }
                None => {
                    self.input = None;
                    self.send_held();
                }
            }
        }
    }

    /// Sends a request, or holds it back for a while.
    fn take(&mut self, request: Append, now: Instant) {
        match self.may_wait(&request, now) {
            Some(may_wait) => match &mut self.held {
                Some(held) => held.add(request, now, may_wait, &self.links.0.low_latency),
                None => self.held = Some(Held::new(request, now, may_wait)),
            },
            None => {
                // A commit notice alone says less than this one, and needs no answer: the engine counts by
                // entries, not by requests.
                match self.held.take() {
                    Some(held) if held.has_entries() => self.send(held.request),
                    _ => {}
                }
                self.send(request);
            }
        }
    }

    /// How long nobody would miss this request, if it follows all others of this run. At the start of a run
    /// the engine asks for the other's place, and waits for the answer.
    fn may_wait(&self, request: &Append, now: Instant) -> Option<Duration> {
        let held = self.held.as_ref().and_then(Held::last);
        let last = held.or(self.sent).filter(|last| request.prev_log_id == Some(*last));
        last?;
        if request.entries.is_empty() {
            // A commit notice. Every message wakes two processes, and the next entry often comes right after
            // it. Nobody waits for a follower to apply.
            return Some(COMMIT_NOTICE_DELAY);
        }
        let held_entries = self.held.as_ref().map_or(0, |held| held.request.entries.len());
        let few = held_entries + request.entries.len() <= HELD_ENTRIES_MAX;
        few.then(|| self.links.may_wait(self.node, now)).flatten()
    }

    fn send_held(&mut self) {
        if let Some(held) = self.held.take() {
            self.send(held.request);
        }
    }

    fn send(&mut self, request: Append) {
        if let Some(last) = request.entries.last() {
            self.sent = Some(last.log_id());
        }
        let now = Instant::now();
        self.observe(|followers| followers.sent(self.node, now));
        self.sent_at.push_back(now);
        self.term = from_vote(&request.vote).term;
        let body = message::encode_append(request);
        self.answers.push_back(Box::pin(self.channel.call(self.kind, body, self.deadline)));
    }

    /// Remembers what the follower has acknowledged, before the engine counts on it.
    fn note_acknowledged(&self, appended: &io::Result<StreamAppendResult<Types>>) {
        if let Ok(Ok(Some(last))) = appended {
            self.links.0.memory.note(self.node, self.term, from_log_id(last));
        }
    }

    /// Takes note of how long the oldest append took.
    fn note_answer(&mut self) {
        let sent_at = self.sent_at.pop_front().expect("what is answered was sent");
        let owes_since = self.sent_at.front().copied();
        self.observe(|followers| followers.answered(self.node, sent_at.elapsed(), owes_since));
    }
}

impl<S> Flow<S> {
    /// Reports what was seen of the follower. Heartbeats do not count: each is a stream of its own, with one
    /// request that no disk is involved in, so it says nothing about the next entry, and its end nothing
    /// about the follower.
    fn observe(&self, seen: impl FnOnce(&mut FollowerRanks)) {
        if self.kind == kind::APPEND {
            self.links.0.low_latency.observe(seen);
        }
    }
}

impl<S> Drop for Flow<S> {
    fn drop(&mut self) {
        self.observe(|followers| followers.left(self.node));
    }
}

/// A request that is held back: a commit notice, or entries for a follower that the majority does not need.
struct Held {
    request: Append,
    times: HoldTimes,
}

impl Held {
    fn new(request: Append, now: Instant, may_wait: Duration) -> Held {
        Held { request, times: HoldTimes { since: now, until: now + may_wait } }
    }

    fn has_entries(&self) -> bool {
        !self.request.entries.is_empty()
    }

    /// The last entry that is held.
    fn last(&self) -> Option<LogIdOf<Types>> {
        self.request.entries.last().map(RaftEntry::log_id)
    }

    /// Merges the request that follows this one into it.
    fn add(&mut self, request: Append, now: Instant, may_wait: Duration, low_latency: &LowLatency) {
        if !self.has_entries() {
            // Entries carry the commit notice; a newer notice waits no longer than the first.
            let since = if request.entries.is_empty() { self.times.since } else { now };
            *self = Held::new(request, since, may_wait);
            return;
        }
        self.request.entries.extend(request.entries);
        self.request.leader_commit = self.request.leader_commit.max(request.leader_commit);
        let committed = self.request.leader_commit >= self.last();
        self.times.until = low_latency.held_until(self.times, committed, now, may_wait);
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

#[cfg(test)]
mod tests {
    use super::super::handshake::{Agreed, Spoken, Versions};
    use super::super::network::NoNetwork;
    use super::*;
    use crate::config::Entropy;
    use crate::disk::SimDisk;
    use crate::engine::{to_entry, to_log_id, to_vote};
    use crate::low_latency::LowLatencyOptions;
    use crate::snapshot::SnapshotStore;
    use crate::wal::{EntryKind, LogEntry, LogId, Vote};

    fn id(index: u64) -> LogId {
        LogId { term: 1, index }
    }

    /// Entries `from..=to` (none, if there are none), with what is committed.
    fn append(from: u64, to: u64, committed: u64) -> Append {
        let entry =
            |index| LogEntry { id: id(index), kind: EntryKind::Normal, body: Bytes::from_static(b"x") };
        Append {
            vote: to_vote(Vote { term: 1, node: 1, committed: true }),
            prev_log_id: Some(to_log_id(id(from - 1))),
            entries: (from..=to).map(|index| to_entry(entry(index)).unwrap()).collect(),
            leader_commit: Some(to_log_id(id(committed))),
        }
    }

    fn indexes(held: &Held) -> Vec<u64> {
        held.request.entries.iter().map(|entry| entry.log_id().index()).collect()
    }

    const SHORT: Duration = Duration::from_micros(100);

    #[test]
    fn entries_wait_together_and_longer_once_they_are_committed() {
        let (options, start) = (LowLatencyOptions::default(), Instant::now());
        let low_latency = LowLatency::new(options, Execution::Threads);
        let mut held = Held::new(append(5, 5, 4), start, SHORT);
        assert_eq!(held.times.until, start + SHORT);
        held.add(append(6, 6, 4), start + SHORT, SHORT, &low_latency);
        assert_eq!(
            (indexes(&held), held.times.until),
            (vec![5, 6], start + SHORT),
            "the first waits no longer"
        );
        held.add(append(7, 6, 5), start + SHORT, COMMIT_NOTICE_DELAY, &low_latency);
        assert_eq!(held.request.leader_commit, Some(to_log_id(id(5))));
        assert_eq!(held.times.until, start + SHORT, "one of them is not committed yet …");
        held.add(append(7, 6, 6), start + SHORT, COMMIT_NOTICE_DELAY, &low_latency);
        assert_eq!(held.times.until, start + options.late_max, "… now both are");
        held.add(append(7, 7, 6), start + 2 * SHORT, SHORT, &low_latency);
        assert_eq!((indexes(&held), held.times.until), (vec![5, 6, 7], start + 3 * SHORT), "this one is not");
        held.add(append(8, 7, 7), start + 3 * SHORT, COMMIT_NOTICE_DELAY, &low_latency);
        assert_eq!(held.times.until, start + options.late_max);
        held.add(append(8, 8, 7), start + options.gather, SHORT, &low_latency);
        assert_eq!((indexes(&held), held.times.until), (vec![5, 6, 7, 8], start + options.gather + SHORT));
        held.add(append(9, 8, 8), start + options.gather, COMMIT_NOTICE_DELAY, &low_latency);
        assert_eq!(held.times.until, start + options.gather, "there are enough, and this is the moment");
        assert_eq!(held.request.prev_log_id, Some(to_log_id(id(4))));
    }

    #[test]
    fn a_commit_notice_waits_no_longer_for_a_newer_one_and_goes_with_entries() {
        let (options, start) = (LowLatencyOptions::default(), Instant::now());
        let low_latency = LowLatency::new(options, Execution::Threads);
        let mut held = Held::new(append(5, 4, 3), start, COMMIT_NOTICE_DELAY);
        held.add(append(5, 4, 4), start + SHORT, COMMIT_NOTICE_DELAY, &low_latency);
        assert_eq!(
            (held.request.leader_commit, held.times.until),
            (Some(to_log_id(id(4))), start + COMMIT_NOTICE_DELAY)
        );
        assert!(!held.has_entries() && held.last().is_none());
        held.add(append(5, 5, 4), start + SHORT, SHORT, &low_latency);
        assert_eq!((indexes(&held), held.times.until), (vec![5], start + 2 * SHORT));
    }

    /// A heartbeat ends many times a second, and must not have the leader forget whom to count on; an append
    /// that fails must.
    #[tokio::test]
    async fn only_the_end_of_appends_has_a_follower_forgotten() {
        let (directory, _lock) =
            DataDir::open(Arc::new(SimDisk::new()), 1, &Entropy::from_source(|| 42)).unwrap();
        let spoken = Arc::new(Spoken::new(Versions::default(), Agreed::default()));
        let log = Arc::new(Mutex::new(crate::wal::Log::new(0)));
        let store = SnapshotStore::open(Arc::new(SimDisk::new())).unwrap();
        let memory = Memory::new(spoken, log, store, tokio::sync::watch::channel(None).0);
        let timing = RaftTiming::default();
        let low_latency = LowLatency::new(LowLatencyOptions::default(), Execution::Threads);
        let mut links = Links::new(
            (Arc::new(NoNetwork), PeerSecurity::Off),
            Arc::new(directory),
            memory,
            timing,
            Execution::Threads,
            low_latency.clone(),
        );
        let now = Instant::now();
        for node in [2, 3].repeat(8) {
            low_latency.observe(|followers| followers.sent(node, now));
            low_latency.observe(|followers| followers.answered(node, SHORT, None));
        }
        let member = Member { address: "nowhere".into(), identity: 1, key: None };
        let mut heartbeats = links.new_heartbeat_client(2, &member).await;
        let mut appends = links.new_client(2, &member).await;
        for (client, counted_on) in [(&mut heartbeats, true), (&mut appends, false)] {
            let one = futures_util::stream::iter([append(5, 4, 4)]);
            let mut answers = client.stream_append(one, RPCOption::new(SHORT)).await.unwrap();
            assert!(matches!(answers.next().await, Some(Err(_))), "nobody is there to answer");
            drop(answers);
            let mut may_wait = None;
            low_latency.observe(|followers| may_wait = followers.may_wait(3, 1, &[1, 2, 3], now));
            assert_eq!(may_wait.is_some(), counted_on);
        }
    }
}
