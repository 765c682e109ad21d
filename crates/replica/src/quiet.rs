//! Whether a single caller is being served, who waits for each answer before it asks again.
//!
//! The server knows, and says so. In a quiet time nobody else is kept waiting by what makes that one answer come
//! sooner: the log writes where it stands, and followers that no majority needs hear of the entry a moment later. It decides
//! nothing but when things are done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A word from the server; all clones hear it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quiet(Arc<AtomicBool>);

impl Quiet {
    pub fn set(&self, quiet: bool) {
        self.0.store(quiet, Ordering::Relaxed);
    }

    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
