//! All processes of a run: nodes with their own disks, holders of every kind, and the network between them.
//! Starts them, finds the leader, and repairs everything after a fault; `nemesis.rs` decides what goes wrong.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tenure_checker::ProcessFailure;
use tenure_e2e::{Dice, Http, Lan};

use crate::holder::{RESOURCES, TTL};
use crate::managed::{Clocks, Managed};
use crate::recorder::Recorder;
use crate::time::{Patience, now};
use crate::worker::ACQUIRED;

/// How long the cluster may take to be whole again when all faults are over. Only how long a broken build
/// takes to say so.
const MENDED_WITHIN_SECONDS: u64 = 120;
/// The size of a disk that can be filled.
const SMALL_DISK: &str = "160M";

/// What a process of the run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// A holder that links the client library.
    Library,
    /// The same, through the host's agent.
    ThroughAgent,
    /// `tenure agent`.
    Agent,
    /// `tenure run`, with a command that writes and starts others that write.
    Run,
    /// Asks all the time and holds nothing.
    Prober,
    /// A caller of the plain interfaces, without the library.
    Plain,
}

/// A node of the cluster.
pub struct Node {
    /// Its number, never used again.
    pub number: u64,
    /// Its process; its host is the slot that it runs in.
    pub managed: Managed,
    /// The command line that it is started with, each time.
    line: Vec<String>,
    data: PathBuf,
    /// Its data was deleted: it can never come back under this number.
    pub wiped: bool,
    /// Its disk was filled: it may end by itself.
    pub full: bool,
}

/// What a run was asked for.
pub struct Wanted {
    /// How many nodes.
    pub nodes: usize,
    /// How many holders that link the library.
    pub holders: usize,
    /// The binary under test.
    pub binary: PathBuf,
    /// Where data, logs and the report go.
    pub folder: PathBuf,
    /// Where the ledger is.
    pub ledger: String,
}

/// Everybody.
pub struct Testbed {
    /// The nodes.
    pub nodes: Vec<Node>,
    /// All others.
    pub players: Vec<(Role, Managed)>,
    /// Dropped after everybody in it.
    pub lan: Lan,
    /// What ended by itself.
    pub failures: Vec<ProcessFailure>,
    /// How commands under `tenure run` ended: exit code and how often.
    pub runs: BTreeMap<String, u64>,
    /// Where each process ran, by its number.
    pub hosts: BTreeMap<u32, usize>,
    /// Holders that were killed, and when.
    pub deaths: Vec<(u32, u64)>,
    /// When the whole run stood still, nobody in it to blame.
    pub stood_still: Vec<(u64, u64)>,
    wanted: Wanted,
    recorder: Recorder,
    dice: Dice,
    lives: u32,
    numbers: u64,
    disks: Disks,
}

impl Testbed {
    /// Starts everybody.
    pub fn start(wanted: Wanted, recorder: &Recorder, dice: Dice) -> Result<Testbed, String> {
        // One slot more than nodes, for one that joins before another leaves.
        let slots = wanted.nodes + 1;
        let lan = Lan::new(slots + 3 + wanted.holders);
        let disks = Disks::prepare(&wanted.folder, slots);
        let mut testbed = Testbed {
            nodes: Vec::new(),
            players: Vec::new(),
            lan,
            failures: Vec::new(),
            runs: BTreeMap::new(),
            hosts: BTreeMap::new(),
            deaths: Vec::new(),
            stood_still: Vec::new(),
            wanted,
            recorder: recorder.clone(),
            dice,
            lives: 0,
            numbers: 0,
            disks,
        };
        let founders: Vec<(u64, usize)> =
            (1..=testbed.wanted.nodes).map(|slot| (slot as u64, slot)).collect();
        for (number, slot) in &founders {
            testbed.prepare_node(*number, *slot, &founders);
        }
        for node in 0..testbed.nodes.len() {
            testbed.start_node(node, Clocks::Right)?;
        }
        let agent = slots + 2;
        let mut roles = vec![(Role::Prober, slots + 1), (Role::Agent, agent), (Role::ThroughAgent, agent)];
        roles.extend([(Role::ThroughAgent, agent), (Role::Run, slots + 3)]);
        roles.extend([(Role::Plain, slots + 1), (Role::Plain, slots + 3)]);
        roles.extend((0..testbed.wanted.holders).map(|holder| (Role::Library, slots + 4 + holder)));
        testbed.players = roles.into_iter().map(|(role, host)| (role, Managed::idle(host))).collect();
        for managed in 0..testbed.players.len() {
            testbed.start_player(managed, Clocks::Right)?;
        }
        Ok(testbed)
    }

