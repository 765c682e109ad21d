//! The stories that `tenure demo` tells: real processes on this machine, each story first without the protection, so
//! that the damage is seen, and then with it.
//!
//! A story is a director: it opens a `stage` (nodes of this very binary, in a temporary folder, on free ports), lets
//! actors enter (this binary again, with a part to play), freezes and wakes them with real signals, and narrates.
//! It decides nothing about leases, and it measures only: no decision depends on a clock that is read here.
//!
//! Read `pause.rs` first: it is the whole argument in one screen.

mod actor;
mod cleanup;
mod cricstream;
mod http;
mod lock;
mod narrator;
mod part;
mod partition;
mod pause;
mod paysetu;
mod redlock;
mod stage;
mod storm;
mod wire;

use std::fmt;
use std::time::Duration;

pub use actor::COMMAND as ACTOR;
pub use narrator::Narrator;
pub use part::play;

/// A story.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Story {
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

impl Story {
    /// All of them, in the order in which they are best heard.
    pub const ALL: [Story; 7] = [
        Story::Lock,
        Story::Pause,
        Story::Paysetu,
        Story::Cricstream,
        Story::Partition,
        Story::Redlock,
        Story::Storm,
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Story::Pause => "pause",
            Story::Paysetu => "paysetu",
            Story::Cricstream => "cricstream",
            Story::Partition => "partition",
            Story::Redlock => "redlock",
            Story::Storm => "storm",
            Story::Lock => "lock",
        }
    }

    /// What it is about, in a line.
    pub const fn about(self) -> &'static str {
        match self {
            Story::Pause => "a holder stops for longer than its TTL between checking its lease and writing",
            Story::Paysetu => "the settlement batch that ran twice, and how a successor resumes instead",
            Story::Cricstream => "eleven seconds without a leader at a deployment, and what is left of them",
            Story::Partition => "a holder that is cut off stops before its successor starts",
            Story::Redlock => "why a quorum of Redis locks without a token is not safe",
            Story::Storm => "what jitter and batching do to the renewals of a fleet of 10,000",
            Story::Lock => "a holder dies, is cut off, stands still: a lock is stuck, a lease is not",
        }
    }
}

/// How a story is told.
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

/// How a story ended: what was seen without the protection and with it, for programs.
pub type Seen = serde_json::Value;

/// Tells a story.
pub fn tell(story: Story, options: &Options, narrator: &mut Narrator) -> Result<Seen, DemoError> {
    cleanup::on_interrupt();
    narrator.title(story.name(), story.about());
    match story {
        Story::Pause => pause::tell(options, narrator),
        Story::Paysetu => paysetu::tell(options, narrator),
        Story::Cricstream => cricstream::tell(options, narrator),
        Story::Partition => partition::tell(options, narrator),
        Story::Redlock => redlock::tell(options, narrator),
        Story::Storm => storm::tell(options, narrator),
        Story::Lock => lock::tell(options, narrator),
    }
}

/// Why a story could not be told to its end: what happened, and what to do.
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
        DemoError(format!("the machine did not play along: {error}"))
    }
}

/// A moment of the one clock that all processes of this machine share. For drawing, never for deciding.
fn moment() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}
