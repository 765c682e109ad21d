//! Attacks at the peer port of a cluster that requires TLS: each must leave the cluster as it was. What must hold
//! without TLS is in `strangers.rs`.

mod common;

use common::cluster::{Cluster, LONG};
use common::intruder;
use common::stranger::{self, Greeting, Stranger};
use common::wires::address;
use rustls::version::{TLS12, TLS13};
use std::io;
use std::sync::Arc;
use tenure_clock::{Clock, SystemClock};
use tenure_core::WallTime;
use tenure_replica::{Config, Network, NodeId, PeerSecurity};
use tenure_tls::{Issued, NodeKey, PeerTls, Root};

/// A port of the network that no node uses.
const OUTSIDE: NodeId = 9;
/// The node that is attacked, and the one whose place is taken.
const ASKED: NodeId = 1;
const CLAIMED: NodeId = 2;

async fn formed() -> (Cluster, Arc<dyn Network>) {
    let cluster = Cluster::secured(3, PeerSecurity::Require).await;
    cluster.write(b"before", &[]).await;
    cluster.agreed().await;
    let outside = cluster.switch.port(OUTSIDE);
    (cluster, outside)
}

fn now() -> WallTime {
    SystemClock.wall()
}

fn new_root() -> Root {
    Root::parse(Root::generate(now()).expect("a root").as_bytes()).expect("it is read")
}

fn root(cluster: &Cluster) -> Root {
    cluster.secured.as_ref().expect("it is secured").root.clone()
}

fn issue(root: &Root, node: NodeId, key: &NodeKey) -> Issued {
    root.for_node(node, key, now()).expect("a certificate")
}

fn number(hex: &str) -> u128 {
    u128::from_str_radix(hex, 16).expect("hexadecimal digits")
}

/// Everything that a member says of itself: an attacker who has read all of it still has no key.
fn as_member(cluster: &Cluster, claimed: NodeId, to: NodeId) -> Greeting {
    let (claimed, asked) = (cluster.nodes[&claimed].status(), cluster.nodes[&to].status());
    let mut greeting = Greeting::new(stranger::CONSENSUS, claimed.node, to);
    greeting.identity = number(&claimed.identity);
    greeting.cluster = Some(number(claimed.cluster.as_ref().expect("it has a cluster")));
    greeting.remembered = Some(number(&asked.identity));
    greeting
}

/// Comes with a certificate and a greeting: what it is refused with, or the error that ended the connection.
async fn attempt(
    outside: &dyn Network,
    certificate: Option<Issued>,
    greeting: &Greeting,
) -> Result<Stranger, String> {
    let told = |error: io::Error| error.to_string();
    let stream =
        intruder::connect(outside, &address(greeting.to), certificate, &TLS13).await.map_err(told)?;
    let (stranger, answer) = Stranger::greet_on(stream, greeting).await.map_err(told)?;
    match answer.refusal {
        Some(refusal) => Err(refusal),
        None => Ok(stranger),
    }
}

/// The cluster serves as before, and no term was taken over.
async fn unharmed(cluster: Cluster) {
    let term = cluster.nodes.values().map(|node| node.status().term).max().expect("there are nodes");
    assert!(term < 1_000, "the term of an attacker was believed");
    cluster.write(b"after", &[]).await;
    cluster.agreed().await;
    cluster.stop().await;
}

fn refused(attempted: Result<Stranger, String>) -> String {
    attempted.err().expect("it is refused")
}