    /// Everybody's host.
    pub fn all_hosts(&self) -> Vec<usize> {
        (1..=self.lan.nodes()).collect()
    }

    fn endpoints(&self) -> String {
        let slots = 1..=self.wanted.nodes + 1;
        let all: Vec<String> = slots.map(|slot| format!("{}:7400", self.lan.address(slot))).collect();
        all.join(",")
    }

    fn peer(&self, number: u64, slot: usize) -> String {
        format!("{number}={}:7500", self.lan.address(slot))
    }

    /// Prepares a node that knows of these.
    fn prepare_node(&mut self, number: u64, slot: usize, members: &[(u64, usize)]) {
        self.numbers = self.numbers.max(number);
        let peers: Vec<String> = members.iter().map(|(number, slot)| self.peer(*number, *slot)).collect();
        let data = self.disks.slot(slot).join(format!("node-{number}"));
        let binary = self.wanted.binary.display().to_string();
        let mut line = vec![binary, "serve".into(), "--insecure".into(), "--node".into(), number.to_string()];
        line.extend(["--peers".into(), peers.join(","), "--listen".into()]);
        line.extend([format!("{}:7400", self.lan.address(slot)), "--data-dir".into()]);
        line.push(data.display().to_string());
        let managed = Managed::idle(slot);
        self.nodes.push(Node { number, managed, line, data, wiped: false, full: false });
    }

    fn life(&mut self, host: usize) -> u32 {
        self.lives += 1;
        self.hosts.insert(self.lives, host);
        self.lives
    }

    /// Starts a node on the data that it has.
    pub fn start_node(&mut self, index: usize, clocks: Clocks) -> Result<(), String> {
        let life = self.life(self.nodes[index].managed.host);
        let node = &mut self.nodes[index];
        let log = self.wanted.folder.join(format!("node-{}.log", node.number));
        let mut emit = node.managed.start(&self.lan, life, clocks, &node.line, &log)?;
        // What it greets people with is read by nobody, and must not fill the pipe.
        std::thread::spawn(move || std::io::copy(&mut emit, &mut std::io::sink()));
        Ok(())
    }

    /// Starts one of the others.
    pub fn start_player(&mut self, index: usize, clocks: Clocks) -> Result<(), String> {
        let (role, host) = (self.players[index].0, self.players[index].1.host);
        let life = self.life(host);
        let this = std::env::current_exe().map_err(|error| error.to_string())?.display().to_string();
        let binary = self.wanted.binary.display().to_string();
        let (ledger, endpoints) = (self.wanted.ledger.clone(), self.endpoints());
        let socket = self.wanted.folder.join("agent.sock").display().to_string();
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let number = life.to_string();
        let ttl = format!("{}s", TTL.as_secs());
        let line = match role {
            Role::Library => words(&[&this, "holder", &number, &endpoints, &ledger]),
            Role::ThroughAgent => {
                words(&[&this, "holder", &number, &format!("unix:{socket},{endpoints}"), &ledger])
            }
            Role::Agent => words(&[&binary, "agent", "--endpoints", &endpoints, "--socket", &socket]),
            Role::Run => {
                let run = ["run", RESOURCES[0], "--ttl", &ttl, "--endpoints", &endpoints, "--"];
                let command = [this.as_str(), "command", &number, &ledger, &this];
                words(&[&[binary.as_str()][..], &run[..], &command[..]].concat())
            }
            Role::Prober => words(&[&this, "prober", &number, &endpoints]),
            Role::Plain => words(&[&this, "plain", &number, &endpoints]),
        };
        if role == Role::Run {
            self.recorder.receive(life, &format!("begin {ACQUIRED} {} acquire {}", now(), RESOURCES[0]));
        }
        let log = self.wanted.folder.join("holders.log");
        let mut emit = self.players[index].1.start(&self.lan, life, clocks, &line, &log)?;
        if role == Role::Agent {
            std::thread::spawn(move || std::io::copy(&mut emit, &mut std::io::sink()));
        } else {
            self.recorder.listen(life, emit);
        }
        Ok(())
    }

