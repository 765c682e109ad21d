//! What the cluster has agreed, and how an entry of the log changes it.
//!
//! The machine decides who holds what, and nothing else does. It is deterministic: same log, same state
//! and same answers on every node. It never reads a clock (time is in the entry), never draws a random
//! number (secrets are in the command), and never fails: a refusal is an answer.
//!
//! The order within an entry is what keeps a renewal from losing against an expiry that was stamped
//! together with it; see [`Machine::apply`]. How the stamps come about is `proposer.rs`.

mod answers;
pub mod authority;
pub mod cow_map;
mod deadlines;
mod events;
mod fences;
pub mod few;
mod free_list;
mod giving;
mod history;
mod leases;
mod margins;
mod nonces;
mod packed;
mod packed_history;
mod registers;
mod restore;
mod sessions;
mod soundness;
mod staging;
pub mod state;
mod taking;
pub mod view;
mod waiters;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use self::authority::Authorities;
use self::cow_map::CowMap;
use self::deadlines::{Deadlines, Due};
use self::events::EventLog;
use self::fences::Fenced;
use self::free_list::FreeList;
use self::history::OldestLeases;
pub use self::margins::Margins;
use self::nonces::Nonces;
use self::sessions::Origin;
use self::staging::StagedIndexes;
pub use self::staging::{DiscardedStaging, StagingView};
use self::state::{RegisterNumber, ResourceNumber, State};
use crate::answer::{Answer, Done, Refusal, RenewalAnswer, Resolved};
use crate::command::{Command, Entry, Settings};
use crate::event::{EndReason, Event, EventKind};
use crate::identity::Identity;
use crate::limits::Limits;
use crate::names::{IdentityName, RegisterKey, ResourceName};
use crate::numbers::{Revision, SessionNumber, Token};
use crate::time::ClusterTime;
use crate::version::FormatVersion;

/// The replicated state machine: the agreed state and the indexes that make it quick.
#[derive(Clone, Debug)]
pub struct Machine {
    state: State,

    // Derived from the state, made again by `from_state`.
    deadlines: Deadlines,
    /// Where each session stands in `deadlines`.
    indexed: CowMap<SessionNumber, ClusterTime>,
    names: BTreeMap<ResourceName, ResourceNumber>,
    keys: BTreeMap<RegisterKey, RegisterNumber>,
    nonces: Nonces,
    /// How many sessions have each TTL.
    ttls: BTreeMap<Duration, u32>,
    /// Free resources that may be forgotten.
    forgettable: FreeList,
    /// Resources that may never be forgotten, and how many fences each has.
    pinned: BTreeMap<ResourceNumber, usize>,
    /// Those of them that have fences, by name.
    fenced: Fenced,
    /// What the byte bound of history drops next.
    oldest_leases: OldestLeases,
    value_bytes: u64,
    answer_bytes: u64,
    /// How many sessions have lapsed: hardly ever any, so nobody need look for them.
    lapsed_sessions: usize,
    /// Who may do what, indexed and counted.
    authorities: Authorities,
    /// Sessions whose secrets are kept as their openers know them: none that was opened under format version 2.
    plain_sessions: usize,
    /// The indexes of what is staged: the machine's own, once it is restored.
    staged: Option<Box<StagedIndexes>>,
    /// What was staged last and will not be restored, until the driver takes it.
    discarded: Option<DiscardedStaging>,

    events: EventLog,
    margins: Margins,

    // Of the entry being applied.
    /// Who gave the command that is being applied.
    caller: Identity,
    revision_raised: bool,
    successions: Vec<Succession>,
    resolved: Vec<Resolved>,
    // Lists and not sets, some numbers perhaps twice: nearly always they are short, and kept from command to command.
    /// Resources that may have become free for somebody in the queue.
    freed: Vec<ResourceNumber>,
    /// Resources that the command touched: where the invariants are checked.
    touched: Vec<ResourceNumber>,
    /// Sessions whose leases changed in this entry.
    changed_sessions: Vec<SessionNumber>,
}

/// What applying an entry answered; to be sent only now, and only by the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Cluster time after the entry.
    pub time: ClusterTime,
    /// One answer per renewal, in order.
    pub renewals: Vec<RenewalAnswer>,
    /// One answer per command, in order.
    pub answers: Vec<Answer>,
    /// The waits that ended, for whoever waits under their keys.
    pub resolved: Vec<Resolved>,
    /// Exclusive grants of what somebody else had held before, for metrics.
    pub successions: Vec<Succession>,
}

