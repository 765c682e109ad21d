//! Random sequences of entries, each from one seed: small name spaces so that things collide, copies and
//! late copies of numbered commands, and time steps that fall on, just before and just after deadlines.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tenure_core::*;

/// A stream of numbers that is the same for the same seed, on every machine.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6a09_e667_f3bc_c909)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }
}

pub const RESOURCES: [&str; 4] = ["x", "y", "z", "pool"];
pub const KEYS: [&str; 3] = ["j", "k", "l"];

pub fn resource(name: &str) -> ResourceName {
    name.parse().expect("a good name")
}

pub fn key(name: &str) -> RegisterKey {
    name.parse().expect("a good key")
}

/// Makes entries that fit what has happened so far.
pub struct Generator {
    random: Random,
    /// Sessions that were opened, the living and the dead, with the next number of each.
    sessions: Vec<(SessionId, u64)>,
    /// Numbered commands sent so far, to be sent again.
    sent: Vec<Command>,
    /// Renewal numbers so far; they rise over all sessions, which does no harm.
    renewals: u64,
    drawn: u64,
    /// The newest nonce; those just before it are drawn again.
    nonces: u64,
    /// Transmissions of plain acquires, with the session that each named.
    transmissions: Vec<(Option<SessionId>, TransmissionId)>,
    /// The cluster has agreed on a format version that knows hashes of secrets and nonces.
    hashes: bool,
    /// The newest plain acquire by a session, to be sent once more, as another transmission.
    plain: Option<Acquire>,
}

impl Generator {
    pub fn new(seed: u64) -> Self {
        Generator {
            random: Random::new(seed),
            sessions: vec![],
            sent: vec![],
            renewals: 0,
            drawn: 0,
            nonces: 0,
            transmissions: vec![],
            hashes: false,
            plain: None,
        }
    }

    /// The next entry for this machine, and what it answered.
    pub fn step(&mut self, machine: &mut Machine, entries: &mut Vec<Entry>) -> Applied {
        let entry = self.entry(machine);
        entries.push(entry.clone());
        let applied = machine.apply(entry);
        for answer in applied.answers.iter().flatten() {
            self.learn(answer);
        }
        applied
    }

    fn learn(&mut self, answer: &Done) {
        let id = match answer {
            Done::Opened { session, .. } | Done::Queued { session, .. } => *session,
            Done::Granted { grants, .. } => grants[0].session,
            _ => return,
        };
        if !self.sessions.iter().any(|(known, _)| *known == id) {
            self.sessions.push((id, 1));
        }
    }

    fn entry(&mut self, machine: &Machine) -> Entry {
        let at = self.time(machine);
        self.hashes = machine.format() >= FormatVersion::V2;
        let mut renewals = Vec::new();
        for _ in 0..self.random.below(3) {
            renewals.extend(self.renewal());
        }
        let commands = (0..self.random.below(4)).map(|_| self.command(machine)).collect();
        Entry { at, wall: WallTime::default(), renewals, commands }
    }

    fn time(&mut self, machine: &Machine) -> ClusterTime {
        let now = machine.time();
        let micros = now.as_micros();
        match self.random.below(10) {
            0..5 => now,
            5 => ClusterTime::from_micros(micros.saturating_sub(1)),
            6 => now.plus(Duration::from_millis(self.random.pick(&[1, 500, 1_000]))),
            7 => now.plus(Duration::from_secs(self.random.pick(&[2, 3, 5, 9]))),
            _ => {
                let due = machine.earliest_deadline().unwrap_or(now).as_micros();
                let around = self.random.pick(&[due, due, due + 1, due.saturating_sub(1)]);
                ClusterTime::from_micros(around.max(micros))
            }
        }
    }

    /// A recent session; now and then an older one, which may have ended.
    fn session(&mut self) -> Option<usize> {
        let count = self.sessions.len();
        let recent = if self.random.chance(90) { 5 } else { count };
        let first = count.saturating_sub(recent);
        (count > first).then(|| first + self.random.below(count - first))
    }

    fn renewal(&mut self) -> Option<Renewal> {
        let at = self.session()?;
        let session = self.sessions[at].0.number;
        self.renewals += 1;
        let number = match self.random.below(8) {
            0 => 0,
            1 => self.renewals.saturating_sub(3),
            _ => self.renewals,
        };
        Some(Renewal { session, number })
    }

