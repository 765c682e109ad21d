//! Commands that run only while a lease is held: `tenure run` and `tenure elect`.
//!
//! What must be true: nothing of the command's tree of processes is alive when the lease can be another's,
//! whichever single process of ours dies or stands still; and once the tree is *seen* dead the successor need
//! not wait for the TTL.
//!
//! | process | is | started as |
//! |---|---|---|
//! | `run` | the holder: session, renewals, signals, exit code | `tenure run …` |
//! | guardian | its twin, which kills when it cannot | `tenure @guardian …` |
//! | child | the first process of the tree, which becomes the command | `tenure @child …` |
//! | init | the same in a pid namespace, where it stays | `tenure @init …` |
//!
//! `logic.rs` and `guardian/logic.rs` decide, from events and times that they are given. `driver.rs` and
//! `guardian/mod.rs` wait and do. `tree/` holds the tree together. The promises, and where they end, are in
//! `docs/run.md`.

mod channel;
mod child;
mod driver;
mod guardian;
mod logic;
mod proc;
mod signals;
mod tree;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

pub use driver::{Ended, Plan, Stage};
pub use logic::{Cause, Ending};
pub use tree::Contain;

/// The names of our own helpers: not commands, so no list shows them.
const GUARDIAN: &str = "@guardian";
const CHILD: &str = "@child";
const INIT: &str = "@init";
const TRY: &str = "@try";

/// If this process was started as a helper, does that and says how it ended.
pub fn helper() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let name: OsString = arguments.next()?;
    let done = |result: std::io::Result<()>| match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    };
    match name.to_str()? {
        GUARDIAN => Some(done(guardian::main(arguments))),
        CHILD => Some(child::main(arguments)),
        INIT => Some(child::init(arguments)),
        TRY => {
            let words = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
            Some(done(tree::try_here(&words.0, &words.1)))
        }
        _ => None,
    }
}

/// This very program as one of our helpers. Named by the kernel's link to it, so that an upgrade on disk does
/// not put another version beside a `run` that is running.
fn own_program(helper: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("tenure").arg(helper);
    command
}
