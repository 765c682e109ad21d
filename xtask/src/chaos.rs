//! `cargo xtask chaos`: builds the binary and the fault injection, and runs it.

use std::process::{Command, ExitCode};

use crate::needs::find;
use crate::workspace::{cargo, succeed, target};

/// `cargo xtask chaos [--seconds S] [--nodes N] …`: everything is the breaker's own.
pub fn run(arguments: &[String]) -> ExitCode {
    // What breaks nothing needs nothing, and leaves no report.
    let only_reads = |argument: &String| ["--check", "--help", "-h"].contains(&argument.as_str());
    let breaks = !arguments.iter().any(only_reads);
    for program in ["ip", "nft"] {
        if breaks && find(program).is_none() {
            eprintln!("chaos needs {program}: `cargo xtask setup` installs it");
            return ExitCode::FAILURE;
        }
    }
    let mut build = cargo(&["build", "--quiet", "--package", "tenure-cli", "--package", "tenure-chaos"]);
    if let Err(why) = succeed(&mut build) {
        eprintln!("{why}");
        return ExitCode::FAILURE;
    }
    let built = target().join("debug");
    let mut chaos = Command::new(built.join("tenure-chaos"));
    if std::env::var_os("TENURE_BIN").is_none() {
        chaos.env("TENURE_BIN", built.join("tenure"));
    }
    if breaks && !arguments.iter().any(|argument| argument == "--report") {
        chaos.arg("--report").arg(target().join("chaos"));
    }
    match chaos.args(arguments).status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("tenure-chaos: {error}");
            ExitCode::FAILURE
        }
    }
}
