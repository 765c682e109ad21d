//! Several nodes over wires that can be cut: one cluster, one history, nothing acknowledged is lost.

mod common;

use bytes::Bytes;
use common::cluster::{Clients, Cluster, LONG};
use common::wires::{Wire, address};
use common::{Ledger, entries, propose};
use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tenure_replica::{
    BarrierError, Config, ForwardError, ForwardHandler, MembershipError, NodeId, ProposeError, Replica, Role,
    SimDisk, TcpNetwork, Versions,
};

fn number(number: u64) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_started_in_any_order_form_one_cluster() {
    for order in [[1, 2, 3], [3, 2, 1], [2, 3, 1], [3, 1, 2]] {
        let mut cluster = Cluster::new(3, |_| ());
        for node in order {
            cluster.start(node).await;
            tokio::time::sleep(Duration::from_millis(20)).await; // slow enough to ask around in between
        }
        cluster.write(b"entry", &[]).await;
        assert_eq!(cluster.agreed().await, [b"entry".to_vec()]);
        let mut names: Vec<_> = cluster.nodes.values().map(|node| node.status().cluster).collect();
        names.dedup();
        assert!(matches!(&names[..], [Some(_)]), "started as {order:?}: {names:?}");
        cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_all_founders_nothing_is_founded() {
    let mut cluster = Cluster::new(3, |_| ());
    cluster.start(1).await;
    cluster.start(2).await;
    tokio::time::sleep(Duration::from_millis(700)).await; // longer than any election
    for node in cluster.nodes.values() {
        assert_eq!(node.status().voters, []);
        assert_eq!(node.leadership().borrow().leader_term(), None);
    }
    cluster.start(3).await;
    cluster.write(b"now", &[]).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_nodes_outlive_two() {
    let mut cluster = Cluster::formed(5).await;
    cluster.write(b"five", &[]).await;
    for _ in 0..2 {
        let (leader, _) = cluster.leader().await;
        cluster.kill(leader, 7).await;
    }
    cluster.write(b"three", &[]).await;
    let agreed = cluster.agreed().await;
    assert_eq!(agreed.first(), Some(&b"five".to_vec()));
    assert_eq!(agreed.last(), Some(&b"three".to_vec()));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_leaders_lose_nothing_that_was_acknowledged() {
    killed_leaders_lose_nothing(Clients::Several).await;
}

/// Where a single caller is served, entries are written and sent in another way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_leaders_lose_nothing_in_low_latency_mode() {
    killed_leaders_lose_nothing(Clients::OneBackToBack).await;
    killed_leaders_lose_nothing(Clients::OneAfterAPause).await;
}

async fn killed_leaders_lose_nothing(clients: Clients) {
    let mut cluster = Cluster::formed(3).await;
    cluster.clients = clients;
    let mut acknowledged = Vec::new();
    let mut last_term = 0;
    for round in 0..6 {
        for _ in 0..40 {
            let next = number(acknowledged.len() as u64);
            cluster.write(&next, &[]).await;
            acknowledged.push(next);
        }
        let (leader, leader_term) = cluster.leader().await;
        assert!(leader_term.term > last_term, "a leader in term {} after {last_term}", leader_term.term);
        last_term = leader_term.term;
        cluster.kill(leader, round).await;
        let next = number(acknowledged.len() as u64);
        cluster.write(&next, &[]).await;
        acknowledged.push(next);
        cluster.start(leader).await;
    }
    let agreed = cluster.agreed().await;
    let found: Vec<_> = agreed.iter().filter(|entry| acknowledged.contains(entry)).cloned().collect();
    let mut once = found.clone();
    once.dedup();
    assert_eq!(once, acknowledged, "each is there, in order");
    cluster.stop().await;
}

/// In low-latency mode an entry goes to one follower first. Whichever that is: it may fall silent, and the
/// other is sent to all the same; and what waited for company when the caller went away arrives, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_falls_silent_is_not_waited_for() {
    for wire in [Wire::Silent, Wire::Cut] {
        let mut cluster = Cluster::formed(3).await;
        cluster.clients = Clients::OneBackToBack;
        let (leader, _) = cluster.leader().await;
        let mut written = 0;
        for silent in (1..=3).filter(|node| *node != leader) {
            for _ in 0..50 {
                cluster.write(&number(written), &[]).await;
                written += 1;
            }
            cluster.switch.isolate(silent, wire);
            for _ in 0..5 {
                cluster.write(&number(written), &[silent]).await;
                written += 1;
            }
            cluster.switch.isolate(silent, Wire::Whole);
            let agreed = cluster.agreed().await;
            assert_eq!(agreed, (0..written).map(number).collect::<Vec<_>>(), "{wire:?}, {silent}");
        }
        cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_without_a_quorum_acknowledges_nothing_and_reads_nothing() {
    for state in [Wire::Cut, Wire::Silent] {
        let cluster = Cluster::formed(3).await;
        cluster.write(b"before", &[]).await;
        let (old, leader_term) = cluster.leader().await;
        cluster.switch.isolate(old, state);
        let alone = cluster.nodes[&old].clone();
        let lost = tokio::spawn(async move { propose(&alone, leader_term, b"alone").await });
        let read = tokio::time::timeout(LONG, cluster.nodes[&old].read_barrier()).await.expect("in time");
        assert!(
            matches!(read, Err(BarrierError::NoQuorum | BarrierError::NotLeader { .. })),
            "{state:?}: {read:?}"
        );
        cluster.write(b"during", &[old]).await;
        assert_eq!(entries(&cluster.nodes[&old]), [b"before".to_vec()], "{state:?}");

        cluster.switch.isolate(old, Wire::Whole);
        cluster.write(b"after", &[]).await;
        let lost = tokio::time::timeout(LONG, lost).await.expect("in time").expect("no panic");
        assert!(
            matches!(lost, Err(ProposeError::Unknown { .. } | ProposeError::NotProposed { .. })),
            "{state:?}: {lost:?}"
        );
        let agreed = cluster.agreed().await;
        assert_eq!(agreed, [b"before".to_vec(), b"during".to_vec(), b"after".to_vec()], "{state:?}");
        cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_fell_far_behind_catches_up_by_snapshot() {
    let mut cluster = Cluster::new(3, |config| {
        config.snapshot.entries_max = 50;
        config.snapshot.entries_kept = 5;
        config.log.segment_bytes = 16 << 10;
    });
    for node in 1..=3 {
        cluster.start(node).await;
    }
    let (leader, _) = cluster.leader().await;
    let behind = if leader == 3 { 2 } else { 3 };
    cluster.switch.isolate(behind, Wire::Cut);
    for entry in 0..200 {
        let mut entry = number(entry);
        entry.resize(3000, 1); // so that the snapshot takes several pieces
        cluster.write(&entry, &[behind]).await;
    }
    // A snapshot is taken beside the writes, and the log is cut when it is there: on both, because either
    // may lead when the third comes back.
    for node in cluster.nodes.keys().filter(|node| **node != behind) {
        cluster.until(|| cluster.nodes[node].status().purged > Some(100)).await;
    }
    cluster.switch.isolate(behind, Wire::Whole);
    assert_eq!(cluster.agreed().await.len(), 200);
    cluster.until(|| cluster.nodes[&behind].status().snapshot_index > Some(100)).await;
    // And it is a full member again: it can carry a quorum after a restart from that snapshot.
    cluster.kill(behind, 3).await;
    cluster.start(behind).await;
    let third = 6 - leader - behind;
    cluster.kill(third, 3).await;
    cluster.write(b"with the other two", &[]).await;
    assert_eq!(cluster.agreed().await.len(), 201);
    cluster.stop().await;
}

/// The next release speaks one version more. Node by node it takes the place of this one; what it alone
/// understands is not used before the last has followed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_upgrade_uses_only_what_all_understand() {
    const OLD: Versions = Versions { oldest: 1, newest: 1 };
    const NEW: Versions = Versions { oldest: 1, newest: 2 };
    let mut cluster = Cluster::formed(3).await;
    let mut expected = vec![b"before".to_vec()];
    cluster.write(b"before", &[]).await;
    for node in 1..=3 {
        cluster.kill(node, node).await;
        cluster.tune = |config| config.versions = NEW;
        cluster.start(node).await;
        let entry = number(node);
        cluster.write(&entry, &[]).await;
        expected.push(entry);
        assert_eq!(cluster.agreed().await, expected);
        // Whoever leads has talked to everybody.
        let (leader, _) = cluster.leader().await;
        let common = if node == 3 { NEW.newest } else { OLD.newest };
        cluster.until(|| cluster.nodes[&leader].status().protocol == common).await;
    }
    // A release too far: it is turned away, and the others go on without it.
    cluster.kill(3, 9).await;
    cluster.tune = |config| config.versions = Versions { oldest: 3, newest: 4 };
    cluster.start(3).await;
    cluster.write(b"without the third", &[3]).await;
    assert!(!entries(&cluster.nodes[&3]).contains(&b"without the third".to_vec()));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_voter_is_refused_with_advice() {
    let mut cluster = Cluster::formed(3).await;
    cluster.write(b"promised", &[]).await;
    cluster.agreed().await;
    let (leader, _) = cluster.leader().await;
    let wiped = if leader == 3 { 2 } else { 3 };
    cluster.kill(wiped, 1).await;
    cluster.disks.insert(wiped, SimDisk::new());
    cluster.start(wiped).await;
    let failure =
        tokio::time::timeout(LONG, cluster.nodes[&wiped].failed()).await.expect("it gives up in time");
    assert!(failure.0.contains("has forgotten what it promised"), "{failure}");
    assert!(failure.0.contains("never used"), "it says what to do: {failure}");
    assert_eq!(cluster.nodes[&wiped].status().role, Role::Stopped);

    // Even while it is up it is no part of a quorum.
    let third = 6 - leader - wiped;
    cluster.kill(third, 1).await;
    let (node, leader_term) = (leader, cluster.nodes[&leader].leadership().borrow().leader_term());
    if let Some(leader_term) = leader_term {
        let outcome = tokio::time::timeout(
            Duration::from_millis(700),
            propose(&cluster.nodes[&node], leader_term, b"no"),
        )
        .await;
        assert!(!matches!(outcome, Ok(Ok(_))), "acknowledged with the help of a node that forgot");
    }
    cluster.start(third).await;
    cluster.write(b"with both", &[wiped]).await;
    cluster.nodes.remove(&wiped).expect("it was started").shutdown().await;
    assert_eq!(cluster.agreed().await[0], b"promised");
    cluster.stop().await;
}

/// An old copy of a whole directory is sound in itself; only the leader remembers that there was more. The
/// engine would go on counting what the follower had acknowledged before (and, in a debug build, end the
/// leader).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_lost_what_it_acknowledged_is_refused_by_its_leader() {
    let mut cluster = Cluster::formed(3).await;
    cluster.write(b"old", &[]).await;
    cluster.agreed().await;
    let (leader, leader_term) = cluster.leader().await;
    let (lost, third) = if leader == 3 { (2, 1) } else { (3, 3 - leader) };
    cluster.kill(lost, 1).await;
    let older = cluster.disks[&lost].copy();
    cluster.start(lost).await;
    for entry in 0..20 {
        cluster.write(&number(entry), &[]).await;
    }
    cluster.agreed().await;
    assert_eq!(
        cluster.leader().await,
        (leader, leader_term),
        "leadership has not moved: the leader remembers"
    );
    cluster.kill(lost, 1).await;
    cluster.disks.insert(lost, older);
    cluster.start(lost).await;
    let failure =
        tokio::time::timeout(LONG, cluster.nodes[&lost].failed()).await.expect("it gives up in time");
    assert!(failure.0.contains("has lost what it had acknowledged"), "{failure}");
    assert!(failure.0.contains("never used"), "it says what to do: {failure}");
    assert_eq!(cluster.nodes[&lost].status().role, Role::Stopped);
    assert!(entries(&cluster.nodes[&lost]).len() <= 1, "it was given nothing");
    assert_eq!(cluster.leader().await, (leader, leader_term), "the leader goes on");

    // Even while it is up it is no part of a quorum.
    cluster.kill(third, 1).await;
    let outcome = tokio::time::timeout(
        Duration::from_millis(700),
        propose(&cluster.nodes[&leader], leader_term, b"no"),
    )
    .await;
    assert!(!matches!(outcome, Ok(Ok(_))), "acknowledged with the help of a node that lost its log");
    cluster.start(third).await;
    cluster.write(b"with both", &[lost]).await;
    cluster.nodes.remove(&lost).expect("it was started").shutdown().await;
    let agreed = cluster.agreed().await;
    assert!((0..20).map(number).all(|entry| agreed.contains(&entry)), "nothing acknowledged is lost");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_is_handed_over_on_request() {
    let cluster = Cluster::formed(3).await;
    cluster.write(b"one", &[]).await;
    for _ in 0..4 {
        let (old, before) = cluster.leader().await;
        cluster.nodes[&old].transfer_leadership(None).await.expect("somebody takes over");
        let (_, after) = cluster.leader_except(&[old]).await;
        assert!(after.term > before.term);
        cluster.write(b"more", &[old]).await;
    }
    let (leader, _) = cluster.leader().await;
    let follower = cluster.nodes.keys().copied().find(|node| *node != leader).expect("there are three");
    let refused = cluster.nodes[&follower].transfer_leadership(None).await;
    assert!(matches!(refused, Err(MembershipError::NotLeader { .. })), "{refused:?}");
    let refused = cluster.nodes[&leader].transfer_leadership(Some(9)).await;
    assert!(matches!(refused, Err(MembershipError::Refused(_))), "{refused:?}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_node_learns_first_and_then_replaces_an_old_one() {
    let mut cluster = Cluster::formed(3).await;
    for entry in 0..20 {
        cluster.write(&number(entry), &[]).await;
    }
    cluster.peers.insert(4, address(4));
    cluster.start(4).await;
    let (leader, _) = cluster.leader().await;
    let identity = cluster.nodes[&4].status().identity;
    let lead = cluster.nodes[&leader].clone();
    lead.add_learner(4, address(4), identity).await.expect("it learns");
    assert_eq!(lead.status().learners, [4]);
    let leaves = if leader == 3 { 2 } else { 3 };
    let voters: Vec<_> = [1, 2, 3, 4].into_iter().filter(|node| *node != leaves).collect();
    lead.change_membership(voters.clone()).await.expect("it votes");
    assert_eq!(lead.status().voters, voters);
    cluster.nodes.remove(&leaves).expect("it runs").shutdown().await;
    cluster.write(b"without it", &[]).await;
    assert_eq!(cluster.agreed().await.len(), 21);
    // Its number is taken for ever, whoever asks.
    let refused = lead.add_learner(4, address(4), "00ff".into()).await;
    assert!(matches!(refused, Err(MembershipError::Refused(_))), "{refused:?}");
    cluster.stop().await;
}

/// A number that was removed is refused for ever: by the leader that removed it, by one that knows of it only
/// from a snapshot that it was sent, and after all of them have started again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_number_stays_refused() {
    let mut cluster = Cluster::new(3, |config| {
        config.snapshot.entries_max = 20;
        config.snapshot.entries_kept = 2;
    });
    for node in 1..=3 {
        cluster.start(node).await;
    }
    cluster.write(b"three", &[]).await;
    cluster.agreed().await;
    let (leader, _) = cluster.leader().await;
    let removed = if leader == 3 { 2 } else { 3 };
    let others: Vec<_> = [1, 2, 3].into_iter().filter(|node| *node != removed).collect();
    cluster.nodes[&leader].change_membership(others.clone()).await.expect("it is removed");
    for node in cluster.nodes.values() {
        node.serve_forwarded(Arc::new(Echo));
    }

    // It runs on with its old data, and nobody listens to it once it connects anew.
    cluster.switch.isolate(removed, Wire::Cut);
    cluster.switch.isolate(removed, Wire::Whole);
    let second = Duration::from_secs(1);
    for other in &others {
        cluster.until(|| cluster.nodes[other].status().removed == [removed]).await;
        let answer = cluster.nodes[&removed].forward(*other, Bytes::from_static(b"hello"), second).await;
        assert_eq!(answer, Err(ForwardError::Unreachable(*other)));
    }

    // With an empty directory it is as little welcome.
    cluster.kill(removed, 1).await;
    cluster.disks.insert(removed, SimDisk::new());
    cluster.start(removed).await;
    let identity = cluster.nodes[&removed].status().identity;
    let refused = cluster.nodes[&leader].add_learner(removed, address(removed), identity.clone()).await;
    let Err(MembershipError::Refused(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("was removed"), "{why}");

    // A new node learns of it by snapshot alone.
    for entry in 0..60 {
        cluster.write(&number(entry), &[]).await;
    }
    for node in &others {
        cluster.until(|| cluster.nodes[node].status().purged > Some(20)).await;
    }
    cluster.peers.insert(4, address(4));
    cluster.start(4).await;
    let (leader, _) = cluster.leader().await;
    let joins = cluster.nodes[&4].status().identity;
    let lead = cluster.nodes[&leader].clone();
    lead.add_learner(4, address(4), joins).await.expect("a number that was never used is welcome");
    lead.change_membership(others.iter().copied().chain([4]).collect()).await.expect("it votes");
    lead.transfer_leadership(Some(4)).await.expect("it takes over");
    cluster.until(|| cluster.nodes[&4].leadership().borrow().leader_term().is_some()).await;
    let refused = cluster.nodes[&4].add_learner(removed, address(removed), identity.clone()).await;
    assert!(matches!(refused, Err(MembershipError::Refused(_))), "{refused:?}");

    // All of them start again.
    for node in others.iter().copied().chain([4]) {
        cluster.kill(node, node).await;
    }
    for node in others.iter().copied().chain([4]) {
        cluster.start(node).await;
    }
    let (leader, _) = cluster.leader().await;
    let refused = cluster.nodes[&leader].add_learner(removed, address(removed), identity).await;
    assert!(matches!(refused, Err(MembershipError::Refused(_))), "{refused:?}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_that_cannot_take_the_log_is_not_called_ready() {
    let mut cluster = Cluster::formed(3).await;
    cluster.write(b"before", &[]).await;
    cluster.peers.insert(4, address(4));
    cluster.start(4).await;
    let identity = cluster.nodes[&4].status().identity;
    cluster.switch.isolate(4, Wire::Cut);
    let nodes: Vec<_> = cluster.nodes.values().cloned().collect();
    let adding = tokio::spawn(async move {
        // Leadership may move on while it waits: then whoever leads is asked again.
        for lead in nodes.iter().cycle() {
            if lead.add_learner(4, address(4), identity.clone()).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    cluster.until(|| cluster.nodes.values().any(|node| node.status().learners == [4])).await;
    cluster.write(b"while it waits", &[4]).await;
    assert!(!adding.is_finished(), "it has not taken a single entry");
    // Nothing of the failed attempts is in its way.
    cluster.switch.isolate(4, Wire::Whole);
    tokio::time::timeout(LONG, adding).await.expect("it learns in time").expect("no panic");
    assert_eq!(cluster.agreed().await.len(), 2);
    cluster.stop().await;
}

struct Echo;

impl ForwardHandler for Echo {
    fn handle(&self, from: NodeId, request: Bytes) -> BoxFuture<'static, Bytes> {
        Box::pin(async move { Bytes::from(format!("{from} said {}", String::from_utf8_lossy(&request))) })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_forwarded_and_silence_has_an_end() {
    let cluster = Cluster::formed(3).await;
    cluster.write(b"formed", &[]).await;
    cluster.agreed().await;
    let second = Duration::from_secs(1);
    let early = cluster.nodes[&1].forward(2, Bytes::from_static(b"early"), second).await;
    assert_eq!(early, Err(ForwardError::Unreachable(2)), "nobody serves there yet");
    cluster.nodes[&2].serve_forwarded(Arc::new(Echo));
    let answer = cluster.nodes[&1].forward(2, Bytes::from_static(b"hello"), second).await;
    assert_eq!(answer, Ok(Bytes::from_static(b"1 said hello")));
    assert_eq!(cluster.nodes[&1].forward(8, Bytes::new(), second).await, Err(ForwardError::Unreachable(8)));
    cluster.switch.isolate(2, Wire::Silent);
    let answer = cluster.nodes[&1].forward(2, Bytes::from_static(b"hello"), Duration::from_millis(50)).await;
    assert_eq!(answer, Err(ForwardError::NoAnswer(2)));
    cluster.stop().await;
}

/// A leader whose port receives nothing still gets its followers' answers, on the connections that it opened
/// itself. But no follower can forward anything to it, so it must not lead on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_port_receives_nothing_gives_way() {
    for state in [Wire::Silent, Wire::Cut] {
        let cluster = Cluster::formed(3).await;
        cluster.write(b"before", &[]).await;
        cluster.agreed().await;
        for node in cluster.nodes.values() {
            node.serve_forwarded(Arc::new(Echo));
        }
        let (old, _) = cluster.leader().await;
        cluster.switch.set_port(old, state);
        // Another one leads, and what its followers forward arrives.
        let (new, _) = cluster.leader_except(&[old]).await;
        let third = 6 - old - new;
        let answer = cluster.nodes[&third].forward(new, Bytes::from_static(b"hello"), LONG).await;
        assert_eq!(answer, Ok(Bytes::from(format!("{third} said hello"))), "{state:?}");
        cluster.write(b"after", &[old]).await;
        cluster.until(|| cluster.nodes[&old].leadership().borrow().leader_term().is_none()).await;
        // When its port works again it follows.
        cluster.switch.set_port(old, Wire::Whole);
        cluster.write(b"and again", &[]).await;
        assert_eq!(cluster.agreed().await.last(), Some(&b"and again".to_vec()), "{state:?}");
        cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_agree_over_tcp() {
    let mut peers = BTreeMap::new();
    for node in 1..=3 {
        let probe = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        peers.insert(node, probe.local_addr().expect("an address").to_string());
    }
    let mut cluster = Cluster::new(3, |_| ());
    for node in 1..=3 {
        let config = Config::member(node, peers.clone());
        let disk = Arc::new(SimDisk::new());
        let replica = Replica::start(config, disk, Arc::new(TcpNetwork), Ledger::default()).await;
        cluster.nodes.insert(node, replica.expect("the node starts"));
    }
    for entry in 0..50 {
        cluster.write(&number(entry), &[]).await;
    }
    assert_eq!(cluster.agreed().await.len(), 50);
    let (leader, _) = cluster.leader().await;
    cluster.nodes[&leader].read_barrier().await.expect("a quorum confirms");
    cluster.nodes.remove(&leader).expect("it runs").shutdown().await;
    cluster.write(b"without it", &[]).await;
    assert_eq!(cluster.agreed().await.len(), 51);
    cluster.stop().await;
}
