//! Parts that a test program plays in processes of their own, so that they can be stopped and killed alone.
//!
//! A part is the test program itself, started again with one test (`part`) and a variable that says which part it plays.
//! It speaks in lines on its output and listens to lines on its input.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};

use crate::wait::until;

/// Names the part that this process plays.
const PART: &str = "TENURE_E2E_PART";
/// Tells what a part says from what the test harness prints.
const MARK: &str = "@@";

/// The part that this process plays, if it plays one.
pub fn playing() -> Option<String> {
    std::env::var(PART).ok()
}

/// A setting that the part was given.
pub fn given(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("the part was not given {name}"))
}

/// Says something to whoever started this part.
pub fn say(line: impl std::fmt::Display) {
    println!("{MARK}{line}");
}

/// Waits until the part is spoken to.
pub fn listen() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a part can be spoken to");
    line.trim().to_owned()
}

/// Nanoseconds of the clock that all processes of one machine share.
pub fn monotonic_nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A part that is being played. It is killed when dropped.
#[derive(Debug)]
pub struct Part {
    name: String,
    child: Child,
    stdin: ChildStdin,
    lines_in: Receiver<String>,
}

impl Part {
    /// Starts a part with its settings.
    pub fn start(name: &str, settings: &[(&str, String)]) -> Part {
        let program = std::env::current_exe().expect("a running program has a path");
        let mut child = Command::new(program)
            .args(["part", "--exact", "--nocapture", "--test-threads=1"])
            .env(PART, name)
            .envs(settings.iter().map(|(name, value)| (*name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test program can be started again");
        let stdin = child.stdin.take().expect("its input is ours");
        let lines = BufReader::new(child.stdout.take().expect("its output is ours")).lines();
        let (tell, lines_in) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some((_, said)) = line.split_once(MARK)
                    && tell.send(said.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        Part { name: name.to_owned(), child, stdin, lines_in }
    }

    /// Waits until it says something that begins with `word`, and gives what follows. Everything else is passed over.
    #[track_caller]
    pub fn receive(&self, word: &str, within: Duration) -> String {
        let (started, mut passed_over) = (Instant::now(), Vec::new());
        loop {
            let left = within.saturating_sub(started.elapsed());
            match self.lines_in.recv_timeout(left) {
                Ok(line) => match line.strip_prefix(word) {
                    Some(rest) => return rest.trim().to_owned(),
                    None => passed_over.push(line),
                },
                Err(RecvTimeoutError::Timeout) => {
                    panic!("{} did not say {word:?} within {within:?}; it said {passed_over:?}", self.name)
                }
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("{} ended without saying {word:?}; it said {passed_over:?}", self.name)
                }
            }
        }
    }

    /// Everything that it has said and that was not received yet.
    pub fn received_lines(&self) -> Vec<String> {
        self.lines_in.try_iter().collect()
    }

    /// Says something to it.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("a part can be spoken to");
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Stops it in its tracks, and waits until it has stopped.
    pub fn pause(&self) {
        kill_process(self.pid(), Signal::STOP).expect("a child can be signalled");
        until("the part is stopped", Duration::from_secs(5), || {
            let path = format!("/proc/{}/stat", self.child.id());
            let state = std::fs::read_to_string(path).unwrap_or_default();
            state.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('T'))
        });
    }

    /// Lets it go on.
    pub fn resume(&self) {
        kill_process(self.pid(), Signal::CONT).expect("a child can be signalled");
    }

    /// `kill -9`, and waits until it is gone.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Kills it, and gives everything that it had said and that was not received yet, to the last word.
    pub fn last_words(&mut self) -> Vec<String> {
        self.kill();
        self.lines_in.iter().collect()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.kill();
    }
}
