//! Errors, one small enum per operation. Each says what the caller may assume.

use crate::NodeId;
use std::io;

/// Why a replica did not start. Nothing has been said to any peer.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another process uses the data directory.
    #[error(
        "the data directory is in use by another process; stop that one first, or choose another --data-dir"
    )]
    Locked,
    /// The configuration contradicts itself or the data directory.
    #[error("{0}")]
    Configuration(String),
    /// Something on disk is damaged, or of a version this program does not know. The message says what to do.
    #[error("{0}")]
    Data(String),
    /// The disk or the network refused.
    #[error("{0}: {1}")]
    Io(String, #[source] io::Error),
    /// The engine refused what it found.
    #[error("the consensus engine did not start: {0}")]
    Engine(String),
}

/// What to do with a node whose disk has lost something.
pub(crate) const REJOIN: &str = "Bring the lost files back if they still exist, but never an older copy of them. Otherwise \
     remove this node from the cluster and add it again under a new number with an empty data directory; a single node \
     is restored from a backup into a new one";

/// Why a proposal has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// A true no: the entry is in no log and never will be.
    #[error("not proposed: {reason}")]
    NotProposed {
        /// Who leads, if known.
        leader: Option<NodeId>,
        /// Why, for people.
        reason: String,
    },
    /// The entry may or may not be applied, here or under another leader.
    #[error("the outcome is unknown: {reason}")]
    Unknown {
        /// Why, for people.
        reason: String,
    },
}

/// Why a read was not confirmed. Nothing has changed anywhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BarrierError {
    /// This node does not lead.
    #[error("this node does not lead")]
    NotLeader {
        /// Who leads, if known.
        leader: Option<NodeId>,
    },
    /// No quorum confirmed the leadership in time.
    #[error("no quorum confirmed the leadership of this node in time")]
    NoQuorum,
    /// The replica is stopping or has failed.
    #[error("the replica has stopped: {0}")]
    Stopped(String),
}

/// Why the membership did not change, or may not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembershipError {
    /// This node does not lead.
    #[error("this node does not lead")]
    NotLeader {
        /// Who leads, if known.
        leader: Option<NodeId>,
    },
    /// The change is not allowed now; the message says why.
    #[error("{0}")]
    Refused(String),
    /// Another change has not ended yet: one at a time.
    #[error("another change of membership has not ended yet")]
    InProgress,
    /// No node answers at the address that was given, or not the one that was named.
    #[error("{0}")]
    Absent(String),
    /// The change may or may not come to pass: look at the status.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
}

/// Why a forwarded request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    /// It did not leave this node.
    #[error("node {0} cannot be reached")]
    Unreachable(NodeId),
    /// It left, and no answer came in time: it may have been carried out.
    #[error("node {0} did not answer in time")]
    NoAnswer(NodeId),
}

/// Why a running replica stopped for good. The process should say so and exit: a log that could not
/// be written once is not to be trusted again, and what was acknowledged is safe on disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FatalError(pub String);
