//! `tenure transfer`: a planned change of holder. The end and the next grant are one step.

use tenure_client::proto::leases_client::LeasesClient;
use tenure_core::{Caller, ResourceName, SessionId, SessionNumber};
use tenure_wire::{grpc, json};

use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::shapes;

const EXAMPLES: &str = "\
Examples:
  tenure acquire settlement/cron --wait &    the successor queues first
  tenure explain settlement/cron             … and is shown with the number of its session
  tenure transfer settlement/cron --session 7-9f86d081884c7d659a2feaa0c55ad015 --to 9

The successor gets a new, higher token. Stop acting on the old one before you hand it on.";

/// Hand a lease to a session that waits for it, in one step
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// What to hand on
    pub resource: ResourceName,
    /// The session that holds it, as `acquire` printed it; in the environment it is hidden from `ps`
    #[arg(long, value_name = "ID", env = "TENURE_SESSION", hide_env_values = true)]
    pub session: SessionId,
    /// The public number of the session that gets it; it has to be queued for it
    #[arg(long, value_name = "NUMBER")]
    pub to: u64,
}

/// Hands the lease on.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    let by = Caller::unnumbered(args.session);
    let request = grpc::transfer_request(&by, &args.resource, SessionNumber::new(args.to));
    let send = |channel, request| async move { LeasesClient::new(channel).transfer(request).await };
    let answer = context.change(request, send).await?;
    let grant = answer.grant.unwrap_or_default();
    let shape = json::Granted::from(&grant);
    let text = |_| {
        format!(
            "{} now belongs to {} (session {}) under token {}",
            shape.resource, shape.holder, shape.session_number, shape.token
        )
    };
    context.output.tell(|| shapes::value(&shape), text)?;
    Ok(Exit::Done)
}
