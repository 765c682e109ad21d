//! `tenure session`: the unit of liveness. One TTL, one heartbeat, many leases.

use tenure_client::proto::sessions_client::SessionsClient;
use tenure_client::{Attempt, proto, random_nonce};
use tenure_core::{Caller, EndReason, HolderName, Nonce, SessionId};
use tenure_wire::{grpc, json};

use crate::args::{Length, TTL_DEFAULT, default_holder};
use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::render::words::{count, span};
use crate::render::{Form, leases};
use crate::shapes;

const EXAMPLES: &str = "\
Examples:
  export TENURE_SESSION=$(tenure session open --ttl 30s)
  tenure acquire shard/1 --session \"$TENURE_SESSION\"
  tenure session renew                       renews every lease of the session
  tenure session close                       gives all of them back

Only the whole id, which `open` prints once, renews and closes; lists show the public number, which opens no door.";

/// Open, renew, close and list sessions
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do with sessions.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Open a session and print its id
    Open(OpenArgs),
    /// Renew sessions, with all of their leases
    Renew(RenewArgs),
    /// End a session and give all of its leases back
    Close(CloseArgs),
    /// List the live sessions
    Ls(LsArgs),
}

/// Open a session and print its id
#[derive(Debug, clap::Args)]
pub struct OpenArgs {
    /// How long it lives without a renewal
    #[arg(long, value_name = "DURATION", default_value_t = TTL_DEFAULT)]
    pub ttl: Length,
    /// Who opens it, for people [default: host:pid of the calling process]
    #[arg(long, value_name = "NAME")]
    pub holder: Option<HolderName>,
}

/// Renew sessions, with all of their leases
#[derive(Debug, clap::Args)]
pub struct RenewArgs {
    /// Whole ids, as `open` or `acquire` printed them
    #[arg(value_name = "ID", env = "TENURE_SESSION", hide_env_values = true, required = true)]
    pub sessions: Vec<SessionId>,
}

/// End a session and give all of its leases back
#[derive(Debug, clap::Args)]
pub struct CloseArgs {
    /// The whole id, as `open` or `acquire` printed it
    #[arg(value_name = "ID", env = "TENURE_SESSION", hide_env_values = true)]
    pub session: SessionId,
    /// All of its processes were seen dead: the history says `died` instead of `released`
    #[arg(long)]
    pub died: bool,
}

/// List the live sessions
#[derive(Debug, clap::Args)]
pub struct LsArgs {
    /// At most this many
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
}

/// Does it.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    match args.command {
        Command::Open(args) => open(args, context).await,
        Command::Renew(args) => renew(args, context).await,
        Command::Close(args) => close(args, context).await,
        Command::Ls(args) => ls(args, context).await,
    }
}

async fn open(args: OpenArgs, context: &Context<'_>) -> Result<Exit, CommandError> {
    let holder = args.holder.unwrap_or_else(default_holder);
    let request = grpc::open_request(&holder, args.ttl.get(), Some(Nonce::new(random_nonce())), 0);
    let send = |channel, attempt: Attempt| {
        let request = proto::SessionOpenRequest { number: attempt.number, ..request.clone() };
        async move { SessionsClient::new(channel).open(request).await }
    };
    let opened = context.change_repeatably(send).await?;
    let shape = json::SessionOpened::from(opened);
    // The id alone, so that a script can take it as it is.
    context.output.tell(|| shapes::value(&shape), |_| shape.session.clone())?;
    if let Form::Terminal(_) = context.output.form() {
        context.output.talk(&format!(
            "session {} of {}: it ends {} from now unless renewed",
            shape.session_number,
            shape.holder,
            span(shape.ttl_ms)
        ));
    }
    Ok(Exit::Done)
}

async fn renew(args: RenewArgs, context: &Context<'_>) -> Result<Exit, CommandError> {
    // Number zero: a caller that keeps no numbers. Each transmission simply renews.
    let renewal = |session: &SessionId| proto::SessionRenewal { session: session.to_string(), number: 0 };
    let request = proto::SessionRenewRequest { renewals: args.sessions.iter().map(renewal).collect() };
    let send = |channel, _| {
        let request = request.clone();
        async move { SessionsClient::new(channel).renew(request).await }
    };
    let answer = context.change_repeatably(send).await?;
    for renewed in &answer.renewed {
        let id = args.sessions.iter().find(|session| session.number.get() == renewed.session_number);
        let shape = json::Renewed::of(&id.map(ToString::to_string).unwrap_or_default(), renewed);
        context
            .output
            .tell(|| shapes::value(&shape), |_| words_of_renewal(renewed.session_number, &shape))?;
    }
    if answer.unknown.is_empty() {
        return Ok(Exit::Done);
    }
    let numbers: Vec<String> = args
        .sessions
        .iter()
        .filter(|session| answer.unknown.contains(&session.to_string()))
        .map(|session| session.number.to_string())
        .collect();
    Err(CommandError::with_hint(
        Exit::Lost,
        format!("{} has ended, or never was", many_sessions(&numbers)),
        "stop what its leases allowed; open a new session and acquire again",
    ))
}

fn many_sessions(numbers: &[String]) -> String {
    match numbers {
        [one] => format!("session {one}"),
        many => format!("each of the sessions {}", many.join(", ")),
    }
}

fn words_of_renewal(number: u64, renewed: &json::Renewed) -> String {
    let mut lines = vec![format!("session {number} is renewed for {}", span(renewed.ttl_ms))];
    for change in &renewed.noticed {
        let left = change.remaining_ms.map(|left| format!(" within {}", span(left))).unwrap_or_default();
        lines.push(format!(
            "  its lease on {} (token {}) ends{left}: {}",
            change.resource, change.token, change.why
        ));
    }
    for change in &renewed.ended {
        lines.push(format!(
            "  its lease on {} (token {}) has ended: {}",
            change.resource, change.token, change.why
        ));
    }
    if renewed.incomplete {
        lines.push("  more of its leases have ended than are remembered".to_owned());
    }
    lines.join("\n")
}

async fn close(args: CloseArgs, context: &Context<'_>) -> Result<Exit, CommandError> {
    let why = if args.died { EndReason::Died } else { EndReason::Released };
    let request = grpc::close_request(&Caller::unnumbered(args.session), why);
    let send = |channel, request| async move { SessionsClient::new(channel).close(request).await };
    let answer = context.change(request, send).await?;
    let shape = json::Closed { session: args.session.to_string(), released: answer.released };
    let text = |_| {
        let released = count(u64::from(shape.released), "lease", "leases");
        format!("session {} is closed; it gave {released} back", args.session.number)
    };
    context.output.tell(|| shapes::value(&shape), text)?;
    Ok(Exit::Done)
}

async fn ls(args: LsArgs, context: &Context<'_>) -> Result<Exit, CommandError> {
    let limit = args.limit.unwrap_or(usize::MAX);
    let mut all: Vec<proto::SessionSummary> = Vec::new();
    let mut after = None;
    loop {
        let request = proto::SessionListRequest { limit: None, after };
        let send = |channel, request| async move { SessionsClient::new(channel).list(request).await };
        let page = context.read(request, send).await?;
        all.extend(page.sessions);
        after = page.next;
        if after.is_none() || all.len() >= limit {
            break;
        }
    }
    all.truncate(limit);
    if context.output.is_json() {
        for session in &all {
            context.output.line(&shapes::value(&json::SessionSummary::from(session)).to_string())?;
        }
    } else {
        if all.is_empty() {
            context.output.talk("no session is open");
        }
        context.output.line(&leases::sessions(&all, context.output.form()))?;
    }
    Ok(Exit::Done)
}
