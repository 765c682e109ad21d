//! `tenure fence remove`.

use serde_json::json;
use tenure_fence::postgres::enforce;

use super::database;
use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;

/// Take the guard off tables, audited
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "The marks stay: a mark is never deleted, because that would let every old token in again. Who removed \
                       what, and why, is kept in tenure_fence.audit."
)]
pub struct Args {
    /// Tables, each as it was named at install
    #[arg(required = true, value_name = "TABLE")]
    pub tables: Vec<String>,
    /// Why, for people; kept in the audit
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    #[command(flatten)]
    pub database: database::Args,
}

/// Takes it off.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    let client = args.database.connect(database::Patience::new(context.timeout())).await?;
    for table in &args.tables {
        enforce::remove(&client, table, &args.reason).await.map_err(database::refused)?;
        let report = || json!({"table": table, "guarded": false});
        context.output.tell(report, |_| format!("{table} accepts writes without a token again"))?;
    }
    Ok(Exit::Done)
}
