//! One process of a run, on its own host: it can be stopped, killed and started again.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tenure_e2e::Lan;

/// How the clocks of a process go.
#[derive(Clone, Debug, PartialEq)]
pub enum Clocks {
    /// As the machine's.
    Right,
    /// All of them faster or slower than the machine's, by this factor.
    Rate(f64),
    /// The calendar alone is wrong, by what this file says at each moment (`+3600`).
    Calendar(PathBuf),
}

/// The library that makes clocks go wrong. Programs that ask the C library for the time believe it.
pub fn clock_faker() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path());
    folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1")).find(|path| path.is_file())
}

impl Clocks {
    fn environment(&self) -> Vec<(String, String)> {
        let Some(library) = clock_faker() else { return Vec::new() };
        let preload = ("LD_PRELOAD".to_owned(), library.display().to_string());
        let set = |name: &str, value: String| (name.to_owned(), value);
        match self {
            Clocks::Right => Vec::new(),
            Clocks::Rate(rate) => vec![preload, set("FAKETIME", format!("+0 x{rate}"))],
            Clocks::Calendar(file) => vec![
                preload,
                set("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
                set("FAKETIME_CACHE_DURATION", "1".into()),
                set("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
            ],
        }
    }
}

/// A process that runs, or does not at the moment.
pub struct Managed {
    /// Its place in the network.
    pub host: usize,
    /// The number of the process that runs now; every start has a new one.
    pub process: u32,
    /// How its clocks go.
    pub clocks: Clocks,
    child: Option<Child>,
}

impl Managed {
    /// One that has yet to be started.
    pub fn idle(host: usize) -> Managed {
        Managed { host, process: 0, clocks: Clocks::Right, child: None }
    }

    /// Starts a program on this host; what it says goes to whoever asked for it, and what it complains about
    /// into a file.
    pub fn start(
        &mut self,
        lan: &Lan,
        process: u32,
        clocks: Clocks,
        line: &[String],
        complaints: &Path,
    ) -> Result<ChildStdout, String> {
        let described = |error: std::io::Error| format!("{}: {error}", line.join(" "));
        let log = File::options().create(true).append(true).open(complaints).map_err(described)?;
        // Each of these becomes the next, so signals reach the program itself; and it dies with this process.
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &lan.namespace(self.host)]);
        command.args(["setpriv", "--pdeathsig", "KILL", "env"]);
        command.args(clocks.environment().iter().map(|(name, value)| format!("{name}={value}")));
        command.args(line).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().map_err(described)?;
        let lines = child.stdout.take().ok_or("a process without a voice")?;
        self.child = Some(child);
        self.process = process;
        self.clocks = clocks;
        Ok(lines)
    }

    /// Whether it runs.
    pub fn runs(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// How it ended, if it ended by itself and nobody has taken notice yet.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        self.child = None;
        Some(status)
    }

    fn signal(&self, signal: Signal) {
        let Some(child) = &self.child else { return };
        if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            // One that has ended meanwhile receives nothing.
            let _ = kill_process(pid, signal);
        }
    }

    /// SIGSTOP.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// SIGTERM, and waits for a while until it is gone.
    pub fn terminate(&mut self) {
        self.signal(Signal::TERM);
        for _ in 0..500 {
            if !self.runs() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        self.kill();
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        self.kill();
    }
}
