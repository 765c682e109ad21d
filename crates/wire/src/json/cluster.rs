//! Bodies about the cluster and about sequencers: requests and answers.

use serde::{Deserialize, Serialize};
use tenure_core::SessionId;

use super::{of_session, session_of};
use crate::error::ApiError;

/// `POST /v1/sequencers`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct IssueSequencer {
    /// The whole id of the session that holds the lease, unless the header `Tenure-Session` names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The resource.
    pub resource: String,
    /// The slot of it, for a semaphore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
}

of_session!(IssueSequencer);

impl IssueSequencer {
    /// The session that holds the lease.
    pub fn session_id(&self) -> Result<SessionId, ApiError> {
        session_of(self.session.as_deref())
    }
}

/// `POST /v1/sequencers:check`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CheckSequencer {
    /// A compact JWS.
    pub sequencer: String,
}

/// `POST /v1/cluster:step-down`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StepDown {
    /// To this node; without it, to whichever is furthest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
}

/// A signed statement of a grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SequencerIssued {
    /// A compact JWS.
    pub sequencer: String,
}

/// What is known of a sequencer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SequencerChecked {
    /// `valid`, `stale` or `unknown`.
    pub verdict: String,
    /// The token presented.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub presented: Option<u64>,
    /// The newest token of its scope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<u64>,
}

/// One node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeStatus {
    /// Its id.
    pub node: u64,
    /// Where peers reach it.
    pub peer_address: String,
    /// Where clients reach it.
    pub client_address: String,
    /// `leader`, `follower`, `learner` or `candidate`.
    pub role: String,
    /// Whether the node that answers can reach it.
    pub reachable: bool,
    /// The last log index that it is known to have.
    pub last_log: Option<u64>,
    /// Its version.
    pub version: String,
    /// The random identity of its data directory.
    pub identity: String,
    /// The newest format version that it knows; 0 if it does not say.
    #[serde(default)]
    pub format_newest: u32,
}

/// The cluster, as the node that answers sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClusterStatus {
    /// The cluster's id.
    pub cluster: String,
    /// Who leads; `null` while nobody does.
    pub leader: Option<u64>,
    /// The term.
    pub term: u64,
    /// Everybody.
    pub nodes: Vec<NodeStatus>,
    /// The node that answers.
    pub node: u64,
    /// The last log index that it has applied.
    pub applied: u64,
    /// The last log index that it knows to be committed.
    pub committed: u64,
    /// Its revision.
    pub revision: u64,
    /// The last token issued.
    pub last_token: u64,
    /// Cluster time, in microseconds.
    pub cluster_time_us: u64,
    /// How many sessions there are.
    pub sessions: u64,
    /// How many resources are held, waited for, resting or pinned.
    pub leases: u64,
    /// How many acquires wait in the queue.
    pub waiters: u64,
    /// The hash of the state at log index `applied`, if it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_hash: Option<String>,
    /// Whether the cluster survives the loss of a node.
    pub fault_tolerant: bool,
    /// After a restore nothing is granted for this long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restoring_ms: Option<u64>,
    /// A backup that is being restored and is not visible yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staging: Option<RestoreStaging>,
    /// The format version that the cluster has agreed on; 0 if the node does not say, as release 0.1.0 does not.
    #[serde(default)]
    pub format: u32,
    /// The version that an upgrade would raise it to, if every member was received to know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format_next: Option<u32>,
    /// Whether other machines reach a port of the node that answers without TLS.
    #[serde(default)]
    pub insecure: bool,
    /// Sessions whose secrets are stored as their openers know them: opened before format version 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plain_sessions: Option<u64>,
}

/// How far a restore has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RestoreStaging {
    /// How many pieces of the backup have arrived.
    pub pieces: u64,
    /// How many records.
    pub records: u64,
    /// How many bytes.
    pub bytes: u64,
    /// It is discarded after this long, unless another piece arrives.
    pub discarded_in_ms: u64,
}

/// What a raise of the format version did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Upgraded {
    /// The version agreed on before.
    pub from: u32,
    /// The version agreed on now.
    pub to: u32,
}
