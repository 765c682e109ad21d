//! Starts and stops stores: one or more processes on free ports of this machine, with their data in a folder
//! that is removed with them. Each syncs to disk before it acknowledges.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Options;
use super::cells::Via;
use crate::plan::TargetKind;

/// How long a store may take until it serves.
const READY_WITHIN: Duration = Duration::from_secs(60);
const LOOKED_AT_EVERY: Duration = Duration::from_millis(20);
const ZOOKEEPER_JAR: &str = "/usr/share/java/zookeeper.jar";

/// The programs that are here.
#[derive(Clone)]
pub struct Programs {
    tenure: PathBuf,
    etcd: Option<PathBuf>,
    java: Option<PathBuf>,
    redis: Option<PathBuf>,
}

impl Programs {
    pub fn find(options: &Options) -> Programs {
        Programs {
            tenure: options.tenure.clone(),
            etcd: options.etcd.clone().or_else(|| in_path("etcd")),
            java: in_path("java").filter(|_| Path::new(ZOOKEEPER_JAR).exists()),
            redis: in_path("redis-server"),
        }
    }

    /// The same, with another binary of Tenure.
    pub fn with_tenure(&self, tenure: &Path) -> Programs {
        Programs { tenure: tenure.to_path_buf(), ..self.clone() }
    }

    pub fn tenure(&self) -> &Path {
        &self.tenure
    }

    fn of(&self, target: TargetKind) -> Option<&Path> {
        match target {
            TargetKind::Tenure => Some(&self.tenure),
            TargetKind::Etcd => self.etcd.as_deref(),
            TargetKind::ZooKeeper => self.java.as_deref(),
            TargetKind::Redis => self.redis.as_deref(),
        }
    }

    pub fn has(&self, target: TargetKind) -> bool {
        self.of(target).is_some()
    }

    pub fn missing(&self) -> Vec<&'static str> {
        TargetKind::ALL.into_iter().filter(|target| !self.has(*target)).map(TargetKind::name).collect()
    }
}

fn in_path(program: &str) -> Option<PathBuf> {
    let search = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&search).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// A store that runs.
pub struct Setup {
    target: TargetKind,
    nodes: Vec<Process>,
    /// The index of the node that leads.
    leader: usize,
    folder: PathBuf,
}

struct Process {
    child: Child,
    command: Vec<String>,
    endpoint: String,
}

impl Setup {
    /// Starts so many nodes and waits until they serve.
    pub fn start(programs: &Programs, target: TargetKind, nodes: usize) -> Result<Setup, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("tenure-bench-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let program = programs.of(target).ok_or_else(|| format!("{target} is not installed"))?;
        let program = program.display().to_string();
        let clients: Vec<String> = (0..nodes).map(|_| free_address()).collect();
        let peers: Vec<String> = (0..nodes).map(|_| free_address()).collect();
        let mut setup = Setup { target, nodes: Vec::new(), leader: 0, folder };
        for node in 0..nodes {
            let data = setup.folder.join(format!("data-{}", node + 1));
            let arguments = match target {
                TargetKind::Tenure => tenure(node, &clients, &peers, &data),
                TargetKind::Etcd => etcd(node, &clients, &peers, &data),
                TargetKind::ZooKeeper => zookeeper(node, &clients, &peers, &data)?,
                TargetKind::Redis => redis(&clients[node], &data)?,
            };
            let mut command = vec![program.clone()];
            command.extend(arguments);
            let child = setup.spawn(&command, node)?;
            setup.nodes.push(Process { child, command, endpoint: clients[node].clone() });
        }
        setup.wait_ready()?;
        Ok(setup)
    }

