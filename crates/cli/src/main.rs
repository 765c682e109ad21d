//! The `tenure` binary: parse, run, map to a code.
//!
//! This crate decides how things are asked for and how they are reported. It holds no rule that another front
//! end would have to repeat: leases are decided by the store, transmissions by the client library.

mod agent;
mod args;
mod commands;
mod context;
mod error;
mod exit;
mod output;
mod progress;
mod render;
#[cfg(target_os = "linux")]
mod run;
mod shapes;

use std::process::ExitCode;

use args::{Command, Globals};
use error::CommandError;
use exit::Exit;
use output::Output;

fn main() -> ExitCode {
    #[cfg(feature = "demo")]
    if let Some(code) = commands::demo::role() {
        return code;
    }
    #[cfg(target_os = "linux")]
    if let Some(code) = run::helper() {
        return code;
    }
    let cli = match args::parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are answers, not errors; clap knows which is which, and where each goes. A
            // closed pipe is no error.
            let _ = error.print();
            let wrong = if args::runs_a_command(std::env::args_os()) { exit::of_own } else { ExitCode::from };
            return if error.use_stderr() { wrong(Exit::Usage) } else { Exit::Done.into() };
        }
    };
    let output = Output::new(&cli.globals);
    // A node uses the root in another way, and the others ask no store.
    let globals = match cli.command {
        Command::Serve(_) | Command::Completions(_) | Command::Man(_) => Ok(cli.globals),
        _ => cli.globals.secured(),
    };
    let code_of = match cli.command {
        #[cfg(target_os = "linux")]
        Command::Run(_) | Command::Elect(_) => exit::of_own,
        _ => ExitCode::from,
    };
    let done = globals.and_then(|globals| match cli.command {
        #[cfg(target_os = "linux")]
        Command::Run(args) => commands::run::run(args, &globals, &output),
        #[cfg(target_os = "linux")]
        Command::Elect(args) => commands::elect::run(args, &globals, &output),
        command => carry_out(command, &globals, &output).map(ExitCode::from),
    });
    done.unwrap_or_else(|failure| {
        failure.tell(&output);
        code_of(failure.exit())
    })
}

fn carry_out(command: Command, globals: &Globals, output: &Output) -> Result<Exit, CommandError> {
    match command {
        #[cfg(target_os = "linux")]
        Command::Run(_) | Command::Elect(_) => unreachable!("these end with the code of their command"),
        Command::Serve(args) => commands::serve::run(args, globals, output),
        #[cfg(feature = "demo")]
        Command::Demo(args) => commands::demo::run(args, output),
        Command::Agent(args) => commands::agent::run(args, globals, output),
        #[cfg(feature = "bench")]
        Command::Bench(args) => commands::bench::run(args, globals, output),
        Command::Completions(args) => commands::completions::run(args),
        Command::Man(args) => commands::man::run(args, output),
        Command::Store(command) => commands::run(command, globals, output),
    }
}
