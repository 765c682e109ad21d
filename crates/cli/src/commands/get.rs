//! `tenure get`: one resource as it is now.

use tenure_client::proto;
use tenure_client::proto::leases_client::LeasesClient;
use tenure_clock::{Clock, SystemClock};
use tenure_core::ResourceName;
use tenure_wire::json::KubernetesLease;

use super::fence::known_fences;
use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::render::leases;
use crate::shapes;

const EXAMPLES: &str = "\
Examples:
  tenure get settlement/cron
  tenure get settlement/cron --json | jq -r .holder
  tenure get settlement/cron >/dev/null && echo held
  tenure get settlement/cron -o k8s-lease    the same as Kubernetes writes a Lease down

The exit code is 0 if it is held and 7 if it is free or has never been seen.";

/// Show one resource: who holds it, under which token, what is left
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// What to look at
    pub resource: ResourceName,
    /// Answer from the asked node's own state, which may be stale; works without a leader
    #[arg(long)]
    pub stale: bool,
    /// In which shape
    #[arg(short, long, value_name = "SHAPE", value_enum, default_value_t = Shape::Usual, hide_default_value = true)]
    pub output: Shape,
}

/// In which shape a lease is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Shape {
    /// As everywhere else here.
    Usual,
    /// One JSON object in the shape of coordination.k8s.io/v1, for what reads that already.
    K8sLease,
}

/// Shows it.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    let request = proto::LeaseGetRequest { resource: args.resource.to_string(), stale: args.stale };
    let send = |channel, request| async move { LeasesClient::new(channel).get(request).await };
    let answer = context.read(request, send).await?;
    // A stale answer is asked for when there is no leader, and then nobody can say more.
    let fences = if args.stale { Vec::new() } else { known_fences(args.resource.as_str(), context).await? };
    let shape = tenure_wire::json::Lease::of(&answer.lease.unwrap_or_default(), &fences);
    match args.output {
        Shape::Usual => context.output.tell(|| shapes::value(&shape), |form| leases::lease(&shape, form))?,
        Shape::K8sLease => {
            let view = KubernetesLease::of(&shape, SystemClock.wall());
            context.output.line(&shapes::value(&view).to_string())?;
        }
    }
    if shape.holders.is_empty() { Ok(Exit::NotFound) } else { Ok(Exit::Done) }
}
