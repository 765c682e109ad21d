//! `tenure fence` on a real PostgreSQL, and what people are shown of fences: the binary as an operator uses it.

#[path = "../../fence/tests/support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tenure_e2e::{Cluster, Node, alongside, run_tenure, until};

const RESOURCE: &str = "ledger/writer";

struct Ledger {
    node: Node,
    database: support::Server,
}

impl Ledger {
    fn start() -> Option<Ledger> {
        let database = support::postgres()?;
        let ledger = Ledger { node: Node::start("fences"), database };
        ledger.sql(
            "postgres",
            "CREATE ROLE application LOGIN; CREATE TABLE entries (id int, amount int); GRANT ALL ON entries TO application",
        );
        Some(ledger)
    }

    fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.database.port)
    }

    /// `tenure fence …` on the database; most of it never asks the store.
    fn fence(&self, arguments: &[&str]) -> Output {
        let url = self.url();
        run_tenure(&self.node.endpoint(), &[&["fence"], arguments, &["--database", &url]].concat())
    }

    /// Statements in one transaction at a prompt: whether they were done, and what was said.
    fn try_sql(&self, user: &str, sql: &str) -> (bool, String) {
        let port = self.database.port.to_string();
        let psql =
            ["-X", "-q", "-t", "-A", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", &port, "-U", user];
        let output = Command::new("psql").args(psql).args(["-c", sql, "postgres"]).output();
        let output = output.expect("psql comes with the server");
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    }

    fn sql(&self, user: &str, sql: &str) -> String {
        let (done, printed) = self.try_sql(user, sql);
        assert!(done, "{sql}: {printed}");
        printed
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The output, if the process ended like this.
#[track_caller]
fn ended(output: &Output, code: i32) -> String {
    let printed = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{printed}");
    printed
}

#[test]
fn an_operator_guards_a_table_looks_at_it_and_gets_past_it() {
    let _turn = alongside();
    let Some(ledger) = Ledger::start() else { return };
    let printed = ended(&ledger.fence(&["status"]), 7);
    assert!(printed.contains("there is no fence in this database"), "{printed}");

    // The application must not be able to take the guard off again.
    let install = ["install", "entries", "--resource", RESOURCE, "--role", "application"];
    ledger.sql("postgres", "ALTER TABLE entries OWNER TO application");
    let printed = ended(&ledger.fence(&install), 1);
    assert!(printed.contains("can act as the owner of public.entries"), "{printed}");
    ledger.sql("postgres", "ALTER TABLE entries OWNER TO postgres; GRANT ALL ON entries TO application");
    ended(&ledger.fence(&install), 0);
    let printed = ended(&ledger.fence(&["status"]), 1);
    assert!(printed.contains("no token has been installed yet"), "{printed}");

    // A token without a holder shuts everybody out; so does having none.
    let taken = ledger.fence(&["barrier", RESOURCE, "--json"]);
    let taken: Value = serde_json::from_str(&ended(&taken, 0)).expect("one object");
    let token = taken["token"].as_u64().expect("a token");
    assert_eq!(taken["databases"], 1);
    assert!(ended(&ledger.fence(&["status"]), 0).contains("guarded"));
    let (done, printed) = ledger.try_sql("application", "INSERT INTO entries VALUES (1, 10)");
    assert!(!done && printed.contains("carries no token for ledger/writer"), "{printed}");

    // The next holder is granted a higher one, and the database takes its writes and no older ones.
    let acquire = format!("/v1/leases/{RESOURCE}:acquire");
    let mut http = ledger.node.http();
    let granted = http.post(&acquire, &json!({"holder": "a", "ttl_ms": 60_000})).expect(200);
    let newest = granted["token"].as_u64().expect("a token");
    assert!(newest > token);
    let write = |token: u64| {
        format!(
            "BEGIN; SELECT tenure_fence.enter('{RESOURCE}', {token}); INSERT INTO entries VALUES (1, 10); COMMIT"
        )
    };
    ledger.sql("application", &write(newest));
    let (done, printed) = ledger.try_sql("application", &write(token));
    assert!(!done && printed.contains("stale token"), "{printed}");
    let held = ended(&ledger.fence(&["barrier", RESOURCE]), 3);
    assert!(held.contains(RESOURCE), "a live holder is not shut out: {held}");

    // A made-up token has shut the holder out; an operator opens the door again, and it is written down.
    ledger
        .sql("application", &format!("SELECT tenure_fence.barrier('{RESOURCE}', 9007199254740991, 'a bug')"));
    let (done, _) = ledger.try_sql("application", &write(newest));
    assert!(!done);
    let to = newest.to_string();
    let printed =
        ended(&ledger.fence(&["repair", RESOURCE, "--to", &to, "--reason", "a bug wrote 2^53-1"]), 0);
    assert!(printed.contains("went from 9007199254740991 to"), "{printed}");
    ledger.sql("application", &write(newest));

    let glass = ["break-glass", RESOURCE, "--reason", "ticket 17", "--sql", "DELETE FROM entries"];
    ended(&ledger.fence(&glass), 0);
    assert_eq!(ledger.sql("postgres", "SELECT count(*) FROM entries").trim(), "0");
    ended(&ledger.fence(&["remove", "entries", "--reason", "moved elsewhere"]), 0);
    ledger.sql("application", "INSERT INTO entries VALUES (2, 20)");
    let printed = ended(&ledger.fence(&["status", "--audit", "10"]), 0);
    for line in ["repair", "break glass", "ticket 17", "remove", "moved elsewhere"] {
        assert!(printed.contains(line), "{line} is not in the audit: {printed}");
    }
}

#[test]
fn people_see_which_fence_is_armed_and_what_it_has_prevented() {
    let _turn = alongside();
    let node = Node::start("coverage");
    let mut http = node.http();
    let acquire = format!("/v1/leases/{RESOURCE}:acquire");
    let body = json!({"holder": "a", "ttl_ms": 60_000, "fences": ["postgres:ledger", "s3:reports"]});
    let granted = http.post(&acquire, &body).expect(200);
    let fences = format!("/v1/fences/{RESOURCE}");
    http.post(&format!("{fences}:arm"), &json!({"fence": "postgres:ledger", "token": granted["token"]}))
        .expect(200);
    let refused = json!({"fence": "postgres:ledger", "presented": 1, "seen": granted["token"], "count": 14});
    http.post(&format!("{fences}:refused"), &refused).expect(200);
    // Only a live token arms, and only a fence that is known can report.
    assert_eq!(http.post(&format!("{fences}:arm"), &json!({"fence": "s3:reports", "token": 99})).status, 412);
    let stranger = json!({"fence": "redis:cache", "presented": 1, "seen": 2, "count": 1});
    http.post(&format!("{fences}:refused"), &stranger).expect(404);

    let tenure = |arguments: &[&str]| {
        let output = run_tenure(&node.endpoint(), arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let shown = tenure(&["get", RESOURCE]);
    assert!(shown.contains("postgres:ledger (armed with token 1, refused 14 stale writes)"), "{shown}");
    assert!(shown.contains("s3:reports (armed with no token, refused 0 stale writes)"), "{shown}");
    assert!(tenure(&["ls"]).trim_end().ends_with("1 of 2 armed"), "{}", tenure(&["ls"]));
    assert!(tenure(&["explain", RESOURCE]).contains("It has refused 14 stale writes"));
    let listed = tenure(&["fence", "ls", "--json"]);
    let listed: Value = serde_json::from_str(listed.lines().next().expect("a line")).expect("an object");
    assert_eq!((&listed["fence"], &listed["refused"]), (&json!("postgres:ledger"), &json!(14)));
    assert_eq!(listed["armed"], json!([{"slot": null, "token": 1, "current": true}]));

    // The set belongs to the resource: the next holder is told of all of it, until an operator takes one out.
    let release = format!("/v1/leases/{RESOURCE}:release");
    http.post(&release, &json!({"session": granted["session"]})).expect(200);
    let body = json!({"holder": "b", "ttl_ms": 60_000});
    let next = http.post(&acquire, &body).expect(200);
    assert_eq!(next["fences"], json!(["postgres:ledger", "s3:reports"]));

    let metrics = http.get("/metrics");
    let metrics = text(&metrics.body);
    for line in [
        r#"tenure_fence_armed_token{resource="ledger/writer",fence="postgres:ledger",slot=""} 1"#,
        r#"tenure_fence_refused_total{resource="ledger/writer",fence="postgres:ledger"} 14"#,
        r#"tenure_fence_refused_total{resource="ledger/writer",fence="s3:reports"} 0"#,
        "tenure_fence_refusals_total 14",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    tenure(&["fence", "forget", RESOURCE, "s3:reports"]);
    assert!(!tenure(&["fence", "ls"]).contains("s3:reports"));
    let again = run_tenure(&node.endpoint(), &["fence", "forget", RESOURCE, "s3:reports"]);
    ended(&again, 7);
}

/// A follower signs, and is lost for good: what it signed can still be checked, and its secret is nowhere.
#[test]
fn a_sequencer_outlives_the_node_that_signed_it() {
    let _turn = alongside();
    let mut cluster = Cluster::start("sequencers", 3);
    let leader = cluster.leader();
    let signer = cluster.others(leader)[0];
    // One page, asked for once and before anything is signed, has the keys of all nodes.
    let ahead = cluster.node(leader).http().get("/.well-known/jwks.json").expect(200);
    let kids = |page: &Value| -> Vec<String> {
        let keys = page["keys"].as_array().expect("keys").iter();
        keys.map(|key| key["kid"].as_str().expect("a name").to_owned()).collect()
    };
    for number in 1..=3 {
        assert!(kids(&ahead).iter().any(|kid| kid.starts_with(&format!("node-{number}-"))), "{ahead}");
    }
    let mut http = cluster.node(signer).http();
    let acquire = "/v1/leases/ledger/writer:acquire?sequencer=true";
    let granted = http.post(acquire, &json!({"holder": "a", "ttl_ms": 60_000})).expect(200);
    let sequencer = granted["sequencer"].as_str().expect("a sequencer").to_owned();

    let data = cluster.node(signer).data_path();
    let file = data.join("sequencer.key");
    let secret = std::fs::read(&file).expect("the key is in the data directory");
    assert_eq!(secret.len(), 32);
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).expect("there").permissions());
    assert_eq!(mode & 0o777, 0o600, "for its own user alone");
    let holds = |bytes: &[u8]| bytes.windows(secret.len()).any(|window| window == secret.as_slice());

    let backup = cluster.node(signer).scratch().path().join("backup");
    let written = run_tenure(
        &cluster.node(signer).endpoint(),
        &["cluster", "backup", backup.to_str().expect("a path of text")],
    );
    assert!(written.status.success(), "{}", text(&written.stderr));
    assert!(!holds(&std::fs::read(&backup).expect("a backup")), "no secret in a backup");
    for number in 1..=3 {
        let folder = cluster.node(number).data_path();
        for path in files_below(&folder) {
            let secret_here = holds(&std::fs::read(&path).expect("readable"));
            assert_eq!(secret_here, path == file, "{}", path.display());
        }
        assert!(!holds(cluster.node(number).log().as_bytes()), "no secret in a log");
    }

    cluster.node_mut(signer).kill();
    for number in cluster.others(signer) {
        let mut http = cluster.node(number).http();
        let checked = http.post("/v1/sequencers:check", &json!({"sequencer": sequencer})).expect(200);
        assert_eq!(checked, json!({"verdict": "valid", "presented": 1, "seen": 1}));
        // The check was answered by a node that had caught up, so the page shows the key too.
        let keys = http.get("/.well-known/jwks.json").expect(200);
        assert_eq!(kids(&keys), kids(&ahead));
    }
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files_below(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// A transaction inside the fence keeps these commands waiting. They end in time, and so does what they started in the database.
#[test]
fn fence_commands_give_up_in_time_and_leave_nobody_waiting() {
    let _turn = alongside();
    let Some(ledger) = Ledger::start() else { return };
    ended(&ledger.fence(&["install", "entries", "--resource", RESOURCE, "--role", "application"]), 0);
    ended(&ledger.fence(&["barrier", RESOURCE]), 0);
    let mark = ledger.sql("postgres", "SELECT token FROM tenure_fence.marks").trim().to_owned();
    // A session that stays inside until its input ends.
    let mut inside = std::process::Command::new("psql")
        .args(["-X", "-q", "-h", "127.0.0.1", "-U", "postgres", "-p", &ledger.database.port.to_string()])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("psql comes with the server");
    let mut input = inside.stdin.take().expect("a pipe");
    let enter = format!("BEGIN; SELECT tenure_fence.enter('{RESOURCE}', {mark});\n");
    std::io::Write::write_all(&mut input, enter.as_bytes()).expect("psql reads");
    let count = |which: &str| -> u32 {
        let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE {which}");
        ledger.sql("postgres", &sql).trim().parse().expect("a number")
    };
    let patience = std::time::Duration::from_secs(60);
    until("it is inside", patience, || count("state = 'idle in transaction'") == 1);
    for command in [
        &["barrier", RESOURCE][..],
        &["repair", RESOURCE, "--to", "1", "--reason", "a test"],
        &["break-glass", RESOURCE, "--reason", "a test", "--sql", "SELECT 1"],
    ] {
        let begun = std::time::Instant::now();
        let printed = ended(&ledger.fence(&[command, &["--timeout", "2s"]].concat()), 6);
        // The library would wait for 30 s by itself.
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{command:?}: {printed}");
        until("nobody waits", patience / 4, || count("wait_event_type = 'Lock'") == 0);
    }
    // A statement that does not wait for a lock is cancelled as well.
    drop(input);
    inside.wait().expect("psql ends");
    let slow =
        ["break-glass", RESOURCE, "--reason", "a test", "--sql", "SELECT pg_sleep(600)", "--timeout", "2s"];
    ended(&ledger.fence(&slow), 6);
    until("nobody works", patience / 4, || {
        count("query LIKE '%pg_sleep(600)%' AND state = 'active' AND pid <> pg_backend_pid()") == 0
    });
}
