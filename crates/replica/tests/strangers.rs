//! Attacks at the peer port by somebody who is no member, without TLS: each must leave the cluster as it was.

mod common;

use bytes::Bytes;
use common::cluster::{Cluster, LONG};
use common::stranger::{self, Greeting, Stranger};
use common::wires::address;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tenure_replica::{ForwardHandler, Network, NodeId, Status};

/// A port of the network that no node uses.
const OUTSIDE: NodeId = 9;
/// A number that was never a member's.
const NOBODY: NodeId = 99;

async fn formed() -> (Cluster, Arc<dyn Network>) {
    let cluster = Cluster::formed(3).await;
    cluster.write(b"before", &[]).await;
    cluster.agreed().await;
    let outside = cluster.switch.port(OUTSIDE);
    (cluster, outside)
}

fn number(hex: &str) -> u128 {
    u128::from_str_radix(hex, 16).expect("hexadecimal digits")
}

fn cluster_id(status: &Status) -> u128 {
    number(status.cluster.as_ref().expect("it has a cluster"))
}

/// What `claimed` would say to `to`, with everything that only a member knows.
fn as_member(cluster: &Cluster, claimed: NodeId, to: NodeId, purpose: u8) -> Greeting {
    let (claimed, asked) = (cluster.nodes[&claimed].status(), cluster.nodes[&to].status());
    let mut greeting = Greeting::new(purpose, claimed.node, to);
    greeting.identity = number(&claimed.identity);
    greeting.cluster = Some(cluster_id(&claimed));
    greeting.remembered = Some(number(&asked.identity));
    greeting
}

/// Everything that could make a node take over a term.
fn claims(term: u64, node: NodeId) -> [(u8, Vec<u8>); 5] {
    [
        (stranger::HEARTBEAT, stranger::heartbeat(term, node)),
        (stranger::VOTE, stranger::candidacy(term, node)),
        (stranger::PRE_VOTE, stranger::candidacy(term, node)),
        (stranger::TRANSFER, stranger::handover(term, node)),
        (stranger::SNAPSHOT_BEGIN, stranger::vote(term, node, true)),
    ]
}

fn highest_term(cluster: &Cluster) -> u64 {
    cluster.nodes.values().map(|node| node.status().term).max().expect("there are nodes")
}

