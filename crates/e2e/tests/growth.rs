//! One node becomes three without stopping for longer than a restart takes: no session ends, no lease is
//! lost, and the node that was the whole cluster can then be lost itself (`acknowledged_is_kept`,
//! `healthy_holder_keeps`).

use std::net::SocketAddr;
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_e2e::{
    Node, NodeOptions, SOON, Workers, alongside, assert_kept, block_on, client, free_address, renewed,
    run_tenure, until,
};

const TTL: Duration = Duration::from_secs(6);
const HOLDERS: usize = 4;

/// A node and where its peers reach it.
struct Grown {
    nodes: Vec<Node>,
    peers: Vec<SocketAddr>,
}

impl Grown {
    /// A single node that serves, and two that have yet to be started.
    fn from_single(name: &str) -> Self {
        let mut nodes = vec![Node::start(&format!("{name}-1"))];
        nodes.extend([2, 3].map(|number| Node::prepare(&format!("{name}-{number}"), NodeOptions::default())));
        Self { nodes, peers: (0..3).map(|_| free_address()).collect() }
    }

    /// `2=127.0.0.1:20002`, for the flags.
    fn peer(&self, number: usize) -> String {
        format!("{number}={}", self.peers[number - 1])
    }

    /// Stops the single node in good order, and starts it with a port for peers.
    fn open_to_peers(&mut self) {
        self.nodes[0].terminate(SOON);
        let peer = self.peer(1);
        self.nodes[0].set_arguments(&["--node", "1", "--peers", &peer]);
        self.nodes[0].restart();
    }

    fn spawn_others(&mut self) {
        for number in [2, 3] {
            let peers = format!("{},{}", self.peer(1), self.peer(number));
            let node = &mut self.nodes[number - 1];
            node.set_arguments(&["--node", &number.to_string(), "--peers", &peers]);
            node.spawn();
        }
        for number in [2, 3] {
            let node = &self.nodes[number - 1];
            let add = format!("tenure cluster add {}", self.peer(number));
            until("the new node says that it waits", SOON, || node.log().contains(&add));
        }
    }

    /// Runs a command of the CLI at one node.
    fn run(&self, number: usize, arguments: &[&str]) -> Output {
        run_tenure(&self.nodes[number - 1].endpoint(), arguments)
    }
}

#[track_caller]
fn done(output: &Output) -> Value {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}\n{stderr}", output.status);
    serde_json::from_slice(&output.stdout).expect("one object")
}

#[track_caller]
fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The members that answer.
fn reachable(output: &Output) -> Vec<u64> {
    let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let nodes = status["nodes"].as_array().cloned().unwrap_or_default();
    nodes.iter().filter(|node| node["reachable"] == true).filter_map(|node| node["node"].as_u64()).collect()
}

