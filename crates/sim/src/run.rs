//! One seed: a cluster, its clients, its faults, and what is judged at the end.
//!
//! A run has three parts: the cluster forms and is used; faults are injected; all faults are over, and
//! everything must heal, serve, and keep what was acknowledged. Time is a counter of milliseconds that
//! advances by two in each step. In a step the network and the storage deliver what is due, then every
//! process runs, always in the same order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tenure_checker::{Death, ProcessFailure, Sighting, Violation};
use tenure_client::testing::seed_chance;
use tenure_client::{Endpoints, Transport};
use tenure_core::{FormatVersion, ResourceName};
use tenure_replica::{Role as NodeRole, SnapshotOptions, seed_elections};

use crate::cluster::{Member, client_address, peer_address};
use crate::coverage::Coverage;
use crate::damage::Damage;
use crate::dice::Dice;
use crate::faults::Nemesis;
use crate::host::{Process, ProcessClock, Still, take_panics};
use crate::low_latency;
use crate::net::{HostId, Net, Port, Tick};
use crate::operator::Exchange;
use crate::record::Record;
use crate::storage::Storage;
use crate::upgrade::Rollout;
use crate::workload::{ClientTask, Holds, PauseRequest, RESOURCES};

/// Clients' machines are numbered from here on.
const CLIENTS_FROM: HostId = 100;
/// The machine of whoever operates the cluster.
pub const OPERATOR: HostId = 99;
/// How far everybody runs before anybody is notified of what the others did: a packet takes at least so long.
const STEP: Tick = 2;
/// How long the cluster has to form before anything goes wrong.
const FORM: Tick = 2_500;
/// How long everything may take to heal, at most.
pub const CALM_MAX: Tick = 40_000;
/// How often the nodes' states are looked at.
const LOOK_EVERY: Tick = 100;
/// The longest K: a quarter of a TTL, and a second at most.
const K_MAX: Duration = Duration::from_secs(1);
/// See [`Run::overshoot`].
const SETTLING: Duration = Duration::from_millis(700);
/// How long the auditor waits for a resource beyond the longest TTL: until a leader is found (connections
/// that fell silent are tried again after up to 1.2 s, an election takes 0.6 s, a split vote another), and
/// until those in the queue before it, who live and know that all is over, have put it down. The dead before
/// it, however many, end side by side.
const AUDIT_SLACK: Duration = Duration::from_secs(5);
/// How many millionths a sound clock runs too fast or too slow: two of them differ by less than rho, 500.
const DRIFT_MAX: i64 = 240;
/// The longest TTL of any session.
const TTL_MAX: Duration = Duration::from_secs(6);

/// What came of a seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// A hash of everything that was written down, in order.
    pub hash: u64,
    /// The rules that were broken.
    pub violations: Vec<Violation>,
    /// Subjects whose history could not be decided within bounds.
    pub undecided: usize,
    /// What happened.
    pub coverage: Coverage,
    /// How long it was, in simulated time.
    pub ticks: Tick,
    /// Everything that was written down, if it was wanted.
    pub lines: Vec<String>,
    /// The lowest format version that any node has agreed on.
    pub format: FormatVersion,
    /// With two releases: how often a node changed its own, and whether the newer format version was agreed
    /// on.
    pub releases: (u64, bool),
}

/// A run under way.
pub struct Run {
    /// Its seed.
    pub seed: u64,
    /// The network.
    pub net: Net,
    /// What is written down.
    pub record: Record,
    /// The nodes.
    pub members: BTreeMap<u64, Member>,
    /// The clients.
    pub clients: BTreeMap<u32, Client>,
    /// The process from which the cluster is operated.
    pub operator: Process,
    /// Its connections to all nodes.
    pub operate: Arc<Transport>,
    operator_world: (ProcessClock, Port),
    /// Chance.
    pub dice: Dice,
    /// When nodes take snapshots.
    pub snapshot: SnapshotOptions,
    /// Nodes that were replaced, or are being replaced.
    pub exchanges: Vec<Exchange>,
    /// Set with the first revocation.
    pub revoked: Arc<AtomicBool>,
    /// What is said on one stream may be said again on another; so every write has a number.
    pub repeats: bool,
    /// Nodes that had lost their disk, or a part of it, and took part under their old number all the same:
    /// when that was first seen, and what they had lost.
    pub let_in: BTreeMap<u64, (Tick, String)>,
    storage: Storage,
    calm: Arc<AtomicBool>,
    /// Clients that asked to stand still, and until when.
    paused_clients: Vec<(Tick, u32)>,
    /// Since all faults are over: for how long nobody led, and how often somebody became leader.
    leaderless: Tick,
    terms: u64,
    leader: Option<(u64, u64)>,
}

