//! What every fence must do, whatever it guards. One function per fear; every adapter runs all of them on
//! the real storage. The cases know only the [`Subject`] trait, so a storage outside this crate can run
//! them too.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_clock::{Clock, SystemClock};
use tenure_core::{Generation, Permit, PermitCount, Scope, Token};
use tenure_fence::{Barrier, Cursor, FenceError, FenceMark, Stale, Takeover};
use tokio::sync::oneshot;

/// A storage under test, seen as named values under a scope.
pub trait Subject: Send + Sync + 'static {
    fn barrier(&self, takeover: &Takeover) -> impl Future<Output = Result<Barrier, FenceError>> + Send;
    fn mark(&self, scope: &Scope) -> impl Future<Output = Result<Option<FenceMark>, FenceError>> + Send;
    /// Lowers a mark, for the reason [`REASON`].
    fn repair(&self, scope: &Scope, to: Token) -> impl Future<Output = Result<FenceMark, FenceError>> + Send;
    /// What was written down about repairs of a scope, as text.
    fn audit(&self, scope: &Scope) -> impl Future<Output = String> + Send;
    /// A guarded write of one value.
    fn put(
        &self,
        permit: &Permit,
        key: &str,
        value: &str,
    ) -> impl Future<Output = Result<(), FenceError>> + Send;
    /// A guarded delete.
    fn delete(&self, permit: &Permit, key: &str) -> impl Future<Output = Result<(), FenceError>> + Send;
    /// A guarded write that moves the cursor in the same step.
    fn put_and_advance(
        &self,
        permit: &Permit,
        key: &str,
        value: &str,
        cursor: Cursor,
    ) -> impl Future<Output = Result<(), FenceError>> + Send;
    /// A guarded write that stops at the gate, as far inside as it can get, before it becomes final.
    fn put_through(
        &self,
        permit: &Permit,
        key: &str,
        value: &str,
        gate: Gate,
    ) -> impl Future<Output = Result<(), FenceError>> + Send;
    /// An unguarded read.
    fn get(&self, scope: &Scope, key: &str) -> impl Future<Output = Option<String>> + Send;
    /// Crashes the storage and starts it again on the same data; `false` if this storage cannot.
    fn restart(&mut self) -> impl Future<Output = bool> + Send;
}

/// Why marks are repaired here.
pub const REASON: &str = "a test's poison";

/// Where a slow writer waits.
pub struct Gate {
    inside: oneshot::Sender<()>,
    go: oneshot::Receiver<()>,
}

impl Gate {
    pub fn new() -> (Gate, oneshot::Receiver<()>, oneshot::Sender<()>) {
        let (inside, is_inside) = oneshot::channel();
        let (let_go, go) = oneshot::channel();
        (Gate { inside, go }, is_inside, let_go)
    }

    pub async fn pass(self) {
        let _ = self.inside.send(());
        let _ = self.go.await;
    }
}

pub fn token(number: u64) -> Token {
    Token::try_from(number).expect("a token")
}