    fn caller(&mut self) -> Option<Caller> {
        let at = self.session()?;
        let (id, next) = &mut self.sessions[at];
        let (session, number) = (*id, *next);
        if self.random.chance(40) {
            return Some(Caller::unnumbered(session));
        }
        self.sessions[at].1 += 1;
        let lowest =
            if self.random.chance(10) { number.saturating_sub(self.random.below(4) as u64) } else { 0 };
        Some(Caller { session, number: Some(number), lowest_awaited: lowest })
    }

    fn command(&mut self, machine: &Machine) -> Command {
        if self.random.chance(15) && !self.sent.is_empty() {
            return self.random.pick(&self.sent.clone());
        }
        let command = self.fresh(machine);
        self.sent.push(command.clone());
        command
    }

    fn fresh(&mut self, machine: &Machine) -> Command {
        let kind = if self.sessions.len() < 3 { 0 } else { self.random.below(100) };
        let by = self.caller();
        match (kind, by) {
            (0..8, _) | (_, None) => Command::Open(self.open()),
            (8..12, Some(by)) => {
                let why = if self.random.chance(30) { EndReason::Died } else { EndReason::Released };
                Command::Close { by, why }
            }
            (12..44, Some(by)) => Command::Acquire(Box::new(self.acquire(by))),
            (44, _) => Command::CancelNonce { nonce: self.nonce() },
            (45, _) if self.random.chance(70) => Command::Upgrade { to: FormatVersion::V2 },
            (45..48, Some(by)) => self.undo(by),
            (48..52, Some(by)) => {
                let last = by.number.unwrap_or(1);
                let acquire = (last + 2).saturating_sub(self.random.below(6) as u64);
                Command::Cancel { by, acquire }
            }
            (52..66, Some(by)) => {
                let token = self.random.chance(20).then(|| self.token(machine));
                // A few with a rest, the longest beyond what is allowed.
                let rest = self.random.chance(20).then(|| Duration::from_secs(self.random.below(40) as u64));
                Command::Release { by, resource: self.resource(), token, rest }
            }
            (66..71, Some(by)) => {
                let to = self.session().map(|at| self.sessions[at].0.number).unwrap_or_default();
                Command::Transfer { by, resource: self.resource(), to }
            }
            (71..75, Some(by)) => {
                let session = self.random.chance(30).then_some(by.session.number);
                let now = self.random.chance(50);
                Command::Revoke { resource: self.resource(), session, now, reason: "test".into() }
            }
            (75..77, Some(by)) => {
                let back = self.random.below(4) as u64;
                let revision = Revision::new(machine.revision().get().saturating_sub(back));
                Command::Seen { session: by.session, revision }
            }
            (77..91, Some(by)) => Command::Write(Box::new(self.write(machine, by))),
            (91..93, _) => Command::Barrier { resource: self.resource() },
            (93..96, _) => {
                let resource = self.resource();
                let (scope, token) = self.authority(machine, resource);
                Command::Arm { scope, fence: self.fence(), token }
            }
            (96..98, _) => {
                let resource = self.resource();
                let kind =
                    self.random.pick(&[None, Some(KindSetting::Lock), Some(KindSetting::Semaphore(2))]);
                Command::SetKind { resource, kind }
            }
            (98, Some(by)) => Command::Paused { session: by.session, length: Duration::from_secs(1) },
            _ => {
                let guard = self.random.chance(50).then(|| Scope { resource: self.resource(), slot: None });
                Command::Rebind { key: key(self.random.pick(&KEYS)), guard }
            }
        }
    }

