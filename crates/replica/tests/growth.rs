//! One node becomes three, in place: nothing it knew is lost, there are never two voters on the way, and what
//! was interrupted is brought to its end.

mod common;

use common::wires::{Switch, Wire, address};
use common::{Ledger, entries, leader_term, propose};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tenure_replica::{Config, MembershipError, Newcomer, NodeId, Replica, SimDisk, StartError, Status};

/// Far more than anything here takes; a test that runs into it has failed.
const LONG: Duration = Duration::from_secs(20);

#[derive(Default)]
struct World {
    switch: Switch,
    disks: BTreeMap<NodeId, SimDisk>,
}

impl World {
    async fn try_start(&mut self, config: Config) -> Result<Replica<Ledger>, StartError> {
        let node = config.node;
        let disk = self.disks.entry(node).or_default().clone();
        Replica::start(config, Arc::new(disk), self.switch.port(node), Ledger::default()).await
    }

    async fn start(&mut self, config: Config) -> Replica<Ledger> {
        self.try_start(config).await.expect("the node starts")
    }

    /// A single node that has written something, stopped.
    async fn single(&mut self) -> Status {
        let alone = self.start(Config::single(1)).await;
        let leader_term = leader_term(&alone).await;
        for number in 0..20u8 {
            propose(&alone, leader_term, &[number]).await.expect("a single node acknowledges");
        }
        let status = alone.status();
        alone.shutdown().await;
        status
    }

    /// The same node with a port for peers.
    async fn first(&mut self) -> Replica<Ledger> {
        self.start(member(1, &[1])).await
    }

    /// Two empty nodes that wait to be added.
    async fn others(&mut self) -> [Replica<Ledger>; 2] {
        [self.start(member(2, &[1, 2])).await, self.start(member(3, &[1, 2, 3])).await]
    }
}

fn member(node: NodeId, peers: &[NodeId]) -> Config {
    Config::member(node, peers.iter().map(|peer| (*peer, address(*peer))).collect())
}

fn newcomers(nodes: &[Replica<Ledger>]) -> Vec<Newcomer> {
    let newcomer = |node: &Replica<Ledger>| Newcomer {
        node: node.node(),
        address: address(node.node()),
        identity: node.status().identity,
    };
    nodes.iter().map(newcomer).collect()
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let holds = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, holds).await.expect(what);
}

/// Where a node believes that another is reached.
fn known_address(node: &Replica<Ledger>, other: NodeId) -> Option<String> {
    node.status().peers.into_iter().find(|peer| peer.node == other).map(|peer| peer.address)
}

fn is_grown(node: &Replica<Ledger>) -> bool {
    let status = node.status();
    status.voters == [1, 2, 3] && !status.changing && status.learners.is_empty()
}

