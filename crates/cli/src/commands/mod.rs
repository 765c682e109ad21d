//! One file per command: its arguments, and what it does with them.

pub mod acquire;
pub mod agent;
pub mod auth;
#[cfg(feature = "bench")]
pub mod bench;
pub mod cluster;
pub mod completions;
#[cfg(feature = "demo")]
pub mod demo;
#[cfg(target_os = "linux")]
pub mod elect;
pub mod events;
pub mod explain;
pub mod fence;
pub mod get;
pub mod history;
pub mod kv;
pub mod leader;
pub mod ls;
pub mod man;
pub mod policy;
pub mod release;
pub mod revoke;
#[cfg(target_os = "linux")]
pub mod run;
pub mod serve;
pub mod session;
pub mod top;
pub mod transfer;
pub mod tune;
pub mod watch;

use crate::args::{Globals, StoreCommand};
use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::output::Output;

/// Runs a command that asks the store.
pub fn run(command: StoreCommand, globals: &Globals, output: &Output) -> Result<Exit, CommandError> {
    // One thread is enough for one question, and is started faster than several.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CommandError::said(Exit::Other, format!("no runtime: {error}")))?;
    let context = Context::new(globals, output);
    runtime.block_on(async {
        match command {
            StoreCommand::Acquire(args) => acquire::run(args, &context).await,
            StoreCommand::Release(args) => release::run(args, &context).await,
            StoreCommand::Transfer(args) => transfer::run(args, &context).await,
            StoreCommand::Revoke(args) => revoke::run(args, &context).await,
            StoreCommand::Session(args) => session::run(args, &context).await,
            StoreCommand::Get(args) => get::run(args, &context).await,
            StoreCommand::Leader(args) => leader::run(args, &context).await,
            StoreCommand::Ls(args) => ls::run(args, &context).await,
            StoreCommand::Watch(args) => watch::run(args, &context).await,
            StoreCommand::Events(args) => events::run(args, &context).await,
            StoreCommand::History(args) => history::run(args, &context).await,
            StoreCommand::Explain(args) => explain::run(args, &context).await,
            StoreCommand::Kv(args) => kv::run(args, &context).await,
            StoreCommand::Tune(args) => tune::run(args, &context).await,
            StoreCommand::Fence(args) => fence::run(args, &context).await,
            StoreCommand::Top(args) => top::run(args, &context).await,
            StoreCommand::Cluster(args) => cluster::run(args, &context).await,
            StoreCommand::Auth(args) => auth::run(args, &context).await,
            StoreCommand::Policy(args) => policy::run(args, &context).await,
        }
    })
}
