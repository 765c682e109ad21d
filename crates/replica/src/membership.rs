//! Membership changes: one at a time, and what a new leader completes.
//!
//! The engine changes voters in two steps: first a joint membership, in which the old and the new voters must
//! agree, then the new one alone. The node that started the change takes the second step. A leader that is
//! lost in between leaves the joint membership behind, and the cluster would keep needing voters that were to
//! be removed. The next leader takes the second step here. A single node that was given a port for peers
//! enters its address here, too.
//!
//! A leader also enters the keys of members here: its own, and that of every member that has proved one together with the
//! identity that the membership remembers. A key that was entered stays: only a sole voter changes its own.

use crate::engine::{Engine, KEYS_SINCE, Member, Types};
use crate::leadership::Leadership;
use crate::peer::Agreed;
use crate::{Config, NodeId};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::raft::ClientWriteResponse;
use openraft::{ChangeMembers, Membership, RaftMetrics, ServerState};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tenure_tls::KeyHash;
use tokio::sync::{Mutex, watch};

/// How often a leader looks whether keys may be entered that it could not enter: every member has to be able to read
/// them.
const KEYS_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What members have proved: identity and key of each.
type Proved = BTreeMap<NodeId, (u128, KeyHash)>;

/// What the engine says to a change that was not made.
pub(crate) type Refusal = RaftError<Types, ClientWriteError<Types>>;

/// Whether a change of voters has begun and not ended.
pub(crate) fn is_joint(membership: &Membership<NodeId, Member>) -> bool {
    membership.get_joint_config().len() > 1
}

/// Whether `node` alone decides.
pub(crate) fn is_sole_voter(membership: &Membership<NodeId, Member>, node: NodeId) -> bool {
    membership.voter_ids().eq([node])
}

/// The membership of one replica, to be changed. Clones share the turn.
#[derive(Clone)]
pub(crate) struct Changes {
    engine: Engine,
    node: NodeId,
    /// Where peers reach this node; empty if they do not.
    address: String,
    /// The key of this node, if it has one.
    key: Option<KeyHash>,
    /// What the others have proved to this node.
    proofs: watch::Receiver<Proved>,
    /// Whether keys may be in the membership yet.
    agreed: Agreed,
    /// How long a change that was found may take to be applied.
    patience: Duration,
    /// Held while a change is made.
    turn: Arc<Mutex<()>>,
}

impl Changes {
    pub fn new(engine: Engine, config: &Config, proofs: watch::Receiver<Proved>) -> Self {
        let address = config.peers.get(&config.node).cloned().unwrap_or_default();
        let patience = 2 * config.timing.election_max;
        let (key, agreed) = (config.key, config.agreed.clone());
        Self { engine, node: config.node, address, key, proofs, agreed, patience, turn: Arc::default() }
    }

