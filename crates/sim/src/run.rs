//! One seed: a cluster, its clients, its faults, and what is judged at the end.
//!
//! A run has three parts: the cluster forms and is used; things go wrong; all faults are over, and everything must heal,
//! serve, and hold what was acknowledged. Time is a counter of milliseconds. In each, the network and the storage
//! deliver what is due, then every process runs through it, always in the same order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tenure_checker::{Answer, Call, Death, Failure, Final, Outcome as Came, Sighting, Violation, judge};
use tenure_client::testing::seed_chance;
use tenure_client::{Call as Calling, Endpoints, Repeat, Transport};
use tenure_core::{RegisterKey, ResourceName};
use tenure_replica::{SimDisk, SnapshotOptions, seed_elections};
use tenure_wire::proto;

use crate::cluster::{Member, client_address, peer_address};
use crate::coverage::Coverage;
use crate::dice::Dice;
use crate::faults::Nemesis;
use crate::host::{Process, take_panics};
use crate::net::{HostId, Net, Tick};
use crate::record::Record;
use crate::storage::Storage;
use crate::workload::{Holds, Person, REGISTERS, RESOURCES};

/// Clients' machines are numbered from here on.
const CLIENTS_FROM: HostId = 100;
/// The machine of whoever operates the cluster.
const OPERATOR: HostId = 99;
/// How long the cluster has to form before anything goes wrong.
const FORM: Tick = 2_500;
/// How long everything may take to heal, at most.
const CALM_MAX: Tick = 40_000;
/// What a lease may outlive its dead holder beyond its TTL: an election, a commit, and the wait of whoever is next.
const OVERSHOOT: Duration = Duration::from_secs(4);
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
}

/// A run under way.
pub struct Run {
    /// The network.
    pub net: Net,
    /// What is written down.
    pub record: Record,
    /// The nodes.
    pub members: BTreeMap<u64, Member>,
    /// The clients.
    pub people: BTreeMap<u32, Client>,
    storage: Storage,
    operator: Process,
    operate: Arc<Transport>,
    dice: Dice,
    calm: Arc<AtomicBool>,
    snapshot: SnapshotOptions,
    /// Set once a wiped voter has been replaced.
    replaced: Option<Arc<AtomicBool>>,
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
    done: Arc<AtomicBool>,
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

/// Runs one seed and writes every packet down as well.
pub fn run_with_packets(seed: u64) -> Outcome {
    run_with(seed, true, true)
}

fn run_with(seed: u64, keep_lines: bool, packets: bool) -> Outcome {
    seed_elections(seed);
    seed_chance(seed);
    drop(take_panics());
    let mut run = Run::new(seed, keep_lines);
    if packets {
        run.net.write_down(run.record.clone());
    }
    let mut nemesis = Nemesis::new(run.dice.fork(), FORM);
    let faults_until = FORM + run.dice.within(6_000, 14_000);
    let mut now = 0;
    while now < faults_until {
        if now >= FORM {
            nemesis.tick(now, &mut run);
        }
        run.step(now);
        now += 1;
    }
    run.calm_down(now, &mut nemesis);
    let calm_until = now + CALM_MAX;
    let calm_from = now;
    while now < calm_until && !(now.is_multiple_of(20) && run.is_over()) {
        if now == calm_from + 1_500 {
            run.members.values_mut().for_each(|member| member.excused = false);
        }
        run.step(now);
        now += 1;
    }
    run.finish(seed, now, now >= calm_until)
}

impl Run {
    fn new(seed: u64, keep_lines: bool) -> Run {
        let mut dice = Dice::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x7e57);
        let net = Net::new(dice.fork());
        let record = Record::new(keep_lines);
        let storage = Storage::new(record.clone());
        let size = if dice.chance(20) { 5 } else { 3 };
        let snapshot = SnapshotOptions {
            entries_max: dice.within(20, 300),
            log_bytes_max: 1 << 20,
            entries_kept: dice.within(0, 50),
        };
        let peers: BTreeMap<u64, String> = (1..=size).map(|node| (node, peer_address(node))).collect();
        let mut members = BTreeMap::new();
        for node in 1..=size {
            let ppm = drift(&mut dice);
            let mut member = Member::new(node, peers.clone(), snapshot, ppm);
            member.restart_at = Some(dice.within(0, 300));
            members.insert(node, member);
        }
        let port = net.process(OPERATOR);
        let endpoints = endpoints(&members, &mut dice);
        let mut operate = None;
        let operator = Process::start(0, 0, dice.draw(), |clock| {
            operate = Some(Arc::new(Transport::over(&endpoints, Arc::new(clock), Arc::new(port))));
            async {}
        });
        let operate = operate.expect("the process was started");
        // One run in ten has clients whose clocks nothing can be said about: there only fences help.
        let wild = dice.chance(10);
        let mut people = BTreeMap::new();
        for process in 0..5 {
            let role = if process == 4 { Role::Onlooker } else { Role::Worker };
            let clock_is_wrong = wild && process != 0;
            let ppm =
                if clock_is_wrong { dice.within(0, 200_000) as i64 - 100_000 } else { drift(&mut dice) };
            let ttl = if process == 0 { dice.millis(4_000, 6_000) } else { dice.millis(1_200, 5_000) };
            people.insert(process, Client::new(process, role, ppm, clock_is_wrong, ttl));
        }
        let calm = Arc::new(AtomicBool::new(false));
        let mut run = Run {
            net,
            record,
            members,
            people,
            storage,
            operator,
            operate,
            dice,
            calm,
            snapshot,
            replaced: None,
        };
        for process in 0..5 {
            run.start_client(process, 0);
        }
        run
    }

