//! `cargo xtask sim`: builds the simulator and runs seeds. It is built separately, because it seeds tokio's
//! random generator: that needs `--cfg tokio_unstable`, and nothing that is shipped has this flag.

use std::process::{Command, ExitCode};

use crate::workspace::{cargo, host};

/// `cargo xtask sim [--release] [--seeds N] [--from K] …`: everything but `--release` is the simulator's own.
pub fn run(arguments: &[String]) -> ExitCode {
    let rest = arguments.iter().filter(|argument| *argument != "--release");
    let ended = cargo_for_simulator("run").and_then(|mut command| {
        command.arg("--quiet");
        if arguments.iter().any(|argument| argument == "--release") {
            command.arg("--release");
        }
        command.arg("--").args(rest).status().map_err(|error| format!("cargo run: {error}"))
    });
    match ended {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// `cargo run` or `cargo test` of the simulator, with the flag that it needs.
pub fn cargo_for_simulator(verb: &str) -> Result<Command, String> {
    let mut command = cargo(&[verb, "--package", "tenure-sim", "--target", &host()?]);
    let given = std::env::var("RUSTFLAGS").unwrap_or_default();
    command.env("RUSTFLAGS", format!("{given} --cfg tokio_unstable").trim_start());
    // It would count instead of what was just set.
    command.env_remove("CARGO_ENCODED_RUSTFLAGS");
    Ok(command)
}
