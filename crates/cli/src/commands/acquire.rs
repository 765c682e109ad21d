//! `tenure acquire`: one step. The lease belongs to a session that this opens, or to one that is open
//! already.

use tenure_client::proto;
use tenure_client::proto::leases_client::LeasesClient;
use tenure_client::proto::sessions_client::SessionsClient;
use tenure_client::{Attempt, random_nonce};
use tenure_core::{
    Acquire, AcquireBy, Caller, FenceName, HolderName, Nonce, Open, ResourceName, Secret, SessionId, Wait,
};
use tenure_wire::{grpc, json};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{Length, ModeArg, WaitArg, default_holder};
use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::render::{Form, leases};
use crate::shapes;

const EXAMPLES: &str = "\
Examples:
  tenure acquire settlement/cron             take it now, or hear who holds it (exit code 3)
  tenure acquire settlement/cron --wait 1m   queue for at most a minute
  tenure acquire shard/1 shard/2 --wait      both or none, as long as it takes
  tenure acquire reports --mode shared       one of many readers
  tenure acquire api/quota --mode slots=5    one of five slots

In a script, keep the exit code and export what was granted:
  lease=$(tenure acquire settlement/cron --export) || exit
  eval \"$lease\"            # TENURE_TOKEN, TENURE_SESSION, …
  tenure release settlement/cron

The lease ends after its TTL unless the session is renewed in time (`tenure session renew`). A token proves order, \
not time: what must not be written too late belongs behind storage that checks it.";

/// Take one or several resources: all or none, now or in turn
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// What to take
    #[arg(required = true, value_name = "RESOURCE")]
    pub resources: Vec<ResourceName>,
    /// How long the lease lives without a renewal [default: 10s]
    #[arg(long, value_name = "DURATION", conflicts_with = "session")]
    pub ttl: Option<Length>,
    /// Who takes it, for people [default: host:pid of the calling process]
    #[arg(long, value_name = "NAME", conflicts_with = "session")]
    pub holder: Option<HolderName>,
    /// Take it for a session that is open already, as `session open` or another acquire printed it
    #[arg(long, value_name = "ID")]
    pub session: Option<SessionId>,
    /// Queue if it is held: for at most this long, or as long as it takes
    #[arg(long, value_name = "DURATION", num_args = 0..=1, default_missing_value = "forever")]
    pub wait: Option<WaitArg>,
    /// How to hold it: exclusive, shared or slots=N
    #[arg(long, value_name = "MODE", default_value_t = ModeArg(tenure_core::Mode::Exclusive))]
    pub mode: ModeArg,
    /// Print shell assignments for `eval`
    #[arg(long, conflicts_with = "json")]
    pub export: bool,
    /// What else to ask for.
    #[command(flatten)]
    pub policies: Policies,
}

/// What an acquire may ask for beyond the lease itself.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Policies")]
pub struct Policies {
    /// After an unclean end of this lease nobody is granted the resource for this long
    #[arg(long, value_name = "DURATION")]
    pub lock_delay: Option<Length>,
    /// End the lease, by notice, at the latest after this long
    #[arg(long, value_name = "DURATION")]
    pub max_hold: Option<Length>,
    /// Past the TTL only lapse: the first contender takes the lease, or this long after the last renewal it
    /// ends
    #[arg(long, value_name = "DURATION")]
    pub hard_limit: Option<Length>,
    /// Go before waiters with a lower one; never takes from a holder
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub priority: i32,
    /// If the session holds it already, count instead of refusing
    #[arg(long)]
    pub reentrant: bool,
    /// A fence that will check the token; added to the resource's fence set (may be repeated)
    #[arg(long = "fence", value_name = "NAME")]
    pub fences: Vec<FenceName>,
}

/// Takes the resources.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    let by = acquire_by(&args);
    let grants = match nonce_of(&by) {
        None => take(&args, by, context).await?,
        Some(nonce) => tokio::select! {
            biased;
            taken = take(&args, by, context) => taken?,
            exit = interrupted() => return Err(give_up(exit?, &args, nonce, context).await),
        },
    };
    if args.export {
        context.output.line(&leases::export(&grants, &context.endpoints.to_string()))?;
        return Ok(Exit::Done);
    }
    if context.output.is_json() {
        for grant in &grants {
            context.output.line(&shapes::value(grant).to_string())?;
        }
        return Ok(Exit::Done);
    }
    context.output.line(&leases::granted(&grants, context.output.form()))?;
    if let (Form::Terminal(_), Some(grant)) = (context.output.form(), grants.first()) {
        let session = grant.session.as_deref().unwrap_or_default();
        context.output.talk(&format!("keep it:   tenure session renew {session}"));
        context.output.talk(&format!("give back: tenure release {} --session {session}", grant.resource));
    }
    Ok(Exit::Done)
}

