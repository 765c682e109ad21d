//! Drives an SDK's agent program: a child process that reads commands as JSON lines and answers in lines.
//! It knows no lease rule; the protocol is specified in `sdk/conformance/README.md`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use tenure_e2e::{find, until};

/// How long a command may take. Generous: a loaded machine with two cores is slow.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);

/// Nanoseconds of the clock that agent programs stamp with.
pub fn boot_nanos() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// How the agent program of one SDK is started.
#[derive(Clone, Debug)]
pub struct Sdk {
    /// The SDK's name.
    pub name: &'static str,
    program: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Sdk {
    /// All SDKs whose toolchain is installed here; the others are named in the second list.
    pub fn installed() -> (Vec<Sdk>, Vec<&'static str>) {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut missing = Vec::new();
        // The environment that `cargo xtask setup` makes has the database driver.
        let own = root.join("target/tools/python/bin/python3");
        let python = Some(own).filter(|path| path.is_file()).or_else(|| find("python3"));
        let python = std::env::var_os("TENURE_PYTHON").map(PathBuf::from).or(python);
        let python = python.map(|program| Sdk {
            name: "python",
            program,
            arguments: ["-m", "tenure.agent"].map(String::from).to_vec(),
            environment: vec![("PYTHONPATH".into(), root.join("sdk/python/src").display().to_string())],
        });
        if python.is_none() {
            missing.push("python");
        }
        (python.into_iter().collect(), missing)
    }

    /// Whether its agent can write to PostgreSQL: whether the driver is installed.
    pub fn has_postgres(&self) -> bool {
        let mut probe = Command::new(&self.program);
        probe.args(["-c", "import psycopg"]).stdout(Stdio::null()).stderr(Stdio::null());
        self.name == "python" && probe.status().is_ok_and(|status| status.success())
    }
}

/// What an agent said: an answer or an event, as it came.
pub type Said = Value;

/// Why a command failed, as the agent described it.
#[derive(Clone, Debug)]
pub struct AgentError(pub Value);

impl AgentError {
    /// One word of it: `code`, `reason`, `jeopardy`, `effect` or `kind`.
    pub fn word(&self, field: &str) -> &str {
        self.0[field].as_str().unwrap_or_default()
    }
}

/// A running agent program. It is killed when dropped.
pub struct Agent {
    name: String,
    child: Child,
    input: Mutex<ChildStdin>,
    heard: Arc<Heard>,
    next: Mutex<u64>,
}

#[derive(Default)]
struct Heard {
    said: Mutex<Lines>,
    more: Condvar,
}

#[derive(Default)]
struct Lines {
    answers: BTreeMap<u64, Value>,
    events: Vec<Value>,
    ended: bool,
}

impl Agent {
    /// Starts an agent of this SDK against these endpoints.
    pub fn start(sdk: &Sdk, name: &str, endpoints: &[String]) -> Agent {
        let mut command = Command::new(&sdk.program);
        command.args(&sdk.arguments).envs(sdk.environment.iter().cloned());
        command.env("TENURE_ENDPOINTS", endpoints.join(",")).env_remove("TENURE_CREDENTIAL");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("the agent of {}: {error}", sdk.name));
        let input = Mutex::new(child.stdin.take().expect("it was piped"));
        let output = BufReader::new(child.stdout.take().expect("it was piped"));
        let heard = Arc::new(Heard::default());
        let reading = heard.clone();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let Ok(line) = serde_json::from_str::<Value>(&line) else { continue };
                let mut said = reading.said.lock().expect("no reader panicked");
                match line["id"].as_u64() {
                    Some(id) => drop(said.answers.insert(id, line)),
                    None => said.events.push(line),
                }
                reading.more.notify_all();
            }
            reading.said.lock().expect("no reader panicked").ended = true;
            reading.more.notify_all();
        });
        let agent = Agent { name: name.to_owned(), child, input, heard, next: Mutex::new(1) };
        let hello = agent.ask(json!({ "do": "hello" }));
        assert_eq!(hello["protocol"], 1, "{name} speaks another protocol: {hello}");
        assert_eq!(hello["sdk"], sdk.name);
        agent
    }

    /// The name that the scenario gave it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends a command and does not wait for its answer; the number finds it.
    pub fn tell(&self, mut command: Value) -> u64 {
        let mut next = self.next.lock().expect("no sender panicked");
        let id = *next;
        *next += 1;
        command["id"] = json!(id);
        let mut input = self.input.lock().expect("no sender panicked");
        writeln!(input, "{command}").unwrap_or_else(|error| panic!("{} is gone: {error}", self.name));
        input.flush().expect("a pipe can be flushed");
        id
    }

    /// The whole answer to a command, once it is there.
    #[track_caller]
    pub fn answer(&self, id: u64) -> Value {
        let begun = Instant::now();
        let mut said = self.heard.said.lock().expect("no reader panicked");
        loop {
            if let Some(answer) = said.answers.remove(&id) {
                return answer;
            }
            assert!(!said.ended, "{} ended without answering command {id}", self.name);
            let left = ANSWERED_WITHIN.saturating_sub(begun.elapsed());
            assert!(!left.is_zero(), "{} did not answer command {id}", self.name);
            said = self.heard.more.wait_timeout(said, left).expect("no reader panicked").0;
        }
    }

    /// Whether the answer is there.
    pub fn is_answered(&self, id: u64) -> bool {
        self.heard.said.lock().expect("no reader panicked").answers.contains_key(&id)
    }

    /// Sends a command and returns what came of it.
    #[track_caller]
    pub fn try_ask(&self, command: Value) -> Result<Value, AgentError> {
        let id = self.tell(command);
        settled(self.answer(id))
    }

    /// Sends a command that must succeed.
    #[track_caller]
    pub fn ask(&self, command: Value) -> Value {
        let text = command.to_string();
        match self.try_ask(command) {
            Ok(ok) => ok,
            Err(error) => panic!("{}: {text} failed: {}", self.name, error.0),
        }
    }

    /// All events so far.
    pub fn events(&self) -> Vec<Said> {
        self.heard.said.lock().expect("no reader panicked").events.clone()
    }

    /// Waits for an event.
    #[track_caller]
    pub fn until_event(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut found = None;
        until(&format!("{}: {what}", self.name), ANSWERED_WITHIN, || {
            found = self.events().into_iter().find(|event| wanted(event));
            found.is_some()
        });
        found.expect("it was found")
    }

    /// Stops the whole process (SIGSTOP), and waits until it has stopped.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        self.wait_stopped();
    }

    /// Waits until the process has stopped, by whomever.
    pub fn wait_stopped(&self) {
        until("the agent is stopped", Duration::from_secs(30), || self.state() == Some('T'));
    }

    /// Lets it go on (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Asks it to end (SIGTERM).
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// The number of its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a child's number is not zero");
        kill_process(pid, signal).expect("a child can be signalled");
    }

    fn state(&self) -> Option<char> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?;
        text.rsplit_once(')')?.1.trim_start().chars().next()
    }
}

/// What came of a command, of its whole answer.
pub fn settled(answer: Value) -> Result<Value, AgentError> {
    match answer.get("ok") {
        Some(ok) => Ok(ok.clone()),
        None => Err(AgentError(answer["error"].clone())),
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
