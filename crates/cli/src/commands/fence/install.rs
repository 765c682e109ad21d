//! `tenure fence install`.

use serde_json::json;
use tenure_core::Scope;
use tenure_fence::postgres::enforce::{self, Install};

use super::database;
use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::render::words::count;

const EXAMPLES: &str = "\
Examples:
  tenure fence install ledger.entries --resource ledger/writer --role application

The tables are bound to one resource. From then on INSERT, UPDATE, DELETE, TRUNCATE and COPY are refused, with TN002, in \
every transaction that does not carry the resource's current token: psql by hand and an old release among them. So try \
it where nothing breaks first: what fails there is the list of the write paths that nobody fenced.

All tables or none; asking again is harmless and mends what is missing. The role that the application logs in as must \
not own the tables and must not be a superuser, because those could take the guard off: that is checked. What it cannot \
cover is whoever may change the tables themselves.";

/// Guard tables of a PostgreSQL: every write without the current token is refused, whoever issues it
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Tables, each as it is written in SQL; partitions and children are guarded with them
    #[arg(required = true, value_name = "TABLE")]
    pub tables: Vec<String>,
    /// The resource whose token they demand, or one slot of it (`R#SLOT`)
    #[arg(long, value_name = "R")]
    pub resource: Scope,
    /// A role that the application logs in as: it gets the right to call the fence (may be repeated)
    #[arg(long = "role", value_name = "ROLE", required = true)]
    pub roles: Vec<String>,
    #[command(flatten)]
    pub database: database::Args,
}

/// Guards them.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    let client = args.database.connect(database::Patience::new(context.timeout())).await?;
    let plan = Install { tables: args.tables, scope: args.resource, roles: args.roles };
    let installed = enforce::install(&client, &plan).await.map_err(database::refused)?;
    for warning in &installed.warnings {
        context.output.talk(&format!("{} {warning}", context.output.talk_paint().warn("warning:")));
    }
    let report =
        || json!({"resource": plan.scope.to_string(), "tables": plan.tables, "warnings": installed.warnings});
    context.output.tell(report, |_| {
        let tables = count(plan.tables.len() as u64, "table", "tables");
        format!("{tables} will accept no write without the token of {}", plan.scope)
    })?;
    Ok(Exit::Done)
}
