//! `tenure elect`: the same as `run`, campaigning again and again.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use tenure_client::Backoff;
use tenure_core::ResourceName;

use super::run::{Holding, exit_code, runtime, words_of};
use crate::args::Globals;
use crate::error::CommandError;
use crate::output::Output;
use crate::run::{Ended, Stage};

const EXAMPLES: &str = "\
Examples:
  tenure elect payments/leader -- ./serve            lead whenever elected, stand by otherwise
  tenure elect payments/leader --warm-up './serve --load-cache' -- ./serve
                                                     be ready before the turn comes
  tenure elect payments/leader --priority 10 -- ./serve
                                                     go before standbys with a lower one
  tenure elect payments/leader --value 10.0.0.7:9000 -- ./serve
                                                     say where the leader is: `tenure leader payments/leader`

Candidates queue at the store, so there is no herd and no polling: the step that ends one term begins the next. \
The warm-up runs while a candidate is queued; it holds nothing and leads nothing. A candidate whose warm-up fails leaves the \
line and tries again.

After any loss (the lease ran out, the store was away for too long, the guardian was killed) the command is stopped and the \
candidate queues again, for ever. When the command ends by itself, its term ends and so does `tenure elect`, with its exit \
code; with --again it goes back into the queue instead. SIGTERM resigns: the command gets it, and the next candidate is \
elected when it is gone.

Containment, deadlines, signals, environment and exit codes are those of `tenure run` (see `tenure run --help`).";

/// Delays between campaigns.
const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Run a command only while leading; queue again after any loss
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// The election
    #[arg(value_name = "NAME")]
    pub name: ResourceName,
    /// The command, after `--`
    #[arg(value_name = "COMMAND", required = true, last = true)]
    pub command: Vec<OsString>,
    /// Run by `sh -c` while queued; leading begins when it has ended with code 0
    #[arg(long, value_name = "COMMAND")]
    pub warm_up: Option<String>,
    /// What to publish while leading, such as where the leader can be reached: shown by `tenure leader`, gone
    /// with the term
    #[arg(long, value_name = "TEXT")]
    pub value: Option<String>,
    /// Queue again, too, when the command has ended by itself
    #[arg(long)]
    pub again: bool,
    /// How it is held.
    #[command(flatten)]
    pub holding: Holding,
}

/// Campaigns, leads, and campaigns again.
pub fn run(args: Args, globals: &Globals, output: &Output) -> Result<ExitCode, CommandError> {
    let mut plan = args.holding.plan(args.name, args.command);
    plan.warm_up = args.warm_up;
    plan.value = args.value;
    plan.persistent = true;
    let again = args.again;
    runtime()?.block_on(async {
        let mut stage = Stage::new(output, globals, globals.timeout.get())?;
        let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MAX);
        loop {
            match stage.term(&plan).await {
                Ok(Ended::Stopped(cause)) if stage.asked.is_none() => {
                    output.complain(words_of(cause));
                    backoff.reset();
                }
                Ok(Ended::Child(ending)) if again && stage.asked.is_none() => {
                    output.complain(&format!(
                        "the command ended with code {}; campaigning again",
                        ending.code()
                    ));
                }
                Ok(ended) => return Ok(exit_code(ended, output)),
                Err(failure) if failure.exit() == crate::exit::Exit::Usage => return Err(failure),
                Err(failure) => failure.tell(output),
            }
            tokio::select! {
                biased;
                asked = stage.asked_to_end() => return Ok(exit_code(Ended::Asked(asked), output)),
                () = backoff.wait() => {}
            }
        }
    })
}