/// Holders with the library and callers with plain HTTP are at work all the time. The single node is
/// restarted with a port for peers, two others are added in one command, then the first is killed.
#[test]
fn a_single_node_becomes_three_under_load() {
    let _turn = alongside();
    let mut grown = Grown::from_single("growth");
    // The client is configured with the first node only: it learns of the others from it.
    let client = client(&grown.nodes[0].endpoint());
    let cluster = done(&grown.run(1, &["cluster", "status", "--json"]))["cluster"].clone();
    block_on(async {
        let mut held = Vec::new();
        for number in 0..HOLDERS {
            let session = client.session().ttl(TTL).open().await.expect("opened");
            let lease = session.acquire(format!("kept/{number}")).await.expect("granted");
            let token = lease.permit().expect("held").token().get();
            held.push((session, lease, token));
        }
        let addresses: Vec<SocketAddr> = grown.nodes.iter().map(Node::address).collect();
        let workers = Workers::start(vec![addresses.clone(), addresses]);
        until("the load is felt", SOON, || workers.promised() > 30);

        let started = Instant::now();
        grown.open_to_peers();
        println!("restarted with a port for peers within {:?}", started.elapsed());
        let status = done(&grown.run(1, &["cluster", "status", "--json"]));
        assert_eq!((&status["cluster"], &status["fault_tolerant"]), (&cluster, &json!(false)), "{status}");
        assert_eq!(status["nodes"][0]["peer_address"], grown.peers[0].to_string(), "{status}");

        // Alone, the second would make things worse; with the third it does not.
        grown.spawn_others();
        let (second, third) = (grown.peer(2), grown.peer(3));
        let two = refused(&grown.run(1, &["cluster", "add", &second]));
        assert!(two.contains("two voters") && two.contains("--two-voters"), "{two}");
        let started = Instant::now();
        let added = done(&grown.run(1, &["cluster", "add", &second, &third, "--json"]));
        println!("added both within {:?}", started.elapsed());
        assert_eq!((&added["added"], &added["voters"]), (&json!(true), &json!([1, 2, 3])), "{added}");
        for node in &mut grown.nodes {
            node.wait_ready();
        }
        // Asked for again, because an answer can be lost: there is nothing left to do.
        let again = done(&grown.run(2, &["cluster", "add", &second, &third, "--json"]));
        assert_eq!(again["voters"], json!([1, 2, 3]), "{again}");
        // Whoever leads meanwhile: one of the new ones, for instance.
        assert!(grown.run(3, &["cluster", "step-down", "--to", "2"]).status.success());
        let again = done(&grown.run(1, &["cluster", "add", &second, &third, "--json"]));
        assert_eq!(again["voters"], json!([1, 2, 3]), "{again}");
        assert!(grown.run(3, &["cluster", "step-down", "--to", "1"]).status.success());
        let status = done(&grown.run(3, &["cluster", "status", "--json"]));
        assert_eq!((&status["cluster"], &status["fault_tolerant"]), (&cluster, &json!(true)), "{status}");
        for (_, lease, token) in &held {
            assert_eq!(renewed(lease, TTL), *token, "a growth ends nothing");
        }

        grown.nodes[0].kill();
        until("the other two go on", SOON, || grown.run(2, &["cluster", "status"]).status.success());
        for (_, lease, token) in &held {
            assert_eq!(renewed(lease, TTL), *token, "nor does the loss of the first node");
        }
        // It needs no flags to come back as what it is.
        grown.nodes[0].set_arguments(&[]);
        grown.nodes[0].restart();
        until("all are there", SOON, || {
            reachable(&grown.run(1, &["cluster", "status", "--json"])) == [1, 2, 3]
        });
        assert!(grown.nodes[0].log().contains("going on as a member"), "it says so");

        let (promised, gap) = workers.stop();
        println!("{} grants, longest time without an answer {gap:?}", promised.len());
        assert_kept(&mut grown.nodes[1].http(), &promised);
        for (number, (_, _, token)) in held.iter().enumerate() {
            let lease = grown.nodes[2].http().get(&format!("/v1/leases/kept/{number}")).expect(200);
            assert_eq!((&lease["generation"], lease["token"].as_u64()), (&json!(1), Some(*token)), "{lease}");
        }
    });
}

/// A start on a single node's data that cannot work is refused with the one that does, and nothing has
/// changed.
#[test]
fn wrong_starts_say_what_to_do() {
    let _turn = alongside();
    let mut grown = Grown::from_single("growth-wrong");
    let body = json!({"holder": "h", "ttl_ms": 3_600_000});
    let grant = grown.nodes[0].http().post("/v1/leases/kept:acquire", &body).expect(200);
    let (second, third) = (grown.peer(2), grown.peer(3));
    let said = refused(&grown.run(1, &["cluster", "add", &second, &third]));
    assert!(said.contains("--node 1 --peers 1=HOST:PORT"), "{said}");
    grown.nodes[0].terminate(SOON);

    let all = format!("{},{second},{third}", grown.peer(1));
    let others = format!("tenure cluster add {second} {third}");
    for (arguments, expected) in [
        (["--node", "1", "--peers", &all], others.as_str()),
        (["--node", "2", "--peers", &second], "belongs to node 1"),
        (["--node", "2", "--peers", &all], "start it with --node 1"),
    ] {
        let node = &mut grown.nodes[0];
        node.set_arguments(&arguments);
        node.spawn();
        until("it gives up", SOON, || !node.is_alive());
        node.kill();
        assert!(node.log().contains(expected), "{expected}: {}", node.log());
    }
    grown.nodes[0].set_arguments(&[]);
    grown.nodes[0].restart();
    let lease = grown.nodes[0].http().get("/v1/leases/kept").expect(200);
    assert_eq!(lease["token"], grant["token"], "{lease}");
}