async fn take(args: &Args, by: AcquireBy, context: &Context<'_>) -> Result<Vec<json::Granted>, CommandError> {
    let wait = args.wait;
    let at_most = match wait {
        None => Some(std::time::Duration::ZERO),
        Some(WaitArg::AtMost(length)) => Some(length.get()),
        Some(WaitArg::Forever) => None,
    };
    let acquire = acquire(args, by);
    let send = |channel, attempt: Attempt| {
        let mut acquire = acquire.clone();
        if let AcquireBy::Opening(open) = &mut acquire.by {
            open.number = attempt.number;
        }
        acquire.wait = wait.map_or(Wait::No, |wait| wait_left(wait, attempt));
        let request = proto::AcquireRequest::from(&acquire);
        async move { LeasesClient::new(channel).acquire(request).await }
    };
    let answer = context.wait_repeatably(at_most, send).await?;
    let waited = answer.grants.iter().any(|grant| grant.waited_ms > 0);
    if waited && args.session.is_none() {
        renew(&answer.grants, context).await?;
    }
    Ok(answer.grants.iter().map(Into::into).collect())
}

/// Resolves with how the process ends once a signal asks for it.
async fn interrupted() -> Result<Exit, CommandError> {
    let listen = |kind| {
        signal(kind)
            .map_err(|error| CommandError::said(Exit::Other, format!("signals cannot be received: {error}")))
    };
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    Ok(tokio::select! {
        _ = interrupt.recv() => Exit::Interrupted,
        _ = terminate.recv() => Exit::Terminated,
    })
}

/// Gives back what was asked for, granted or not: otherwise its place in the queue would be kept until its
/// TTL has passed. A second signal ends even that.
async fn give_up(exit: Exit, args: &Args, nonce: Nonce, context: &Context<'_>) -> CommandError {
    let request = grpc::cancel_nonce_request(nonce);
    let send = |channel, _| {
        let request = request.clone();
        async move { LeasesClient::new(channel).cancel(request).await }
    };
    let cancelled = tokio::select! {
        biased;
        cancelled = context.change_repeatably(send) => cancelled.is_ok(),
        _ = interrupted() => false,
    };
    let resources: Vec<String> = args.resources.iter().map(ToString::to_string).collect();
    let resources = resources.join(", ");
    match cancelled {
        true => CommandError::said(exit, format!("interrupted: no longer queued for {resources}")),
        false => {
            let ttl = args.ttl.unwrap_or(crate::args::TTL_DEFAULT);
            let left = format!("interrupted, and the place in the queue for {resources} was not given back");
            CommandError::with_hint(exit, left, format!("it ends by itself, after its TTL of {ttl}"))
        }
    }
}

/// A waited grant does not say when its session was last renewed, so it is renewed once before anybody acts
/// on it.
async fn renew(grants: &[proto::Grant], context: &Context<'_>) -> Result<(), CommandError> {
    let Some(grant) = grants.first() else { return Ok(()) };
    let renewal = proto::SessionRenewal { session: grant.session.clone(), number: 0 };
    let request = proto::SessionRenewRequest { renewals: vec![renewal] };
    let send = |channel, _| {
        let request = request.clone();
        async move { SessionsClient::new(channel).renew(request).await }
    };
    let answer = context.change_repeatably(send).await?;
    if answer.unknown.is_empty() {
        return Ok(());
    }
    let resource = &grant.resource;
    let message =
        format!("{resource} was granted under token {} and ended before it could be renewed", grant.token);
    Err(CommandError::with_hint(
        Exit::Lost,
        message,
        "acquire again; a longer --ttl leaves more time for the answer",
    ))
}

fn acquire(args: &Args, by: AcquireBy) -> Acquire {
    let policies = &args.policies;
    Acquire {
        by,
        resources: args.resources.clone(),
        mode: args.mode.0,
        wait: Wait::No,
        policies: tenure_core::Policies {
            lock_delay: policies.lock_delay.map(Length::get),
            max_hold: policies.max_hold.map(Length::get),
            hard_limit: policies.hard_limit.map(Length::get),
            priority: policies.priority,
            reentrant: policies.reentrant,
        },
        fences: policies.fences.clone(),
        transmission: None,
    }
}

/// Who acquires; the same for every transmission except for its number.
fn acquire_by(args: &Args) -> AcquireBy {
    match args.session {
        Some(session) => AcquireBy::Session(Caller::unnumbered(session)),
        None => AcquireBy::Opening(Open {
            holder: args.holder.clone().unwrap_or_else(default_holder),
            ttl: args.ttl.unwrap_or(crate::args::TTL_DEFAULT).get(),
            // By it a repeated transmission finds the session that the first one opened.
            nonce: Some(Nonce::new(random_nonce())),
            // The node draws it; this one is not sent.
            secret: Secret::new([0; 16]),
            number: 0,
        }),
    }
}

/// By which an acquire that opens its own session is undone. One for a session that is open already is undone by the
/// node when its caller hangs up.
fn nonce_of(by: &AcquireBy) -> Option<Nonce> {
    match by {
        AcquireBy::Session(_) => None,
        AcquireBy::Opening(open) => open.nonce,
    }
}

/// What is left of a wait when an attempt is sent. The last moment of it still is a wait.
fn wait_left(wait: WaitArg, attempt: Attempt) -> Wait {
    match wait {
        WaitArg::Forever => Wait::Forever,
        WaitArg::AtMost(length) => Wait::For(length.get().saturating_sub(attempt.elapsed)),
    }
}
