//! Applies so many commands of one kind, and nothing else: what `cargo xtask perf-gate` counts the instructions of. Beside
//! them, so many decisions of a holder about its own lease, which ask nobody.
//!
//! `apply_cost KIND COUNT`. The same set-up is made for every count, so the difference of two counts is the commands' own.

use std::hint::black_box;
use std::time::Duration;

use tenure_core::{
    Acquire, AcquireBy, Bounds, Caller, ClusterTime, Command, Done, EndReason, Entry, Holder, HolderOptions,
    Machine, Mode, Moment, Open, Operation, Policies, Renewal, ResourceName, Secret, SessionId,
    SessionNumber, TimingNumbers, Wait, WallTime, Write,
};

/// Sessions that live throughout, each with one lease: what the indexes have to carry.
const POPULATION: u64 = 10_000;
/// Commands in one entry, as under load.
const PER_ENTRY: usize = 64;

struct Rig {
    machine: Machine,
    at: ClusterTime,
    number: u64,
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().unwrap_or_default();
    let count: usize = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(0);
    let mut rig = Rig { machine: Machine::default(), at: ClusterTime::ZERO, number: 1 };
    rig.apply((1..=POPULATION).map(open).collect());
    rig.apply(
        (1..=POPULATION).map(|session| acquire(session, 1, &format!("held/{session}"), Wait::No)).collect(),
    );
    // The next entry puts the events of this one away, which is no part of what is counted.
    rig.apply(Vec::new());
    let run: fn(&mut Rig, usize) = match kind.as_str() {
        "renew" => Rig::renewals,
        "cycle" => Rig::cycles,
        "handover" => Rig::handovers,
        "open-close" => Rig::opens,
        "expire" => Rig::expiries,
        "write" => Rig::writes,
        "permit" => Rig::permits,
        other => {
            eprintln!("apply_cost renew|cycle|handover|open-close|expire|write|permit COUNT, not {other:?}");
            std::process::exit(2);
        }
    };
    run(&mut rig, count);
    black_box(&rig.machine);
}

impl Rig {
    fn apply(&mut self, commands: Vec<Command>) {
        self.entry(Vec::new(), commands, 1);
    }

    fn entry(&mut self, renewals: Vec<Renewal>, commands: Vec<Command>, micros: u64) {
        self.at = ClusterTime::from_micros(self.at.as_micros() + micros);
        let entry = Entry { at: self.at, wall: WallTime::default(), renewals, commands };
        let applied = self.machine.apply(entry);
        assert!(
            applied.answers.iter().all(Result::is_ok),
            "{:?}",
            applied.answers.iter().find(|a| a.is_err())
        );
    }

    fn chunks(&mut self, count: usize, mut make: impl FnMut(&mut Self, u64, &mut Vec<Command>)) {
        let mut done = 0;
        while done < count {
            let mut commands = Vec::new();
            for _ in 0..PER_ENTRY.min(count - done) {
                make(self, done as u64, &mut commands);
                done += 1;
            }
            self.apply(commands);
        }
    }

    /// Every session in turn.
    fn renewals(&mut self, count: usize) {
        let mut done = 0;
        while done < count {
            self.number += 1;
            let many = (POPULATION as usize).min(count - done);
            let number = self.number;
            let renewal = |session| Renewal { session: SessionNumber::new(session), number };
            self.entry((1..=many as u64).map(renewal).collect(), Vec::new(), 1);
            done += many;
        }
    }

    /// Taken and given back.
    fn cycles(&mut self, count: usize) {
        self.chunks(count, |rig, turn, commands| {
            let (session, resource) = (turn % 256 + 1, format!("cycle/{}", turn % 256));
            rig.number += 2;
            commands.push(acquire(session, rig.number, &resource, Wait::No));
            commands.push(release(session, rig.number + 1, &resource));
        });
    }

