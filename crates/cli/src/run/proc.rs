//! Processes as the kernel shows them: who descends from whom, who is alive, and handles that cannot be
//! mistaken for another process. This file looks and signals; it never decides whom.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, pidfd_send_signal, wait,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::logic::Ending;

/// One process at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// Its parent's number.
    pub parent: i32,
    /// Dead, and not yet waited for.
    pub zombie: bool,
}

/// Every process that can be seen.
fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter_map(look_at).collect()
}

/// One process, if it is there.
pub fn look_at(pid: i32) -> Option<Process> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    read_stat(pid, &text)
}

fn read_stat(pid: i32, text: &str) -> Option<Process> {
    // The name stands in parentheses and may contain anything, so what counts starts after the last one.
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    Some(Process { pid, parent, zombie: matches!(state, "Z" | "X" | "x") })
}

/// Everything that descends from `root`, zombies included, without `root` and without what is below `except`.
pub fn descendants(root: i32, except: &BTreeSet<i32>) -> Vec<Process> {
    below(root, except, all())
}

fn below(root: i32, except: &BTreeSet<i32>, all: Vec<Process>) -> Vec<Process> {
    let mut children: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
    for process in all {
        children.entry(process.parent).or_default().push(process);
    }
    let (mut found, mut open) = (Vec::new(), vec![root]);
    while let Some(parent) = open.pop() {
        for process in children.remove(&parent).unwrap_or_default() {
            if !except.contains(&process.pid) {
                open.push(process.pid);
                found.push(process);
            }
        }
    }
    found
}

/// The children that this process has now.
pub fn own_children() -> BTreeSet<i32> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    all().into_iter().filter(|process| process.parent == own).map(|process| process.pid).collect()
}

/// Signals a process by its number; one that is gone is no error.
pub fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

/// What came of reaping the dead.
#[derive(Debug, Default)]
pub struct Reaped {
    /// Who was reaped, and how each of them ended.
    pub dead: Vec<(i32, Ending)>,
    /// This process has no child any more. If it adopts what its descendants leave behind, it has then no
    /// descendant either: each of those has a living parent, or is its own child.
    pub childless: bool,
}

/// Reaps every child that is dead.
pub fn reap() -> Reaped {
    let mut reaped = Reaped::default();
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => {
                let ending = match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => Ending::Exited(code),
                    (None, Some(signal)) => Ending::Signaled(signal),
                    (None, None) => continue,
                };
                reaped.dead.push((pid.as_raw_nonzero().get(), ending));
            }
            Ok(None) => return reaped,
            Err(rustix::io::Errno::INTR) => {}
            // No child: the one way in which this can fail.
            Err(_) => {
                reaped.childless = true;
                return reaped;
            }
        }
    }
}

/// A handle on one process, which no other process can come to be behind.
#[derive(Debug)]
pub struct Handle(AsyncFd<OwnedFd>);

impl Handle {
    /// A handle on a process that cannot be replaced meanwhile: a child that was not waited for, or the
    /// parent.
    ///
    /// The way in is deprecated because of types that do not own the file that they name. This one does.
    #[allow(deprecated)]
    pub fn open(pid: i32) -> io::Result<Handle> {
        let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
        let fd = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Handle(AsyncFd::with_interest(fd, Interest::READABLE)?))
    }

    /// Sends it a signal; one that is gone is no error.
    pub fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(self.0.get_ref(), signal);
    }

    /// Waits until it is dead.
    pub async fn dead(&self) {
        // A handle becomes readable when its process ends. If it cannot be watched, nothing is known: that is
        // not death, so it is not reported.
        if self.0.readable().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_contain_anything() {
        let stat = "17 (a) Z (b) S 5 17 17 0 -1 4194560";
        let process = read_stat(17, stat).expect("a line of the kernel's");
        assert_eq!((process.pid, process.parent, process.zombie), (17, 5, false));
        assert!(read_stat(17, "17 (x) Z 5 1 1").expect("a zombie").zombie);
        assert!(read_stat(17, "").is_none());
    }

    #[test]
    fn descendants_are_found_through_every_generation() {
        let one = |pid, parent| Process { pid, parent, zombie: false };
        let all = vec![one(9, 8), one(2, 1), one(3, 2), one(8, 3), one(5, 1), one(7, 6)];
        let mut found: Vec<i32> = below(2, &BTreeSet::new(), all.clone()).iter().map(|p| p.pid).collect();
        found.sort_unstable();
        assert_eq!(found, [3, 8, 9]);
        assert!(below(2, &BTreeSet::from([3]), all).is_empty(), "what is excepted hides what is below it");
    }

    #[test]
    fn this_process_has_a_parent() {
        let own = look_at(std::process::id() as i32).expect("it is running");
        assert_eq!(own.parent, std::os::unix::process::parent_id() as i32);
        assert!(!own.zombie);
    }
}
