//! The binary itself, where no server is needed: what it says, where, and with which exit code.

use std::net::TcpListener;
use std::process::{Command, Output};

fn tenure(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.args(arguments).env_remove("TENURE_ENDPOINTS").output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn help_is_data_and_names_every_command() {
    let help = tenure(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    let said = text(&help.stdout);
    for command in
        ["serve", "acquire", "release", "transfer", "revoke", "explain", "history", "watch", "cluster"]
    {
        assert!(said.contains(command), "the help does not name {command}:\n{said}");
    }
}

#[test]
fn wrong_usage_exits_with_2_and_says_so_on_stderr() {
    let wrong = tenure(&["acquire", "settlement/cron", "--ttl", "soon"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(wrong.stdout.is_empty(), "stdout is for data");
    assert!(text(&wrong.stderr).contains("soon"), "{}", text(&wrong.stderr));
}

#[test]
fn no_store_exits_with_6() {
    // Bound and let go: nobody listens there now.
    let address = TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).expect("a free port");
    let nobody = tenure(&["get", "settlement/cron", "--endpoints", &address.to_string()]);
    assert_eq!(nobody.status.code(), Some(6), "{}", text(&nobody.stderr));
    assert!(text(&nobody.stderr).contains(&address.to_string()), "{}", text(&nobody.stderr));
}

#[test]
fn completions_and_manuals_come_from_the_same_definition() {
    let completions = tenure(&["completions", "bash"]);
    assert_eq!(completions.status.code(), Some(0));
    assert!(text(&completions.stdout).contains("acquire"));
}
