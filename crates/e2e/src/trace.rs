//! Watching a node from outside with strace: which syncs it has done, and what happens when one stalls.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::node::Node;
use crate::program::find;
use crate::scratch::Scratch;
use crate::wait::until;

const ATTACHED_WITHIN: Duration = Duration::from_secs(10);

/// Counts the syncs of a node. strace writes the line of a finished call before the node goes on, so a
/// sync that preceded an answer is counted when the answer is here.
pub struct SyncObserver {
    trace: Trace,
}

impl SyncObserver {
    /// Watches all threads of the node.
    pub fn attach(node: &Node) -> Self {
        Self { trace: Trace::attach(node, &["-e", "trace=fdatasync,fsync"]) }
    }

    /// Syncs that have succeeded so far.
    pub fn syncs(&self) -> usize {
        self.trace.lines().iter().filter(|line| line.contains("sync") && line.ends_with("= 0")).count()
    }
}

/// A disk that takes its time: every sync of the node's log is held up while this lives.
pub struct Stall {
    trace: Trace,
}

impl Stall {
    /// Holds up each further `fdatasync` by `length` before it starts.
    pub fn start(node: &Node, length: Duration) -> Self {
        let inject = format!("inject=fdatasync:delay_enter={}", length.as_micros());
        Self { trace: Trace::attach(node, &["-e", "trace=fdatasync", "-e", &inject]) }
    }

    /// Waits until a sync has been held up and is over.
    #[track_caller]
    pub fn wait_until_felt(&self, limit: Duration) {
        until("a sync was held up", limit, || {
            self.trace.lines().iter().any(|line| line.contains("(DELAYED)"))
        });
    }
}

/// strace, attached to a node until dropped.
struct Trace {
    child: Child,
    scratch: Scratch,
}

impl Trace {
    fn attach(node: &Node, arguments: &[&str]) -> Self {
        let scratch = Scratch::new("trace");
        let strace = find("strace").expect("the test has asked whether strace is installed");
        let mut command = Command::new(strace);
        command.args(["-f", "-qq"]).args(arguments).arg("-o").arg(scratch.path().join("trace"));
        command.arg("-p").arg(node.pid().to_string());
        let child = command.stdin(Stdio::null()).spawn().expect("strace can be started");
        let pid = node.pid();
        until("strace has attached to every thread", ATTACHED_WITHIN, || all_threads_traced(pid));
        Self { child, scratch }
    }

    fn lines(&self) -> Vec<String> {
        let path: PathBuf = self.scratch.path().join("trace");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().map(String::from).collect()
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // Interrupted, strace lets the node go on unharmed; killed, it could take the node with it.
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process(pid, Signal::INT);
        }
        let _ = self.child.wait();
    }
}

fn all_threads_traced(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().all(|thread| {
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
        tracer.is_some_and(|tracer| tracer.trim() != "0")
    })
}