    fn spawn(&self, command: &[String], node: usize) -> Result<Child, String> {
        let log = self.folder.join(format!("log-{}", node + 1));
        let log = File::options().create(true).append(true).open(log).map_err(|error| error.to_string())?;
        Command::new(&command[0])
            .args(&command[1..])
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(|error| error.to_string())?)
            .stderr(log)
            .spawn()
            .map_err(|error| format!("{}: {error}", command[0]))
    }

    /// Waits until all nodes serve and one of them leads.
    fn wait_ready(&mut self) -> Result<(), String> {
        let started = Instant::now();
        loop {
            for (number, node) in self.nodes.iter_mut().enumerate() {
                if let Ok(Some(status)) = node.child.try_wait() {
                    let log = std::fs::read_to_string(self.folder.join(format!("log-{}", number + 1)));
                    let log = log.unwrap_or_default();
                    let end: Vec<&str> = log.lines().rev().take(3).collect();
                    return Err(format!("{} ended while starting with {status}: {end:?}", self.target));
                }
            }
            let leading: Vec<Option<bool>> =
                self.nodes.iter().map(|node| leads(self.target, &node.endpoint)).collect();
            if leading.iter().all(Option::is_some)
                && let Some(leader) = leading.iter().position(|leads| *leads == Some(true))
            {
                self.leader = leader;
                return Ok(());
            }
            if started.elapsed() > READY_WITHIN {
                return Err(format!("{} did not serve within {READY_WITHIN:?}", self.target));
            }
            std::thread::sleep(LOOKED_AT_EVERY);
        }
    }

    /// Kills the first node, starts it again on its data, and says how long it took until it served.
    pub fn restart(&mut self) -> Result<Duration, String> {
        let _ = self.nodes[0].child.kill();
        let _ = self.nodes[0].child.wait();
        let started = Instant::now();
        let command = self.nodes[0].command.clone();
        self.nodes[0].child = self.spawn(&command, 0)?;
        self.wait_ready()?;
        Ok(started.elapsed())
    }

    /// Where clients go.
    pub fn endpoints(&self, via: Via) -> Vec<String> {
        let all = self.nodes.iter().enumerate();
        all.filter(|(node, _)| match via {
            Via::Leader => *node == self.leader,
            Via::All => true,
            Via::Followers => *node != self.leader || self.nodes.len() == 1,
        })
        .map(|(_, node)| node.endpoint.clone())
        .collect()
    }

    /// The processes.
    pub fn pids(&self) -> Vec<u32> {
        self.nodes.iter().map(|node| node.child.id()).collect()
    }

    /// The leader's process.
    pub fn leader_pid(&self) -> u32 {
        self.nodes[self.leader].child.id()
    }

    /// Bytes that the first node has on disk.
    pub fn disk_bytes(&self) -> Option<u64> {
        Some(bytes_below(&self.folder.join("data-1")))
    }

    /// The files of the first node and their sizes.
    pub fn files(&self) -> Vec<(String, u64)> {
        let mut found = Vec::new();
        list(&self.folder.join("data-1"), &mut found);
        found
    }

    /// One number of a Tenure node's metrics.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let text = http(&self.nodes[0].endpoint, "GET", "/metrics", "").ok()?;
        text.lines()
            .find(|line| line.starts_with(name))
            .and_then(|line| line.rsplit_once(' ')?.1.parse().ok())
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            let _ = node.child.kill();
            let _ = node.child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn list(folder: &Path, found: &mut Vec<(String, u64)>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        match entry.metadata() {
            Ok(data) if data.is_dir() => list(&entry.path(), found),
            Ok(data) => found.push((entry.file_name().to_string_lossy().into_owned(), data.len())),
            Err(_) => {}
        }
    }
}

fn bytes_below(folder: &Path) -> u64 {
    let mut found = Vec::new();
    list(folder, &mut found);
    found.into_iter().map(|(_, bytes)| bytes).sum()
}

fn tenure(node: usize, clients: &[String], peers: &[String], data: &Path) -> Vec<String> {
    let mut arguments = vec!["serve".into(), "--listen".into(), clients[node].clone()];
    arguments.extend(["--data-dir".into(), data.display().to_string(), "--log-level".into(), "warn".into()]);
    if clients.len() > 1 {
        let all: Vec<String> =
            peers.iter().enumerate().map(|(n, peer)| format!("{}={peer}", n + 1)).collect();
        arguments.extend(["--node".into(), (node + 1).to_string(), "--peers".into(), all.join(",")]);
    }
    arguments
}

fn etcd(node: usize, clients: &[String], peers: &[String], data: &Path) -> Vec<String> {
    let url = |address: &str| format!("http://{address}");
    let cluster: Vec<String> =
        peers.iter().enumerate().map(|(n, peer)| format!("n{}={}", n + 1, url(peer))).collect();
    [
        ("--name", format!("n{}", node + 1)),
        ("--data-dir", data.display().to_string()),
        ("--listen-client-urls", url(&clients[node])),
        ("--advertise-client-urls", url(&clients[node])),
        ("--listen-peer-urls", url(&peers[node])),
        ("--initial-advertise-peer-urls", url(&peers[node])),
        ("--initial-cluster", cluster.join(",")),
        ("--initial-cluster-state", "new".into()),
        ("--quota-backend-bytes", "8000000000".into()),
        ("--log-level", "error".into()),
    ]
    .into_iter()
    .flat_map(|(flag, value)| [flag.to_owned(), value])
    .collect()
}

