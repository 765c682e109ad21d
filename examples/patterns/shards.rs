//! Sharding: one session for each worker, one lease for each shard, one renewal for all of them. A worker
//! takes no more than its share, and takes over what other workers leave.

use tenure_client::{Lease, Session};

use super::BoxError;

/// The name of a shard.
pub fn name(shard: usize) -> String {
    format!("ingest/shard-{shard:02}")
}

/// Takes free shards until it has `share` of them. Begins where its number says, so that workers which start
/// together do not all ask for the same one first.
pub async fn take_share(
    worker: &Session,
    shards: usize,
    share: usize,
    mut owned: Vec<Lease>,
) -> Result<Vec<Lease>, BoxError> {
    let begin = usize::try_from(worker.number().get()).unwrap_or(0) * share;
    for offset in 0..shards {
        if owned.len() >= share {
            break;
        }
        match worker.acquire(name((begin + offset) % shards)).await {
            Ok(lease) => owned.push(lease),
            // Another's, or our own already.
            Err(held) if held.is_held() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use tenure_client::testing::Bench;

    const SHARDS: usize = 12;

    #[tokio::test(start_paused = true)]
    async fn every_shard_has_one_owner_and_a_dead_workers_shards_find_another() {
        let bench = Bench::new();
        let workers = [bench.process(), bench.process(), bench.process()];
        let mut owned = Vec::new();
        for worker in &workers {
            let session = worker.client().session().open().await.expect("a session");
            let leases = take_share(&session, SHARDS, 4, Vec::new()).await.expect("it is answered");
            owned.push((session, leases));
        }
        let names = |owned: &[(Session, Vec<Lease>)]| -> Vec<String> {
            owned.iter().flat_map(|(_, leases)| leases).map(|lease| lease.resource().to_string()).collect()
        };
        let all = names(&owned);
        assert_eq!(all.len(), SHARDS);
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), SHARDS, "one shard, two owners: {all:?}");

        let (dead, _) = owned.remove(0);
        dead.died().await;
        let mut next = Vec::new();
        for (session, leases) in owned {
            let leases = take_share(&session, SHARDS, 6, leases).await.expect("it is answered");
            next.push((session, leases));
        }
        assert_eq!(names(&next).iter().collect::<BTreeSet<_>>().len(), SHARDS, "a shard without an owner");
    }
}
