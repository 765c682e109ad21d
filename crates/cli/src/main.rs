//! The `tenure` binary: parse, run, map to a code.
//!
//! This crate decides how things are asked for and how they are told. It holds no rule that another front end
//! would have to repeat: leases are decided by the store, transmissions by the client library.

mod agent;
mod args;
mod commands;
mod context;
mod exit;
mod failure;
mod output;
mod render;
mod shapes;

use std::process::ExitCode;

use args::{Cli, Command};
use exit::Exit;
use failure::Failure;
use output::Output;

fn main() -> ExitCode {
    if let Some(code) = commands::demo::actor() {
        return code;
    }
    let cli = match args::parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are answers, not errors; clap knows which is which, and where each goes. A
            // closed pipe is no error.
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage.into() } else { Exit::Done.into() };
        }
    };
    let output = Output::new(&cli.globals);
    match run(cli, &output) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            failure.tell(&output);
            failure.exit().into()
        }
    }
}

fn run(cli: Cli, output: &Output) -> Result<Exit, Failure> {
    match cli.command {
        Command::Serve(args) => commands::serve::run(args, output),
        Command::Demo(args) => commands::demo::run(args, output),
        Command::Agent(args) => commands::agent::run(args, &cli.globals, output),
        Command::Completions(args) => commands::completions::run(args),
        Command::Man(args) => commands::man::run(args, output),
        Command::Store(command) => commands::run(command, &cli.globals, output),
    }
}
