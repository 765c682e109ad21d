//! `tenure tune`: checks the five timing numbers, shows their cost, and recommends values. All arithmetic is
//! in `tenure_core`; this file has the arguments, the order of steps, and the exit code.

mod probe;

use std::time::Duration;

use tenure_core::{Advice, Bounds, Load, Timing, TimingNumbers};

use crate::args::{Length, TTL_DEFAULT};
use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::render::tune::{self, Habit};

const EXAMPLES: &str = "\
Examples:
  tenure tune                                what the usual 10 s cost and buy
  tenure tune --ttl 30s --renew-every 10s    the same for your numbers
  tenure tune --ttl 2s --max-op 1500ms       does an operation of 1.5 s fit?
  tenure tune --ttl 5s --sessions 1000       what a thousand holders cost the store
  tenure tune --ttl 30s --rho 200 --sigma 1s the guard period: what of the TTL is given up
  tenure tune --probe                        measure here and now, and recommend
  tenure tune --probe --json | jq .advice.ttl_ms
  tenure tune --ttl 30s --habits wall-clock,no-release
                                             your program's bugs by name, with your numbers

The five numbers:
  TTL    how long a session lives without a renewal
  R      how long after one renewal the next is sent (a third of the TTL)
  rho    by how much the rates of two clocks may differ; their offset does not matter
  net    how long one exchange with the store may take; no safety rule needs it
  sigma  the slack between checking a deadline and acting on it

What must hold:
  safety        sigma + rho*TTL < TTL, and sigma >= pause
  availability  R + R/4 + reconnect + retry < TTL - sigma - rho*TTL
                R + net + max-op <= TTL - sigma - rho*TTL
  floor         TTL >= 2*(net + pause)

The exit code is 0 if they hold and 1 if one does not; then it says which, and what to change. It is \
1 for habits, too.";

/// Check the five numbers of a lease, price them, or measure and recommend
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// How long a session lives without a renewal (three times R if that is given, else 10s)
    #[arg(long, value_name = "DURATION")]
    pub ttl: Option<Length>,
    /// R: how long after a renewal the next one is sent (a third of the TTL)
    #[arg(long, value_name = "DURATION")]
    pub renew_every: Option<Length>,
    /// rho: the bound on the difference of two clocks' rates, in parts per million
    #[arg(long, value_name = "PPM", default_value_t = 500)]
    pub rho: u32,
    /// net: the bound on one exchange with the store
    #[arg(long, value_name = "DURATION", default_value = "50ms")]
    pub net: Length,
    /// sigma: the slack between checking and acting (2 % of the TTL, at least 100ms and the pause)
    #[arg(long, value_name = "DURATION")]
    pub sigma: Option<Length>,
    /// The longest that the process stands still between checking and acting; longer ones are for fences
    #[arg(long, value_name = "DURATION", default_value = "100ms", help_heading = "Bounds on the world")]
    pub pause: Length,
    /// How long one more attempt takes once there is a connection
    #[arg(long, value_name = "DURATION", default_value = "50ms", help_heading = "Bounds on the world")]
    pub retry: Length,
    /// How long a new connection to another endpoint takes
    #[arg(long, value_name = "DURATION", default_value = "100ms", help_heading = "Bounds on the world")]
    pub reconnect: Length,
    /// The longest operation that is done under one permit
    #[arg(long, value_name = "DURATION", default_value = "0s", help_heading = "Bounds on the world")]
    pub max_op: Length,
    /// How long one commit takes (6ms, or what the probe found)
    #[arg(long, value_name = "DURATION", help_heading = "Load")]
    pub commit: Option<Length>,
    /// How many sessions renew
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..), help_heading = "Load")]
    pub sessions: u64,
    /// What your program does now; each is a known bug, shown with what it costs under these numbers
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',')]
    pub habits: Vec<Habit>,
    /// Measure round trips, commits and scheduling gaps against the store, and recommend numbers. Opens one
    /// session and closes it
    #[arg(long, conflicts_with = "habits")]
    pub probe: bool,
    /// How long to measure
    #[arg(long = "for", value_name = "DURATION", default_value = "5s", requires = "probe")]
    pub probe_for: Length,
}

impl Args {
    fn bounds(&self) -> Bounds {
        Bounds {
            pause: self.pause.get(),
            retry: self.retry.get(),
            reconnect: self.reconnect.get(),
            max_op: self.max_op.get(),
            ..Bounds::default()
        }
    }

    /// The numbers that were given, and the usual ones where none were.
    fn numbers(&self) -> TimingNumbers {
        let ttl = match (self.ttl, self.renew_every) {
            (Some(ttl), _) => ttl.get(),
            (None, Some(every)) => every.get().saturating_mul(3),
            (None, None) => TTL_DEFAULT.get(),
        };
        let usual = TimingNumbers::for_world(ttl, self.net.get(), &self.bounds());
        TimingNumbers {
            renew_every: self.renew_every.map_or(usual.renew_every, Length::get),
            sigma: self.sigma.map_or(usual.sigma, Length::get),
            rho_ppm: self.rho,
            ..usual
        }
    }

    fn load(&self, commit: Option<Duration>) -> Load {
        let commit = self.commit.map(Length::get).or(commit).unwrap_or(Load::default().commit);
        Load { commit, sessions: self.sessions }
    }

    /// Whether the caller named numbers of its own, so that a probe should judge these, too.
    fn names_numbers(&self) -> bool {
        self.ttl.is_some() || self.renew_every.is_some() || self.sigma.is_some()
    }
}

/// Checks, prices, and recommends where asked to.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    if !args.probe {
        let (numbers, load) = (args.numbers(), args.load(None));
        let judged = judge(numbers, &args.bounds(), &load, context)?;
        if args.habits.is_empty() {
            return Ok(judged);
        }
        context.output.tell(
            || tune::habits_json(&args.habits, &numbers, &load),
            |form| tune::habits(&args.habits, &numbers, &load, form.paint()),
        )?;
        return Ok(Exit::Other);
    }
    let measured = probe::measure(args.probe_for.get(), context).await?;
    let advice = Advice::on(&measured, &args.bounds());
    let report = || tune::probed_json(&measured, advice.as_ref());
    context.output.tell(report, |form| tune::probed(&measured, advice.as_ref(), form))?;
    let Some(advice) = advice else {
        return Err(CommandError::with_hint(
            Exit::Other,
            "no TTL up to the server's limit fits what was measured",
            "measure again when the machine is less busy; work that stands still this long needs fences, not leases",
        ));
    };
    let load = args.load(Some(measured.commit()));
    if args.names_numbers() {
        let numbers = TimingNumbers { net: measured.net(), ..args.numbers() };
        return judge(numbers, &advice.bounds, &load, context);
    }
    tell(&advice.timing, &advice.bounds, &load, context)?;
    Ok(Exit::Done)
}

fn judge(
    numbers: TimingNumbers,
    bounds: &Bounds,
    load: &Load,
    context: &Context<'_>,
) -> Result<Exit, CommandError> {
    match numbers.checked(bounds) {
        Ok(timing) => {
            tell(&timing, bounds, load, context)?;
            Ok(Exit::Done)
        }
        Err(_) => {
            let report = || tune::broken_json(&numbers, bounds);
            context.output.tell(report, |form| tune::broken(&numbers, bounds, form))?;
            Ok(Exit::Other)
        }
    }
}

fn tell(timing: &Timing, bounds: &Bounds, load: &Load, context: &Context<'_>) -> Result<(), CommandError> {
    context
        .output
        .tell(|| tune::plan_json(timing, bounds, load), |form| tune::plan(timing, bounds, load, form))?;
    Ok(())
}
