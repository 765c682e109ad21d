//! `tenure fence break-glass`: the documented way past the guard.

use serde_json::json;
use tenure_core::Scope;
use tenure_fence::postgres::enforce;

use super::database::{self, Patience};
use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;

const EXAMPLES: &str = "\
Examples:
  tenure fence break-glass ledger/writer --reason 'ticket 17: entry booked twice' \\
      --sql 'DELETE FROM ledger.entries WHERE id = 4711'

The statements run in one transaction. It waits until no holder is inside, keeps holders out until it ends, and leaves a \
line in tenure_fence.audit that commits together with what was written, or not at all. After --timeout it is cancelled and \
rolled back. In psql the same is \
SELECT tenure_fence.break_glass('ledger/writer', 'ticket 17') as the first statement of a transaction.";

/// Write past the guard once, audited
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// The resource whose guard is passed, or one slot of it (`R#SLOT`)
    #[arg(value_name = "RESOURCE")]
    pub scope: Scope,
    /// What to run
    #[arg(long, value_name = "STATEMENTS")]
    pub sql: String,
    /// Why, for people; kept in the audit
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    #[command(flatten)]
    pub database: database::Args,
}

/// Runs it.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    let patience = Patience::new(context.timeout());
    let mut client = args.database.connect(patience).await?;
    let cancel = client.cancel_token();
    let writing = enforce::break_glass(&mut client, &args.scope, &args.reason, &args.sql, patience.left());
    patience.spend(cancel, writing).await?;
    let report = || json!({"resource": args.scope.to_string(), "committed": true});
    context.output.tell(report, |_| format!("done past the guard of {}, and written down", args.scope))?;
    Ok(Exit::Done)
}
