//! Looking out for what will come soon, instead of sleeping until it does; and who goes first when it has come.
//!
//! To wake a thread whose processor has gone idle takes tens of microseconds, several times for each commit. Where one small entry
//! follows another and each waits for the one before, that is a good part of what a caller waits for. So those who are next in
//! such a row look out for a moment before they sleep: never longer than [`LOOK_OUT`], and only if the last one came that
//! soon. It takes processor time that nobody else asks for, and decides nothing.

use std::convert::Infallible;
use std::time::Duration;
use tokio::time::Instant;

/// How long something is looked out for, at most.
pub const LOOK_OUT: Duration = Duration::from_micros(500);

/// Keeps the thread awake for so long, if at all, and then waits for ever: to be polled beside what is waited for, behind it.
/// Whoever is ready goes first, other tasks and other programs alike, and what is waited for is woken by its own waker, not
/// found at a next look.
pub async fn look_out(length: Option<Duration>) -> Infallible {
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
pub struct Row {
    lone: u32,
}

impl Row {
    /// So many alone are a row.
    pub const LENGTH: u32 = 8;

    /// Something came, alone or not.
    pub fn came(&mut self, alone: bool) {
        self.lone = if alone { self.lone.saturating_add(1) } else { 0 };
    }

    /// Whether there is one.
    pub fn is_one(&self) -> bool {
        self.lone >= Self::LENGTH
    }

    /// How long to look out for the next thing, if at all: the last one came after this `pause`.
    pub fn look_out(&self, pause: Option<Duration>) -> Option<Duration> {
        let soon = pause.is_some_and(|pause| pause <= LOOK_OUT);
        (self.is_one() && soon).then_some(LOOK_OUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn what_is_waited_for_is_heard_while_looking_out_and_afterwards() {
        for length in [Some(Duration::from_secs(20)), Some(Duration::ZERO), None] {
            let (told, heard) = oneshot::channel();
            tokio::spawn(async move {
                after_the_others().await;
                told.send(()).unwrap();
            });
            tokio::select! {
                biased;
                heard = heard => heard.unwrap(),
                never = look_out(length) => match never {},
            }
        }
    }

    /// Told by one task, taken up by another, and that one told a third: all of that goes first.
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
    fn a_row_is_broken_by_company_and_looked_out_from_only_if_it_goes_on_soon() {
        let mut row = Row::default();
        for _ in 0..Row::LENGTH {
            assert!(!row.is_one() && row.look_out(Some(LOOK_OUT)).is_none());
            row.came(true);
        }
        assert!(row.is_one());
        assert_eq!(row.look_out(Some(LOOK_OUT)), Some(LOOK_OUT));
        assert_eq!(row.look_out(Some(LOOK_OUT + Duration::from_nanos(1))), None);
        assert_eq!(row.look_out(None), None);
        row.came(false);
        assert!(!row.is_one() && row.look_out(Some(Duration::ZERO)).is_none());
    }
}
