//! What holds a tree together, so that all of it can be killed and be seen dead.
//!
//! Whatever the containment, `run` and its guardian adopt what their descendants leave behind (they are
//! subreapers), so a process without children has no descendants: *seen dead* is the kernel's word and never
//! a scan that found nothing. What the containments differ in is how surely a tree dies in one step:
//!
//! | containment | kills |
//! |---|---|
//! | cgroup | everything in it at once, however fast it forks |
//! | pid namespace | everything in it at once, even if `run` and the guardian are killed together |
//! | subreaper | what a look at `/proc` finds, again and again until nothing is left |

mod cgroup;
mod namespace;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

use rustix::process::Signal;

pub use cgroup::Cgroup;
pub use namespace::settle as settle_in_namespace;

use super::logic::Ending;
use super::proc;

/// How long after a kill it is looked again, at first and at most.
const LOOK_FIRST: Duration = Duration::from_millis(1);
const LOOK_MAX: Duration = Duration::from_millis(20);
/// After this long it is reported that processes do not die.
const STUCK_AFTER: u32 = 100;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Contain {
    /// The first of the others that is allowed here
    Auto,
    /// A cgroup v2 of its own
    Cgroup,
    /// A pid namespace of its own
    Namespace,
    /// Adoption of orphans, and killing until nothing is left
    Subreaper,
}

/// What holds one tree together.
#[derive(Debug)]
pub enum Tree {
    /// A cgroup of its own.
    Cgroup(Cgroup),
    /// A pid namespace of its own.
    Namespace,
    /// Nothing but descent.
    Subreaper,
}

impl Tree {
    /// The containment that was asked for, tried out; for [`Contain::Auto`] the best that is allowed.
    pub fn make(contain: Contain) -> Result<Tree, String> {
        let cgroup = || Cgroup::make().map(Tree::Cgroup).map_err(|error| format!("no cgroup: {error}"));
        let namespace = || {
            let tried = namespace::try_out().map(|()| Tree::Namespace);
            tried.map_err(|error| format!("no pid namespace: {error}"))
        };
        match contain {
            Contain::Cgroup => cgroup(),
            Contain::Namespace => namespace(),
            Contain::Subreaper => Ok(Tree::Subreaper),
            Contain::Auto => Ok(cgroup().or_else(|_| namespace()).unwrap_or(Tree::Subreaper)),
        }
    }

