//! The nodes of a simulated cluster: the shipped server, each in its own process on a machine with its own
//! disk.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tenure_core::FormatVersion;
use tenure_replica::{
    Entropy, Execution, LogOptions, LowLatencyOptions, LowLatencyStatus, NodeId, SimDisk, SnapshotOptions,
    Wreck,
};
use tenure_server::{Config, EventFileOptions, Node, Server, World};

use crate::dice::Dice;
use crate::host::Process;
use crate::net::{HostId, Net, Tick, ip};

const CLIENT_PORT: u16 = 7400;
const PEER_PORT: u16 = 7500;
/// How long a supervisor waits before it starts a node again that ended by itself.
const RESTART_AFTER: Tick = 700;

/// One node: its machine, its disk, and its process while it runs.
pub struct Member {
    /// Its number, which is its machine's too.
    pub node: NodeId,
    /// Its disk.
    pub disk: SimDisk,
    /// Its process.
    pub process: Option<Process>,
    /// When it is started again.
    pub restart_at: Option<Tick>,
    /// An injected fault explains if it ends by itself.
    pub excused: bool,
    /// Its power goes with the next sync that fails, and what is kept of what was not synced falls as this
    /// says.
    pub power_goes: Option<u64>,
    /// It has no place here any more, or will have none: it lost its disk, or is being removed.
    pub leaving: bool,
    /// It lost its disk, and with it all that it had promised.
    pub wiped: bool,
    /// Its files were damaged: what it had applied before, and what was done to them. Until it is seen what
    /// comes of it.
    pub damaged: Option<(Option<u64>, String)>,
    /// The last of its entries that a snapshot covers, as last seen.
    pub snapshot: Option<u64>,
    /// It lacks entries up to this one, and the leader has removed them from its log.
    pub behind: Option<u64>,
    /// What its process has decided in low-latency mode, as last seen.
    pub low_latency: LowLatencyStatus,
    /// The release that it runs: the newest format version that it knows.
    pub release: FormatVersion,
    config: Config,
    ppm: i64,
    inside: Arc<Mutex<Inside>>,
}

#[derive(Default)]
struct Inside {
    node: Option<Node>,
    ended: Option<String>,
}

impl Member {
    /// A node that has not been started yet.
    pub fn new(
        node: NodeId,
        peers: BTreeMap<NodeId, String>,
        snapshot: SnapshotOptions,
        low_latency: LowLatencyOptions,
        ppm: i64,
    ) -> Member {
        let config = Config {
            node,
            peers,
            peers_beyond_this_machine: true,
            // Small, so that segments end and are removed all the time.
            log: LogOptions { segment_bytes: 32 << 10, frame_bytes_max: 8 << 10, cache_bytes: 16 << 10 },
            snapshot,
            // Small for the same reason.
            event_files: EventFileOptions { bytes_max: 256 << 10, ..EventFileOptions::default() },
            low_latency,
            ..Config::single(client_address(node), "simulated".into())
        };
        Member {
            node,
            disk: SimDisk::new(),
            process: None,
            restart_at: None,
            excused: false,
            power_goes: None,
            leaving: false,
            wiped: false,
            damaged: None,
            snapshot: None,
            behind: None,
            low_latency: LowLatencyStatus::default(),
            release: FormatVersion::NEWEST,
            config,
            ppm,
            inside: Arc::default(),
        }
    }

    /// The machine that it runs on.
    pub fn host(&self) -> HostId {
        self.node as HostId
    }

    /// Starts its process.
    pub fn start(&mut self, now: Tick, net: &Net, dice: &mut Dice) {
        let port = net.process(self.host());
        let config = Config { format_newest: self.release, ..self.config.clone() };
        let disk = self.disk.clone();
        let inside = self.inside.clone();
        let chance = Mutex::new(dice.fork());
        let entropy = Entropy::from_source(move || {
            let mut chance = chance.lock().unwrap_or_else(PoisonError::into_inner);
            (u128::from(chance.draw()) << 64) | u128::from(chance.draw())
        });
        self.restart_at = None;
        self.low_latency = LowLatencyStatus::default();
        self.process = Some(Process::start(now, self.ppm, dice.draw(), move |clock| async move {
            let world = World {
                clock: Arc::new(clock),
                disk: Arc::new(disk),
                network: Arc::new(port.clone()),
                entropy,
                execution: Execution::Tasks,
            };
            let address = config.listen;
            let started = match port.listen(&address.to_string()) {
                Ok(listener) => {
                    Server::start_in(config, world, listener, address).await.map_err(|e| e.to_string())
                }
                Err(error) => Err(error.to_string()),
            };
            let why = match started {
                Ok(server) => {
                    set(&inside).node = Some(server.node().clone());
                    let ended = server.run_until(std::future::pending()).await;
                    ended.err().map_or("it ended".to_owned(), |failure| failure.to_string())
                }
                Err(why) => why,
            };
            set(&inside).ended = Some(why);
        }));
    }

    /// Ends its process; it is started again at `restart_at`. With its power, what was not synced may go.
    pub fn end(&mut self, now: Tick, net: &Net, power: Option<u64>, restart_at: Option<Tick>) -> Wreck {
        *set(&self.inside) = Inside::default();
        let wreck = if let Some(seed) = power {
            net.power_off(self.host());
            self.disk.crash(seed)
        } else {
            self.disk.restart();
            Wreck::default()
        };
        if let Some(process) = self.process.take() {
            net.hang_up(self.host());
            process.end(now);
        }
        self.restart_at = restart_at;
        wreck
    }

    /// Why its process has ended by itself, if it has, and what went with its power, if that went. It is
    /// started again after a while.
    pub fn ended(&mut self, now: Tick, net: &Net) -> Option<(String, Option<Wreck>)> {
        let why = set(&self.inside).ended.take()?;
        let power = self.power_goes.take();
        if power.is_some() {
            self.disk.fail_syncs_after(None);
        }
        let wreck = self.end(now, net, power, Some(now + RESTART_AFTER));
        Some((why, power.map(|_| wreck)))
    }

    /// Looks into it, if it runs.
    pub fn look<T>(&self, look: impl FnOnce(&Node) -> T) -> Option<T> {
        set(&self.inside).node.as_ref().map(look)
    }

    /// Whether it thinks that it leads.
    pub fn leads(&self) -> bool {
        self.look(|node| node.status().replica.role == tenure_replica::Role::Leader).unwrap_or(false)
    }
}

fn set(inside: &Mutex<Inside>) -> std::sync::MutexGuard<'_, Inside> {
    inside.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where clients reach a node.
pub fn client_address(node: NodeId) -> SocketAddr {
    format!("{}:{CLIENT_PORT}", ip(node as HostId)).parse().expect("it is an address")
}

/// Where nodes reach a node.
pub fn peer_address(node: NodeId) -> String {
    format!("{}:{PEER_PORT}", ip(node as HostId))
}
