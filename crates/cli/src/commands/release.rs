//! `tenure release`: gives one lease back. The next waiter is granted it in the same step.

use tenure_client::proto::leases_client::LeasesClient;
use tenure_core::{Caller, ResourceName, SessionId, Token};
use tenure_wire::grpc;

use crate::args::{Length, parse_token};
use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::shapes;

const EXAMPLES: &str = "\
Examples:
  tenure release settlement/cron --session 7-9f86d081884c7d659a2feaa0c55ad015
  tenure release settlement/cron             with TENURE_SESSION as `acquire --export` and `run --pass-session` set it

The next waiter is granted it in the same step. Releasing what the session does not hold any more is no error; a \
session that has ended is (exit code 4). The session that an acquire opened by itself ends with its last lease.";

/// Give a lease back
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// What to give back
    pub resource: ResourceName,
    /// The session that holds it, as `acquire` printed it; in the environment it is hidden from `ps`
    #[arg(long, value_name = "ID", env = "TENURE_SESSION", hide_env_values = true)]
    pub session: SessionId,
    /// Only if the lease still has this token
    #[arg(long, value_name = "N", value_parser = parse_token)]
    pub token: Option<Token>,

    /// Grant it to nobody for this long afterwards
    #[arg(long, value_name = "DURATION")]
    pub rest: Option<Length>,
}

/// Gives the lease back.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    let by = Caller::unnumbered(args.session);
    let request = grpc::release_request(&by, &args.resource, args.token, args.rest.map(Length::get));
    let send = |channel, request| async move { LeasesClient::new(channel).release(request).await };
    let answer = context.change(request, send).await?;
    let shape =
        tenure_wire::json::Released { resource: args.resource.to_string(), released: answer.released };
    let text = |_| {
        if shape.released {
            format!("released {}", shape.resource)
        } else {
            format!("nothing was left of {} to give back", shape.resource)
        }
    };
    context.output.tell(|| shapes::value(&shape), text)?;
    Ok(Exit::Done)
}
