//! The demos of `tenure demo`: real processes on this machine. Each runs first without the protection, to
//! show the damage, and then with it.
//!
//! A demo starts nodes of this binary in a temporary folder on free ports (`testbed`), starts further
//! processes of this binary with a role each, stops and resumes them with signals, and prints what happens.
//! It contains no lease rule. It reads clocks only to measure.
//!
//! Read `pause.rs` first: it shows the whole argument on one screen.

mod cleanup;
mod cricstream;
mod http;
mod lock;
mod narrator;
mod partition;
mod pause;
mod paysetu;
mod proxy;
mod redlock;
mod role_process;
mod roles;
mod storm;
mod testbed;

use std::fmt;
use std::time::Duration;

pub use narrator::Narrator;
pub use role_process::COMMAND as ROLE_COMMAND;
pub use roles::run_role;

/// A demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demo {
    /// A pause longer than the TTL, and a write that lands after it.
    Pause,
    /// The settlement batch that ran twice.
    Paysetu,
    /// The gap without a leader at every deployment.
    Cricstream,
    /// A holder that is cut off from the store.
    Partition,
    /// A quorum of independent locks without a token.
    Redlock,
    /// The renewals of a fleet.
    Storm,
    /// Three ways to fall silent, with a lock and with a lease.
    Lock,
}

impl Demo {
    /// All of them, in the order in which they are best heard.
    pub const ALL: [Demo; 7] = [
        Demo::Lock,
        Demo::Pause,
        Demo::Paysetu,
        Demo::Cricstream,
        Demo::Partition,
        Demo::Redlock,
        Demo::Storm,
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Demo::Pause => "pause",
            Demo::Paysetu => "paysetu",
            Demo::Cricstream => "cricstream",
            Demo::Partition => "partition",
            Demo::Redlock => "redlock",
            Demo::Storm => "storm",
            Demo::Lock => "lock",
        }
    }

    /// What it is about, in a line.
    pub const fn about(self) -> &'static str {
        match self {
            Demo::Pause => "a holder stops for longer than its TTL between checking its lease and writing",
            Demo::Paysetu => "the settlement batch that ran twice, and how a successor resumes instead",
            Demo::Cricstream => "eleven seconds without a leader at a deployment, and what is left of them",
            Demo::Partition => "a holder that is cut off stops before its successor starts",
            Demo::Redlock => "why a quorum of Redis locks without a token is not safe",
            Demo::Storm => "what jitter and batching do to the renewals of a fleet of 10,000",
            Demo::Lock => "a holder dies, is cut off, stands still: a lock is stuck, a lease is not",
        }
    }
}

/// How a demo runs.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Shorter TTLs and smaller fleets, for machines that only check that it still works.
    pub quick: bool,
    /// The token of the first holder in `pause`.
    pub first_token: u64,
    /// How many sessions `storm` has.
    pub fleet: usize,
}

impl Options {
    /// The TTL of holders that are going to be frozen.
    fn ttl(&self) -> Duration {
        Duration::from_millis(if self.quick { 2_000 } else { 3_000 })
    }
}

/// The result of a demo, for programs: what was seen without the protection and with it.
pub type Seen = serde_json::Value;

/// Runs a demo.
pub fn run(demo: Demo, options: &Options, narrator: &mut Narrator) -> Result<Seen, DemoError> {
    cleanup::on_interrupt();
    narrator.title(demo.name(), demo.about());
    match demo {
        Demo::Pause => pause::run(options, narrator),
        Demo::Paysetu => paysetu::run(options, narrator),
        Demo::Cricstream => cricstream::run(options, narrator),
        Demo::Partition => partition::run(options, narrator),
        Demo::Redlock => redlock::run(options, narrator),
        Demo::Storm => storm::run(options, narrator),
        Demo::Lock => lock::run(options, narrator),
    }
}

/// Why a demo could not finish: what happened, and what to do.
#[derive(Debug)]
pub struct DemoError(String);

impl DemoError {
    fn new(what: impl Into<String>) -> DemoError {
        DemoError(what.into())
    }
}

impl fmt::Display for DemoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DemoError {}

impl From<std::io::Error> for DemoError {
    fn from(error: std::io::Error) -> DemoError {
        DemoError(format!("this machine could not run the demo: {error}"))
    }
}

/// A moment of the one clock that all processes of this machine share. For drawing, never for deciding.
fn moment() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}
