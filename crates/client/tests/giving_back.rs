//! Giving back while the store is gone. The lease ends at its deadline whatever the store says, so nobody
//! waits longer than that for an answer; and what is told then is that nobody knows.

use std::time::Duration;

use tenure_client::testing::{Bench, Process};
use tenure_client::{DrainError, Effect, Lease, LeaseEnd, Session, TransferError};
use tokio::time::Instant;

const TTL: Duration = Duration::from_secs(10);
/// What a broken build may take to say so, in virtual time.
const LONG: Duration = Duration::from_secs(600);

async fn held(process: &Process) -> (Session, Lease) {
    let session = process.client().session().ttl(TTL).open().await.expect("opened");
    let lease = session.acquire("r").await.expect("granted");
    (session, lease)
}

/// Runs `step` on a lease whose store has just gone, and checks that it is done by the lease's deadline.
async fn by_the_deadline<T>(what: &str, step: impl AsyncFnOnce(Lease) -> T) -> T {
    let bench = Bench::new();
    let process = bench.process();
    let (_session, lease) = held(&process).await;
    process.cut();
    let (left, started) = (lease.remaining(), Instant::now());
    let done = tokio::time::timeout(LONG, step(lease)).await;
    let done = done.unwrap_or_else(|_| panic!("{what} is still pending after {LONG:?}"));
    let took = started.elapsed();
    // Timers are as fine as a millisecond.
    assert!(took <= left + Duration::from_millis(2), "{what} took {took:?}, and {left:?} were left");
    done
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_past_the_deadline_for_a_store_that_is_gone() {
    let error = by_the_deadline("release", async |lease: Lease| lease.release().await).await;
    assert_eq!(error.expect_err("the store is gone").effect(), Effect::Unknown);

    let error = by_the_deadline("drain", async |lease: Lease| lease.drain(LONG).await).await;
    assert_eq!(error.expect_err("the store is gone").effect(), Effect::Unknown);

    let to = tenure_core::SessionNumber::new(1);
    let error = by_the_deadline("transfer", async |lease: Lease| lease.transfer(to).await).await;
    let error = error.expect_err("the store is gone");
    assert_eq!(error.effect(), Effect::Unknown);
    let TransferError::Refused { lease, .. } = error else { panic!("{error}") };
    assert!(lease.permit().is_err(), "it may be another's");

    let error = by_the_deadline("hand_over", async |lease: Lease| lease.hand_over(LONG, LONG).await).await;
    assert_eq!(error.expect_err("the store is gone").effect(), Effect::Unknown);
}

#[tokio::test(start_paused = true)]
async fn a_permit_that_is_out_keeps_nobody_past_the_deadline() {
    let error = by_the_deadline("release", async |lease: Lease| {
        let permit = lease.permit().expect("held");
        let ended = lease.release().await;
        drop(permit);
        ended
    })
    .await;
    // It is sent as soon as the permit is dropped.
    assert_eq!(error.expect_err("a permit was out").effect(), Effect::Unknown);

    let error = by_the_deadline("transfer", async |lease: Lease| {
        let permit = lease.permit().expect("held");
        let ended = lease.transfer(tenure_core::SessionNumber::new(1)).await;
        drop(permit);
        ended
    })
    .await;
    // It is called off: nothing was sent and nothing will be.
    assert_eq!(error.expect_err("a permit was out").effect(), Effect::NotApplied);
}

#[tokio::test(start_paused = true)]
async fn the_callers_own_limits_hold_when_the_store_is_gone() {
    let limit = Duration::from_secs(2);
    for what in ["drain", "hand_over"] {
        let bench = Bench::new();
        let process = bench.process();
        let (_session, lease) = held(&process).await;
        process.cut();
        let started = Instant::now();
        let ended = async {
            match what {
                "drain" => lease.drain(limit).await.map(drop),
                _ => lease.hand_over(limit, LONG).await.map(drop),
            }
        };
        let error = tokio::time::timeout(LONG, ended).await.expect(what).expect_err("the store is gone");
        assert_eq!(error.effect(), Effect::Unknown, "{what}: {error}");
        assert!(matches!(error, DrainError::Failed(_)), "{error}");
        let took = started.elapsed();
        assert!(took <= limit + Duration::from_millis(2), "{what} took {took:?}");
    }
}

/// After the deadline there is nothing left to wait for; but a store that is there may still say how the
/// lease ended.
#[tokio::test(start_paused = true)]
async fn a_release_after_the_deadline_learns_how_the_lease_ended_or_returns_soon() {
    let bench = Bench::new();
    let process = bench.process();
    let (_session, lease) = held(&process).await;
    process.delay(Duration::from_millis(20));
    process.freeze(TTL * 2).await;
    assert!(matches!(lease.release().await, Ok(LeaseEnd::Expired { .. } | LeaseEnd::Released)));

    let (_session, lease) = held(&process).await;
    process.cut();
    bench.pass(TTL * 2).await;
    let started = Instant::now();
    let error = tokio::time::timeout(LONG, lease.release()).await.expect("it returns").expect_err("gone");
    assert_eq!(error.effect(), Effect::Unknown);
    assert!(started.elapsed() < TTL / 10, "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn closing_returns_at_the_deadline_too() {
    let bench = Bench::new();
    let process = bench.process();
    let (session, lease) = held(&process).await;
    process.cut();
    let (left, started) = (session.remaining(), Instant::now());
    drop(lease);
    tokio::time::timeout(LONG, session.close()).await.expect("it returns");
    assert!(started.elapsed() <= left + TTL / 10, "{:?} and {left:?} were left", started.elapsed());
}

/// Nobody has the lease any more when its transfer is refused: then it goes to the store, and so to the next
/// in the queue.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_dropped_while_its_transfer_was_refused_goes_to_the_store() {
    let bench = Bench::new();
    let (process, other) = (bench.process(), bench.process());
    let (_session, lease) = held(&process).await;
    let rival = other.client().session().ttl(TTL).open().await.expect("opened");
    process.delay(Duration::from_millis(20));
    let nobody = tenure_core::SessionNumber::new(1 << 40);
    let mut handing = Box::pin(lease.transfer(nobody));
    let refused = tokio::time::timeout(Duration::from_millis(10), &mut handing).await;
    assert!(refused.is_err(), "the answer takes longer: {refused:?}");
    drop(handing);
    let next = tokio::time::timeout(LONG, rival.acquire("r").wait()).await.expect("the lease stays nobody's");
    next.expect("given back, and granted");
}
