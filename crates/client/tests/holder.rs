//! The holder's side in virtual time: pauses, lost answers, notices, cancelled futures. What the logic
//! decides is tested in the core; here it is tested that the driver around it hands in everything, in the
//! right order, at the right time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_client::testing::{Bench, Process};
use tenure_client::{
    Candidate, DrainError, EndReason, Jeopardy, Leader, Leadership, Lease, LeaseEnd, LeaseState, NoPermit,
    PermitError, Session, Store, TransferError,
};
use tenure_core::{Command, ResourceName, SessionNumber};

const TTL: Duration = Duration::from_secs(10);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

async fn open(process: &Process) -> Session {
    process.client().session().ttl(TTL).open().await.expect("opened")
}

async fn hold(session: &Session) -> Lease {
    session.acquire("r").await.expect("granted")
}

/// What the store has left of a session.
fn left_at_store(bench: &Bench, session: SessionNumber) -> Option<Duration> {
    bench.store().look(|machine| machine.session_view(session).map(|view| view.remaining))
}

fn holder_at_store(bench: &Bench) -> Option<SessionNumber> {
    let name: ResourceName = "r".parse().expect("a name");
    bench.store().look(|machine| machine.lease(&name)?.holders.first().map(|holding| holding.session))
}

/// Asks the store to end the lease by notice, as an administrator would.
fn revoke(bench: &Bench) {
    let resource = "r".parse().expect("a name");
    let command = Command::Revoke { resource, session: None, now: false, reason: "test".into() };
    bench.store().submit(command, Box::new(|answer| drop(answer.expect("revoked"))));
}