    /// What it is, for people.
    pub fn name(&self) -> &'static str {
        match self {
            Tree::Cgroup(_) => "a cgroup",
            Tree::Namespace => "a pid namespace",
            Tree::Subreaper => "a subreaper",
        }
    }

    /// The arguments that name this tree to another process of ours.
    pub fn to_words(&self) -> [OsString; 2] {
        match self {
            Tree::Cgroup(cgroup) => ["cgroup".into(), cgroup.path().into()],
            Tree::Namespace => ["namespace".into(), "-".into()],
            Tree::Subreaper => ["subreaper".into(), "-".into()],
        }
    }

    /// The tree that these words name.
    pub fn from_words(kind: &OsString, path: &OsString) -> Option<Tree> {
        match kind.to_str()? {
            "cgroup" => Some(Tree::Cgroup(Cgroup::at(PathBuf::from(path)))),
            "namespace" => Some(Tree::Namespace),
            "subreaper" => Some(Tree::Subreaper),
            _ => None,
        }
    }

    /// Starts the first process of the tree. It is one of our own, which puts itself where it belongs.
    pub fn spawn(&self, command: Command) -> io::Result<Child> {
        match self {
            Tree::Namespace => namespace::spawn(command),
            Tree::Cgroup(_) | Tree::Subreaper => {
                let mut command = command;
                command.spawn()
            }
        }
    }

    /// How its first process ended, from how the process that we wait for did: in a namespace that is its
    /// init, which passes signals on as a shell does because it cannot die of them itself.
    pub fn ending(&self, seen: Ending) -> Ending {
        match (self, seen) {
            (Tree::Namespace, Ending::Exited(code @ 129..=192)) => Ending::Signaled(code - 128),
            _ => seen,
        }
    }

    /// Asks every process of the tree to end.
    pub fn stop(&self, root: i32) {
        let mut members: BTreeSet<i32> =
            proc::descendants(root, &BTreeSet::new()).iter().map(|process| process.pid).collect();
        if let Tree::Cgroup(cgroup) = self {
            members.extend(cgroup.members());
        }
        members.into_iter().for_each(|pid| proc::signal(pid, Signal::TERM));
    }

    /// Kills every process below this one, except `inherited`, and waits until none is left. `expected` are
    /// not counted as left over. `stuck` is called, once, with what does not die.
    pub async fn kill_all(
        &self,
        inherited: &BTreeSet<i32>,
        expected: &BTreeSet<i32>,
        first: Option<i32>,
        stuck: impl Fn(&[i32]),
    ) -> Killed {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let mut killed = Killed::default();
        let mut left_over = BTreeSet::new();
        let (mut pause, mut looks, mut empty_looks) = (LOOK_FIRST, 0, 0);
        loop {
            if let Tree::Cgroup(cgroup) = self {
                left_over.extend(cgroup.members().into_iter().filter(|pid| !expected.contains(pid)));
                cgroup.kill();
            }
            let found = proc::descendants(own, inherited);
            let alive: Vec<i32> = found.iter().filter(|process| !process.zombie).map(|it| it.pid).collect();
            left_over.extend(alive.iter().filter(|pid| !expected.contains(*pid)));
            alive.iter().for_each(|pid| proc::signal(*pid, Signal::KILL));
            let reaped = proc::reap();
            killed.ending =
                killed.ending.or(reaped.dead.iter().find(|(pid, _)| Some(*pid) == first).map(|it| it.1));
            // With children that were here before us (`exec tenure run` in a shell with background jobs) the
            // kernel never says "no child", and two looks in a row that find nothing have to do.
            empty_looks = if found.is_empty() { empty_looks + 1 } else { 0 };
            let childless = reaped.childless || (!inherited.is_empty() && empty_looks >= 2);
            if childless && self.is_empty() {
                killed.left_over = left_over.len();
                return killed;
            }
            looks += 1;
            if looks == STUCK_AFTER {
                stuck(&alive);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LOOK_MAX);
        }
    }

    /// Whether the kernel says that nothing is in it.
    fn is_empty(&self) -> bool {
        match self {
            Tree::Cgroup(cgroup) => cgroup.is_empty(),
            Tree::Namespace | Tree::Subreaper => true,
        }
    }

    /// Leaves nothing behind of a tree that is dead.
    pub fn remove(&self) {
        if let Tree::Cgroup(cgroup) = self {
            cgroup.remove();
        }
    }
}

/// What came of killing everything.
#[derive(Debug, Default)]
pub struct Killed {
    /// Processes that had to be killed and were not expected to be there.
    pub left_over: usize,
    /// How the first process of the tree ended, if it was waited for here.
    pub ending: Option<Ending>,
}

/// Tries the containment out in a process of its own: nothing but doing it says whether it is allowed.
fn try_in_process(kind: &str, path: &std::path::Path) -> io::Result<()> {
    let mut command = super::own_program(super::TRY);
    command.arg(kind).arg(path).stdin(std::process::Stdio::null());
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(if why.is_empty() { output.status.to_string() } else { why }))
}

/// The other side of it: what is tried, in the process that tries it.
pub fn try_here(kind: &OsString, path: &OsString) -> io::Result<()> {
    match kind.to_str() {
        Some("cgroup") => Cgroup::at(PathBuf::from(path)).join(),
        Some("namespace") => namespace::try_here(),
        Some("settle") => namespace::settle(),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}
