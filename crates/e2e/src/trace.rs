//! Watching a node from outside with strace: which syncs it has done, and what happens when one stalls.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::node::Node;
use crate::program::find;
use crate::scratch::Scratch;
use crate::wait::until;

const ATTACHED_WITHIN: Duration = Duration::from_secs(10);

/// The flag of a descriptor by which a write is durable when it returns, as `/proc` shows it.
const O_DSYNC: u32 = 0o10_000;

/// Counts the syncs of a node: calls that sync, and writes that are durable when they return. strace writes the line of a
/// finished call before the node goes on, so a sync that preceded an answer is counted when the answer is here.
pub struct SyncObserver {
    trace: Trace,
    pid: u32,
}

impl SyncObserver {
    /// Watches all threads of the node.
    pub fn attach(node: &Node) -> Self {
        Self { trace: Trace::attach(node, &["-e", "trace=fdatasync,fsync,pwrite64"]), pid: node.pid() }
    }

    /// Syncs that have succeeded so far.
    pub fn syncs(&self) -> usize {
        finished(&self.trace.lines())
            .into_iter()
            .filter(|(call, file)| call.contains("sync") || self.writes_durably(file))
            .count()
    }

    fn writes_durably(&self, file: &str) -> bool {
        let info = std::fs::read_to_string(format!("/proc/{}/fdinfo/{file}", self.pid)).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        flags
            .is_some_and(|flags| u32::from_str_radix(flags.trim(), 8).is_ok_and(|flags| flags & O_DSYNC != 0))
    }
}

/// The calls that have succeeded, each with the descriptor that it was about. While a call of one thread lasts, calls of
/// others may be told: then it takes two lines.
fn finished(lines: &[String]) -> Vec<(String, String)> {
    let mut under_way = BTreeMap::new();
    let mut done = Vec::new();
    for line in lines {
        let Some((thread, call_text)) = line.split_once(' ') else { continue };
        let begun = call_text.trim_start().split_once('(').and_then(|(call, rest)| {
            let file = rest.split([',', ')', ' ']).next()?;
            Some((call.to_owned(), file.to_owned()))
        });
        let succeeded = line.rsplit_once("= ").is_some_and(|(_, result)| result.parse::<u64>().is_ok());
        if call_text.contains("resumed>") {
            done.extend(under_way.remove(thread).filter(|_| succeeded));
        } else if line.ends_with("<unfinished ...>") {
            under_way.extend(begun.map(|begun| (thread.to_owned(), begun)));
        } else {
            done.extend(begun.filter(|_| succeeded));
        }
    }
    done
}

/// A disk that takes its time: every sync of the node's log is held up while this lives.
pub struct Stall {
    trace: Trace,
}

impl Stall {
    /// Holds up each further sync, and each write, which may be one, by `length` before it starts.
    pub fn start(node: &Node, length: Duration) -> Self {
        let inject = format!("inject=fdatasync,pwrite64:delay_enter={}", length.as_micros());
        Self { trace: Trace::attach(node, &["-e", "trace=fdatasync,pwrite64", "-e", &inject]) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_counted_when_it_has_succeeded() {
        let call_text = [
            r#"71 pwrite64(13, "h\0= 4096"..., 4096, 8192) = 4096"#,
            r#"71 pwrite64(14, "x"..., 4096, 0 <unfinished ...>"#,
            r#"72 fdatasync(9 <unfinished ...>"#,
            r#"71 <... pwrite64 resumed>) = 4096"#,
            r#"72 <... fdatasync resumed>) = -1 EIO (Input/output error)"#,
            r#"72 fdatasync(9) = 0"#,
            r#"71 pwrite64(15, "x"..., 4096, 0 <unfinished ...>"#,
        ];
        let done = finished(&call_text.map(String::from));
        let done: Vec<(&str, &str)> =
            done.iter().map(|(call, file)| (call.as_str(), file.as_str())).collect();
        assert_eq!(done, [("pwrite64", "13"), ("pwrite64", "14"), ("fdatasync", "9")]);
    }
}