/// A scope that no other case uses.
pub fn fresh_scope(what: &str) -> Scope {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("case/{what}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
        .parse()
        .expect("a scope")
}

pub fn permit_for(scope: &Scope, number: u64, remaining: Duration) -> Permit {
    Permit::new(
        scope.clone(),
        token(number),
        Generation::new(1),
        SystemClock.now(),
        remaining,
        &PermitCount::default(),
    )
}

pub fn permit(scope: &Scope, number: u64) -> Permit {
    permit_for(scope, number, Duration::from_secs(30))
}

pub fn takeover_for(scope: &Scope, number: u64, remaining: Duration) -> Takeover {
    let holder = format!("holder-{number}").parse().expect("a holder");
    Takeover::new(scope.clone(), token(number), holder, SystemClock.now(), remaining)
}

pub fn takeover(scope: &Scope, number: u64) -> Takeover {
    takeover_for(scope, number, Duration::from_secs(30))
}

#[track_caller]
pub fn assert_stale<T: std::fmt::Debug>(result: Result<T, FenceError>, presented: u64, seen: u64) {
    match result {
        Err(FenceError::Stale(Stale { presented: p, seen: s, .. })) => {
            assert_eq!((p, s), (token(presented), token(seen)), "the refusal names both numbers");
        }
        other => panic!("expected stale({presented}, {seen}), got {other:?}"),
    }
}

/// The successor has touched nothing yet: the barrier alone must keep the old holder from every row.
pub async fn stale_write_to_untouched_rows_is_refused(subject: impl Subject) {
    let scope = fresh_scope("untouched");
    let old = permit(&scope, 1);
    subject.barrier(&takeover(&scope, 1)).await.expect("first barrier");
    subject.put(&old, "a", "old").await.expect("own write");
    let barrier = subject.barrier(&takeover(&scope, 2)).await.expect("second barrier");
    assert_eq!(barrier.predecessor, Some(token(1)));
    assert_stale(subject.put(&old, "a", "zombie").await, 1, 2);
    assert_stale(subject.put(&old, "never-seen", "zombie").await, 1, 2);
    assert_eq!(subject.get(&scope, "a").await.as_deref(), Some("old"));
    assert_eq!(subject.get(&scope, "never-seen").await, None);
}

/// A strict `>` would refuse the holder's own second write.
pub async fn equal_token_is_accepted(subject: impl Subject) {
    let scope = fresh_scope("equal");
    subject.barrier(&takeover(&scope, 7)).await.expect("barrier");
    let permit = permit(&scope, 7);
    for value in ["one", "two", "two"] {
        subject.put(&permit, "a", value).await.expect("own write");
    }
    assert_eq!(subject.get(&scope, "a").await.as_deref(), Some("two"));
}

/// A first write under a new token must also raise the mark, or the next old write slips in behind it.
pub async fn a_write_without_a_barrier_raises_the_mark(subject: impl Subject) {
    let scope = fresh_scope("lazy");
    assert_eq!(subject.mark(&scope).await.expect("mark"), None);
    subject.put(&permit(&scope, 5), "a", "five").await.expect("first ever");
    assert_eq!(subject.mark(&scope).await.expect("mark").map(|m| m.token), Some(token(5)));
    subject.put(&permit(&scope, 6), "b", "six").await.expect("raises");
    assert_stale(subject.put(&permit(&scope, 5), "c", "zombie").await, 5, 6);
    assert_eq!(subject.get(&scope, "a").await.as_deref(), Some("five"), "what was accepted stays");
}

/// Workers of one holder share the fence: no deadlock, no lost write. Some come before any barrier.
pub async fn concurrent_writers_of_one_holder_all_land(subject: impl Subject) {
    let scope = fresh_scope("parallel");
    let subject = Arc::new(subject);
    let permit = Arc::new(permit(&scope, 3));
    let mut tasks = tokio::task::JoinSet::new();
    for worker in 0..6 {
        let (subject, permit) = (subject.clone(), permit.clone());
        tasks.spawn(async move {
            for round in 0..4 {
                let key = format!("w{worker}-{round}");
                subject.put(&permit, &key, "done").await.unwrap_or_else(|error| panic!("{key}: {error}"));
            }
        });
    }
    while let Some(done) =
        tokio::time::timeout(Duration::from_secs(60), tasks.join_next()).await.expect("no deadlock")
    {
        done.expect("a worker");
    }
    for worker in 0..6 {
        for round in 0..4 {
            assert_eq!(subject.get(&scope, &format!("w{worker}-{round}")).await.as_deref(), Some("done"));
        }
    }
}

/// The same with a cursor, mixed with writers that keep none: serial ones queue, nobody deadlocks.
pub async fn concurrent_cursor_writers_do_not_deadlock(subject: impl Subject) {
    let scope = fresh_scope("cursors");
    subject.barrier(&takeover(&scope, 3)).await.expect("barrier");
    let subject = Arc::new(subject);
    let permit = Arc::new(permit(&scope, 3));
    let mut tasks = tokio::task::JoinSet::new();
    for worker in 0..6 {
        let (subject, permit) = (subject.clone(), permit.clone());
        tasks.spawn(async move {
            for round in 0..3 {
                let key = format!("w{worker}-{round}");
                if worker % 2 == 0 {
                    subject.put_and_advance(&permit, &key, "done", key.as_str().into()).await
                } else {
                    subject.put(&permit, &key, "done").await
                }
                .unwrap_or_else(|error| panic!("{key}: {error}"));
            }
        });
    }
    while let Some(done) =
        tokio::time::timeout(Duration::from_secs(60), tasks.join_next()).await.expect("no deadlock")
    {
        done.expect("a worker");
    }
    let mark = subject.mark(&scope).await.expect("mark").expect("a mark");
    assert!(mark.seq >= 9, "each of nine serial writes was counted: {}", mark.seq);
    let left = mark.cursor.expect("a cursor");
    let left = left.as_text().expect("text");
    assert!(left.ends_with("-2"), "the last serial write's cursor stays: {left}");
}

/// A write that passed its check before the barrier must not become final after it. It may become final
/// before the barrier returns (then the successor sees it) or fail; there is no third way.
pub async fn a_zombie_open_across_the_barrier_cannot_land_after_it(subject: impl Subject) {
    let scope = fresh_scope("zombie");
    let subject = Arc::new(subject);
    subject.barrier(&takeover(&scope, 1)).await.expect("first barrier");
    subject.put(&permit(&scope, 1), "a", "before").await.expect("own write");

    let (gate, is_inside, let_go) = Gate::new();
    let zombie = tokio::spawn({
        let (subject, scope) = (subject.clone(), scope.clone());
        // Its lease has a second left: whatever it holds open must not outlast that by much.
        async move {
            subject.put_through(&permit_for(&scope, 1, Duration::from_secs(1)), "a", "zombie", gate).await
        }
    });
    is_inside.await.expect("the zombie is inside");
    // Frozen inside. The successor's barrier must come through all the same, and when it has, what it
    // reads is final.
    let barrier = tokio::time::timeout(Duration::from_secs(20), subject.barrier(&takeover(&scope, 2)))
        .await
        .expect("a frozen holder does not block its successor beyond its own lease")
        .expect("second barrier");
    assert_eq!(barrier.predecessor, Some(token(1)));
    let seen = subject.get(&scope, "a").await;
    let _ = let_go.send(());
    let outcome = zombie.await.expect("the zombie's task");
    assert!(outcome.is_err(), "the zombie committed after the barrier");
    assert_eq!(subject.get(&scope, "a").await, seen, "nothing changed after the barrier");
    assert_eq!(seen.as_deref(), Some("before"));
}

/// Stale writes in full flight while barriers come: whatever the old holder was told had landed must be
/// there, and nothing may change once the barrier has returned.
pub async fn a_barrier_under_fire_is_a_clean_cut(subject: impl Subject) {
    let subject = Arc::new(subject);
    for round in 0..5 {
        let scope = fresh_scope("fire");
        subject.barrier(&takeover(&scope, 1)).await.expect("first barrier");
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..3 {
            let (subject, scope) = (subject.clone(), scope.clone());
            writers.spawn(async move {
                let permit = permit(&scope, 1);
                let mut last = None;
                for number in 0..10_000 {
                    match subject.put(&permit, &format!("k{writer}"), &number.to_string()).await {
                        Ok(()) => last = Some(number.to_string()),
                        Err(error) => {
                            assert!(error.stale().is_some(), "only stale ends a writer: {error}");
                            return (writer, last);
                        }
                    }
                }
                panic!("writer {writer} was never fenced out");
            });
        }
        tokio::time::sleep(Duration::from_millis(20 + 10 * round)).await; // a random point in the fire, not a condition
        subject.barrier(&takeover(&scope, 2)).await.expect("second barrier");
        let mut seen = Vec::new();
        for writer in 0..3 {
            seen.push(subject.get(&scope, &format!("k{writer}")).await);
        }
        while let Some(done) = writers.join_next().await {
            let (writer, last): (usize, Option<String>) = done.expect("a writer");
            assert_eq!(
                seen[writer], last,
                "accepted is kept, refused is not there, and nothing moved after the cut"
            );
        }
        for (writer, seen) in seen.into_iter().enumerate() {
            assert_eq!(subject.get(&scope, &format!("k{writer}")).await, seen);
        }
    }
}

/// Several holders take over from one another in full flight, each faster or slower than the next. Whatever
/// any of them was told, the storage must agree with: accepted is there, stale is not.
pub async fn racing_takeovers_keep_what_they_accept_and_nothing_else(subject: impl Subject) {
    let subject = Arc::new(subject);
    for _ in 0..3 {
        let scope = fresh_scope("takeovers");
        let mut holders = tokio::task::JoinSet::new();
        for number in 1..=5u64 {
            let (subject, scope) = (subject.clone(), scope.clone());
            holders.spawn(async move {
                tokio::time::sleep(Duration::from_millis(8 * number)).await; // a ragged start, not a condition
                let mut outcomes = Vec::new();
                if let Err(error) = subject.barrier(&takeover(&scope, number)).await {
                    assert!(error.stale().is_some(), "holder {number}: {error}");
                    return outcomes;
                }
                let permit = permit(&scope, number);
                for write in 0..12 {
                    let key = format!("h{number}-{write}");
                    let result = subject.put(&permit, &key, "there").await;
                    let stale = result.as_ref().is_err_and(|error| error.stale().is_some());
                    assert!(result.is_ok() || stale, "{key}: {result:?}");
                    outcomes.push((key, result.is_ok()));
                    if stale {
                        break;
                    }
                }
                outcomes
            });
        }
        while let Some(done) = holders.join_next().await {
            for (key, accepted) in done.expect("a holder") {
                let there = subject.get(&scope, &key).await.is_some();
                assert_eq!(there, accepted, "{key}: told {accepted}, there {there}");
            }
        }
    }
}

/// A barrier cut off half-way is repeated, as often as it takes, with the same token.
pub async fn a_timed_out_barrier_can_be_repeated(subject: impl Subject) {
    let scope = fresh_scope("retry");
    subject.put_and_advance(&permit(&scope, 1), "a", "old", "row 9".into()).await.expect("predecessor");
    for micros in [1, 200, 1_000, 5_000] {
        let patience = Duration::from_micros(micros);
        let _ = tokio::time::timeout(patience, subject.barrier(&takeover(&scope, 2))).await;
    }
    let first = subject.barrier(&takeover(&scope, 2)).await.expect("barrier");
    let again = subject.barrier(&takeover(&scope, 2)).await.expect("barrier again");
    assert_eq!(again.predecessor, Some(token(2)), "the repeated barrier finds itself");
    assert_eq!((first.seq, &first.cursor), (again.seq, &again.cursor));
    assert_eq!(again.cursor, Some("row 9".into()), "and still hands over the cursor");
    let mark = subject.mark(&scope).await.expect("mark").expect("a mark");
    assert_eq!(mark.token, token(2));
    assert_eq!(mark.holder.as_ref().map(|h| h.as_str()), Some("holder-2"));
    assert_stale(subject.put(&permit(&scope, 1), "a", "zombie").await, 1, 2);
}

/// A slow holder's barrier arrives after its successor's.
pub async fn a_barrier_overtaken_by_a_newer_one_is_refused(subject: impl Subject) {
    let scope = fresh_scope("overtaken");
    subject.barrier(&takeover(&scope, 3)).await.expect("newer");
    assert_stale(subject.barrier(&takeover(&scope, 2)).await, 2, 3);

    let subject = Arc::new(subject);
    for _ in 0..5 {
        let scope = fresh_scope("race");
        let mut racers = tokio::task::JoinSet::new();
        for number in [11, 12, 13, 14] {
            let (subject, scope) = (subject.clone(), scope.clone());
            racers.spawn(async move { (number, subject.barrier(&takeover(&scope, number)).await) });
        }
        while let Some(done) = racers.join_next().await {
            match done.expect("a racer") {
                (14, result) => drop(result.expect("the highest always wins")),
                (_, Ok(_)) => {}
                (number, Err(error)) => {
                    let stale = error.stale().unwrap_or_else(|| panic!("{number}: {error}"));
                    assert!(stale.seen > stale.presented);
                }
            }
        }
        assert_eq!(subject.mark(&scope).await.expect("mark").map(|m| m.token), Some(token(14)));
    }
}

/// Deletes are writes, and a scope without data still remembers.
pub async fn deletes_are_guarded_and_do_not_reset_the_fence(subject: impl Subject) {
    let scope = fresh_scope("delete");
    subject.put(&permit(&scope, 1), "a", "kept").await.expect("write");
    subject.barrier(&takeover(&scope, 2)).await.expect("barrier");
    assert_stale(subject.delete(&permit(&scope, 1), "a").await, 1, 2);
    assert_eq!(subject.get(&scope, "a").await.as_deref(), Some("kept"));
    subject.delete(&permit(&scope, 2), "a").await.expect("own delete");
    assert_eq!(subject.get(&scope, "a").await, None);
    assert_stale(subject.put(&permit(&scope, 1), "a", "resurrected").await, 1, 2);
    assert_eq!(subject.get(&scope, "a").await, None);
}

/// The mark is as durable as the data.
pub async fn a_restart_does_not_forget_the_mark(mut subject: impl Subject) {
    let scope = fresh_scope("restart");
    subject.put_and_advance(&permit(&scope, 1), "a", "old", "row 4".into()).await.expect("write");
    subject.barrier(&takeover(&scope, 2)).await.expect("barrier");
    if !subject.restart().await {
        eprintln!("skipped: this storage cannot be restarted here");
        return;
    }
    assert_stale(subject.put(&permit(&scope, 1), "a", "zombie").await, 1, 2);
    let again = subject.barrier(&takeover(&scope, 2)).await.expect("barrier after the restart");
    assert_eq!(again.cursor, Some("row 4".into()));
    assert_eq!(subject.get(&scope, "a").await.as_deref(), Some("old"));
}

/// Tokens come from one counter, so a mark that is global to the store would fence the other resource out.
pub async fn two_resources_do_not_fence_each_other(subject: impl Subject) {
    let (one, other) = (fresh_scope("one"), fresh_scope("other"));
    subject.barrier(&takeover(&one, 100)).await.expect("one");
    subject.barrier(&takeover(&other, 5)).await.expect("other");
    subject.put(&permit(&one, 100), "a", "one").await.expect("one");
    subject.put(&permit(&other, 5), "a", "other").await.expect("other");
    assert_stale(subject.put(&permit(&one, 99), "a", "zombie").await, 99, 100);
    assert_eq!(subject.get(&one, "a").await.as_deref(), Some("one"));
    assert_eq!(subject.get(&other, "a").await.as_deref(), Some("other"));
}

/// Live holders of two slots write side by side; a slot's old holder is fenced by that slot's new one.
pub async fn two_slots_do_not_fence_each_other(subject: impl Subject) {
    let resource = fresh_scope("slots");
    let slot = |n: u32| -> Scope { format!("{resource}#{n}").parse().expect("a slot") };
    subject.barrier(&takeover(&slot(0), 7)).await.expect("slot 0");
    subject.barrier(&takeover(&slot(1), 8)).await.expect("slot 1");
    subject.put(&permit(&slot(0), 7), "a", "zero").await.expect("slot 0");
    subject.put(&permit(&slot(1), 8), "a", "one").await.expect("slot 1");
    subject.barrier(&takeover(&slot(0), 9)).await.expect("slot 0 again");
    assert_stale(subject.put(&permit(&slot(0), 7), "a", "zombie").await, 7, 9);
    subject.put(&permit(&slot(1), 8), "a", "still").await.expect("slot 1 is untouched");
}

/// The largest tokens differ by one: a storage that counts in doubles or compares text would confuse them.
pub async fn tokens_near_the_end_stay_exact(subject: impl Subject) {
    let max = Token::MAX.get();
    let scope = fresh_scope("large");
    subject.barrier(&takeover(&scope, 9)).await.expect("small");
    subject.barrier(&takeover(&scope, 10)).await.expect("10 is above 9, though not as text");
    assert_stale(subject.put(&permit(&scope, 9), "a", "zombie").await, 9, 10);
    subject.barrier(&takeover(&scope, max - 1)).await.expect("the one before the last");
    subject.put(&permit(&scope, max - 1), "a", "before").await.expect("write");
    subject.barrier(&takeover(&scope, max)).await.expect("the last");
    assert_stale(subject.put(&permit(&scope, max - 1), "a", "zombie").await, max - 1, max);
    subject.put(&permit(&scope, max), "a", "last").await.expect("write");
    assert_eq!(subject.get(&scope, "a").await.as_deref(), Some("last"));
}

/// The successor resumes where the work stands, not where a refused write would have taken it.
pub async fn the_cursor_moves_with_the_work_and_only_with_it(subject: impl Subject) {
    let scope = fresh_scope("cursor");
    assert_eq!(subject.barrier(&takeover(&scope, 1)).await.expect("barrier").cursor, None);
    subject.put_and_advance(&permit(&scope, 1), "a", "1", "row 1".into()).await.expect("work");
    subject.put_and_advance(&permit(&scope, 1), "b", "2", "row 2".into()).await.expect("work");
    subject.put(&permit(&scope, 1), "c", "3").await.expect("work without a cursor");
    let barrier = subject.barrier(&takeover(&scope, 2)).await.expect("barrier");
    assert_eq!(barrier.cursor, Some("row 2".into()));
    assert_stale(subject.put_and_advance(&permit(&scope, 1), "d", "4", "row 3".into()).await, 1, 2);
    let barrier = subject.barrier(&takeover(&scope, 3)).await.expect("barrier");
    assert_eq!(barrier.cursor, Some("row 2".into()), "a refused write moves no cursor");
    assert_eq!(subject.get(&scope, "d").await, None);
}

/// A permit whose time is used up writes nothing, whatever the mark says.
pub async fn a_permit_without_time_writes_nothing(subject: impl Subject) {
    let scope = fresh_scope("late");
    let late = permit_for(&scope, 1, Duration::ZERO);
    let refused = subject.put(&late, "a", "late").await.expect_err("no time is left");
    assert!(matches!(refused, FenceError::OutOfTime { .. }), "{refused}");
    let late = takeover_for(&scope, 1, Duration::ZERO);
    let refused = subject.barrier(&late).await.expect_err("no time is left");
    assert!(matches!(refused, FenceError::OutOfTime { .. }), "{refused}");
    assert_eq!(subject.get(&scope, "a").await, None);
    assert_eq!(subject.mark(&scope).await.expect("mark"), None);
}

/// The check is made again when the write becomes final: time runs out while a writer is inside.
pub async fn a_writer_whose_time_runs_out_inside_does_not_land(subject: impl Subject) {
    let scope = fresh_scope("ran-out");
    let (gate, is_inside, let_go) = Gate::new();
    let subject = Arc::new(subject);
    let writer = tokio::spawn({
        let (subject, scope) = (subject.clone(), scope.clone());
        async move {
            subject.put_through(&permit_for(&scope, 1, Duration::from_millis(300)), "a", "late", gate).await
        }
    });
    is_inside.await.expect("inside");
    tokio::time::sleep(Duration::from_millis(400)).await; // the lease's own time has to pass
    let _ = let_go.send(());
    let refused = writer.await.expect("the writer's task").expect_err("no time is left");
    assert_ne!(refused.effect(), tenure_fence::FenceEffect::Unknown, "{refused}");
    assert_eq!(subject.get(&scope, "a").await, None);
}

/// A made-up token has shut everybody out; an operator opens the door again.
pub async fn repair_lowers_a_poisoned_mark(subject: impl Subject) {
    let scope = fresh_scope("poison");
    subject.put_and_advance(&permit(&scope, 4), "a", "four", "row 1".into()).await.expect("write");
    subject.barrier(&takeover(&scope, Token::MAX.get())).await.expect("poison");
    assert_stale(subject.barrier(&takeover(&scope, 5)).await, 5, Token::MAX.get());
    let mark = subject.repair(&scope, token(4)).await.expect("repair");
    assert_eq!(mark.token, token(4));
    let audit = subject.audit(&scope).await;
    assert!(audit.contains("operator") && audit.contains(REASON), "who and why is written down: {audit}");
    let barrier = subject.barrier(&takeover(&scope, 5)).await.expect("the next holder gets in");
    assert_eq!(barrier.cursor, Some("row 1".into()), "and finds the cursor");
    subject.put(&permit(&scope, 5), "a", "five").await.expect("write");
    assert_stale(subject.put(&permit(&scope, 4), "a", "zombie").await, 4, 5);
    let never = fresh_scope("never");
    subject.repair(&never, token(4)).await.expect_err("there is nothing to repair");
}

/// Names are data. None of them may break out of a literal, a key or a path, or collide with another.
pub async fn strange_names_stay_names(subject: impl Subject) {
    let unique = fresh_scope("strange");
    let long = format!("{unique}/{}", "x".repeat(500 - unique.to_string().len()));
    let names = [
        format!("{unique}/it's"),
        format!("{unique}/it''s"),
        format!("{unique}/back\\slash"),
        format!("{unique}/back\\\\slash"),
        format!("{unique}/{{tag}}"),
        format!("{unique}/}}{{"),
        format!("{unique}/%2F"),
        format!("{unique}/ä ö\u{2028}"),
        format!("{unique}/%"),
        format!("{unique}/_"),
        format!("{unique}/UPPER"),
        format!("{unique}/upper"),
        format!("{unique}/trailing "),
        format!("{unique}/trailing"),
        format!("{long}/y"),
        format!("{long}/z"),
    ];
    for (number, name) in (50u64..).zip(&names) {
        let scope: Scope = name.parse().expect("a scope");
        subject.barrier(&takeover(&scope, number)).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        subject
            .put(&permit(&scope, number), "a", name)
            .await
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    for (number, name) in (50u64..).zip(&names) {
        let scope: Scope = name.parse().expect("a scope");
        let mark = subject.mark(&scope).await.expect("mark").expect("a mark");
        assert_eq!(mark.token, token(number), "{name} has its own mark");
        assert_eq!(subject.get(&scope, "a").await.as_deref(), Some(name.as_str()));
    }
}