fn zookeeper(node: usize, clients: &[String], peers: &[String], data: &Path) -> Result<Vec<String>, String> {
    let made = |outcome: std::io::Result<()>| outcome.map_err(|error| format!("{}: {error}", data.display()));
    made(std::fs::create_dir_all(data))?;
    let port = clients[node].rsplit_once(':').map_or("", |(_, port)| port);
    // TTLs of any length: by default two to twenty ticks. The forced sync is the default and said all the
    // same.
    let mut settings = format!(
        "tickTime=2000\ninitLimit=10\nsyncLimit=5\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\n\
         maxClientCnxns=0\nminSessionTimeout=500\nmaxSessionTimeout=600000\nforceSync=yes\nadmin.enableServer=false\n\
         4lw.commands.whitelist=srvr\n",
        data.display()
    );
    if clients.len() > 1 {
        for (number, peer) in peers.iter().enumerate() {
            settings += &format!("server.{}={peer}:{}\n", number + 1, election_port(peer));
        }
    }
    made(std::fs::write(data.join("myid"), (node + 1).to_string()))?;
    let file = data.join("zoo.cfg");
    made(std::fs::write(&file, settings))?;
    let main = "org.apache.zookeeper.server.quorum.QuorumPeerMain";
    let flags = ["-Xmx1g", "-Dzookeeper.log.dir=.", "-Dlog4j.rootLogger=ERROR", "-cp", ZOOKEEPER_JAR, main];
    let mut arguments: Vec<String> = flags.map(String::from).to_vec();
    arguments.push(file.display().to_string());
    Ok(arguments)
}

/// A second port beside a peer's own.
fn election_port(peer: &str) -> u16 {
    peer.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok()).unwrap_or(0) + 10_000
}

fn redis(client: &str, data: &Path) -> Result<Vec<String>, String> {
    std::fs::create_dir_all(data).map_err(|error| format!("{}: {error}", data.display()))?;
    let port = client.rsplit_once(':').map_or("", |(_, port)| port);
    let settings = [
        ("--port", port),
        ("--bind", "127.0.0.1"),
        ("--appendonly", "yes"),
        ("--appendfsync", "always"),
        ("--save", ""),
        ("--maxclients", "20000"),
    ];
    let mut arguments: Vec<String> =
        settings.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value.to_owned()]).collect();
    arguments.extend(["--dir".to_owned(), data.display().to_string()]);
    Ok(arguments)
}

/// Whether a node leads; `None` while it does not serve.
fn leads(target: TargetKind, endpoint: &str) -> Option<bool> {
    match target {
        TargetKind::Tenure => {
            let status: Value = serde_json::from_str(&http(endpoint, "GET", "/v1/cluster", "").ok()?).ok()?;
            http(endpoint, "GET", "/readyz", "").ok()?;
            let leader = status["leader"].as_u64()?;
            let nodes = status["nodes"].as_array()?;
            let own = nodes.iter().find(|node| node["client_address"].as_str() == Some(endpoint));
            Some(own.is_some_and(|node| node["node"].as_u64() == Some(leader)))
        }
        TargetKind::Etcd => {
            let text = http(endpoint, "POST", "/v3/maintenance/status", "{}").ok()?;
            let status: Value = serde_json::from_str(&text).ok()?;
            let leader = status["leader"].as_str().filter(|leader| *leader != "0")?;
            Some(status["header"]["member_id"].as_str() == Some(leader))
        }
        TargetKind::ZooKeeper => {
            let mut stream = TcpStream::connect(endpoint).ok()?;
            stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
            stream.write_all(b"srvr").ok()?;
            let mut text = String::new();
            let _ = stream.read_to_string(&mut text);
            let mode = text.lines().find_map(|line| line.strip_prefix("Mode: "))?;
            Some(mode == "leader" || mode == "standalone")
        }
        TargetKind::Redis => {
            let mut stream = TcpStream::connect(endpoint).ok()?;
            stream.write_all(b"PING\r\n").ok()?;
            let mut pong = [0; 5];
            stream.read_exact(&mut pong).ok()?;
            (&pong == b"+PONG").then_some(true)
        }
    }
}

/// One HTTP call; an answer other than 200 is an error.
fn http(endpoint: &str, method: &str, path: &str, body: &str) -> Result<String, String> {
    let trouble = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect(endpoint).map_err(trouble)?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).map_err(trouble)?;
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {endpoint}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(head.as_bytes()).map_err(trouble)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map_err(trouble)?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
    if !head.starts_with("HTTP/1.1 200") {
        return Err(head.lines().next().unwrap_or("").to_owned());
    }
    if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        // One chunk is all that these answers have.
        let body = body.split_once("\r\n").map_or("", |(_, rest)| rest);
        return Ok(body.split("\r\n0\r\n").next().unwrap_or("").to_owned());
    }
    Ok(body.to_owned())
}

/// An address that nobody uses, outside of the range from which the system takes the ports of outgoing
/// connections, with room for a second port ten thousand above it.
fn free_address() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = (std::process::id() % 300) as u16 * 10;
    loop {
        let port = 10_000 + (start + NEXT.fetch_add(1, Ordering::Relaxed)) % 9_000;
        let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if free(port) && free(port + 10_000) {
            return format!("127.0.0.1:{port}");
        }
    }
}
