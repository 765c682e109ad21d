//! The configuration of a replica. Values only; nothing is read from the environment here.

use crate::NodeId;
use crate::low_latency::LowLatencyOptions;
use crate::peer::{Agreed, PeerSecurity, Versions};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tenure_tls::KeyHash;

/// How one replica is to run.
#[derive(Clone, Debug)]
pub struct Config {
    /// The number of this node. A data directory belongs to one node for ever.
    pub node: NodeId,
    /// The peer addresses of all founding members, this node among them. Empty: this node listens for peers
    /// where its membership says that it does, and to nobody if it says nothing; a new one is a cluster of
    /// one.
    pub peers: BTreeMap<NodeId, String>,
    /// Listen for peers at an address that only the membership names even if other machines reach it.
    pub beyond_this_machine: bool,
    /// How connections between nodes are secured.
    pub security: PeerSecurity,
    /// The hash of this node's key, if it has one: entered into the membership, so that nobody else is this node.
    pub key: Option<KeyHash>,
    /// Heartbeats and elections.
    pub timing: RaftTiming,
    /// The same for a node that listens to nobody.
    pub timing_alone: RaftTiming,
    /// The log on disk.
    pub log: LogOptions,
    /// When the log is replaced by a snapshot.
    pub snapshot: SnapshotOptions,
    /// Where blocking work runs.
    pub execution: Execution,
    /// How a single sequential client is served.
    pub low_latency: LowLatencyOptions,
    /// Which format versions are known: what this build reads and writes, unless an upgrade is rehearsed.
    pub versions: Versions,
    /// Which format version the cluster has agreed on; set by the state machine.
    pub agreed: Agreed,
    /// Where the bits of a new identity come from.
    pub entropy: Entropy,
    /// How durations are measured, for the status.
    pub stopwatch: Stopwatch,
}

impl Config {
    /// A cluster of one, with the defaults.
    pub fn single(node: NodeId) -> Self {
        Self {
            node,
            peers: BTreeMap::new(),
            beyond_this_machine: true,
            security: PeerSecurity::Off,
            key: None,
            timing: RaftTiming::default(),
            timing_alone: RaftTiming::default(),
            log: LogOptions::default(),
            snapshot: SnapshotOptions::default(),
            execution: Execution::default(),
            low_latency: LowLatencyOptions::default(),
            versions: Versions::default(),
            agreed: Agreed::default(),
            entropy: Entropy::default(),
            stopwatch: Stopwatch::default(),
        }
    }

    /// A member of a cluster, with the defaults.
    pub fn member(node: NodeId, peers: BTreeMap<NodeId, String>) -> Self {
        Self { peers, ..Self::single(node) }
    }
}

/// Heartbeats and elections. A new leader is found `election_max` + a draw from
/// `election_min..election_max` after the last heartbeat: 450 to 600 ms with the defaults.
#[derive(Clone, Copy, Debug)]
pub struct RaftTiming {
    /// How often a leader sends a heartbeat.
    pub heartbeat: Duration,
    /// The shortest wait before an election.
    pub election_min: Duration,
    /// The longest wait before an election, and the leader's lease. Must exceed the worst sync.
    pub election_max: Duration,
}

impl Default for RaftTiming {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(50),
            election_min: Duration::from_millis(150),
            election_max: Duration::from_millis(300),
        }
    }
}

/// The log on disk.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// The size of one segment file, prepared in advance.
    pub segment_bytes: u64,
    /// How much is written before one sync, at most (a single larger entry still goes through).
    pub frame_bytes_max: usize,
    /// How many bytes of recent entries stay in memory for replication.
    pub cache_bytes: usize,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { segment_bytes: 8 << 20, frame_bytes_max: 1 << 20, cache_bytes: 2 << 20 }
    }
}

/// When the log is replaced by a snapshot, so that the disk in use stays bounded.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotOptions {
    /// After so many entries …
    pub entries_max: u64,
    /// … or so many bytes of log, whichever comes first.
    pub log_bytes_max: u64,
    /// How many entries stay behind a snapshot, for followers that lag a little.
    pub entries_kept: u64,
}

impl Default for SnapshotOptions {
    fn default() -> Self {
        Self { entries_max: 100_000, log_bytes_max: 64 << 20, entries_kept: 1_000 }
    }
}

/// Where blocking work runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Execution {
    /// The log has a thread of its own, snapshots run on the blocking pool. What a real node does.
    #[default]
    Threads,
    /// Everything runs as tasks of the current runtime: for simulation, where a thread would be
    /// outside of the simulated world.
    Tasks,
}

impl Execution {
    /// Runs something that may block.
    pub async fn blocking<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> T {
        match self {
            Execution::Tasks => work(),
            Execution::Threads => match tokio::task::spawn_blocking(work).await {
                Ok(value) => value,
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            },
        }
    }
}

/// A source of random bits, replaceable so that simulation draws from its seed.
#[derive(Clone)]
pub struct Entropy(Arc<dyn Fn() -> u128 + Send + Sync>);

impl Entropy {
    /// Draws from `source` instead of the operating system.
    pub fn from_source(source: impl Fn() -> u128 + Send + Sync + 'static) -> Self {
        Self(Arc::new(source))
    }

    /// The next 128 bits.
    pub fn draw(&self) -> u128 {
        (self.0)()
    }
}

impl Default for Entropy {
    fn default() -> Self {
        Self::from_source(|| {
            let mut bits = [0; 16];
            getrandom::fill(&mut bits).expect("the operating system must supply random bits");
            u128::from_le_bytes(bits)
        })
    }
}

impl fmt::Debug for Entropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Entropy")
    }
}

/// A source of monotonic readings, to show how long things took. Nothing is decided by it but which thread
/// waits for the disk. The default stands still, so that only who brings a clock sees durations.
#[derive(Clone)]
pub struct Stopwatch(Arc<dyn Fn() -> Duration + Send + Sync>);

impl Stopwatch {
    /// Reads `source`, which must never go back.
    pub fn from_source(source: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(source))
    }

    /// The time since some fixed moment.
    pub fn read(&self) -> Duration {
        (self.0)()
    }
}

impl Default for Stopwatch {
    fn default() -> Self {
        Self::from_source(|| Duration::ZERO)
    }
}

impl fmt::Debug for Stopwatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stopwatch")
    }
}
