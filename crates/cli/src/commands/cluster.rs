//! `tenure cluster`: commands for operators.

mod add;
mod backup;
mod new_root;
mod remove;
mod restore;
mod step_down;
mod upgrade;

use tenure_client::proto;
use tenure_client::proto::cluster_client::ClusterClient;

use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::render::leases;
use crate::shapes;

/// Look after the cluster
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do with the cluster.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Print a new root: the one file that secures a cluster
    NewRoot(new_root::Args),
    /// Show who leads, who is there and how far each has come
    Status(StatusArgs),
    /// Add nodes: they learn everything first, then vote
    Add(add::Args),
    /// Remove a node
    Remove(remove::Args),
    /// Hand leadership to another node
    StepDown(step_down::Args),
    /// Let the cluster use the formats of the release that all nodes run
    Upgrade(upgrade::Args),
    /// Write everything the cluster knows into a file, while it serves
    Backup(backup::Args),
    /// Put a backup into a new cluster
    Restore(restore::Args),
}

/// Show who leads, who is there and how far each has come
#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    /// Also hash the state of the node that answers; equal logs give equal hashes
    #[arg(long)]
    pub hash: bool,
}

/// Does it.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    match args.command {
        Command::NewRoot(args) => new_root::run(args),
        Command::Status(args) => status(args, context).await,
        Command::Add(args) => add::run(args, context).await,
        Command::Remove(args) => remove::run(args, context).await,
        Command::StepDown(args) => step_down::run(args, context).await,
        Command::Upgrade(args) => upgrade::run(args, context).await,
        Command::Backup(args) => backup::run(args, context).await,
        Command::Restore(args) => restore::run(args, context).await,
    }
}

/// The status is shown even without a leader: that is when it is asked for most. The exit code says so.
async fn status(args: StatusArgs, context: &Context<'_>) -> Result<Exit, CommandError> {
    let request = proto::ClusterStatusRequest { with_state_hash: args.hash };
    let send = |channel, request| async move { ClusterClient::new(channel).status(request).await };
    let shape = tenure_wire::json::ClusterStatus::from(&context.read(request, send).await?);
    context.output.tell(|| shapes::value(&shape), |form| leases::cluster(&shape, form))?;
    if shape.leader.is_none() { Ok(Exit::Unreachable) } else { Ok(Exit::Done) }
}
