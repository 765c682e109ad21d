//! A store whose clock runs faster than rho allows ends sessions before their holders' deadlines. Whoever
//! notices must say so: an application finds it in a form that it can count and alert on, and not only in the
//! words of a lost lease.

use std::sync::Arc;
use std::time::Duration;

use tenure_client::testing::Bench;
use tenure_client::{Client, Embedded, Execution, LeaseEnd, LeaseState, Tasks};
use tenure_clock::Clock;
use tenure_core::{Moment, WallTime};
use tokio::time::Instant;

const TTL: Duration = Duration::from_secs(10);

/// Runs so many times as fast as virtual time.
struct Fast {
    origin: Instant,
    times: u32,
}

impl Fast {
    fn new(times: u32) -> Arc<Fast> {
        Arc::new(Fast { origin: Instant::now(), times })
    }
}

impl Clock for Fast {
    fn now(&self) -> Moment {
        let shown = self.origin.elapsed() * self.times;
        Moment::from_readings(shown, shown)
    }

    fn wall(&self) -> WallTime {
        WallTime::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ended_too_early_is_counted() {
    let execution = Execution::Tasks(Tasks::current());
    // Four times as fast: the session is over before its first renewal is due.
    let store = Embedded::with(Fast::new(4), &execution);
    let client = Client::with(Arc::new(store), Fast::new(1), execution);
    for sessions in 1..=2 {
        let session = client.session().ttl(TTL).open().await.expect("opened");
        let lease = session.acquire("r").await.expect("granted");
        assert_eq!((session.ended_early(), client.early_ends()), (None, sessions - 1));
        session.ended().await;
        let early = session.ended_early().expect("its deadline had not come");
        assert!(early > TTL / 2, "a quarter of the TTL has passed: {early:?}");
        assert_eq!(client.early_ends(), sessions);
        assert!(matches!(lease.status().state, LeaseState::Ended(LeaseEnd::Lost { .. })));
        // The end is taken in a second time.
        tokio::time::sleep(TTL).await;
        assert!(session.give_up());
        assert_eq!(client.early_ends(), sessions, "it was counted twice");
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_is_blamed_for_other_ends() {
    let bench = Bench::new();
    let process = bench.process();
    let open = || process.client().session().ttl(TTL).open();

    let silent = open().await.expect("opened");
    process.cut();
    bench.pass(TTL * 2).await;
    process.heal();
    silent.ended().await;
    assert_eq!(silent.ended_early(), None, "it had run out by both clocks");

    open().await.expect("opened").close().await;

    // The answer to a close is lost, and a release that comes later is told that there is no such session.
    let session = open().await.expect("opened");
    let lease = session.acquire("r").await.expect("granted");
    process.drop_pushes(true);
    process.drop_requests(1);
    drop(lease);
    process.drop_answers(1);
    session.close().await;
    assert_eq!(process.client().early_ends(), 0);
}
