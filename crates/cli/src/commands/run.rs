//! `tenure run`: a command that runs only while a lease is held. What its tree may do, and for how long, is
//! decided in `run/`.

use std::ffi::OsString;
use std::process::ExitCode;

use tenure_core::{HolderName, Mode, Policies, ResourceName};

use crate::args::{Globals, Length, ModeArg, TTL_DEFAULT, WaitArg};
use crate::error::CommandError;
use crate::exit::{self, Exit};
use crate::output::Output;
use crate::run::{Cause, Contain, Ended, Plan, Stage};

const EXAMPLES: &str = "\
Examples:
  tenure run settlement/cron -- ./settle.sh          wait for the lease, run, give it back
  tenure run settlement/cron --no-wait -- ./settle.sh
                                                     not at all if another has it (exit code 103)
  tenure run nightly --wait 10m --ttl 30s -- make    queue for at most ten minutes
  tenure run api/quota --mode slots=5 -- ./job       at most five at a time

The command finds TENURE_RESOURCE, TENURE_TOKEN and TENURE_ENDPOINTS in its environment: give the token to whatever it \
writes to, and a write that comes too late is refused there. With --pass-session it finds TENURE_SESSION, too: whoever \
has that can release and close what is held, and every process that the command starts inherits it.

Nothing of the command is alive when the lease can be another's:
  The whole tree of its processes is held together by a cgroup, else a pid namespace, else by adopting its orphans. \
A quarter of the TTL before the lease would run out every process gets SIGTERM, and in time before that SIGKILL. A second \
process, the guardian, does the same if `tenure run` itself is stopped or killed. When the command ends, what it left \
behind is killed and seen dead before the lease goes back, so the next waiter need not wait for the TTL.

Signals:
  SIGTERM drains: the command gets it, and the lease goes back when it is gone; what has not ended by what was left of \
the lease (or --grace) is killed. HUP, INT, QUIT, USR1, USR2 and WINCH are passed on. Ctrl-Z does not stop it: a holder that \
stands still would wake up after its lease.

Exit codes:
  that of the command, 128+n if it died of signal n, 127 if there is no such program; and its own failures:
  101  anything else (a guardian was killed)    104  the lease was lost, the command was stopped
  102  wrong usage                              106  no store could be reached
  103  held by another";

/// Run a command only while holding a resource
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// What to hold
    #[arg(value_name = "RESOURCE")]
    pub resource: ResourceName,
    /// The command, after `--`
    #[arg(value_name = "COMMAND", required = true, last = true)]
    pub command: Vec<OsString>,
    /// Queue if it is held: for at most this long, or as long as it takes [default: as long as it takes]
    #[arg(long, value_name = "DURATION", num_args = 0..=1, default_missing_value = "forever")]
    pub wait: Option<WaitArg>,
    /// Do not queue: if it is held, say by whom and exit with 103
    #[arg(long, conflicts_with = "wait")]
    pub no_wait: bool,
    /// How to hold it: exclusive or slots=N
    #[arg(long, value_name = "MODE", default_value_t = ModeArg(Mode::Exclusive), value_parser = parse_mode)]
    pub mode: ModeArg,
    /// End the lease, by notice, at the latest after this long
    #[arg(long, value_name = "DURATION")]
    pub max_hold: Option<Length>,
    /// How it is held.
    #[command(flatten)]
    pub holding: Holding,
}