/// Without this the refusals below would prove nothing: whoever has everything is let in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_has_the_key_is_the_node() {
    let (mut cluster, outside) = formed().await;
    let key = cluster.secured.as_mut().expect("it is secured").key(CLAIMED);
    let certificate = issue(&root(&cluster), CLAIMED, &key);
    let member = attempt(&*outside, Some(certificate), &as_member(&cluster, CLAIMED, ASKED)).await;
    let (kind, _) = member.expect("it is let in").call(stranger::PING, b"").await.expect("it is answered");
    assert_eq!(kind, stranger::ANSWER);
    unharmed(cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plaintext_is_refused() {
    let (cluster, outside) = formed().await;
    let greeting = as_member(&cluster, CLAIMED, ASKED);
    assert!(
        Stranger::greet(&*outside, &address(ASKED), &greeting).await.is_err(),
        "nobody answers in plaintext"
    );
    unharmed(cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_certificate_is_refused() {
    let (cluster, outside) = formed().await;
    refused(attempt(&*outside, None, &as_member(&cluster, CLAIMED, ASKED)).await);
    unharmed(cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_1_2_is_refused() {
    let (mut cluster, outside) = formed().await;
    let key = cluster.secured.as_mut().expect("it is secured").key(CLAIMED);
    let certificate = issue(&root(&cluster), CLAIMED, &key);
    assert!(intruder::connect(&*outside, &address(ASKED), Some(certificate), &TLS12).await.is_err());
    unharmed(cluster).await;
}

/// The root signs for clients as well. Such a certificate is no node's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clients_certificate_is_refused() {
    let (cluster, outside) = formed().await;
    let greeting = as_member(&cluster, CLAIMED, ASKED);
    let root = root(&cluster);
    let operator = root.for_operator(now()).expect("a certificate");
    refused(attempt(&*outside, Some(operator), &greeting).await);
    let server = root.for_server(&["localhost".into()], now()).expect("a certificate");
    refused(attempt(&*outside, Some(server), &greeting).await);
    unharmed(cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_root_is_refused() {
    let (mut cluster, outside) = formed().await;
    // Even with the key of the node.
    let key = cluster.secured.as_mut().expect("it is secured").key(CLAIMED);
    let certificate = issue(&new_root(), CLAIMED, &key);
    refused(attempt(&*outside, Some(certificate), &as_member(&cluster, CLAIMED, ASKED)).await);
    unharmed(cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_for_another_number_is_refused() {
    let (mut cluster, outside) = formed().await;
    // A member, with everything that belongs to it, does not become another one.
    let key = cluster.secured.as_mut().expect("it is secured").key(3);
    let certificate = issue(&root(&cluster), 3, &key);
    let why = refused(attempt(&*outside, Some(certificate), &as_member(&cluster, CLAIMED, ASKED)).await);
    assert!(why.contains("certificate is that of another node"), "{why}");
    unharmed(cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_members_number_with_another_key_is_refused() {
    let (cluster, outside) = formed().await;
    let certificate = issue(&root(&cluster), CLAIMED, &NodeKey::generate().expect("a key"));
    let why = refused(attempt(&*outside, Some(certificate), &as_member(&cluster, CLAIMED, ASKED)).await);
    assert!(why.contains("another key") && why.contains("node.key"), "{why}");
    unharmed(cluster).await;
}

/// Removing a node is how its certificate is revoked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_node_is_refused() {
    let (mut cluster, outside) = formed().await;
    let (leader, _) = cluster.leader().await;
    let leaves = leader % 3 + 1;
    let greeting = as_member(&cluster, leaves, leader);
    let key = cluster.secured.as_mut().expect("it is secured").key(leaves);
    let certificate = issue(&root(&cluster), leaves, &key);
    let stay = (1..=3).filter(|node| *node != leaves).collect();
    cluster.nodes[&leader].change_membership(stay).await.expect("it is removed");
    let removed = |cluster: &Cluster| cluster.nodes[&leader].status().removed.contains(&leaves);
    cluster.until(|| removed(&cluster)).await;
    let why = refused(attempt(&*outside, Some(certificate), &greeting).await);
    assert!(why.contains("was removed"), "{why}");
    cluster.nodes.remove(&leaves).expect("it is running").shutdown().await;
    unharmed(cluster).await;
}

/// An empty directory under a member's number, with a certificate of the root: it has forgotten its votes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_node_is_refused() {
    let (mut cluster, outside) = formed().await;
    // It has kept its key and nothing else.
    let key = cluster.secured.as_mut().expect("it is secured").key(CLAIMED);
    let certificate = issue(&root(&cluster), CLAIMED, &key);
    let mut greeting = Greeting::new(stranger::CONSENSUS, CLAIMED, ASKED);
    greeting.identity = 4711;
    let why = refused(attempt(&*outside, Some(certificate), &greeting).await);
    assert!(why.contains("another data directory"), "{why}");
    unharmed(cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_term_jump_is_refused() {
    let (mut cluster, outside) = formed().await;
    let key = cluster.secured.as_mut().expect("it is secured").key(CLAIMED);
    for (kind, body) in [
        (stranger::HEARTBEAT, stranger::heartbeat(u64::MAX, CLAIMED)),
        (stranger::VOTE, stranger::candidacy(u64::MAX, CLAIMED)),
        (stranger::PRE_VOTE, stranger::candidacy(1 << 40, CLAIMED)),
        (stranger::TRANSFER, stranger::handover(1 << 40, CLAIMED)),
    ] {
        let certificate = issue(&root(&cluster), CLAIMED, &key);
        let member = attempt(&*outside, Some(certificate), &as_member(&cluster, CLAIMED, ASKED)).await;
        member.expect("it is let in").call(kind, &body).await.expect_err("the connection ends");
    }
    unharmed(cluster).await;
}

/// One greeting wrote a made-up cluster into the directory of a node that waited for the others, for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forming_node_is_not_renamed() {
    let mut cluster = Cluster::new(3, |_| ());
    cluster.secured = Some(common::cluster::Secured::new(PeerSecurity::Require));
    cluster.start(2).await;
    let outside = cluster.switch.port(OUTSIDE);
    let mut greeting = Greeting::new(stranger::CONSENSUS, 1, 2);
    greeting.cluster = Some(0xbad);
    refused(attempt(&*outside, None, &greeting).await);
    let key = NodeKey::generate().expect("a key");
    refused(attempt(&*outside, Some(issue(&new_root(), 1, &key)), &greeting).await);
    // A node of the root, but not the one that it says it is.
    let why = refused(attempt(&*outside, Some(issue(&root(&cluster), 3, &key)), &greeting).await);
    assert!(why.contains("another node"), "{why}");
    assert_eq!(cluster.nodes[&2].status().cluster, None);
    cluster.start(1).await;
    cluster.start(3).await;
    cluster.until_keys_are_known().await;
    let name = cluster.nodes[&2].status().cluster.expect("it has a cluster");
    assert_ne!(number(&name), 0xbad);
    unharmed(cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_strangers_keep_no_member_out() {
    let (mut cluster, outside) = formed().await;
    let (leader, _) = cluster.leader().await;
    let away = leader % 3 + 1;
    cluster.nodes.remove(&away).expect("it is running").shutdown().await;
    let mut strangers = Vec::new();
    for node in (1..=3).filter(|node| *node != away) {
        for _ in 0..300 {
            strangers.push(Stranger::connect(&*outside, &address(node)).await.expect("it is accepted"));
        }
    }
    cluster.start(away).await;
    cluster.write(b"with strangers", &[]).await;
    tokio::time::timeout(LONG, cluster.agreed()).await.expect("the member is back");
    drop(strangers);
    unharmed(cluster).await;
}

/// Somebody else answers at a member's address: with another root, or as another node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_man_in_the_middle_is_told_nothing() {
    let (mut cluster, outside) = formed().await;
    let (leader, _) = cluster.leader().await;
    let away = leader % 3 + 1;
    cluster.nodes.remove(&away).expect("it is running").shutdown().await;
    let mut listener = outside.listen(&address(away)).await.expect("the port is free");
    let key = NodeKey::generate().expect("a key");
    let liars = [
        PeerTls::new(&new_root(), away, &key, now()).expect("TLS"),
        PeerTls::new(&root(&cluster), OUTSIDE, &key, now()).expect("TLS"),
        PeerTls::new(&root(&cluster), away, &key, now()).expect("TLS"),
    ];
    for liar in liars {
        let stream = listener.accept().await.expect("somebody connects");
        let said = async {
            let (mut stream, _) = liar.accept(stream).await?;
            let mut first = [0; 1];
            tokio::io::AsyncReadExt::read_exact(&mut stream, &mut first).await
        };
        let said = tokio::time::timeout(LONG, said).await.expect("the connection ends");
        assert!(said.is_err(), "who is not the member learns not even who asks");
    }
    drop(listener);
    cluster.start(away).await;
    cluster.write(b"back", &[]).await;
    unharmed(cluster).await;
}

/// Off, both, require: one node after the other, while entries are written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_cluster_changes_over() {
    let mut cluster = Cluster::new(3, |_| ());
    cluster.secured = Some(common::cluster::Secured::new(|_| PeerSecurity::Off));
    for node in 1..=3 {
        cluster.start(node).await;
    }
    cluster.write(b"off", &[]).await;
    let modes: [fn(PeerTls) -> PeerSecurity; 2] = [PeerSecurity::Both, PeerSecurity::Require];
    for mode in modes {
        cluster.secured.as_mut().expect("it is secured").mode = mode;
        for node in 1..=3 {
            cluster.restart(node).await;
            cluster.write(format!("restarted {node}").as_bytes(), &[]).await;
            cluster.agreed().await;
        }
        cluster.until_keys_are_known().await;
    }
    let outside = cluster.switch.port(OUTSIDE);
    let greeting = as_member(&cluster, CLAIMED, ASKED);
    assert!(Stranger::greet(&*outside, &address(ASKED), &greeting).await.is_err(), "the old way is closed");
    unharmed(cluster).await;
}

/// A node that joins proves itself, and is known by its key from then on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_is_known_by_its_key() {
    let (mut cluster, outside) = formed().await;
    cluster.peers.insert(4, address(4));
    cluster.start(4).await;
    let (leader, _) = cluster.leader().await;
    let lead = cluster.nodes[&leader].clone();
    let identity = lead.identity_of(4, &address(4)).await.expect("it answers");
    lead.add_learner(4, address(4), identity).await.expect("it learns");
    lead.promote(vec![4]).await.expect("it votes");
    cluster.until_keys_are_known().await;
    let certificate = issue(&root(&cluster), 4, &NodeKey::generate().expect("a key"));
    let why = refused(attempt(&*outside, Some(certificate), &as_member(&cluster, 4, leader)).await);
    assert!(why.contains("another key"), "{why}");
    unharmed(cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_node_enters_its_own_key() {
    let disk = tenure_replica::SimDisk::new();
    let mut known = Vec::new();
    for _ in 0..2 {
        let key = NodeKey::generate().expect("a key");
        let mut config = Config::single(1);
        config.key = Some(key.hash());
        let node = common::try_start(&disk, config).await.expect("it starts");
        let entered = async {
            while node.status().key != Some(key.hash().to_string()) {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, entered).await.expect("in time");
        known.extend(node.status().key);
        node.shutdown().await;
    }
    assert_ne!(known[0], known[1], "it decides alone, so it may change its key");
}