/// How an exclusive grant followed upon the lease before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Succession {
    /// Why the lease before it had ended.
    pub after: EndReason,
    /// How long nobody had held the resource. By the calendar, because cluster time stands still while nobody holds
    /// anything; a number for people may be as wrong as the leaders' clocks are.
    pub gap: Duration,
}

/// A snapshot that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contradiction(pub &'static str);

impl core::fmt::Display for Contradiction {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "the snapshot contradicts itself: {}", self.0)
    }
}

impl core::error::Error for Contradiction {}

impl Default for Machine {
    fn default() -> Self {
        Machine::from_state(State::default()).expect("an empty state does not contradict itself")
    }
}

impl Machine {
    /// The machine of this state, with its indexes made again.
    pub fn from_state(mut state: State) -> Result<Machine, Contradiction> {
        soundness::check_state(&state)?;
        state.refer_to_leases();
        let mut machine = Machine {
            deadlines: Deadlines::default(),
            indexed: CowMap::default(),
            names: BTreeMap::new(),
            keys: BTreeMap::new(),
            nonces: Nonces::default(),
            ttls: BTreeMap::new(),
            forgettable: FreeList::default(),
            pinned: BTreeMap::new(),
            fenced: Fenced::default(),
            oldest_leases: OldestLeases::default(),
            value_bytes: 0,
            answer_bytes: 0,
            lapsed_sessions: 0,
            authorities: Authorities::default(),
            plain_sessions: 0,
            staged: None,
            discarded: None,
            events: EventLog::starting_after(state.revision),
            margins: Margins::default(),
            caller: Identity::Anyone,
            revision_raised: false,
            successions: Vec::new(),
            resolved: Vec::new(),
            freed: Vec::new(),
            touched: Vec::new(),
            changed_sessions: Vec::new(),
            state,
        };
        if machine.state.grants_from > ClusterTime::ZERO {
            machine.deadlines.add(machine.state.grants_from, Due::Grace);
        }
        machine.index_sessions()?;
        machine.index_resources()?;
        machine.index_waiters()?;
        machine.index_registers()?;
        machine.index_staging()?;
        machine.index_authority()?;
        if machine.state.resources.iter().any(|(number, _)| machine.first_queued_could_go(number)) {
            return Err(Contradiction("a resource is free and somebody waits for it"));
        }
        machine.check_everything();
        Ok(machine)
    }

    /// A copy of the whole state, cheap to take: what it shares with the machine is copied only when it changes.
    pub fn capture(&self) -> State {
        self.state.clone()
    }

    /// Applies one entry of the log.
    ///
    /// (1) Renewals are judged by the time before the entry, because they were received before its stamp.
    /// (2) Time moves to the stamp. (3) Everything due ends, all of it before any grant; then what is free
    /// goes to those in the queue. (4) The other commands, in order.
    pub fn apply(&mut self, entry: Entry) -> Applied {
        let at = entry.at.max(self.state.time);
        self.events.turn_over(&self.state.settings.limits);
        self.state.wall = entry.wall;
        self.keep_wall();
        self.state.entries += 1;

        let mut renewals: Vec<RenewalAnswer> =
            entry.renewals.iter().map(|renewal| self.renew(*renewal, at)).collect();

        self.state.time = at;
        self.end_due();
        let answers = entry.commands.into_iter().map(|command| self.apply_command(command)).collect();

        // What a renewal must say is what is true at the end of its entry: above all, what is left of a
        // lease under notice counts from the stamp, not from the time before it.
        self.changed_sessions.sort_unstable();
        for (renewal, answer) in entry.renewals.iter().zip(&mut renewals) {
            if let RenewalAnswer::Renewed { events, .. } = answer
                && (events.is_some() || self.changed_sessions.binary_search(&renewal.session).is_ok())
            {
                *answer = self.renewal_answer(*renewal);
            }
        }
        self.changed_sessions.clear();
        Applied {
            time: self.state.time,
            renewals,
            answers,
            successions: core::mem::take(&mut self.successions),
            resolved: core::mem::take(&mut self.resolved),
        }
    }

