//! All sessions stop renewing at once: how long after the TTL the last lease has ended.

use std::time::{Duration, Instant};

use super::{fleets, prefix};
use crate::error::BenchError;
use crate::meter::{Reading, Tally};
use crate::plan::{Plan, TargetKind};
use crate::progress::Progress;
use crate::report::Report;
use crate::target::{Result, Store};

/// How often is asked how many are left.
const LOOKED_AT_EVERY: Duration = Duration::from_millis(5);
/// How long the last one may take.
const GONE_WITHIN: Duration = Duration::from_secs(600);

pub async fn run<S: Store>(plan: &Plan, progress: Progress) -> Result<Report> {
    let store = S::reach(plan).await?;
    let ttl = plan.ttl.unwrap_or_else(|| ttl(plan));
    let prefix = prefix();
    let before = Reading::now(plan);
    let mut all = fleets::open(&store, plan, ttl, &prefix, progress).await?;
    let renewed = fleets::renew(&mut all).await?;
    // Every session's last renewal was received before now, so all are due a TTL from now at the latest.
    let due = Instant::now() + ttl;
    if renewed != plan.sessions as u64 {
        return Err(BenchError::new(format!(
            "{renewed} of {} sessions lived until all were open: a longer --ttl is needed",
            plan.sessions
        )));
    }
    let _bar = progress.over("waiting for the TTL", ttl);
    let early = Duration::from_secs(1).min(ttl / 2);
    tokio::time::sleep_until((due - early).into()).await;
    let held = store.leases(&prefix).await?;
    // Looking must not be what the store is busy with.
    let mut pause = LOOKED_AT_EVERY;
    let (mut left, mut half_gone) = (held, None);
    while left > 0 {
        if due.elapsed() > GONE_WITHIN {
            return Err(BenchError::new(format!("{left} leases are left after {GONE_WITHIN:?}")));
        }
        tokio::time::sleep(pause).await;
        let asked = Instant::now();
        left = store.leases(&prefix).await?;
        pause = LOOKED_AT_EVERY.max(asked.elapsed() * 4);
        if left <= held / 2 {
            half_gone.get_or_insert_with(Instant::now);
        }
    }
    let gone = Instant::now();
    let after = Reading::now(plan);
    let mut report = Report::of(plan);
    (report.sessions, report.streams) = (Some(plan.sessions), Some(all.len()));
    let mut tally = Tally::default();
    tally.add_many(gone.saturating_duration_since(due), plan.sessions as u64);
    before.fill(&after, plan, &tally, &mut report);
    let beyond = |at: Instant| {
        let late = at.saturating_duration_since(due).as_secs_f64();
        (late - due.saturating_duration_since(at).as_secs_f64()) * 1_000.0
    };
    report.figure("last_gone_after_ttl_ms", beyond(gone));
    report.figure("half_gone_after_ttl_ms", beyond(half_gone.unwrap_or(gone)));
    report.figure("held_shortly_before", held as f64);
    Ok(report)
}

/// Long enough for all sessions to be opened one after the other.
fn ttl(plan: &Plan) -> Duration {
    let opened_per_second = match plan.target {
        TargetKind::Etcd => 2_000,
        _ => 10_000,
    };
    Duration::from_secs(10 + (plan.sessions / opened_per_second) as u64)
}
