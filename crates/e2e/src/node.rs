//! One `tenure serve` process: started, asked, stopped, killed, started again on the same data.

use std::ffi::OsString;
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

use crate::http::Http;
use crate::program::{find, tenure_binary};
use crate::scratch::Scratch;
use crate::wait::{until, until_some};

/// How long a node may take until it serves. Generous: a loaded machine with two cores starts slowly.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// How many bytes of a failed node's log are shown.
const LOG_SHOWN: usize = 16 * 1024;

/// How a node is started.
#[derive(Clone, Debug, Default)]
pub struct NodeOptions {
    /// Further arguments of `tenure serve`.
    pub arguments: Vec<String>,
    /// Further variables of its environment.
    pub environment: Vec<(String, String)>,
    /// The network namespace to run in, and where to listen there; otherwise a free port of this machine.
    pub placed: Option<(String, SocketAddr)>,
    /// How many files it may have open, and cannot raise; otherwise as many as this process.
    pub files_max: Option<u32>,
    /// It runs the older release.
    pub older: bool,
}

/// A node and its data. It is killed when dropped; its log is shown if the test failed.
#[derive(Debug)]
pub struct Node {
    address: SocketAddr,
    scratch: Scratch,
    options: NodeOptions,
    /// Arguments beside these, which change from start to start.
    extra: Vec<String>,
    child: Option<Child>,
}

impl Node {
    /// Starts a node on fresh data and waits until it serves.
    pub fn start(name: &str) -> Self {
        Self::start_with(name, NodeOptions::default())
    }

    /// The same, with options.
    pub fn start_with(name: &str, options: NodeOptions) -> Self {
        let mut node = Self::prepare(name, options);
        node.spawn();
        node.wait_ready();
        node
    }

    /// A node with fresh data that has yet to be started.
    pub fn prepare(name: &str, options: NodeOptions) -> Self {
        raise_file_limit();
        let address = options.placed.as_ref().map_or_else(free_address, |(_, address)| *address);
        Self { address, scratch: Scratch::new(name), options, extra: Vec::new(), child: None }
    }

    /// Adds arguments of `tenure serve` for the next start.
    pub(crate) fn add_arguments(&mut self, arguments: &[String]) {
        self.options.arguments.extend_from_slice(arguments);
    }

    /// From its next start on it runs the older release, or this one.
    pub fn set_older(&mut self, older: bool) {
        self.options.older = older;
    }

    /// Sets the arguments of `tenure serve` for the next start, besides those of its place.
    pub fn set_arguments(&mut self, arguments: &[&str]) {
        self.options.arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    }

    /// Sets further arguments of `tenure serve` for the next start, in the place of those set in this way before.
    pub fn set_extra(&mut self, arguments: &[&str]) {
        self.extra = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    }

    /// Tells it to look for another certificate (SIGHUP).
    pub fn hang_up(&self) {
        self.signal(Signal::HUP);
    }

    /// Starts the process without waiting for it to serve.
    pub fn spawn(&mut self) {
        assert!(self.child.is_none(), "the node is running already");
        let log =
            File::options().create(true).append(true).open(self.log_path()).expect("a log can be written");
        // Each of these becomes the program that it is given, so signals reach the node itself.
        let mut words: Vec<OsString> = Vec::new();
        if let Some((namespace, _)) = &self.options.placed {
            words.push(find("ip").expect("a namespace was made with it").into());
            words.extend(["netns", "exec", namespace].map(OsString::from));
        }
        if let Some(files_max) = self.options.files_max {
            let limited = ["sh", "-c", "ulimit -n \"$0\" && exec \"$@\"", &files_max.to_string()];
            words.extend(limited.map(OsString::from));
        }
        let older = self.options.older.then(older_release);
        words.push(older.as_ref().map_or_else(|| tenure_binary().into(), |(program, _)| program.into()));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command.arg("serve").arg("--listen").arg(self.address.to_string());
        command.arg("--data-dir").arg(self.data_path()).args(&self.options.arguments).args(&self.extra);
        command.args(older.map(|(_, arguments)| arguments).unwrap_or_default());
        command.envs(self.options.environment.iter().map(|(name, value)| (name, value)));
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file handle can be copied"))
            .stderr(log);
        self.child = Some(command.spawn().expect("the tenure binary can be started"));
    }

    /// Waits until the node says that a leader is known and serves.
    #[track_caller]
    pub fn wait_ready(&mut self) {
        let mut http = self.http().with_limit(Duration::from_secs(1));
        let child = self.child.as_mut().expect("the node is running");
        until("the node serves", READY_WITHIN, || {
            let ended = child.try_wait().expect("a child can be asked");
            assert!(ended.is_none(), "the node ended while starting: {ended:?}");
            http.call("GET", "/readyz", None).is_ok_and(|reply| reply.status == 200)
        });
    }

