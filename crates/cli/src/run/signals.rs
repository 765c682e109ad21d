//! The signals that `run`, its guardian and the first process of a namespace catch. This file decides which;
//! what is done with them is decided elsewhere.

use std::io;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Those that are passed on: everything by which people and supervisors talk to a process.
pub const PASSED_ON: [i32; 7] = [HUP, INT, QUIT, USR1, USR2, super::logic::TERM, WINCH];
/// Sent by a terminal to everybody in the foreground, so there the child has had it already.
pub const FROM_TERMINAL: [i32; 2] = [INT, QUIT];
/// A terminal's request to stand still.
pub const TSTP: i32 = 20;

const HUP: i32 = 1;
const INT: i32 = 2;
const QUIT: i32 = 3;
const USR1: i32 = 10;
const USR2: i32 = 12;
const WINCH: i32 = 28;

/// Signals that are caught for as long as this lives, and for the rest of the process.
pub struct Signals(Vec<(i32, Signal)>);

impl Signals {
    /// Catches what is passed on, and a terminal's stop: a holder must not stand still while its lease runs
    /// out. What this process was started to ignore, as by `nohup`, stays ignored, by the child too.
    pub fn catch() -> io::Result<Signals> {
        let ignored = ignored(&std::fs::read_to_string("/proc/self/status").unwrap_or_default());
        let wanted = PASSED_ON.into_iter().chain([TSTP]).filter(|number| ignored >> (number - 1) & 1 == 0);
        let caught = wanted.map(|number| Ok((number, signal(SignalKind::from_raw(number))?)));
        caught.collect::<io::Result<Vec<_>>>().map(Signals)
    }

    /// The next signal that arrives.
    pub async fn next(&mut self) -> i32 {
        std::future::poll_fn(|context| {
            for (number, signal) in &mut self.0 {
                if signal.poll_recv(context).is_ready() {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Whether a signal asks a process to end. A hang-up does not: daemons take it as a word to read their
/// settings again.
pub fn asks_to_end(signal: i32) -> bool {
    matches!(signal, INT | QUIT | super::logic::TERM)
}

/// Whether a signal ends a process that has nothing yet to pass it on to.
pub fn ends_a_waiter(signal: i32) -> bool {
    asks_to_end(signal) || signal == HUP
}

/// The set of ignored signals in what the kernel says about a process.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nohup_ignores_is_seen() {
        let mask = ignored("Name:\ttenure\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000001\n");
        assert_eq!(mask >> (HUP - 1) & 1, 1);
        assert_eq!(mask >> (INT - 1) & 1, 0);
        assert_eq!(ignored(""), 0);
    }
}