    /// Makes a change, after whatever had to be put right before. It goes on to its end even if nobody waits
    /// for it any more: half of it would leave a joint membership.
    pub async fn make(
        &self,
        change: ChangeMembers<NodeId, Member>,
    ) -> Result<ClientWriteResponse<Types>, Refusal> {
        let this = self.clone();
        let made = tokio::spawn(async move {
            let _turn = this.turn.lock().await;
            this.put_right_now().await?;
            this.engine.change_membership(change, false).await
        });
        match made.await {
            Ok(made) => made,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is going down, and whoever waits with it.
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// Puts right what a leader before left, or what this node's start has changed.
    pub async fn put_right(&self) -> Result<(), Refusal> {
        let _turn = self.turn.lock().await;
        self.put_right_now().await
    }

    async fn put_right_now(&self) -> Result<(), Refusal> {
        loop {
            self.applied().await;
            let membership = self.engine.metrics().borrow_watched().membership_config.membership().clone();
            let Some(change) = self.due(&membership) else { return Ok(()) };
            self.engine.change_membership(change.clone(), false).await?;
            match change {
                ChangeMembers::SetNodes(nodes) => {
                    let nodes: Vec<NodeId> = nodes.into_keys().collect();
                    tracing::info!(?nodes, "addresses or keys that were due are in the membership now");
                }
                _ => tracing::info!("a change of voters that was interrupted has been brought to its end"),
            }
        }
    }

    /// What is to be changed about a membership.
    fn due(&self, membership: &Membership<NodeId, Member>) -> Option<ChangeMembers<NodeId, Member>> {
        due(membership, self.node, &self.address).or_else(|| {
            let keys = due_keys(membership, self.node, self.key, &self.proofs.borrow());
            // A cluster of an older format version may have members that cannot read keys. Who has proved one can.
            let read_by =
                |(node, member): (&NodeId, &Member)| member.key.is_some() || keys.contains_key(node);
            let known = self.agreed.get() >= KEYS_SINCE || membership.nodes().all(read_by);
            (known && !keys.is_empty()).then_some(ChangeMembers::SetNodes(keys))
        })
    }

    /// Whether there are keys that a leader would enter, if it may.
    fn lacks_keys(&self) -> bool {
        let metrics = self.engine.metrics();
        let membership = metrics.borrow_watched().membership_config.membership().clone();
        !due_keys(&membership, self.node, self.key, &self.proofs.borrow()).is_empty()
    }

    /// Waits until the membership in force is applied, and with it who was removed by it; at most as long as
    /// an election would take. Whether it is. (A change on top of one that is not committed is refused by the
    /// engine.)
    pub async fn applied(&self) -> bool {
        let changed_at =
            |metrics: &RaftMetrics<Types>| metrics.membership_config.log_id().as_ref().map(|id| id.index());
        let applied = |metrics: &RaftMetrics<Types>| {
            metrics.last_applied.as_ref().map(|id| id.index()) >= changed_at(metrics)
                || metrics.state != ServerState::Leader
        };
        let waiting = self.engine.wait(Some(self.patience));
        waiting.metrics(applied, "the membership is applied").await.is_ok()
    }

    /// Puts things right whenever this node begins to lead, and while it does.
    pub async fn watch(mut self, mut leadership: watch::Receiver<Leadership>, pause: Duration) {
        loop {
            let Ok(leader_term) =
                leadership.wait_for(|now| now.leader_term().is_some()).await.map(|now| now.leader_term())
            else {
                return;
            };
            while let Err(error) = self.put_right().await {
                tracing::debug!(%error, "the membership could not be put right yet");
                tokio::time::sleep(pause).await;
                if leadership.borrow().leader_term() != leader_term {
                    break;
                }
            }
            let again = self.lacks_keys();
            tokio::select! {
                biased;
                over = leadership.wait_for(|now| now.leader_term() != leader_term) => {
                    if over.is_err() {
                        return;
                    }
                }
                // The sender lives as long as the replica.
                Ok(()) = self.proofs.changed() => {}
                () = tokio::time::sleep(KEYS_AGAIN_AFTER), if again => {}
            }
        }
    }
}

/// What a leader has to change about the membership that it finds. Only a sole voter enters its own address:
/// where it decides alone nobody can be misled by it, and where it does not, others reach it at the address
/// that they know.
fn due(
    membership: &Membership<NodeId, Member>,
    node: NodeId,
    address: &str,
) -> Option<ChangeMembers<NodeId, Member>> {
    if is_joint(membership) {
        // Nobody is added to the voters of the last step: all that is left is to make it the only one.
        return Some(ChangeMembers::AddVoterIds(BTreeSet::new()));
    }
    let own = membership.get_node(&node)?;
    let moved = !address.is_empty() && own.address != address;
    (moved && is_sole_voter(membership, node)).then(|| {
        let member = Member { address: address.to_owned(), ..own.clone() };
        ChangeMembers::SetNodes(BTreeMap::from([(node, member)]))
    })
}

/// The members whose keys are to be entered, with them. A member that has proved a key has none yet, and came with the
/// identity that the membership remembers. This node knows its own key; who decides alone may also change it.
fn due_keys(
    membership: &Membership<NodeId, Member>,
    node: NodeId,
    own_key: Option<KeyHash>,
    proved: &Proved,
) -> BTreeMap<NodeId, Member> {
    // Nobody enters keys who has none to show: then this cluster does not speak TLS.
    let Some(own_key) = own_key else { return BTreeMap::new() };
    let due = |(number, member): (&NodeId, &Member)| {
        let key = match (*number == node, member.key) {
            (true, None) => own_key,
            (true, Some(known)) if known != own_key && is_sole_voter(membership, node) => own_key,
            (false, None) => proved.get(number).filter(|(identity, _)| *identity == member.identity)?.1,
            _ => return None,
        };
        Some((*number, Member { key: Some(key), ..member.clone() }))
    };
    membership.nodes().filter_map(due).collect()
}

/// What to say if this node listens elsewhere than the others look for it. It may be another name of the same
/// place, so it is no reason to refuse the start.
pub(crate) fn moved(membership: &Membership<NodeId, Member>, node: NodeId, listens: &str) -> Option<String> {
    let known = &membership.get_node(&node)?.address;
    (listens != known && !listens.is_empty() && !known.is_empty()).then(|| {
        format!(
            "node {node} listens for peers at {listens}, and the other nodes reach it at {known}, as the membership says. If \
             that is another name of the same place, nothing is to be done. If it has moved, {}",
            replace_it(node)
        )
    })
}

/// What to do about a member of a larger cluster that has moved.
pub(crate) fn replace_it(node: NodeId) -> String {
    format!(
        "replace it: start a new node under a new number on an empty data directory, `tenure cluster add` that, then \
         `tenure cluster remove {node}`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn membership(configs: &[&[NodeId]], own_address: &str) -> Membership<NodeId, Member> {
        let configs: Vec<BTreeSet<_>> =
            configs.iter().map(|voters| voters.iter().copied().collect()).collect();
        let mut nodes: BTreeMap<_, _> = (1..=3).map(|node| (node, Member::default())).collect();
        nodes.insert(1, Member { address: own_address.into(), identity: 7, key: None });
        Membership::new(configs, nodes).expect("a valid membership")
    }

    #[test]
    fn a_sole_voter_enters_its_address_and_keeps_its_identity() {
        let Some(ChangeMembers::SetNodes(set)) = due(&membership(&[&[1]], ""), 1, "a:1") else {
            panic!("the membership does not have the address");
        };
        assert_eq!(set, BTreeMap::from([(1, Member { address: "a:1".into(), identity: 7, key: None })]));
        assert!(due(&membership(&[&[1]], "b:1"), 1, "a:1").is_some(), "it has moved");
        assert!(due(&membership(&[&[1]], "a:1"), 1, "a:1").is_none(), "it is there");
        assert!(due(&membership(&[&[1]], "a:1"), 1, "").is_none(), "nothing is taken out");
        assert!(due(&membership(&[&[1, 2, 3]], "b:1"), 1, "a:1").is_none(), "others know it elsewhere");
        assert!(due(&membership(&[&[2]], ""), 1, "a:1").is_none(), "it does not vote");
    }

    #[test]
    fn a_key_is_entered_once_and_only_with_the_remembered_identity() {
        let (own, other, thief) = (KeyHash([1; 32]), KeyHash([2; 32]), KeyHash([3; 32]));
        let with_keys = |keys: &[(NodeId, KeyHash)], configs: &[&[NodeId]]| {
            let plain = membership(configs, "a:1");
            let mut nodes: BTreeMap<_, _> =
                plain.nodes().map(|(node, member)| (*node, member.clone())).collect();
            for (node, key) in keys {
                nodes.get_mut(node).expect("a member").key = Some(*key);
            }
            Membership::new(plain.get_joint_config().clone(), nodes).expect("a valid membership")
        };
        let three: &[&[NodeId]] = &[&[1, 2, 3]];
        let due = |members: &Membership<NodeId, Member>, proved: &[(NodeId, u128, KeyHash)]| {
            let proved = proved.iter().map(|(node, identity, key)| (*node, (*identity, *key))).collect();
            let due = due_keys(members, 1, Some(own), &proved);
            due.into_iter().map(|(node, member)| (node, member.key.expect("a key"))).collect::<Vec<_>>()
        };
        let none = with_keys(&[], three);
        assert_eq!(due(&none, &[]), [(1, own)], "its own, without being asked");
        assert_eq!(due(&none, &[(2, 0, other)]), [(1, own), (2, other)]);
        assert_eq!(
            due(&none, &[(2, 9, thief), (4, 0, thief)]),
            [(1, own)],
            "another directory, and no member"
        );
        let entered = with_keys(&[(1, own), (2, other)], three);
        assert_eq!(due(&entered, &[(2, 0, thief)]), [], "what was entered stays");
        let moved = with_keys(&[(1, thief)], three);
        assert_eq!(due(&moved, &[]), [], "the others know this node by another key");
        assert_eq!(due(&with_keys(&[(1, thief)], &[&[1]]), &[]), [(1, own)], "it decides alone");
        assert_eq!(due_keys(&none, 1, None, &BTreeMap::new()), BTreeMap::new(), "no TLS, no keys");
    }

    #[test]
    fn a_member_that_listens_elsewhere_is_told_how_to_move() {
        let members = membership(&[&[1, 2, 3]], "a:1");
        let warning = moved(&members, 1, "b:1").expect("the others look for it at a:1");
        for part in ["node 1", "at b:1", "at a:1", "tenure cluster add", "tenure cluster remove 1"] {
            assert!(warning.contains(part), "{part} is missing: {warning}");
        }
        assert_eq!(moved(&members, 1, "a:1"), None, "it is where it is looked for");
        assert_eq!(moved(&members, 1, ""), None, "it was started without peers");
        assert_eq!(moved(&members, 4, "b:1"), None, "it is no member yet");
    }

    #[test]
    fn a_joint_membership_is_ended_first() {
        for configs in [[&[1][..], &[1, 2, 3]], [&[1, 2, 3], &[1]]] {
            let change = due(&membership(&configs, ""), 1, "a:1");
            assert!(matches!(change, Some(ChangeMembers::AddVoterIds(none)) if none.is_empty()));
        }
    }
}
