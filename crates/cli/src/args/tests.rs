//! The command line as scripts rely on it.

use super::*;
use crate::commands::{acquire, kv, serve, session};

fn read(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split_whitespace())
}

fn refused(line: &str) -> String {
    match read(line) {
        Ok(cli) => panic!("`{line}` was accepted: {cli:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_definition_is_consistent() {
    definition().debug_assert();
}

#[test]
fn every_command_is_in_one_group() {
    let definition = definition();
    for command in definition.get_subcommands() {
        let groups = help::GROUPS.iter().filter(|(_, names)| names.contains(&command.get_name())).count();
        assert_eq!(groups, 1, "{}", command.get_name());
    }
    for (_, names) in help::GROUPS {
        for name in names {
            let built = match *name {
                "bench" => cfg!(feature = "bench"),
                "demo" => cfg!(feature = "demo"),
                "run" | "elect" => cfg!(target_os = "linux"),
                _ => true,
            };
            assert_eq!(definition.find_subcommand(name).is_some(), built, "{name} is listed");
        }
    }
}

#[test]
fn every_command_and_option_is_described() {
    fn check(command: &clap::Command, path: &str) {
        let path = format!("{path} {}", command.get_name());
        assert!(command.get_about().is_some(), "{path} has no description");
        for argument in command.get_arguments() {
            let id = argument.get_id().as_str();
            assert!(id == "help" || id == "version" || argument.get_help().is_some(), "{path} {id}");
        }
        command.get_subcommands().for_each(|command| check(command, &path));
    }
    check(&definition(), "");
}

#[test]
fn wrong_usage_of_what_runs_a_command_is_distinguished_from_the_commands_own_code() {
    let judged = |line: &str| runs_a_command(line.split_whitespace().map(Into::into));
    for line in
        ["tenure run", "tenure --json run x", "tenure --endpoints a:1 elect", "tenure --timeout=1s run -- x"]
    {
        assert!(judged(line), "{line}");
    }
    for line in ["tenure", "tenure acquire run", "tenure get elect", "tenure --endpoints run"] {
        assert!(!judged(line), "{line}");
    }
}

#[test]
fn a_wait_is_bounded_or_not() {
    let wait = |line: &str| match read(line).expect(line).command {
        Command::Store(StoreCommand::Acquire(acquire::Args { wait, resources, .. })) => {
            (wait, resources.len())
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(wait("tenure acquire a/b"), (None, 1));
    assert_eq!(wait("tenure acquire a/b c/d --wait"), (Some(WaitArg::Forever), 2));
    let ten = WaitArg::AtMost("10s".parse().expect("a length"));
    assert_eq!(wait("tenure acquire a/b --wait 10s"), (Some(ten), 1));
    assert_eq!(wait("tenure acquire --wait=10s a/b"), (Some(ten), 1));
}

#[test]
fn names_are_refused_before_anything_is_asked() {
    for (line, why) in [
        ("tenure acquire a//b", "empty segment"),
        ("tenure acquire ..", "not allowed"),
        ("tenure acquire", "RESOURCE"),
        ("tenure acquire a --ttl 10", "unit is missing"),
        ("tenure acquire a --mode slots=0", "at least one slot"),
        ("tenure acquire a --session 7", "not a session id"),
        ("tenure release a", "--session"),
        ("tenure transfer a --session 7-9f86d081884c7d659a2feaa0c55ad015", "--to"),
        ("tenure revoke a", "--reason"),
        ("tenure kv put a b --token 7", "--resource"),
        ("tenure kv put a b --resource r", "--token"),
        ("tenure kv put a b --resource r --token 0", "not a token"),
        ("tenure ls --endpoints https://a,http://b", "TLS, or none"),
        ("tenure serve --node 1", "--peers"),
        ("tenure serve --peers 1=a:1", "--node"),
        ("tenure frobnicate", "unrecognized"),
    ] {
        let said = refused(line);
        assert!(said.contains(why), "{line}: {said}");
    }
}

#[test]
fn a_session_and_the_making_of_one_exclude_each_other() {
    let session = "7-9f86d081884c7d659a2feaa0c55ad015";
    for option in ["--ttl 5s", "--holder me"] {
        let said = refused(&format!("tenure acquire a --session {session} {option}"));
        assert!(said.contains("cannot be used with"), "{said}");
    }
}

#[test]
fn global_options_stand_anywhere() {
    for line in ["tenure --json --endpoints a:1,b:2 ls x/", "tenure ls x/ --json --endpoints a:1,b:2"] {
        let cli = read(line).expect(line);
        assert!(cli.globals.json);
        assert_eq!(cli.globals.endpoints.to_string(), "a:1,b:2");
    }
}

#[test]
fn a_cluster_member_is_named_with_its_peers() {
    let line = "tenure serve --node 2 --peers 1=a:7500,2=b:7500,3=c:7500 --data-dir d --log-format json";
    let Command::Serve(serve::Args { node, peers, log_format, .. }) = read(line).expect(line).command else {
        panic!("it is serve")
    };
    assert_eq!(node, Some(2));
    assert_eq!(peers.expect("peers").0.len(), 3);
    assert_eq!(log_format, serve::LogFormat::Json);
}

#[test]
fn sessions_and_registers_are_parsed() {
    let Command::Store(StoreCommand::Session(session::Args { command: session::Command::Open(open) })) =
        read("tenure session open --ttl 30s").expect("it is valid").command
    else {
        panic!("it is session open")
    };
    assert_eq!(open.ttl.get().as_millis(), 30_000);
    let Command::Store(StoreCommand::Kv(kv::Args { command: kv::Command::Put(put) })) =
        read("tenure kv put cursor 17 --resource a/b#3 --token 7 --if-absent").expect("it is valid").command
    else {
        panic!("it is kv put")
    };
    let guard = put.guard.guard().expect("it is guarded");
    assert_eq!((guard.token.get(), guard.scope.slot.map(|slot| slot.get())), (7, Some(3)));
    assert!(put.if_absent);
}