    /// The players of a role.
    pub fn of(&self, role: Role) -> Vec<usize> {
        (0..self.players.len()).filter(|index| self.players[*index].0 == role).collect()
    }

    /// Kills one of the others.
    pub fn kill_player(&mut self, index: usize) {
        let process = self.players[index].1.process;
        self.recorder.killed(process);
        self.deaths.push((process, now()));
        self.players[index].1.kill();
    }

    /// Starts `tenure run` again when its command has ended: that is what it is for.
    pub fn tend(&mut self) -> Result<(), String> {
        for index in self.of(Role::Run) {
            if let Some(status) = self.players[index].1.ended() {
                let code = status.code().map_or("killed".to_owned(), |code| code.to_string());
                *self.runs.entry(code).or_default() += 1;
                self.start_player(index, Clocks::Right)?;
            }
        }
        Ok(())
    }

    fn http(&self, slot: usize) -> Http {
        Http::new(SocketAddr::new(self.lan.address(slot), 7400)).with_limit(Duration::from_secs(1))
    }

    /// What the best informed node says of the cluster.
    fn status(&mut self) -> Option<Value> {
        let mut best: Option<Value> = None;
        for index in 0..self.nodes.len() {
            if !self.nodes[index].managed.runs() || self.nodes[index].wiped {
                continue;
            }
            let reply = self.http(self.nodes[index].managed.host).call("GET", "/v1/cluster", None);
            let Some(status) = reply.ok().filter(|reply| reply.status == 200).map(|reply| reply.json())
            else {
                continue;
            };
            let term = |status: &Value| (status["term"].as_u64(), status["leader"].as_u64().is_some());
            if best.as_ref().is_none_or(|best| term(best) < term(&status)) {
                best = Some(status);
            }
        }
        best
    }

    /// The node that leads, as the best informed one sees it.
    pub fn leader(&mut self) -> Option<usize> {
        let leader = self.status()?["leader"].as_u64()?;
        self.nodes.iter().position(|node| node.number == leader)
    }

    /// Fills the disk of a node, if it has one that can be filled.
    pub fn fill(&mut self, index: usize) -> bool {
        let slot = self.nodes[index].managed.host;
        if !self.disks.small.contains(&slot) {
            return false;
        }
        self.nodes[index].full = true;
        let Ok(mut filler) = std::fs::File::create(self.disks.slot(slot).join("filler")) else {
            return false;
        };
        let block = vec![0x7e; 1 << 16];
        while filler.write_all(&block).is_ok() {}
        let _ = filler.sync_all();
        self.write_much(slot);
        true
    }

    /// Writes until the node in this slot needs more of its disk than it has prepared: two segments of its
    /// log.
    fn write_much(&self, slot: usize) {
        let body = serde_json::json!({ "value": "x".repeat(60_000) });
        let mut others = self.nodes.iter().map(|node| node.managed.host).filter(|other| *other != slot);
        let Some(mut http) = others.next_back().map(|other| self.http(other)) else { return };
        let mut patience = Patience::of_seconds(5);
        for _ in 0..320 {
            // Refused, or not answered: so much the worse for whoever is struck at the same time.
            if http.call("PUT", "/v1/registers/bulk/ballast", Some(&body)).is_err() || !patience.lasts() {
                return;
            }
        }
    }

    /// The nodes whose disk can be filled.
    pub fn fillable(&self) -> Vec<usize> {
        let small = |index: &usize| self.disks.small.contains(&self.nodes[*index].managed.host);
        (0..self.nodes.len()).filter(small).collect()
    }

    /// The file that says how wrong calendars are.
    pub fn calendar(&self) -> PathBuf {
        self.wanted.folder.join("calendar")
    }

    /// Sets the calendars of those who go by that file.
    pub fn step_calendars(&self, by: &str) {
        // Nobody may be going by it.
        let _ = std::fs::write(self.calendar(), by);
    }

