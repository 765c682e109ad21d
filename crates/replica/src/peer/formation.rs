//! How a cluster is formed, exactly once, from nodes that are started in any order.
//!
//! Of the nodes named in the flags, the one with the lowest number founds the cluster, and only when every
//! other one has answered that it is empty, and with which identity. These identities are in the first
//! membership, so a wiped node that returns cannot be mistaken for the one that promised something. A node
//! with data never runs this.

use super::frame::FrameReader;
use super::handshake::{Hello, Purpose, Spoken, Versions, forgotten};
use super::network::Network;
use super::secure::PeerSecurity;
use crate::data_dir::{DataDir, Identity};
use crate::engine::{Engine, Member};
use crate::{Config, NodeId};
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

/// After so many rounds in which somebody had a cluster and none had a place for us, nobody is coming.
const UNINVITED_ROUNDS: u32 = 20;

/// What a node should do that has no part in a cluster yet.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// Ask again later.
    Wait,
    /// Found the cluster with these members.
    Found(BTreeMap<NodeId, Member>),
    /// Stop, and say why.
    Refuse(String),
}

/// What a peer answered to a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerAnswer {
    pub identity: Identity,
    /// The identity that its cluster remembers for us.
    remembered: Option<u128>,
    pub refusal: Option<String>,
}

/// Decides from all answers so far.
fn decide(ours: Identity, peers: &BTreeMap<NodeId, String>, answers: &BTreeMap<NodeId, PeerAnswer>) -> Step {
    for answers in answers.values() {
        if answers.remembered.is_some_and(|remembered| remembered != ours.identity) {
            return Step::Refuse(forgotten(ours.node));
        }
    }
    // Somebody has a cluster: its leader comes to us, if we belong to it. Founding another would be
    // the end of the first.
    let others_are_empty =
        answers.values().all(|answers| answers.identity.cluster.is_none() && answers.refusal.is_none());
    let lowest = peers.keys().next() == Some(&ours.node);
    let all_answered = peers.keys().all(|node| *node == ours.node || answers.contains_key(node));
    if !(lowest && all_answered && others_are_empty) {
        return Step::Wait;
    }
    let identity =
        |node: &NodeId| answers.get(node).map_or(ours.identity, |answers| answers.identity.identity);
    let member = |(node, address): (&NodeId, &String)| {
        (*node, Member { address: address.clone(), identity: identity(node), key: None })
    };
    Step::Found(peers.iter().map(member).collect())
}

/// A peer that has a cluster and does not know us in it: nobody will come for this node unasked.
fn uninvited(answers: &BTreeMap<NodeId, PeerAnswer>) -> Option<NodeId> {
    let strangers = |answers: &PeerAnswer| answers.identity.cluster.is_some() && answers.remembered.is_none();
    answers.iter().find(|(_, answers)| strangers(answers)).map(|(node, _)| *node)
}

/// Asks around until this node has a part in a cluster, founding it if that falls to this node.
/// Returns why it must not, if it must not.
pub(crate) async fn form(
    config: &Config,
    network: &dyn Network,
    directory: &DataDir,
    engine: &Engine,
    spoken: &Spoken,
) -> Result<(), String> {
    let mut rounds_uninvited = 0;
    while !engine.is_initialized().await.map_err(|fatal| fatal.to_string())? {
        let ours = directory.identity();
        let mut answers = BTreeMap::new();
        for (node, address) in config.peers.iter().filter(|(node, _)| **node != ours.node) {
            let network = (network, &config.security);
            match probe(network, (ours, config.versions), *node, address, config.timing.election_max).await {
                Ok((answer, versions)) => {
                    spoken.receive(*node, versions);
                    answers.insert(*node, answer);
                }
                Err(error) => tracing::debug!(node, %address, %error, "no answer from a peer yet"),
            }
        }
        // Said once, and not while a cluster is being formed, when word of it travels faster than its
        // members' names: whoever started this node may be waiting for it to join by itself.
        let uninvited = uninvited(&answers);
        rounds_uninvited = uninvited.map_or(0, |_| rounds_uninvited + 1);
        if let Some(member) = uninvited.filter(|_| rounds_uninvited == UNINVITED_ROUNDS) {
            let address = config.peers.get(&ours.node).map_or("", String::as_str);
            match &answers[&member].refusal {
                Some(refusal) => tracing::warn!(%refusal, "node {member} refuses this node"),
                None => tracing::warn!(
                    "node {member} is in a cluster of which this node is no member; waiting to be added: tenure \
                     cluster add {}={address}",
                    ours.node
                ),
            }
        }
        match decide(ours, &config.peers, &answers) {
            Step::Wait => tokio::time::sleep(config.timing.heartbeat).await,
            Step::Refuse(why) => return Err(why),
            Step::Found(members) => {
                // Known before it exists: whoever learns of the cluster learns its name.
                let cluster = ours.cluster.unwrap_or_else(|| config.entropy.draw());
                directory
                    .join(cluster)
                    .map_err(|error| format!("the identity cannot be written: {error}"))?;
                tracing::info!(members = ?members.keys().collect::<Vec<_>>(), "founding the cluster");
                engine.initialize(members).await.map_err(|error| error.to_string())?;
            }
        }
    }
    Ok(())
}

