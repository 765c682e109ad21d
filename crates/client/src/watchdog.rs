//! The hard deadline. A thread of its own looks whether a permit is still out when its lease may be another's, and
//! then does what the application chose beforehand. It runs nothing else, takes no lock that the application's
//! code runs under, and so cannot be blocked by a hook that hangs.

use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use crate::keeper::Keeper;

/// The time between two looks. Shorter than the usual sigma, which is the slack between a deadline and the moment from
/// which the lease can be another's.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What happens when a permit is still out at the deadline of its lease.
#[derive(Clone, Copy, Debug)]
pub enum HardStop {
    /// The process is aborted: no destructor runs, nothing more is sent. What a supervisor restarts is safe; what goes on
    /// acting under a lease that is another's is not.
    Abort,
    /// This is called, once, with the fencing token of the lease. For processes that know a better way to stop at
    /// once, and for tests.
    Call(fn(u64)),
}

struct Watched {
    keeper: Weak<Keeper>,
    hard_stop: HardStop,
}

struct Registry {
    process: u32,
    watched: Vec<Watched>,
}

static REGISTRY: Mutex<Option<Registry>> = Mutex::new(None);
static ADDED: Condvar = Condvar::new();

/// Watches a session until it is gone.
pub(crate) fn watch(keeper: &Arc<Keeper>, hard_stop: HardStop) {
    let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    let watched = Watched { keeper: Arc::downgrade(keeper), hard_stop };
    match &mut *registry {
        Some(registry) if registry.process == std::process::id() => registry.watched.push(watched),
        _ => {
            *registry = Some(Registry { process: std::process::id(), watched: vec![watched] });
            std::thread::Builder::new()
                .name("tenure-watchdog".to_owned())
                .spawn(look_for_ever)
                .expect("a process that can hold a lease can start a thread");
        }
    }
    ADDED.notify_all();
}

fn look_for_ever() {
    let mut guard = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let registry = guard.as_mut().expect("the thread is started after the registry is made");
        registry.watched.retain(|watched| {
            let Some(keeper) = watched.keeper.upgrade() else { return false };
            let Some(token) = keeper.overstaying() else { return true };
            match watched.hard_stop {
                HardStop::Abort => {
                    eprintln!(
                        "tenure: work under token {token} was still going on at its deadline; aborting, because \
                         the lease may be another's"
                    );
                    std::process::abort();
                }
                // Elsewhere: if it hangs, the other sessions are watched all the same.
                HardStop::Call(call) => drop(std::thread::spawn(move || call(token.get()))),
            }
            false
        });
        guard = if registry.watched.is_empty() {
            ADDED.wait(guard).unwrap_or_else(PoisonError::into_inner)
        } else {
            ADDED.wait_timeout(guard, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner).0
        };
    }
}
