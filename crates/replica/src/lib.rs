//! Agreement and durability: the consensus engine, its log and its snapshots, behind our own types.
//!
//! A replica agrees with its peers on a sequence of *bytes* and applies them, in order, to a
//! [`StateMachine`]. It decides what is committed and what is durable. It never looks into an entry,
//! knows nothing of leases, and lets no type of the engine past this wall.
//!
//! Start reading at [`Replica`]; then `wal/` for what is on disk, `engine/` for how the engine is
//! wired, `snapshot/` for compaction and `peer/` for what nodes say to each other.

mod alarm;
mod barrier;
mod config;
mod data_dir;
mod disk;
mod engine;
mod error;
mod leadership;
mod low_latency;
mod machine;
mod membership;
mod peer;
mod replica;
mod snapshot;
mod status;
mod wal;

pub use alarm::Alarm;
pub use config::{Config, Entropy, Execution, LogOptions, RaftTiming, SnapshotOptions, Stopwatch};
pub use disk::{Disk, DiskFile, RealDisk, SimDisk, Wreck};
pub use engine::seed_elections;
pub use error::{BarrierError, FatalError, ForwardError, MembershipError, ProposeError, StartError};
pub use leadership::{LeaderTerm, Leadership};
pub use low_latency::{CallerDetector, LowLatencyOptions, LowLatencyStatus, spin_wait};
pub use machine::StateMachine;
pub use peer::{
    Agreed, ForwardHandler, Listener, Network, NoNetwork, PeerSecurity, Stream, TcpNetwork, Versions,
};
pub use replica::{Newcomer, Proposal, Replica};
pub use status::{Histogram, LogStatus, PeerStatus, Role, Status, SyncStatus};

/// Ways in for the fuzz targets; no promise is made about them.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::peer::fuzzing as peer;
    pub use crate::snapshot::fuzzing as snapshot;
    pub use crate::wal::fuzzing as wal;
}

/// The number of a node. Chosen by the operator, never used again after the node is removed.
pub type NodeId = u64;