    fn open(&mut self) -> Open {
        self.drawn += 1;
        self.renewals += 1;
        let ttl = self.random.pick(&[2_000, 5_000, 5_000, 10_000, 10_000, 100]);
        let nonce = self.random.chance(60).then(|| self.nonce());
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&self.drawn.to_be_bytes());
        Open {
            holder: self.random.pick(&["node-1", "node-2"]).parse().expect("a good name"),
            ttl: Duration::from_millis(ttl),
            nonce,
            secret: if self.hashes && self.random.chance(80) {
                Secret::hashed(secret)
            } else {
                Secret::new(secret)
            },
            number: self.renewals,
        }
    }

    /// A nonce: a new one, or one that was drawn not long ago.
    fn nonce(&mut self) -> Nonce {
        self.nonces += u64::from(self.random.chance(40));
        let mut bits = [0; 16];
        bits[8..].copy_from_slice(&self.nonces.saturating_sub(self.random.below(4) as u64).to_be_bytes());
        if self.hashes && bits[15] % 2 == 0 { Nonce::hashed(bits) } else { Nonce::new(bits) }
    }

    /// A new transmission of a plain acquire by this session, or of one that opens its own.
    fn transmission(&mut self, session: Option<SessionId>) -> TransmissionId {
        let mut bits = [1; 16];
        bits[8..].copy_from_slice(&(self.transmissions.len() as u64).to_be_bytes());
        let transmission = TransmissionId::new(bits);
        self.transmissions.push((session, transmission));
        transmission
    }

    /// The undo of a transmission that was drawn not long ago; now and then under another session.
    fn undo(&mut self, by: Caller) -> Command {
        let newest = self.transmissions.len().saturating_sub(6);
        match self.transmissions.get(newest..) {
            Some(recent @ [_, ..]) => {
                let (session, transmission) = self.random.pick(recent);
                let session = if self.random.chance(10) { Some(by.session) } else { session };
                Command::Undo { session, transmission }
            }
            _ => Command::Undo { session: None, transmission: TransmissionId::new([2; 16]) },
        }
    }

    fn resource(&mut self) -> ResourceName {
        resource(self.random.pick(&RESOURCES))
    }

    fn fence(&mut self) -> FenceName {
        self.random.pick(&["pg", "s3"]).parse().expect("a good name")
    }

    fn acquire(&mut self, by: Caller) -> Acquire {
        if self.random.chance(12)
            && let Some(mut again) = self.plain.clone()
            && let AcquireBy::Session(by) = &again.by
        {
            again.transmission = Some(self.transmission(Some(by.session)));
            return again;
        }
        let by =
            if self.random.chance(15) { AcquireBy::Opening(self.open()) } else { AcquireBy::Session(by) };
        let semaphore = self.random.chance(25);
        let mut resources = Vec::new();
        let count = if self.random.chance(30) { 2 + self.random.below(2) } else { 1 };
        for _ in 0..count {
            let name = if semaphore { "pool" } else { self.random.pick(&RESOURCES[..3]) };
            // Now and then a name twice, or a kind that the resource is not.
            let name = if self.random.chance(4) { self.random.pick(&RESOURCES) } else { name };
            if !resources.contains(&resource(name)) || self.random.chance(3) {
                resources.push(resource(name));
            }
        }
        let mode = match self.random.below(10) {
            _ if semaphore => Mode::Slots(2),
            0..4 => Mode::Shared,
            4 if self.random.chance(10) => Mode::Slots(3),
            _ => Mode::Exclusive,
        };
        let wait = match self.random.below(10) {
            0..3 => Wait::No,
            3..6 => Wait::Forever,
            6 => Wait::For(Duration::ZERO),
            _ => Wait::For(Duration::from_secs(self.random.pick(&[1, 3, 8, 20]))),
        };
        let seconds = |random: &mut Random, percent, of: &[u64]| {
            random.chance(percent).then(|| Duration::from_secs(random.pick(of)))
        };
        let policies = Policies {
            lock_delay: seconds(&mut self.random, 12, &[1, 4]),
            max_hold: seconds(&mut self.random, 12, &[4, 12, 30]),
            hard_limit: seconds(&mut self.random, 20, &[8, 15, 40]),
            priority: if self.random.chance(20) { self.random.pick(&[-1, 1, 2]) } else { 0 },
            reentrant: self.random.chance(15),
        };
        let fences = if self.random.chance(15) { vec![self.fence()] } else { vec![] };
        let (plain, session) = match &by {
            AcquireBy::Session(by) => (by.number.is_none(), Some(by.session)),
            AcquireBy::Opening(open) => (open.nonce.is_none(), None),
        };
        let transmission = (plain && self.random.chance(85)).then(|| self.transmission(session));
        let acquire = Acquire { by, resources, mode, wait, policies, fences, transmission };
        if transmission.is_some() && session.is_some() {
            self.plain = Some(acquire.clone());
        }
        acquire
    }

    /// A token that is or was somewhere.
    fn token(&mut self, machine: &Machine) -> Token {
        let last = machine.last_token().map_or(1, Token::get);
        let number = (last + 1).saturating_sub(self.random.below(6) as u64).max(1);
        number.try_into().expect("far below the last token")
    }

    /// A scope of a resource and a token for it: usually of somebody who holds it.
    fn authority(&mut self, machine: &Machine, resource: ResourceName) -> (Scope, Token) {
        let holders = machine.lease(&resource).map(|view| view.holders).unwrap_or_default();
        if holders.is_empty() || self.random.chance(25) {
            let slot = self.random.chance(20).then(|| Slot::new(self.random.below(2) as u32));
            return (Scope { resource, slot }, self.token(machine));
        }
        let holding = self.random.pick(&holders);
        (Scope { resource, slot: holding.slot }, holding.token)
    }

    fn write(&mut self, machine: &Machine, by: Caller) -> Write {
        let by = self.random.chance(60).then_some(by);
        let mut compares = Vec::new();
        if self.random.chance(40) {
            let view = machine.register(&key(self.random.pick(&KEYS)));
            let field = match self.random.below(4) {
                0 => CompareField::Version(view.version),
                1 => CompareField::CreateRevision(view.create_revision.get()),
                2 => CompareField::ModRevision(view.mod_revision.get()),
                _ => CompareField::Value(view.value.unwrap_or_else(|| b"1"[..].into())),
            };
            let ops = [CompareOp::Equal, CompareOp::NotEqual, CompareOp::Greater, CompareOp::Less];
            compares.push(Compare { key: view.key, field, op: self.random.pick(&ops) });
        }
        let then = (0..1 + self.random.below(3)).map(|_| self.operation(machine)).collect();
        let otherwise = (0..self.random.below(2)).map(|_| self.operation(machine)).collect();
        Write { by, compares, then, otherwise }
    }

    fn operation(&mut self, machine: &Machine) -> Operation {
        let key = key(self.random.pick(&KEYS));
        let bound = machine.register(&key).guard;
        let resource = bound.map_or_else(|| self.resource(), |scope| scope.resource);
        let guard = self.random.chance(50).then(|| {
            let (scope, token) = self.authority(machine, resource);
            Guard { scope, token }
        });
        match self.random.below(5) {
            0 => Operation::Get { key },
            1 => Operation::Delete { key, guard },
            _ => {
                let value = vec![b'0' + self.random.below(3) as u8].into();
                Operation::Put { key, value, guard, ephemeral: self.random.chance(30) }
            }
        }
    }
}

