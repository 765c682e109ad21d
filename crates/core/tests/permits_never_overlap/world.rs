//! The world: what happens when, and what is checked as it does.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tenure_core::{
    Acquire, AcquireBy, Caller, Command, EndReason, Entry, EventKind, Holder, HolderOptions, Machine,
    MachineTime, Message, Mode, Nonce, Open, Permit, Policies, Proposer, ProposerLimits, QueueKind,
    ResourceName, Sealed, Secret, SessionId, Timing, Token, Wait, WallTime,
};

use crate::Seen;
use crate::parts::{
    Clock, Dice, MS, RATE_PPM, Real, Reply, SECOND, TTLS, TestRequest, What, is_ended, reply_to, timing,
};

enum Happening {
    /// A message reaches a node's socket.
    Arrives(usize, TestRequest),
    Probe(usize, u128),
    /// A node's loop runs.
    Turn(usize),
    /// The oldest entry in flight in this term is committed.
    Commits(u64),
    /// A process receives something.
    Receives(usize, u64, Reply),
    Renewer(usize, u64),
    Work(usize),
    ServerFault,
    ProcessFault,
    /// A node becomes leader in this term, or steps down after it was deposed.
    Takes(usize, u64),
    Leaves(usize, u64),
    Flood(Real),
}

struct Node {
    clock: Clock,
    proposer: Proposer<TestRequest>,
    paused_until: Real,
    deaf_until: Real,
    turn_at: Option<Real>,
    /// The term in which it believes to lead.
    term: u64,
}

struct Process {
    clock: Clock,
    timing: Timing,
    logic: Holder,
    life: u64,
    session: Option<SessionId>,
    token: Option<Token>,
    asked_at: Real,
    paused_until: Real,
    cut_until: Real,
    beat: u64,
    permit: Option<(Permit, Real, usize)>,
}

/// A permit that was taken: its interval in real time.
struct Taken {
    token: Token,
    ends: Real,
}

struct Flight {
    sealed: Sealed<TestRequest>,
    read_at: Real,
}

pub struct World {
    seed: u64,
    dice: Dice,
    now: Real,
    queue: BTreeMap<(Real, u64), Happening>,
    next: u64,
    nodes: Vec<Node>,
    processes: Vec<Process>,
    machine: Machine,
    term: u64,
    leader: usize,
    flights: VecDeque<Flight>,
    last_commit: Real,
    slow_until: Real,
    taken: Vec<Taken>,
    secrets: u8,
}

impl World {
    pub fn new(seed: u64) -> World {
        let mut dice = Dice(seed);
        let limits = ProposerLimits {
            renewals_per_entry_max: if dice.one_in(2) { 1 + dice.below(4) as usize } else { 1_000 },
            opens_per_entry_max: 1 + dice.below(3) as usize,
            renewals_waiting_max: 10_000,
            ..ProposerLimits::default()
        };
        let apart = |dice: &mut Dice| if dice.one_in(4) { 100_000 } else { 0 };
        let nodes = (0..3)
            .map(|_| {
                let ppm = if dice.one_in(2) { RATE_PPM } else { 0 };
                let clock = Clock { origin: dice.below(SECOND), ppm: [ppm + apart(&mut dice), ppm] };
                let proposer = Proposer::new(limits.clone());
                Node { clock, proposer, paused_until: 0, deaf_until: 0, turn_at: None, term: 0 }
            })
            .collect();
        let processes = TTLS
            .iter()
            .map(|ttl| {
                let ppm = if dice.one_in(2) { -RATE_PPM } else { 0 };
                let clock = Clock { origin: dice.below(SECOND), ppm: [ppm, ppm - apart(&mut dice)] };
                let timing = timing(*ttl);
                let logic = Holder::new(timing, HolderOptions::default());
                Process {
                    clock,
                    timing,
                    logic,
                    life: 0,
                    session: None,
                    token: None,
                    asked_at: 0,
                    paused_until: 0,
                    cut_until: 0,
                    beat: 0,
                    permit: None,
                }
            })
            .collect();
        let mut world = World {
            seed,
            dice,
            now: 0,
            queue: BTreeMap::new(),
            next: 0,
            nodes,
            processes,
            machine: Machine::default(),
            term: 0,
            leader: 0,
            flights: VecDeque::new(),
            last_commit: 0,
            slow_until: 0,
            taken: Vec::new(),
            secrets: 0,
        };
        world.elect(0);
        for process in 0..TTLS.len() {
            // The one with the short TTL comes late, so that K shrinks while time is being counted.
            let start = if process == 2 { 5 * SECOND } else { MS };
            world.at(start, Happening::Renewer(process, 0));
            world.at(start, Happening::Work(process));
        }
        world.at(2 * SECOND, Happening::ServerFault);
        world.at(SECOND, Happening::ProcessFault);
        world
    }

