//! The numbers of removed members. They are refused for ever: the votes of another node under such a number
//! would be counted as those of the removed one.
//!
//! No command lists the removed members. They follow from the memberships in the log, so every replica
//! computes the same set; snapshots contain it.

use super::types::Member;
use crate::NodeId;
use openraft::Membership;
use parking_lot::RwLock;
use std::collections::BTreeSet;
use std::sync::Arc;

/// See the module. Clones are the same set.
#[derive(Clone, Default)]
pub(crate) struct Removed(Arc<RwLock<BTreeSet<NodeId>>>);

impl Removed {
    /// Takes in that one membership took the place of another.
    pub fn follow(&self, before: &Membership<NodeId, Member>, after: &Membership<NodeId, Member>) {
        let gone = before.nodes().map(|(node, _)| *node).filter(|node| after.get_node(node).is_none());
        self.0.write().extend(gone);
    }

    /// Takes the set of a snapshot.
    pub fn set(&self, nodes: BTreeSet<NodeId>) {
        *self.0.write() = nodes;
    }

    /// Whether a node was removed.
    pub fn contains(&self, node: NodeId) -> bool {
        self.0.read().contains(&node)
    }

    /// All of them.
    pub fn all(&self) -> BTreeSet<NodeId> {
        self.0.read().clone()
    }
}

/// What is said to whoever comes under the number of a removed node.
pub(crate) fn was_removed(node: NodeId) -> String {
    format!(
        "node {node} was removed from this cluster, and node numbers are never used again: start it with an empty data \
         directory under a number that was never used, and add that one"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn membership(configs: &[&[NodeId]]) -> Membership<NodeId, Member> {
        let configs: Vec<BTreeSet<_>> =
            configs.iter().map(|voters| voters.iter().copied().collect()).collect();
        let nodes: BTreeMap<_, _> = configs.iter().flatten().map(|node| (*node, Member::default())).collect();
        Membership::new(configs, nodes).expect("a valid membership")
    }

    #[test]
    fn who_is_gone_from_the_membership_was_removed() {
        let removed = Removed::default();
        let steps = [
            membership(&[&[1, 2, 3]]),
            membership(&[&[1, 2, 3], &[1, 2]]),
            membership(&[&[1, 2]]),
            membership(&[&[1, 2, 4]]),
            membership(&[&[2, 4]]),
        ];
        let mut seen = Vec::new();
        for pair in steps.windows(2) {
            removed.follow(&pair[0], &pair[1]);
            seen.push(removed.all().into_iter().collect::<Vec<_>>());
        }
        assert_eq!(seen, [vec![], vec![3], vec![3], vec![1, 3]], "not before the joint membership is over");
    }
}
