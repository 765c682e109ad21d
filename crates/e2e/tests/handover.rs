//! Planned handover with the library, on three nodes: how long is nobody able to act?

use std::time::{Duration, Instant};

use tenure_client::{Lease, Session};
use tenure_e2e::{Cluster, alone, client, percentile, scale};

/// A holder that takes permits for as long as it is not asked to stop; answers when its last one was given back.
async fn work_until(lease: &Lease, asked: Instant) -> Instant {
    loop {
        let permit = lease.permit().expect("a healthy lease gives permits");
        drop(permit);
        let now = Instant::now();
        if now >= asked {
            return now;
        }
        tokio::task::yield_now().await;
    }
}

/// The old holder's last permit to the new holder's first one, with the new one waiting in the queue: what a
/// deploy costs.
#[test]
fn a_planned_handover_costs_milliseconds() {
    let _turn = alone();
    let cluster = Cluster::start("handover", 3);
    cluster.leader();
    let rounds = if scale().full { 50 } else { 10 };
    let endpoints = cluster.endpoints();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let mut gaps = runtime.expect("a runtime").block_on(async {
        let clients = [client(&endpoints), client(&endpoints)];
        let mut sessions: Vec<Session> = Vec::new();
        for client in &clients {
            sessions.push(client.session().ttl(Duration::from_secs(10)).open().await.expect("a session"));
        }
        let mut lease = sessions[0].acquire("deploy").await.expect("nobody has it");
        let mut gaps = Vec::new();
        for round in 0..rounds {
            let next = &sessions[(round + 1) % 2];
            let successor = next.acquire("deploy").wait();
            let successor = tokio::spawn(async move {
                let lease = successor.await.expect("its turn comes");
                let permit = lease.permit().expect("a waited grant is usable at once");
                let first = Instant::now();
                drop(permit);
                (lease, first)
            });
            // Long enough that the successor waits in the queue, and that the next renewal is not always just
            // over.
            let asked = Instant::now() + Duration::from_millis(200 + 37 * (round as u64 % 7));
            let last = work_until(&lease, asked).await;
            lease.release().await.expect("it is given back");
            let (taken, first) = successor.await.expect("the successor did not panic");
            gaps.push(first.saturating_duration_since(last));
            lease = taken;
        }
        gaps
    });
    let (middle, most) = (percentile(&mut gaps, 0.5), percentile(&mut gaps, 0.99));
    eprintln!("planned handover on three nodes, {rounds} times: p50 {middle:?}, p99 {most:?}");
    let limit = Duration::from_millis(if scale().full { 50 } else { 5_000 });
    assert!(most < limit, "the gap's p99 is {most:?}");
}