    pub fn run(mut self, until: Real, seen: &mut Seen) {
        while let Some(((at, _), happening)) = self.queue.pop_first() {
            if at > until {
                break;
            }
            self.now = at;
            match happening {
                Happening::Arrives(node, request) => self.arrives(node, request),
                Happening::Probe(node, number) => self.probe(node, number),
                Happening::Turn(node) => self.turn(node, seen),
                Happening::Commits(term) => self.commits(term, seen),
                Happening::Receives(process, life, reply) => self.receives(process, life, reply),
                Happening::Renewer(process, beat) => self.renewer(process, beat),
                Happening::Work(process) => self.work(process, seen),
                Happening::ServerFault => self.server_fault(),
                Happening::ProcessFault => self.process_fault(),
                Happening::Takes(node, term) => self.takes(node, term, seen),
                Happening::Leaves(node, term) => self.leaves(node, term),
                Happening::Flood(end) => self.flood(end),
            }
        }
        seen.dropped += self.nodes.iter().map(|node| node.proposer.dropped()).sum::<Duration>();
    }

    fn at(&mut self, at: Real, happening: Happening) {
        self.next += 1;
        self.queue.insert((at.max(self.now), self.next), happening);
    }

    fn after(&mut self, delay: Real, happening: Happening) {
        self.at(self.now + delay, happening);
    }

    // The nodes.

    /// When a node gets to look at something that is in its socket: not while it is paused or deaf, and not in the very
    /// instant in which that ends.
    fn held_up(&mut self, node: usize) -> Option<Real> {
        let until = self.nodes[node].paused_until.max(self.nodes[node].deaf_until);
        (until > self.now).then(|| until + MS + self.dice.below(10 * MS))
    }

    fn arrives(&mut self, node: usize, request: TestRequest) {
        if let Some(later) = self.held_up(node) {
            return self.at(later, Happening::Arrives(node, request));
        }
        // Given back or not: whoever gets no answer sends again.
        let _ = self.nodes[node].proposer.arrived(request);
        self.turn_soon(node, self.now + self.dice.0 % MS);
    }

    fn probe(&mut self, node: usize, number: u128) {
        if let Some(later) = self.held_up(node) {
            return self.at(later, Happening::Probe(node, number));
        }
        self.nodes[node].proposer.probe_returned(number);
    }

    fn turn_soon(&mut self, node: usize, at: Real) {
        if self.nodes[node].turn_at.is_none_or(|planned| at < planned) {
            self.nodes[node].turn_at = Some(at);
            self.at(at, Happening::Turn(node));
        }
    }

    fn turn(&mut self, node: usize, seen: &mut Seen) {
        if self.nodes[node].turn_at != Some(self.now) {
            return; // an earlier one took its place
        }
        self.nodes[node].turn_at = None;
        if self.nodes[node].paused_until > self.now {
            return self.turn_soon(node, self.nodes[node].paused_until);
        }
        let moment = self.nodes[node].clock.at(self.now);
        while let Some(sealed) = self.nodes[node].proposer.seal(|| moment) {
            seen.left_behind += u64::from(self.nodes[node].proposer.waiting().renewals > 0);
            if self.nodes[node].term == self.term {
                let delay =
                    MS / 5 + self.dice.below(if self.slow_until > self.now { SECOND } else { 5 * MS });
                self.last_commit = self.last_commit.max(self.now + delay);
                self.flights.push_back(Flight { sealed, read_at: self.now });
                self.at(self.last_commit, Happening::Commits(self.term));
            } // else it is deposed and does not know: nobody will ever be notified of this entry
        }
        if self.nodes[node].proposer.probe_due(moment) {
            // No two probes of a node leave at one moment.
            let number = u128::from(self.now);
            self.nodes[node].proposer.probe_sent(number, moment);
            let delay = self.dice.below(3 * MS);
            self.after(delay, Happening::Probe(node, number));
        }
        if let Some(wake) = self.nodes[node].proposer.next_wake(moment) {
            let wait = wake.longest_since(moment);
            let at = self.nodes[node].clock.real_after(self.now, wait) + 10_000 + self.dice.below(MS);
            self.turn_soon(node, at);
        }
    }

