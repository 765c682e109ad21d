//! Histories of entries, made of bytes in two ways. [`decoded`] reads them as a log would hold them, so
//! nothing that a decoder lets through is left out. [`Author`] takes bytes as decisions and names sessions,
//! tokens and resources that exist, so that it comes deep into the machine. Both may contain what no leader
//! would propose: the machine must stand that too, because every replica meets it at once.

use std::time::Duration;

use tenure_core::*;
use tenure_wire::{decode_entry, encode_entry};

use crate::choices::Choices;

/// The entries that these bytes hold: each is a length of two bytes and the entry, and what is no entry is
/// left out.
pub fn decoded(mut bytes: &[u8]) -> impl Iterator<Item = Entry> {
    std::iter::from_fn(move || {
        let (length, rest) = bytes.split_first_chunk::<2>()?;
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
        let (entry, rest) = rest.split_at(length);
        bytes = rest;
        Some(decode_entry(FormatVersion::NEWEST, entry).ok())
    })
    .flatten()
}

/// The bytes that [`decoded`] reads as these entries.
pub fn encoded(entries: &[Entry]) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in entries {
        let mut bytes = Vec::new();
        encode_entry(FormatVersion::NEWEST, entry, &mut bytes);
        let Ok(length) = u16::try_from(bytes.len()) else { continue };
        all.extend(length.to_le_bytes());
        all.append(&mut bytes);
    }
    all
}

/// Few names, so that those who want the same thing meet.
pub const RESOURCES: [&str; 4] = ["x", "y", "z", "pool"];
/// Few registers.
pub const KEYS: [&str; 3] = ["j", "k", "l"];
const FENCES: [&str; 2] = ["pg", "s3"];
const HOLDERS: [&str; 2] = ["node-1", "node-2"];

/// Writes a history, decision by decision.
pub struct Author<'a> {
    choices: Choices<'a>,
    /// Sessions that were opened, the living and the dead.
    sessions: Vec<SessionId>,
    /// The last commands, to be sent again.
    sent: Vec<Command>,
    drawn: u8,
}

