//! Many sessions, each with one lease, spread over streams: set up for the workloads that need them.

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::plan::Plan;
use crate::progress::Progress;
use crate::target::{Ask, Fleet, Result, Store};

/// Streams that are set up at once.
const AT_ONCE: usize = 16;

/// Opens the plan's sessions and renews each once.
pub async fn open<S: Store>(
    store: &S,
    plan: &Plan,
    ttl: Duration,
    prefix: &str,
    progress: Progress,
) -> Result<Vec<S::Fleet>> {
    let _bar = progress.open(&format!("opening {} sessions", plan.sessions));
    let streams = plan.streams.clamp(1, plan.sessions.max(1));
    let asks = (0..streams).map(|way| {
        let first = way * plan.sessions / streams;
        let count = (way + 1) * plan.sessions / streams - first;
        Ask { way, first, count, ttl, prefix: prefix.to_owned(), leases: true }
    });
    let made = stream::iter(asks).map(|ask| async move { store.fleet(&ask).await }).buffered(AT_ONCE);
    made.try_collect().await
}

/// Renews everything once, all streams at the same time.
pub async fn renew<F: Fleet>(fleets: &mut [F]) -> Result<u64> {
    let renewed = futures_util::future::try_join_all(fleets.iter_mut().map(Fleet::renew_all)).await?;
    Ok(renewed.into_iter().sum())
}
