//! From sending a release to the moment at which the next waiter knows that it holds the lease.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::{long_ttl, prefix};
use crate::error::BenchError;
use crate::meter::{Reading, Tally};
use crate::plan::Plan;
use crate::progress::Progress;
use crate::report::Report;
use crate::target::{Result, Session, Store};

/// How long each holds: so long that whoever stands behind ten others has stood there for a while.
const HELD_FOR: Duration = Duration::from_millis(20);
/// Up to so long after it has queued, a fresh waiter is granted.
const FRESH_MS: usize = 50;

/// What all in one queue share.
struct Relay {
    resource: String,
    released: Mutex<Option<Instant>>,
    seen: Mutex<(Tally, usize)>,
    rounds: usize,
}

pub async fn run<S: Store>(plan: &Plan, progress: Progress) -> Result<Report> {
    let store = S::reach(plan).await?;
    let relay = Arc::new(Relay {
        resource: prefix(),
        released: Mutex::default(),
        seen: Mutex::default(),
        rounds: plan.rounds,
    });
    let mut runners = JoinSet::new();
    {
        let _bar = progress.open(&format!("queueing {} waiters", plan.waiters));
        // The holder, then the waiters: each waits in the queue before the next one comes.
        for number in 0..=plan.waiters {
            let mut session = store.open(number, long_ttl(plan)).await?;
            let place = session.queue(&relay.resource).await?;
            runners.spawn(relay.clone().runner(session, place));
        }
    }
    let _bar = progress.over(plan.workload.name(), HELD_FOR * plan.rounds as u32);
    let before = Reading::now(plan);
    // Whoever makes the last handover ends the race; the others still wait in the queue.
    while let Some(runner) = runners.join_next().await {
        match runner {
            Ok(Ok(true)) => break,
            Ok(Ok(false)) => {}
            Ok(Err(error)) => return Err(error),
            Err(error) => return Err(BenchError::new(format!("a waiter failed: {error}"))),
        }
    }
    let after = Reading::now(plan);
    runners.abort_all();
    let mut report = Report::of(plan);
    report.waiters = Some(plan.waiters);
    report.clients = plan.waiters + 1;
    before.fill(&after, plan, &relay.seen.lock().expect("no holder of this lock panics").0, &mut report);
    Ok(report)
}

impl Relay {
    /// One in the queue: granted, holds, releases, queues again. True for the one that made the last round.
    async fn runner<S: Session>(self: Arc<Self>, mut session: S, mut place: S::Place) -> Result<bool> {
        loop {
            session.granted(&mut place).await?;
            let granted = Instant::now();
            if let Some(released) = self.released.lock().expect("no holder of this lock panics").take() {
                let mut seen = self.seen.lock().expect("no holder of this lock panics");
                // The first round finds caches cold and connections new.
                if seen.1 > 0 {
                    seen.0.add(granted - released);
                }
                seen.1 += 1;
                if seen.1 > self.rounds {
                    return Ok(true);
                }
            }
            tokio::time::sleep(HELD_FOR).await;
            *self.released.lock().expect("no holder of this lock panics") = Some(Instant::now());
            session.release(place).await?;
            place = session.queue(&self.resource).await?;
        }
    }
}

/// One holder, one waiter that queued a few milliseconds ago.
pub async fn run_fresh<S: Store>(plan: &Plan, progress: Progress) -> Result<Report> {
    let store = S::reach(plan).await?;
    let resource = prefix();
    let mut holder = store.open(0, long_ttl(plan)).await?;
    let mut waiter = store.open(1, long_ttl(plan)).await?;
    let mut held = holder.queue(&resource).await?;
    holder.granted(&mut held).await?;
    let mut tally = Tally::default();
    let _bar =
        progress.over(plan.workload.name(), Duration::from_millis((plan.rounds * FRESH_MS / 2) as u64));
    let before = Reading::now(plan);
    for round in 0..=plan.rounds {
        let mut place = waiter.queue(&resource).await?;
        let granted = async {
            waiter.granted(&mut place).await?;
            Ok::<_, BenchError>(Instant::now())
        };
        let released = async {
            // All delays up to the longest, in an order that no timer of the store keeps step with.
            tokio::time::sleep(Duration::from_millis((round * 7 % FRESH_MS) as u64)).await;
            let sent = Instant::now();
            holder.release(held).await?;
            Ok::<_, BenchError>(sent)
        };
        let (granted, released) = futures_util::future::try_join(granted, released).await?;
        if round > 0 {
            tally.add(granted.saturating_duration_since(released));
        }
        held = place;
        std::mem::swap(&mut holder, &mut waiter);
    }
    let after = Reading::now(plan);
    let mut report = Report::of(plan);
    report.waiters = Some(1);
    report.clients = 2;
    before.fill(&after, plan, &tally, &mut report);
    Ok(report)
}
