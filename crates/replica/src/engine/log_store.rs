//! The engine's log store, on our log: memory at once, disk through the queue, callbacks after the sync.

use super::codec::{decode_membership, encode_membership};
use super::types::{Payload, Types, from_log_id, to_log_id};
use crate::NodeId;
use crate::config::Execution;
use crate::low_latency::{LowLatency, WriteMode};
use crate::wal::{Done, EntryKind, Job, LogEntry, Queue, SharedLog, Vote};
use bytes::Bytes;
use openraft::EntryPayload;
use openraft::alias::{EntryOf, LogIdOf, VoteOf};
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, Range, RangeBounds};
use tokio::sync::oneshot;

/// How many bytes of entries one append message carries, at most (a single larger entry still goes).
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// The log as the engine sees it; also its own reader, of which there can be many.
#[derive(Clone)]
pub(crate) struct LogStore {
    log: SharedLog,
    queue: Queue,
    execution: Execution,
    node: NodeId,
    low_latency: LowLatency,
}

impl LogStore {
    pub fn new(
        log: SharedLog,
        queue: Queue,
        execution: Execution,
        node: NodeId,
        low_latency: LowLatency,
    ) -> Self {
        Self { log, queue, execution, node, low_latency }
    }

    async fn read(&self, range: Range<u64>, bytes_max: usize) -> io::Result<Vec<EntryOf<Types>>> {
        let selection = self.log.lock().select(range, bytes_max);
        let entries = match selection.needs_disk() {
            true => self.execution.blocking(|| selection.read()).await?,
            false => selection.read()?,
        };
        entries.into_iter().map(to_entry).collect()
    }
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + Send>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<EntryOf<Types>>> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last + 1,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        self.read(start..end, usize::MAX).await
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<EntryOf<Types>>> {
        self.read(start..end, MESSAGE_BYTES_MAX).await
    }

    async fn read_vote(&mut self) -> io::Result<Option<VoteOf<Types>>> {
        Ok(self.log.lock().vote.map(to_vote))
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        let log = self.log.lock();
        Ok(LogState { last_purged_log_id: log.purged.map(to_log_id), last_log_id: log.last().map(to_log_id) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &VoteOf<Types>) -> io::Result<()> {
        let vote = from_vote(vote);
        let (sender, receiver) = oneshot::channel();
        self.queue.push(Job::Vote(vote, Done::new(|result| drop(sender.send(result)))))?;
        receiver.await.map_err(|_| io::Error::other("the log was closed before the vote was durable"))??;
        self.log.lock().vote = Some(vote);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogIdOf<Types>>) -> io::Result<()> {
        let Some(committed) = committed.as_ref().map(from_log_id) else { return Ok(()) };
        self.log.lock().committed = Some(committed);
        self.queue.note_committed(committed);
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogIdOf<Types>>> {
        Ok(self.log.lock().committed.map(to_log_id))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = EntryOf<Types>> + Send,
        I::IntoIter: Send,
    {
        let entries: Vec<_> = entries.into_iter().map(from_entry).collect();
        let bytes: usize = entries.iter().map(|entry| entry.body.len()).sum();
        let (claim, job) = {
            // Queued or claimed under the lock: what is read and what is written agree on the order.
            let mut log = self.log.lock();
            for entry in &entries {
                let next = log.next();
                if !log.append(entry) {
                    let index = entry.id.index;
                    return Err(io::Error::other(format!("entry {index} was appended where {next} belongs")));
                }
            }
            let job = Job::Append(entries, Done::new(|result| callback.io_completed(result)));
            let follows = log.vote.is_some_and(|vote| vote.node != self.node);
            match self.low_latency.write_mode(follows, bytes) {
                WriteMode::Queued => return self.queue.push(job),
                WriteMode::InPlaceAfterSending => return self.queue.push_deferred(job),
                WriteMode::InPlace => match self.queue.claim() {
                    Some(claim) => (claim, job),
                    None => return self.queue.push(job),
                },
            }
        };
        self.low_latency.wrote(WriteMode::InPlace);
        claim.carry_out(vec![job]);
        Ok(())
    }

    // Neither of the two waits: whatever is queued behind them becomes durable behind them.

    async fn truncate_after(&mut self, last_log_id: Option<LogIdOf<Types>>) -> io::Result<()> {
        let after = last_log_id.map(|id| id.index());
        let mut log = self.log.lock();
        log.truncate(after);
        self.queue.push(Job::Truncate(after))
    }

    async fn purge(&mut self, log_id: LogIdOf<Types>) -> io::Result<()> {
        let upto = from_log_id(&log_id);
        let mut log = self.log.lock();
        log.purge(upto);
        self.queue.push(Job::Purge(upto))
    }
}

/// Our vote, from the engine's.
pub(crate) fn from_vote(vote: &VoteOf<Types>) -> Vote {
    Vote { term: vote.leader_id.term, node: vote.leader_id.voted_for, committed: vote.committed }
}

/// The engine's vote, from ours.
pub(crate) fn to_vote(vote: Vote) -> VoteOf<Types> {
    match vote.committed {
        true => VoteOf::<Types>::new_committed(vote.term, vote.node),
        false => VoteOf::<Types>::new(vote.term, vote.node),
    }
}

/// Our entry, from the engine's.
pub(crate) fn from_entry(entry: EntryOf<Types>) -> LogEntry {
    let id = from_log_id(&entry.log_id());
    let (kind, body) = match entry.payload {
        EntryPayload::Blank => (EntryKind::Blank, Bytes::new()),
        EntryPayload::Normal(Payload(bytes)) => (EntryKind::Normal, bytes),
        EntryPayload::Membership(membership) => (EntryKind::Membership, encode_membership(&membership)),
    };
    LogEntry { id, kind, body }
}

/// The engine's entry, from ours.
pub(crate) fn to_entry(entry: LogEntry) -> io::Result<EntryOf<Types>> {
    let payload = match entry.kind {
        EntryKind::Blank => EntryPayload::Blank,
        EntryKind::Normal => EntryPayload::Normal(Payload(entry.body)),
        EntryKind::Membership => EntryPayload::Membership(decode_membership(entry.body)?),
    };
    Ok(EntryOf::<Types>::new(to_log_id(entry.id), payload))
}