    /// Queued behind a holder, and granted by its release.
    fn handovers(&mut self, count: usize) {
        self.apply(vec![acquire(1, 2, "relay", Wait::No)]);
        self.number = 10;
        self.chunks(count, |rig, turn, commands| {
            let (holder, next) = (turn % 2 + 1, (turn + 1) % 2 + 1);
            rig.number += 2;
            commands.push(acquire(next, rig.number, "relay", Wait::Forever));
            commands.push(release(holder, rig.number + 1, "relay"));
        });
    }

    /// Opened and closed.
    fn opens(&mut self, count: usize) {
        self.chunks(count, |_, turn, commands| {
            let session = POPULATION + turn + 1;
            commands.push(open(session));
            commands.push(Command::Close { by: caller(session, 1), why: EndReason::Released });
        });
    }

    /// Opened with a lease, and left alone until all are due at once.
    fn expiries(&mut self, count: usize) {
        self.chunks(count, |_, turn, commands| {
            let session = POPULATION + turn + 1;
            commands.push(open(session));
            commands.push(acquire(session, 1, &format!("left/{turn}"), Wait::No));
        });
        self.entry(Vec::new(), Vec::new(), 3_600_000_000);
        // Clearing away goes on over several entries.
        for _ in 0..(count + POPULATION as usize) / 2_000 + 2 {
            self.entry(Vec::new(), Vec::new(), 1);
        }
    }

    /// A small value, again and again.
    fn writes(&mut self, count: usize) {
        self.chunks(count, |_, turn, commands| {
            let key = format!("key/{}", turn % 256);
            let put = Operation::Put {
                key: key.as_bytes().try_into().expect("a key"),
                value: vec![7; 64].into(),
                guard: None,
                ephemeral: false,
            };
            let write = Write { by: None, compares: Vec::new(), then: vec![put], otherwise: Vec::new() };
            commands.push(Command::Write(Box::new(write)));
        });
    }

    /// A holder asks itself whether it may still write, and gives the permit back.
    fn permits(&mut self, count: usize) {
        let ttl = Duration::from_secs(600);
        let timing = TimingNumbers::for_ttl(ttl).checked(&Bounds::default()).expect("good numbers");
        let at = |millis| Moment::from_readings(Duration::from_millis(millis), Duration::from_millis(millis));
        let mut holder = Holder::new(timing, HolderOptions::default());
        let number = holder.transmit(at(0), 0);
        holder.opened(number, ttl, at(1));
        let acquire = acquire(1, 2, "mine", Wait::No);
        let entry =
            Entry { at: self.at, wall: WallTime::default(), renewals: Vec::new(), commands: vec![acquire] };
        let answer = self.machine.apply(entry).answers.remove(0);
        let Ok(Done::Granted { grants, .. }) = answer else { panic!("granted: {answer:?}") };
        holder.granted(&grants[0], &[], at(2));
        for millis in 0..count as u64 {
            let permit = holder.permit(grants[0].token, at(3 + millis % 1_000), Duration::from_millis(50));
            drop(black_box(permit.expect("the lease is held")));
        }
    }
}

fn id(session: u64) -> SessionId {
    SessionId { number: SessionNumber::new(session), secret: Secret::new(u128::from(session).to_le_bytes()) }
}

fn caller(session: u64, number: u64) -> Caller {
    Caller { session: id(session), number: Some(number), lowest_awaited: number }
}

fn open(session: u64) -> Command {
    Command::Open(Open {
        holder: "node-a:4711".parse().expect("a holder"),
        ttl: Duration::from_secs(600),
        nonce: None,
        secret: id(session).secret,
        number: 1,
    })
}

fn acquire(session: u64, number: u64, resource: &str, wait: Wait) -> Command {
    Command::Acquire(Box::new(Acquire {
        by: AcquireBy::Session(caller(session, number)),
        resources: vec![name(resource)],
        mode: Mode::Exclusive,
        wait,
        policies: Policies::default(),
        fences: Vec::new(),
        transmission: None,
    }))
}

fn release(session: u64, number: u64, resource: &str) -> Command {
    Command::Release { by: caller(session, number), resource: name(resource), token: None, rest: None }
}

fn name(resource: &str) -> ResourceName {
    resource.parse().expect("a name")
}
