//! `tenure cluster remove`: a node leaves for good.

use std::time::Duration;

use serde_json::json;
use tenure_client::proto;
use tenure_client::proto::cluster_client::ClusterClient;

use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;

const EXAMPLES: &str = "\
Examples:
  tenure cluster remove 3                    dead or alive; a leader hands over first

It is refused if the voters that remain could not decide anything. Afterwards stop the process and delete its data; \
its number is never used again.";

/// How long the change may take.
const WITHIN: Duration = Duration::from_secs(130);

/// Remove a node
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Its number
    #[arg(value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub node: u64,
}

/// Removes it.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    let node = args.node;
    let request = proto::NodeRemoveRequest { node };
    let send = |channel, request| async move { ClusterClient::new(channel).remove(request).await };
    context.operate(request, WITHIN, send).await?;
    context.output.tell(
        || json!({"node": node, "removed": true}),
        |_| {
            format!(
                "node {node} is no member any more: stop it, delete its data, and do not use its number again"
            )
        },
    )?;
    Ok(Exit::Done)
}
