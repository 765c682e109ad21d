//! `tenure fence repair`.

use serde_json::json;
use tenure_core::{Scope, Token};
use tenure_fence::postgres::Postgres;

use super::database::{self, Patience};
use crate::args::{default_holder, parse_token};
use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;

const EXAMPLES: &str = "\
Examples:
  tenure fence repair ledger/writer --to 4711 --reason 'a test wrote 2^53-1 into production'

This is the one way in which a mark ever falls, and while it is low every token above it is let in. So stop all holders \
first, look the last real token up with `tenure get ledger/writer`, and start them again after it. Who did it, when and \
why is kept in tenure_fence.audit.";

/// Lower a mark that a made-up token has poisoned, audited; with all holders stopped
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// The resource whose mark is too high, or one slot of it (`R#SLOT`)
    #[arg(value_name = "RESOURCE")]
    pub scope: Scope,
    /// The token to lower it to: the last one that was really granted
    #[arg(long, value_name = "TOKEN", value_parser = parse_token)]
    pub to: Token,
    /// Why, for people; kept in the audit
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    #[command(flatten)]
    pub database: database::Args,
}

/// Lowers it.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    let patience = Patience::new(context.timeout());
    let client = args.database.connect(patience).await?;
    let fence = Postgres::new().timeout(patience.left());
    let before = patience.spend(client.cancel_token(), fence.mark(&client, &args.scope)).await?;
    let by = default_holder();
    let repairing = fence.repair(&client, &args.scope, args.to, &by, &args.reason);
    let mark = patience.spend(client.cancel_token(), repairing).await?;
    let before = before.map(|mark| mark.token.get());
    let report = || json!({"resource": args.scope.to_string(), "before": before, "token": mark.token.get()});
    context.output.tell(report, |_| {
        let before = before.map_or_else(|| "nothing".to_owned(), |before| before.to_string());
        format!("the mark of {} went from {before} to {}: smaller tokens are refused", args.scope, mark.token)
    })?;
    Ok(Exit::Done)
}