    /// Applies one command of an entry. Same state and command, same answer, on every replica.
    fn apply_command(&mut self, command: Command) -> Answer {
        let Command::As(attributed) = command else { return self.apply_as_caller(command) };
        self.caller = attributed.identity;
        let answer = self.apply_as_caller(attributed.command);
        self.caller = Identity::Anyone;
        answer
    }

    fn apply_as_caller(&mut self, command: Command) -> Answer {
        let answer = match self.check_command(&command) {
            Ok(()) => self.carry_out(command),
            Err(refusal) => Err(refusal),
        };
        self.finish_step();
        answer
    }

    fn carry_out(&mut self, command: Command) -> Answer {
        match command {
            Command::Open(open) => self.open(open, Origin::Open).map(|opened| self.opened_answer(opened)),
            Command::Close { by, why } => self.close(by, why),
            Command::Acquire(acquire) => self.acquire(*acquire),
            Command::Cancel { by, acquire } => self.cancel(by, acquire),
            Command::CancelNonce { nonce } => self.cancel_nonce(nonce),
            Command::Undo { session, transmission } => self.undo(session, transmission),
            Command::Release { by, resource, token, rest } => self.release(by, &resource, token, rest),
            Command::Transfer { by, resource, to } => self.transfer(by, &resource, to),
            Command::Revoke { resource, session, now, reason } => {
                self.revoke(&resource, session, now, reason)
            }
            Command::Seen { session, revision } => self.seen(session, revision),
            Command::Write(write) => self.write(*write),
            Command::Barrier { resource } => self.barrier(&resource),
            Command::Arm { scope, fence, token } => self.arm(scope, fence, token),
            Command::Refused { scope, fence, presented, seen, count } => {
                self.fence_refused(scope, &fence, presented, seen, count)
            }
            Command::Paused { session, length } => self.paused(session, length),
            Command::RemoveFence { resource, fence } => self.remove_fence(&resource, &fence),
            Command::SetKind { resource, kind } => self.set_kind(&resource, kind),
            Command::Rebind { key, guard } => self.rebind(&key, guard),
            Command::BecameLeader { node, term } => self.became_leader(node, term),
            Command::Configure(settings) => self.configure(*settings),
            Command::Restore { backup, token_floor, holders_stopped } => {
                self.restore(*backup, token_floor, holders_stopped)
            }
            Command::RestoreBegin(begin) => self.restore_begin(*begin),
            Command::RestorePiece(piece) => self.restore_piece(*piece),
            Command::RestoreCommit { id, pieces, records, checksum } => {
                self.restore_commit(id, pieces, records, checksum)
            }
            Command::PublishKey { node, kid, key } => self.publish_key(node, kid, key),
            Command::WithdrawKey { kid } => self.withdraw_key(&kid),
            Command::Upgrade { to } => self.upgrade(to),
            Command::PutCredential(put) => self.put_credential(*put),
            Command::RevokeCredential { id, now } => self.revoke_credential(id, now),
            Command::PutPolicy(put) => self.put_policy(*put),
            Command::RemovePolicy { name, now } => self.remove_policy(&name, now),
            Command::SetEnforced { enforced } => self.set_enforced(enforced),
            Command::As(_) => Err(Refusal::Invalid("a command is from one caller")),
        }
    }

    /// Credentials expire by the calendar, which may go back from one leader to the next: what counts is the latest
    /// time that any entry had.
    fn keep_wall(&mut self) {
        let latest = &mut self.state.authority.wall;
        if self.state.format >= FormatVersion::V2
            && self.state.wall.as_unix_millis() > latest.as_unix_millis()
        {
            *latest = self.state.wall;
        }
    }

    /// Ends everything whose time has come, as one visible change, then grants what became free.
    ///
    /// "Ended" is the comparison of a deadline with the time; clearing the records away is only tidiness and
    /// is cut into portions, so that a hundred thousand sessions that end at once stall nobody. Whatever
    /// touches a record that is due but not yet cleared clears it first (`settle`).
    fn end_due(&mut self) {
        let mut left = i64::from(self.limits().cleared_per_entry_max);
        while left > 0
            && let Some((at, due)) = self.deadlines.pop_due(self.state.time)
        {
            left -= match due {
                Due::Session(session) => self.session_due(session, at),
                Due::Notice(resource, token) => self.notice_due(resource, token),
                Due::Wait(waiter) => self.wait_due(waiter),
                Due::Delay(resource) => self.delay_due(resource),
                Due::Hold(resource, token) => self.hold_due(resource, token),
                Due::Grace => self.grace_due(),
                Due::Staging => self.staging_due(),
            };
        }
        self.finish_step();
    }

