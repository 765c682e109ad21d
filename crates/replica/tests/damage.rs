//! A node's files are damaged while it is down, and the only node that could have known better was down
//! before: it is refused, or everything that was acknowledged is there.
//!
//! Real processes (this very program, started again as a node), real files, SIGKILL. Each round: write with
//! node 3 stopped; kill 1 and 2; damage a file of node 2; start only 2 and 3. `cargo xtask damage --rounds
//! 1000` runs many rounds and counts them by kind; `--seed` repeats a run. With `--serve` it does the same
//! with `tenure serve` (`e2e/tests/damage.rs`).

mod common;
mod damages;

use common::{Ledger, entries, propose};
use damages::{Dice, Killed, Outcome, damage_many, keep_a_copy};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tenure_replica::{Config, NodeId, RealDisk, Replica, TcpNetwork};

/// Far more than anything here takes; a round that runs into it has failed.
const LONG: Duration = Duration::from_secs(60);
/// What this process is, if it is a node: its number, its directory, all peers, the size of its files.
const NODE: &str = "TENURE_DAMAGE_NODE";
const DIRECTORY: &str = "TENURE_DAMAGE_DIRECTORY";
const PEERS: &str = "TENURE_DAMAGE_PEERS";
const SMALL: &str = "TENURE_DAMAGE_SMALL";
/// Tells what a node says from what the test harness prints.
const MARK: &str = "@@";

/// The node that this process is, if it is one. Not a test: what the others start.
#[test]
fn a_node() {
    let Ok(node) = std::env::var(NODE) else { return };
    let node: NodeId = node.parse().expect("a number");
    let setting = |name: &str| std::env::var(name).expect("a node is told everything");
    let addresses = setting(PEERS);
    let peers = (1..).zip(addresses.split(',').map(String::from)).collect();
    let mut config = Config::member(node, peers);
    if setting(SMALL) == "1" {
        config.log.segment_bytes = 8 << 10;
        config.log.frame_bytes_max = 4 << 10;
        config.snapshot.entries_max = 40;
        config.snapshot.entries_kept = 5;
    } else {
        config.log.segment_bytes = 256 << 10;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let disk = RealDisk::open(setting(DIRECTORY)).expect("a directory");
        let started = Replica::start(config, Arc::new(disk), Arc::new(TcpNetwork), Ledger::default()).await;
        let replica = match started {
            Ok(replica) => replica,
            Err(refused) => {
                println!("{MARK}refused {refused}");
                return;
            }
        };
        println!("{MARK}started");
        let watched = replica.clone();
        tokio::spawn(async move {
            println!("{MARK}refused {}", watched.failed().await);
            std::process::exit(0);
        });
        let (sender, mut orders) = tokio::sync::mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lines() {
                let Ok(line) = line else { break };
                let _ = sender.send(line);
            }
            // Whoever started this node is gone.
            std::process::exit(0);
        });
        while let Some(order) = orders.recv().await {
            obey(&replica, &order).await;
        }
    });
}

/// `write FROM UNTIL`: those that were acknowledged are told, one by one. `read`: everything that is known to
/// be there.
async fn obey(replica: &Replica<Ledger>, order: &str) {
    let words: Vec<&str> = order.split(' ').collect();
    let leader_term = replica.leadership().borrow().leader_term();
    match (words[0], leader_term) {
        (_, None) => println!("{MARK}no leader"),
        ("write", Some(leader_term)) => {
            for number in words[1].parse::<u64>().unwrap()..words[2].parse().unwrap() {
                let mut entry = number.to_le_bytes().to_vec();
                entry.resize(30 + (number % 7) as usize * 40, 1);
                match propose(replica, leader_term, &entry).await {
                    Ok(_) => println!("{MARK}acknowledged {number}"),
                    Err(_) => break,
                }
            }
            println!("{MARK}done");
        }
        (_, Some(_)) => match replica.read_barrier().await {
            Ok(()) => {
                let number = |entry: &Vec<u8>| u64::from_le_bytes(entry[..8].try_into().unwrap()).to_string();
                let found: Vec<String> = entries(replica).iter().map(number).collect();
                println!("{MARK}entries {}", found.join(" "));
            }
            Err(_) => println!("{MARK}no leader"),
        },
    }
}

/// A node in a process of its own. It is killed when dropped.
struct Process {
    child: Child,
    orders: ChildStdin,
    said: Receiver<String>,
}

