//! `tenure fence barrier`: shuts out everybody who has held a resource so far.

use serde_json::json;
use tenure_client::proto;
use tenure_client::proto::leases_client::LeasesClient;
use tenure_core::{ResourceName, Scope, Token};
use tenure_fence::Takeover;
use tenure_fence::postgres::Postgres;
use tokio_postgres::Config;

use super::database::Patience;
use super::{coverage, database};
use crate::args::default_holder;
use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;

const EXAMPLES: &str = "\
Examples:
  tenure fence barrier ledger/writer --database postgres://postgres@localhost/ledger

The resource must be free: a live holder would be shut out by it. A token is issued without a holder, so every token that was \
ever granted is smaller, and it is installed in the databases named here. The fences that the resource is known to have \
are listed: those that are not databases named here still have to be told, each with its own barrier under this token.";

/// Take a token without a holder on a free resource, and install it: nobody who held it so far can write any more
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// The resource
    pub resource: ResourceName,
    /// A PostgreSQL to install it in (may be repeated)
    #[arg(long = "database", value_name = "URL", env = "TENURE_FENCE_DATABASE", hide_env_values = true)]
    pub databases: Vec<Config>,
}

/// Takes the token, then installs it.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    // Connected first: a token that cannot be installed shuts nobody out.
    let patience = Patience::new(context.timeout());
    let mut databases = Vec::new();
    for database in &args.databases {
        databases.push(database::connect(database, patience).await?);
    }
    let request = proto::BarrierRequest { resource: args.resource.to_string() };
    let send = |channel, request| async move { LeasesClient::new(channel).barrier(request).await };
    let token = context.change(request, send).await?.token;
    let installed =
        Token::try_from(token).map_err(|error| CommandError::said(Exit::Other, error.to_string()))?;
    let scope = Scope { resource: args.resource.clone(), slot: None };
    let takeover = Takeover::unchecked(scope, installed, default_holder());
    for database in &databases {
        let fence = Postgres::new().timeout(patience.left());
        let raising = fence.barrier(database, &takeover);
        patience.spend(database.cancel_token(), raising).await.inspect_err(|_| {
            context.output.complain(&format!(
                "token {token} was taken, and not every database knows it; repeat the command to install a newer one"
            ));
        })?;
    }
    let known = coverage::all(args.resource.as_str(), context).await?;
    let known = known.iter().filter(|fence| fence.resource == args.resource.as_str());
    let known: Vec<&str> = known.map(|fence| fence.fence.as_str()).collect();
    let report = || json!({"resource": args.resource.to_string(), "token": token, "databases": databases.len(), "fences": known});
    context.output.tell(report, |_| {
        let mut lines = vec![format!(
            "token {token} was issued without a holder: every earlier one of {} is stale",
            args.resource
        )];
        if !databases.is_empty() {
            lines.push(format!("installed in {} of PostgreSQL", databases.len()));
        }
        if !known.is_empty() {
            lines.push(format!(
                "other fences of the resource, in which it has to be installed too: {}",
                known.join(", ")
            ));
        }
        lines.join("\n")
    })?;
    Ok(Exit::Done)
}