fn not_the_node(address: &str, found: NodeId, node: NodeId) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{address} is node {found}, not node {node}"))
}

/// Asks one peer who it is.
pub(crate) async fn probe(
    (network, security): (&dyn Network, &PeerSecurity),
    (ours, versions): (Identity, Versions),
    node: NodeId,
    address: &str,
    patience: Duration,
) -> io::Result<(PeerAnswer, Versions)> {
    let ask = async {
        let (mut stream, proof) = security.connect(network, address).await?;
        if let Some(proof) = proof.filter(|proof| proof.node != node) {
            return Err(not_the_node(address, proof.node, node));
        }
        Hello::new(Purpose::Probe, ours, node, versions).send(&mut stream).await?;
        Hello::receive(&mut FrameReader::new(stream)).await
    };
    let answer =
        tokio::time::timeout(patience, ask).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    if answer.from.node != node {
        return Err(not_the_node(address, answer.from.node, node));
    }
    let answers =
        PeerAnswer { identity: answer.from, remembered: answer.remembered, refusal: answer.refusal };
    Ok((answers, answer.versions))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers() -> BTreeMap<NodeId, String> {
        (1..=3).map(|node| (node, format!("host-{node}:7401"))).collect()
    }

    fn identity(node: NodeId, cluster: Option<u128>) -> Identity {
        Identity { node, identity: u128::from(node) * 10, cluster }
    }

    fn answers(nodes: &[(NodeId, Option<u128>, Option<u128>)]) -> BTreeMap<NodeId, PeerAnswer> {
        let answer = |(node, cluster, remembered): &(NodeId, Option<u128>, Option<u128>)| {
            (
                *node,
                PeerAnswer { identity: identity(*node, *cluster), remembered: *remembered, refusal: None },
            )
        };
        nodes.iter().map(answer).collect()
    }

    #[test]
    fn only_the_lowest_founds_and_only_when_all_are_empty() {
        let empty =
            |nodes: &[NodeId]| answers(&nodes.iter().map(|node| (*node, None, None)).collect::<Vec<_>>());
        assert_eq!(decide(identity(1, None), &peers(), &empty(&[])), Step::Wait);
        assert_eq!(decide(identity(1, None), &peers(), &empty(&[2])), Step::Wait);
        assert_eq!(decide(identity(2, None), &peers(), &empty(&[1, 3])), Step::Wait);
        let Step::Found(members) = decide(identity(1, None), &peers(), &empty(&[2, 3])) else {
            panic!("all are there and empty");
        };
        assert_eq!(
            members.iter().map(|(node, member)| (*node, member.identity)).collect::<Vec<_>>(),
            [(1, 10), (2, 20), (3, 30)]
        );
        let one_has_data = answers(&[(2, Some(7), Some(10)), (3, None, None)]);
        assert_eq!(decide(identity(1, None), &peers(), &one_has_data), Step::Wait);
    }

    #[test]
    fn a_wiped_node_is_notified() {
        let remembered = answers(&[(2, Some(7), Some(99))]);
        for node in [1, 3] {
            let Step::Refuse(why) = decide(identity(node, None), &peers(), &remembered) else {
                panic!("node {node} was wiped");
            };
            assert!(why.contains("never used"), "{why}");
        }
    }
}
