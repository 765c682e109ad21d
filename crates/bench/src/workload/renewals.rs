//! Many sessions, each with one lease, renewed over a few streams: as fast as the store acknowledges, or on
//! schedule.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::{fleets, prefix};
use crate::error::BenchError;
use crate::meter::{Reading, Tally, Window};
use crate::pace::Pace;
use crate::plan::Plan;
use crate::process::Usage;
use crate::progress::Progress;
use crate::report::Report;
use crate::target::{Fleet, Result, Store};

pub async fn run<S: Store>(plan: &Plan, progress: Progress) -> Result<Report> {
    let store = S::reach(plan).await?;
    let ttl = plan.ttl.unwrap_or(Duration::from_secs(300));
    let empty = Usage::of(&plan.server_pids);
    let started = Instant::now();
    let mut all = fleets::open(&store, plan, ttl, &prefix(), progress).await?;
    let opened_in = started.elapsed();
    let full = Usage::of(&plan.server_pids);
    let started = Instant::now();
    let renewed = fleets::renew(&mut all).await?;
    let first_round = started.elapsed();
    if renewed != plan.sessions as u64 {
        return Err(BenchError::new(format!("{renewed} of {} sessions were renewed", plan.sessions)));
    }

    let streams = all.len();
    // An open loop is due in renewals; a stream renews all of its sessions at once.
    let per_stream = (plan.sessions / streams).max(1) as f64;
    let pace = Arc::new(Pace::new(plan.rate.map(|rate| rate / per_stream)));
    let window = Window::of(plan);
    let mut tasks = JoinSet::new();
    for fleet in all {
        tasks.spawn(renew_on(fleet, pace.clone(), window, plan.rate.is_some()));
    }
    let _bar = progress.over(plan.workload.name(), plan.warm_up + plan.duration);
    tokio::time::sleep_until(window.from.into()).await;
    let before = Reading::now(plan);
    tokio::time::sleep_until(window.until.into()).await;
    let after = Reading::now(plan);
    let mut tally = Tally::default();
    while let Some(task) = tasks.join_next().await {
        tally.merge(&task.map_err(|error| BenchError::new(format!("a stream failed: {error}")))??);
    }

    let mut report = Report::of(plan);
    (report.sessions, report.streams) = (Some(plan.sessions), Some(streams));
    (report.clients, report.connections) = (streams, streams);
    before.fill(&after, plan, &tally, &mut report);
    report.figure("opened_in_s", opened_in.as_secs_f64());
    report.figure("opened_per_second", plan.sessions as f64 / opened_in.as_secs_f64());
    report.figure("first_round_ms", first_round.as_secs_f64() * 1_000.0);
    if !plan.server_pids.is_empty() {
        let grown = full.memory_bytes.saturating_sub(empty.memory_bytes) as f64;
        report.figure(
            "memory_per_session_bytes",
            grown / plan.sessions.max(1) as f64 / plan.server_pids.len() as f64,
        );
    }
    Ok(report)
}

async fn renew_on<F: Fleet>(mut fleet: F, pace: Arc<Pace>, window: Window, open_loop: bool) -> Result<Tally> {
    let mut tally = Tally::default();
    loop {
        let due = pace.due().await;
        if due >= window.until {
            return Ok(tally);
        }
        let renewed = fleet.renew_all().await?;
        let ended = Instant::now();
        let counts = if open_loop { due >= window.from } else { window.counts(due, ended) };
        if counts {
            tally.add_many(ended - due, renewed);
        }
    }
}
