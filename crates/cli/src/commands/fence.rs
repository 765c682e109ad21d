//! `tenure fence`: the fences that keep late writes from the data. The store knows which fences a resource
//! has; the fence inside a PostgreSQL is managed directly, over an administrator's connection.

mod barrier;
mod coverage;
mod database;
mod forget;
mod glass;
mod install;
mod remove;
mod repair;
mod status;

use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;

pub use coverage::all as known_fences;

const EXAMPLES: &str = "\
Examples:
  tenure fence ls                            which fences there are, and what each has prevented
  tenure fence install ledger.entries ledger.accounts --resource ledger/writer --role application
                                             from now on they refuse every write without the token
  tenure fence status                        what is guarded, and what is wrong with it (then it exits with 1)
  tenure fence barrier ledger/writer         shut everybody out who has held it so far

The database is named with --database or TENURE_FENCE_DATABASE, as a URL or as `host=… user=… dbname=…`.";

/// See and look after fences: where tokens are checked
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do with fences.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List the fences of resources: which token each has installed, what each has refused
    Ls(coverage::Args),
    /// Take a fence out of a resource's fence set: holders no longer wait for it
    Forget(forget::Args),
    /// Guard tables of a PostgreSQL: every write without the current token is refused, whoever issues it
    Install(install::Args),
    /// Show which tables are guarded, by which token, and what is wrong with them
    Status(status::Args),
    /// Take the guard off tables, audited
    Remove(remove::Args),
    /// Lower a mark that a made-up token has poisoned, audited; with all holders stopped
    Repair(repair::Args),
    /// Take a token without a holder on a free resource, and install it: nobody who held it so far can write any
    /// more
    Barrier(barrier::Args),
    /// Write past the guard once, audited
    BreakGlass(glass::Args),
}

/// Does it.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    match args.command {
        Command::Ls(args) => coverage::run(args, context).await,
        Command::Forget(args) => forget::run(args, context).await,
        Command::Install(args) => install::run(args, context).await,
        Command::Status(args) => status::run(args, context).await,
        Command::Remove(args) => remove::run(args, context).await,
        Command::Repair(args) => repair::run(args, context).await,
        Command::Barrier(args) => barrier::run(args, context).await,
        Command::BreakGlass(args) => glass::run(args, context).await,
    }
}