fn refused(lease: &Lease) -> NoPermit {
    match lease.permit().expect_err("no permit") {
        PermitError::Refused(why) => why,
        forked => panic!("{forked}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_held_lease_is_kept_for_as_long_as_its_process_runs() {
    let bench = Bench::new();
    let process = bench.process();
    let lease = hold(&open(&process).await).await;
    for _ in 0..100 {
        bench.pass(TTL / 3).await;
        let permit = lease.permit().expect("kept");
        let left = left_at_store(&bench, lease.session_number()).expect("it lives");
        assert!(permit.time_left() < left, "the holder stops first: {:?} {left:?}", permit.time_left());
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_slept_through_its_lease_gets_no_permit() {
    let bench = Bench::new();
    let (ours, theirs) = (bench.process(), bench.process());
    let lease = hold(&open(&ours).await).await;
    let rival = open(&theirs).await;
    let waiting = tokio::spawn({
        let request = rival.acquire("r").wait();
        async move { request.await.expect("granted in turn") }
    });
    bench.pass(ms(100)).await;
    ours.freeze(TTL * 2).await;
    // Nothing of the process has run since: the clock alone says no.
    assert_eq!(refused(&lease), NoPermit::Jeopardy(Jeopardy::PastDeadline));
    let next = waiting.await.expect("no panic");
    drop(next.permit().expect("it is the rival's"));
    bench.pass(ms(100)).await;
    let LeaseState::Ended(end) = lease.status().state else { panic!("{:?}", lease.status()) };
    assert!(matches!(end, LeaseEnd::Expired { .. }), "we had stopped in time: {end:?}");
}

#[tokio::test(start_paused = true)]
async fn a_shorter_pause_means_asking_before_the_next_permit() {
    let bench = Bench::new();
    let process = bench.process();
    let lease = hold(&open(&process).await).await;
    let token = lease.permit().expect("held").token();
    bench.pass(ms(50)).await;
    process.freeze(TTL / 2).await;
    let why = refused(&lease);
    assert!(matches!(why, NoPermit::Jeopardy(Jeopardy::Paused { .. })), "{why:?}");
    bench.pass(ms(10)).await;
    assert_eq!(lease.status().state, LeaseState::Held, "the store has answered meanwhile");
    assert_eq!(lease.permit().expect("held again").token(), token);
}

#[tokio::test(start_paused = true)]
async fn a_suspended_machine_counts_its_sleep() {
    let bench = Bench::new();
    let process = bench.process();
    let lease = hold(&open(&process).await).await;
    bench.pass(ms(50)).await;
    process.suspend(TTL * 2).await;
    assert_eq!(refused(&lease), NoPermit::Jeopardy(Jeopardy::PastDeadline));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_applied_and_unanswered_neither_overstays_nor_loses() {
    let bench = Bench::new();
    let process = bench.process();
    let lease = hold(&open(&process).await).await;
    for round in 0..30 {
        // Just before the next renewal is due, with the answers to it and to two repetitions lost.
        process.drop_answers(3);
        for _ in 0..40 {
            bench.pass(ms(100)).await;
            let left = left_at_store(&bench, lease.session_number()).expect("it lives");
            assert!(lease.remaining() < left, "round {round}: {:?} {left:?}", lease.remaining());
        }
        drop(lease.permit().expect("a lost answer costs nothing"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_network_shortens_what_the_holder_believes() {
    let bench = Bench::new();
    let process = bench.process();
    let lease = hold(&open(&process).await).await;
    process.delay(ms(700));
    for _ in 0..200 {
        bench.pass(ms(77)).await;
        let left = left_at_store(&bench, lease.session_number()).expect("it lives");
        assert!(lease.remaining() < left, "{:?} {left:?}", lease.remaining());
    }
    drop(lease.permit().expect("slow is not lost"));
}

#[tokio::test(start_paused = true)]
async fn a_cut_off_holder_stops_before_the_next_begins_and_learns_how_it_ended() {
    let bench = Bench::new();
    let (ours, theirs) = (bench.process(), bench.process());
    let session = open(&ours).await;
    let lease = hold(&session).await;
    let mut stop = lease.stop_signal();
    let rival = open(&theirs).await;
    bench.pass(ms(100)).await;
    ours.cut();
    stop.stopped().await;
    assert!(lease.remaining() > Duration::ZERO, "told to stop while there is time to");
    drop(lease.permit().expect("until the deadline there are permits"));
    let next = rival.acquire("r").wait().await.expect("granted in turn");
    assert_eq!(refused(&lease), NoPermit::Jeopardy(Jeopardy::PastDeadline));
    drop(next.permit().expect("the rival's"));
    assert_eq!(lease.status().state, LeaseState::Jeopardy(Jeopardy::PastDeadline), "nobody has told us");
    ours.heal();
    session.ended().await;
    let LeaseState::Ended(end) = lease.status().state else { panic!("{:?}", lease.status()) };
    assert!(matches!(end, LeaseEnd::Expired { .. }), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn strict_mode_stops_at_the_first_failed_renewal() {
    let bench = Bench::new();
    let process = bench.process();
    let session = process.client().session().ttl(TTL).strict().open().await.expect("opened");
    let lease = hold(&session).await;
    bench.pass(ms(100)).await;
    process.cut();
    bench.pass(TTL / 2).await;
    assert_eq!(refused(&lease), NoPermit::Jeopardy(Jeopardy::NotRenewed));
    process.heal();
    bench.pass(TTL / 4).await;
    drop(lease.permit().expect("renewed again"));
}

#[tokio::test(start_paused = true)]
async fn a_notice_that_was_not_received_is_in_the_next_renewal_before_the_deadline_moves() {
    let bench = Bench::new();
    let process = bench.process();
    let session = open(&process).await;
    let lease = hold(&session).await;
    bench.pass(ms(500)).await;
    process.drop_pushes(true);
    let ends_in = lease.remaining();
    revoke(&bench);
    assert_eq!(lease.status().notice, None, "the push was lost");
    bench.pass(TTL / 2).await;
    assert_eq!(lease.status().notice, Some(EndReason::Revoked), "the renewal said so");
    assert!(lease.stop_signal().is_stopped());
    assert!(lease.remaining() <= ends_in - TTL / 2, "renewals extend the session, not this lease");
    assert!(session.remaining() > ends_in - TTL / 2);
    bench.pass(TTL).await;
    let LeaseState::Ended(end) = lease.status().state else { panic!("{:?}", lease.status()) };
    assert_eq!(end, LeaseEnd::Expired { why: Some(EndReason::Revoked) });
    assert_eq!(holder_at_store(&bench), None);
    session.acquire("other").await.expect("the session lives on");
}

#[tokio::test(start_paused = true)]
async fn a_notice_is_confirmed_by_giving_back() {
    let bench = Bench::new();
    let process = bench.process();
    let lease = hold(&open(&process).await).await;
    let mut changes = lease.changes();
    revoke(&bench);
    assert_eq!(changes.next().await.expect("told").notice, Some(EndReason::Revoked));
    lease.release().await.expect("confirmed");
    assert_eq!(holder_at_store(&bench), None);
}

#[tokio::test(start_paused = true)]
async fn a_grant_whose_push_was_lost_is_found_by_the_next_renewal() {
    let bench = Bench::new();
    let (ours, theirs) = (bench.process(), bench.process());
    let (first, second) = (open(&theirs).await, open(&ours).await);
    let lease = hold(&first).await;
    ours.drop_pushes(true);
    let waiting = tokio::spawn({
        let request = second.acquire("r").wait();
        async move { request.await.expect("granted in turn") }
    });
    bench.pass(ms(100)).await;
    lease.release().await.expect("released");
    let lease = tokio::time::timeout(TTL / 2, waiting).await.expect("by the next renewal").expect("no panic");
    drop(lease.permit().expect("held"));
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_progress_is_not_kept_as_leader() {
    let bench = Bench::new();
    let process = bench.process();
    let guarded = process.client().session().ttl(TTL).progress_within(TTL * 2).open().await.expect("opened");
    let (lease, other) = (hold(&guarded).await, open(&process).await);
    let others = other.acquire("other").await.expect("granted");
    for _ in 0..10 {
        bench.pass(TTL).await;
        guarded.progressed();
    }
    drop(lease.permit().expect("it gets on"));
    bench.pass(TTL * 4).await;
    assert!(lease.permit().is_err(), "it does not");
    assert_eq!(holder_at_store(&bench), None);
    drop(others.permit().expect("a session of its own is not concerned"));
}

#[tokio::test(start_paused = true)]
async fn permits_out_hold_a_release_back() {
    let bench = Bench::new();
    let process = bench.process();
    let session = open(&process).await;
    let lease = hold(&session).await;
    let permit = lease.permit().expect("held");
    let releasing = tokio::spawn(lease.release());
    bench.pass(TTL * 3).await;
    assert_eq!(holder_at_store(&bench), Some(session.number()), "kept while work goes on");
    drop(permit);
    assert_eq!(releasing.await.expect("no panic").expect("released"), LeaseEnd::Released);
    assert_eq!(holder_at_store(&bench), None);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_lease_goes_back_after_its_last_permit() {
    let bench = Bench::new();
    let process = bench.process();
    let session = open(&process).await;
    let lease = hold(&session).await;
    let permit = lease.permit().expect("held");
    drop(lease);
    bench.pass(TTL * 3).await;
    assert_eq!(holder_at_store(&bench), Some(session.number()));
    drop(permit);
    bench.pass(ms(1)).await;
    assert_eq!(holder_at_store(&bench), None);
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_takes_too_long_gives_the_lease_back_to_the_application() {
    let bench = Bench::new();
    let process = bench.process();
    let lease = hold(&open(&process).await).await;
    let permit = lease.permit().expect("held");
    let DrainError::StillOut { lease, out } = lease.drain(TTL).await.expect_err("a permit is out") else {
        panic!("the store had nothing to do with it")
    };
    assert_eq!(out, 1);
    let second = lease.permit().expect("the intake is open again");
    drop((permit, second));
    assert_eq!(lease.drain(TTL).await.expect("drained"), LeaseEnd::Released);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_handed_to_a_named_waiter_or_comes_back() {
    let bench = Bench::new();
    let (ours, theirs) = (bench.process(), bench.process());
    let (session, heir) = (open(&ours).await, open(&theirs).await);
    let lease = hold(&session).await;
    let token = lease.permit().expect("held").token();
    let TransferError::Refused { lease, .. } =
        lease.transfer(heir.number()).await.expect_err("it is not queued")
    else {
        panic!("the lease has not ended")
    };
    drop(lease.permit().expect("a refused transfer changes nothing"));
    let waiting = tokio::spawn({
        let request = heir.acquire("r").wait();
        async move { request.await.expect("handed over") }
    });
    bench.pass(ms(10)).await;
    lease.transfer(heir.number()).await.expect("handed over");
    let lease = waiting.await.expect("no panic");
    assert!(lease.permit().expect("held").token() > token);
}

#[tokio::test(start_paused = true)]
async fn who_hands_over_sees_its_successor() {
    let bench = Bench::new();
    let (ours, theirs) = (bench.process(), bench.process());
    let (session, heir) = (open(&ours).await, open(&theirs).await);
    let alone = session.acquire("r").await.expect("granted").hand_over(TTL, TTL).await.expect("drained");
    assert_eq!(alone, None, "nobody wanted it");
    let lease = hold(&session).await;
    let waiting = tokio::spawn({
        let request = heir.acquire("r").wait();
        async move { request.await.expect("granted in turn") }
    });
    bench.pass(ms(10)).await;
    assert_eq!(lease.hand_over(TTL, TTL).await.expect("drained"), Some(heir.number()));
    drop(waiting.await.expect("no panic").permit().expect("held"));
}

#[tokio::test(start_paused = true)]
async fn a_session_closed_while_cut_off_is_waited_for_no_longer_than_it_lives() {
    let bench = Bench::new();
    let process = bench.process();
    let session = open(&process).await;
    let lease = hold(&session).await;
    process.cut();
    tokio::time::timeout(TTL, session.close()).await.expect("past its deadline it is over");
    assert!(matches!(lease.status().state, LeaseState::Ended(_)));
}

#[tokio::test(start_paused = true)]
async fn many_sessions_ride_in_few_messages() {
    let bench = Bench::new();
    let process = bench.process();
    let mut leases = Vec::new();
    for n in 0..200 {
        let session = open(&process).await;
        leases.push(session.acquire(format!("r/{n}")).await.expect("granted"));
    }
    bench.pass(TTL).await;
    let before = process.messages_sent();
    bench.pass(TTL * 10).await;
    let sent = process.messages_sent() - before;
    // Each of 200 sessions renews about 30 times: one by one that would be 6,000 messages. With a step of 50
    // ms there are at most 2,000, and the jitter of 10 % leaves most steps empty.
    assert!(sent < 2_000, "{sent} messages for 200 sessions");
    leases.iter().for_each(|lease| drop(lease.permit().expect("kept")));
}

#[tokio::test(start_paused = true)]
async fn hooks_receive_every_state() {
    let bench = Bench::new();
    let process = bench.process();
    let session = open(&process).await;
    let lease = hold(&session).await;
    let received: Arc<Mutex<Vec<LeaseState>>> = Arc::default();
    lease.on_change({
        let received = received.clone();
        move |status| received.lock().expect("no panic").push(status.state)
    });
    bench.pass(ms(100)).await;
    process.cut();
    bench.pass(TTL * 2).await;
    process.heal();
    session.ended().await;
    bench.pass(ms(1)).await;
    let received = received.lock().expect("no panic");
    assert!(
        matches!(
            received[..],
            [
                LeaseState::Jeopardy(Jeopardy::NotRenewed),
                LeaseState::Jeopardy(Jeopardy::PastDeadline),
                LeaseState::Ended(LeaseEnd::Expired { .. })
            ]
        ),
        "{received:?}"
    );
}

/// Counts its terms, and leads until it is told to stop.
struct Steady {
    terms: AtomicUsize,
    leading: AtomicUsize,
    warm_ups: AtomicUsize,
}

impl Steady {
    fn new() -> Arc<Steady> {
        Arc::new(Steady {
            terms: AtomicUsize::new(0),
            leading: AtomicUsize::new(0),
            warm_ups: AtomicUsize::new(0),
        })
    }
}

struct Leading<'a>(&'a AtomicUsize);

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Candidate for Steady {
    async fn warm_up(&self) {
        self.warm_ups.fetch_add(1, Ordering::SeqCst);
    }

    async fn lead(&self, leadership: &Leadership) {
        self.terms.fetch_add(1, Ordering::SeqCst);
        self.leading.fetch_add(1, Ordering::SeqCst);
        let _leading = Leading(&self.leading);
        drop(leadership.permit().expect("a leader may act"));
        leadership.stop_signal().stopped().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_deposed_leader_queues_again() {
    let bench = Bench::new();
    let (first, second) = (bench.process(), bench.process());
    let candidates = [Steady::new(), Steady::new()];
    for (process, candidate) in [&first, &second].into_iter().zip(&candidates) {
        let election = process.client().election("e").value(format!("{:p}", process.client()));
        let candidate = candidate.clone();
        tokio::spawn(async move { election.run(&*candidate, std::future::pending()).await });
        bench.pass(ms(10)).await;
    }
    let mut observer = second.client().election("e").observe().expect("a name");
    let Leader::Elected { session: one, value, .. } = observer.next().await.expect("seen") else {
        panic!("the first candidate leads")
    };
    assert!(value.is_some());
    assert_eq!(candidates[1].warm_ups.load(Ordering::SeqCst), 1, "warmed up while it is queued");
    for round in 1..=5 {
        first.freeze(TTL * 2).await;
        bench.pass(TTL * 2).await;
        assert_eq!(candidates[1].leading.load(Ordering::SeqCst), 1, "round {round}: the second leads");
        assert_eq!(candidates[0].leading.load(Ordering::SeqCst), 0, "round {round}: the first does not");
        second.freeze(TTL * 2).await;
        bench.pass(TTL * 2).await;
        assert_eq!(candidates[0].leading.load(Ordering::SeqCst), 1, "round {round}: the first leads again");
        assert_eq!(candidates[1].leading.load(Ordering::SeqCst), 0, "round {round}: the second does not");
    }
    let Leader::Elected { session: another, .. } = observer.next().await.expect("seen") else {
        panic!("the queue was never empty")
    };
    assert_ne!(one, another);
}

#[tokio::test(start_paused = true)]
async fn observers_are_notified_that_there_is_no_leader() {
    let bench = Bench::new();
    let (ours, theirs) = (bench.process(), bench.process());
    let mut observer = theirs.client().election("e").observe().expect("a name");
    assert_eq!(observer.next().await.expect("seen"), Leader::None);
    let leadership = ours.client().election("e").campaign().await.expect("elected");
    assert!(matches!(observer.next().await.expect("seen"), Leader::Elected { value: None, .. }));
    leadership.publish("here").await.expect("published");
    let item = observer.next().await.expect("seen");
    assert!(matches!(&item, Leader::Elected { value: Some(value), .. } if value == b"here"), "{item:?}");
    leadership.resign().await.expect("resigned");
    assert_eq!(observer.next().await.expect("seen"), Leader::None);
}
