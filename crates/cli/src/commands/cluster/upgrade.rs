//! `tenure cluster upgrade`: the cluster agrees on the next format version, for good.

use std::time::Duration;

use tenure_client::proto;
use tenure_client::proto::cluster_client::ClusterClient;
use tenure_wire::json;

use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::shapes;

const NOTES: &str = "\
Run this after every node runs the new release and you no longer want to go back: from then on the older release
cannot read what is written, and a node that runs it is refused. Before, every node can return to it.

It is refused while a voter or learner is silent or runs an older release. `tenure cluster status` shows when it is
possible. Nodes started with `--auto-upgrade AFTER` do it by themselves.";

/// How long it may take.
const WITHIN: Duration = Duration::from_secs(15);

/// Let the cluster use the formats of the release that all nodes run
#[derive(Debug, clap::Args)]
#[command(after_long_help = NOTES)]
pub struct Args {}

/// Raises the agreed version, and says from what to what.
pub async fn run(Args {}: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    let send = |channel, request| async move { ClusterClient::new(channel).upgrade(request).await };
    let answer = context.operate(proto::UpgradeRequest {}, WITHIN, send).await?;
    let shape = json::Upgraded { from: answer.from, to: answer.to };
    let text = |_| format!("format version {} is agreed on now; it was {}", shape.to, shape.from);
    context.output.tell(|| shapes::value(&shape), text)?;
    Ok(Exit::Done)
}
