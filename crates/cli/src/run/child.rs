//! The first process of a tree: it runs our code for a moment, to enter its containment, and then becomes the
//! command. In a pid namespace it stays as the namespace's init, because a command is not written to be one.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, parent_id};
use std::process::{Command, ExitCode};

use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::signal::unix::{SignalKind, signal};

use super::logic::Ending;
use super::proc;
use super::signals::{FROM_TERMINAL, Signals, TSTP};
use super::tree::{self, Tree};

/// As shells have it: there is no such program; there is, and it cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_RUNNABLE: u8 = 126;
/// What is ours went wrong before the command was run.
const NOT_STARTED: u8 = 101;

/// What every first process gets in its environment.
struct Orders {
    tree: Tree,
    guardian: u32,
    shares_terminal: bool,
    command: Vec<OsString>,
}

impl Orders {
    fn read(mut arguments: impl Iterator<Item = OsString>) -> Option<Orders> {
        let tree = Tree::from_words(&arguments.next()?, &arguments.next()?)?;
        let guardian = arguments.next()?.to_str()?.parse().ok()?;
        let shares_terminal = arguments.next()? == "terminal";
        Some(Orders { tree, guardian, shares_terminal, command: arguments.collect() })
    }

    fn command(&self) -> io::Result<Command> {
        let (program, arguments) = self.command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(arguments);
        Ok(command)
    }
}

/// Puts itself into its tree and becomes the command.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let Some(orders) = Orders::read(arguments) else { return ExitCode::from(NOT_STARTED) };
    let prepared = || -> io::Result<Command> {
        // Should both `run` and the guardian be killed in one moment, at least this process goes with them.
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if parent_id() != orders.guardian {
            return Err(io::Error::other("the guardian is gone"));
        }
        if let Tree::Cgroup(cgroup) = &orders.tree {
            cgroup.join()?;
        }
        orders.command()
    };
    match prepared() {
        Err(error) => {
            eprintln!("tenure: {error}, so nothing was started");
            ExitCode::from(NOT_STARTED)
        }
        Ok(mut command) => {
            let error = command.exec();
            not_started(&orders, &error)
        }
    }
}

/// The first process of a pid namespace: starts the command, passes signals on, buries the dead, and ends
/// with the command. With it ends everything else in the namespace.
pub fn init(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let Some(orders) = Orders::read(arguments) else { return ExitCode::from(NOT_STARTED) };
    let prepared = || -> io::Result<Command> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        tree::settle_in_namespace()?;
        let mut command = orders.command()?;
        if !orders.shares_terminal {
            command.process_group(0);
        }
        Ok(command)
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (mut command, runtime) = match prepared().and_then(|command| Ok((command, runtime?))) {
        Ok(ready) => ready,
        Err(error) => {
            eprintln!("tenure: the namespace cannot be used: {error}; nothing was started");
            return ExitCode::from(NOT_STARTED);
        }
    };
    let ended: io::Result<Ending> = runtime.block_on(async {
        let mut signals = Signals::catch()?;
        let mut deaths = signal(SignalKind::child())?;
        let child = match command.spawn() {
            Ok(child) => i32::try_from(child.id()).map_err(io::Error::other)?,
            Err(error) => {
                not_started(&orders, &error);
                return Ok(Ending::Exited(i32::from(code_of(&error))));
            }
        };
        loop {
            tokio::select! {
                biased;
                _ = deaths.recv() => {
                    if let Some((_, ending)) = proc::reap().dead.into_iter().find(|(pid, _)| *pid == child) {
                        return Ok(ending);
                    }
                }
                number = signals.next() => {
                    let from_terminal = orders.shares_terminal && FROM_TERMINAL.contains(&number);
                    if let Some(signal) = Signal::from_named_raw(number).filter(|_| !from_terminal && number != TSTP) {
                        proc::signal(child, signal);
                    }
                }
            }
        }
    });
    ExitCode::from(ended.map_or(NOT_STARTED, Ending::code))
}

fn not_started(orders: &Orders, error: &io::Error) -> ExitCode {
    let program = orders.command.first().map(|program| program.display().to_string()).unwrap_or_default();
    eprintln!("tenure: {program} cannot be started: {error}");
    ExitCode::from(code_of(error))
}

fn code_of(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUNNABLE }
}