    /// Lets everybody run through one millisecond.
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
            process.run(now + 1);
            if let Some(why) = member.ended(now, &self.net) {
                let node = Some(member.node);
                self.record.note(now * 1_000, format_args!("node {} ended: {why}", member.node));
                let failure = Failure { node, at: now * 1_000, why, excused: member.excused || member.wiped };
                self.record.history(|history| history.failures.push(failure));
            }
        }
        for person in self.people.values_mut() {
            if let Some(process) = &mut person.process {
                process.run(now + 1);
            }
        }
        self.operator.run(now + 1);
        if now.is_multiple_of(100) {
            self.look_around(now);
        }
    }

    /// Writes down what the nodes' states say, and any panic.
    fn look_around(&mut self, now: Tick) {
        let at = now * 1_000;
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
                        waiters: lease.waiters.len() as u64,
                    };
                    self.record.history(|history| history.sightings.push(sighting));
                }
            });
        }
        for why in take_panics() {
            self.record.note(at, format_args!("panic: {why}"));
            let failure = Failure { node: None, at, why, excused: false };
            self.record.history(|history| history.failures.push(failure));
        }
    }

    /// Starts a client's process, if it does not run.
    pub fn start_client(&mut self, process: u32, now: Tick) {
        let endpoints = endpoints(&self.members, &mut self.dice);
        let client = self.people.get_mut(&process).expect("it is a client");
        if client.process.is_some() {
            return;
        }
        let port = self.net.process(client.host);
        let mut dice = self.dice.fork();
        let seed = dice.draw();
        let (record, storage, calm) = (self.record.clone(), self.storage.clone(), self.calm.clone());
        let (holds, done) = (client.holds.clone(), client.done.clone());
        let (role, ttl, clock_is_wrong) = (client.role, client.ttl, client.clock_is_wrong);
        client.process = Some(Process::start(now, client.ppm, seed, move |clock| {
            let person = Person {
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
                holds,
                done,
            };
            async move {
                match role {
                    Role::Worker => person.work().await,
                    Role::Onlooker => person.look_on().await,
                    // Whoever stands in line before it may be dead as well as the one who holds.
                    Role::Auditor => person.audit(2 * TTL_MAX + OVERSHOOT).await,
                }
            }
        }));
    }

    /// Kills a client; what it held, if it held something.
    pub fn kill_client(&mut self, process: u32, now: Tick) -> Option<(Arc<str>, u64)> {
        let client = self.people.get_mut(&process).expect("it is a client");
        let running = client.process.take()?;
        self.record.note(now * 1_000, format_args!("fault: client {process} is killed"));
        self.record.count(|coverage| coverage.client_kills += 1);
        self.net.hang_up(client.host);
        running.end(now);
        client.holds.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Asks the leader to hand leadership on.
    pub fn step_down(&mut self, now: Tick) {
        let (operate, record) = (self.operate.clone(), self.record.clone());
        self.operator.spawn(async move {
            let answer = operate
                .call(ONCE, |channel, _| async move {
                    proto::cluster_client::ClusterClient::new(channel)
                        .step_down(proto::StepDownRequest { to: None })
                        .await
                })
                .await;
            record.note(now * 1_000, format_args!("stepped down: {}", answer.is_ok()));
        });
    }

    /// A voter loses its disk. It is refused as often as it comes back; the operator replaces it by a new node.
    pub fn wipe(&mut self, node: u64, now: Tick) {
        if self.replaced.is_some() {
            return;
        }
        let new = self.members.keys().max().expect("there are nodes") + 1;
        self.record
            .note(now * 1_000, format_args!("fault: node {node} loses its disk, node {new} replaces it"));
        self.record.count(|coverage| coverage.wiped += 1);
        let seed = self.dice.draw();
        let wiped = self.members.get_mut(&node).expect("it is a member");
        wiped.end(now, &self.net, Some(seed), Some(now + self.dice.within(100, 1_000)));
        wiped.disk = SimDisk::new();
        wiped.wiped = true;
        let peers: BTreeMap<u64, String> =
            self.members.keys().chain([&new]).map(|node| (*node, peer_address(*node))).collect();
        let ppm = drift(&mut self.dice);
        let mut member = Member::new(new, peers, self.snapshot, ppm);
        member.restart_at = Some(now + self.dice.within(100, 1_000));
        self.members.insert(new, member);
        let replaced = Arc::new(AtomicBool::new(false));
        self.replaced = Some(replaced.clone());
        let (operate, record) = (self.operate.clone(), self.record.clone());
        self.operator.spawn(async move {
            while !replace(&operate, node, new).await {
                tokio::time::sleep(Duration::from_millis(400)).await;
            }
            record.count(|coverage| coverage.added += 1);
            replaced.store(true, Ordering::Relaxed);
        });
    }

    /// All faults are over; one holder dies, and the auditor comes.
    fn calm_down(&mut self, now: Tick, nemesis: &mut Nemesis) {
        self.record.note(now * 1_000, format_args!("all faults are over"));
        nemesis.end(now, self);
        for member in self.members.values_mut() {
            if member.process.is_none() {
                member.restart_at = Some(now);
            }
        }
        let holding = self.people.iter().find(|(process, client)| {
            **process != 0 && client.holds.lock().unwrap_or_else(PoisonError::into_inner).is_some()
        });
        if let Some(process) = holding.map(|(process, _)| *process)
            && let Some((resource, token)) = self.kill_client(process, now)
        {
            let bound = (self.people[&process].ttl + OVERSHOOT).as_micros() as u64;
            let death = Death { resource, token, at: now * 1_000, freed: None, bound };
            self.record.history(|history| history.deaths.push(death));
            self.people.get(&process).expect("it was just killed").done.store(true, Ordering::Relaxed);
        }
        self.calm.store(true, Ordering::Relaxed);
        let auditor = self.people.len() as u32;
        let ppm = drift(&mut self.dice);
        let client = Client::new(auditor, Role::Auditor, ppm, false, Duration::from_secs(3));
        self.people.insert(auditor, client);
        self.start_client(auditor, now);
    }

    /// Whether everybody has done what they came for and all nodes are level.
    fn is_over(&self) -> bool {
        let done = self.people.values().all(|client| client.done.load(Ordering::Relaxed));
        let replaced = self.replaced.as_ref().is_none_or(|replaced| replaced.load(Ordering::Relaxed));
        if !done || !replaced {
            return false;
        }
        let lasting = self.members.values().filter(|member| !member.wiped);
        let mut entries = lasting.map(|member| member.look(|node| node.glance(|m| m.entries())));
        let first = entries.next().flatten();
        first.is_some() && entries.all(|entries| entries == first)
    }

    fn finish(mut self, seed: u64, now: Tick, too_late: bool) -> Outcome {
        self.look_around(now);
        if too_late {
            let late: Vec<u32> = self
                .people
                .iter()
                .filter(|(_, client)| !client.done.load(Ordering::Relaxed))
                .map(|(process, _)| *process)
                .collect();
            let why = format!(
                "{CALM_MAX} ms after all faults were over clients {late:?} were not served, or nodes not level"
            );
            let failure = Failure { node: None, at: now * 1_000, why, excused: false };
            self.record.history(|history| history.failures.push(failure));
        }
        self.write_finals();
        // Everybody ends, and what they had under way is unknown.
        for member in self.members.values_mut() {
            member.end(now, &self.net, None, None);
        }
        for person in self.people.values_mut() {
            if let Some(process) = person.process.take() {
                process.end(now);
            }
        }
        self.operator.end(now);
        self.record.note(now * 1_000, format_args!("{} packets", self.net.delivered()));
        self.net.close();
        let (mut history, mut coverage, hash, lines) = self.record.take();
        see_through(&mut history);
        coverage.operations = history.operations.len() as u64;
        coverage.unknown = history.operations.iter().filter(|op| op.outcome == Came::Unknown).count() as u64;
        coverage.deaths = history.deaths.iter().filter(|death| death.freed.is_some()).count() as u64;
        let judged = judge(&history);
        Outcome {
            seed,
            hash,
            violations: judged.violations,
            undecided: judged.undecided.len(),
            coverage,
            ticks: now,
            lines,
        }
    }

    fn write_finals(&self) {
        let mut best = 0;
        for member in self.members.values().filter(|member| !member.wiped) {
            let Some((end, totals, snapshot)) = member.look(|node| {
                let (end, totals) = node.glance(|machine| {
                    let registers = REGISTERS.iter().filter_map(|key| {
                        let register = machine.register(&RegisterKey::try_from(key.as_bytes()).ok()?);
                        let (value, revision) = crate::workload::value_of(&register)?;
                        Some(((*key).into(), value, revision))
                    });
                    let end = Final {
                        node: member.node,
                        entries: machine.entries(),
                        state: tenure_wire::state_hash(&machine.capture()),
                        last_token: machine.last_token().map_or(0, |token| token.get()),
                        registers: registers.collect(),
                    };
                    (end, *machine.totals())
                });
                (end, totals, node.status().replica.snapshot_index.is_some())
            }) else {
                continue;
            };
            self.record.note(0, format_args!("final {end:?}"));
            self.record.count(|coverage| {
                coverage.snapshots += u64::from(snapshot);
                if end.entries > best {
                    best = end.entries;
                    coverage.grants = totals.grants;
                    coverage.expiries = totals.sessions_expired;
                    coverage.failovers = totals.leader_changes.saturating_sub(1);
                    coverage.register_refusals = totals.register_refusals;
                }
            });
            self.record.history(|history| history.finals.push(end));
        }
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
            done: Arc::default(),
        }
    }
}

