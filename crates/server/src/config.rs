//! What a node is told at its start. Parsed once, by whoever starts it; nothing deeper reads a flag.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::event_files::EventFileOptions;
use tenure_core::{FormatVersion, Limits, ProposerLimits};
use tenure_replica::{LogOptions, LowLatencyOptions, NodeId, RaftTiming, SnapshotOptions};

/// How one node is to run.
#[derive(Clone, Debug)]
pub struct Config {
    /// The number of this node.
    pub node: NodeId,
    /// The peer addresses of all founding members, this node among them. Empty for a single node, and for a
    /// member that goes on at the address by which its cluster knows it.
    pub peers: BTreeMap<NodeId, String>,
    /// Listen for peers at the address by which the cluster knows this node even if other machines reach it.
    pub peers_beyond_this_machine: bool,
    /// Where clients connect.
    pub listen: SocketAddr,
    /// The address that clients are told, if it is not `listen`.
    pub advertise: Option<String>,
    /// Client connections open at once; derived from the limit of open files if it is not given.
    pub connections_max: Option<usize>,
    /// Where the log and the snapshots are.
    pub data_dir: PathBuf,
    /// The limits of a new cluster; an old one keeps its own.
    pub limits: Limits,
    /// In a new cluster the policies count from the beginning; an old one keeps what it has agreed.
    pub enforced: bool,
    /// How much may wait in the leader loop, and how much one entry takes.
    pub proposer: ProposerLimits,
    /// Heartbeats and elections.
    pub timing: RaftTiming,
    /// The log on disk.
    pub log: LogOptions,
    /// When the log is replaced by a snapshot.
    pub snapshot: SnapshotOptions,
    /// How a single sequential client is served.
    pub low_latency: LowLatencyOptions,
    /// What is kept of past events on disk, beyond what memory holds.
    pub event_files: EventFileOptions,
    /// Raise the agreed format version by itself once every member has known the next one for this long.
    pub auto_upgrade: Option<Duration>,
    /// The newest format version that this node reads and writes: what this build knows, unless an upgrade is rehearsed.
    pub format_newest: FormatVersion,
}

impl Config {
    /// A single node with the defaults.
    pub fn single(listen: SocketAddr, data_dir: PathBuf) -> Config {
        Config {
            node: 1,
            peers: BTreeMap::new(),
            peers_beyond_this_machine: false,
            listen,
            advertise: None,
            connections_max: None,
            data_dir,
            limits: Limits::default(),
            enforced: false,
            proposer: ProposerLimits::default(),
            timing: RaftTiming::default(),
            log: LogOptions::default(),
            snapshot: SnapshotOptions::default(),
            low_latency: LowLatencyOptions::default(),
            event_files: EventFileOptions::default(),
            auto_upgrade: None,
            format_newest: FormatVersion::NEWEST,
        }
    }
}
