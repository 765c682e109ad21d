//! One client acquires and releases resources while others watch: how long from the request until each
//! watcher is notified.

use std::time::{Duration, Instant};

use super::{long_ttl, prefix};
use crate::error::BenchError;
use crate::meter::{Reading, Tally};
use crate::plan::Plan;
use crate::progress::Progress;
use crate::report::Report;
use crate::target::{Result, Session, Store};

/// How long one watcher may take to be notified.
const RECEIVED_WITHIN: Duration = Duration::from_secs(10);

pub async fn run<S: Store>(plan: &Plan, progress: Progress) -> Result<Report> {
    let store = S::reach(plan).await?;
    let prefix = prefix();
    let mut watchers = Vec::with_capacity(plan.clients);
    for number in 0..plan.clients {
        watchers.push(store.watch(number, &prefix).await?);
    }
    let mut session = store.open(0, long_ttl(plan)).await?;
    let mut tally = Tally::default();
    let _bar = progress.open(plan.workload.name());
    let before = Reading::now(plan);
    for round in 0..=plan.rounds {
        let resource = format!("{prefix}/{round}");
        let asked = Instant::now();
        let mut place = session.queue(&resource).await?;
        session.granted(&mut place).await?;
        for watcher in &mut watchers {
            let received = tokio::time::timeout(RECEIVED_WITHIN, watcher.recv()).await.ok().flatten();
            if received.as_deref() != Some(resource.as_str()) {
                return Err(BenchError::new(format!(
                    "a watcher received {received:?} instead of {resource}"
                )));
            }
            if round > 0 {
                tally.add(asked.elapsed());
            }
        }
        session.release(place).await?;
    }
    let after = Reading::now(plan);
    let mut report = Report::of(plan);
    before.fill(&after, plan, &tally, &mut report);
    Ok(report)
}