    /// Kills a node, deletes what it knew, and starts it as if nothing had happened.
    pub fn wipe(&mut self, index: usize) -> Result<(), String> {
        self.nodes[index].managed.kill();
        self.nodes[index].wiped = true;
        let _ = std::fs::remove_dir_all(&self.nodes[index].data);
        self.start_node(index, Clocks::Right)
    }

    /// Starts one more node and asks for it to be added; that may fail, and be asked again later.
    pub fn grow(&mut self) -> Result<(), String> {
        let taken: Vec<usize> = self.nodes.iter().map(|node| node.managed.host).collect();
        let Some(slot) = (1..=self.wanted.nodes + 1).find(|slot| !taken.contains(slot)) else {
            return Ok(());
        };
        let number = self.numbers + 1;
        let mut members: Vec<(u64, usize)> =
            self.nodes.iter().map(|node| (node.number, node.managed.host)).collect();
        members.push((number, slot));
        self.prepare_node(number, slot, &members);
        let index = self.nodes.len() - 1;
        self.start_node(index, Clocks::Right)?;
        // It takes a moment until it listens.
        for _ in 0..10 {
            if self.ask(&["cluster", "add", &self.peer(number, slot)]) {
                break;
            }
            std::thread::sleep(Duration::from_millis(300));
        }
        Ok(())
    }

    /// What an operator types; whether it was done.
    fn ask(&self, arguments: &[&str]) -> bool {
        let mut command = Command::new(&self.wanted.binary);
        command.args(arguments).args(["--timeout", "10s"]).env("TENURE_ENDPOINTS", self.endpoints());
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.wanted.folder.join("operator.log"))
            .ok();
        let said = |log: Option<std::fs::File>| log.map_or(Stdio::null(), Stdio::from);
        let again = log.as_ref().and_then(|log| log.try_clone().ok());
        let status = command.stdin(Stdio::null()).stdout(said(log)).stderr(said(again)).status();
        status.is_ok_and(|status| status.success())
    }

    /// Ends all faults and makes the cluster what it was: everybody runs, reaches everybody, and as many
    /// nodes are members as were asked for, every one of them with its memory.
    pub fn mend(&mut self) -> Result<(), String> {
        self.all_hosts().into_iter().for_each(|host| self.lan.mend(host));
        for slot in self.disks.small.clone() {
            let _ = std::fs::remove_file(self.disks.slot(slot).join("filler"));
        }
        for index in 0..self.nodes.len() {
            self.nodes[index].managed.go_on();
            if self.nodes[index].managed.clocks != Clocks::Right {
                self.nodes[index].managed.kill();
            }
            if let Some(status) = self.nodes[index].managed.ended() {
                let node = &self.nodes[index];
                let why = format!("it ended by itself ({status}); see node-{}.log", node.number);
                let excused = node.wiped || node.full;
                self.failures.push(ProcessFailure { node: Some(node.number), at: now(), why, excused });
            }
            self.nodes[index].full = false;
            if !self.nodes[index].wiped && !self.nodes[index].managed.runs() {
                self.start_node(index, Clocks::Right)?;
            }
        }
        self.tend()?;
        for index in 0..self.players.len() {
            self.players[index].1.go_on();
            if self.players[index].1.clocks != Clocks::Right {
                self.kill_player(index);
            }
            if self.players[index].0 != Role::Run
                && let Some(status) = self.players[index].1.ended()
            {
                let why = format!("{:?} ended by itself ({status}); see holders.log", self.players[index].0);
                self.failures.push(ProcessFailure { node: None, at: now(), why, excused: false });
            }
            if !self.players[index].1.runs() {
                self.start_player(index, Clocks::Right)?;
            }
        }
        self.make_members_right()
    }

    fn make_members_right(&mut self) -> Result<(), String> {
        let mut patience = Patience::of_seconds(MENDED_WITHIN_SECONDS);
        while patience.lasts() {
            self.tend()?;
            let status = self.status().filter(|status| !status["leader"].is_null());
            let Some(members) = status.map(|status| members(&status)) else {
                std::thread::sleep(Duration::from_millis(100));
                continue;
            };
            if let Some(index) = self.nodes.iter().position(|node| node.wiped) {
                let number = self.nodes[index].number;
                if !members.contains(&number) || self.ask(&["cluster", "remove", &number.to_string()]) {
                    self.forget(index);
                }
                continue;
            }
            if let Some(node) = self.nodes.iter().find(|node| !members.contains(&node.number)) {
                let peer = self.peer(node.number, node.managed.host);
                self.ask(&["cluster", "add", &peer]);
                continue;
            }
            match members.len().cmp(&self.wanted.nodes) {
                std::cmp::Ordering::Less => self.grow()?,
                std::cmp::Ordering::Equal => return Ok(()),
                std::cmp::Ordering::Greater => {
                    let index = self.dice.between(0, self.nodes.len() as u64) as usize;
                    let number = self.nodes[index].number;
                    if self.ask(&["cluster", "remove", &number.to_string()]) {
                        self.forget(index);
                    }
                }
            }
        }
        Err("the cluster did not become whole again; see operator.log and the nodes' logs".into())
    }

    /// A node that is no member any more: its process and its data go.
    fn forget(&mut self, index: usize) {
        let mut node = self.nodes.remove(index);
        node.managed.kill();
        let _ = std::fs::remove_dir_all(&node.data);
    }

    /// What each node says of itself, with the hash of its state.
    pub fn confess(&mut self) -> Vec<(u64, Value)> {
        let slots: Vec<(u64, usize)> =
            self.nodes.iter().map(|node| (node.number, node.managed.host)).collect();
        let asked = slots.into_iter().filter_map(|(number, slot)| {
            let reply = self.http(slot).call("GET", "/v1/cluster?state_hash=true", None).ok()?;
            (reply.status == 200).then(|| (number, reply.json()))
        });
        asked.collect()
    }

    /// One linearizable look at a register, through this node.
    pub fn register(&self, node: u64, key: &str) -> Option<Value> {
        let slot = self.nodes.iter().find(|known| known.number == node)?.managed.host;
        let reply = self.http(slot).call("GET", &format!("/v1/registers/{key}"), None).ok()?;
        (reply.status == 200).then(|| reply.json())
    }

    /// Where the nodes are asked from outside of the network.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        (1..=self.wanted.nodes + 1).map(|slot| SocketAddr::new(self.lan.address(slot), 7400)).collect()
    }

    /// Ends all holders, and leaves the nodes.
    pub fn end_players(&mut self) {
        for index in 0..self.players.len() {
            let process = self.players[index].1.process;
            self.recorder.killed(process);
            self.players[index].1.kill();
        }
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        // Before their disks go.
        self.players.clear();
        self.nodes.clear();
    }
}

