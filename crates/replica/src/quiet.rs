//! Whether a single caller is being served, who waits for each answer before it asks again.
//!
//! The server knows, and says so. In a quiet time nobody else is kept waiting by what makes that one answer come
//! sooner: followers that no majority needs hear of the entry a moment later, and in a row of entries the log writes where
//! it stands. It decides nothing but when things are done.

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
    OneInARow,
}

/// A word from the server; all clones hear it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quiet(Arc<AtomicU8>);

impl Quiet {
    pub fn set(&self, callers: Callers) {
        self.0.store(callers as u8, Ordering::Relaxed);
    }

    /// Whether one caller at a time is served.
    pub fn one_at_a_time(&self) -> bool {
        self.0.load(Ordering::Relaxed) != Callers::Several as u8
    }

    /// Whether a single caller asks again and again.
    pub fn one_in_a_row(&self) -> bool {
        self.0.load(Ordering::Relaxed) == Callers::OneInARow as u8
    }
}
