//! How heavy a test is, and which tests may run beside each other.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The counts of the heavy measures: light in CI, full by `cargo xtask ci --full`.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Rounds of killing one node.
    pub kills: usize,
    /// Sessions that expire at once.
    pub mass_expiry: usize,
    /// Sessions whose renewals queue behind a stalled sync.
    pub stalled_renewals: usize,
    /// Connections that do nothing.
    pub idle_connections: usize,
    /// Single expiries measured.
    pub expiries: usize,
    /// Seconds that a flood lasts.
    pub flood_seconds: u64,
    /// The release build, and the measures as stated instead of scaled down.
    pub full: bool,
}

/// The scale of this run, from `TENURE_TEST_FULL`.
pub fn scale() -> Scale {
    let full = std::env::var("TENURE_TEST_FULL").is_ok_and(|value| !value.is_empty() && value != "0");
    if full {
        Scale {
            kills: 50,
            mass_expiry: 100_000,
            stalled_renewals: 100_000,
            idle_connections: 10_000,
            expiries: 50,
            flood_seconds: 30,
            full,
        }
    } else {
        Scale {
            kills: 10,
            mass_expiry: 20_000,
            stalled_renewals: 2_000,
            idle_connections: 1_000,
            expiries: 12,
            flood_seconds: 5,
            full,
        }
    }
}

static TURNS: RwLock<()> = RwLock::new(());
/// Taken around the waiting for a turn: the lock prefers nobody, and a steady stream of readers must not
/// keep a writer out for ever.
static DOOR: Mutex<()> = Mutex::new(());

/// A test's turn; others of its binary wait or run beside it until it is dropped.
pub enum Turn {
    /// Nothing else of this binary runs.
    Alone(RwLockWriteGuard<'static, ()>),
    /// Others that said so run too.
    Alongside(RwLockReadGuard<'static, ()>),
}

/// For tests that measure time or processor use: nothing else of this binary runs meanwhile.
pub fn alone() -> Turn {
    let _door = door();
    Turn::Alone(TURNS.write().unwrap_or_else(PoisonError::into_inner))
}

/// For tests that measure nothing.
pub fn alongside() -> Turn {
    let _door = door();
    Turn::Alongside(TURNS.read().unwrap_or_else(PoisonError::into_inner))
}

// A failed test poisons the lock; the next test is judged all the same.
fn door() -> MutexGuard<'static, ()> {
    DOOR.lock().unwrap_or_else(PoisonError::into_inner)
}
