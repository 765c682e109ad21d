//! A holder stops renewing: how long after its TTL the next waiter holds the lease. Or the holder is reported
//! dead: how long after the report.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::{long_ttl, prefix};
use crate::error::BenchError;
use crate::meter::{Reading, Tally};
use crate::plan::Plan;
use crate::progress::Progress;
use crate::report::Report;
use crate::target::{Result, Session, Store};

/// The TTL of the holders that fall silent, unless the plan says otherwise.
const SILENT_TTL: Duration = Duration::from_secs(2);
/// The TTL of the holders that are proved dead.
const DEAD_TTL: Duration = Duration::from_secs(30);
/// The rounds begin one after the other, so long apart that no timer of a store keeps step with them.
const STAGGERED_BY: Duration = Duration::from_millis(137);

pub async fn run<S: Store>(plan: &Plan, progress: Progress) -> Result<Report> {
    let store = Arc::new(S::reach(plan).await?);
    let ttl = plan.ttl.unwrap_or(SILENT_TTL);
    let prefix = prefix();
    let mut pairs = JoinSet::new();
    let before = Reading::now(plan);
    let _bar = progress.over(plan.workload.name(), STAGGERED_BY * plan.rounds as u32 + ttl);
    for round in 0..plan.rounds {
        // A connection each where the store wants it, and a beginning that no timer keeps step with.
        let (store, resource) = (store.clone(), format!("{prefix}/{round}"));
        pairs.spawn(async move {
            tokio::time::sleep(STAGGERED_BY * round as u32).await;
            silence(&*store, round, &resource, ttl).await
        });
    }
    let mut tally = Tally::default();
    let mut early = 0u32;
    while let Some(pair) = pairs.join_next().await {
        match pair.map_err(|error| BenchError::new(format!("a pair failed: {error}")))?? {
            Some(beyond) => tally.add(beyond),
            None => early += 1,
        }
    }
    let after = Reading::now(plan);
    let mut report = Report::of(plan);
    report.clients = 2;
    before.fill(&after, plan, &tally, &mut report);
    report.figure("granted_before_the_ttl", early.into());
    Ok(report)
}

/// The time from the end of the TTL, counted from the sending of the last renewal, to the next grant; `None`
/// if the grant came before that.
async fn silence<S: Store>(store: &S, way: usize, resource: &str, ttl: Duration) -> Result<Option<Duration>> {
    let mut waiter = store.open(way, Duration::from_secs(60)).await?;
    let mut holder = store.open(way + 1, ttl).await?;
    let mut held = holder.queue(resource).await?;
    holder.granted(&mut held).await?;
    let mut place = waiter.queue(resource).await?;
    let sent = Instant::now();
    holder.renew().await?;
    holder.fall_silent();
    waiter.granted(&mut place).await?;
    Ok(Instant::now().checked_duration_since(sent + ttl))
}

/// The same for a holder that is known to be dead.
pub async fn run_death<S: Store>(plan: &Plan, progress: Progress) -> Result<Report> {
    let store = S::reach(plan).await?;
    let prefix = prefix();
    let ttl = plan.ttl.unwrap_or(DEAD_TTL);
    let mut tally = Tally::default();
    let _bar = progress.open(plan.workload.name());
    let before = Reading::now(plan);
    for round in 0..plan.rounds {
        let resource = format!("{prefix}/{round}");
        let mut waiter = store.open(0, long_ttl(plan)).await?;
        let mut holder = store.open(1, ttl).await?;
        let mut held = holder.queue(&resource).await?;
        holder.granted(&mut held).await?;
        let mut place = waiter.queue(&resource).await?;
        let said = Instant::now();
        holder.died().await?;
        waiter.granted(&mut place).await?;
        tally.add(said.elapsed());
    }
    let after = Reading::now(plan);
    let mut report = Report::of(plan);
    report.clients = 2;
    before.fill(&after, plan, &tally, &mut report);
    Ok(report)
}
