//! `tenure events export`: what happened, one JSON line per revision, without a gap or a duplicate; or one line that names
//! what is missing. Which revisions a node still has is decided there; this only asks the next node, and counts.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_client::{CallError, Code, Transport, Watch, proto};

use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::shapes;

/// How long an export goes on trying after its server went away: longer than an election or a restart takes.
const PATIENCE_MIN: Duration = Duration::from_secs(30);
/// How long each of the other endpoints may take to say whether it has what is missing.
const ELSEWHERE_WITHIN: Duration = Duration::from_secs(3);

const EXAMPLES: &str = "\
Examples:
  tenure events export > events.jsonl                all that is kept, up to now
  tenure events export --follow >> events.jsonl      and what happens from then on
  tenure events export --from 4711 --follow          go on after line 4710
  tenure events export --prefix settlement/ | jq -c '.events[] | select(.kind == \"granted\")'

Each line is one whole revision: {\"revision\":42,\"at\":\"…\",\"events\":[…]}. To resume, give --from the revision of the \
last whole line, plus one. Revisions come in order and once, whichever nodes die meanwhile; name several \
--endpoints. Where no node has the next one any more, the last line is {\"missed\":{\"from\":…,\"to\":…}} and the exit \
code is 7. How much each node keeps: `tenure serve --events-bytes` and `--events-age`.";

/// Read past events
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do with past events.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Write what happened as JSON lines, one per revision: every one of them, or which are missing
    Export(ExportArgs),
}

/// Write what happened as JSON lines, one per revision: every one of them, or which are missing
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct ExportArgs {
    /// Begin with this revision; by default with the oldest from which on none is missing
    #[arg(long, value_name = "REVISION", value_parser = clap::value_parser!(u64).range(1..))]
    pub from: Option<u64>,
    /// Go on with what happens, until interrupted
    #[arg(long)]
    pub follow: bool,
    /// Only resources and registers whose names begin like this; revisions without any are left out
    #[arg(long, default_value = "", hide_default_value = true)]
    pub prefix: String,
}

/// Does it.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    let Command::Export(args) = args.command;
    tokio::select! {
        biased;
        interrupted = tokio::signal::ctrl_c() => {
            interrupted.map_err(|error| CommandError::said(Exit::Other, format!("signals cannot be received: {error}")))?;
            Ok(Exit::Done)
        }
        exported = export(args, context) => exported,
    }
}

async fn export(args: ExportArgs, context: &Context<'_>) -> Result<Exit, CommandError> {
    let source = Source { context, prefix: args.prefix };
    // A watch of the future begins with the present revision.
    let until = if args.follow { u64::MAX } else { source.watch(None).next().await?.revision };
    let mut next = args.from.unwrap_or(1);
    let mut chosen = args.from.is_some();
    let (mut watch, mut pinned) = (source.watch(Some(next)), false);
    while next <= until {
        let response = match watch.next().await {
            Ok(response) => response,
            Err(error) => match too_old(&error) {
                // Nobody asked for what is gone: the oldest that is left is the beginning.
                Some(restart) if !chosen => {
                    (next, watch) = (restart, source.watch(Some(restart)));
                    continue;
                }
                Some(restart) => match source.elsewhere(next, restart).await {
                    Ok((other, response)) => {
                        (watch, pinned) = (other, true);
                        response
                    }
                    Err(restart) => return missed(next, restart, context),
                },
                // The one node that had it is gone; the others may have what follows.
                None if pinned => {
                    (watch, pinned) = (source.watch(Some(next)), false);
                    continue;
                }
                None => return Err(error.into()),
            },
        };
        chosen = true;
        if response.revision > until {
            break;
        }
        if !response.events.is_empty() {
            context.output.line(&line(&response).to_string())?;
        }
        next = next.max(response.revision.saturating_add(1));
    }
    context.output.talk(&format!("all events before revision {next} are exported; go on with --from {next}"));
    Ok(Exit::Done)
}

/// The revisions that no node has: one line, and a code of its own.
fn missed(from: u64, restart: u64, context: &Context<'_>) -> Result<Exit, CommandError> {
    let to = restart - 1;
    context.output.line(&json!({"missed": {"from": from, "to": to}}).to_string())?;
    Err(CommandError::with_hint(
        Exit::NotFound,
        format!("the events of revisions {from} to {to} are missing: no node has them any more"),
        format!(
            "read the present state, then go on with --from {restart}. Export more often, or keep more: \
             `tenure serve --events-bytes`, `--events-age`"
        ),
    ))
}

/// One revision as a line.
fn line(response: &proto::WatchResponse) -> Value {
    let mut at = Value::Null;
    let events: Vec<Value> = tenure_wire::json::Event::of(response)
        .iter()
        .map(|event| {
            let mut event = shapes::value(event);
            if let Some(event) = event.as_object_mut() {
                event.remove("revision");
                at = event.remove("at").unwrap_or_default();
            }
            event
        })
        .collect();
    json!({"revision": response.revision, "at": at, "events": events})
}

/// The revision from which on a node has everything, if it refused because it lacks an earlier one.
fn too_old(error: &CallError) -> Option<u64> {
    match error {
        CallError::Refused(refused) if refused.code == Code::TooOld => refused.about.revision,
        _ => None,
    }
}

/// Where revisions come from: any endpoint, or one in particular.
struct Source<'a> {
    context: &'a Context<'a>,
    prefix: String,
}

impl Source<'_> {
    fn watch(&self, from: Option<u64>) -> Watch {
        let patience = self.context.timeout().max(PATIENCE_MIN);
        Watch::new(self.context.transport.clone(), self.prefix.clone(), from, patience)
    }

    /// The endpoint that still has this revision, with its first answer; else the revision from which on one of them
    /// has everything, the earliest. Each node keeps its own files, and a node that was away has gaps that others have not.
    async fn elsewhere(&self, next: u64, restart: u64) -> Result<(Watch, proto::WatchResponse), u64> {
        let mut restart = restart;
        for endpoint in self.context.endpoints.as_slice() {
            let transport = Arc::new(Transport::new(&self.context.endpoints.only(endpoint)));
            let mut watch = Watch::new(transport, self.prefix.clone(), Some(next), ELSEWHERE_WITHIN);
            match tokio::time::timeout(ELSEWHERE_WITHIN, watch.next()).await {
                Ok(Ok(response)) => return Ok((watch, response)),
                Ok(Err(error)) => restart = restart.min(too_old(&error).unwrap_or(u64::MAX)),
                Err(_) => {}
            }
        }
        Err(restart)
    }
}