impl Process {
    fn start(node: NodeId, directory: &Path, peers: &str, small: bool) -> Process {
        let program = std::env::current_exe().expect("a running program has a path");
        let mut child = Command::new(program)
            .args(["--exact", "a_node", "--nocapture", "--test-threads=1"])
            .env(NODE, node.to_string())
            .env(DIRECTORY, directory)
            .env(PEERS, peers)
            .env(SMALL, if small { "1" } else { "0" })
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("this program can be started again");
        let (orders, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, said) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { break };
                // The harness prints the name of the test without an end of line.
                let Some((_, said)) = line.split_once(MARK) else { continue };
                if sender.send(said.to_owned()).is_err() {
                    break;
                }
            }
        });
        Process { child, orders, said }
    }

    /// What it says next, if it says anything in time.
    fn next(&self, within: Duration) -> Option<String> {
        match self.said.recv_timeout(within) {
            Ok(said) => Some(said),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some("gone".into()),
        }
    }

    fn order(&mut self, order: &str) {
        // It may be gone; what it says, or does not say, tells.
        let _ = writeln!(self.orders, "{order}");
        let _ = self.orders.flush();
    }

    fn kill(mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The files of a cluster whose nodes 1 and 2 wrote without node 3, and were killed.
struct Template {
    folder: PathBuf,
    peers: String,
    small: bool,
    acknowledged: BTreeSet<u64>,
    /// Earlier contents of node 2's files.
    older: Vec<(PathBuf, Vec<u8>)>,
}

impl Killed for Template {
    fn make(dice: &mut Dice) -> Template {
        let folder = std::env::temp_dir().join(format!("tenure-damage-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let ports: Vec<_> =
            (0..3).map(|_| std::net::TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
        let peers: Vec<String> = ports.iter().map(|port| port.local_addr().unwrap().to_string()).collect();
        drop(ports);
        let small = dice.below(4) > 0;
        let mut template = Template {
            folder,
            peers: peers.join(","),
            small,
            acknowledged: BTreeSet::new(),
            older: Vec::new(),
        };
        let mut nodes: BTreeMap<NodeId, Process> = (1..=3).map(|node| (node, template.start(node))).collect();
        template.write(&mut nodes, 20 + dice.below(60));
        nodes.remove(&3).unwrap().kill();
        for _ in 0..3 {
            template.write(&mut nodes, 5 + dice.below(60));
            keep_a_copy(&template.directory(2), &mut template.older);
        }
        template.write(&mut nodes, 1 + dice.below(30));
        for node in if dice.below(2) == 0 { [1, 2] } else { [2, 1] } {
            nodes.remove(&node).unwrap().kill();
        }
        template
    }

    fn directory(&self, node: NodeId) -> PathBuf {
        self.folder.join(format!("node-{node}"))
    }

    fn older(&self) -> &[(PathBuf, Vec<u8>)] {
        &self.older
    }

    fn judge(&mut self) -> Outcome {
        let mut nodes = [self.start(2), self.start(3)];
        let began = Instant::now();
        loop {
            for (at, process) in nodes.iter_mut().enumerate() {
                process.order("read");
                let Some(said) = process.next(Duration::from_secs(5)) else { continue };
                if let Some(why) = said.strip_prefix("refused") {
                    assert_eq!(at, 0, "node 3 is sound: {why}");
                    return Outcome::Refused(why.to_owned());
                }
                if said == "gone" {
                    return Outcome::Lost(format!("node {} ended without a word", at + 2));
                }
                let Some(found) = said.strip_prefix("entries") else { continue };
                let found: BTreeSet<u64> = found.split_whitespace().map(|it| it.parse().unwrap()).collect();
                let missing: Vec<_> = self.acknowledged.difference(&found).collect();
                return match missing.is_empty() {
                    true => Outcome::AllPresent,
                    false => Outcome::Lost(format!("{} of {}", missing.len(), self.acknowledged.len())),
                };
            }
            if began.elapsed() > LONG {
                return Outcome::Lost("nothing is served, and nobody says why".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Template {
    fn start(&self, node: NodeId) -> Process {
        Process::start(node, &self.directory(node), &self.peers, self.small)
    }

    /// Has `count` more entries acknowledged, by whoever leads.
    fn write(&mut self, nodes: &mut BTreeMap<NodeId, Process>, count: usize) {
        let began = Instant::now();
        let goal = self.acknowledged.len() + count;
        let mut next = self.acknowledged.last().map_or(0, |last| last + 1);
        while self.acknowledged.len() < goal {
            assert!(began.elapsed() < LONG, "nobody takes entries");
            for process in nodes.values_mut() {
                let left = goal - self.acknowledged.len();
                process.order(&format!("write {next} {}", next + left as u64));
                loop {
                    let said = process.next(LONG).expect("a node answers");
                    assert!(!said.starts_with("refused") && said != "gone", "{said}");
                    match said.strip_prefix("acknowledged ") {
                        Some(number) => drop(self.acknowledged.insert(number.parse().unwrap())),
                        None if said == "started" => {}
                        None => break,
                    }
                }
                // A number whose outcome is unknown is not used again.
                next = self.acknowledged.last().map_or(next, |last| last + 2).max(next);
                if self.acknowledged.len() >= goal {
                    break;
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn a_damaged_node_is_refused_or_has_everything() {
    damage_many::<Template>(16);
}
