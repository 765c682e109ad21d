//! Spin wait: stays awake for what will come soon, instead of sleeping until it does; and who goes first then.
//!
//! To wake a thread whose processor has gone idle takes tens of microseconds, several times for each commit.
//! Where one small entry follows another and each waits for the one before, that is a good part of what a
//! caller waits for. So those who are next in such a streak spin for a moment before they sleep: never longer
//! than [`SPIN_MAX`], and only if the last one came that soon. It takes processor time that nobody else asks
//! for, and decides nothing.

use std::convert::Infallible;
use std::time::Duration;
use tokio::time::Instant;

/// The longest spin wait.
pub const SPIN_MAX: Duration = Duration::from_micros(500);

/// Keeps the thread awake for so long, if at all, and then waits for ever: to be polled beside what is waited for, behind it.
/// Whoever is ready goes first, other tasks and other programs alike, and what is waited for is woken by its own waker, not
/// found at a next look.
pub async fn spin_wait(length: Option<Duration>) -> Infallible {
    if let Some(length) = length {
        let started = Instant::now();
        while started.elapsed() < length {
            std::thread::yield_now();
            tokio::task::yield_now().await;
        }
    }
    std::future::pending().await
}

/// Lets all tasks go first that are ready now, and those that they make ready.
pub(crate) async fn after_the_others() {
    // Twice, because the runtime looks for events now and then while tasks are still ready, and what has yielded goes on
    // then, too.
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
}

/// Whether things come one by one, each after the answer to the one before.
#[derive(Debug, Default)]
pub struct Streak {
    lone: u32,
}

impl Streak {
    /// So many alone are a streak.
    pub const LENGTH: u32 = 8;

    /// Something came, alone or not.
    pub fn came(&mut self, alone: bool) {
        self.lone = if alone { self.lone.saturating_add(1) } else { 0 };
    }

    /// Whether there is a streak.
    pub fn is_on(&self) -> bool {
        self.lone >= Self::LENGTH
    }

    /// How long to spin for the next thing, if at all: the last one came after this `pause`.
    pub fn spin_for(&self, pause: Option<Duration>) -> Option<Duration> {
        let soon = pause.is_some_and(|pause| pause <= SPIN_MAX);
        (self.is_on() && soon).then_some(SPIN_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn what_is_awaited_arrives_during_the_spin_wait_and_after_it() {
        for length in [Some(Duration::from_secs(20)), Some(Duration::ZERO), None] {
            let (sender, receiver) = oneshot::channel();
            tokio::spawn(async move {
                after_the_others().await;
                sender.send(()).unwrap();
            });
            tokio::select! {
                biased;
                receiver = receiver => receiver.unwrap(),
                never = spin_wait(length) => match never {},
            }
        }
    }

    /// One task wakes another, and that one a third: all of them go first.
    #[tokio::test]
    async fn the_others_go_first_and_those_that_they_wake() {
        let tasks = tokio::task::LocalSet::new();
        let order = Rc::new(RefCell::new(Vec::new()));
        let note = |name| {
            let order = order.clone();
            move || order.borrow_mut().push(name)
        };
        let ((first, second), (third, fourth)) = (oneshot::channel(), oneshot::channel());
        let (last, one, two) = (note("last"), note("one"), note("two"));
        tasks.spawn_local(async move {
            after_the_others().await;
            last();
        });
        tasks.spawn_local(async move {
            second.await.unwrap();
            two();
            third.send(()).unwrap();
        });
        tasks.spawn_local(async move {
            one();
            first.send(()).unwrap();
        });
        tasks.run_until(async { fourth.await.unwrap() }).await;
        tasks.await;
        assert_eq!(*order.borrow(), ["one", "two", "last"]);
    }

    #[test]
    fn a_streak_ends_with_company_and_spins_only_if_it_goes_on_soon() {
        let mut streak = Streak::default();
        for _ in 0..Streak::LENGTH {
            assert!(!streak.is_on() && streak.spin_for(Some(SPIN_MAX)).is_none());
            streak.came(true);
        }
        assert!(streak.is_on());
        assert_eq!(streak.spin_for(Some(SPIN_MAX)), Some(SPIN_MAX));
        assert_eq!(streak.spin_for(Some(SPIN_MAX + Duration::from_nanos(1))), None);
        assert_eq!(streak.spin_for(None), None);
        streak.came(false);
        assert!(!streak.is_on() && streak.spin_for(Some(Duration::ZERO)).is_none());
    }
}
