//! `tenure history`: who held a resource, from when to when, and why each lease ended.

use tenure_client::proto;
use tenure_client::proto::leases_client::LeasesClient;
use tenure_core::ResourceName;
use tenure_wire::json;

use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::render::leases;
use crate::shapes;

const EXAMPLES: &str = "\
Examples:
  tenure history settlement/cron
  tenure history settlement/cron --json | jq -r 'select(.why == \"expired\") | .holder'

The newest lease comes first. A resource keeps 1,000 past leases for seven days, within a bound over all resources; \
what was dropped is named at the end, with --json as {\"dropped\":{…}}. Times are the leader's calendar, for people; nothing was decided by them.";

/// Show the past holders of a resource, and why each lease ended
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Whose past
    pub resource: ResourceName,
    /// At most this many of the newest
    #[arg(long, value_name = "N")]
    pub limit: Option<u32>,
}

/// Shows it.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    let request = proto::HistoryRequest { resource: args.resource.to_string(), limit: args.limit };
    let send = |channel, request| async move { LeasesClient::new(channel).history(request).await };
    let answer = context.read(request, send).await?;
    let past: Vec<json::Transition> = answer.transitions.iter().filter_map(json::Transition::of).collect();
    let request = proto::LeaseGetRequest { resource: args.resource.to_string(), stale: false };
    let get = |channel, request| async move { LeasesClient::new(channel).get(request).await };
    let lease = context.read(request, get).await?.lease.unwrap_or_default();
    // Asked for one after the other; what ended in between is reported as ended.
    let ended = |holding: &proto::Holding| past.iter().any(|lease| lease.token == holding.token);
    let present: Vec<json::Holder> =
        lease.holders.iter().filter(|holding| !ended(holding)).map(json::Holder::from).collect();
    let dropped = answer.dropped.as_ref().map(json::HistoryDropped::from);
    if context.output.is_json() {
        for lease in &present {
            context.output.line(&shapes::present(lease).to_string())?;
        }
        for lease in &past {
            context.output.line(&shapes::value(lease).to_string())?;
        }
        if let Some(dropped) = &dropped {
            context.output.line(&serde_json::json!({ "dropped": dropped }).to_string())?;
        }
    } else {
        if present.is_empty() && past.is_empty() {
            context.output.talk(&format!("nothing is remembered of {}", args.resource));
        }
        context.output.line(&leases::history(&present, &past, context.output.form()))?;
        if let Some(dropped) = &dropped {
            context.output.talk(&leases::dropped(dropped));
        }
    }
    Ok(Exit::Done)
}
