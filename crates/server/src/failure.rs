//! Why a request has no answer from the machine. A refusal is an answer; these are not.

use std::time::Duration;

use tenure_core::FormatVersion;
use tenure_replica::{BarrierError, NodeId, ProposeError};

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Nobody leads, as far as this node knows, or the leader could not be reached. Nothing was applied.
    #[error("no leader serves at the moment")]
    NoLeader {
        /// The leader, if one is known.
        leader: Option<NodeId>,
    },
    /// A queue is full. Nothing was applied.
    #[error("overloaded")]
    Overloaded {
        /// When to ask again.
        retry_after: Duration,
    },
    /// It may or may not have been applied.
    #[error("the outcome is unknown: {reason}")]
    Unknown {
        /// Why, for people.
        reason: String,
    },
    /// This node is stopping. Nothing was applied.
    #[error("this node is stopping")]
    Stopping,
    /// The cluster has not agreed on a format version that can say this. Nothing was applied.
    #[error("the cluster has agreed on format version {agreed}, which cannot say this")]
    NeedsUpgrade {
        /// The agreed version.
        agreed: FormatVersion,
    },
}

impl Failure {
    /// Whether the request may have been applied all the same, or may be yet.
    pub(crate) fn may_have_been_applied(&self) -> bool {
        matches!(self, Failure::Unknown { .. })
    }

    /// The failure of a request that was sent again: whatever this transmission did, an earlier one was applied.
    pub(crate) fn of_a_repetition(self) -> Failure {
        match self {
            unknown @ Failure::Unknown { .. } => unknown,
            other => {
                Failure::Unknown { reason: format!("it was queued, and could not be asked about: {other}") }
            }
        }
    }

    /// A full queue drains within a few commits.
    pub(crate) fn overloaded() -> Failure {
        Failure::Overloaded { retry_after: Duration::from_millis(100) }
    }

    /// The node went down with the request under way.
    pub(crate) fn stopped_meanwhile() -> Failure {
        Failure::Unknown { reason: "this node stopped before the answer came".into() }
    }
}

impl From<ProposeError> for Failure {
    fn from(error: ProposeError) -> Failure {
        match error {
            ProposeError::NotProposed { leader, .. } => Failure::NoLeader { leader },
            ProposeError::Unknown { reason } => Failure::Unknown { reason },
        }
    }
}

impl From<BarrierError> for Failure {
    fn from(error: BarrierError) -> Failure {
        match error {
            BarrierError::NotLeader { leader } => Failure::NoLeader { leader },
            BarrierError::NoQuorum => Failure::NoLeader { leader: None },
            BarrierError::Stopped(_) => Failure::Stopping,
        }
    }
}
