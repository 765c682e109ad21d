//! `tenure cluster step-down`: leadership moves on, planned, without an election time-out.

use std::time::Duration;

use serde_json::json;
use tenure_client::proto;
use tenure_client::proto::cluster_client::ClusterClient;

use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;

const EXAMPLES: &str = "\
Examples:
  tenure cluster step-down                   to whichever node is furthest
  tenure cluster step-down --to 2

A node that is told to stop (SIGTERM) does this by itself.";

/// How long it may take.
const WITHIN: Duration = Duration::from_secs(15);

/// Hand leadership to another node
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// To this node; without it, to whichever is furthest
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub to: Option<u64>,
}

/// Hands leadership on, and says who leads now.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    let request = proto::StepDownRequest { to: args.to };
    let send = |channel, request| async move { ClusterClient::new(channel).step_down(request).await };
    let answer = context.operate(request, WITHIN, send).await?;
    context.output.tell(
        || json!({"leader": answer.leader, "term": answer.term}),
        |_| format!("node {} leads in term {}", answer.leader, answer.term),
    )?;
    Ok(Exit::Done)
}