/// Writes through whoever of these leads.
async fn write(nodes: &[&Replica<Ledger>], entry: &[u8]) {
    let written = async {
        loop {
            for node in nodes {
                let leader_term = node.leadership().borrow().leader_term();
                if let Some(leader_term) = leader_term
                    && propose(node, leader_term, entry).await.is_ok()
                {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, written).await.expect("an entry is acknowledged in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_voter_becomes_three_without_being_two() {
    let mut world = World::default();
    let before = world.single().await;
    let first = world.first().await;
    let leader_term = leader_term(&first).await;
    assert!(leader_term.term > before.term);
    assert_eq!(first.status().cluster, before.cluster, "it is the same cluster");
    assert_eq!(first.status().identity, before.identity);
    assert_eq!(entries(&first).len(), 20, "with everything it knew");

    let others = world.others().await;
    let watched = [first.clone(), others[0].clone(), others[1].clone()];
    let watching = tokio::spawn(async move {
        let mut voters = BTreeSet::new();
        while !voters.contains(&vec![1, 2, 3]) {
            voters.extend(watched.iter().map(|node| node.status().voters));
            tokio::task::yield_now().await;
        }
        voters
    });
    first.add_learners(newcomers(&others)).await.expect("both learn");
    let status = first.status();
    assert_eq!((status.voters, status.learners), (vec![1], vec![2, 3]));
    first.promote(vec![2, 3]).await.expect("both vote");
    assert!(is_grown(&first), "{:?}", first.status());
    let voters = tokio::time::timeout(LONG, watching).await.expect("in time").expect("no panic");
    assert_eq!(voters, BTreeSet::from([vec![], vec![1], vec![1, 2, 3]]), "an empty node knows of none");
    for other in &others {
        assert_eq!(known_address(other, 1), Some(address(1)), "they know where it listens");
    }

    // The first one was the whole cluster; now it is not missed.
    first.shutdown().await;
    write(&[&others[0], &others[1]], b"without the first").await;

    // It comes back without being told who it is: it listens where its membership says, and follows or leads.
    let first = world.start(Config::single(1)).await;
    assert_eq!((first.is_alone(), first.peer_address()), (false, address(1).as_str()));
    until("it has what it missed", || entries(&first).contains(&b"without the first".to_vec())).await;
    others[0].shutdown().await;
    write(&[&first, &others[1]], b"without the second").await;
    first.shutdown().await;
    others[1].shutdown().await;
}

/// Leaders are lost at both places where a growth can stop: with learners, and between the two steps of the
/// change of voters. The first goes on when it is asked for again, the second by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_interrupted_is_brought_to_its_end() {
    let mut world = World::default();
    world.single().await;
    let first = world.first().await;
    leader_term(&first).await;
    let others = world.others().await;
    first.add_learners(newcomers(&others)).await.expect("both learn");
    first.shutdown().await;

    let first = world.first().await;
    leader_term(&first).await;
    let status = first.status();
    assert_eq!((status.voters, status.learners), (vec![1], vec![2, 3]), "learners stay learners");
    first.add_learners(newcomers(&others)).await.expect("they have caught up");
    // The first step reaches nobody else, and nobody waits for the answer.
    world.switch.isolate(1, Wire::Silent);
    let promoted = tokio::time::timeout(Duration::from_millis(50), first.promote(vec![2, 3])).await;
    assert!(promoted.is_err(), "{promoted:?}");
    until("the change has begun", || first.status().changing).await;
    first.shutdown().await;
    world.switch.isolate(1, Wire::Whole);

    let first = world.first().await;
    let nodes = [&first, &others[0], &others[1]];
    until("the change has ended everywhere", || nodes.iter().all(|node| is_grown(node))).await;
    write(&nodes, b"three").await;
    let lead = nodes.into_iter().find(|node| node.leadership().borrow().leader_term().is_some());
    lead.expect("somebody has just written").promote(vec![2, 3]).await.expect("asked for again, it is done");
    first.shutdown().await;
    write(&[&others[0], &others[1]], b"without the first").await;
    for node in &others {
        node.shutdown().await;
    }
}

/// Whoever stops waiting does not stop the change half way: the leader goes on with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_nobody_waits_for_ends_all_the_same() {
    let mut world = World::default();
    world.single().await;
    let first = world.first().await;
    leader_term(&first).await;
    let others = world.others().await;
    first.add_learners(newcomers(&others)).await.expect("both learn");
    for other in [2, 3] {
        world.switch.isolate(other, Wire::Cut);
    }
    let promoted = tokio::time::timeout(Duration::from_millis(50), first.promote(vec![2, 3])).await;
    assert!(promoted.is_err(), "{promoted:?}");
    for other in [2, 3] {
        world.switch.isolate(other, Wire::Whole);
    }
    until("it has ended", || others.iter().all(is_grown)).await;
    for node in [&first, &others[0], &others[1]] {
        node.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sole_voter_that_moves_says_where_to() {
    let mut world = World::default();
    world.single().await;
    let first = world.first().await;
    leader_term(&first).await;
    let second = world.start(member(2, &[1, 2])).await;
    first.add_learners(newcomers(std::slice::from_ref(&second))).await.expect("it learns");
    first.shutdown().await;
    let elsewhere = BTreeMap::from([(1, "node-9".to_owned())]);
    let first = world.start(Config::member(1, elsewhere)).await;
    until("the other knows", || known_address(&second, 1).as_deref() == Some("node-9")).await;
    // A number with another directory behind it is as little welcome as ever.
    let stranger = Newcomer { identity: "00ff".into(), ..newcomers(std::slice::from_ref(&second)).remove(0) };
    let refused = first.add_learners(vec![stranger]).await;
    assert!(matches!(refused, Err(MembershipError::Refused(_))), "{refused:?}");
    first.shutdown().await;
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_combinations_say_what_to_do() {
    let mut world = World::default();
    world.single().await;
    let refusal = |started: Result<Replica<Ledger>, StartError>| match started {
        Err(StartError::Configuration(why)) => why,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it has started"),
    };
    // Others that were never added.
    let why = refusal(world.try_start(member(1, &[1, 2, 3])).await);
    assert!(why.contains("--node 1 --peers 1=node-1,"), "{why}");
    assert!(why.contains("tenure cluster add 2=node-2 3=node-3"), "{why}");
    // Another number.
    let taken = world.disks[&1].clone();
    world.disks.insert(4, taken);
    let why = refusal(world.try_start(member(4, &[4])).await);
    assert!(why.contains("belongs to node 1"), "{why}");

    // Nothing of that has changed the directory. Once it has an address, others in the flags are only
    // remarked on.
    let first = world.start(Config::member(1, BTreeMap::from([(1, "10.0.0.1:7500".to_owned())]))).await;
    leader_term(&first).await;
    first.promote(vec![1]).await.expect("a change of nothing, after the address has been entered");
    first.trigger_snapshot().await.expect("it takes a snapshot");
    until("the snapshot has the address", || first.status().snapshot_index == first.status().applied).await;
    first.shutdown().await;
    // An address in the membership is listened on without flags, if it may be.
    let alone = || Config { beyond_this_machine: false, ..Config::single(1) };
    let why = refusal(world.try_start(alone()).await);
    assert!(why.contains("10.0.0.1:7500") && why.contains("--insecure"), "{why}");
    let first = world.start(Config::single(1)).await;
    assert_eq!(first.peer_address(), "10.0.0.1:7500");
    first.shutdown().await;
    let first = world.start(member(1, &[1, 2, 3])).await;
    leader_term(&first).await;
    assert_eq!(entries(&first).len(), 20);
    first.shutdown().await;
}
