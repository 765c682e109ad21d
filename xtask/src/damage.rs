//! `cargo xtask damage`: damages the files of a stopped node, many times, and counts the outcomes.

use std::process::ExitCode;

use crate::workspace::cargo;

/// `cargo xtask damage [--rounds N] [--seed S] [--serve]`: replicas alone, or with `--serve` the binary over
/// HTTP.
pub fn run(arguments: &[String]) -> ExitCode {
    let (mut rounds, mut seed, mut serve) = ("1000", "1", false);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if argument == "--serve" {
            serve = true;
            continue;
        }
        match (argument.as_str(), rest.next()) {
            ("--rounds", Some(value)) if value.parse::<usize>().is_ok() => rounds = value,
            ("--seed", Some(value)) if value.parse::<u64>().is_ok() => seed = value,
            _ => {
                eprintln!("cargo xtask damage [--rounds N] [--seed S] [--serve]");
                return ExitCode::from(2);
            }
        }
    }
    let (package, name) = match serve {
        true => ("tenure-e2e", "a_damaged_server_is_refused_or_has_everything"),
        false => ("tenure-replica", "a_damaged_node_is_refused_or_has_everything"),
    };
    let mut test = cargo(&["test", "--quiet", "--package", package, "--test", "damage", name]);
    test.args(["--", "--nocapture"]);
    match test.env("TENURE_DAMAGE_ROUNDS", rounds).env("TENURE_DAMAGE_SEED", seed).status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cargo test: {error}");
            ExitCode::FAILURE
        }
    }
}