/// One client: its machine, and its process while it runs.
pub struct Client {
    /// Its machine.
    pub host: HostId,
    /// Its process.
    pub process: Option<Process>,
    role: Role,
    ppm: i64,
    clock_is_wrong: bool,
    ttl: Duration,
    holds: Holds,
    pause_request: PauseRequest,
    /// Set when it has done what it came for.
    pub done: Arc<AtomicBool>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Worker,
    Onlooker,
    Auditor,
}

/// Runs one seed.
pub fn run_seed(seed: u64, keep_lines: bool) -> Outcome {
    run_with(seed, keep_lines, false)
}

/// Runs one seed with nodes of two releases, and raises the agreed format version.
pub fn run_upgrade(seed: u64, keep_lines: bool) -> Outcome {
    run_world(seed, keep_lines, false, true)
}

/// Runs one seed and writes every packet down as well.
pub fn run_with_packets(seed: u64) -> Outcome {
    run_with(seed, true, true)
}

fn run_with(seed: u64, keep_lines: bool, packets: bool) -> Outcome {
    run_world(seed, keep_lines, packets, false)
}

fn run_world(seed: u64, keep_lines: bool, packets: bool, two_releases: bool) -> Outcome {
    seed_elections(seed);
    seed_chance(seed);
    drop(take_panics());
    let mut run = Run::new(seed, keep_lines);
    if packets {
        run.net.write_down(run.record.clone());
    }
    let mut nemesis = Nemesis::new(run.dice.fork(), FORM);
    let faults_until = FORM + run.dice.within(6_000, 14_000);
    let mut damage = Damage::new(seed, FORM, faults_until);
    let mut rollout = two_releases.then(|| Rollout::new(seed, FORM, faults_until));
    if two_releases {
        run.members.values_mut().for_each(|member| member.release = FormatVersion::V1);
    }
    let mut now = 0;
    while now < faults_until {
        if now >= FORM {
            nemesis.tick(now, &mut run);
            damage.tick(now, &mut run);
            if let Some(rollout) = &mut rollout {
                rollout.tick(now, &mut run);
            }
        }
        run.step(now);
        now += STEP;
    }
    run.calm_down(now, &mut nemesis);
    let calm_until = now + CALM_MAX;
    let calm_from = now;
    while now < calm_until && !(now.is_multiple_of(20) && run.is_over()) {
        if now == calm_from + 1_500 {
            run.members.values_mut().for_each(|member| member.excused = false);
        }
        run.step(now);
        now += STEP;
    }
    let releases = rollout.map_or((0, false), |rollout| (rollout.changes(), rollout.raised()));
    let mut outcome = run.finish(seed, now, now >= calm_until);
    outcome.releases = releases;
    if releases.1 && outcome.format < FormatVersion::V2 {
        outcome.violations.push(Violation {
            rule: "acknowledged_is_kept",
            what: "the format version that was raised is no longer agreed on".into(),
        });
    }
    outcome
}

