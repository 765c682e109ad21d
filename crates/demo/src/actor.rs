//! An actor as the director sees it: a process of this binary with a part to play. It says cues on its stdout, reads
//! lines on its stdin, and can be frozen and woken in between.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::DemoError;
use crate::part::Part;
use crate::stage::Process;

/// How long the director waits for a cue before it gives up on the story. Generous, as machines are busy.
const CUE_WITHIN: Duration = Duration::from_secs(40);

/// The hidden command under which this binary plays a part.
pub const COMMAND: &str = "demo-actor";

/// What an actor said, and when, by the clock that all share.
#[derive(Clone, Debug)]
pub struct Cue {
    pub at: Duration,
    pub said: String,
    pub body: Value,
}

impl Cue {
    /// A number in it; zero if there is none.
    pub fn number(&self, name: &str) -> u64 {
        self.body[name].as_u64().unwrap_or(0)
    }

    /// A text in it; empty if there is none.
    pub fn text(&self, name: &str) -> &str {
        self.body[name].as_str().unwrap_or("")
    }
}

/// A process with a part to play. It is killed when it is dropped.
pub struct Actor {
    name: String,
    process: Process,
    stdin: ChildStdin,
    cues: Receiver<Cue>,
    received: Vec<Cue>,
}

impl Actor {
    /// Lets it enter.
    pub fn enter(name: &str, part: &Part) -> Result<Actor, DemoError> {
        let part = serde_json::to_string(part).map_err(|error| DemoError::new(error.to_string()))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args([COMMAND, &part]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = Process::start(&mut command)?;
        let stdin = process.child().stdin.take().expect("it was asked for");
        let stdout = process.child().stdout.take().expect("it was asked for");
        let (send, cues) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let Ok(body) = serde_json::from_str::<Value>(&line) else { continue };
                let at = Duration::from_micros(body["at_us"].as_u64().unwrap_or(0));
                let said = body["said"].as_str().unwrap_or("").to_owned();
                if send.send(Cue { at, said, body }).is_err() {
                    return;
                }
            }
        });
        Ok(Actor { name: name.to_owned(), process, stdin, cues, received: Vec::new() })
    }

    /// Says a line to it. A frozen actor reads it when it wakes.
    pub fn tell(&mut self, line: &str) -> Result<(), DemoError> {
        writeln!(self.stdin, "{line}")?;
        Ok(())
    }

    /// Waits for one of these cues.
    pub fn cue(&mut self, wanted: &[&str]) -> Result<Cue, DemoError> {
        self.cue_within(wanted, CUE_WITHIN)?.ok_or_else(|| {
            let last = self.received.last().map_or("nothing", |cue| cue.said.as_str());
            DemoError::new(format!(
                "{} was to say {wanted:?} and said {last} last; the machine may be too busy: try again",
                self.name
            ))
        })
    }

    /// The same, but not for ever.
    pub fn cue_within(&mut self, wanted: &[&str], within: Duration) -> Result<Option<Cue>, DemoError> {
        let started = Instant::now();
        loop {
            match self.cues.recv_timeout(within.saturating_sub(started.elapsed())) {
                Ok(cue) => {
                    self.received.push(cue.clone());
                    if cue.said == "failed" {
                        return Err(DemoError::new(format!("{} failed: {}", self.name, cue.text("why"))));
                    }
                    if wanted.contains(&cue.said.as_str()) {
                        return Ok(Some(cue));
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
    pub fn said(&mut self) -> &[Cue] {
        self.received.extend(self.cues.try_iter());
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