    /// Where clients reach it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same as the CLI wants it.
    pub fn endpoint(&self) -> String {
        self.address.to_string()
    }

    /// A caller of this node.
    pub fn http(&self) -> Http {
        Http::new(self.address)
    }

    /// The folder that holds its data and its log.
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// Where its data is.
    pub fn data_path(&self) -> PathBuf {
        self.scratch.path().join("data")
    }

    fn log_path(&self) -> PathBuf {
        self.scratch.path().join("log")
    }

    /// Everything it has logged.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.log_path()).unwrap_or_default()).into_owned()
    }

    /// The number of its process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the node is running").id()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid() as i32).expect("a child's number is not zero");
        kill_process(pid, signal).expect("a child can be signalled");
    }

    /// `kill -9`, and waits until it is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("a child can be killed");
            child.wait().expect("a child can be waited for");
        }
    }

    /// Starts it again on the same data and address, and waits until it serves.
    pub fn restart(&mut self) {
        self.spawn();
        self.wait_ready();
    }

    /// Stops it in its tracks (SIGSTOP), and waits until it has stopped.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        until("the node is stopped", Duration::from_secs(5), || self.state() == Some('T'));
    }

    /// Lets it go on (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Asks it to end (SIGTERM) and waits at most `limit` until it has.
    pub fn terminate(&mut self, limit: Duration) -> ExitStatus {
        self.signal(Signal::TERM);
        let mut child = self.child.take().expect("the node is running");
        let ended = until_some("the node ends after SIGTERM", limit, || {
            child.try_wait().expect("a child can be asked")
        });
        assert_eq!(ended.signal(), None, "the node ended by a signal");
        ended
    }

    /// True while the process lives.
    pub fn is_alive(&mut self) -> bool {
        let child = self.child.as_mut().expect("the node is running");
        child.try_wait().expect("a child can be asked").is_none()
    }

    /// The state of its process (`R`, `S`, `T`, …).
    fn state(&self) -> Option<char> {
        self.statistics()?.first()?.chars().next()
    }

    /// Processor time that it has used so far.
    pub fn processor_time(&self) -> Duration {
        // Fields 14 and 15 of /proc/PID/stat, counted in hundredths of a second; the first two (number and
        // name) are not in our list.
        let fields = self.statistics().expect("a running process has statistics");
        let ticks: u64 =
            [11, 12].iter().map(|&index| fields[index].parse::<u64>().expect("a count of ticks")).sum();
        Duration::from_millis(ticks * 10)
    }

    /// How many files and sockets it has open.
    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("a running process has files").count()
    }

    /// One number of its metrics.
    #[track_caller]
    pub fn metric(&self, name: &str) -> f64 {
        let page = self.http().call("GET", "/metrics", None).expect("the node answers");
        let text = String::from_utf8_lossy(&page.body).into_owned();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in\n{text}"))
    }

    /// Bytes of memory in use.
    pub fn resident_bytes(&self) -> u64 {
        let fields = self.statistics().expect("a running process has statistics");
        fields[21].parse::<u64>().expect("a count of pages") * 4096
    }

    fn statistics(&self) -> Option<Vec<String>> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).ok()?;
        // The name is in parentheses and may contain anything, so what counts starts after the last one.
        let (_, fields) = text.rsplit_once(')')?;
        Some(fields.split_whitespace().map(String::from).collect())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself; then there is nothing to kill.
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            let log = self.log();
            let start =
                log.char_indices().map(|(index, _)| index).find(|index| log.len() - index <= LOG_SHOWN);
            eprintln!("--- the node's log, its end\n{}\n---", &log[start.unwrap_or(0)..]);
        }
    }
}

/// The older release, and further arguments of it: the program that `TENURE_OLD_BIN` names, or else this one, limited to
/// only the first format version.
fn older_release() -> (PathBuf, Vec<String>) {
    match std::env::var_os("TENURE_OLD_BIN") {
        Some(program) => (program.into(), Vec::new()),
        None => (tenure_binary().to_path_buf(), ["--format-newest", "1"].map(String::from).to_vec()),
    }
}

/// An address that nobody uses. Outside of the range from which the system takes the ports of outgoing
/// connections, so that a restarted node finds its port free.
pub fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = (std::process::id() % 1000) as u16 * 10;
    let started = Instant::now();
    loop {
        let port = 20_000 + (start + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
        assert!(started.elapsed() < Duration::from_secs(10), "no port is free");
    }
}

/// Tests with thousands of connections need as many files as the system allows; the node inherits it.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).expect("the soft limit may be raised to the hard one");
}