impl<'a> Author<'a> {
    /// The author who decides by these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Author { choices: Choices::new(bytes), sessions: vec![], sent: vec![], drawn: 0 }
    }

    /// The next entry for this machine; none once all decisions are made.
    pub fn entry(&mut self, machine: &Machine) -> Option<Entry> {
        if self.choices.are_made() {
            return None;
        }
        let at = self.time(machine);
        let renewals = (0..self.choices.below(3)).map(|_| self.renewal()).collect();
        let commands = (0..=self.choices.below(3)).map(|_| self.command(machine)).collect();
        let wall = WallTime::from_unix_millis(if self.choices.one_in(50) { u64::MAX } else { 0 });
        Some(Entry { at, wall, renewals, commands })
    }

    /// Remembers the sessions that came of it.
    pub fn learn(&mut self, applied: &Applied) {
        for answer in applied.answers.iter().flatten() {
            let id = match answer {
                Done::Opened { session, .. } | Done::Queued { session, .. } => *session,
                Done::Granted { grants, .. } => match grants.first() {
                    Some(grant) => grant.session,
                    None => continue,
                },
                _ => continue,
            };
            if !self.sessions.contains(&id) {
                self.sessions.push(id);
            }
        }
    }

    fn time(&mut self, machine: &Machine) -> ClusterTime {
        let now = machine.time();
        match self.choices.below(16) {
            0..8 => now,
            8..10 => now.plus(Duration::from_millis(500)),
            10..12 => now.plus(Duration::from_secs(3)),
            12..15 => machine.earliest_deadline().unwrap_or(now),
            _ => ClusterTime::from_micros(self.choices.number()),
        }
    }

    fn session(&mut self) -> SessionId {
        let recent = usize::from(self.choices.below(6));
        let at = self.sessions.len().wrapping_sub(1 + recent);
        let known = self.sessions.get(at).or(self.sessions.last()).copied();
        let nobody = SessionId {
            number: SessionNumber::new(self.sessions.len() as u64),
            secret: Secret::new([0; 16]),
        };
        known.unwrap_or(nobody)
    }

    fn renewal(&mut self) -> Renewal {
        let session = match self.choices.one_in(20) {
            true => SessionNumber::new(self.choices.number()),
            false => self.session().number,
        };
        Renewal { session, number: self.choices.number() }
    }

    fn caller(&mut self) -> Caller {
        let session = self.session();
        if self.choices.below(2) == 0 {
            return Caller::unnumbered(session);
        }
        let number = Some(self.choices.number());
        let lowest_awaited = if self.choices.one_in(4) { self.choices.number() } else { 0 };
        Caller { session, number, lowest_awaited }
    }

    fn command(&mut self, machine: &Machine) -> Command {
        if self.choices.one_in(8)
            && let Some(command) = self.sent.last()
        {
            return command.clone();
        }
        let command = self.fresh(machine);
        self.sent.push(command.clone());
        command
    }

    fn fresh(&mut self, machine: &Machine) -> Command {
        match self.choices.below(64) {
            0..8 => Command::Open(self.open()),
            8..10 => Command::Close { by: self.caller(), why: self.choices.pick(&EndReason::ALL) },
            10..26 => Command::Acquire(Box::new(self.acquire())),
            26..28 => Command::Cancel { by: self.caller(), acquire: self.choices.number() },
            28..34 => {
                let token = if self.choices.one_in(4) { Some(self.token(machine)) } else { None };
                Command::Release { by: self.caller(), resource: self.resource(), token, rest: None }
            }
            34..37 => {
                let to = self.session().number;
                Command::Transfer { by: self.caller(), resource: self.resource(), to }
            }
            37..40 => {
                let session = if self.choices.one_in(3) { Some(self.session().number) } else { None };
                let now = self.choices.one_in(2);
                Command::Revoke { resource: self.resource(), session, now, reason: "fuzz".into() }
            }
            40 => Command::Seen { session: self.session(), revision: Revision::new(self.choices.number()) },
            41..48 => Command::Write(Box::new(self.write(machine))),
            48..50 => Command::Barrier { resource: self.resource() },
            50..52 => {
                let (scope, token) = self.authority(machine);
                Command::Arm { scope, fence: self.fence(), token }
            }
            52 => {
                let (scope, presented) = self.authority(machine);
                let (seen, count) = (self.token(machine), self.choices.number() as u32);
                Command::Refused { scope, fence: self.fence(), presented, seen, count }
            }
            53 => Command::Paused { session: self.session(), length: self.choices.length() },
            54 => Command::RemoveFence { resource: self.resource(), fence: self.fence() },
            55..57 => {
                let slots = self.choices.number() as u32;
                let kind =
                    self.choices.pick(&[None, Some(KindSetting::Lock), Some(KindSetting::Semaphore(slots))]);
                Command::SetKind { resource: self.resource(), kind }
            }
            57..59 => {
                let guard = if self.choices.one_in(2) { Some(self.authority(machine).0) } else { None };
                Command::Rebind { key: self.key(), guard }
            }
            59 => Command::BecameLeader { node: self.choices.number(), term: self.choices.number() },
            60 => Command::Configure(Box::new(self.settings(machine))),
            61 => self.restore(machine),
            62 => {
                let kid = self.choices.pick(&FENCES).into();
                Command::PublishKey { node: self.choices.number(), kid, key: [0; 32] }
            }
            _ => Command::WithdrawKey { kid: self.choices.pick(&FENCES).into() },
        }
    }

    fn open(&mut self) -> Open {
        self.drawn = self.drawn.wrapping_add(1);
        Open {
            holder: self.choices.pick(&HOLDERS).parse().expect("a good name"),
            ttl: self.choices.length(),
            nonce: self.choices.one_in(2).then(|| Nonce::new([self.drawn & 1; 16])),
            secret: Secret::new([self.drawn; 16]),
            number: self.choices.number(),
        }
    }

    fn acquire(&mut self) -> Acquire {
        let by = match self.choices.one_in(6) {
            true => AcquireBy::Opening(self.open()),
            false => AcquireBy::Session(self.caller()),
        };
        // None, one, or several, and now and then one of them twice.
        let resources = (0..self.choices.pick(&[1, 1, 1, 2, 3, 0])).map(|_| self.resource()).collect();
        let mode = match self.choices.below(8) {
            0..4 => Mode::Exclusive,
            4..6 => Mode::Shared,
            6 => Mode::Slots(2),
            _ => Mode::Slots(self.choices.number() as u32),
        };
        let wait = match self.choices.below(4) {
            0 => Wait::No,
            1 => Wait::For(self.choices.length()),
            _ => Wait::Forever,
        };
        let mut sometimes = |of| self.choices.one_in(of).then(|| self.choices.length());
        let (lock_delay, max_hold, hard_limit) = (sometimes(6), sometimes(6), sometimes(4));
        let priority = self.choices.pick(&[0, 0, 0, 1, -1, i32::MAX, i32::MIN]);
        let reentrant = self.choices.one_in(5);
        let policies = Policies { lock_delay, max_hold, hard_limit, priority, reentrant };
        let fences = if self.choices.one_in(5) { vec![self.fence()] } else { vec![] };
        Acquire { by, resources, mode, wait, policies, fences, transmission: None }
    }

    fn write(&mut self, machine: &Machine) -> Write {
        let by = if self.choices.one_in(2) { Some(self.caller()) } else { None };
        let compares = (0..self.choices.below(2)).map(|_| self.compare()).collect();
        let then = (0..=self.choices.below(2)).map(|_| self.operation(machine)).collect();
        let otherwise = (0..self.choices.below(2)).map(|_| self.operation(machine)).collect();
        Write { by, compares, then, otherwise }
    }

    fn compare(&mut self) -> Compare {
        let number = self.choices.number();
        let field = match self.choices.below(4) {
            0 => CompareField::Version(number),
            1 => CompareField::CreateRevision(number),
            2 => CompareField::ModRevision(number),
            _ => CompareField::Value(vec![number as u8].into()),
        };
        let op =
            self.choices.pick(&[CompareOp::Equal, CompareOp::NotEqual, CompareOp::Greater, CompareOp::Less]);
        Compare { key: self.key(), field, op }
    }

    fn operation(&mut self, machine: &Machine) -> Operation {
        let key = self.key();
        let guard = self.choices.one_in(2).then(|| {
            let (scope, token) = self.authority(machine);
            Guard { scope, token }
        });
        match self.choices.below(5) {
            0 => Operation::Get { key },
            1 => Operation::Delete { key, guard },
            _ => {
                let value = vec![self.choices.byte(); usize::from(self.choices.byte())].into();
                Operation::Put { key, value, guard, ephemeral: self.choices.one_in(3) }
            }
        }
    }

    /// Limits so small that everything meets them, or none to speak of.
    fn settings(&mut self, machine: &Machine) -> Settings {
        let mut limits = machine.settings().limits.clone();
        let small = self.choices.number() as u32;
        match self.choices.below(8) {
            0 => limits.cleared_per_entry_max = small,
            1 => limits.free_resources_max = small,
            2 => (limits.sessions_max, limits.waiters_max) = (small, small),
            3 => (limits.ended_per_session_max, limits.history_per_resource_max) = (small, small),
            4 => (limits.answers_per_session_max, limits.leases_per_session_max) = (small, small),
            5 => (limits.events_max, limits.event_bytes_max) = (small, u64::from(small)),
            6 => (limits.registers_max, limits.pinned_resources_max) = (small, small),
            _ => (limits.ttl_min, limits.ttl_max) = (self.choices.length(), self.choices.length()),
        }
        Settings { limits, ..machine.settings().clone() }
    }

    /// A backup of what has happened so far; a machine that is not empty refuses it.
    fn restore(&mut self, machine: &Machine) -> Command {
        let token_floor = self.token(machine);
        let holders_stopped = self.choices.one_in(2);
        let state = machine.capture();
        let id = RestoreId::new([self.choices.number() as u8 % 2; 16]);
        let number = self.choices.number() % 3;
        match self.choices.number() % 4 {
            0 => Command::Restore { backup: Box::new(state), token_floor, holders_stopped },
            1 => {
                let base = state.backup_base();
                Command::RestoreBegin(Box::new(RestoreBegin { id, base, token_floor, holders_stopped }))
            }
            2 => {
                // With whatever belongs to sessions, which no backup has: it must be refused.
                let records = BackupRecords {
                    resources: state.resources.iter().map(|(number, record)| (number, record.clone())).collect(),
                    registers: state.registers.iter().map(|(number, record)| (number, record.clone())).collect(),
                    used_nonces: state.used_nonces.iter().copied().collect(),
                };
                let (bytes, checksum, ended) = (1, 0, self.choices.number());
                Command::RestorePiece(Box::new(RestorePiece { id, number, bytes, checksum, ended, records }))
            }
            _ => Command::RestoreCommit { id, pieces: number, records: self.choices.number(), checksum: 0 },
        }
    }

    fn resource(&mut self) -> ResourceName {
        self.choices.pick(&RESOURCES).parse().expect("a good name")
    }

    fn key(&mut self) -> RegisterKey {
        self.choices.pick(&KEYS).parse().expect("a good key")
    }

    fn fence(&mut self) -> FenceName {
        self.choices.pick(&FENCES).parse().expect("a good name")
    }

    /// A token that was issued, will be soon, or is the last there is.
    fn token(&mut self, machine: &Machine) -> Token {
        let last = machine.last_token().map_or(0, Token::get);
        let near = (last + 2).saturating_sub(u64::from(self.choices.below(6)));
        if self.choices.one_in(40) { Token::MAX } else { Token::try_from(near).unwrap_or(Token::FIRST) }
    }

    /// A scope and a token for it: usually of somebody who holds it.
    fn authority(&mut self, machine: &Machine) -> (Scope, Token) {
        let resource = self.resource();
        let holding = machine.lease(&resource).and_then(|view| view.holders.first().cloned());
        match holding {
            Some(holding) if !self.choices.one_in(4) => {
                (Scope { resource, slot: holding.slot }, holding.token)
            }
            _ => {
                let slot = self.choices.one_in(3).then(|| Slot::new(self.choices.number() as u32));
                (Scope { resource, slot }, self.token(machine))
            }
        }
    }
}