    fn commits(&mut self, term: u64, seen: &mut Seen) {
        if term != self.term {
            return;
        }
        let paused_until = self.nodes[self.leader].paused_until;
        if paused_until > self.now {
            return self.at(paused_until, Happening::Commits(term));
        }
        let flight = self.flights.pop_front().expect("an entry in flight");
        let number = flight.sealed.number;
        for (request, reply) in self.apply(flight, seen) {
            self.reply(request.process, request.life, reply);
        }
        let machine = MachineTime::from(&self.machine);
        let node = &mut self.nodes[self.leader];
        node.proposer.applied(machine);
        node.proposer.answered(number);
        self.turn_soon(self.leader, self.now + 20_000);
    }

    /// Applies an entry and checks what it ended and granted. Returns what it answers.
    fn apply(&mut self, flight: Flight, seen: &mut Seen) -> Vec<(TestRequest, Reply)> {
        let Flight { sealed, read_at } = flight;
        let (renewing, commanding): (Vec<TestRequest>, Vec<TestRequest>) =
            sealed.batch.into_iter().partition(|request| request.queue() == QueueKind::Renewal);
        let renewals = renewing.iter().map(TestRequest::renewal).collect();
        let commands = commanding.iter().map(|request| self.command(request)).collect();
        let applied =
            self.machine.apply(Entry { at: sealed.at, wall: WallTime::default(), renewals, commands });
        for event in self.machine.fresh_events().to_vec() {
            match &event.kind {
                EventKind::Ended { token, session, why, .. } => {
                    let by = if *why == EndReason::Expired { read_at } else { self.now };
                    seen.expired += u64::from(*why == EndReason::Expired);
                    seen.released += u64::from(*why == EndReason::Released);
                    self.no_permit_after(by, |taken| taken.token == *token, *why);
                    let healthy = self.processes[0].session.map(|session| session.number);
                    let lost = *why != EndReason::Released && healthy == Some(*session);
                    assert!(
                        !lost,
                        "seed {}: healthy_holder_keeps: it lost {token:?} at {}",
                        self.seed, self.now
                    );
                }
                EventKind::Closed { session, .. } => {
                    let healthy = self.processes[0].session.map(|session| session.number);
                    assert!(
                        healthy != Some(*session),
                        "seed {}: healthy_holder_keeps: its session ended at {}",
                        self.seed,
                        self.now
                    );
                }
                EventKind::Granted { token, .. } => {
                    seen.grants += 1;
                    self.no_permit_after(self.now, |taken| taken.token < *token, EndReason::Expired);
                }
                _ => {}
            }
        }
        let renewed = renewing.into_iter().zip(applied.renewals);
        let renewed = renewed
            .filter(|(request, _)| !matches!(request.what, What::Noise))
            .map(|(request, answer)| (request, Reply::Renewed(answer)));
        let done = commanding.into_iter().zip(applied.answers);
        let done =
            done.filter_map(|(request, answer)| reply_to(request, answer).map(|reply| (request, reply)));
        renewed.chain(done).collect()
    }

    fn no_permit_after(&self, end: Real, of: impl Fn(&Taken) -> bool, why: EndReason) {
        for taken in self.taken.iter().filter(|taken| of(taken)) {
            assert!(
                taken.ends <= end,
                "seed {}: permits_never_overlap: {:?} ({why}) ended at {end}, a permit of it at {}",
                self.seed,
                taken.token,
                taken.ends
            );
        }
    }

    fn command(&mut self, request: &TestRequest) -> Command {
        let resource: ResourceName = "settlement/cron".parse().unwrap();
        match request.what {
            What::Open { number } => {
                self.secrets = self.secrets.wrapping_add(1);
                let mut nonce = [request.process as u8; 16];
                nonce[..8].copy_from_slice(&request.life.to_le_bytes());
                Command::Open(Open {
                    holder: "process".parse().unwrap(),
                    ttl: self.processes[request.process].timing.ttl(),
                    nonce: Some(Nonce::new(nonce)),
                    secret: Secret::new([self.secrets; 16]),
                    number,
                })
            }
            What::Acquire { session } => Command::Acquire(Box::new(Acquire {
                by: AcquireBy::Session(Caller::unnumbered(session)),
                resources: vec![resource],
                mode: Mode::Exclusive,
                wait: Wait::For(Duration::from_secs(1)),
                policies: Policies::default(),
                fences: vec![],
                transmission: None,
            })),
            What::Release { session, token } => {
                Command::Release { by: Caller::unnumbered(session), resource, token: Some(token), rest: None }
            }
            What::Renew { .. } | What::Noise => unreachable!("renewals ride apart"),
        }
    }

    // Elections.

