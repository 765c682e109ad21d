//! `tenure watch`: what changes, as it changes. A server that goes away interrupts it; nothing is skipped.

use std::time::Duration;

use tenure_client::Watch;

use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::render::events;
use crate::shapes;

/// How long a watch goes on trying after its server went away: longer than an election or a restart takes.
const PATIENCE_MIN: Duration = Duration::from_secs(30);

const EXAMPLES: &str = "\
Examples:
  tenure watch                               everything, sessions and leaders included
  tenure watch settlement/                   resources and registers that begin like this
  tenure watch --from 42                     what has happened since revision 42, and what happens
  tenure watch --json | jq -c 'select(.kind == \"granted\")'

All events of one revision arrive together. If the server goes away the watch goes on with another, or with the \
same one later, and tells nothing twice.";

/// Follow what changes, as it changes
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Only resources and registers whose names begin like this
    #[arg(default_value = "", hide_default_value = true)]
    pub prefix: String,
    /// Begin with this revision instead of the next one
    #[arg(long, value_name = "REVISION")]
    pub from: Option<u64>,
}

/// Follows until interrupted.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    let patience = context.timeout().max(PATIENCE_MIN);
    let mut watch = Watch::new(context.transport.clone(), args.prefix, args.from, patience);
    loop {
        let response = tokio::select! {
            biased;
            interrupted = tokio::signal::ctrl_c() => {
                interrupted.map_err(|error| CommandError::said(Exit::Other, format!("signals cannot be received: {error}")))?;
                return Ok(Exit::Done);
            }
            response = watch.next() => response?,
        };
        for event in tenure_wire::json::Event::of(&response) {
            context.output.tell(|| shapes::value(&event), |form| events::line(&event, form))?;
        }
    }
}
