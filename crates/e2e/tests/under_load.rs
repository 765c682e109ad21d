//! What operators do to a cluster that is at work: restart it node by node, grow it, shrink it, replace all of it,
//! bring back a node that was away for long. Nothing acknowledged is lost and no session ends
//! (`acknowledged_is_kept`, `healthy_holder_keeps`).

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde_json::json;
use tenure_e2e::{
    Cluster, Renewer, RootFile, Workers, alone, assert_kept, run_tenure, scale, until, until_some,
};

const TTL: Duration = Duration::from_secs(6);
const HOLDERS: usize = 6;

/// Holders who renew at whichever node answers, and load at all of them.
struct AtWork {
    renewers: Vec<Renewer>,
    workers: Workers,
}

impl AtWork {
    fn start(cluster: &Cluster) -> Self {
        let mut http = cluster.node(1).http();
        let renewers = (0..HOLDERS)
            .map(|number| {
                let body = json!({"holder": format!("h{number}"), "ttl_ms": TTL.as_millis() as u64});
                let grant = http.post(&format!("/v1/leases/kept/{number}:acquire"), &body).expect(200);
                let session = grant["session"].as_str().expect("an id").to_string();
                Renewer::start_at(&cluster.addresses_from(number), vec![session], TTL / 12)
            })
            .collect();
        let workers = Workers::start((0..3).map(|first| cluster.addresses_from(first)).collect());
        until("the load is felt", Duration::from_secs(30), || workers.promised() > 30);
        Self { renewers, workers }
    }

    /// Nothing was lost, as one of the nodes tells it; the longest time that anybody went without an answer.
    fn judge(self, cluster: &Cluster, node: usize) -> (usize, Duration) {
        let (promised, gap) = self.workers.stop();
        let mut http = cluster.node(node).http();
        assert_kept(&mut http, &promised);
        for number in 0..HOLDERS {
            let lease = http.get(&format!("/v1/leases/kept/{number}")).expect(200);
            assert_eq!((&lease["state"], &lease["generation"]), (&json!("held"), &json!(1)), "{lease}");
        }
        for renewer in self.renewers {
            let report = renewer.stop();
            assert!(report.lost.is_empty(), "a holder that renewed lost its session: {report:?}");
        }
        (promised.len(), gap)
    }
}

/// Every node is stopped in good order and started again, the leader among them: nobody loses anything, and the gap
/// is that of a handover, not of an election.
#[test]
fn a_rolling_restart_loses_no_session() {
    let _turn = alone();
    let mut cluster = Cluster::start("rolling", 3);
    let at_work = AtWork::start(&cluster);
    for round in 0..if scale().full { 3 } else { 1 } {
        for number in 1..=3 {
            let led = cluster.leader() == number;
            let node = cluster.node_mut(number);
            let started = Instant::now();
            assert!(node.terminate(Duration::from_secs(30)).success(), "it ends in good order");
            let drained = started.elapsed();
            node.restart();
            println!("round {round}: node {number} drained in {drained:?} (leader: {led})");
        }
    }
    cluster.leader();
    let (many, gap) = at_work.judge(&cluster, 2);
    println!("rolling restart: {many} grants kept, the longest time without an answer {gap:?}");
}

/// A cluster without TLS gets it, one node after the other: first the peers, then the clients. Nothing is lost on the way.
#[test]
fn a_running_cluster_changes_over_to_tls() {
    let _turn = alone();
    let root = RootFile::new("securing-root");
    let mut cluster = Cluster::start("securing", 3);
    let at_work = AtWork::start(&cluster);
    let mut changes = 0;
    for (peer, client) in [("off", "off"), ("both", "off"), ("require", "off"), ("require", "both")] {
        for number in 1..=3 {
            let node = cluster.node_mut(number);
            assert!(node.terminate(Duration::from_secs(30)).success(), "it ends in good order");
            node.set_extra(&["--root", &root.path(), "--peer-tls", peer, "--client-tls", client]);
            node.restart();
            cluster.leader();
            changes += 1;
        }
        println!("all nodes run with --peer-tls {peer} --client-tls {client}");
    }
    // Whoever has the root gets in over TLS, and nobody gets to the peers without it.
    let status = run_tenure(&cluster.endpoints(), &["--root", &root.path(), "cluster", "status", "--json"]);
    assert!(status.status.success(), "{status:?}");
    for number in 1..=3 {
        let mut stream =
            std::net::TcpStream::connect(cluster.peer_address(number)).expect("the port is open");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        stream
            .write_all(&[&80_u32.to_le_bytes()[..], &[0; 9], b"TENUREPR", &[0; 72]].concat())
            .expect("it is sent");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.windows(8).any(|piece| piece == b"TENUREPR"), "node {number} greets in plaintext");
    }
    let (many, gap) = at_work.judge(&cluster, 2);
    println!(
        "change to TLS: {changes} restarts, {many} grants kept, the longest time without an answer {gap:?}"
    );
}

