//! Leases and fences together: the barrier on taking over, and what fences refuse becoming evidence in the
//! store.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure_client::testing::{Bench, Process};
use tenure_client::{Lease, LeaseEnd, LeaseState, NoPermit, PermitError, TakeOverError};
use tenure_core::{Command, FenceName, FenceView, HolderName, ResourceName, Scope, Token};
use tenure_fence::files::Files;
use tenure_fence::{Barrier, Fence, FenceError, FenceFuture, FenceMark, FindOut, Takeover};

const TTL: Duration = Duration::from_secs(10);
const FENCE: &str = "files:reports";

async fn hold(process: &Process, fences: &[&str]) -> Lease {
    let session = process.client().session().ttl(TTL).open().await.expect("opened");
    session.acquire("r").fences(fences).wait().await.expect("granted")
}

/// What the store shows of one fence, and how many refusals it has counted in all.
fn shown(bench: &Bench, fence: &str) -> (FenceView, u64) {
    let name: ResourceName = "r".parse().expect("a name");
    bench.store().look(|machine| {
        let fences = machine.lease(&name).expect("it was granted").fences;
        let found = fences.into_iter().find(|known| known.fence.as_str() == fence);
        (found.expect("acquires add their fences"), machine.totals().refused)
    })
}

fn armed(view: &FenceView) -> Option<u64> {
    view.armed.iter().find(|armed| armed.slot.is_none()).map(|armed| armed.token.get())
}

/// Ends the present lease behind its holder's back, as a pause would.
fn end_unseen(bench: &Bench) {
    use tenure_client::Store;
    let revoke = Command::Revoke {
        resource: "r".parse().expect("a name"),
        session: None,
        now: true,
        reason: "test".into(),
    };
    bench.store().submit(revoke, Box::new(|answer| drop(answer.expect("revoked"))));
}

#[tokio::test(start_paused = true)]
async fn a_lease_gives_no_permit_before_its_fences_know_and_the_store_shows_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let (bench, scope) = (Bench::new(), "r".parse::<Scope>().expect("a scope"));
    let process = bench.process();
    let files = Files::with_clock(folder.path(), process.clock()).expect("files");
    let lease = hold(&process, &[FENCE]).await;
    let refused = lease.permit().expect_err("not armed");
    assert_eq!(refused, PermitError::Refused(NoPermit::NotArmed { missing: 1 }));
    assert_eq!(armed(&shown(&bench, FENCE).0), None);

    let found = lease.take_over(&[(FENCE, &files)]).await.expect("the folder is there");
    assert_eq!(found, [Barrier { predecessor: None, seq: 0, cursor: None }]);
    let token = lease.permit().expect("armed").token();
    assert_eq!(files.mark(&scope).expect("mark").map(|mark| mark.token), Some(token));
    bench.pass(Duration::from_millis(100)).await;
    assert_eq!(armed(&shown(&bench, FENCE).0), Some(token.get()));
}

/// The fear: a new release names one fence and knows nothing of the storage that the old one still writes to.
#[tokio::test(start_paused = true)]
async fn a_lease_waits_for_fences_that_others_brought() {
    let folder = tempfile::tempdir().expect("a folder");
    let bench = Bench::new();
    let process = bench.process();
    let files = Files::with_clock(folder.path(), process.clock()).expect("files");
    let old = hold(&process, &["s3:archive"]).await;
    old.release().await.expect("released");

    let lease = hold(&process, &[FENCE]).await;
    lease.take_over(&[(FENCE, &files)]).await.expect("armed");
    let refused = lease.permit().expect_err("the archive has not answered");
    assert_eq!(refused, PermitError::Refused(NoPermit::NotArmed { missing: 1 }));
    let archive: FenceName = "s3:archive".parse().expect("a name");
    assert_eq!(lease.unarmed(), std::slice::from_ref(&archive));
    lease.armed(&archive);
    let _armed = lease.permit().expect("every fence of the resource knows");
}

/// A fence whose barriers are answered by the test.
struct Asked<F>(F);

impl<F: Fn() -> Result<(), FenceError> + Send + Sync> Fence for Asked<F> {
    fn barrier<'a>(&'a self, _: &'a Takeover) -> FenceFuture<'a, Barrier> {
        let answer = (self.0)().map(|()| Barrier { predecessor: None, seq: 0, cursor: None });
        Box::pin(async { answer })
    }

    fn mark<'a>(&'a self, _: &'a Scope) -> FenceFuture<'a, Option<FenceMark>> {
        unreachable!("nobody asks")
    }

    fn repair<'a>(
        &'a self,
        _: &'a Scope,
        _: Token,
        _: &'a HolderName,
        _: &'a str,
    ) -> FenceFuture<'a, FenceMark> {
        unreachable!("nobody asks")
    }
}

#[tokio::test(start_paused = true)]
async fn a_barrier_without_an_answer_is_repeated() {
    let bench = Bench::new();
    let process = bench.process();
    let lease = hold(&process, &["slow"]).await;
    let asked = AtomicU32::new(0);
    let slow = Asked(|| match asked.fetch_add(1, Ordering::SeqCst) {
        0 => Err(FenceError::Unavailable { cause: "no answer".into() }),
        1 => Err(FenceError::Unknown { find_out: FindOut::Repeat, cause: "no answer".into() }),
        _ => Ok(()),
    });
    lease.take_over(&[("slow", &slow)]).await.expect("at last");
    assert_eq!(asked.load(Ordering::SeqCst), 3);
    let _armed = lease.permit().expect("armed");
}

