//! What an older release has written is read by this one: a small data directory of every format version is kept
//! in `fixtures/`, and everything in it must be there. What a newer release has written is refused, with words.
//!
//! `TENURE_WRITE_FIXTURE=1 cargo test -p tenure-e2e --test upgrade` writes the fixture of the present version: once, when
//! the version is raised. A fixture that has been released never changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tenure_e2e::{Http, Node, NodeOptions, Scratch, alongside, tenure_binary, until};
use tenure_server::{Config, Server};

/// The format version that this program writes. It is in every file's head; this one in `identity`.
const VERSION: u32 = 1;
/// The format version of the log's segments.
const LOG_VERSION: u32 = 2;
/// Outlives every test: cluster time stands still while nobody runs.
const TTL_MS: u64 = 3_600_000;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// Writes a data directory with something of everything in it: half of it in a snapshot, half of it only in the log.
fn write_directory(folder: &Path) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let mut config = Config::single(([127, 0, 0, 1], 0).into(), folder.to_owned());
    // As a fixture wants it, and not as a disk does: small files.
    config.log.segment_bytes = 16 << 10;
    config.snapshot.entries_max = 40;
    config.snapshot.entries_kept = 4;
    let server = runtime.block_on(Server::start(config)).expect("a server on an empty directory");
    let mut http = Http::new(server.address());
    until("the server serves", Duration::from_secs(30), || {
        http.call("GET", "/readyz", None).is_ok_and(|reply| reply.status == 200)
    });
    let session = http.post("/v1/sessions", &json!({"holder": "worker-7", "ttl_ms": TTL_MS})).expect(200);
    let session = &session["session"];
    let mut acquire = |resource: &str, more: Value| {
        let mut body = json!({ "session": session });
        if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
            body.extend(more);
        }
        let grant = http.post(&format!("/v1/leases/{resource}:acquire"), &body).expect(200);
        grant["token"].as_u64().expect("a grant has a token")
    };
    assert_eq!(acquire("shard/7", json!({})), 1);
    assert_eq!(acquire("settlement/cron", json!({})), 2);
    assert_eq!(acquire("api/quota", json!({"mode": {"slots": 3}})), 3);
    assert_eq!(acquire("ledger/writer", json!({"fences": ["postgres:ledger"]})), 4);
    let arm = json!({"fence": "postgres:ledger", "token": 4});
    http.post("/v1/fences/ledger/writer:arm", &arm).expect(200);
    let refused = json!({"fence": "postgres:ledger", "presented": 1, "seen": 4, "count": 2});
    http.post("/v1/fences/ledger/writer:refused", &refused).expect(200);
    http.post("/v1/leases/shard/7:release", &json!({ "session": session })).expect(200);
    let guarded = json!({"value": "row 4711", "resource": "settlement/cron", "token": 2});
    http.put("/v1/registers/settlement/cursor", &guarded).expect(200);
    for number in 0..80 {
        http.put("/v1/registers/config/colour", &json!({"value": format!("shade {number}")})).expect(200);
    }
    until("there is a snapshot", Duration::from_secs(30), || {
        fs::read_dir(folder.join("snapshots")).is_ok_and(|mut found| found.next().is_some())
    });
    // Only the log knows of what comes now.
    let body = json!({ "session": session });
    assert_eq!(http.post("/v1/leases/late/lease:acquire", &body).expect(200)["token"], 5);
    http.put("/v1/registers/config/colour", &json!({"value": "the last shade"})).expect(200);
    runtime.block_on(server.stop());
}