impl Run {
    fn new(seed: u64, keep_lines: bool) -> Run {
        let mut dice = Dice::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x7e57);
        let net = Net::new(dice.fork());
        let repeats = dice.chance(25);
        if repeats {
            net.keep_what_is_said();
        }
        let record = Record::new(keep_lines, repeats);
        let storage = Storage::new(record.clone());
        let size = if dice.chance(20) { 5 } else { 3 };
        record.count(|coverage| coverage.clocks_within += size);
        let snapshot = SnapshotOptions {
            entries_max: dice.within(20, 300),
            log_bytes_max: 1 << 20,
            entries_kept: dice.within(0, 50),
        };
        let peers: BTreeMap<u64, String> = (1..=size).map(|node| (node, peer_address(node))).collect();
        let mut members = BTreeMap::new();
        for node in 1..=size {
            let ppm = drift(&mut dice);
            let mut member =
                Member::new(node, peers.clone(), snapshot, low_latency::options(seed, node), ppm);
            member.restart_at = Some(dice.within(0, 300));
            members.insert(node, member);
        }
        let port = net.process(OPERATOR);
        let endpoints = endpoints(members.values(), &mut dice);
        let mut clock = None;
        let operator = Process::start(0, 0, dice.draw(), |of_process| {
            clock = Some(of_process);
            async {}
        });
        let clock = clock.expect("the process was started");
        let operate = Arc::new(Transport::over(&endpoints, Arc::new(clock.clone()), Arc::new(port.clone())));
        // One run in ten has clients whose clocks nothing can be said about: there only fences help.
        let wild = dice.chance(10);
        let mut clients = BTreeMap::new();
        for process in 0..5 {
            let role = if process == 4 { Role::Onlooker } else { Role::Worker };
            let clock_is_wrong = wild && process != 0;
            let ppm =
                if clock_is_wrong { dice.within(0, 200_000) as i64 - 100_000 } else { drift(&mut dice) };
            let ttl = if process == 0 { dice.millis(4_000, 6_000) } else { dice.millis(1_200, 5_000) };
            record.count(|coverage| match ppm.abs() > DRIFT_MAX {
                true => coverage.clocks_beyond += 1,
                false => coverage.clocks_within += 1,
            });
            clients.insert(process, Client::new(process, role, ppm, clock_is_wrong, ttl));
        }
        let calm = Arc::new(AtomicBool::new(false));
        let mut run = Run {
            seed,
            net,
            record,
            members,
            clients,
            operator,
            operate,
            operator_world: (clock, port),
            dice,
            snapshot,
            exchanges: Vec::new(),
            revoked: Arc::default(),
            repeats,
            let_in: BTreeMap::new(),
            storage,
            calm,
            paused_clients: Vec::new(),
            leaderless: 0,
            terms: 0,
            leader: None,
        };
        for process in 0..5 {
            run.start_client(process, 0);
        }
        run
    }

    /// The operator's connections to some of the nodes.
    pub fn operate_at(&mut self, wanted: impl Fn(&Member) -> bool) -> Arc<Transport> {
        let endpoints = endpoints(self.members.values().filter(|member| wanted(member)), &mut self.dice);
        let (clock, port) = self.operator_world.clone();
        Arc::new(Transport::over(&endpoints, Arc::new(clock), Arc::new(port)))
    }

    /// Lets everybody run through one step.
    fn step(&mut self, now: Tick) {
        self.net.tick(now);
        self.storage.tick(now);
        for member in self.members.values_mut() {
            if member.restart_at.is_some_and(|at| at <= now) {
                let node = member.node;
                self.record.note(now * 1_000, format_args!("node {node} starts"));
                member.start(now, &self.net, &mut self.dice);
            }
            let Some(process) = &mut member.process else { continue };
            process.run(now, now + STEP);
            // In the first step of its life nobody has told it anything yet.
            if let Some(reaches) = member.look(|node| node.status().replica.last_log_index)
                && let Some((applied, what)) = member.damaged.take()
            {
                self.record.note(now * 1_000, format_args!("node {} starts after {what}", member.node));
                if reaches < applied {
                    self.let_in.entry(member.node).or_insert((now, what));
                }
            }
            if let Some((why, wreck)) = member.ended(now, &self.net) {
                if member.damaged.take().is_some() {
                    self.record.count(|coverage| coverage.damage_refused += 1);
                }
                let node = Some(member.node);
                self.record.note(now * 1_000, format_args!("node {} ended: {why}; {wreck:?}", member.node));
                match wreck {
                    Some(wreck) => self.record.count(|coverage| coverage.power_loss(&wreck)),
                    None if member.excused => self.record.count(|coverage| coverage.gave_up += 1),
                    None => {}
                }
                let excused = member.excused || member.leaving;
                let failure = ProcessFailure { node, at: now * 1_000, why, excused };
                self.record.history(|history| history.failures.push(failure));
            }
        }
        self.resume_clients(now);
        for (number, client) in &mut self.clients {
            let Some(process) = &mut client.process else { continue };
            process.run(now, now + STEP);
            if let Some(length) = client.pause_request.lock().unwrap_or_else(PoisonError::into_inner).take() {
                process.stop(Still::Stopped, now);
                self.paused_clients.push((now + length, *number));
            }
        }
        self.operator.run(now, now + STEP);
        if now.is_multiple_of(LOOK_EVERY) {
            self.stop_the_retired(now);
            self.look_around(now);
            if self.calm.load(Ordering::Relaxed) {
                self.look_for_a_leader();
            }
        }
    }

    /// Whoever says that it leads in the newest term that anybody knows of.
    fn look_for_a_leader(&mut self) {
        let seen = self.members.values().filter(|member| !member.leaving).filter_map(|member| {
            let status = member.look(|node| node.status().replica)?;
            Some((status.term, status.role == NodeRole::Leader, member.node))
        });
        let leader = seen.max().filter(|(_, leads, _)| *leads).map(|(term, _, node)| (term, node));
        match leader {
            None => self.leaderless += LOOK_EVERY,
            Some(leader) if self.leader != Some(leader) => {
                self.leader = Some(leader);
                self.terms += 1;
            }
            Some(_) => {}
        }
    }

    /// What a lease may have outlived its dead holder beyond its TTL, once all faults were over (rule 7): the
    /// time in which nobody led; for each new leader, what the last one had counted and not yet put into the
    /// log, and what it takes to apply the first entry of the term; and in any case one commit, the look by
    /// which it is seen, and what was dropped because the leader had to find its own port again.
    pub(crate) fn overshoot(&self) -> Duration {
        let per_term = K_MAX / 2 + Duration::from_millis(100);
        Duration::from_millis(self.leaderless) + per_term * self.terms as u32 + SETTLING
    }

    /// Lets those go on whose pause_request is over.
    fn resume_clients(&mut self, now: Tick) {
        let clients = &mut self.clients;
        self.paused_clients.retain(|(until, client)| {
            if *until > now {
                return true;
            }
            if let Some(process) = clients.get_mut(client).and_then(|client| client.process.as_mut()) {
                process.wake(now);
            }
            false
        });
    }

    /// Writes down what the nodes' states say, and any panic.
    pub fn look_around(&mut self, now: Tick) {
        let at = now * 1_000;
        self.look_at_snapshots();
        self.look_at_low_latency();
        for member in self.members.values() {
            member.look(|node| {
                let (entries, seen) = node.glance(|machine| {
                    let seen: Vec<_> = RESOURCES
                        .iter()
                        .filter_map(|name| {
                            let name: ResourceName = name.parse().expect("it is a name");
                            machine.lease(&name)
                        })
                        .collect();
                    (machine.entries(), seen)
                });
                if member.wiped && entries > 0 {
                    self.let_in.entry(member.node).or_insert((now, "its disk".into()));
                }
                let status = node.status();
                let (role, term) = (status.replica.role, status.replica.term);
                self.record
                    .note(at, format_args!("node {} {role:?} term {term} entries {entries}", member.node));
                for lease in seen {
                    let sighting = Sighting {
                        node: member.node,
                        at,
                        resource: lease.resource.to_string().into(),
                        holders: lease.holders.iter().map(|holder| holder.token.get()).collect(),
                        last_token: lease.token.map_or(0, |token| token.get()),
                        waiters: lease.waiters.len() as u64,
                    };
                    self.record.history(|history| history.sightings.push(sighting));
                }
            });
        }
        for why in take_panics() {
            self.record.note(at, format_args!("panic: {why}"));
            let failure = ProcessFailure { node: None, at, why, excused: false };
            self.record.history(|history| history.failures.push(failure));
        }
    }

    /// Counts what the nodes decided in low-latency mode.
    fn look_at_low_latency(&mut self) {
        for member in self.members.values_mut() {
            let Some(seen) = member.look(|node| node.status().replica.low_latency) else { continue };
            let before = std::mem::replace(&mut member.low_latency, seen);
            self.record.count(|coverage| low_latency::count(coverage, before, seen));
        }
    }

    /// Counts the snapshots that were taken, and those that were installed. Whoever lacks what the leader has
    /// removed from its log and has it later was given a snapshot.
    fn look_at_snapshots(&mut self) {
        let leads = self.members.values().filter(|member| member.leads());
        let purged = leads.filter_map(|member| member.look(|node| node.status().replica.purged)?).max();
        for member in self.members.values_mut() {
            let Some(status) = member.look(|node| node.status().replica) else { continue };
            let installed = member.behind.is_some_and(|behind| status.applied >= Some(behind));
            let taken = status.snapshot_index > member.snapshot && !installed;
            self.record.count(|coverage| {
                coverage.installed += u64::from(installed);
                coverage.snapshots += u64::from(taken);
            });
            member.snapshot = status.snapshot_index.max(member.snapshot);
            if installed {
                member.behind = None;
            }
            if purged > status.last_log_index && member.behind.is_none() {
                member.behind = purged;
            }
        }
    }

    /// Starts a client's process, if it does not run.
    pub fn start_client(&mut self, process: u32, now: Tick) {
        let endpoints = endpoints(self.members.values(), &mut self.dice);
        let client = self.clients.get_mut(&process).expect("it is a client");
        if client.process.is_some() {
            return;
        }
        let port = self.net.process(client.host);
        let mut dice = self.dice.fork();
        let seed = dice.draw();
        let (record, storage, calm) = (self.record.clone(), self.storage.clone(), self.calm.clone());
        let (holds, pause_request, done) =
            (client.holds.clone(), client.pause_request.clone(), client.done.clone());
        let (revoked, repeats) = (self.revoked.clone(), self.repeats);
        let (role, ttl, clock_is_wrong) = (client.role, client.ttl, client.clock_is_wrong);
        client.process = Some(Process::start(now, client.ppm, seed, move |clock| {
            let client = ClientTask {
                process,
                clock,
                port,
                endpoints,
                dice,
                record,
                storage,
                ttl,
                clock_is_wrong,
                healthy: process == 0,
                calm,
                revoked,
                repeats,
                holds,
                pause_request,
                done,
            };
            async move {
                match role {
                    Role::Worker => client.work().await,
                    Role::Onlooker => client.look_on().await,
                    Role::Auditor => client.audit(TTL_MAX + AUDIT_SLACK).await,
                }
            }
        }));
    }

    /// Kills a client; what it held, if it held something.
    pub fn kill_client(&mut self, process: u32, now: Tick) -> Option<(Arc<str>, u64)> {
        let client = self.clients.get_mut(&process).expect("it is a client");
        let running = client.process.take()?;
        self.record.note(now * 1_000, format_args!("fault: client {process} is killed"));
        self.record.count(|coverage| coverage.client_kills += 1);
        self.net.hang_up(client.host);
        running.end(now);
        client.pause_request.lock().unwrap_or_else(PoisonError::into_inner).take();
        client.holds.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// All faults are over; one holder dies, and the auditor comes.
    fn calm_down(&mut self, now: Tick, nemesis: &mut Nemesis) {
        self.record.note(now * 1_000, format_args!("all faults are over"));
        nemesis.end(now, self);
        self.paused_clients.iter_mut().for_each(|(until, _)| *until = now);
        self.resume_clients(now);
        for member in self.members.values_mut() {
            if member.process.is_none() {
                member.restart_at = Some(now);
            }
        }
        let holding = self.clients.iter().find(|(process, client)| {
            **process != 0 && client.holds.lock().unwrap_or_else(PoisonError::into_inner).is_some()
        });
        if let Some(process) = holding.map(|(process, _)| *process)
            && let Some((resource, token)) = self.kill_client(process, now)
        {
            // To be completed by what happens until it is seen.
            let bound = self.clients[&process].ttl.as_micros() as u64;
            let death = Death { resource, token, at: now * 1_000, freed: None, bound };
            self.record.history(|history| history.deaths.push(death));
            self.clients.get(&process).expect("it was just killed").done.store(true, Ordering::Relaxed);
        }
        self.calm.store(true, Ordering::Relaxed);
        let auditor = self.clients.len() as u32;
        let ppm = drift(&mut self.dice);
        let client = Client::new(auditor, Role::Auditor, ppm, false, Duration::from_secs(3));
        self.clients.insert(auditor, client);
        self.start_client(auditor, now);
    }
}

impl Client {
    fn new(process: u32, role: Role, ppm: i64, clock_is_wrong: bool, ttl: Duration) -> Client {
        Client {
            host: CLIENTS_FROM + process,
            process: None,
            role,
            ppm,
            clock_is_wrong,
            ttl,
            holds: Arc::default(),
            pause_request: Arc::default(),
            done: Arc::default(),
        }
    }
}

/// A clock that is as wrong as clocks are: two of them never differ by more than rho.
pub fn drift(dice: &mut Dice) -> i64 {
    dice.within(0, 2 * DRIFT_MAX as u64) as i64 - DRIFT_MAX
}

/// These nodes in some order: any one is enough.
fn endpoints<'a>(members: impl Iterator<Item = &'a Member>, dice: &mut Dice) -> Endpoints {
    let mut nodes: Vec<u64> = members.map(|member| member.node).collect();
    for place in (1..nodes.len()).rev() {
        nodes.swap(place, dice.within(0, place as u64) as usize);
    }
    let all: Vec<String> = nodes.into_iter().map(|node| client_address(node).to_string()).collect();
    all.join(",").parse().expect("addresses are endpoints")
}
