//! The status of a replica: numbers for people and metrics, never for decisions.

use crate::NodeId;
use crate::data_dir::Identity;
use crate::engine::{Removed, Types};
use crate::low_latency::LowLatencyStatus;
use crate::membership::is_joint;
use crate::peer::Spoken;
use openraft::{Instant, RaftMetrics, ServerState};
use std::time::Duration;

/// The state of this node at one moment.
#[derive(Clone, Debug)]
pub struct Status {
    /// This node.
    pub node: NodeId,
    /// The random identity of its data directory, in hexadecimal.
    pub identity: String,
    /// The hash of its key, in hexadecimal, once the membership names it.
    pub key: Option<String>,
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
    /// Whether a change of voters has begun and not ended. Until it has, nothing is decided without a
    /// majority of the old voters and one of the new; `voters` are both.
    pub changing: bool,
    /// The members that only follow.
    pub learners: Vec<NodeId>,
    /// The numbers of members that were removed; they are never used again.
    pub removed: Vec<NodeId>,
    /// The last entry in the log.
    pub last_log_index: Option<u64>,
    /// The last entry known to be committed.
    pub committed: Option<u64>,
    /// The last entry applied.
    pub applied: Option<u64>,
    /// The last entry covered by a snapshot.
    pub snapshot_index: Option<u64>,
    /// The last entry removed from the log.
    pub purged: Option<u64>,
    /// On a leader: how long ago a quorum last acknowledged it.
    pub quorum_acknowledged_ago: Option<Duration>,
    /// The newest peer protocol that all members understand, as far as this node knows.
    pub protocol: u16,
    /// The newest format version that this node knows.
    pub format_newest: u16,
    /// All other members, as the leader sees them (elsewhere without progress).
    pub peers: Vec<PeerStatus>,
    /// The log on disk.
    pub log: LogStatus,
    /// How often low-latency mode changed what was done.
    pub low_latency: LowLatencyStatus,
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
    /// The hash of its key, in hexadecimal, once the membership names it.
    pub key: Option<String>,
    /// Whether it votes.
    pub voter: bool,
    /// On the leader: the last entry it is known to have.
    pub matched: Option<u64>,
    /// On the leader: how many entries it is behind.
    pub lag: Option<u64>,
    /// On the leader: how long ago it last answered.
    pub last_contact_ago: Option<Duration>,
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

/// Puts together what the engine and the log say.
pub(crate) fn assemble(
    identity: Identity,
    spoken: &Spoken,
    metrics: &RaftMetrics<Types>,
    removed: &Removed,
    log: LogStatus,
    low_latency: LowLatencyStatus,
    failure: Option<String>,
) -> Status {
    let membership = metrics.membership_config.membership();
    let voters: Vec<_> = membership.voter_ids().collect();
    let peers = membership.nodes().filter(|(node, _)| **node != identity.node).map(|(node, member)| {
        let progress = metrics.replication.as_ref().and_then(|replication| replication.get(node));
        let matched = progress.and_then(|matched| matched.as_ref().map(|id| id.index()));
        let received = metrics.heartbeat.as_ref().and_then(|heartbeat| heartbeat.get(node));
        PeerStatus {
            node: *node,
            address: member.address.clone(),
            key: member.key.map(|key| key.to_string()),
            voter: voters.contains(node),
            matched,
            lag: progress
                .map(|_| next(metrics.last_log_index) - next(matched).min(next(metrics.last_log_index))),
            last_contact_ago: received
                .and_then(|received| received.as_ref().map(|instant| instant.elapsed())),
        }
    });
    let others = membership.nodes().map(|(node, _)| *node).filter(|node| *node != identity.node);
    Status {
        node: identity.node,
        protocol: spoken.common(others),
        format_newest: spoken.own().newest,
        identity: format!("{:032x}", identity.identity),
        key: membership.get_node(&identity.node).and_then(|own| own.key).map(|key| key.to_string()),
        cluster: identity.cluster.map(|cluster| format!("{cluster:032x}")),
        role: match metrics.state {
            _ if failure.is_some() || metrics.running_state.is_err() => Role::Stopped,
            ServerState::Leader => Role::Leader,
            ServerState::Candidate => Role::Candidate,
            ServerState::Learner => Role::Learner,
            ServerState::Shutdown => Role::Stopped,
            ServerState::Follower => Role::Follower,
        },
        leader: metrics.current_leader,
        term: metrics.current_term,
        changing: is_joint(membership),
        learners: membership.learner_ids().collect(),
        removed: removed.all().into_iter().collect(),
        peers: peers.collect(),
        last_log_index: metrics.last_log_index,
        committed: metrics.local_committed.as_ref().map(|id| id.index()),
        applied: metrics.last_applied.as_ref().map(|id| id.index()),
        snapshot_index: metrics.snapshot.as_ref().map(|id| id.index()),
        purged: metrics.purged.as_ref().map(|id| id.index()),
        quorum_acknowledged_ago: metrics.last_quorum_acked.as_ref().map(|instant| instant.elapsed()),
        voters,
        log,
        low_latency,
        failure,
    }
}

fn next(index: Option<u64>) -> u64 {
    index.map_or(0, |index| index + 1)
}
