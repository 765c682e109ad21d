//! `tenure bench`: load on a store, measured. The workloads and drivers are in the bench crate; this file has
//! the arguments and the output.

use std::time::Duration;

use serde_json::json;
use tenure_bench::{Plan, Progress, Report, TargetKind, Workload, run as run_plan, sweep};

use crate::args::{Globals, Length};
use crate::error::CommandError;
use crate::exit::Exit;
use crate::output::Output;
use crate::render::bench::words;

const EXAMPLES: &str = "\
Workloads:
  cycles          every client takes a resource of its own and gives it back
  renewals        many sessions with one lease each, renewed over a few streams
  handover        from a release to the next waiter holding it, with many waiters
  handover-fresh  the same for a waiter that has just queued
  crash           a holder falls silent: how long after its TTL the next one holds
  death           a holder is proved dead: how long until the next one holds
  expiry          all sessions fall silent: how long after the TTL the last lease is gone
  leader-killed   the longest time in which nobody got anything done (needs --leader-pid)
  step-down       the same for a planned change of leader
  watchers        how long until everybody who watches has heard of a grant

Examples:
  tenure bench                                        the first four, a few seconds each
  tenure bench cycles --clients 256 --duration 10s    as fast as it goes: a closed loop
  tenure bench cycles --rate 20000                    at this rate, whatever the store does: open loop
  tenure bench cycles --clients 1024 --sweep          1, 4, 16 … 1024 clients
  tenure bench renewals --sessions 100000 --server-pids \"$(pgrep -d, -x tenure)\"
  tenure bench cycles --target etcd --endpoints 127.0.0.1:2379

The store fills up with what is measured: use one that nobody needs. In an open loop latency counts from when an \
operation was due, so that what a stall held up counts, too.";

/// Put load on a store and measure it: this one, or a peer by the same driver
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// What to do; without it, a short round of several
    #[arg(value_name = "WORKLOAD")]
    pub workload: Option<Workload>,
    /// What is driven: tenure, etcd, zookeeper or redis
    #[arg(long, value_name = "STORE", default_value_t = TargetKind::Tenure)]
    pub target: TargetKind,
    /// Clients at once, each with a session of its own (watchers: who watches)
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one)]
    pub clients: usize,
    /// Connections that clients share, where the store lets them
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_least_one)]
    pub connections: usize,
    /// Sessions with one lease each (renewals, expiry)
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = at_least_one)]
    pub sessions: usize,
    /// Streams over which these are renewed, each on a connection of its own
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one)]
    pub streams: usize,
    /// Waiters in one line (handover)
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = at_least_one)]
    pub waiters: usize,
    /// Repetitions, where a workload is counted and not timed
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = at_least_one)]
    pub rounds: usize,
    /// The TTL of all sessions, if not what suits the workload
    #[arg(long, value_name = "DURATION")]
    pub ttl: Option<Length>,
    /// Operations that are due per second; without it, a closed loop
    #[arg(long, value_name = "PER-SECOND", value_parser = positive)]
    pub rate: Option<f64>,
    /// How long to measure
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    pub duration: Length,
    /// How long the load runs before that
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    pub warm_up: Length,
    /// Repeat at growing sizes up to the one given: clients, sessions or waiters, whichever the workload has
    #[arg(long, requires = "workload")]
    pub sweep: bool,
    /// The store's processes on this machine, to tell their processor time and memory
    #[arg(long, value_name = "PID,…", value_delimiter = ',')]
    pub server_pids: Vec<u32>,
    /// The leader's process, which `leader-killed` kills
    #[arg(long, value_name = "PID")]
    pub leader_pid: Option<u32>,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("a whole number from 1 on is needed".into()),
        Ok(number) => Ok(number),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate.is_finite() => Ok(rate),
        _ => Err("a number above zero is needed".into()),
    }
}

/// Measures, and tells each result as soon as it is there.
pub fn run(args: Args, globals: &Globals, output: &Output) -> Result<Exit, CommandError> {
    let progress = if output.is_json() { Progress::hidden() } else { Progress::on_terminal() };
    for plan in plans(&args, globals) {
        let report = run_plan(&plan, progress).map_err(|error| failure(&plan, &error))?;
        tell(&report, output)?;
    }
    Ok(Exit::Done)
}

fn plans(args: &Args, globals: &Globals) -> Vec<Plan> {
    let plan = |workload| Plan {
        clients: args.clients,
        connections: args.connections,
        sessions: args.sessions,
        streams: args.streams,
        waiters: args.waiters,
        rounds: args.rounds,
        ttl: args.ttl.map(Length::get),
        rate: args.rate,
        duration: args.duration.get(),
        warm_up: args.warm_up.get(),
        server_pids: args.server_pids.clone(),
        leader_pid: args.leader_pid,
        credential: globals.endpoints.credential().cloned(),
        tls: globals.endpoints.tls().cloned(),
        ..Plan::new(
            args.target,
            globals.endpoints.as_slice().iter().map(ToString::to_string).collect(),
            workload,
        )
    };
    match args.workload {
        Some(workload) if args.sweep => sweep(&plan(workload)),
        Some(workload) => vec![plan(workload)],
        None => {
            let short = |workload| Plan {
                sessions: args.sessions.min(20_000),
                duration: args.duration.get().min(Duration::from_secs(3)),
                rounds: args.rounds.min(100),
                ..plan(workload)
            };
            vec![
                Plan { clients: 1, ..short(Workload::Cycles) },
                short(Workload::Cycles),
                short(Workload::Handover),
                short(Workload::Renewals),
            ]
        }
    }
}

fn tell(report: &Report, output: &Output) -> Result<(), CommandError> {
    output.tell(|| json!(report), |form| words(report, form))?;
    Ok(())
}

fn failure(plan: &Plan, error: &tenure_bench::BenchError) -> CommandError {
    let message = format!("{} on {}: {error}", plan.workload, plan.target);
    if error.unreachable {
        let hint =
            "start one with `tenure serve --data-dir \"$(mktemp -d)\"`, or name others with --endpoints";
        CommandError::with_hint(Exit::Unreachable, message, hint)
    } else {
        CommandError::said(Exit::Other, message)
    }
}