    /// What is in flight is kept by the new leader up to some point, and lost from there on.
    fn elect(&mut self, node: usize) {
        let kept = self.dice.below(self.flights.len() as u64 + 1) as usize;
        let kept: Vec<Flight> = self.flights.drain(..kept).collect();
        self.flights.clear();
        for flight in kept {
            self.apply(flight, &mut Seen::default()); // nobody is left to send the answers
        }
        let deposed = self.leader;
        let its_term = self.term;
        self.term += 1;
        self.leader = node;
        let unaware = self.dice.below(2 * SECOND);
        self.after(unaware, Happening::Leaves(deposed, its_term));
        let election = 50 * MS + self.dice.below(300 * MS);
        self.after(election, Happening::Takes(node, self.term));
    }

    fn takes(&mut self, node: usize, term: u64, seen: &mut Seen) {
        if term != self.term {
            return;
        }
        if self.nodes[node].paused_until > self.now {
            return self.at(self.nodes[node].paused_until, Happening::Takes(node, term));
        }
        seen.terms += 1;
        let took = Command::BecameLeader { node: node as u64, term };
        let at = self.machine.time();
        let first = Entry { at, wall: WallTime::default(), renewals: vec![], commands: vec![took] };
        self.machine.apply(first);
        let machine = MachineTime::from(&self.machine);
        let node_ = &mut self.nodes[node];
        node_.proposer.end_term();
        node_.proposer.start_term(machine, node_.clock.at(self.now));
        node_.term = term;
        self.turn_soon(node, self.now);
    }

    fn leaves(&mut self, node: usize, term: u64) {
        if self.nodes[node].term == term {
            self.nodes[node].proposer.end_term();
        }
    }

    // The processes.

    fn send(&mut self, process: usize, what: What) {
        let request = TestRequest { process, life: self.processes[process].life, what };
        let healthy = process == 0;
        if !healthy && (self.processes[process].cut_until > self.now || self.dice.one_in(10)) {
            return;
        }
        let copies = if !healthy && self.dice.one_in(10) { 2 } else { 1 };
        for _ in 0..copies {
            let to = if !healthy && self.dice.one_in(10) { self.dice.below(3) as usize } else { self.leader };
            let delay = self.delay(healthy);
            self.after(delay, Happening::Arrives(to, request));
        }
    }

    fn reply(&mut self, process: usize, life: u64, reply: Reply) {
        let healthy = process == 0;
        if !healthy && (self.processes[process].cut_until > self.now || self.dice.one_in(10)) {
            return;
        }
        let delay = self.delay(healthy);
        self.after(delay, Happening::Receives(process, life, reply));
    }

    fn delay(&mut self, healthy: bool) -> Real {
        if !healthy && self.dice.one_in(10) { self.dice.below(2 * SECOND) } else { self.dice.below(5 * MS) }
    }

    fn receives(&mut self, index: usize, life: u64, reply: Reply) {
        let process = &mut self.processes[index];
        if process.life != life {
            return;
        }
        if process.paused_until > self.now {
            let at = process.paused_until + MS;
            return self.at(at, Happening::Receives(index, life, reply));
        }
        let moment = process.clock.at(self.now);
        match reply {
            Reply::Opened { session, number, ttl } => {
                process.logic.opened(number, ttl, moment);
                process.session.get_or_insert(session);
            }
            Reply::Renewed(answer) => {
                process.logic.renewed(&answer, moment);
            }
            Reply::Granted(grant) => {
                process.logic.granted(&grant, &[], moment);
                if matches!(process.logic.state(grant.token, moment), Some(state) if !is_ended(state)) {
                    process.token = Some(grant.token);
                }
            }
            Reply::Released(token) => process.logic.gave_back(token, EndReason::Released),
            Reply::UnknownSession => process.logic.end_session(None, moment),
        }
        if process.logic.session_ended() {
            self.begin_again(index);
        }
    }

    fn begin_again(&mut self, index: usize) {
        assert!(index != 0, "seed {}: healthy_holder_keeps: told so at {}", self.seed, self.now);
        let process = &mut self.processes[index];
        process.logic = Holder::new(process.timing, HolderOptions::default());
        process.life += 1;
        process.session = None;
        process.token = None;
        process.beat += 1;
        let beat = process.beat;
        self.at(self.now, Happening::Renewer(index, beat));
    }

