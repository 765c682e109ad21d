//! Where the client's own work runs. This file puts futures on threads; it never looks into them.
//!
//! In production each kind of work has a thread of its own with a runtime of its own, shared by all clients
//! of the process: the *renewer* (renewals, and nothing else), the *calls* (commands, reads, watches) and the
//! *hooks* (the application's callbacks). So an application whose runtime is blocked keeps its leases, a
//! flood of commands delays no renewal, and a callback that hangs delays only other callbacks. In simulation
//! all of it is tasks of one runtime, which is then the only source of order.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Where the client's own work runs.
#[derive(Clone, Debug, Default)]
pub enum Execution {
    /// On threads of its own, made once per process.
    #[default]
    Threads,
    /// As tasks of one runtime: for simulation and for tests with paused time.
    Tasks(Tasks),
}

/// A runtime whose tasks do all the work, and a gate that can hold them.
#[derive(Clone, Debug)]
pub struct Tasks {
    handle: Handle,
    gate: Arc<Gate>,
}

impl Tasks {
    /// Tasks of the runtime that this is called in.
    ///
    /// # Panics
    ///
    /// If it is called outside of one.
    pub fn current() -> Tasks {
        Tasks { handle: Handle::current(), gate: Arc::default() }
    }

    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }
}

/// While it is shut nothing behind it moves, as in a process that was stopped: timers run out, messages
/// arrive, and nobody looks.
#[derive(Debug, Default)]
pub(crate) struct Gate(Mutex<GateInside>);

#[derive(Debug, Default)]
struct GateInside {
    shut: bool,
    waiting: Vec<Waker>,
}

impl Gate {
    pub fn is_shut(&self) -> bool {
        self.inside().shut
    }

    pub fn shut(&self) {
        self.inside().shut = true;
    }

    pub fn open(&self) {
        let waiting = {
            let mut inside = self.inside();
            inside.shut = false;
            std::mem::take(&mut inside.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    fn inside(&self) -> std::sync::MutexGuard<'_, GateInside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The future, moving only while the gate is open.
    pub async fn behind<F: Future<Output = ()>>(self: Arc<Self>, future: F) {
        tokio::pin!(future);
        std::future::poll_fn(|context| {
            let mut inside = self.inside();
            if inside.shut {
                inside.waiting.push(context.waker().clone());
                return Poll::Pending;
            }
            drop(inside);
            future.as_mut().poll(context)
        })
        .await
    }
}

/// The kinds of work that must not wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Renewer,
    Calls,
    Hooks,
}

impl Execution {
    /// Runs a future to its end, whether or not anybody waits for it.
    pub(crate) fn spawn(&self, work: Work, future: impl Future<Output = ()> + Send + 'static) {
        match self {
            Execution::Threads => drop(work.runtime().spawn(future)),
            Execution::Tasks(tasks) => drop(tasks.handle.spawn(tasks.gate.clone().behind(future))),
        }
    }

    /// Waits without needing a timer of the caller's runtime.
    pub(crate) async fn sleep(&self, length: Duration) {
        let (done, rang) = oneshot::channel::<()>();
        self.spawn(Work::Calls, async move {
            let mut done = done;
            tokio::select! {
                biased;
                () = done.closed() => {}
                () = tokio::time::sleep(length) => drop(done),
            }
        });
        let _ = rang.await;
    }
}

impl Work {
    fn thread_name(self) -> &'static str {
        match self {
            Work::Renewer => "tenure-renewer",
            Work::Calls => "tenure-calls",
            Work::Hooks => "tenure-hooks",
        }
    }

    /// The runtime of this kind of work in this process; made on first use, and again in a forked child,
    /// which inherits no thread.
    fn runtime(self) -> Handle {
        static RUNTIMES: Mutex<[Option<(u32, Handle)>; 3]> = Mutex::new([None, None, None]);
        let process = std::process::id();
        let mut runtimes = RUNTIMES.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &mut runtimes[self as usize];
        match slot {
            Some((made_in, handle)) if *made_in == process => handle.clone(),
            _ => slot.insert((process, start_thread(self.thread_name()))).1.clone(),
        }
    }
}

fn start_thread(name: &str) -> Handle {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a process that can hold a lease can make a runtime");
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name(name.to_owned())
        // It runs for as long as the process: leases may be held until its last moment.
        .spawn(move || runtime.block_on(std::future::pending::<()>()))
        .expect("a process that can hold a lease can start a thread");
    handle
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_without_a_runtime_of_the_callers() {
        let (sender, receiver) = std::sync::mpsc::channel();
        for work in [Work::Renewer, Work::Calls, Work::Hooks] {
            let sender = sender.clone();
            Execution::Threads.spawn(work, async move {
                let name = std::thread::current().name().map(str::to_owned);
                sender.send(name).expect("the test waits");
            });
        }
        drop(sender);
        let mut names: Vec<_> = receiver.iter().flatten().collect();
        names.sort();
        assert_eq!(names, ["tenure-calls", "tenure-hooks", "tenure-renewer"]);
    }
}