/// One heartbeat of "node 99" with the highest term there is left three nodes without a leader for good, over restarts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number_that_is_no_members_is_not_listened_to() {
    let (cluster, outside) = formed().await;
    let term = highest_term(&cluster);
    for to in 1..=3 {
        for (kind, body) in claims(term + 1000, NOBODY) {
            for purpose in [stranger::CONSENSUS, stranger::BULK] {
                let mut greeting = as_member(&cluster, to % 3 + 1, to, purpose);
                // It has found out everything but the identity of a member, and comes under a number of its own.
                (greeting.node, greeting.identity) = (NOBODY, 4711);
                let greeted = Stranger::greet(&*outside, &address(to), &greeting).await;
                let (mut stranger, answer) = greeted.expect("it is answered");
                let refusal = answer.refusal.expect("it is refused");
                assert!(refusal.contains("tenure cluster add 99"), "{refusal}");
                stranger.call(kind, &body).await.expect_err("nobody listens");
            }
        }
    }
    assert!(highest_term(&cluster) < term + 1000, "the term of a stranger was believed");
    cluster.write(b"after", &[]).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_term_far_ahead_is_refused_even_from_a_member() {
    let (cluster, outside) = formed().await;
    let (leader, _) = cluster.leader().await;
    let (claimed, to) = (leader % 3 + 1, leader);
    for term in [u64::MAX, (1 << 32) + 1_000] {
        for (kind, body) in claims(term, claimed) {
            let greeting = as_member(&cluster, claimed, to, stranger::CONSENSUS);
            let (mut thief, answer) = Stranger::greet(&*outside, &address(to), &greeting).await.unwrap();
            assert_eq!(answer.refusal, None, "whoever knows a member's identity cannot be told from it");
            thief.call(kind, &body).await.expect_err("the connection ends");
        }
    }
    assert!(highest_term(&cluster) < 1_000, "a term that no cluster reaches was believed");
    cluster.write(b"after", &[]).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_does_not_speak_for_another() {
    let (cluster, outside) = formed().await;
    let term = highest_term(&cluster);
    for (kind, body) in claims(term + 1000, 3) {
        let greeting = as_member(&cluster, 2, 1, stranger::CONSENSUS);
        let (mut thief, _) = Stranger::greet(&*outside, &address(1), &greeting).await.unwrap();
        thief.call(kind, &body).await.expect_err("the connection ends");
    }
    assert!(highest_term(&cluster) < term + 1000);
    cluster.stop().await;
}

/// The greeting told cluster, identity and log to whoever asked; with these a stranger could come as a member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_learns_nothing_from_a_greeting() {
    let (cluster, outside) = formed().await;
    let statuses: Vec<Status> = cluster.nodes.values().map(|node| node.status()).collect();
    let secrets: Vec<u128> =
        statuses.iter().map(|status| number(&status.identity)).chain([cluster_id(&statuses[0])]).collect();
    for purpose in [stranger::PROBE, stranger::CONSENSUS, stranger::BULK] {
        for claimed in [NOBODY, 2, 3] {
            let greeting = Greeting::new(purpose, claimed, 1);
            let (_, answer) = Stranger::greet(&*outside, &address(1), &greeting).await.unwrap();
            let told = [Some(answer.identity), answer.cluster, answer.remembered];
            assert!(!told.iter().flatten().any(|told| secrets.contains(told)), "{answer:?}");
            assert!(!answer.log, "how far the log reaches is nobody else's business: {answer:?}");
            // What a node that is being started has to know: that there is a cluster, and whether it was wiped.
            assert!(answer.cluster.is_some());
            assert_eq!(answer.remembered.is_some(), claimed != NOBODY);
        }
    }
    cluster.stop().await;
}

struct Count(Arc<AtomicU32>);

impl ForwardHandler for Count {
    fn handle(&self, _: NodeId, _: Bytes) -> BoxFuture<'static, Bytes> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { Bytes::from_static(b"done") })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_members_forward_and_only_while_they_are() {
    let (cluster, outside) = formed().await;
    let handled = Arc::new(AtomicU32::new(0));
    for node in cluster.nodes.values() {
        node.serve_forwarded(Arc::new(Count(handled.clone())));
    }
    let greeting = Greeting::new(stranger::BULK, NOBODY, 1);
    let (mut stranger, _) = Stranger::greet(&*outside, &address(1), &greeting).await.unwrap();
    stranger.call(stranger::FORWARD, b"for free").await.expect_err("nobody listens");
    assert_eq!(handled.load(Ordering::SeqCst), 0);

    let (leader, _) = cluster.leader().await;
    let leaves = leader % 3 + 1;
    let greeting = as_member(&cluster, leaves, leader, stranger::BULK);
    let (mut member, _) = Stranger::greet(&*outside, &address(leader), &greeting).await.unwrap();
    let (kind, _) = member.call(stranger::FORWARD, b"as a member").await.expect("it is answered");
    assert_eq!((kind, handled.load(Ordering::SeqCst)), (stranger::ANSWER, 1));
    let stay = (1..=3).filter(|node| *node != leaves).collect();
    cluster.nodes[&leader].change_membership(stay).await.expect("it is removed");
    let after = member.call(stranger::FORWARD, b"removed").await;
    assert!(!matches!(after, Ok((stranger::ANSWER, _))), "on the connection that it had: {after:?}");
    assert_eq!(handled.load(Ordering::SeqCst), 1);
    cluster.stop().await;
}