/// The same for a single node: its sessions are there after each restart.
#[test]
fn a_single_node_changes_over_to_tls() {
    let root = RootFile::new("securing-one-root");
    let mut node = tenure_e2e::Node::start("securing-one");
    let body = json!({"holder": "h", "ttl_ms": 60_000});
    let grant = node.http().post("/v1/leases/kept:acquire", &body).expect(200);
    let session = grant["session"].as_str().expect("an id").to_string();
    for client in ["both", "require"] {
        assert!(node.terminate(Duration::from_secs(30)).success());
        node.set_extra(&["--root", &root.path(), "--client-tls", client]);
        node.spawn();
        let renew = || {
            let arguments = ["--root", &root.path(), "session", "renew", &session];
            run_tenure(&node.endpoint(), &arguments).status.success()
        };
        until("the session is renewed over TLS", Duration::from_secs(30), renew);
    }
}

/// A rolling upgrade: nodes of two releases in one cluster, back and forth, then all of them the newer one, then the agreed
/// format version is raised. Nothing acknowledged is lost, no session ends, and the states are equal. After the raise the
/// older release is refused. `cargo xtask upgrade-rehearsal` runs it with the release that was.
#[test]
fn a_rolling_upgrade_loses_nothing_and_can_be_undone_until_the_raise() {
    let _turn = alone();
    let mut cluster = Cluster::prepare("upgrading", 3);
    for number in 1..=3 {
        cluster.node_mut(number).set_older(true);
        cluster.node_mut(number).spawn();
    }
    cluster.wait_ready();
    let at_work = AtWork::start(&cluster);
    let upgrade = |cluster: &Cluster, by: usize| {
        let output = run_tenure(&cluster.node(by).endpoint(), &["cluster", "upgrade", "--json"]);
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let mut changes = 0;
    let mut change = |cluster: &mut Cluster, number: usize, older: bool| {
        let node = cluster.node_mut(number);
        assert!(node.terminate(Duration::from_secs(30)).success(), "it ends in good order");
        node.set_older(older);
        node.restart();
        cluster.leader();
        changes += 1;
    };
    // There, back again, and there for good.
    for _ in 0..if scale().full { 3 } else { 1 } {
        for number in 1..=3 {
            change(&mut cluster, number, false);
        }
        for number in [2, 1, 3] {
            change(&mut cluster, number, true);
        }
    }
    for number in [3, 1] {
        change(&mut cluster, number, false);
        let (code, said) = upgrade(&cluster, number);
        assert_ne!(code, Some(0), "a member runs the older release: {said}");
    }
    change(&mut cluster, 2, false);
    let status = cluster.node(1).http().get("/v1/cluster").expect(200);
    assert_eq!((&status["format"], &status["format_next"]), (&json!(1), &json!(2)), "{status}");
    assert_eq!(cluster.node(2).metric("tenure_format_upgrade_possible"), 1.0);
    let resting = |cluster: &Cluster, rest: u64| {
        let mut http = cluster.node(1).http();
        let grant =
            http.post("/v1/leases/rests:acquire", &json!({"holder": "r", "ttl_ms": 60_000})).expect(200);
        let body = json!({"session": grant["session"], "rest_ms": rest});
        http.post("/v1/leases/rests:release", &body)
    };
    let early = resting(&cluster, 5);
    assert_eq!(early.status, 409, "{}", early.json());
    assert_eq!(early.json()["error"]["code"], "upgrade_needed", "{}", early.json());
    let revoked = run_tenure(&cluster.node(1).endpoint(), &["revoke", "rests", "--now", "--reason", "test"]);
    assert!(revoked.status.success(), "{revoked:?}");
    let (code, said) = upgrade(&cluster, 2);
    assert_eq!(code, Some(0), "{said}");
    let agreed = |number: usize| {
        let status = cluster.node(number).http().get("/v1/cluster").expect(200);
        (status["format"].as_u64(), status["format_next"].as_u64())
    };
    until("all nodes agree on the new version", Duration::from_secs(30), || {
        (1..=3).all(|number| agreed(number) == (Some(2), None))
    });
    resting(&cluster, 5).expect(200);
    hash_alike(&cluster);
    // The older release cannot read what is written now. It says so, and does not serve.
    cluster.node_mut(3).terminate(Duration::from_secs(30));
    cluster.node_mut(3).set_older(true);
    cluster.node_mut(3).spawn();
    until("the older release is refused", Duration::from_secs(30), || {
        cluster.node(3).log().contains("format version")
    });
    let mut http = cluster.node(3).http().with_limit(Duration::from_secs(1));
    assert!(!http.call("GET", "/readyz", None).is_ok_and(|reply| reply.status == 200), "it serves");
    cluster.node_mut(3).kill();
    cluster.node_mut(3).set_older(false);
    cluster.node_mut(3).restart();
    cluster.leader();
    hash_alike(&cluster);
    let (many, gap) = at_work.judge(&cluster, 2);
    println!(
        "rolling upgrade: {changes} changes of release, {many} grants kept, the longest time without an answer {gap:?}"
    );
}

/// Three nodes become five, then three again, and in the end none of the first three is left.
#[test]
fn every_node_is_replaced_under_load() {
    let _turn = alone();
    let mut cluster = Cluster::start("replaced-all", 3);
    let newcomers: Vec<(usize, String)> = (0..3).map(|_| cluster.prepare_another()).collect();
    let at_work = AtWork::start(&cluster);
    let run = |cluster: &Cluster, by: usize, arguments: &[&str]| {
        let output = run_tenure(&cluster.node(by).endpoint(), &[&["cluster"], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {said}");
    };
    let add = |cluster: &mut Cluster, by: usize, (number, peer): &(usize, String)| {
        cluster.node_mut(*number).spawn();
        until("the new node says that it waits", Duration::from_secs(30), || {
            cluster.node(*number).log().contains(&format!("tenure cluster add {number}="))
        });
        run(cluster, by, &["add", peer]);
        cluster.node_mut(*number).wait_ready();
    };
    let remove = |cluster: &mut Cluster, by: usize, number: usize| {
        run(cluster, by, &["remove", &number.to_string()]);
        cluster.node_mut(number).kill();
    };
    add(&mut cluster, 1, &newcomers[0]);
    add(&mut cluster, 2, &newcomers[1]);
    cluster.leader_among(&[1, 2, 3, 4, 5]);
    remove(&mut cluster, 3, 1);
    remove(&mut cluster, 3, 2);
    add(&mut cluster, 4, &newcomers[2]);
    remove(&mut cluster, 4, 3);
    let leader = cluster.leader_among(&[4, 5, 6]);
    let (many, gap) = at_work.judge(&cluster, leader);
    println!("all nodes replaced: {many} grants kept, the longest time without an answer {gap:?}");
}

/// A node that was away while the log behind it was cut comes back by a snapshot, and has the same state as the
/// others, to the bit.
#[test]
fn a_node_that_was_away_for_long_hashes_alike() {
    let _turn = alone();
    let mut cluster = Cluster::start("snapshot", 3);
    let leader = cluster.leader();
    let (away, other) = (cluster.others(leader)[0], cluster.others(leader)[1]);
    let mut http = cluster.node(leader).http();
    let had = cluster.node(away).metric("tenure_log_last_index");
    cluster.node_mut(away).kill();
    // More than the log keeps: a snapshot is due after 64 MiB.
    let value = "x".repeat(60_000);
    for number in 0..1_300 {
        http.put(&format!("/v1/registers/bulk/{}", number % 50), &json!({ "value": value })).expect(200);
    }
    let body = json!({"holder": "h", "ttl_ms": 3_600_000});
    for number in 0..50 {
        http.post(&format!("/v1/leases/bulk/{number}:acquire"), &body).expect(200);
    }
    for number in [leader, other] {
        until("what the node missed is cut from the log", Duration::from_secs(60), || {
            cluster.node(number).metric("tenure_log_purged_index") > had + 1.0
        });
    }
    cluster.node_mut(away).restart();
    hash_alike(&cluster);
}

/// All nodes have the same state at one index. Sessions make every node's clock tick, so the indexes are compared while they
/// move.
#[track_caller]
fn hash_alike(cluster: &Cluster) {
    until_some("all nodes are seen at one index", Duration::from_secs(30), || {
        let hashed = |number: usize| {
            let status = cluster.node(number).http().get("/v1/cluster?state_hash=true").expect(200);
            Some((status["applied"].as_u64()?, status["state_hash"].as_str()?.to_owned()))
        };
        let all: Option<Vec<_>> = (1..=3).map(hashed).collect();
        let all = all?;
        if all.iter().any(|(applied, _)| *applied != all[0].0) {
            return None;
        }
        assert!(all.iter().all(|(_, hash)| *hash == all[0].1), "the states differ: {all:?}");
        Some(())
    });
}