fn members(status: &Value) -> Vec<u64> {
    let nodes = status["nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
    nodes.iter().filter_map(|node| node["node"].as_u64()).collect()
}

/// The disks of the slots: folders, of which two are small disks of their own where the system allows it.
struct Disks {
    folder: PathBuf,
    small: Vec<usize>,
}

impl Disks {
    fn prepare(folder: &Path, slots: usize) -> Disks {
        let mut disks = Disks { folder: folder.to_owned(), small: Vec::new() };
        for slot in 1..=slots {
            // It was empty a moment ago; a node that cannot write there will say so.
            let _ = std::fs::create_dir_all(disks.slot(slot));
            if slot <= 2 && disks.mount(slot) {
                disks.small.push(slot);
            }
        }
        disks
    }

    fn slot(&self, slot: usize) -> PathBuf {
        self.folder.join(format!("slot-{slot}"))
    }

    /// A file with a file system in it, else one in memory.
    fn mount(&self, slot: usize) -> bool {
        let image = self.folder.join(format!("slot-{slot}.img"));
        let done = |command: &mut Command| {
            let silent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            silent.status().is_ok_and(|status| status.success())
        };
        (done(Command::new("truncate").args(["-s", SMALL_DISK]).arg(&image))
            && done(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image))
            && done(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(self.slot(slot))))
            || done(
                Command::new("mount")
                    .args(["-t", "tmpfs", "-o", &format!("size={SMALL_DISK}"), "none"])
                    .arg(self.slot(slot)),
            )
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for slot in &self.small {
            let _ = Command::new("umount").arg("-l").arg(self.slot(*slot)).status();
            let _ = std::fs::remove_file(self.folder.join(format!("slot-{slot}.img")));
        }
    }
}
