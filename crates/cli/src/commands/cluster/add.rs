//! `tenure cluster add`: a new node learns everything first, then votes.

use std::str::FromStr;
use std::time::Duration;

use serde_json::json;
use tenure_client::proto;
use tenure_client::proto::cluster_client::ClusterClient;

use crate::commands::serve::Peers;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  tenure serve --node 4 --peers 1=10.0.0.1:7500,2=10.0.0.2:7500,3=10.0.0.3:7500,4=10.0.0.4:7500 …
                                             first start it, on an empty data directory; it waits
  tenure cluster add 4=10.0.0.4:7500         then add it

One change at a time: the next is refused until this one is done. To replace a node, add the new one first and then \
remove the old one. Numbers are never used again.";

/// The cluster answers within two minutes; a little longer, so that its own words arrive.
const WITHIN: Duration = Duration::from_secs(130);

/// Add a node: it learns everything first, then votes
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Its number, and where peers reach it
    #[arg(value_name = "N=HOST:PORT")]
    pub node: NewNode,
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
            _ => Err("one node at a time".to_owned()),
        }
    }
}

/// Adds it, and returns when it votes.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, Failure> {
    let NewNode { node, address } = args.node;
    let request = proto::NodeAddRequest { node, peer_address: address.clone() };
    let send = |channel, request| async move { ClusterClient::new(channel).add(request).await };
    context.output.talk(&format!("node {node} is learning what the cluster knows …"));
    context.operate(request, WITHIN, send).await?;
    context.output.tell(
        || json!({"node": node, "peer_address": address, "added": true}),
        |_| format!("node {node} is a voter of the cluster"),
    )?;
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_node_with_a_number_and_a_port() {
        let node = "4=10.0.0.4:7500".parse::<NewNode>().expect("a node");
        assert_eq!(node, NewNode { node: 4, address: "10.0.0.4:7500".into() });
        for text in ["", "4", "0=a:1", "4=a", "4=a:1,5=b:1"] {
            assert!(text.parse::<NewNode>().is_err(), "{text}");
        }
    }
}
