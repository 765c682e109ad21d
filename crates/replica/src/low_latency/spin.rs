//! Spinning and yielding: how the decisions of this module are carried out by a task.
//!
//! Waking a thread whose processor has gone idle takes tens of microseconds, several times for each commit. A
//! task that expects its next event soon spins for a moment before it sleeps. It always yields to every ready
//! task.

use std::convert::Infallible;
use std::time::Duration;
use tokio::time::Instant;

/// Keeps the thread awake for this long, if at all, and then never returns: poll it beside what is awaited,
/// last. Ready tasks and other programs go first. The awaited event wakes its own waker, so it is not found
/// late.
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

/// Runs all tasks first that are ready now, and those that they make ready.
pub(crate) async fn yield_to_ready_tasks() {
    // Twice: the runtime sometimes polls for events while tasks are still ready, and then resumes tasks that
    // have yielded.
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn an_event_arrives_during_the_spin_wait_and_after_it() {
        for length in [Some(Duration::from_secs(20)), Some(Duration::ZERO), None] {
            let (sender, receiver) = oneshot::channel();
            tokio::spawn(async move {
                yield_to_ready_tasks().await;
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
    async fn ready_tasks_go_first_and_those_that_they_wake() {
        let tasks = tokio::task::LocalSet::new();
        let order = Rc::new(RefCell::new(Vec::new()));
        let note = |name| {
            let order = order.clone();
            move || order.borrow_mut().push(name)
        };
        let ((first, second), (third, fourth)) = (oneshot::channel(), oneshot::channel());
        let (last, one, two) = (note("last"), note("one"), note("two"));
        tasks.spawn_local(async move {
            yield_to_ready_tasks().await;
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
}
