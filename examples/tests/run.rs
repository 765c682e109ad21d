//! Every example, run as its head says: what people start with must work.

#[path = "../../crates/fence/tests/support/mod.rs"]
mod support;

use std::path::PathBuf;
use std::process::Command;

/// Runs an example by itself and gives what it printed.
#[track_caller]
fn run(example: &str, arguments: &[&str], environment: &[(&str, &str)]) -> String {
    // Cargo builds a package's examples together with its tests, next to them: `target/debug/deps/run-hash`
    // is this.
    let program = std::env::current_exe().expect("a running program has a path");
    let folder: PathBuf = program.ancestors().nth(2).expect("target/debug").join("examples");
    let mut command = Command::new(folder.join(example));
    command.args(arguments).env_remove("TENURE_ENDPOINTS").envs(environment.iter().copied());
    let output = command.output().unwrap_or_else(|error| panic!("{example}: {error}"));
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{example}: {}\n{shown}{complained}", output.status);
    shown
}

#[test]
fn settlement_goes_on_where_the_last_one_stopped() {
    let Some(server) = support::postgres() else { return };
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", server.port);
    let shown = run("settlement", &[], &[("DATABASE_URL", &url)]);
    assert!(shown.contains("settling from payment 1 on") && shown.contains("up to payment 1000"), "{shown}");
    // The cursor is in the database, beside the mark.
    let shown = run("settlement", &[], &[("DATABASE_URL", &url)]);
    assert!(shown.contains("settling from payment 1001 on"), "{shown}");
}

#[cfg(not(feature = "s3"))]
#[test]
fn worker_publishes_what_it_found() {
    let shown = run("worker", &[], &[]);
    assert!(shown.contains("poem.txt: 2 lines, under token 1"), "{shown}");
}

#[cfg(feature = "s3")]
#[test]
fn worker_publishes_what_it_found_in_s3() {
    let Some(server) = support::moto() else { return };
    let endpoint = format!("http://127.0.0.1:{}", server.port);
    support::http::request(server.port, "PUT", "/files", "");
    support::http::request(server.port, "PUT", "/files/inbox/poem.txt", "roses are red\nviolets are blue\n");
    let environment = [
        ("AWS_ENDPOINT", endpoint.as_str()),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_BUCKET", "files"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
    ];
    let shown = run("worker", &[], &environment);
    assert!(shown.contains("poem.txt: 2 lines, under token 1"), "{shown}");
    // The manifest is in the bucket: a second worker finds the work done. Its store is a new one, and its
    // token 1 again.
    assert_eq!(run("worker", &[], &environment), "");
}

#[test]
fn cron_publishes_its_report() {
    let folder = support::folder("reports");
    let shown = run("cron", &[folder.to_str().expect("a path of text")], &[]);
    let report = shown.trim().strip_prefix("published ").expect("where it is");
    assert_eq!(std::fs::read_to_string(report).expect("the report"), "report number 1\n");
    std::fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn leader_counts_under_its_token() {
    let shown = run("leader", &["3"], &[]);
    assert!(shown.contains("the count stands at 0") && shown.contains("3, under token 1"), "{shown}");
}

#[test]
fn patterns_tell_what_happens() {
    let shown = run("patterns", &[], &[]);
    for word in ["never two winners", "wakes up now is refused", "None", "LeftTo(2)", "Done", "passed over"] {
        assert!(shown.contains(word), "{word:?} is not in\n{shown}");
    }
}

#[cfg(feature = "sqlx")]
#[test]
fn sqlx_writes_under_the_fence() {
    let Some(server) = support::postgres() else { return };
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", server.port);
    let shown = run("sqlx", &[], &[("DATABASE_URL", &url)]);
    assert!(shown.contains("the balance is 90, under token 1"), "{shown}");
    let mark = "SELECT token FROM tenure_fence.marks WHERE scope = 'accounts/writer'";
    let psql = Command::new("psql").args(["-X", "-t", "-A", "-d", &url, "-c", mark]).output();
    assert_eq!(String::from_utf8_lossy(&psql.expect("psql comes with the server").stdout).trim(), "1");
}