    fn renewer(&mut self, index: usize, beat: u64) {
        let process = &mut self.processes[index];
        if process.beat != beat {
            return;
        }
        if process.paused_until > self.now {
            let at = process.paused_until + MS;
            return self.at(at, Happening::Renewer(index, beat));
        }
        let moment = process.clock.at(self.now);
        process.logic.woke(moment);
        if process.logic.send_due(moment) {
            let number = process.logic.transmit(moment, self.dice.0 as u32);
            let what = match process.session {
                None => What::Open { number },
                Some(session) => What::Renew { session, number },
            };
            self.send(index, what);
        }
        let process = &mut self.processes[index];
        let wake = process.logic.next_wake(moment).expect("a session that lives");
        let at =
            process.clock.real_after(self.now, wake.longest_since(moment)) + 50_000 + self.dice.below(MS);
        self.at(at, Happening::Renewer(index, beat));
    }

    fn work(&mut self, index: usize, seen: &mut Seen) {
        let process = &mut self.processes[index];
        if process.paused_until > self.now {
            let at = process.paused_until;
            return self.at(at, Happening::Work(index)); // before the renewer: the worker looks first
        }
        let again = MS + self.dice.below(20 * MS);
        self.after(again, Happening::Work(index));
        let process = &mut self.processes[index];
        let moment = process.clock.at(self.now);
        if let Some((_, until, record)) = process.permit {
            if until > self.now {
                return;
            }
            process.permit = None;
            self.taken[record].ends = self.taken[record].ends.min(self.now);
        }
        let Some(session) = process.session else { return };
        let Some(token) = process.token else {
            if self.now >= process.asked_at + 200 * MS {
                process.asked_at = self.now;
                self.send(index, What::Acquire { session });
            }
            return;
        };
        if process.logic.state(token, moment).is_none_or(is_ended) {
            process.logic.forget(token);
            process.token = None;
            return;
        }
        if let Ok(permit) = process.logic.permit(token, moment, Duration::ZERO) {
            seen.permits += 1;
            let ends = process.clock.real_after(self.now, permit.remaining(moment));
            // Half of the work goes on until long after the deadline: then the deadline ends the permit.
            let ttl = u64::try_from(process.timing.ttl().as_nanos()).unwrap();
            let length = if self.dice.one_in(4) { 3 * ttl } else { self.dice.below(50 * MS) };
            let length = if index == 0 { self.dice.below(50 * MS) } else { length };
            process.permit = Some((permit, self.now + length, self.taken.len()));
            self.taken.push(Taken { token, ends });
        }
        if process.permit.is_none() || self.dice.one_in(10) {
            process.permit = None;
            if let Some(last) = self.taken.last_mut()
                && last.token == token
            {
                last.ends = last.ends.min(self.now);
            }
            if self.dice.one_in(3) && process.logic.give_back(token).is_ok() {
                self.send(index, What::Release { session, token });
            }
        }
    }

    // What goes wrong.

    fn server_fault(&mut self) {
        let length =
            20 * MS + if self.dice.one_in(4) { self.dice.below(5 * SECOND) } else { self.dice.below(SECOND) };
        let leader = self.leader;
        let until = self.now + length;
        match self.dice.below(7) {
            0 | 1 => {
                let node = self.dice.below(3) as usize;
                self.elect(node);
            }
            2 => self.elect(leader),
            3 => self.nodes[leader].paused_until = until,
            4 => self.nodes[leader].deaf_until = until,
            5 => self.slow_until = self.now + length / 4,
            _ => self.at(self.now, Happening::Flood(self.now + length / 8)),
        }
        // They leave each other some time; a cluster that serves nobody for ever promises nothing.
        let wait = 400 * MS + self.dice.below(SECOND);
        let server = [self.nodes[leader].paused_until, self.nodes[leader].deaf_until, self.slow_until];
        let clear = server.into_iter().max().unwrap_or_default().max(self.now);
        self.at(clear + wait, Happening::ServerFault);
    }

    /// Most of all to the one that holds.
    fn process_fault(&mut self) {
        let holding = (1..self.processes.len()).find(|index| self.processes[*index].token.is_some());
        let any = 1 + self.dice.below(3) as usize;
        let process = if self.dice.one_in(4) { any } else { holding.unwrap_or(any) };
        let until = self.now + 20 * MS + self.dice.below(6 * SECOND);
        if self.dice.one_in(2) {
            self.processes[process].paused_until = until;
        } else {
            self.processes[process].cut_until = until;
        }
        let wait = 200 * MS + self.dice.below(3 * SECOND);
        self.after(wait, Happening::ProcessFault);
    }

    fn flood(&mut self, end: Real) {
        for _ in 0..3 {
            let request = TestRequest { process: 0, life: 0, what: What::Noise };
            self.at(self.now, Happening::Arrives(self.leader, request));
        }
        if self.now < end {
            self.after(MS, Happening::Flood(end));
        }
    }
}
