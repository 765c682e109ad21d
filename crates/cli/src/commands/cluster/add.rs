//! `tenure cluster add`: new nodes learn everything first, then vote. Several are made voters in one change,
//! so that one node becomes three without ever being two.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_client::proto;
use tenure_client::proto::cluster_client::ClusterClient;

use crate::commands::serve::Peers;
use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::render::words::and;

const EXAMPLES: &str = "\
Examples:
  tenure serve --node 4 --peers 1=10.0.0.1:7500,2=10.0.0.2:7500,3=10.0.0.3:7500,4=10.0.0.4:7500 …
                                             first start it, on an empty data directory; it waits
  tenure cluster add 4=10.0.0.4:7500         then add it

One node becomes three; its data and its sessions stay:
  tenure serve --node 1 --peers 1=10.0.0.1:7500 …                   restart it with a port for peers
  tenure serve --node 2 --peers 1=10.0.0.1:7500,2=10.0.0.2:7500 …   start the others, on empty data directories
  tenure serve --node 3 --peers 1=10.0.0.1:7500,3=10.0.0.3:7500 …
  tenure cluster add 2=10.0.0.2:7500 3=10.0.0.3:7500

All nodes of one command learn first and then become voters together. If it is interrupted they stay learners, and the \
same command again finishes the job. One change at a time: the next is refused until this one is done. To replace a \
node, add the new one first and then remove the old one. Numbers are never used again.";

/// The cluster answers within two minutes; a little longer, so that its own words arrive.
const WITHIN: Duration = Duration::from_secs(130);
/// How often the newcomers are looked at while they learn.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Add nodes: they learn everything first, then vote
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// The number of each, and where peers reach it
    #[arg(value_name = "N=HOST:PORT", required = true)]
    pub nodes: Vec<NewNode>,
    /// Go on although there would be two voters, of which none may be lost
    #[arg(long)]
    pub two_voters: bool,
}

/// A node and where peers reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewNode {
    node: u64,
    address: String,
}

impl FromStr for NewNode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Peers(peers) = text.parse()?;
        let mut peers = peers.into_iter();
        match (peers.next(), peers.next()) {
            (Some((node, address)), None) => Ok(NewNode { node, address }),
            _ => Err("give each node as an argument of its own: 2=HOST:PORT 3=HOST:PORT".to_owned()),
        }
    }
}

/// Adds them, and returns when they vote.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    let numbers: Vec<u64> = args.nodes.iter().map(|node| node.node).collect();
    let named = named(&numbers);
    let send = |channel, request| async move { ClusterClient::new(channel).add(request).await };
    let verb = if numbers.len() == 1 { "is" } else { "are" };
    context.output.talk(&format!("{named} {verb} learning what the cluster knows …"));
    let adding = context.operate(request(&args), WITHIN, send);
    let answer = beside(adding, progress(&numbers, context)).await?;
    context.output.tell(
        || result(&args.nodes, &answer.voters),
        |_| match numbers.len() {
            1 => format!("{named} is a voter of the cluster"),
            _ => format!("{named} are voters of the cluster"),
        },
    )?;
    if let Some(remark) = remark(&answer.voters) {
        context.output.talk(&remark);
    }
    Ok(Exit::Done)
}

/// One node goes where every version looks for it; several go where an older one finds none, and refuses.
fn request(args: &Args) -> proto::NodeAddRequest {
    let two_voters = args.two_voters;
    match &args.nodes[..] {
        [NewNode { node, address }] => proto::NodeAddRequest {
            node: *node,
            peer_address: address.clone(),
            two_voters,
            ..proto::NodeAddRequest::default()
        },
        nodes => {
            let new = |new: &NewNode| proto::NewNode { node: new.node, peer_address: new.address.clone() };
            let nodes = nodes.iter().map(new).collect();
            proto::NodeAddRequest { nodes, two_voters, ..proto::NodeAddRequest::default() }
        }
    }
}

fn result(nodes: &[NewNode], voters: &[u64]) -> Value {
    let listed = nodes.iter().map(|new| json!({"node": new.node, "peer_address": new.address}));
    let mut result = json!({"added": true, "nodes": listed.collect::<Vec<_>>()});
    if let [NewNode { node, address }] = nodes {
        result["node"] = json!(node);
        result["peer_address"] = json!(address);
    }
    // An older cluster does not say.
    if !voters.is_empty() {
        result["voters"] = json!(voters);
    }
    result
}

/// What is worth knowing about so many voters.
fn remark(voters: &[u64]) -> Option<String> {
    match voters.len() {
        2 => Some("two voters: while either is down nothing is granted. Have three or five.".to_owned()),
        count if count > 0 && count % 2 == 0 => Some(format!(
            "{count} voters survive no more losses than {}: add another, or remove the one that is to be replaced",
            count - 1
        )),
        _ => None,
    }
}

