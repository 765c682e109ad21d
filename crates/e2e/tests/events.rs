//! Past events, exported: every revision once and in order whichever nodes die, or a line that names what is missing.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tenure_e2e::{
    Cluster, Http, Node, NodeOptions, Scratch, Workers, alone, alongside, run_tenure, scale, tenure_binary,
    until, until_some,
};

/// A machine that compiles at the same time is given more.
const WITHIN: Duration = Duration::from_secs(60);

/// An export that follows, into a file.
struct Export {
    child: Child,
    file: std::path::PathBuf,
}

impl Export {
    fn follow(endpoints: &str, scratch: &Scratch) -> Export {
        let file = scratch.path().join("events.jsonl");
        let output = std::fs::File::create(&file).expect("a file in the scratch folder");
        let child = Command::new(tenure_binary())
            .args(["events", "export", "--from", "1", "--follow"])
            .env("TENURE_ENDPOINTS", endpoints)
            .stdout(output)
            .stderr(Stdio::null())
            .spawn()
            .expect("tenure can be started");
        Export { child, file }
    }

    /// The whole lines so far.
    fn lines(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.file).expect("the file can be read");
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).expect("one object per line")).collect()
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn exported(endpoints: &str, arguments: &[&str]) -> (Vec<Value>, i32) {
    let arguments = [&["events", "export"], arguments].concat();
    let output = run_tenure(endpoints, &arguments);
    let lines = String::from_utf8(output.stdout).expect("lines are text");
    let lines = lines.lines().map(|line| serde_json::from_str(line).expect("one object per line")).collect();
    (lines, output.status.code().expect("an exit code"))
}

fn revision(line: &Value) -> u64 {
    line["revision"].as_u64().unwrap_or_else(|| panic!("{line} has no revision"))
}

/// `kill -9` of the node that is being read and of the leader, under load: the export goes on elsewhere, and what it wrote
/// is what an export of the cluster at rest writes, line by line.
#[test]
fn an_export_survives_the_nodes_it_reads_from() {
    let _turn = alone();
    let mut cluster = Cluster::start("export", 3);
    let scratch = Scratch::new("export-file");
    let export = Export::follow(&cluster.endpoints(), &scratch);
    let workers = Workers::start((0..3).map(|name| cluster.addresses_from(name)).collect());
    let rounds = if scale().full { 9 } else { 3 };
    for round in 0..rounds {
        let seen = export.lines().len();
        until("the export goes on", WITHIN, || export.lines().len() > seen + 20);
        // Each in turn: the one that the export reads from is among them.
        let victim = round % 3 + 1;
        cluster.node_mut(victim).kill();
        cluster.node_mut(victim).restart();
        cluster.wait_ready();
    }
    workers.stop();
    let endpoints = cluster.endpoints();
    let last = cluster.node(1).http().get("/v1/events?limit=1").expect(200)["revision"].as_u64().unwrap();
    until("the export has everything", WITHIN, || {
        export.lines().last().is_some_and(|line| revision(line) >= last)
    });
    let mut followed = export.lines();
    followed.retain(|line| revision(line) <= last);
    let revisions: Vec<u64> = followed.iter().map(revision).collect();
    assert_eq!(revisions, (1..=last).collect::<Vec<_>>(), "every revision once and in order");

    for number in 1..=3 {
        let (mut at_rest, code) = exported(&cluster.node(number).endpoint(), &["--from", "1"]);
        at_rest.retain(|line| revision(line) <= last);
        assert!(at_rest == followed && code == 0, "node {number} tells the same");
    }
    let half = last / 2;
    let (mut rest, code) = exported(&endpoints, &["--from", &half.to_string()]);
    rest.retain(|line| revision(line) <= last);
    assert_eq!(
        (rest.as_slice(), code),
        (&followed[half as usize - 1..], 0),
        "a resumed one is the rest of it"
    );
    let granted = |line: &Value| {
        let events = line["events"].as_array().expect("a line has events");
        events.iter().any(|event| event["kind"] == "granted")
    };
    assert!(followed.iter().any(granted) && followed[0]["at"].is_string(), "{}", followed[0]);
}

/// A transaction of so many puts: one revision.
fn put_many(http: &mut Http, count: usize) {
    let put = |number| json!({"put": {"key": format!("many/{number}"), "value": "v".repeat(64)}});
    let then: Vec<Value> = (0..count).map(put).collect();
    http.post("/v1/registers:write", &json!({ "then": then })).expect(200);
}

/// Bounded files, and more events than memory holds: what is gone is one line and an exit code, and what is left is whole.
/// A restart, and files that were damaged or deleted meanwhile, change nothing about that.
#[test]
fn what_is_missing_is_named_with_an_exit_code() {
    let _turn = alongside();
    let options =
        NodeOptions { arguments: vec!["--events-bytes".into(), "256KiB".into()], ..NodeOptions::default() };
    let mut node = Node::start_with("export-gap", options);
    let mut http = node.http();
    // 16,384 events are kept in memory; these are some more.
    for _ in 0..150 {
        put_many(&mut http, 128);
    }
    let (lines, code) = exported(&node.endpoint(), &["--from", "1"]);
    assert_eq!(code, 7, "{lines:?}");
    let missed = lines.last().expect("one line")["missed"].clone();
    assert!(lines.len() == 1 && missed["from"] == 1, "{lines:?}");
    let to = missed["to"].as_u64().unwrap();
    let (rest, code) = exported(&node.endpoint(), &["--from", &(to + 1).to_string()]);
    let first_to_last = (rest.first().map(revision), code);
    assert_eq!(first_to_last, (Some(to + 1), 0));
    let revisions: Vec<u64> = rest.iter().map(revision).collect();
    assert_eq!(revisions, (to + 1..to + 1 + rest.len() as u64).collect::<Vec<_>>());
    let (oldest, code) = exported(&node.endpoint(), &[]);
    assert_eq!((oldest.first().map(revision), code), (Some(to + 1), 0), "the oldest is where it begins");
    let (few, _) = exported(&node.endpoint(), &["--prefix", "nothing/"]);
    assert!(few.is_empty(), "and it ends although nothing concerns it");

    // Files of past events cannot keep a node from starting.
    node.kill();
    let folder = node.data_path().join("events");
    let mut damaged = 0;
    for file in std::fs::read_dir(&folder).expect("there are files") {
        let path = file.expect("an entry").path();
        let mut bytes = std::fs::read(&path).expect("it can be read");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0xff;
        std::fs::write(&path, bytes).expect("it can be written");
        damaged += 1;
    }
    assert!(damaged > 0);
    node.restart();
    let served = until_some("an export after the damage", WITHIN, || {
        let (lines, code) = exported(&node.endpoint(), &[]);
        (code == 0 && !lines.is_empty()).then_some(lines)
    });
    let revisions: Vec<u64> = served.iter().map(revision).collect();
    let first = revisions[0];
    assert_eq!(
        revisions,
        (first..first + revisions.len() as u64).collect::<Vec<_>>(),
        "what is left is whole"
    );
}
