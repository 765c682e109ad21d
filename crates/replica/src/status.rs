//! What a replica shows of itself: numbers for people and metrics, never for decisions.

use crate::NodeId;
use std::time::Duration;

/// The state of this node at one moment.
#[derive(Clone, Debug)]
pub struct Status {
    /// This node.
    pub node: NodeId,
    /// The random identity of its data directory, in hexadecimal.
    pub identity: String,
    /// The cluster it belongs to, in hexadecimal; `None` until it has joined or formed one.
    pub cluster: Option<String>,
    /// What it is to the engine.
    pub role: Role,
    /// The leader, if known.
    pub leader: Option<NodeId>,
    /// The current term.
    pub term: u64,
    /// The members that vote.
    pub voters: Vec<NodeId>,
    /// The members that only follow.
    pub learners: Vec<NodeId>,
    /// The last entry in the log.
    pub last_log_index: u64,
    /// The last entry known to be committed.
    pub committed: u64,
    /// The last entry applied.
    pub applied: u64,
    /// The last entry covered by a snapshot.
    pub snapshot_index: u64,
    /// The last entry removed from the log.
    pub purged: u64,
    /// On a leader: how long ago a quorum last acknowledged it.
    pub quorum_acknowledged_ago: Option<Duration>,
    /// All other members, as the leader sees them (elsewhere without progress).
    pub peers: Vec<PeerStatus>,
    /// The log on disk.
    pub log: LogStatus,
    /// Why the replica has failed, if it has.
    pub failure: Option<String>,
}

/// What a node is to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It leads.
    Leader,
    /// It follows, or asks to lead.
    Follower,
    /// It asks to lead.
    Candidate,
    /// It receives the log and does not vote.
    Learner,
    /// It has stopped.
    Stopped,
}

/// Another member.
#[derive(Clone, Debug)]
pub struct PeerStatus {
    /// Its number.
    pub node: NodeId,
    /// Its peer address.
    pub address: String,
    /// Whether it votes.
    pub voter: bool,
    /// On the leader: the last entry it is known to have.
    pub matched: Option<u64>,
    /// On the leader: how many entries it is behind.
    pub lag: Option<u64>,
    /// On the leader: how long ago it was last heard of.
    pub heard_ago: Option<Duration>,
}

/// The log on disk.
#[derive(Clone, Debug, Default)]
pub struct LogStatus {
    /// How many segment files there are.
    pub segments: u64,
    /// How large they are together.
    pub disk_bytes: u64,
    /// How much has been written since the last snapshot.
    pub bytes_since_snapshot: u64,
    /// How much has been written since the start.
    pub written_bytes: u64,
    /// How many frames (group commits) have been written since the start.
    pub frames: u64,
    /// How many records they held.
    pub records: u64,
    /// The syncs.
    pub sync: SyncStatus,
}

/// How long syncing takes.
#[derive(Clone, Debug, Default)]
pub struct SyncStatus {
    /// How often the log was synced.
    pub count: u64,
    /// How long the last one took.
    pub last: Duration,
    /// How long the longest one took.
    pub longest: Duration,
    /// All of them.
    pub durations: Histogram,
}

/// A histogram with fixed buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Upper bound of a bucket and how many fell at or below it and above the one before; the last
    /// bucket has no bound.
    pub buckets: Vec<(Option<Duration>, u64)>,
    /// The sum of all.
    pub sum: Duration,
}