/// Everything that [`write_directory`] wrote is there, and the next token is above all of them.
#[track_caller]
fn assert_readable(folder: &Path) {
    let mut node = Node::prepare("upgrade", NodeOptions::default());
    copy(folder, &node.data_path());
    node.spawn();
    node.wait_ready();
    let mut http = node.http();
    for (resource, token) in
        [("settlement/cron", 2), ("api/quota", 3), ("ledger/writer", 4), ("late/lease", 5)]
    {
        let lease = http.get(&format!("/v1/leases/{resource}")).expect(200);
        let holder = &lease["holders"][0];
        assert_eq!((&lease["state"], &holder["token"]), (&json!("held"), &json!(token)), "{lease}");
        assert_eq!(holder["holder"], "worker-7", "{lease}");
    }
    let free = http.get("/v1/leases/shard/7").expect(200);
    assert_eq!((&free["state"], &free["token"], &free["generation"]), (&json!("free"), &json!(1), &json!(1)));
    let history = http.get("/v1/history/shard/7").expect(200).to_string();
    assert!(history.contains("worker-7") && history.contains("released"), "{history}");
    let cursor = http.get("/v1/registers/settlement/cursor").expect(200);
    assert_eq!(cursor["value"], "row 4711", "{cursor}");
    let colour = http.get("/v1/registers/config/colour").expect(200);
    assert_eq!((&colour["value"], &colour["version"]), (&json!("the last shade"), &json!(81)), "{colour}");
    let fences = http.get("/v1/fences/ledger/writer").expect(200);
    let fence = &fences["fences"][0];
    assert_eq!((&fence["armed"][0]["token"], &fence["refused"]), (&json!(4), &json!(2)), "{fences}");
    // The guard is remembered, and so is who may pass it.
    let stale = json!({"value": "row 1", "resource": "settlement/cron", "token": 1});
    assert_eq!(http.put("/v1/registers/settlement/cursor", &stale).status, 412);
    let current = json!({"value": "row 4712", "resource": "settlement/cron", "token": 2});
    http.put("/v1/registers/settlement/cursor", &current).expect(200);
    // A slot of three is taken: the kind of the resource is remembered, too.
    let quota = json!({"holder": "other", "ttl_ms": TTL_MS, "mode": {"slots": 3}});
    let slot = http.post("/v1/leases/api/quota:acquire", &quota).expect(200);
    assert_eq!(slot["token"], 6, "the next token is above every other: {slot}");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder can be made");
    for entry in fs::read_dir(from).unwrap_or_else(|error| panic!("{}: {error}", from.display())) {
        let entry = entry.expect("a folder can be listed");
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &to);
        } else if entry.file_name() != "lock" {
            fs::copy(&path, &to).expect("a file can be copied");
        }
    }
}

#[test]
fn data_of_every_released_format_is_read() {
    let _turn = alongside();
    let fresh = Scratch::new("upgrade-fresh");
    write_directory(fresh.path());
    if std::env::var_os("TENURE_WRITE_FIXTURE").is_some() {
        copy(fresh.path(), &fixtures().join(format!("format-{VERSION}")));
    }
    assert_readable(fresh.path());
    for version in 1..=VERSION {
        assert_readable(&fixtures().join(format!("format-{version}")));
    }
}

/// Starts a node on data that it must not touch; what it says.
#[track_caller]
fn refused(data: &Path) -> String {
    let before = listing(data);
    let mut command = Command::new(tenure_binary());
    command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(data).stdin(Stdio::null());
    let output = command.output().expect("the tenure binary can be started");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "it started: {said}");
    assert_eq!(listing(data), before, "nothing of it is touched");
    said
}

fn listing(data: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(data).expect("a folder can be listed").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(listing(&path));
        } else if entry.file_name() != "lock" {
            found.push((path.clone(), fs::read(&path).expect("a file can be read")));
        }
    }
    found.sort();
    found
}

#[test]
fn data_of_a_newer_format_is_refused_with_words() {
    let _turn = alongside();
    let (known, newer) = (VERSION, VERSION + 1);
    let kept = fixtures().join(format!("format-{VERSION}"));
    let words = |newer: u32| {
        let known = newer - 1;
        format!("format version {newer}, this program knows versions up to {known}: start the newer program")
    };

    let whole = Scratch::new("upgrade-newer");
    copy(&kept, whole.path());
    let identity = whole.path().join("identity");
    let text = fs::read_to_string(&identity).expect("it has an identity");
    let raised = text.replace(&format!("tenure-data {known}"), &format!("tenure-data {newer}"));
    fs::write(&identity, raised).expect("a file can be written");
    let said = refused(whole.path());
    assert!(said.contains("the data directory has") && said.contains(&words(newer)), "{said}");

    // A single file of it: the log, and the snapshot.
    for (folder, newer) in [("log", LOG_VERSION + 1), ("snapshots", newer)] {
        let part = Scratch::new("upgrade-newer-part");
        copy(&kept, part.path());
        for entry in fs::read_dir(part.path().join(folder)).expect("it has one").flatten() {
            let mut bytes = fs::read(entry.path()).expect("a file can be read");
            bytes[8..12].copy_from_slice(&newer.to_le_bytes());
            fs::write(entry.path(), bytes).expect("a file can be written");
        }
        let said = refused(part.path());
        assert!(said.contains(&words(newer)), "{folder}: {said}");
    }
}