fn named(numbers: &[u64]) -> String {
    let words: Vec<String> = numbers.iter().map(u64::to_string).collect();
    let word = if numbers.len() == 1 { "node" } else { "nodes" };
    format!("{word} {}", and(&words))
}

/// Does one thing, and another beside it for as long as the first takes.
async fn beside<T>(first: impl Future<Output = T>, other: impl Future<Output = ()>) -> T {
    let other = async {
        other.await;
        std::future::pending().await
    };
    tokio::select! {
        biased;
        done = first => done,
        () = other => unreachable!("it waits for ever"),
    }
}

/// Tells how far the newcomers are whenever that has changed. Whoever cannot be asked is asked again: the
/// command itself says what went wrong.
async fn progress(numbers: &[u64], context: &Context<'_>) {
    let mut report = BTreeMap::new();
    let send = |channel, request| async move { ClusterClient::new(channel).status(request).await };
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Ok(status) = context.read(proto::ClusterStatusRequest::default(), send).await else { continue };
        for (node, line) in lines(&status, numbers) {
            if report.insert(node, line.clone()) != Some(line.clone()) {
                context.output.talk(&line);
            }
        }
    }
}

fn lines(status: &proto::ClusterStatusResponse, numbers: &[u64]) -> Vec<(u64, String)> {
    let furthest = status.nodes.iter().filter_map(|node| node.last_log).max().unwrap_or(0);
    let wanted: BTreeSet<&u64> = numbers.iter().collect();
    let newcomers = status.nodes.iter().filter(|node| wanted.contains(&node.node));
    let line = |node: &proto::NodeStatus| {
        let number = node.node;
        match (node.role.as_str(), node.last_log) {
            ("learner", _) if !node.reachable => format!("node {number} does not answer"),
            ("learner", None) => format!("node {number} has nothing yet"),
            ("learner", Some(last)) => format!("node {number} has {last} of {furthest} entries"),
            _ => format!("node {number} votes"),
        }
    };
    newcomers.map(|node| (node.node, line(node))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(text: &str) -> NewNode {
        text.parse().expect("a node")
    }

    #[test]
    fn nodes_have_a_number_and_a_port_each() {
        assert_eq!(new("4=10.0.0.4:7500"), NewNode { node: 4, address: "10.0.0.4:7500".into() });
        for text in ["", "4", "0=a:1", "4=a", "4=a:1,5=b:1"] {
            assert!(text.parse::<NewNode>().is_err(), "{text}");
        }
    }

    /// An older cluster knows the first two fields alone, and must not make a voter of the first of several.
    #[test]
    fn several_are_not_mistaken_for_one() {
        let one = request(&Args { nodes: vec![new("4=a:1")], two_voters: false });
        assert_eq!((one.node, one.peer_address.as_str(), one.nodes.len()), (4, "a:1", 0));
        let two = request(&Args { nodes: vec![new("2=a:1"), new("3=b:1")], two_voters: false });
        assert_eq!((two.node, two.peer_address.as_str(), two.nodes.len()), (0, "", 2));
    }

    #[test]
    fn the_result_names_all_and_keeps_the_shape_of_one() {
        let one = result(&[new("4=a:1")], &[1, 2, 3, 4]);
        assert_eq!(
            one,
            json!({"added": true, "node": 4, "peer_address": "a:1",
                "nodes": [{"node": 4, "peer_address": "a:1"}], "voters": [1, 2, 3, 4]})
        );
        let two = result(&[new("2=a:1"), new("3=b:1")], &[]);
        let nodes = json!([{"node": 2, "peer_address": "a:1"}, {"node": 3, "peer_address": "b:1"}]);
        assert_eq!(two, json!({"added": true, "nodes": nodes}));
    }

    #[test]
    fn an_even_number_is_remarked_on() {
        assert_eq!(remark(&[1, 2, 3]), None);
        assert!(remark(&[1, 2]).expect("two").contains("either"));
        assert!(remark(&[1, 2, 3, 4]).expect("four").contains("than 3"));
        assert_eq!(remark(&[]), None, "an older cluster does not say");
    }

    #[test]
    fn progress_tells_of_the_newcomers() {
        let node = |node, role: &str, last_log, reachable| proto::NodeStatus {
            node,
            role: role.into(),
            last_log,
            reachable,
            ..proto::NodeStatus::default()
        };
        let status = proto::ClusterStatusResponse {
            nodes: vec![
                node(1, "leader", Some(900), true),
                node(2, "learner", Some(40), true),
                node(3, "learner", None, false),
                node(4, "follower", Some(900), true),
            ],
            ..proto::ClusterStatusResponse::default()
        };
        let said: Vec<String> = lines(&status, &[2, 3, 4]).into_iter().map(|(_, line)| line).collect();
        assert_eq!(said, ["node 2 has 40 of 900 entries", "node 3 does not answer", "node 4 votes"]);
    }
}
