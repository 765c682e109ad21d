//! `tenure fence forget`: takes a fence out of a resource's fence set.

use serde_json::json;
use tenure_client::proto;
use tenure_client::proto::fences_client::FencesClient;
use tenure_core::{FenceName, ResourceName};

use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;

const EXAMPLES: &str = "\
Examples:
  tenure fence forget ledger/writer redis:cache

A lease that names fences gives no permit before every fence of its resource has installed its token, whoever brought it. \
So a storage that is no longer written to, or no longer there, is taken out of the set by hand. Its own mark stays.";

/// Take a fence out of a resource's fence set: holders no longer wait for it
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// The resource
    pub resource: ResourceName,
    /// The fence, as `tenure fence ls` names it
    pub fence: FenceName,
}

/// Takes it out.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    let Args { resource, fence } = args;
    let request = proto::FenceRemoveRequest { resource: resource.to_string(), fence: fence.to_string() };
    let send = |channel, request| async move { FencesClient::new(channel).remove(request).await };
    context.change(request, send).await?;
    let report = || json!({"resource": resource.to_string(), "fence": fence.to_string(), "known": false});
    context
        .output
        .tell(report, |_| format!("{resource} has no fence {fence} any more: nobody waits for it"))?;
    Ok(Exit::Done)
}
