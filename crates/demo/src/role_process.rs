//! A process of a demo, as the demo controls it: this binary again, with a role. It prints events on stdout,
//! reads commands on stdin, and can be stopped and resumed.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::DemoError;
use crate::roles::Role;
use crate::testbed::Process;

/// How long a demo waits for an event before it gives up. Generous, as machines are busy.
const EVENT_WITHIN: Duration = Duration::from_secs(40);

/// The hidden command under which this binary runs a role.
pub const COMMAND: &str = "demo-role";

/// An event that a role process reported, and when, by the clock that all share.
#[derive(Clone, Debug)]
pub struct RoleEvent {
    pub at: Duration,
    pub said: String,
    pub body: Value,
}

impl RoleEvent {
    /// A number in it; zero if there is none.
    pub fn number(&self, name: &str) -> u64 {
        self.body[name].as_u64().unwrap_or(0)
    }

    /// A text in it; empty if there is none.
    pub fn text(&self, name: &str) -> &str {
        self.body[name].as_str().unwrap_or("")
    }
}

/// A process with a role. It is killed when it is dropped.
pub struct RoleProcess {
    name: String,
    process: Process,
    stdin: ChildStdin,
    events: Receiver<RoleEvent>,
    received: Vec<RoleEvent>,
}

impl RoleProcess {
    /// Starts it.
    pub fn start(name: &str, role: &Role) -> Result<RoleProcess, DemoError> {
        let role = serde_json::to_string(role).map_err(|error| DemoError::new(error.to_string()))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args([COMMAND, &role]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = Process::start(&mut command)?;
        let stdin = process.child().stdin.take().expect("it was asked for");
        let stdout = process.child().stdout.take().expect("it was asked for");
        let (send, events) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let Ok(body) = serde_json::from_str::<Value>(&line) else { continue };
                let at = Duration::from_micros(body["at_us"].as_u64().unwrap_or(0));
                let said = body["said"].as_str().unwrap_or("").to_owned();
                if send.send(RoleEvent { at, said, body }).is_err() {
                    return;
                }
            }
        });
        Ok(RoleProcess { name: name.to_owned(), process, stdin, events, received: Vec::new() })
    }

    /// Sends it a command line. A stopped process reads it when it resumes.
    pub fn send(&mut self, line: &str) -> Result<(), DemoError> {
        writeln!(self.stdin, "{line}")?;
        Ok(())
    }

    /// Waits for one of these events.
    pub fn wait_for(&mut self, wanted: &[&str]) -> Result<RoleEvent, DemoError> {
        self.wait_for_within(wanted, EVENT_WITHIN)?.ok_or_else(|| {
            let last = self.received.last().map_or("nothing", |event| event.said.as_str());
            DemoError::new(format!(
                "{} was to say {wanted:?} and said {last} last; the machine may be too busy: try again",
                self.name
            ))
        })
    }

    /// The same, but not for ever.
    pub fn wait_for_within(
        &mut self,
        wanted: &[&str],
        within: Duration,
    ) -> Result<Option<RoleEvent>, DemoError> {
        let started = Instant::now();
        loop {
            match self.events.recv_timeout(within.saturating_sub(started.elapsed())) {
                Ok(event) => {
                    self.received.push(event.clone());
                    if event.said == "failed" {
                        return Err(DemoError::new(format!("{} failed: {}", self.name, event.text("why"))));
                    }
                    if wanted.contains(&event.said.as_str()) {
                        return Ok(Some(event));
                    }
                }
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(DemoError::new(format!("{} left before it said {wanted:?}", self.name)));
                }
            }
        }
    }

    /// Everything that it has said so far.
    pub fn said(&mut self) -> &[RoleEvent] {
        self.received.extend(self.events.try_iter());
        &self.received
    }

    /// Stops it in its tracks, wherever it is (SIGSTOP).
    pub fn freeze(&mut self) -> Result<(), DemoError> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on (SIGCONT).
    pub fn wake(&mut self) -> Result<(), DemoError> {
        self.signal(Signal::CONT)
    }

    /// Asks it to end, as a deployment does (SIGTERM).
    pub fn terminate(&mut self) -> Result<(), DemoError> {
        self.signal(Signal::TERM)
    }

    /// Kills it (SIGKILL), and waits until it is gone.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    fn signal(&mut self, signal: Signal) -> Result<(), DemoError> {
        let pid = i32::try_from(self.process.child().id()).ok().and_then(Pid::from_raw);
        let pid = pid.expect("a child has a number");
        kill_process(pid, signal).map_err(|error| DemoError::from(std::io::Error::from(error)))
    }
}
