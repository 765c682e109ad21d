//! Who leads, as far as this node knows, and when a leader may begin to act as one.

use crate::NodeId;
use crate::engine::Engine;
use crate::wal::LogId;
use openraft::async_runtime::watch::WatchReceiver;
use tokio::sync::watch;

/// One uninterrupted leadership of one node. The proof of it is asked for with every proposal, so
/// that what was decided in one term is never proposed in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaderTerm {
    /// The term, new with every election.
    pub term: u64,
    /// The node that was elected in it: the one that reports it.
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
    /// leader before it acknowledged. A lost quorum does not end it: proposals then fail.
    Leader(LeaderTerm),
}

impl Leadership {
    /// The term in which this node leads, if it does.
    pub fn leader_term(&self) -> Option<LeaderTerm> {
        match self {
            Leadership::Follower { .. } => None,
            Leadership::Leader(leader_term) => Some(*leader_term),
        }
    }

    /// The node that leads, if one is known.
    pub fn leader(&self) -> Option<NodeId> {
        match self {
            Leadership::Follower { leader } => *leader,
            Leadership::Leader(leader_term) => Some(leader_term.node),
        }
    }
}

/// What the engine says about leading, and what has been applied.
struct Signs {
    /// The term in which the engine has made this node leader, if it has.
    elected_in: Option<u64>,
    /// The term of the last entry applied.
    applied_in: Option<u64>,
    leader: Option<NodeId>,
}

impl Signs {
    /// A leader acts from the first applied entry of its term on: that entry lies behind everything
    /// that was ever acknowledged.
    fn judge(&self, node: NodeId) -> Leadership {
        match self.elected_in {
            Some(term) if self.applied_in == Some(term) => Leadership::Leader(LeaderTerm { term, node }),
            Some(_) => Leadership::Follower { leader: None },
            None => Leadership::Follower { leader: self.leader.filter(|leader| *leader != node) },
        }
    }
}

/// Watches the engine and says who leads. The task ends with the engine.
pub(crate) fn observe(
    engine: &Engine,
    mut applied: watch::Receiver<Option<LogId>>,
) -> watch::Receiver<Leadership> {
    let node = *engine.node_id();
    let mut server = engine.server_metrics();
    let (sender, receiver) = watch::channel(Leadership::Follower { leader: None });
    tokio::spawn(async move {
        loop {
            let signs = {
                let metrics = server.borrow_and_update();
                let leads = metrics.state.is_leader() && metrics.vote.committed;
                Signs {
                    elected_in: leads.then_some(metrics.vote.leader_id.term),
                    applied_in: applied.borrow_and_update().map(|id| id.term),
                    leader: metrics.current_leader,
                }
            };
            let now = signs.judge(node);
            sender.send_if_modified(|last| std::mem::replace(last, now) != now);
            let waits_for_its_first_entry = signs.elected_in.is_some() && now.leader_term().is_none();
            let ended = tokio::select! {
                biased;
                changed = server.changed() => changed.is_err(),
                changed = applied.changed(), if waits_for_its_first_entry => changed.is_err(),
            };
            if ended {
                sender.send_replace(Leadership::Follower { leader: None });
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_acts_from_the_first_applied_entry_of_its_term() {
        let judge = |elected_in, applied_in, leader| Signs { elected_in, applied_in, leader }.judge(1);
        assert_eq!(judge(Some(5), Some(4), Some(1)), Leadership::Follower { leader: None });
        assert_eq!(judge(Some(5), None, Some(1)), Leadership::Follower { leader: None });
        assert_eq!(judge(Some(5), Some(5), Some(1)), Leadership::Leader(LeaderTerm { term: 5, node: 1 }));
        assert_eq!(judge(None, Some(5), Some(2)), Leadership::Follower { leader: Some(2) });
        // The engine still names this node while it is already deposed.
        assert_eq!(judge(None, Some(5), Some(1)), Leadership::Follower { leader: None });
    }
}
