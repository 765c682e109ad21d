//! `tenure explain`: reads everything about one resource and explains it in sentences.

use tenure_client::proto;
use tenure_client::proto::fences_client::FencesClient;
use tenure_client::proto::leases_client::LeasesClient;
use tenure_core::ResourceName;
use tenure_wire::json;

use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::render::explain;
use crate::shapes;

const EXAMPLES: &str = "\
Examples:
  tenure explain settlement/cron

With --json it is one object: the lease with its fences, and its past under `history`.";

/// Say in words who holds a resource, what is left, who waits and why
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// What to explain
    pub resource: ResourceName,
}

/// Explains it.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    let resource = args.resource.to_string();
    let request = proto::LeaseGetRequest { resource: resource.clone(), stale: false };
    let get = |channel, request| async move { LeasesClient::new(channel).get(request).await };
    let lease = context.read(request, get).await?.lease.unwrap_or_default();
    let request = proto::HistoryRequest { resource: resource.clone(), limit: None };
    let history = |channel, request| async move { LeasesClient::new(channel).history(request).await };
    let transitions = context.read(request, history).await?.transitions;
    let fences = fences_of(resource, context).await?;

    let lease = json::Lease::of(&lease, &fences);
    let past: Vec<json::Transition> = transitions.iter().filter_map(json::Transition::of).collect();
    let report = || {
        let mut report = shapes::value(&lease);
        report["history"] = past.iter().map(shapes::value).collect();
        report
    };
    context.output.tell(report, |form| explain::explain(&lease, &past, form.paint()))?;
    Ok(Exit::Done)
}

/// The fences of one resource: those under its name as a prefix, as far as they are its own.
async fn fences_of(resource: String, context: &Context<'_>) -> Result<Vec<proto::FenceView>, CommandError> {
    // Its own come first in the order of names, so the first page has them all.
    let request = proto::FenceListRequest { prefix: resource, limit: None, after: String::new() };
    let send = |channel, request| async move { FencesClient::new(channel).list(request).await };
    Ok(context.read(request, send).await?.fences)
}
