//! `cargo xtask sim`: builds the simulator and runs seeds.

use std::process::ExitCode;

use crate::workspace::cargo;

/// `cargo xtask sim [--release] [--seeds N] [--from K] …`: everything but `--release` is the simulator's own.
pub fn run(arguments: &[String]) -> ExitCode {
    let mut build = vec!["run", "--quiet", "--package", "tenure-sim"];
    if arguments.iter().any(|argument| argument == "--release") {
        build.push("--release");
    }
    build.push("--");
    let rest = arguments.iter().filter(|argument| *argument != "--release");
    match cargo(&build).args(rest).status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cargo run: {error}");
            ExitCode::FAILURE
        }
    }
}