#[tokio::test(start_paused = true)]
async fn a_fence_counts_as_armed_only_when_its_barrier_is_up() {
    let bench = Bench::new();
    let process = bench.process();
    let lease = hold(&process, &["watched"]).await;
    let watched = Asked(|| {
        let refused = lease.permit().expect_err("the barrier is not up yet");
        assert_eq!(refused, PermitError::Refused(NoPermit::NotArmed { missing: 1 }));
        Ok(())
    });
    lease.take_over(&[("watched", &watched)]).await.expect("up");
    let _armed = lease.permit().expect("armed");
}

#[tokio::test(start_paused = true)]
async fn a_reader_takes_nothing_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let bench = Bench::new();
    let process = bench.process();
    let files = Files::with_clock(folder.path(), process.clock()).expect("files");
    let session = process.client().session().ttl(TTL).open().await.expect("opened");
    let lease = session.acquire("r").shared().await.expect("granted");
    let refused = lease.take_over(&[(FENCE, &files)]).await.expect_err("readers share one token");
    assert!(matches!(refused, TakeOverError::Lease(PermitError::Refused(NoPermit::ReadOnly))), "{refused}");
    assert_eq!(files.mark(lease.scope()).expect("readable"), None, "the fence was not asked");
}

#[tokio::test(start_paused = true)]
async fn a_barrier_refused_as_stale_ends_the_lease() {
    let folder = tempfile::tempdir().expect("a folder");
    let bench = Bench::new();
    let process = bench.process();
    let files = Files::with_clock(folder.path(), process.clock()).expect("files");
    let lease = hold(&process, &[FENCE]).await;
    let newer = Token::try_from(1_000).expect("a token");
    let other = Takeover::unchecked(lease.scope().clone(), newer, "other".parse().expect("a name"));
    files.barrier(&other).expect("somebody was faster");
    let refused = lease.take_over(&[(FENCE, &files)]).await.expect_err("a newer token is there");
    assert!(matches!(refused, TakeOverError::Fence { error: FenceError::Stale(_), .. }), "{refused}");
    assert_eq!(lease.status().state, LeaseState::Ended(LeaseEnd::Fenced { seen: newer }));
    lease.permit().expect_err("it has ended");
    bench.pass(Duration::from_millis(100)).await;
    assert_eq!(shown(&bench, FENCE).0.refused, 1);
}

/// A zombie in a loop: every refusal is counted, and they cost the store a command a second.
#[tokio::test(start_paused = true)]
async fn refusals_are_counted_and_reported_together() {
    let folder = tempfile::tempdir().expect("a folder");
    let bench = Bench::new();
    let (one, other) = (bench.process(), bench.process());
    let files = Files::with_clock(folder.path(), one.clock()).expect("files");
    let same_files = Files::with_clock(folder.path(), other.clock()).expect("files");
    let zombie = hold(&one, &[FENCE]).await;
    zombie.take_over(&[(FENCE, &files)]).await.expect("armed");
    // Taken before the pause; it knows nothing of what comes.
    let permit = zombie.permit().expect("armed");
    end_unseen(&bench);
    let successor = hold(&other, &[FENCE]).await;
    successor.take_over(&[(FENCE, &same_files)]).await.expect("armed");
    let newest = successor.permit().expect("armed").token();

    let fence: FenceName = FENCE.parse().expect("a name");
    let revision = |bench: &Bench| bench.store().look(|machine| machine.revision().get());
    bench.pass(Duration::from_millis(100)).await;
    let before = revision(&bench);
    for write in 0..300 {
        let refused = files.publish(&*permit, |_, _| Ok(())).expect_err("stale");
        assert!(refused.stale().is_some(), "{refused}");
        zombie.report_refused(&fence, &refused);
        if write % 100 == 99 {
            bench.pass(Duration::from_secs(1)).await;
        }
    }
    bench.pass(Duration::from_secs(3)).await;
    let (record, total) = shown(&bench, FENCE);
    assert_eq!((record.refused, total), (300, 300), "every one is counted");
    assert_eq!(armed(&record), Some(newest.get()));
    let reports = revision(&bench) - before;
    assert!(reports <= 8, "{reports} commands for 300 refusals in four seconds");
}

/// The pause behind such a zombie is reported as well: the session's logic notices it, the store counts it.
#[tokio::test(start_paused = true)]
async fn a_pause_is_reported() {
    let bench = Bench::new();
    let process = bench.process();
    let lease = hold(&process, &[]).await;
    let pauses = |bench: &Bench| bench.store().look(|machine| machine.totals().pauses);
    assert_eq!(pauses(&bench), 0);
    process.freeze(TTL / 2).await;
    bench.pass(Duration::from_secs(1)).await;
    assert_eq!(pauses(&bench), 1);
    let _held = lease.permit().expect("it was short enough");
}