/// Looks for a seed whose entries fail the check, and shows the fewest entries that still do.
///
/// `make` writes entries for a seed; `check` says what is wrong with a list of entries. Either may panic.
pub fn for_every_seed(
    name: &str,
    seeds: std::ops::Range<u64>,
    make: impl Fn(u64, &mut Vec<Entry>),
    check: impl Fn(&[Entry]) -> Result<(), String>,
) {
    let verdict = |entries: &[Entry]| -> Result<(), String> {
        catch_unwind(AssertUnwindSafe(|| check(entries))).unwrap_or_else(|panic| Err(words(&panic)))
    };
    let only = std::env::var("SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    for seed in only.map_or(seeds, |seed| seed..seed + 1) {
        let mut entries = Vec::new();
        let made = catch_unwind(AssertUnwindSafe(|| make(seed, &mut entries)));
        let why = match (made, verdict(&entries)) {
            (_, Err(why)) => why,
            (Err(panic), Ok(())) => words(&panic),
            (Ok(()), Ok(())) => continue,
        };
        let fewest = shrink(entries, &verdict);
        let why = verdict(&fewest).err().unwrap_or(why);
        let mut text = String::new();
        for entry in &fewest {
            text.push_str(&format!("at {:?} {:?}\n", entry.at.as_micros(), entry.renewals));
            entry.commands.iter().for_each(|command| text.push_str(&format!("    {command:?}\n")));
        }
        panic!("{name} fails; SEED={seed} cargo test -p tenure-core --test properties {name}\n{text}\n{why}");
    }
}

fn words(panic: &Box<dyn std::any::Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// Takes away ever smaller parts, as long as what is left still fails.
fn shrink(mut entries: Vec<Entry>, verdict: &impl Fn(&[Entry]) -> Result<(), String>) -> Vec<Entry> {
    let mut part = entries.len();
    while part > 0 {
        let mut from = 0;
        while from < entries.len() {
            let mut fewer = entries.clone();
            fewer.drain(from..(from + part).min(entries.len()));
            if verdict(&fewer).is_err() { entries = fewer } else { from += part }
        }
        part /= 2;
    }
    // Then single commands and renewals out of the entries that are left.
    for at in 0..entries.len() {
        for command in (0..entries[at].commands.len()).rev() {
            let mut fewer = entries.clone();
            fewer[at].commands.remove(command);
            if verdict(&fewer).is_err() {
                entries = fewer;
            }
        }
        for renewal in (0..entries[at].renewals.len()).rev() {
            let mut fewer = entries.clone();
            fewer[at].renewals.remove(renewal);
            if verdict(&fewer).is_err() {
                entries = fewer;
            }
        }
    }
    entries
}
