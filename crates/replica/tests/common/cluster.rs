//! A cluster over wires that can be cut, and what every test of one needs.

use super::wires::{Switch, Wire, address};
use super::{Ledger, entries, propose};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tenure_clock::{Clock, SystemClock};
use tenure_replica::{Config, LeaderTerm, LowLatencyOptions, NodeId, PeerSecurity, Replica, SimDisk, Status};
use tenure_tls::{NodeKey, PeerTls, Root};

/// Far more than anything here takes; a test that runs into it has failed.
pub const LONG: Duration = Duration::from_secs(20);

pub struct Cluster {
    pub switch: Switch,
    pub peers: BTreeMap<NodeId, String>,
    pub disks: BTreeMap<NodeId, SimDisk>,
    pub nodes: BTreeMap<NodeId, Replica<Ledger>>,
    pub tune: fn(&mut Config),
    /// Whom the leader believes to serve.
    pub clients: Clients,
    /// How each node secures its connections, if it does.
    pub secured: Option<Secured>,
}

/// The root of a cluster, the key of each of its nodes, and how they use it.
pub struct Secured {
    pub root: Root,
    pub keys: BTreeMap<NodeId, NodeKey>,
    pub mode: fn(PeerTls) -> PeerSecurity,
}

impl Secured {
    pub fn new(mode: fn(PeerTls) -> PeerSecurity) -> Self {
        let text = Root::generate(SystemClock.wall()).expect("a root");
        Self { root: Root::parse(text.as_bytes()).expect("it is read"), keys: BTreeMap::new(), mode }
    }

    /// The key of a node, the same for ever.
    pub fn key(&mut self, node: NodeId) -> NodeKey {
        self.keys.entry(node).or_insert_with(|| NodeKey::generate().expect("a key")).clone()
    }

    fn apply(&mut self, config: &mut Config) {
        let key = self.key(config.node);
        let tls = PeerTls::new(&self.root, config.node, &key, SystemClock.wall()).expect("TLS");
        (config.key, config.security) = (Some(key.hash()), (self.mode)(tls));
    }
}

/// Who is served.
#[derive(Clone, Copy)]
pub enum Clients {
    Several,
    OneAfterAPause,
    OneBackToBack,
}

impl Clients {
    /// Makes a replica believe that it serves them.
    fn served_by(self, replica: &Replica<Ledger>) {
        let options = LowLatencyOptions::default();
        let pause = match self {
            Clients::Several => return replica.caller_detector().entry_sealed(2, 0),
            Clients::OneAfterAPause => 2 * options.spin_max,
            Clients::OneBackToBack => Duration::ZERO,
        };
        let (mut detector, now) = (replica.caller_detector(), tokio::time::Instant::now());
        for _ in 0..options.streak_min {
            detector.wait(0, now);
            detector.request_arrived(0, || now + pause);
            detector.entry_sealed(1, 0);
        }
    }
}

impl Cluster {
    pub fn new(size: u64, tune: fn(&mut Config)) -> Self {
        let peers = (1..=size).map(|node| (node, address(node))).collect();
        let (switch, disks, nodes) = (Switch::default(), BTreeMap::new(), BTreeMap::new());
        Self { switch, peers, disks, nodes, tune, clients: Clients::Several, secured: None }
    }

    /// A cluster whose nodes secure their connections, and know each other by their keys.
    pub async fn secured(size: u64, mode: fn(PeerTls) -> PeerSecurity) -> Self {
        let mut cluster = Self::new(size, |_| ());
        cluster.secured = Some(Secured::new(mode));
        for node in 1..=size {
            cluster.start(node).await;
        }
        cluster.until_keys_are_known().await;
        cluster
    }

    /// Waits until every node knows the key of every member.
    pub async fn until_keys_are_known(&self) {
        let knows = |status: Status| {
            status.key.is_some()
                && !status.voters.is_empty()
                && status.peers.iter().all(|peer| peer.key.is_some())
        };
        self.until(|| self.nodes.values().all(|node| knows(node.status()))).await;
    }

    /// Stops a node in good order, and starts it again.
    pub async fn restart(&mut self, node: NodeId) {
        self.nodes.remove(&node).expect("it is running").shutdown().await;
        self.start(node).await;
    }

    /// A cluster whose nodes are started in their order.
    pub async fn formed(size: u64) -> Self {
        let mut cluster = Self::new(size, |_| ());
        for node in 1..=size {
            cluster.start(node).await;
        }
        cluster
    }

    pub async fn start(&mut self, node: NodeId) {
        let disk = self.disks.entry(node).or_default().clone();
        let mut config = Config::member(node, self.peers.clone());
        (self.tune)(&mut config);
        if let Some(secured) = &mut self.secured {
            secured.apply(&mut config);
        }
        let network = self.switch.port(node);
        let replica = Replica::start(config, Arc::new(disk), network, Ledger::default()).await;
        self.nodes.insert(node, replica.expect("the node starts"));
    }

    /// The power goes: what was not synced may be lost, and nobody is told anything.
    pub async fn kill(&mut self, node: NodeId, seed: u64) {
        self.switch.isolate(node, Wire::Cut);
        self.disks[&node].crash(seed);
        self.nodes.remove(&node).expect("it is running").shutdown().await;
        self.switch.isolate(node, Wire::Whole);
    }

    /// Waits until one of the nodes that are not in `except` leads.
    pub async fn leader_except(&self, except: &[NodeId]) -> (NodeId, LeaderTerm) {
        let leads = async {
            loop {
                for (node, replica) in self.nodes.iter().filter(|(node, _)| !except.contains(node)) {
                    if let Some(leader_term) = replica.leadership().borrow().leader_term() {
                        return (*node, leader_term);
                    }
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, leads).await.expect("somebody leads in time")
    }

    pub async fn leader(&self) -> (NodeId, LeaderTerm) {
        self.leader_except(&[]).await
    }

    /// Proposes through whoever leads until it is acknowledged. An entry whose outcome is unknown may
    /// be there twice afterwards.
    pub async fn write(&self, entry: &[u8], except: &[NodeId]) {
        let written = async {
            loop {
                let (node, leader_term) = self.leader_except(except).await;
                self.clients.served_by(&self.nodes[&node]);
                if propose(&self.nodes[&node], leader_term, entry).await.is_ok() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, written).await.expect("an entry is acknowledged in time");
    }

    /// Waits until `condition` holds.
    pub async fn until(&self, condition: impl Fn() -> bool) {
        let holds = async {
            while !condition() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, holds).await.expect("it comes true in time");
    }

    /// Waits until all nodes have applied the same entries, and returns them; one that was proposed again
    /// because its outcome was unknown, once.
    pub async fn agreed(&self) -> Vec<Vec<u8>> {
        let agreed = async {
            loop {
                let applied: Vec<_> = self.nodes.values().map(|node| node.machine().read().last).collect();
                let mut longest =
                    self.nodes.values().map(entries).max_by_key(Vec::len).expect("there are nodes");
                if applied.windows(2).all(|pair| pair[0] == pair[1]) {
                    for node in self.nodes.values() {
                        assert_eq!(entries(node), longest, "same entry, other history");
                    }
                    longest.dedup();
                    return longest;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, agreed).await.expect("the nodes agree in time")
    }

    pub async fn stop(self) {
        for node in self.nodes.into_values() {
            node.shutdown().await;
        }
    }
}
