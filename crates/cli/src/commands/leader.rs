//! `tenure leader`: who leads an election, once or continuously. No leader is a valid answer.

use std::time::Duration;

use tenure_client::proto::leases_client::LeasesClient;
use tenure_client::proto::registers_client::RegistersClient;
use tenure_client::{CallError, Code, Leader, Watch, proto};
use tenure_core::ResourceName;

use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::render::leader;
use crate::shapes;

/// How long it goes on trying after its server went away: longer than an election or a restart takes.
const PATIENCE_MIN: Duration = Duration::from_secs(30);

const EXAMPLES: &str = "\
Examples:
  tenure leader payments/leader                      who leads, since when, and what it has published
  tenure leader payments/leader --json | jq -r .value
                                                     where the leader can be reached, if it says so
  tenure leader payments/leader >/dev/null || alert  the exit code is 7 if nobody leads
  tenure leader payments/leader --watch              one line now, and one for every change

Who is shown was granted the leadership and has it as far as the store knows. Whether it may still act is for its own permits \
and for fences to say: send nothing to a leader that must not be done twice, unless it carries the leader's token.";

/// Show who leads an election, or that nobody does
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// The election
    #[arg(value_name = "NAME")]
    pub name: ResourceName,
    /// Tell every change as well: another leader, none, another value
    #[arg(long, short)]
    pub watch: bool,
    /// Answer from the asked node's own state, which may be stale; works without a leader of the cluster
    #[arg(long, conflicts_with = "watch")]
    pub stale: bool,
}

/// Shows it.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    if args.watch {
        return follow(&args.name, context).await;
    }
    let (shape, _) = look(&args.name, args.stale, context).await?;
    context.output.tell(|| shapes::value(&shape), |form| leader::leader(&shape, form))?;
    if shape.leader.is_some() {
        return Ok(Exit::Done);
    }
    context.output.talk(&leader::nobody(&shape));
    Ok(Exit::NotFound)
}

/// Who leads, and the revision at which that was true.
async fn look(
    name: &ResourceName,
    stale: bool,
    context: &Context<'_>,
) -> Result<(shapes::Leadership, u64), CommandError> {
    let request = proto::LeaseGetRequest { resource: name.to_string(), stale };
    let send = |channel, request| async move { LeasesClient::new(channel).get(request).await };
    let (lease, revision) = match context.read(request, send).await {
        Ok(answer) => (answer.lease.unwrap_or_default(), answer.revision),
        // Nobody has ever stood for it.
        Err(CallError::Refused(no)) if no.code == Code::NotFound => (proto::Lease::default(), 0),
        Err(error) => return Err(error.into()),
    };
    let register = if lease.holders.is_empty() {
        proto::Register::default()
    } else {
        let request = proto::RegisterGetRequest { key: Leader::value_key(name).into_bytes(), stale };
        let send = |channel, request| async move { RegistersClient::new(channel).get(request).await };
        context.read(request, send).await?.register.unwrap_or_default()
    };
    Ok((shapes::leadership(name.as_str(), &lease, &register), revision))
}

/// Tells who leads, and every change of it, until interrupted.
async fn follow(name: &ResourceName, context: &Context<'_>) -> Result<Exit, CommandError> {
    let patience = context.timeout().max(PATIENCE_MIN);
    let begin = || Watch::new(context.transport.clone(), name.to_string(), None, patience);
    let mut watch = begin();
    // Its first word names the revision after which it begins, so no change falls between it and the first
    // look.
    watch.next().await?;
    let mut last_shown = None;
    loop {
        let (shape, looked) = look(name, false, context).await?;
        if last_shown.as_ref() != Some(&shape.identity()) {
            context.output.tell(|| shapes::value(&shape), |form| leader::line(&shape, form))?;
            last_shown = Some(shape.identity());
        }
        loop {
            let change = tokio::select! {
                biased;
                interrupted = tokio::signal::ctrl_c() => {
                    interrupted.map_err(|error| CommandError::said(Exit::Other, format!("signals cannot be received: {error}")))?;
                    return Ok(Exit::Done);
                }
                change = watch.next() => change,
            };
            match change {
                // What happened before the last look is no reason for another.
                Ok(change) if change.revision <= looked => {}
                Ok(_) => break,
                // Too far behind: the next look tells what was missed.
                Err(CallError::Refused(no)) if no.code == Code::TooOld => {
                    watch = begin();
                    watch.next().await?;
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}
