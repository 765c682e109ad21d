//! What a session gives up and what it asks for are applied in the order in which the application did both. A
//! release or a cancel that is still on its way (its answer was lost, or its transmission) is not overtaken
//! by the next acquire of the same resource, which would be told that its own session holds it.

use std::time::Duration;

use tenure_client::testing::{Bench, Process};
use tenure_client::{Effect, Session};

const TTL: Duration = Duration::from_secs(10);
const DELAY: Duration = Duration::from_millis(20);

async fn open(process: &Process) -> Session {
    process.client().session().ttl(TTL).open().await.expect("opened")
}

/// The release is lost once and repeated later; the acquire behind it would arrive first.
#[tokio::test(start_paused = true)]
async fn an_acquire_does_not_overtake_a_release() {
    let bench = Bench::new();
    let process = bench.process();
    let session = open(&process).await;
    for wait in [true, false] {
        let lease = session.acquire("r").await.expect("granted");
        let token = lease.permit().expect("held").token();
        process.drop_requests(1);
        drop(lease);
        let request = session.acquire("r");
        let again = if wait { request.wait().await } else { request.await };
        let again = again.expect("the release came first");
        assert!(again.permit().expect("held").token() > token);
        process.drop_requests(1);
        again.release().await.expect("released");
    }
}

/// The same with one of several resources, and with a transfer on its way.
#[tokio::test(start_paused = true)]
async fn nor_one_of_several_nor_a_transfer() {
    let bench = Bench::new();
    let process = bench.process();
    let (session, heir) = (open(&process).await, open(&process).await);
    let lease = session.acquire("r").await.expect("granted");
    process.drop_requests(1);
    drop(lease);
    drop(session.acquire_all(["q", "r"]).wait().await.expect("the release came first"));

    let lease = session.acquire("s").await.expect("granted");
    let waiting = tokio::spawn({
        let request = heir.acquire("s").wait();
        async move { request.await.expect("handed on") }
    });
    bench.pass(DELAY).await;
    process.drop_requests(1);
    let (handed, again) = tokio::join!(lease.transfer(heir.number()), async {
        let request = session.acquire("s").wait();
        let inherited = waiting.await.expect("no panic");
        let again = tokio::spawn(async move { request.await.expect("it is queued behind the heir") });
        drop(inherited);
        again.await.expect("no panic")
    });
    handed.expect("handed on");
    drop(again);
}

/// A wait is dropped, and its cancel is lost once: the next acquire would be told that its session waits
/// already.
#[tokio::test(start_paused = true)]
async fn nor_the_cancel_of_a_dropped_acquire() {
    let bench = Bench::new();
    let (process, other) = (bench.process(), bench.process());
    let (session, rival) = (open(&process).await, open(&other).await);
    let held = rival.acquire("r").await.expect("granted");
    let mut waits = session.acquire("r").wait().into_future();
    assert!(tokio::time::timeout(DELAY, &mut waits).await.is_err(), "it is held");
    // Its cancel leaves now.
    process.drop_requests(1);
    drop(waits);
    let waiting = tokio::spawn({
        let request = session.acquire("r").wait();
        async move { request.await }
    });
    bench.pass(DELAY).await;
    drop(held);
    waiting.await.expect("no panic").expect("queued, and then granted");

    // The same for one that was granted, and nobody was there any more.
    process.delay(DELAY);
    let mut asks = session.acquire("s").into_future();
    assert!(tokio::time::timeout(DELAY, &mut asks).await.is_err(), "it takes longer");
    process.drop_requests(1);
    drop(asks);
    session.acquire("s").wait().await.expect("the cancel came first");
}

/// A lease that was dropped while a permit is out goes back later. Whoever waits, waits for that; whoever
/// does not is told no.
#[tokio::test(start_paused = true)]
async fn a_wait_stands_behind_a_release_that_waits_for_a_permit() {
    let bench = Bench::new();
    let process = bench.process();
    let session = open(&process).await;
    let lease = session.acquire("r").await.expect("granted");
    let permit = lease.permit().expect("held");
    drop(lease);
    assert!(session.acquire("r").await.expect_err("a permit is out").is_held());
    let waiting = tokio::spawn({
        let request = session.acquire("r").wait();
        async move { request.await }
    });
    bench.pass(TTL).await;
    assert!(!waiting.is_finished(), "a permit is out");
    drop(permit);
    waiting.await.expect("no panic").expect("given back, and granted again");
}

/// What was held back and never sent has done nothing, and leaves nothing behind.
#[tokio::test(start_paused = true)]
async fn what_was_held_back_was_not_applied() {
    let bench = Bench::new();
    let process = bench.process();
    let session = open(&process).await;
    let lease = session.acquire("r").await.expect("granted");
    process.cut();
    drop(lease);
    let within = Duration::from_secs(1);
    let error = session.acquire("r").answer_within(within).await.expect_err("nobody answers");
    assert_eq!(error.effect(), Effect::NotApplied, "{error}");
    let error = session.acquire("q").answer_within(within).await.expect_err("nobody answers");
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    process.heal();
    drop(session.acquire("r").wait().await.expect("released, and granted"));
}

/// A transfer that is lost once is not overtaken by an acquire that does not wait: it is told that the heir
/// has it, not its own session.
#[tokio::test(start_paused = true)]
async fn a_transfer_is_not_overtaken_either() {
    let bench = Bench::new();
    let (process, other) = (bench.process(), bench.process());
    let session = process.client().session().holder("giver").ttl(TTL).open().await.expect("opened");
    let heir = other.client().session().holder("heir").ttl(TTL).open().await.expect("opened");
    let lease = session.acquire("r").await.expect("granted");
    let to = heir.number();
    let waiting = tokio::spawn(async move { heir.acquire("r").wait().await.expect("handed on") });
    bench.pass(DELAY).await;
    process.drop_requests(1);
    let (handed, again) = tokio::join!(lease.transfer(to), async { session.acquire("r").await });
    handed.expect("handed on");
    let _inherited = waiting.await.expect("no panic");
    let error = again.expect_err("the heir has it");
    assert!(error.is_held() && error.to_string().contains("heir"), "{error}");
}

/// What waits for an answer leaves with that answer, and not whenever the session happens to be looked after
/// next.
#[tokio::test(start_paused = true)]
async fn what_was_held_back_is_sent_as_soon_as_the_release_is_answered() {
    let bench = Bench::new();
    let process = bench.process();
    process.delay(DELAY);
    let session = open(&process).await;
    let lease = session.acquire("r").await.expect("granted");
    let started = tokio::time::Instant::now();
    drop(lease);
    session.acquire("r").await.expect("the release came first");
    let took = started.elapsed();
    // In virtual time: there and back twice. The session is looked after every R/4, which is 833 ms.
    assert!(took <= DELAY * 5, "{took:?}");
}

/// An acquire that was given up before it was sent has no cancel, so nobody waits for one.
#[tokio::test(start_paused = true)]
async fn what_was_never_sent_is_not_cancelled() {
    let bench = Bench::new();
    let process = bench.process();
    let session = open(&process).await;
    let lease = session.acquire("r").await.expect("granted");
    process.cut();
    drop(lease);
    let mut held_back = session.acquire_all(["q", "r"]).wait().into_future();
    assert!(tokio::time::timeout(DELAY, &mut held_back).await.is_err(), "the release is on its way");
    drop(held_back);
    let error = session.acquire("q").answer_within(Duration::from_secs(1)).await.expect_err("nobody answers");
    assert_eq!(error.effect(), Effect::Unknown, "nothing of q was given up, so it was sent: {error}");
}