/// One attempt, for what an operator types.
const ONCE: Calling = Calling {
    repeat: Repeat::Never,
    within: Duration::from_secs(2),
    attempt_within: Some(Duration::from_secs(2)),
    persistent: false,
};

/// One step towards a cluster without `old` and with `new`; whether it is there.
async fn replace(operate: &Transport, old: u64, new: u64) -> bool {
    let status = operate
        .call(ONCE, |channel, _| async move {
            let question = proto::ClusterStatusRequest { with_state_hash: false };
            proto::cluster_client::ClusterClient::new(channel).status(question).await
        })
        .await;
    let Ok(status) = status else { return false };
    let there = |wanted: u64| {
        status
            .nodes
            .iter()
            .any(|node| node.node == wanted && matches!(&*node.role, "leader" | "follower" | "candidate"))
    };
    if status.nodes.iter().any(|node| node.node == old) {
        let removed = operate.call(ONCE, |channel, _| async move {
            let question = proto::NodeRemoveRequest { node: old };
            proto::cluster_client::ClusterClient::new(channel).remove(question).await
        });
        return removed.await.is_ok() && there(new);
    }
    if there(new) {
        return true;
    }
    let added = operate.call(ONCE, |channel, _| async move {
        let question = proto::NodeAddRequest { node: new, peer_address: peer_address(new) };
        proto::cluster_client::ClusterClient::new(channel).add(question).await
    });
    let _ = added.await;
    false
}

