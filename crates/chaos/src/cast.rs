//! The processes of a run: nodes and holders, each in a namespace of its own, to be stopped, killed and started again.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::net::{Net, ip};
use crate::story::Story;

/// Holders' hosts are numbered from here on.
pub const HOLDERS_FROM: u32 = 100;

/// A process that runs, or does not at the moment.
pub struct Player {
    /// Its host.
    pub host: u32,
    child: Option<Child>,
}

impl Player {
    /// Whether it runs.
    pub fn runs(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    fn signal(&self, signal: Signal) {
        let Some(child) = &self.child else { return };
        if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            // One that has ended meanwhile hears nothing.
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

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Everybody.
pub struct Cast {
    /// The network between them.
    pub net: Net,
    /// The nodes, by number.
    pub nodes: Vec<Player>,
    /// The holders.
    pub holders: Vec<Player>,
    folder: PathBuf,
    binary: PathBuf,
    story: Story,
    lives: u32,
}

impl Cast {
    /// Starts so many nodes and holders.
    pub fn start(
        nodes: u32,
        holders: u32,
        binary: PathBuf,
        folder: &Path,
        story: &Story,
    ) -> Result<Cast, String> {
        let mut net = Net::new()?;
        for host in (1..=nodes).chain(HOLDERS_FROM..HOLDERS_FROM + holders) {
            net.add(host)?;
        }
        let idle = |host| Player { host, child: None };
        let mut cast = Cast {
            net,
            nodes: (1..=nodes).map(idle).collect(),
            holders: (HOLDERS_FROM..HOLDERS_FROM + holders).map(idle).collect(),
            folder: folder.to_owned(),
            binary,
            story: story.clone(),
            lives: 0,
        };
        for node in 0..cast.nodes.len() {
            cast.start_node(node)?;
        }
        for holder in 0..cast.holders.len() {
            cast.start_holder(holder)?;
        }
        Ok(cast)
    }

    fn endpoints(&self) -> String {
        let all: Vec<String> = self.nodes.iter().map(|node| format!("{}:7400", ip(node.host))).collect();
        all.join(",")
    }

    /// Starts a node.
    pub fn start_node(&mut self, index: usize) -> Result<(), String> {
        let peers: Vec<String> =
            self.nodes.iter().map(|node| format!("{}={}:7500", node.host, ip(node.host))).collect();
        let host = self.nodes[index].host;
        let log = self.folder.join(format!("node-{host}.log"));
        let log = File::options().create(true).append(true).open(&log).map_err(|error| error.to_string())?;
        let mut command = self.within(host);
        command.arg(&self.binary).args(["serve", "--insecure", "--node", &host.to_string()]);
        command.args(["--peers", &peers.join(","), "--listen", &format!("{}:7400", ip(host))]);
        command.arg("--data-dir").arg(self.folder.join(format!("node-{host}")));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().map_err(|error| format!("a node cannot be started: {error}"))?;
        self.nodes[index].child = Some(child);
        Ok(())
    }

    /// Starts a holder.
    pub fn start_holder(&mut self, index: usize) -> Result<(), String> {
        self.lives += 1;
        let host = self.holders[index].host;
        let this = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = self.within(host);
        command.arg(this).args(["holder", &self.lives.to_string(), &self.endpoints()]);
        command.arg(self.folder.join("storage"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| format!("a holder cannot be started: {error}"))?;
        let lines = child.stdout.take().ok_or("a holder has no voice")?;
        self.story.listen(self.lives, lines);
        self.holders[index].child = Some(child);
        Ok(())
    }

    /// A command that runs on a host. `ip netns exec` becomes the program, so signals reach it.
    fn within(&self, host: u32) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.net.namespace(host)]);
        command
    }

    /// The node that leads, as the nodes see it.
    pub fn leader(&self) -> Option<usize> {
        let mut command = Command::new("timeout");
        command.args(["3", "ip", "netns", "exec", &self.net.switch()]).arg(&self.binary);
        command.args(["--json", "cluster", "status"]).env("TENURE_ENDPOINTS", self.endpoints());
        let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let status: serde_json::Value = serde_json::from_str(text.lines().next()?).ok()?;
        let leader = u32::try_from(status["leader"].as_u64()?).ok()?;
        self.nodes.iter().position(|node| node.host == leader)
    }
}