    /// Ends a command or the expiry pass: serves those in the queue, files what became free, checks what was
    /// touched.
    fn finish_step(&mut self) {
        self.serve_freed();
        let mut touched = core::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        for resource in touched.drain(..) {
            self.file_resource(resource);
            self.assert_resource(resource);
        }
        self.touched = touched;
        self.forget_oldest();
        self.revision_raised = false;
    }

    /// Tells the world, under one revision for everything that one command (or one expiry pass) changes.
    fn emit(&mut self, kind: EventKind) -> Revision {
        let identity = match kind.session() {
            Some(session) => self.opener_name(session),
            None => self.caller.name().cloned(),
        };
        self.emit_about(kind, identity)
    }

    fn emit_about(&mut self, kind: EventKind, identity: Option<IdentityName>) -> Revision {
        if !self.revision_raised {
            self.state.revision = self.state.revision.next();
            self.revision_raised = true;
        }
        let event = Event { revision: self.state.revision, wall: self.state.wall, kind, identity };
        self.events.push(event);
        self.state.revision
    }

    fn limits(&self) -> &Limits {
        &self.state.settings.limits
    }

    fn limit(limit: &'static str, max: impl Into<u64>) -> Refusal {
        Refusal::Limit { limit, max: max.into() }
    }

    /// Refuses unless `count` more tokens can be issued.
    fn tokens_left(&self, count: usize) -> Result<(), Refusal> {
        if self.state.last_token + count as u64 > Token::MAX.get() {
            Err(Refusal::TokensExhausted)
        } else {
            Ok(())
        }
    }

    /// Issues the next token. Callers have asked `tokens_left`.
    fn next_token(&mut self) -> Token {
        let token = Token::try_from(self.state.last_token + 1).expect("tokens_rise: asked before issuing");
        self.state.last_token = token.get();
        token
    }

    fn became_leader(&mut self, node: u64, term: u64) -> Answer {
        self.state.totals.leader_changes += 1;
        self.emit(EventKind::BecameLeader { node, term });
        Ok(Done::Nothing)
    }

    fn configure(&mut self, settings: Settings) -> Answer {
        if settings.limits.ttl_min.is_zero() || settings.limits.ttl_min > settings.limits.ttl_max {
            return Err(Refusal::Invalid("ttl_min must be above zero and not above ttl_max"));
        }
        self.state.settings = settings;
        self.emit(EventKind::Changed { what: "cluster".into(), how: "configured" });
        Ok(Done::Nothing)
    }

    /// Raises the agreed format version, one entry for all nodes. A repeated or late raise changes nothing.
    fn upgrade(&mut self, to: FormatVersion) -> Answer {
        if to > self.state.format {
            self.state.format = to;
            self.state.settings.limits.raise(to);
            self.emit(EventKind::Changed { what: "cluster".into(), how: "upgraded" });
        }
        Ok(Done::Nothing)
    }

    // What the leader's proposer asks for.

    /// Cluster time as applied.
    pub fn time(&self) -> ClusterTime {
        self.state.time
    }

    /// The earliest time at which something may come due; `None` when nothing ever will by itself.
    pub fn earliest_deadline(&self) -> Option<ClusterTime> {
        self.deadlines.earliest()
    }

    /// Whether records that are due still wait to be cleared away.
    pub fn clearing(&self) -> bool {
        self.deadlines.earliest().is_some_and(|at| at <= self.state.time)
    }

    /// The smallest TTL of any session, which bounds how far the leader may count ahead.
    pub fn smallest_ttl(&self) -> Option<Duration> {
        self.ttls.keys().next().copied()
    }

    /// How long nothing is granted, after a restore.
    pub fn grants_in(&self) -> Duration {
        self.state.grants_from.remaining_at(self.state.time)
    }

    /// The format version that all nodes agree on.
    pub fn format(&self) -> FormatVersion {
        self.state.format
    }

    /// The settings that all nodes agree on.
    pub fn settings(&self) -> &Settings {
        &self.state.settings
    }
}
