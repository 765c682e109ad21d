//! Low-latency mode: a single caller is served, who waits for each answer before the next request.
//!
//! The server detects this and sets it. Nobody else is delayed by what makes that one answer come sooner: followers
//! that no majority needs get the entry a moment later, and in a streak of entries the log writes on the calling
//! thread. It decides nothing but when things are done.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// What the server knows of those who call it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Callers {
    /// There are several at a time.
    #[default]
    Several,
    /// One at a time, and the last one came after a pause: threads and disks have gone to sleep and take their time to wake,
    /// so that all should be woken as early as can be.
    OneAfterAPause,
    /// One at a time, each as soon as the last was answered: everything is awake, and waking another thread only takes time.
    OneBackToBack,
}

/// Set by the server; all clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct LowLatencyMode(Arc<AtomicU8>);

impl LowLatencyMode {
    pub fn set(&self, callers: Callers) {
        self.0.store(callers as u8, Ordering::Relaxed);
    }

    /// Whether one caller at a time is served.
    pub fn one_at_a_time(&self) -> bool {
        self.0.load(Ordering::Relaxed) != Callers::Several as u8
    }

    /// Whether a single caller sends one request after the other.
    pub fn one_back_to_back(&self) -> bool {
        self.0.load(Ordering::Relaxed) == Callers::OneBackToBack as u8
    }
}