/// One greeting wrote a made-up cluster into the directory of a node that waited for the others, for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_enters_a_directory_by_formation_only() {
    let mut cluster = Cluster::new(3, |_| ());
    cluster.start(2).await;
    let outside = cluster.switch.port(OUTSIDE);
    for (claimed, welcome) in [(1, true), (NOBODY, false)] {
        for purpose in [stranger::CONSENSUS, stranger::BULK] {
            let mut greeting = Greeting::new(purpose, claimed, 2);
            greeting.cluster = Some(0xbad);
            let (mut stranger, answer) = Stranger::greet(&*outside, &address(2), &greeting).await.unwrap();
            assert_eq!(answer.refusal.is_none(), welcome, "{answer:?}");
            // The number of a node that is to found the cluster cannot be told from that node.
            assert_eq!(stranger.call(stranger::PING, b"").await.is_ok(), welcome);
        }
    }
    assert_eq!(cluster.nodes[&2].status().cluster, None);
    cluster.start(1).await;
    cluster.start(3).await;
    cluster.write(b"formed", &[]).await;
    cluster.agreed().await;
    let same =
        || cluster.nodes.values().all(|node| node.status().cluster == cluster.nodes[&1].status().cluster);
    cluster.until(same).await;
    assert_ne!(cluster_id(&cluster.nodes[&2].status()), 0xbad);
    cluster.stop().await;
}

/// Strangers that had greeted were as good as members when places were short, and whoever had been silent for longest
/// had to go: a member with nothing to forward.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_take_no_members_place() {
    let (cluster, outside) = formed().await;
    let (leader, _) = cluster.leader().await;
    let member = leader % 3 + 1;
    let greeting = as_member(&cluster, member, leader, stranger::BULK);
    let (mut member, _) = Stranger::greet(&*outside, &address(leader), &greeting).await.unwrap();
    let mut strangers = Vec::new();
    for many in 0..600 {
        // Half of them say nothing at all.
        let address = address(leader);
        if many % 2 == 0 {
            strangers.push(Stranger::connect(&*outside, &address).await.unwrap());
        } else {
            let greeting = Greeting::new(stranger::BULK, NOBODY, leader);
            if let Ok((mut stranger, _)) = Stranger::greet(&*outside, &address, &greeting).await {
                let _ = stranger.call(stranger::PING, b"").await;
                strangers.push(stranger);
            }
        }
    }
    let (kind, _) = member.call(stranger::PING, b"").await.expect("it has its place");
    assert_eq!(kind, stranger::ANSWER);
    cluster.write(b"after", &[]).await;
    cluster.stop().await;
}

/// A member that was away while the leader joined does not know it. A member that it does know answers for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_away_listens_to_a_leader_that_joined_meanwhile() {
    let (mut cluster, _) = formed().await;
    let (leader, _) = cluster.leader().await;
    let away = leader % 3 + 1;
    cluster.kill(away, 1).await;
    cluster.peers.insert(4, address(4));
    cluster.start(4).await;
    let (leader, _) = cluster.leader().await;
    let identity = cluster.nodes[&4].status().identity;
    let lead = cluster.nodes[&leader].clone();
    lead.add_learner(4, address(4), identity).await.expect("it learns");
    lead.promote(vec![4]).await.expect("it votes");
    lead.transfer_leadership(Some(4)).await.expect("it takes over");
    cluster.until(|| cluster.nodes[&4].leadership().borrow().leader_term().is_some()).await;
    cluster.peers.remove(&4);
    cluster.start(away).await;
    let knows = || cluster.nodes[&away].status().voters == [1, 2, 3, 4];
    cluster.until(knows).await;
    cluster.write(b"after", &[]).await;
    tokio::time::timeout(LONG, cluster.agreed()).await.expect("in time");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_is_not_added_by_a_leader_that_it_was_not_started_with() {
    let (mut cluster, _) = formed().await;
    let (leader, _) = cluster.leader().await;
    let other = leader % 3 + 1;
    cluster.peers = [(other, address(other)), (4, address(4))].into();
    cluster.start(4).await;
    let refused = cluster.nodes[&leader].identity_of(4, &address(4)).await.expect_err("it refuses");
    let said = refused.to_string();
    assert!(said.contains("--peers") && said.contains(&format!("node {leader}")), "{said}");
    assert!(cluster.nodes[&other].identity_of(4, &address(4)).await.is_ok());
    cluster.stop().await;
}