/// What `run` and `elect` have in common.
#[derive(Debug, clap::Args)]
pub struct Holding {
    /// How long the lease lives without a renewal
    #[arg(long, value_name = "DURATION", default_value_t = TTL_DEFAULT)]
    pub ttl: Length,
    /// Who holds it, for people [default: host:pid of this process]
    #[arg(long, value_name = "NAME")]
    pub holder: Option<HolderName>,
    /// Go before waiters with a lower one; never takes from a holder
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub priority: i32,
    /// After an unclean end nobody is granted the resource for this long
    #[arg(long, value_name = "DURATION")]
    pub lock_delay: Option<Length>,
    /// How the processes of the command are held together
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Contain::Auto)]
    pub contain: Contain,
    /// How long before the lease would run out the command gets SIGTERM [default: a quarter of the TTL]
    #[arg(long, value_name = "DURATION")]
    pub stop_before: Option<Length>,
    /// How long before the lease would run out what is still alive gets SIGKILL [default: 2 % of the TTL, at
    /// least 100ms]
    #[arg(long, value_name = "DURATION")]
    pub kill_before: Option<Length>,
    /// How long the command may take to end after SIGTERM before it is killed [default: what is left of the
    /// lease]
    #[arg(long, value_name = "DURATION")]
    pub grace: Option<Length>,
    /// After SIGTERM stay until a successor has been granted, for at most this long
    #[arg(long, value_name = "DURATION", num_args = 0..=1, default_missing_value = "5s")]
    pub hand_over: Option<Length>,
    /// Give the command the id of the session, in TENURE_SESSION: for `tenure release` and the like inside of it
    #[arg(long)]
    pub pass_session: bool,
}

fn parse_mode(text: &str) -> Result<ModeArg, String> {
    match text.parse()? {
        ModeArg(Mode::Shared) => Err("a sharer has no token to give to a command".to_owned()),
        mode => Ok(mode),
    }
}

impl Holding {
    /// The plan for a command under these options.
    pub fn plan(&self, resource: ResourceName, command: Vec<OsString>) -> Plan {
        Plan {
            resource,
            command,
            ttl: self.ttl.get(),
            holder: self.holder.clone().unwrap_or_else(own_holder),
            mode: Mode::Exclusive,
            policies: Policies {
                lock_delay: self.lock_delay.map(Length::get),
                priority: self.priority,
                ..Policies::default()
            },
            wait: Some(None),
            contain: self.contain,
            grace: self.grace.map(Length::get),
            stop_before: self.stop_before.map(Length::get),
            kill_before: self.kill_before.map(Length::get),
            hand_over: self.hand_over.map(Length::get),
            warm_up: None,
            value: None,
            persistent: false,
            pass_session: self.pass_session,
        }
    }
}

/// This process: it lives for as long as it holds.
fn own_holder() -> HolderName {
    let parent = crate::args::default_holder();
    let host = parent.as_str().rsplit_once(':').map_or("localhost", |(host, _)| host);
    format!("{host}:{}", std::process::id()).parse().unwrap_or(parent)
}

/// Acquires, runs, gives back.
pub fn run(args: Args, globals: &Globals, output: &Output) -> Result<ExitCode, CommandError> {
    let wait = match args.wait {
        _ if args.no_wait => None,
        None | Some(WaitArg::Forever) => Some(None),
        Some(WaitArg::AtMost(length)) => Some(Some(length.get())),
    };
    let mut plan = args.holding.plan(args.resource, args.command);
    plan.wait = wait;
    plan.mode = args.mode.0;
    plan.policies.max_hold = args.max_hold.map(Length::get);
    runtime()?.block_on(async {
        let mut stage = Stage::new(output, globals, globals.timeout.get())?;
        let ended = stage.term(&plan).await?;
        Ok(exit_code(ended, output))
    })
}

/// A runtime on this very thread: the children of a process are those of its threads, and here there is one
/// to have them.
pub fn runtime() -> Result<tokio::runtime::Runtime, CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| CommandError::said(Exit::Other, format!("no runtime: {error}")))
}

/// How the process ends after a term.
pub fn exit_code(ended: Ended, output: &Output) -> ExitCode {
    match ended {
        Ended::Child(ending) => ExitCode::from(ending.code()),
        Ended::Asked(signal) => ExitCode::from(crate::run::Ending::Signaled(signal).code()),
        Ended::Stopped(cause) => {
            output.complain(words_of(cause));
            exit::of_own(match cause {
                Cause::Lease => Exit::Lost,
                Cause::Guardian => Exit::Other,
            })
        }
    }
}

/// Why a command was stopped.
pub fn words_of(cause: Cause) -> &'static str {
    match cause {
        Cause::Lease => "the lease was lost, so the command was stopped; nothing of it is alive",
        Cause::Guardian => {
            "the guardian was killed or stopped, so the command was stopped; nothing of it is alive"
        }
    }
}
