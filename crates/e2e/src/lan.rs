//! A small network of its own: one namespace per node on one bridge, so that a test can cut who reaches whom. Packets
//! are dropped, not refused: silence is what a partition looks like.
//!
//! Needs root, `ip` and `nft`; without them a test says so and is counted as skipped.

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::program::{find, skipped, skipped_without};

/// Whom a node is cut off from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The other nodes.
    Peers,
    /// The test itself, which is the only client there.
    Clients,
}

/// The place of the test itself in the network.
const OUTSIDE: usize = 254;

/// The network. It is taken down when dropped.
#[derive(Debug)]
pub struct Lan {
    name: String,
    /// The second and third number of every address.
    net: [u8; 2],
    nodes: usize,
}

impl Lan {
    /// True if such a network cannot be made here: the test returns then, and is counted as skipped.
    pub fn missing(test: &str) -> bool {
        if skipped_without("ip", test) || skipped_without("nft", test) {
            return true;
        }
        let root = rustix::process::geteuid().is_root();
        if !root {
            skipped(&format!("{test} needs root, for network namespaces"));
        }
        !root
    }

    /// A network with room for so many nodes, if one can be made here: for tests that have more to do with one, and enough without.
    pub fn if_possible(nodes: usize) -> Option<Self> {
        let tools = find("ip").is_some() && find("nft").is_some();
        (tools && rustix::process::geteuid().is_root()).then(|| Self::new(nodes))
    }

    /// A network with room for so many nodes.
    pub fn new(nodes: usize) -> Self {
        static NEXT: AtomicU8 = AtomicU8::new(0);
        let process = std::process::id();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Interface names have at most 15 characters.
        let name = format!("tn{:x}{number:x}", process % 0x1_0000);
        let lan = Self { name, net: [128 + (process % 100) as u8, number], nodes };
        lan.ip(&["link", "add", &lan.name, "type", "bridge"]);
        lan.ip(&["addr", "add", &format!("{}/24", lan.address(OUTSIDE)), "dev", &lan.name]);
        lan.ip(&["link", "set", &lan.name, "up"]);
        for node in 1..=nodes {
            let (space, outside) = (lan.namespace(node), format!("{}-{node}", lan.name));
            lan.ip(&["netns", "add", &space]);
            lan.ip(&["link", "add", &outside, "type", "veth", "peer", "name", "eth0", "netns", &space]);
            lan.ip(&["link", "set", &outside, "master", &lan.name, "up"]);
            let inside = |arguments: &[&str]| lan.ip(&[&["-n", &space], arguments].concat());
            inside(&["addr", "add", &format!("{}/24", lan.address(node)), "dev", "eth0"]);
            inside(&["link", "set", "eth0", "up"]);
            inside(&["link", "set", "lo", "up"]);
        }
        lan
    }

    /// How many nodes it has room for.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// The address of a node.
    pub fn address(&self, node: usize) -> IpAddr {
        let node = u8::try_from(node).expect("a small network");
        IpAddr::V4(Ipv4Addr::new(10, self.net[0], self.net[1], node))
    }

    /// The namespace that a node runs in.
    pub fn namespace(&self, node: usize) -> String {
        format!("{}-{node}", self.name)
    }

    /// Cuts a node off: from now on nothing goes either way.
    pub fn cut(&self, node: usize, from: Side) {
        let others: Vec<String> = match from {
            Side::Peers => (1..=self.nodes).filter(|other| *other != node).collect(),
            Side::Clients => vec![OUTSIDE],
        }
        .into_iter()
        .map(|other| self.address(other).to_string())
        .collect();
        let others = others.join(", ");
        let rules = format!(
            "table ip cut {{
                chain in {{ type filter hook input priority 0; ip saddr {{ {others} }} drop; }}
                chain out {{ type filter hook output priority 0; ip daddr {{ {others} }} drop; }}
            }}"
        );
        self.nft(node, &rules);
    }

    /// Ends what was cut, if anything was.
    pub fn heal(&self, node: usize) {
        self.nft(node, "add table ip cut\ndelete table ip cut");
    }

    /// From now on `node` receives nothing from these, which receive from it all the same: a cut in one direction.
    pub fn deafen(&self, node: usize, to: &[usize]) {
        if to.is_empty() {
            return;
        }
        let others: Vec<String> = to.iter().map(|other| self.address(*other).to_string()).collect();
        self.fault(node, &format!("ip saddr {{ {} }} drop", others.join(", ")));
    }

    /// From now on packets that match, such as `tcp dport 7500`, do not arrive at `node`, which sends as before.
    pub fn drop_incoming(&self, node: usize, matching: &str) {
        self.fault(node, &format!("{matching} drop"));
    }

    /// From now on nothing goes either way between these and those.
    pub fn part(&self, these: &[usize], those: &[usize]) {
        these.iter().for_each(|node| self.deafen(*node, those));
        those.iter().for_each(|node| self.deafen(*node, these));
    }

    /// From now on `node` loses so many of a hundred packets that are sent to it, by chance.
    pub fn lose(&self, node: usize, percent: u32) {
        self.fault(node, &format!("numgen random mod 100 < {percent} drop"));
    }

    /// From now on `node` sends no more than this. What does not fit into a short queue is lost.
    pub fn throttle(&self, node: usize, kbit_per_second: u32) {
        let rate = format!("{kbit_per_second}kbit");
        let bucket = ["root", "tbf", "rate", &rate, "burst", "16kb", "latency", "200ms"];
        succeed(self.tc(node).args(["replace", "dev", "eth0"]).args(bucket));
    }

    /// Ends what [`deafen`](Self::deafen), [`drop_incoming`](Self::drop_incoming), [`part`](Self::part), [`lose`](Self::lose)
    /// and [`throttle`](Self::throttle) did to it.
    pub fn mend(&self, node: usize) {
        self.nft(node, "add table ip fault\ndelete table ip fault");
        // Fails where nothing was throttled, which is what is wanted.
        let _ = self.tc(node).args(["del", "dev", "eth0", "root"]).output();
    }

    fn fault(&self, node: usize, rule: &str) {
        let chain = "add chain ip fault heard { type filter hook input priority 0 ; }";
        self.nft(node, &format!("add table ip fault\n{chain}\nadd rule ip fault heard {rule}"));
    }

    fn tc(&self, node: usize) -> Command {
        let mut command = Command::new(find("tc").expect("it comes with ip"));
        command.args(["-n", &self.namespace(node), "qdisc"]);
        command
    }

    fn nft(&self, node: usize, rules: &str) {
        let nft = find("nft").expect("the test has asked whether nft is installed");
        let mut command = Command::new(find("ip").expect("the test has asked whether ip is installed"));
        command.args(["netns", "exec", &self.namespace(node)]).arg(nft).arg(rules);
        succeed(&mut command);
    }

    fn ip(&self, arguments: &[&str]) {
        let ip = find("ip").expect("the test has asked whether ip is installed");
        succeed(Command::new(ip).args(arguments));
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        let Some(ip) = find("ip") else { return };
        // The nodes are dead by now; with their namespaces go their ends of the wires.
        for node in 1..=self.nodes {
            let _ = Command::new(&ip).args(["netns", "del", &self.namespace(node)]).status();
        }
        let _ = Command::new(&ip).args(["link", "del", &self.name]).status();
    }
}

fn succeed(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}
