//! The hard deadline. A thread of its own looks whether a permit is still out when its lease may be
//! another's, and then does what the application chose beforehand. It runs nothing else, takes no lock that
//! the application's code runs under, and so cannot be blocked by a hook that hangs.

use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use crate::session_driver::SessionDriver;

/// The longest time between two looks: a notice, or a clock that jumped, may bring a deadline nearer than it
/// was at the last look. A deadline that was known then is met, because the sleep ends there.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The shortest: two looks at one deadline are enough.
const LOOK_AGAIN_AFTER: Duration = Duration::from_micros(200);

/// What happens when a permit is still out at the deadline of its lease.
#[derive(Clone, Copy, Debug)]
pub enum HardStop {
    /// The process is aborted: no destructor runs, nothing more is sent. What a supervisor restarts is safe;
    /// what goes on acting under a lease that is another's is not.
    Abort,
    /// This is called, once, with the fencing token of the lease. For processes that know a better way to
    /// stop at once, and for tests.
    Call(fn(u64)),
}

struct Watched {
    driver: Weak<SessionDriver>,
    hard_stop: HardStop,
}

struct Registry {
    process: u32,
    watched: Vec<Watched>,
}

static REGISTRY: Mutex<Option<Registry>> = Mutex::new(None);
static ADDED: Condvar = Condvar::new();

/// Watches a session until it is gone.
pub(crate) fn watch(driver: &Arc<SessionDriver>, hard_stop: HardStop) {
    let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    let watched = Watched { driver: Arc::downgrade(driver), hard_stop };
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
        let mut look_after = LOOK_EVERY;
        registry.watched.retain(|watched| {
            let Some(driver) = watched.driver.upgrade() else { return false };
            let token = match driver.overstaying() {
                Ok(token) => token,
                Err(left) => {
                    look_after = left.map_or(look_after, |left| look_after.min(left));
                    return true;
                }
            };
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
            let look_after = look_after.max(LOOK_AGAIN_AFTER);
            ADDED.wait_timeout(guard, look_after).unwrap_or_else(PoisonError::into_inner).0
        };
    }
}
