//! Writes what a process does, one line for each event, as it happens: after a kill, the lines show what it
//! had begun and never finished. `recorder.rs` reads them.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure_fence::FenceError;

use crate::time::now;

static NEXT: AtomicU64 = AtomicU64::new(1);

/// A number that this process has not used before.
pub fn number() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Tells one line. Without a reader the run is over.
pub fn tell(line: &str) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

/// Tells that an operation begins; its number.
pub fn begin(what: &str) -> u64 {
    let number = number();
    tell(&format!("begin {number} {} {what}", now()));
    number
}

/// Reports how it ended. Without a report it is unknown.
pub fn end(number: u64, outcome: &str) {
    tell(&format!("end {number} {} {outcome}", now()));
}

/// Tells what came of a write to the ledger; whether to go on with this token.
pub fn wrote(scope: &str, token: u64, id: u64, came: &Result<(), FenceError>) -> bool {
    let word = match came {
        Ok(()) => "accepted",
        Err(FenceError::Stale(_)) => "stale",
        Err(FenceError::Unknown { .. }) => "unknown",
        Err(_) => "failed",
    };
    tell(&format!("entry {} {scope} {token} {id} {word}", now()));
    !matches!(came, Err(FenceError::Stale(_)))
}
