//! The workloads, each written once for any store.

mod crash;
mod cycles;
mod expiry;
mod fleets;
mod handover;
mod renewals;
mod watchers;

use std::time::Duration;

use crate::error::BenchError;
use crate::plan::{Plan, TargetKind, Workload};
use crate::progress::Progress;
use crate::report::Report;
use crate::target::{Etcd, Redis, Store, Tenure, ZooKeeper, draw};

/// Carries out a plan, on a runtime of its own.
///
/// One thread drives: on a machine that also runs the servers, a second one would only take their place.
pub fn run(plan: &Plan, progress: Progress) -> Result<Report, BenchError> {
    if plan.endpoints.is_empty() {
        return Err(BenchError::new("no endpoint is named"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| BenchError::new(format!("no runtime: {error}")))?;
    let report = runtime.block_on(async {
        match plan.target {
            TargetKind::Tenure => on::<Tenure>(plan, progress).await,
            TargetKind::Etcd => on::<Etcd>(plan, progress).await,
            TargetKind::ZooKeeper => on::<ZooKeeper>(plan, progress).await,
            TargetKind::Redis => on::<Redis>(plan, progress).await,
        }
    });
    // Connections with something half said are not worth waiting for.
    runtime.shutdown_timeout(Duration::from_millis(100));
    report
}

async fn on<S: Store>(plan: &Plan, progress: Progress) -> Result<Report, BenchError> {
    match plan.workload {
        Workload::Cycles => cycles::run::<S>(plan, progress, cycles::Event::None).await,
        Workload::LeaderKilled => cycles::run::<S>(plan, progress, cycles::Event::Kill).await,
        Workload::StepDown => cycles::run::<S>(plan, progress, cycles::Event::StepDown).await,
        Workload::Renewals => renewals::run::<S>(plan, progress).await,
        Workload::Handover => handover::run::<S>(plan, progress).await,
        Workload::HandoverFresh => handover::run_fresh::<S>(plan, progress).await,
        Workload::Crash => crash::run::<S>(plan, progress).await,
        Workload::Death => crash::run_death::<S>(plan, progress).await,
        Workload::Expiry => expiry::run::<S>(plan, progress).await,
        Workload::Watchers => watchers::run::<S>(plan, progress).await,
    }
}

/// The plans of a sweep: the same workload at growing sizes, up to the plan's own.
pub fn sweep(plan: &Plan) -> Vec<Plan> {
    let sized = |set: &dyn Fn(&mut Plan, usize), sizes: &[usize], most: usize| {
        let sizes = sizes.iter().copied().filter(|size| *size <= most);
        sizes
            .map(|size| {
                let mut plan = plan.clone();
                set(&mut plan, size);
                plan
            })
            .collect()
    };
    match plan.workload {
        Workload::Renewals | Workload::Expiry => {
            sized(&|plan, size| plan.sessions = size, &[1_000, 10_000, 100_000, 1_000_000], plan.sessions)
        }
        Workload::Handover => {
            sized(&|plan, size| plan.waiters = size, &[1, 10, 100, 1_000, 10_000], plan.waiters)
        }
        Workload::HandoverFresh | Workload::Crash | Workload::Death => vec![plan.clone()],
        Workload::Watchers => sized(&|plan, size| plan.clients = size, &[1, 10, 100, 1_000], plan.clients),
        Workload::Cycles | Workload::LeaderKilled | Workload::StepDown => {
            sized(&|plan, size| plan.clients = size, &[1, 4, 16, 64, 256, 1_024], plan.clients)
        }
    }
}

/// What the names of a run's resources begin with: nobody else's.
fn prefix() -> String {
    format!("bench/{:08x}", draw() as u32)
}

/// The TTL of sessions that only have to outlive the run.
fn long_ttl(plan: &Plan) -> Duration {
    plan.ttl.unwrap_or(Duration::from_secs(60))
}
