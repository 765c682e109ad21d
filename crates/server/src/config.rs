//! The configuration of a node. Parsed once, by whoever starts it; nothing deeper reads a flag.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::audit::AuditOptions;
use crate::auth::{IdentityLimits, JwtIssuer};
use crate::event_files::EventFileOptions;
use crate::secure::ClientPortTls;
use tenure_core::{FormatVersion, Limits, ProposerLimits};
use tenure_replica::{LogOptions, LowLatencyOptions, NodeId, PeerSecurity, RaftTiming, SnapshotOptions};
use tenure_tls::KeyHash;

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
    /// How connections between nodes are secured.
    pub peer_security: PeerSecurity,
    /// The hash of this node's key, if it has one.
    pub node_key: Option<KeyHash>,
    /// TLS for clients, if it is spoken.
    pub client_tls: Option<ClientPortTls>,
    /// Whether other machines reach a port of this node without TLS.
    pub insecure: bool,
    /// Names under which clients reach this node, beside the addresses.
    pub names: Vec<String>,
    /// Where clients connect.
    pub listen: SocketAddr,
    /// The address that is advertised to clients, if it is not `listen`.
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
    /// The issuers of JSON web tokens that are believed.
    pub jwt_issuers: Vec<JwtIssuer>,
    /// How much of this node one identity may have.
    pub identity_limits: IdentityLimits,
    /// Where calls are recorded, and which; nowhere if there is none.
    pub audit: Option<AuditOptions>,
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
            peer_security: PeerSecurity::Off,
            node_key: None,
            client_tls: None,
            insecure: false,
            names: Vec::new(),
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
            jwt_issuers: Vec::new(),
            identity_limits: IdentityLimits::default(),
            audit: None,
            auto_upgrade: None,
            format_newest: FormatVersion::NEWEST,
        }
    }
}
