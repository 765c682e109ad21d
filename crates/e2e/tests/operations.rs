//! What operators do to a running cluster, with the commands that they type: step down, grow and shrink, back up and
//! restore. Nothing acknowledged is lost by it, and no token is issued twice (`acknowledged_is_kept`, `tokens_rise`).

use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_e2e::{Cluster, Http, Node, Scratch, alongside, run_tenure, until};

#[track_caller]
fn done(output: &Output) -> String {
    let (stdout, stderr) = texts(output);
    assert!(output.status.success(), "{:?}\n{stdout}\n{stderr}", output.status);
    stdout
}

#[track_caller]
fn refused(output: &Output, exit: i32) -> String {
    let (stdout, stderr) = texts(output);
    assert_eq!(output.status.code(), Some(exit), "{stdout}\n{stderr}");
    stderr
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[track_caller]
fn granted(http: &mut Http, resource: &str) -> u64 {
    let body = json!({"holder": "h", "ttl_ms": 3_600_000});
    let grant = http.post(&format!("/v1/leases/{resource}:acquire"), &body).expect(200);
    grant["token"].as_u64().expect("a grant has a token")
}

fn status(node: &Node) -> Value {
    serde_json::from_str(&done(&run_tenure(&node.endpoint(), &["cluster", "status", "--json"])))
        .expect("one object")
}

fn members(status: &Value) -> Vec<u64> {
    let nodes = status["nodes"].as_array().expect("a list of nodes");
    nodes.iter().filter_map(|node| node["node"].as_u64()).collect()
}

/// Leadership moves to the node that was named, asked for at any node, and any node tells all about all.
#[test]
fn leadership_is_handed_on() {
    let _turn = alongside();
    let cluster = Cluster::start("step-down", 3);
    let leader = cluster.leader();
    let others = cluster.others(leader);
    let (to, asked) = (others[0], others[1]);
    let token = granted(&mut cluster.node(asked).http(), "kept/lease");
    let started = Instant::now();
    let output =
        run_tenure(&cluster.node(asked).endpoint(), &["cluster", "step-down", "--to", &to.to_string()]);
    println!("stepped down within {:?}, the command included", started.elapsed());
    assert!(done(&output).starts_with(&format!("node {to} leads")), "{output:?}");
    assert_eq!(cluster.leader(), to);
    let lease = cluster.node(leader).http().get("/v1/leases/kept/lease").expect(200);
    assert_eq!(lease["token"].as_u64(), Some(token), "{lease}");
    let endpoint = cluster.node(asked).endpoint();
    refused(&run_tenure(&endpoint, &["cluster", "step-down", "--to", "9"]), 7);

    let status = status(cluster.node(asked));
    for (index, node) in status["nodes"].as_array().expect("a list of nodes").iter().enumerate() {
        assert_eq!(node["client_address"], cluster.node(index + 1).endpoint(), "{status}");
        assert_eq!(node["reachable"], true, "{status}");
        assert_ne!(node["version"], "", "{status}");
        assert_ne!(node["peer_address"], "", "{status}");
        assert_eq!(node["role"], if index + 1 == to { "leader" } else { "follower" }, "{status}");
    }
}

/// A fourth node waits until it is added and then takes the place of the leader; nothing is lost on the way.
#[test]
fn a_node_is_replaced() {
    let _turn = alongside();
    let mut cluster = Cluster::start("replaced", 3);
    let leader = cluster.leader();
    let token = granted(&mut cluster.node(leader).http(), "kept/lease");
    let endpoint = cluster.node(cluster.others(leader)[0]).endpoint();
    let absent = refused(&run_tenure(&endpoint, &["cluster", "add", "4=127.0.0.1:1"]), 7);
    assert!(absent.contains("does not answer"), "{absent}");

    let (number, peer) = cluster.prepare_another();
    cluster.node_mut(number).spawn();
    until("the new node says that it waits", Duration::from_secs(30), || {
        cluster.node(number).log().contains("tenure cluster add 4=")
    });
    assert_eq!(members(&status(cluster.node(1))), [1, 2, 3], "nobody has added it yet");
    done(&run_tenure(&endpoint, &["cluster", "add", &peer]));
    cluster.node_mut(number).wait_ready();
    assert_eq!(members(&status(cluster.node(number))), [1, 2, 3, 4]);
    done(&run_tenure(&endpoint, &["cluster", "add", &peer]));

    done(&run_tenure(&endpoint, &["cluster", "remove", &leader.to_string()]));
    cluster.node_mut(leader).kill();
    let remaining = cluster.others(leader);
    cluster.leader_among(&remaining);
    let expected: Vec<u64> = remaining.iter().map(|number| *number as u64).collect();
    assert_eq!(members(&status(cluster.node(number))), expected);
    let mut http = cluster.node(number).http();
    let lease = http.get("/v1/leases/kept/lease").expect(200);
    assert_eq!(lease["token"].as_u64(), Some(token), "{lease}");
    assert!(granted(&mut http, "kept/another") > token);
    refused(&run_tenure(&endpoint, &["cluster", "remove", "9"]), 7);
}

/// Without a quorum among those who remain a removal is refused, instead of stopping the cluster.
#[test]
fn a_removal_that_would_stop_the_cluster_is_refused() {
    let _turn = alongside();
    let mut cluster = Cluster::start("kept", 3);
    let leader = cluster.leader();
    let (dead, alive) = (cluster.others(leader)[0], cluster.others(leader)[1]);
    cluster.node_mut(dead).kill();
    let endpoint = cluster.node(leader).endpoint();
    let said = refused(&run_tenure(&endpoint, &["cluster", "remove", &alive.to_string()]), 1);
    assert!(said.contains("the cluster would stop"), "{said}");
    done(&run_tenure(&endpoint, &["cluster", "remove", &dead.to_string()]));
    granted(&mut cluster.node(alive).http(), "kept/lease");
}

/// A backup of a cluster becomes two others, one after the other; none ever issues a token that another has issued.
#[test]
fn a_backup_is_restored_above_every_token() {
    let _turn = alongside();
    let scratch = Scratch::new("backup");
    let file = scratch.path().join("tenure.backup");
    let file = file.to_str().expect("a path of ours is text");
    let cluster = Cluster::start("backed-up", 3);
    let leader = cluster.leader();
    let mut http = cluster.node(leader).http();
    granted(&mut http, "backup/before");
    http.put("/v1/registers/kept", &json!({"value": "precious"})).expect(200);
    let follower = cluster.node(cluster.others(leader)[0]);
    done(&run_tenure(&follower.endpoint(), &["cluster", "backup", file]));
    // Issued after the backup: it cannot know.
    let last = (0..5).map(|number| granted(&mut http, &format!("backup/after-{number}"))).max();
    let last = last.expect("five of them");
    let used =
        refused(&run_tenure(&follower.endpoint(), &["cluster", "restore", file, "--token-floor", "1000"]), 1);
    assert!(used.contains("has been used"), "{used}");

    let mut highest = last;
    for name in ["restored", "restored-again"] {
        let node = Node::start(name);
        let endpoint = node.endpoint();
        let missing = refused(&run_tenure(&endpoint, &["cluster", "restore", file]), 2);
        assert!(missing.contains("marks in your fences"), "it says where to look: {missing}");
        let low = refused(&run_tenure(&endpoint, &["cluster", "restore", file, "--token-floor", "1"]), 1);
        assert!(low.contains("is not above 1"), "{low}");
        let floor = (highest + 10).to_string();
        let restore = ["cluster", "restore", file, "--token-floor", &floor, "--holders-stopped"];
        done(&run_tenure(&endpoint, &restore));
        let mut http = node.http();
        assert_eq!(http.get("/v1/registers/kept").expect(200)["value"], "precious");
        assert_eq!(http.get("/v1/leases/backup/before").expect(200)["state"], "free", "sessions have ended");
        let token = granted(&mut http, "backup/before");
        assert!(token > highest + 10, "token {token} is not above the floor");
        highest = token;
        assert_ne!(status(&node)["cluster"], status(follower)["cluster"], "a restore makes a new cluster");
        refused(&run_tenure(&endpoint, &restore), 1);
    }
    // Nobody vouches that the old holders are stopped: nothing is granted yet.
    let node = Node::start("restored-careful");
    let floor = (highest + 10).to_string();
    done(&run_tenure(&node.endpoint(), &["cluster", "restore", file, "--token-floor", &floor]));
    let body = json!({"holder": "h", "ttl_ms": 10_000});
    let reply = node.http().post("/v1/leases/backup/before:acquire", &body);
    assert_eq!((reply.status, reply.code().as_str()), (503, "restoring"));

    let mut bytes = std::fs::read(file).expect("the backup is there");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(file, bytes).expect("it can be written");
    refused(&run_tenure(&node.endpoint(), &["cluster", "restore", file, "--token-floor", "99999"]), 1);
}

/// The disks of a majority are gone: what the survivor knows becomes a new cluster, above every token of the old one.
#[test]
fn a_lost_majority_is_recovered_from() {
    let _turn = alongside();
    let scratch = Scratch::new("survivor");
    let file = scratch.path().join("survivor.backup");
    let file = file.to_str().expect("a path of ours is text");
    let mut cluster = Cluster::start("lost", 3);
    let leader = cluster.leader();
    let (survivor, other) = (cluster.others(leader)[0], cluster.others(leader)[1]);
    let token = granted(&mut cluster.node(leader).http(), "lost/lease");
    let mut http = cluster.node(survivor).http();
    http.put("/v1/registers/kept", &json!({"value": "precious"})).expect(200);
    // Read through the survivor, so that it has applied what it is about to be asked for.
    http.get("/v1/registers/kept").expect(200);
    for lost in [leader, other] {
        cluster.node_mut(lost).kill();
        std::fs::remove_dir_all(cluster.node(lost).data_path()).expect("data can be removed");
    }
    let endpoint = cluster.node(survivor).endpoint();
    until("the survivor knows that nobody leads", Duration::from_secs(30), || {
        run_tenure(&endpoint, &["cluster", "status"]).status.code() == Some(6)
    });
    refused(&run_tenure(&endpoint, &["cluster", "backup", file, "--timeout", "1s"]), 6);
    done(&run_tenure(&endpoint, &["cluster", "backup", file, "--stale"]));
    cluster.node_mut(survivor).kill();

    let recovered = Cluster::start("recovered", 3);
    let endpoint = recovered.node(2).endpoint();
    let floor = (token + 100).to_string();
    done(&run_tenure(&endpoint, &["cluster", "restore", file, "--token-floor", &floor, "--holders-stopped"]));
    let mut http = recovered.node(3).http();
    assert_eq!(http.get("/v1/registers/kept").expect(200)["value"], "precious");
    assert!(granted(&mut http, "lost/lease") > token + 100);
}

/// An alert on a metric that nobody exports never fires, and one without a runbook wakes somebody who does not know
/// what to do.
#[test]
fn every_alert_names_what_a_node_exports_and_what_to_do() {
    let _turn = alongside();
    let read = |path: &str| {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
        std::fs::read_to_string(file).expect("our documents can be read")
    };
    let node = Node::start("alerts");
    let reply = node.http().get("/metrics");
    let page = String::from_utf8_lossy(&reply.body).into_owned();
    let exported: Vec<(&str, &str)> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    assert!(exported.len() > 40, "{page}");
    let runbook = read("docs/operations.md");
    let rules = read("deploy/alerts.yml");
    let (mut alerts, mut metrics) = (0, 0);
    for line in rules.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        if let Some(alert) = line.strip_prefix("- alert: ") {
            alerts += 1;
            assert!(runbook.contains(&format!("\n### {alert}\n")), "{alert} has no runbook");
            let anchor = format!("runbook_url: docs/operations.md#{}\n", alert.to_lowercase());
            assert!(rules.contains(&anchor), "{alert} does not name its runbook");
        }
        let Some(expression) = line.strip_prefix("expr: ") else { continue };
        let words = expression.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        for word in words.filter(|word| word.starts_with("tenure_")) {
            metrics += 1;
            let known = exported.iter().any(|(name, kind)| match word.strip_suffix("_bucket") {
                Some(family) => *name == family && *kind == "histogram",
                None => *name == word && *kind != "histogram",
            });
            assert!(known, "no node exports {word}");
        }
    }
    assert!(alerts >= 15 && metrics >= alerts - 1, "{alerts} alerts on {metrics} metrics");
}