/// A clock that is as wrong as clocks are: two of them never differ by more than rho.
fn drift(dice: &mut Dice) -> i64 {
    dice.within(0, 480) as i64 - 240
}

/// The nodes in some order: any one is enough.
fn endpoints(members: &BTreeMap<u64, Member>, dice: &mut Dice) -> Endpoints {
    let mut nodes: Vec<u64> = members.keys().copied().collect();
    for place in (1..nodes.len()).rev() {
        nodes.swap(place, dice.within(0, place as u64) as usize);
    }
    let all: Vec<String> = nodes.into_iter().map(|node| client_address(node).to_string()).collect();
    all.join(",").parse().expect("addresses are endpoints")
}

/// Finds out when the leases of the dead were first seen in other hands.
fn see_through(history: &mut tenure_checker::History) {
    for death in &mut history.deaths {
        let granted =
            history.operations.iter().filter_map(|operation| match (&operation.call, &operation.outcome) {
                (Call::Acquire { resource }, Came::Answered(Answer::Granted(token)))
                    if *resource == death.resource && *token > death.token =>
                {
                    Some(operation.ended)
                }
                _ => None,
            });
        let seen = history.sightings.iter().filter(|sighting| {
            sighting.at > death.at
                && sighting.resource == death.resource
                && !sighting.holders.contains(&death.token)
        });
        death.freed = granted.chain(seen.map(|sighting| sighting.at)).filter(|at| *at > death.at).min();
    }
}
