//! `tenure ls`: the resources that are held, in the order of their names.

use std::collections::BTreeMap;

use tenure_client::proto;
use tenure_client::proto::leases_client::LeasesClient;
use tenure_wire::json;

use super::fence::known_fences;
use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::render::leases;
use crate::shapes;

const EXAMPLES: &str = "\
Examples:
  tenure ls
  tenure ls settlement/
  tenure ls --json | jq -r 'select(.waiters != []) | .resource'";

/// List the resources that are held
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Only resources whose names begin like this
    #[arg(default_value = "", hide_default_value = true)]
    pub prefix: String,
    /// At most this many
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Answer from the asked node's own state, which may be stale; works without a leader
    #[arg(long)]
    pub stale: bool,
}

/// Lists them, page by page.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    let limit = args.limit.unwrap_or(usize::MAX);
    // A stale answer is asked for when there is no leader, and then nobody can say more.
    let fences = if args.stale { Vec::new() } else { known_fences(&args.prefix, context).await? };
    let mut fences_of: BTreeMap<&str, Vec<proto::FenceView>> = BTreeMap::new();
    for fence in &fences {
        fences_of.entry(&fence.resource).or_default().push(fence.clone());
    }
    let mut all: Vec<json::Lease> = Vec::new();
    let mut after = String::new();
    loop {
        let request = proto::LeaseListRequest {
            prefix: args.prefix.clone(),
            limit: None,
            after: after.clone(),
            stale: args.stale,
        };
        let send = |channel, request| async move { LeasesClient::new(channel).list(request).await };
        let page = context.read(request, send).await?;
        all.extend(page.leases.iter().map(|lease| {
            let fences = fences_of.get(lease.resource.as_str()).map_or(&[][..], Vec::as_slice);
            json::Lease::of(lease, fences)
        }));
        after = page.next;
        if after.is_empty() || all.len() >= limit {
            break;
        }
    }
    all.truncate(limit);
    if context.output.is_json() {
        for lease in &all {
            context.output.line(&shapes::value(lease).to_string())?;
        }
    } else {
        if all.is_empty() {
            context.output.talk(&match args.prefix.as_str() {
                "" => "nothing is held".to_owned(),
                prefix => format!("nothing that begins with {prefix} is held"),
            });
        }
        context.output.line(&leases::list(&all, context.output.form()))?;
    }
    Ok(Exit::Done)
}
