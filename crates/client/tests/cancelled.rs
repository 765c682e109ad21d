//! Cancelling leaves nothing behind: every public future of the client is dropped at each of its await
//! points, and then the store is asked what is left. There must be no session, no waiter, no lease, and
//! nothing that a session had published.
//!
//! In virtual time over a slow link here; the same over real connections, and with the node's own count of
//! watches, is in `network.rs`.

mod common;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use common::poll_times;
use tenure_client::testing::{Bench, Process};
use tenure_client::{Candidate, Leader, Leadership, Lease, Session};
use tenure_core::{HolderName, RegisterKey, ResourceName, Revision, Scope, SessionNumber, Token};
use tenure_fence::{Barrier, Fence, FenceFuture, FenceMark, Takeover};

const TTL: Duration = Duration::from_secs(10);
/// One way over the link. Whatever asks the store is under way for twice this.
const DELAY: Duration = Duration::from_millis(20);
/// Longer than anything here takes.
const LONG: Duration = Duration::from_millis(500);

async fn hold(session: &Session) -> Lease {
    session.acquire("r").await.expect("granted")
}

/// Drops `step` at each of its await points, and checks that the store has nothing left of it.
async fn cancelled_anywhere<F, T>(what: &str, step: impl Fn(Arc<Process>, Session) -> F)
where
    F: Future<Output = T>,
{
    let r: ResourceName = "r".parse().expect("a name");
    let value = RegisterKey::try_from(Leader::value_key(&r).as_bytes()).expect("a key");
    for times in 0.. {
        let bench = Bench::new();
        let (process, other) = (Arc::new(bench.process()), bench.process());
        let standing = other.client().session().ttl(TTL).open().await.expect("opened");
        let session = process.client().session().ttl(TTL).open().await.expect("opened");
        let held = standing.acquire("held").await.expect("granted");
        let slot = standing.semaphore("full", 1).acquire().await.expect("granted");
        process.delay(DELAY);
        let done = poll_times(step(process.clone(), session), times).await;
        let finished = done.is_some();
        drop(done);
        bench.pass(TTL / 2).await;
        let (counts, of_r, published) = bench.store().look(|machine| {
            (
                machine.counts(),
                machine.lease(&r).map_or(0, |lease| lease.holders.len()),
                machine.register(&value).value,
            )
        });
        let left = (counts.sessions, counts.waiters, of_r, published);
        assert_eq!(left, (1, 0, 0, None), "{what} dropped after {times} polls");
        drop((held.permit().expect("what others have is not touched"), slot.permit().expect("nor this")));
        if finished {
            assert!(times > 1, "{what} has await points to be dropped at");
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn sessions_and_acquires() {
    cancelled_anywhere("open", |process, _| async move {
        process.client().session().ttl(TTL).open().await.expect("opened")
    })
    .await;
    cancelled_anywhere("close", |_, session| async move { session.close().await }).await;
    cancelled_anywhere("died", |_, session| async move {
        drop(hold(&session).await);
        session.died().await;
    })
    .await;
    cancelled_anywhere("ended", |_, session| async move {
        assert!(tokio::time::timeout(LONG, session.ended()).await.is_err(), "nobody ended it");
    })
    .await;
    cancelled_anywhere("acquire", |_, session| async move { hold(&session).await }).await;
    cancelled_anywhere("acquire that waits", |_, session| async move {
        drop(session.acquire("held").wait_for(LONG).await.expect_err("held"))
    })
    .await;
    cancelled_anywhere("acquire that waits for ever", |_, session| async move {
        assert!(
            tokio::time::timeout(LONG, session.acquire("held").wait().into_future()).await.is_err(),
            "held"
        );
    })
    .await;
    cancelled_anywhere("acquire of several", |_, session| async move {
        drop(session.acquire_all(["r", "s"]).await.expect("granted"));
    })
    .await;
    cancelled_anywhere("acquire of several that waits", |_, session| async move {
        drop(session.acquire_all(["r", "held"]).wait_for(LONG).await.expect_err("one is held"));
    })
    .await;
    cancelled_anywhere("semaphore", |_, session| async move {
        drop(session.semaphore("r", 2).acquire().await.expect("granted"));
    })
    .await;
    cancelled_anywhere("semaphore that waits", |_, session| async move {
        drop(session.semaphore("full", 1).acquire().wait_for(LONG).await.expect_err("full"));
    })
    .await;
    cancelled_anywhere("read", |_, session| async move {
        drop(session.rw_lease("r").read().await.expect("granted"));
    })
    .await;
    cancelled_anywhere("write", |_, session| async move {
        drop(session.rw_lease("r").write().await.expect("granted"));
    })
    .await;
    cancelled_anywhere("read that waits", |_, session| async move {
        drop(session.rw_lease("held").read().wait_for(LONG).await.expect_err("written by another"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn giving_back() {
    cancelled_anywhere("release", |_, session| async move {
        hold(&session).await.release().await.expect("released")
    })
    .await;
    cancelled_anywhere("drain", |_, session| async move {
        hold(&session).await.drain(LONG).await.expect("drained")
    })
    .await;
    cancelled_anywhere("drain with a permit out", |_, session| async move {
        let lease = hold(&session).await;
        let _permit = lease.permit().expect("held");
        drop(lease.drain(LONG).await.expect_err("a permit is out"));
    })
    .await;
    cancelled_anywhere("transfer", |_, session| async move {
        // The first session that the store opened is the one that stands here and is not in the queue.
        drop(hold(&session).await.transfer(SessionNumber::new(1)).await.expect_err("it is not queued"));
    })
    .await;
    cancelled_anywhere("transfer to a queued one", |process, session| async move {
        let heir = process.client().session().ttl(TTL).open().await.expect("opened");
        let lease = hold(&session).await;
        let hand_on = async {
            tokio::time::sleep(DELAY * 3).await;
            lease.transfer(heir.number()).await.expect("handed on");
        };
        let (inherited, ()) = tokio::join!(heir.acquire("r").wait_for(LONG).into_future(), hand_on);
        drop(inherited.expect("it is queued"));
    })
    .await;
    cancelled_anywhere("hand over", |_, session| async move {
        let successor = hold(&session).await.hand_over(LONG, LONG).await.expect("drained");
        assert_eq!(successor, None);
    })
    .await;
    cancelled_anywhere("hand over to a queued one", |process, session| async move {
        let heir = process.client().session().ttl(TTL).open().await.expect("opened");
        let lease = hold(&session).await;
        let (_, inherited) =
            tokio::join!(lease.hand_over(LONG, LONG), heir.acquire("r").wait_for(LONG).into_future());
        drop(inherited.expect("it is queued"));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn registers_and_watches() {
    cancelled_anywhere("get", |_, session| async move { session.registers().get("k").await.expect("read") })
        .await;
    cancelled_anywhere("get by nobody", |process, _| async move {
        process.client().registers().get("k").await.expect("read")
    })
    .await;
    cancelled_anywhere("put, put_if, delete", |_, session| async move {
        let registers = session.registers();
        registers.put("k", "v").await.expect("written");
        assert!(!registers.put_if("k", "w", Revision::new(0)).await.expect("compared"));
        registers.delete("k").await.expect("removed");
    })
    .await;
    cancelled_anywhere("guarded put, put_all, delete", |_, session| async move {
        let lease = hold(&session).await;
        let permit = lease.permit().expect("held");
        let guarded = || session.registers().guarded(&permit);
        guarded().put("r/a", "v").await.expect("written");
        guarded().put_all([("r/b", "v"), ("r/c", "v")]).await.expect("written");
        guarded().delete("r/a").await.expect("removed");
        guarded().ephemeral().put("r/leader", "gone with the session").await.expect("written");
    })
    .await;
    cancelled_anywhere("watch", |process, session| async move {
        let mut changes = process.client().watch("r");
        changes.next().await.expect("begun").expect("begun");
        let lease = hold(&session).await;
        changes.next().await.expect("told").expect("granted");
        lease
    })
    .await;
    cancelled_anywhere("changes of a lease, and its stop signal", |_, session| async move {
        let lease = hold(&session).await;
        let (mut changes, mut stop) = (lease.changes(), lease.stop_signal());
        assert!(tokio::time::timeout(LONG, changes.next()).await.is_err(), "nothing changes");
        assert!(tokio::time::timeout(LONG, stop.stopped()).await.is_err(), "nobody says so");
    })
    .await;
    cancelled_anywhere("sequencer", |_, session| async move {
        let lease = hold(&session).await;
        drop(lease.sequencer().await.expect_err("an embedded store signs nothing"));
    })
    .await;
}

/// Leads for a moment, then resigns.
struct Briefly;

impl Candidate for Briefly {
    async fn prepare(&self) {
        tokio::time::sleep(DELAY).await;
    }

    async fn warm_up(&self) {
        tokio::time::sleep(DELAY * 3).await;
    }

    async fn lead(&self, leadership: &Leadership) {
        leadership.publish("again").await.expect("published");
        tokio::time::sleep(DELAY).await;
    }
}

#[tokio::test(start_paused = true)]
async fn elections() {
    cancelled_anywhere("campaign", |process, _| async move {
        drop(process.client().election("r").value("v").campaign().await.expect("elected"));
    })
    .await;
    cancelled_anywhere("campaign in the queue", |process, _| async move {
        let election = process.client().election("held").value("v");
        assert!(tokio::time::timeout(LONG, election.campaign()).await.is_err(), "another leads");
    })
    .await;
    cancelled_anywhere("publish, resign", |process, _| async move {
        let leadership = process.client().election("r").campaign().await.expect("elected");
        leadership.publish("v").await.expect("published");
        leadership.resign().await.expect("resigned");
    })
    .await;
    cancelled_anywhere("run", |process, _| async move {
        process.client().election("r").value("v").run(&Briefly, tokio::time::sleep(LONG)).await;
    })
    .await;
    cancelled_anywhere("observe", |process, session| async move {
        let mut observer = process.client().election("r").observe().expect("a name");
        assert_eq!(observer.next().await.expect("seen"), Leader::None);
        let lease = hold(&session).await;
        assert!(matches!(observer.next().await.expect("seen"), Leader::Elected { .. }));
        lease
    })
    .await;
}

/// A fence that takes its time.
struct Slow;

impl Fence for Slow {
    fn barrier<'a>(&'a self, _takeover: &'a Takeover) -> FenceFuture<'a, Barrier> {
        Box::pin(async {
            tokio::time::sleep(DELAY).await;
            Ok(Barrier { predecessor: None, seq: 0, cursor: None })
        })
    }

    fn mark<'a>(&'a self, _scope: &'a Scope) -> FenceFuture<'a, Option<FenceMark>> {
        unreachable!("nobody asks for it")
    }

    fn repair<'a>(
        &'a self,
        _: &'a Scope,
        _: Token,
        _: &'a HolderName,
        _: &'a str,
    ) -> FenceFuture<'a, FenceMark> {
        unreachable!("nobody repairs it")
    }
}

#[tokio::test(start_paused = true)]
async fn taking_over() {
    cancelled_anywhere("take over", |_, session| async move {
        let lease = session.acquire("r").fences(["slow:a", "slow:b"]).await.expect("granted");
        lease.take_over(&[("slow:a", &Slow), ("slow:b", &Slow)]).await.expect("taken over");
        drop(lease.permit().expect("armed"));
    })
    .await;
}
