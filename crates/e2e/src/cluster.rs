//! Several `tenure serve` processes that form one cluster.

use std::net::SocketAddr;
use std::time::Duration;

use crate::lan::Lan;
use crate::node::{Node, NodeOptions, free_address};
use crate::wait::{until, until_some};

/// How long a cluster may take to agree on something. Generous: a loaded machine with two cores is slow.
const AGREED_WITHIN: Duration = Duration::from_secs(30);

/// The nodes of a cluster, numbered from 1.
#[derive(Debug)]
pub struct Cluster {
    name: String,
    nodes: Vec<Node>,
    peers: Vec<String>,
    /// Dropped after the nodes that run in it.
    lan: Option<Lan>,
}

impl Cluster {
    /// Prepares nodes that know of each other, without starting them.
    pub fn prepare(name: &str, count: usize) -> Self {
        let peers: Vec<String> = (1..=count).map(|number| format!("{number}={}", free_address())).collect();
        let mut cluster = Self { name: name.to_owned(), nodes: Vec::new(), peers, lan: None };
        cluster.nodes = (1..=count).map(|number| cluster.new_node(number)).collect();
        cluster
    }

    /// Starts a cluster whose nodes are the machines of a network.
    pub fn start_in(name: &str, lan: Lan) -> Self {
        let count = lan.nodes();
        let peers = (1..=count).map(|number| format!("{number}={}:7500", lan.address(number))).collect();
        let mut cluster = Self { name: name.to_owned(), nodes: Vec::new(), peers, lan: Some(lan) };
        cluster.nodes = (1..=count).map(|number| cluster.new_node(number)).collect();
        cluster.start_all();
        cluster
    }

    /// The network that it was started in.
    pub fn lan(&self) -> &Lan {
        self.lan.as_ref().expect("it was started in a network")
    }

    /// Starts a cluster on fresh data and waits until every node serves.
    pub fn start(name: &str, count: usize) -> Self {
        let mut cluster = Self::prepare(name, count);
        cluster.start_all();
        cluster
    }

    fn start_all(&mut self) {
        for node in &mut self.nodes {
            node.spawn();
        }
        self.wait_ready();
    }

    /// The same, with further arguments of `tenure serve` for every node.
    pub fn start_with(name: &str, count: usize, arguments: &[String]) -> Self {
        let mut cluster = Self::prepare(name, count);
        for node in &mut cluster.nodes {
            node.add_arguments(arguments);
        }
        cluster.start_all();
        cluster
    }

    /// Where other nodes reach a node.
    pub fn peer_address(&self, number: usize) -> SocketAddr {
        let (_, address) = self.peers[number - 1].split_once('=').expect("a number and an address");
        address.parse().expect("an address of this machine")
    }

    /// Prepares one more node, which knows of all others and itself, and gives its number and peer address as
    /// `tenure cluster add` wants them.
    pub fn prepare_another(&mut self) -> (usize, String) {
        let number = self.nodes.len() + 1;
        let peer = format!("{number}={}", free_address());
        self.peers.push(peer.clone());
        let node = self.new_node(number);
        self.nodes.push(node);
        (number, peer)
    }

    fn new_node(&self, number: usize) -> Node {
        let mut arguments =
            ["--node", &number.to_string(), "--peers", &self.peers.join(",")].map(String::from).to_vec();
        let placed = self.lan.as_ref().map(|lan| {
            arguments.push("--insecure".to_owned());
            (lan.namespace(number), SocketAddr::new(lan.address(number), 7400))
        });
        let options = NodeOptions { arguments, placed, ..NodeOptions::default() };
        Node::prepare(&format!("{}-{number}", self.name), options)
    }

    /// Waits until every node serves.
    #[track_caller]
    pub fn wait_ready(&mut self) {
        for node in &mut self.nodes {
            node.wait_ready();
        }
    }

    /// How many nodes there are.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Where clients reach the nodes, in their order.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(Node::address).collect()
    }

    /// The same as clients want them.
    pub fn endpoints(&self) -> String {
        self.nodes.iter().map(Node::endpoint).collect::<Vec<_>>().join(",")
    }

    /// The same, beginning with another node.
    pub fn addresses_from(&self, first: usize) -> Vec<SocketAddr> {
        let mut addresses = self.addresses();
        let count = addresses.len();
        addresses.rotate_left(first % count);
        addresses
    }

    /// A node by its number.
    pub fn node(&self, number: usize) -> &Node {
        &self.nodes[number - 1]
    }

    /// The same, to be started, killed and so on.
    pub fn node_mut(&mut self, number: usize) -> &mut Node {
        &mut self.nodes[number - 1]
    }

    /// All nodes but one.
    pub fn others(&self, number: usize) -> Vec<usize> {
        (1..=self.count()).filter(|other| *other != number).collect()
    }

    /// Who leads, as this node sees it now.
    pub fn leader_seen_by(&self, number: usize) -> Option<usize> {
        let mut http = self.node(number).http().with_limit(Duration::from_secs(2));
        let reply = http.call("GET", "/v1/cluster", None).ok()?;
        reply.json()["leader"].as_u64().map(|leader| leader as usize)
    }

    /// Waits until these nodes agree on who among them leads, and serve.
    #[track_caller]
    pub fn leader_among(&self, numbers: &[usize]) -> usize {
        until_some("the nodes agree on a leader", AGREED_WITHIN, || {
            let seen: Vec<_> = numbers.iter().map(|number| self.leader_seen_by(*number)).collect();
            let leader = seen[0].filter(|leader| numbers.contains(leader))?;
            let ready = |number: &usize| {
                let mut http = self.node(*number).http().with_limit(Duration::from_secs(2));
                http.call("GET", "/readyz", None).is_ok_and(|reply| reply.status == 200)
            };
            (seen.iter().all(|seen| *seen == Some(leader)) && numbers.iter().all(ready)).then_some(leader)
        })
    }

    /// Waits until all nodes agree on who leads, and serve.
    #[track_caller]
    pub fn leader(&self) -> usize {
        self.leader_among(&(1..=self.count()).collect::<Vec<_>>())
    }

    /// Waits until a node has ended by itself.
    #[track_caller]
    pub fn wait_ended(&mut self, number: usize) {
        let node = self.node_mut(number);
        until("the node ends", AGREED_WITHIN, || !node.is_alive());
    }
}
