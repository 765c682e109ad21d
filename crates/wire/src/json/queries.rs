//! Queries: what follows the `?` of a path.

use serde::{Deserialize, Serialize};

/// Of a list by names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListQuery {
    /// Only those whose names begin like this.
    #[serde(default)]
    pub prefix: String,
    /// At most this many; 100 without it, 1000 are the most that one page has.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub limit: Option<u64>,
    /// Only those whose names come after this one: the `next` of the page before. A page may be short, even empty,
    /// and yet have a `next`.
    #[serde(default)]
    pub after: String,
    /// Answer from this node's own state, which may be stale.
    #[serde(default)]
    pub stale: bool,
}

/// Of the list of sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionsQuery {
    /// At most this many; 100 without it, 1000 are the most that one page has.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub limit: Option<u64>,
    /// Only sessions with higher numbers than this.
    pub after: Option<u64>,
}

/// Of the list of credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CredentialsQuery {
    /// At most this many; 100 without it, 1000 are the most that one page has.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub limit: Option<u64>,
    /// Only credentials with higher ids than this.
    #[serde(default)]
    pub after: String,
}

/// Of a reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReadQuery {
    /// Answer from this node's own state, which may be stale.
    #[serde(default)]
    pub stale: bool,
}

/// Of a look at one lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LeaseQuery {
    /// Answer from this node's own state, which may be stale.
    #[serde(default)]
    pub stale: bool,
    /// In whose shape: `kubernetes` for that of coordination.k8s.io/v1.
    pub view: Option<LeaseShape>,
}

/// In whose shape a lease is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(inline))]
#[serde(rename_all = "lowercase")]
pub enum LeaseShape {
    /// That of coordination.k8s.io/v1.
    Kubernetes,
}

/// Of an acquire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AcquireQuery {
    /// Also sign a statement of the grant.
    #[serde(default)]
    pub sequencer: bool,
}

/// Of a watch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WatchQuery {
    /// Only resources and registers whose names begin like this.
    #[serde(default)]
    pub prefix: String,
    /// Begin with this revision; without it, with the next one.
    pub from: Option<u64>,
}

/// Of the list of events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EventsQuery {
    /// Only resources and registers whose names begin like this.
    #[serde(default)]
    pub prefix: String,
    /// Begin with this revision; without it, with the oldest.
    pub from: Option<u64>,
    /// About this many; 100 without it, 1000 are the most that one page has. A revision is always whole.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub limit: Option<u64>,
    /// Answer from this node's own state, which may be stale.
    #[serde(default)]
    pub stale: bool,
}

/// Of the cluster's status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StatusQuery {
    /// Also hash the state of this node.
    #[serde(default)]
    pub state_hash: bool,
}
