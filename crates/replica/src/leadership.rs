//! Who leads, as far as this node knows, and when a leader may begin to act as one.

use crate::NodeId;

/// One uninterrupted leadership of one node. The proof of it is asked for with every proposal, so
/// that what was decided in one office is never proposed in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Office {
    /// The term, new with every election.
    pub term: u64,
    /// The node that was elected in it: the one that reports this office.
    pub node: NodeId,
}

/// The role of this node, as its server has to act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// Another node leads, or nobody, or this node was elected and has not yet applied the first
    /// entry of its own term (`leader` is `None` then).
    Follower {
        /// The leader, if one is known.
        leader: Option<NodeId>,
    },
    /// This node leads and has applied the first entry of its own term, and so everything that any
    /// leader before it acknowledged. A lost quorum does not end an office: proposals then fail.
    Leader(Office),
}

impl Leadership {
    /// The office held, if this node leads.
    pub fn office(&self) -> Option<Office> {
        match self {
            Leadership::Follower { .. } => None,
            Leadership::Leader(office) => Some(*office),
        }
    }

    /// The node that leads, if one is known.
    pub fn leader(&self) -> Option<NodeId> {
        match self {
            Leadership::Follower { leader } => *leader,
            Leadership::Leader(office) => Some(office.node),
        }
    }
}
