//! Who may do what: judges every command by the policies, binds sessions to who opened them, counts quotas.
//!
//! It decides at apply, from the state alone, so that leader and follower agree and no command slips between a check
//! and its effect. What a policy covers is decided in `policy.rs`. Nothing here is asked when the policies do not
//! count, and nothing that time does (an expiry, a queue that moves) is ever judged.
//!
//! Rights of a session are those of the identity that opened it. Its commands must come from that identity; a session
//! that was opened by anyone is bound by its secret alone.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Bound;
use core::time::Duration;

use super::Machine;
use super::state::{Credential, IdentityNumber, Resource, ResourceNumber, Session, State, WaiterNumber};
use super::{Contradiction, soundness};
use crate::answer::{Answer, Denial, DenialReason, Done, OverQuota, Refusal};
use crate::command::{Acquire, Command, Operation, PutCredential, PutPolicy, Wait, Write};
use crate::event::{EndReason, EventKind};
use crate::identity::{CredentialId, Identity, Verb};
use crate::limits::{CREDENTIALS_MAX, EXPIRED_CREDENTIAL_KEEPS_FOR, POLICIES_MAX, POLICY_PARTS_MAX};
use crate::names::{HolderName, IdentityName, PolicyName, RegisterKey, ResourceName, Scope};
use crate::numbers::{SessionId, SessionNumber, Token};
use crate::policy::{HolderRule, Policy, PolicySet, Prefix, Verdict};
use crate::time::WallTime;
use crate::version::FormatVersion;

/// What concerns the whole cluster, or no name in particular.
const EVERYTHING: &[u8] = b"*";

/// What a caller's credential is still good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Everything that its policies allow. So are callers whose proof is not a credential of the cluster.
    Good,
    /// It has expired: it keeps what it has for a day, and takes nothing new.
    Expired,
    /// It was revoked, it expired longer ago, or the cluster does not know it.
    Ended,
}

/// Indexes and counts, derived from the state.
#[derive(Clone, Debug, Default)]
pub(super) struct Authorities {
    policies: PolicySet,
    numbers: BTreeMap<Identity, IdentityNumber>,
    /// How many sessions name each number.
    sessions: BTreeMap<IdentityNumber, u32>,
    named_sessions: usize,
    /// Some policy counts what is under its prefixes.
    counting: bool,
    /// By policy and identity, whichever credential.
    used: BTreeMap<(u32, Identity), Used>,
    /// By policy.
    stored: BTreeMap<u32, Stored>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Used {
    leases: u64,
    waiters: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stored {
    registers: u64,
    bytes: u64,
}

/// What a session asks for when it acquires.
struct Taking<'a> {
    identity: &'a Identity,
    holder: &'a HolderName,
    ttl: Duration,
    acquire: &'a Acquire,
    /// Whether what there is already counts.
    counted: bool,
}

/// How much a counter moves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Moves {
    Up,
    Down,
}

impl Moves {
    fn add(self, counter: &mut u64, by: u64) {
        match self {
            Moves::Up => *counter += by,
            Moves::Down => *counter -= by,
        }
    }
}

// What others ask.
impl Machine {
    /// Whether the policies count.
    pub fn enforced(&self) -> bool {
        self.state.authority.enforced
    }

    /// The latest calendar time of any entry: what credentials expire by.
    pub fn authority_wall(&self) -> WallTime {
        self.state.authority.wall
    }

    /// A credential that the cluster issued.
    pub fn credential(&self, id: CredentialId) -> Option<&Credential> {
        self.state.authority.credentials.get(&id)
    }

    /// All credentials, in the order of their ids.
    pub fn credentials(&self) -> impl Iterator<Item = (CredentialId, &Credential)> {
        self.state.authority.credentials.iter().map(|(id, credential)| (*id, credential))
    }

    /// A policy.
    pub fn policy(&self, name: &PolicyName) -> Option<&Policy> {
        self.state.authority.policies.get(name).map(|policy| &**policy)
    }

    /// All policies, in the order of their names.
    pub fn policies(&self) -> impl Iterator<Item = (&PolicyName, &Policy)> {
        self.state.authority.policies.iter().map(|(name, policy)| (name, &**policy))
    }

    /// The policies for this identity.
    pub fn policies_of<'a>(
        &'a self,
        identity: &'a Identity,
    ) -> impl Iterator<Item = (&'a PolicyName, &'a Policy)> {
        self.policies().filter(|(_, policy)| policy.who.iter().any(|who| who.includes(identity)))
    }

    /// Whether this identity may do this: yes if the policies do not count. `on` is a resource, a register's key, or
    /// `*` for what concerns the whole cluster.
    pub fn permits(&self, identity: &Identity, verb: Verb, on: impl AsRef<[u8]>) -> Verdict {
        if !self.state.authority.enforced {
            return Verdict::Allowed { by: None };
        }
        self.judge(identity, verb, on)
    }

    /// What the policies say, whether or not they count.
    pub fn judge(&self, identity: &Identity, verb: Verb, on: impl AsRef<[u8]>) -> Verdict {
        self.authorities.policies.judge(identity, verb, on.as_ref())
    }

    /// Whether this identity may do this anywhere, on whatever name: yes if the policies do not count.
    pub fn permits_somewhere(&self, identity: &Identity, verb: Verb) -> bool {
        !self.state.authority.enforced
            || matches!(identity, Identity::Operator | Identity::Node)
            || verb == Verb::Public
            || self.authorities.policies.anywhere(identity, verb).next().is_some()
    }

    /// Whether this identity may see who has this session: its own, or it may read everything.
    pub fn permits_session(&self, identity: &Identity, opened_by: Option<&IdentityName>) -> bool {
        !self.state.authority.enforced
            || (opened_by.is_some() && opened_by == identity.name())
            || self.judge(identity, Verb::Read, EVERYTHING).is_allowed()
    }

    /// A refusal for a caller that may not do this, as applying the command would have answered.
    pub fn denial(&self, identity: &Identity, verb: Verb, on: impl AsRef<[u8]>) -> Refusal {
        self.denied_to(identity, verb, on.as_ref(), DenialReason::NoPolicy)
    }

    /// A refusal for a caller whose credential has ended.
    pub fn denial_of_standing(&self, identity: &Identity, verb: Verb, on: impl AsRef<[u8]>) -> Refusal {
        self.denied_to(identity, verb, on.as_ref(), DenialReason::Revoked)
    }

    /// What a caller's credential is still good for, by the calendar of the log.
    pub fn standing(&self, identity: &Identity) -> Standing {
        let (Some(id), Some(name)) = (identity.credential(), identity.name()) else { return Standing::Good };
        match self.state.authority.credentials.get(&id) {
            Some(credential) if credential.name == *name => credential.standing(self.state.authority.wall),
            _ => Standing::Ended,
        }
    }

    /// Whether this id names a session that has not ended, and this caller may renew it: what a renewal's intake asks.
    pub fn knows_as(&self, identity: &Identity, id: &SessionId) -> bool {
        self.known(*id).is_ok_and(|session| self.speaks_for(identity, session).is_ok())
    }

    /// Who opened a session, if that was said.
    pub fn opener(&self, session: SessionNumber) -> Option<&Identity> {
        let number = self.state.sessions.get(session)?.identity;
        self.state.authority.identities.get(&number)
    }

    /// How much of each limit an identity has: sessions, and by policy the leases and places in queues.
    pub fn used_by<'a>(
        &'a self,
        identity: &'a Identity,
    ) -> impl Iterator<Item = (&'a PolicyName, u64, u64)> + 'a {
        let own = identity.without_credential();
        self.authorities
            .used
            .iter()
            .filter(move |((_, whose), _)| *whose == own)
            .map(|((number, _), used)| (self.authorities.policies.rule(*number).0, used.leases, used.waiters))
    }

    /// How many sessions an identity has.
    pub fn sessions_of(&self, identity: &Identity) -> u64 {
        if *identity == Identity::Anyone {
            return (self.state.sessions.len() - self.authorities.named_sessions) as u64;
        }
        let numbers = self.authorities.numbers.iter().filter(|(known, _)| known.is_same(identity));
        numbers
            .filter_map(|(_, number)| self.authorities.sessions.get(number))
            .map(|count| u64::from(*count))
            .sum()
    }
}

impl Credential {
    /// What it is good for at this calendar time.
    pub fn standing(&self, wall: WallTime) -> Standing {
        let past = |expires: WallTime| wall.as_unix_millis().checked_sub(expires.as_unix_millis());
        match self.expires.and_then(past) {
            _ if self.revoked => Standing::Ended,
            None => Standing::Good,
            Some(millis) if Duration::from_millis(millis) < EXPIRED_CREDENTIAL_KEEPS_FOR => Standing::Expired,
            Some(_) => Standing::Ended,
        }
    }
}

// Judging.
impl Machine {
    fn denied(&self, verb: Verb, on: &[u8], why: DenialReason) -> Refusal {
        self.denied_to(&self.caller, verb, on, why)
    }

    fn denied_to(&self, identity: &Identity, verb: Verb, on: &[u8], why: DenialReason) -> Refusal {
        let nearest = self.authorities.policies.nearest(identity, verb, on);
        let on = String::from_utf8_lossy(on).into();
        Refusal::Forbidden(Box::new(Denial { identity: identity.clone(), verb, on, why, nearest }))
    }

    /// Refuses unless the caller may do this.
    pub(super) fn check_may(&self, verb: Verb, on: &[u8]) -> Result<(), Refusal> {
        if !self.state.authority.enforced {
            return Ok(());
        }
        self.check_standing(verb, on)?;
        match self.judge(&self.caller, verb, on) {
            Verdict::Allowed { .. } => Ok(()),
            Verdict::Denied { .. } => Err(self.denied(verb, on, DenialReason::NoPolicy)),
        }
    }

    /// Refuses a caller whose credential takes nothing new.
    fn check_standing(&self, verb: Verb, on: &[u8]) -> Result<(), Refusal> {
        match self.standing(&self.caller) {
            Standing::Good => Ok(()),
            Standing::Expired => Err(self.denied(verb, on, DenialReason::Expired)),
            Standing::Ended => Err(self.denied(verb, on, DenialReason::Revoked)),
        }
    }

    /// Judges a command that belongs to no session, before it is done. What belongs to one is judged where its session
    /// is found ([`Machine::check_session`]), and what it takes or writes where that is done once, however often the
    /// command arrives.
    #[inline]
    pub(super) fn check_command(&self, command: &Command) -> Result<(), Refusal> {
        if !self.state.authority.enforced {
            return Ok(());
        }
        self.judge_command(command)
    }

    fn judge_command(&self, command: &Command) -> Result<(), Refusal> {
        match command {
            // Of a session, or opening one.
            Command::Open(_)
            | Command::Acquire(_)
            | Command::Close { .. }
            | Command::Cancel { .. }
            | Command::CancelNonce { .. }
            | Command::Undo { .. }
            | Command::Release { .. }
            | Command::Transfer { .. }
            | Command::Seen { .. }
            | Command::Paused { .. }
            | Command::Write(_) => Ok(()),
            Command::Arm { scope, .. } | Command::Refused { scope, .. } => {
                self.check_may(Verb::Hold, scope.resource.as_str().as_bytes())
            }
            Command::Revoke { resource, .. }
            | Command::Barrier { resource }
            | Command::RemoveFence { resource, .. }
            | Command::SetKind { resource, .. } => self.check_may(Verb::Manage, resource.as_str().as_bytes()),
            Command::Rebind { key, guard } => {
                self.check_may(Verb::Manage, key.as_bytes())?;
                let guard = guard.as_ref().map(|scope| scope.resource.as_str().as_bytes());
                guard.map_or(Ok(()), |resource| self.check_may(Verb::Manage, resource))
            }
            Command::PublishKey { .. }
            | Command::WithdrawKey { .. }
            | Command::Restore { .. }
            | Command::RestoreBegin(_)
            | Command::RestorePiece(_)
            | Command::RestoreCommit { .. } => self.check_may(Verb::Operate, EVERYTHING),
            Command::PutCredential(put) => self.check_credential(&put.name),
            // Whoever has a credential may give it up.
            Command::RevokeCredential { id, .. } if self.caller.credential() == Some(*id) => {
                match self.standing(&self.caller) {
                    Standing::Ended => Err(self.denied(Verb::Grant, EVERYTHING, DenialReason::Revoked)),
                    Standing::Good | Standing::Expired => Ok(()),
                }
            }
            Command::RevokeCredential { id, .. } => match self.state.authority.credentials.get(id) {
                Some(credential) => self.check_credential(&credential.name),
                None => self.check_grants(),
            },
            Command::PutPolicy(put) => self.check_policy(&put.name, Some(&put.policy)),
            Command::RemovePolicy { name, .. } => self.check_policy(name, None),
            Command::SetEnforced { .. } => self.check_may(Verb::Grant, EVERYTHING),
            // A leader gives these by itself; nobody can ask for them.
            Command::BecameLeader { .. } | Command::Configure(_) | Command::Upgrade { .. } => Ok(()),
            Command::As(_) => Err(Refusal::Invalid("a command is from one caller")),
        }
    }

    /// Whether this caller is the one that opened the session. Judged for its own commands, never for time.
    fn speaks_for(&self, caller: &Identity, session: SessionNumber) -> Result<(), DenialReason> {
        if !self.state.authority.enforced {
            return Ok(());
        }
        if self.standing(caller) == Standing::Ended {
            return Err(DenialReason::Revoked);
        }
        let same = match self.opener(session) {
            None => true,
            Some(opener) => opener.is_same(caller) || *caller == Identity::Operator,
        };
        if same { Ok(()) } else { Err(DenialReason::OtherSession) }
    }

    /// Refuses a command of a session that is not from whoever opened it.
    pub(super) fn check_session(&self, session: SessionNumber) -> Result<(), Refusal> {
        self.speaks_for(&self.caller, session).map_err(|why| self.denied(Verb::Hold, EVERYTHING, why))
    }

    /// Refuses to remember a nonce for a caller that could open nothing with it.
    pub(super) fn check_cancels(&self) -> Result<(), Refusal> {
        let ended = self.enforced() && self.standing(&self.caller) == Standing::Ended;
        if ended || !self.permits_somewhere(&self.caller, Verb::Hold) {
            let why = if ended { DenialReason::Revoked } else { DenialReason::NoPolicy };
            return Err(self.denied(Verb::Hold, EVERYTHING, why));
        }
        Ok(())
    }

    /// Refuses to open one more session for the caller.
    pub(super) fn check_open(&self, ttl: Duration) -> Result<(), Refusal> {
        if !self.state.authority.enforced {
            return Ok(());
        }
        self.check_standing(Verb::Hold, EVERYTHING)?;
        if matches!(self.caller, Identity::Operator | Identity::Node) {
            return Ok(());
        }
        let sessions = self.sessions_of(&self.caller) + 1;
        let mut refusal = None;
        for (name, policy) in self.authorities.policies.anywhere(&self.caller, Verb::Hold) {
            let quotas = &policy.limits;
            let over = self
                .over(&self.caller, name, "sessions", quotas.sessions.map(u64::from), sessions)
                .or_else(|| self.over_ttl(&self.caller, name, policy, ttl));
            match over {
                None => return Ok(()),
                Some(over) => drop(refusal.get_or_insert(over)),
            }
        }
        Err(refusal.unwrap_or_else(|| self.denied(Verb::Hold, EVERYTHING, DenialReason::NoPolicy)))
    }

    /// Refuses a session that may not take all of this; with `counted`, also because it would have too much.
    pub(super) fn check_take(
        &self,
        session: Option<SessionNumber>,
        holder: &HolderName,
        ttl: Duration,
        acquire: &Acquire,
        counted: bool,
    ) -> Result<(), Refusal> {
        if !self.state.authority.enforced || (counted && !self.authorities.counting) {
            return Ok(());
        }
        let identity = match session {
            Some(session) => self.opener(session).unwrap_or(&Identity::Anyone),
            None => &self.caller,
        };
        let first = acquire.resources.first().map_or(EVERYTHING, |name| name.as_str().as_bytes());
        self.check_standing(Verb::Hold, first)?;
        if matches!(identity, Identity::Operator | Identity::Node) {
            return Ok(());
        }
        let taking = Taking { identity, holder, ttl, acquire, counted };
        acquire.resources.iter().try_for_each(|name| self.check_take_one(&taking, name))
    }

    fn check_take_one(&self, taking: &Taking<'_>, name: &ResourceName) -> Result<(), Refusal> {
        let mut refusal = None;
        let on = name.as_str().as_bytes();
        for number in self.authorities.policies.covering(taking.identity, on) {
            let (policy_name, policy) = self.authorities.policies.rule(number);
            if !policy.may.contains(Verb::Hold) {
                continue;
            }
            match self.take_refused_by(taking, number, policy_name, policy, on) {
                None => return Ok(()),
                Some(refused) => drop(refusal.get_or_insert(refused)),
            }
        }
        let denied = || self.denied_to(taking.identity, Verb::Hold, on, DenialReason::NoPolicy);
        Err(refusal.unwrap_or_else(denied))
    }

    fn take_refused_by(
        &self,
        taking: &Taking<'_>,
        number: u32,
        name: &PolicyName,
        policy: &Policy,
        on: &[u8],
    ) -> Option<Refusal> {
        let Taking { identity, holder, ttl, acquire, counted } = taking;
        if policy.holder == HolderRule::Own && !identity.owns_holder(holder) {
            return Some(self.denied_to(identity, Verb::Hold, on, DenialReason::HolderName));
        }
        let priority = acquire.policies.priority;
        if priority > policy.limits.priority_max.max(0) {
            let (max, used) = (policy.limits.priority_max.max(0) as u64, priority as u64);
            return self.over(identity, name, "priority_max", Some(max), used);
        }
        if let Some(over) = self.over_ttl(identity, name, policy, *ttl) {
            return Some(over);
        }
        if !counted || !policy.limits.counts() {
            return None;
        }
        let covered =
            |name: &&ResourceName| policy.on.iter().any(|prefix| prefix.covers(name.as_str().as_bytes()));
        let more = acquire.resources.iter().filter(covered).count() as u64;
        let used = self.authorities.used.get(&(number, identity.without_credential()));
        let used = used.copied().unwrap_or_default();
        // What it waits for counts, too: when its turn comes there is nobody to refuse.
        let leases = policy.limits.leases.map(u64::from);
        self.over(identity, name, "leases", leases, used.leases + used.waiters + more).or_else(|| {
            let waiters = policy.limits.waiters.filter(|_| acquire.wait != Wait::No).map(u64::from);
            self.over(identity, name, "waiters", waiters, used.waiters + more)
        })
    }

    fn over_ttl(
        &self,
        identity: &Identity,
        name: &PolicyName,
        policy: &Policy,
        ttl: Duration,
    ) -> Option<Refusal> {
        let millis = |length: Duration| u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        self.over(identity, name, "ttl_max", policy.limits.ttl_max.map(millis), millis(ttl))
    }

    fn over(
        &self,
        identity: &Identity,
        policy: &PolicyName,
        limit: &'static str,
        max: Option<u64>,
        used: u64,
    ) -> Option<Refusal> {
        let max = max.filter(|max| used > *max)?;
        let (identity, policy) = (identity.clone(), Some(policy.clone()));
        Some(Refusal::OverQuota(Box::new(OverQuota { identity, limit, max, used, policy })))
    }

    /// Refuses to hand a resource to a session that may not hold it, or from one that may not.
    pub(super) fn check_transfer(
        &self,
        from: SessionNumber,
        to: SessionNumber,
        name: &ResourceName,
    ) -> Result<(), Refusal> {
        if !self.state.authority.enforced {
            return Ok(());
        }
        let on = name.as_str().as_bytes();
        self.check_standing(Verb::Hold, on)?;
        for session in [from, to] {
            if !self.holds_by_right(session, on) {
                let identity = self.opener(session).unwrap_or(&Identity::Anyone);
                return Err(self.denied_to(identity, Verb::Hold, on, DenialReason::NoPolicy));
            }
        }
        Ok(())
    }

    /// Refuses a write that reads or changes what the caller may not: whichever branch is taken, because the branch
    /// that is taken tells what the comparisons found.
    pub(super) fn check_write(&self, write: &Write) -> Result<(), Refusal> {
        if !self.state.authority.enforced {
            return Ok(());
        }
        for compare in &write.compares {
            self.check_may(Verb::Read, compare.key.as_bytes())?;
        }
        for operation in write.then.iter().chain(&write.otherwise) {
            match operation {
                Operation::Put { key, .. } | Operation::Delete { key, .. } => {
                    self.check_may(Verb::Write, key.as_bytes())?;
                }
                Operation::Get { key } => self.check_may(Verb::Read, key.as_bytes())?,
            }
        }
        Ok(())
    }

    /// Refuses to store more than the policies allow. `planned` has what each register will hold, and `None` for those
    /// that go; `bytes_before` what one holds now, if it exists.
    pub(super) fn check_stored<'a>(
        &self,
        planned: impl Iterator<Item = (&'a RegisterKey, Option<u64>)> + Clone,
        bytes_before: impl Fn(&RegisterKey) -> Option<u64>,
    ) -> Result<(), Refusal> {
        if !self.state.authority.enforced || !self.authorities.counting {
            return Ok(());
        }
        if matches!(self.caller, Identity::Operator | Identity::Node) {
            return Ok(());
        }
        for (key, now) in planned.clone() {
            if now.is_none() {
                continue;
            }
            let mut refusal = None;
            let mut fits = false;
            for number in self.authorities.policies.covering(&self.caller, key.as_bytes()) {
                let (name, policy) = self.authorities.policies.rule(number);
                if !policy.may.contains(Verb::Write) {
                    continue;
                }
                let covered = planned
                    .clone()
                    .filter(|(key, _)| policy.on.iter().any(|prefix| prefix.covers(key.as_bytes())));
                let (mut before, mut after) = (Stored::default(), Stored::default());
                for (key, now) in covered {
                    let was = bytes_before(key);
                    before.registers += u64::from(was.is_some());
                    before.bytes += was.unwrap_or_default();
                    after.registers += u64::from(now.is_some());
                    after.bytes += now.unwrap_or_default();
                }
                let stored = self.authorities.stored.get(&number).copied().unwrap_or_default();
                let over = |limit, max: Option<u64>, stored: u64, before: u64, after: u64| {
                    // What makes it less is never refused.
                    let max = max.filter(|_| after > before);
                    self.over(&self.caller, name, limit, max, stored.saturating_sub(before) + after)
                };
                let registers = policy.limits.registers.map(u64::from);
                let over = over("registers", registers, stored.registers, before.registers, after.registers)
                    .or_else(|| over("bytes", policy.limits.bytes, stored.bytes, before.bytes, after.bytes));
                match over {
                    None => {
                        fits = true;
                        break;
                    }
                    Some(over) => drop(refusal.get_or_insert(over)),
                }
            }
            if let Some(refusal) = refusal.filter(|_| !fits) {
                return Err(refusal);
            }
        }
        Ok(())
    }

    /// Refuses what is done with the token of a lease by somebody else than its holder's identity.
    pub(super) fn check_holder(&self, session: SessionNumber, scope: &Scope) -> Result<(), Refusal> {
        if !self.state.authority.enforced {
            return Ok(());
        }
        let other =
            |_| self.denied(Verb::Hold, scope.resource.as_str().as_bytes(), DenialReason::OtherHolder);
        self.speaks_for(&self.caller, session).map_err(other)
    }

    /// Refuses a report about tokens that the caller's identity neither has nor had.
    pub(super) fn check_reporter(&self, scope: &Scope, tokens: [Token; 2]) -> Result<(), Refusal> {
        if !self.state.authority.enforced || self.caller == Identity::Operator {
            return Ok(());
        }
        let resource = self.names.get(&scope.resource).map(|number| self.resource(*number));
        let held = |resource: &Resource| {
            let mut holds = resource.holds.iter().filter(|hold| tokens.contains(&hold.token));
            let mut past = resource.more.iter().flat_map(|more| more.history.iter());
            holds.any(|hold| self.speaks_for(&self.caller, hold.session).is_ok())
                || past.any(|past| {
                    let own = past.identity.is_none() || past.identity.as_ref() == self.caller.name();
                    tokens.contains(&past.token) && own
                })
        };
        if resource.is_some_and(held) {
            return Ok(());
        }
        Err(self.denied(Verb::Hold, scope.resource.as_str().as_bytes(), DenialReason::OtherHolder))
    }

    /// Whether a policy lets this session hold this.
    fn holds_by_right(&self, session: SessionNumber, on: &[u8]) -> bool {
        let identity = self.opener(session).unwrap_or(&Identity::Anyone);
        if matches!(identity, Identity::Operator | Identity::Node) {
            return true;
        }
        let holder = &self.session(session).holder;
        self.authorities.policies.covering(identity, on).any(|number| {
            let policy = self.authorities.policies.rule(number).1;
            policy.may.contains(Verb::Hold)
                && (policy.holder == HolderRule::Any || identity.owns_holder(holder))
        })
    }

    fn check_grants(&self) -> Result<(), Refusal> {
        self.check_standing(Verb::Grant, EVERYTHING)?;
        if self.permits_somewhere(&self.caller, Verb::Grant) {
            return Ok(());
        }
        Err(self.denied(Verb::Grant, EVERYTHING, DenialReason::NoPolicy))
    }

    /// Refuses to issue or end a credential of an identity that may do what the caller may not.
    fn check_credential(&self, name: &IdentityName) -> Result<(), Refusal> {
        self.check_grants()?;
        let identity = Identity::named(name.clone());
        self.policies_of(&identity).try_for_each(|(_, policy)| self.check_within_own(policy))
    }

    /// Refuses to put a policy in the place of another, if the caller may not take away the one and give the other.
    fn check_policy(&self, name: &PolicyName, put: Option<&Policy>) -> Result<(), Refusal> {
        self.check_grants()?;
        let old = self.policy(name);
        for prefix in old.into_iter().chain(put).flat_map(|policy| &policy.on) {
            self.check_may(Verb::Grant, prefix.as_str().as_bytes())?;
        }
        put.map_or(Ok(()), |policy| self.check_within_own(policy))
    }

    /// Refuses a policy that allows what the caller itself may not do.
    fn check_within_own(&self, policy: &Policy) -> Result<(), Refusal> {
        if matches!(self.caller, Identity::Operator | Identity::Node) {
            return Ok(());
        }
        let set = &self.authorities.policies;
        for prefix in &policy.on {
            let on = prefix.as_str().as_bytes();
            for verb in policy.may.iter() {
                let own = set.covering(&self.caller, on).map(|number| set.rule(number).1).any(|own| {
                    own.may.contains(verb)
                        && policy.limits.is_within(&own.limits)
                        && (own.holder == HolderRule::Any || policy.holder == HolderRule::Own)
                });
                if !own {
                    return Err(self.denied(verb, on, DenialReason::BeyondOwn));
                }
            }
        }
        Ok(())
    }
}

// Changing who may do what.
impl Machine {
    pub(super) fn put_credential(&mut self, put: PutCredential) -> Answer {
        let PutCredential { id, name, hash, expires } = put;
        if !name.as_str().starts_with("cred/") {
            return Err(Refusal::Invalid("a credential makes its bearer cred/NAME"));
        }
        let created = self.state.wall;
        let credentials = &mut self.state.authority.credentials;
        if let Some(known) = credentials.get(&id) {
            let same = known.name == name && known.hash == hash && known.expires == expires && !known.revoked;
            let other = Refusal::Invalid("another credential has this id; draw a new one");
            return if same { Ok(Done::Nothing) } else { Err(other) };
        }
        if credentials.len() >= CREDENTIALS_MAX {
            let wall = self.state.authority.wall;
            let ended = |(_, known): &(&CredentialId, &Credential)| known.standing(wall) == Standing::Ended;
            let Some(ended) = credentials.iter().find(ended).map(|(id, _)| *id) else {
                return Err(Self::limit("credentials_max", CREDENTIALS_MAX as u64));
            };
            credentials.remove(&ended);
        }
        let what = name.as_str().into();
        credentials.insert(id, Credential { name, hash, created, expires, revoked: false });
        self.emit(EventKind::Changed { what, how: "credential issued" });
        Ok(Done::Nothing)
    }

    pub(super) fn revoke_credential(&mut self, id: CredentialId, now: bool) -> Answer {
        let credential = self.state.authority.credentials.get_mut(&id).ok_or(Refusal::NotFound)?;
        credential.revoked = true;
        let what = credential.name.as_str().into();
        self.emit(EventKind::Changed { what, how: "credential revoked" });
        let numbers: BTreeSet<IdentityNumber> = (self.authorities.numbers.iter())
            .filter(|(identity, _)| identity.credential() == Some(id))
            .map(|(_, number)| *number)
            .collect();
        if self.state.authority.enforced && !numbers.is_empty() {
            let concerned = |(_, session): &(SessionNumber, &Session)| numbers.contains(&session.identity);
            let sessions: Vec<_> =
                self.state.sessions.iter().filter(concerned).map(|(number, _)| number).collect();
            for session in sessions {
                self.end_rights(session, None, now, DenialReason::Revoked);
            }
        }
        Ok(Done::Nothing)
    }

    pub(super) fn put_policy(&mut self, put: PutPolicy) -> Answer {
        let PutPolicy { name, policy, now } = put;
        if policy.who.is_empty() || policy.on.is_empty() || policy.may.is_empty() {
            return Err(Refusal::Invalid("a policy says for whom it is, on what, and what they may do"));
        }
        if policy.who.len() > POLICY_PARTS_MAX || policy.on.len() > POLICY_PARTS_MAX {
            return Err(Self::limit("policy_parts_max", POLICY_PARTS_MAX as u64));
        }
        let policies = &mut self.state.authority.policies;
        if !policies.contains_key(&name) && policies.len() >= POLICIES_MAX {
            return Err(Self::limit("policies_max", POLICIES_MAX as u64));
        }
        if policies.get(&name).is_some_and(|old| **old == policy) {
            return Ok(Done::Nothing);
        }
        let old = policies.insert(name.clone(), Arc::new(policy));
        self.emit(EventKind::Changed { what: name.as_str().into(), how: "policy set" });
        self.policies_changed(old.as_deref(), now);
        Ok(Done::Nothing)
    }

    pub(super) fn remove_policy(&mut self, name: &PolicyName, now: bool) -> Answer {
        let old = self.state.authority.policies.remove(name).ok_or(Refusal::NotFound)?;
        self.emit(EventKind::Changed { what: name.as_str().into(), how: "policy removed" });
        self.policies_changed(Some(&old), now);
        Ok(Done::Nothing)
    }

    pub(super) fn set_enforced(&mut self, enforced: bool) -> Answer {
        if self.state.authority.enforced == enforced {
            return Ok(Done::Nothing);
        }
        let keeps = self.judge(&self.caller, Verb::Grant, EVERYTHING).is_allowed();
        if enforced && !keeps {
            return Err(Refusal::Invalid(
                "nobody could change a policy afterwards: give yourself `grant` on `*` first, or use the root",
            ));
        }
        self.state.authority.enforced = enforced;
        let how = if enforced { "policies enforced" } else { "policies no longer enforced" };
        self.emit(EventKind::Changed { what: "cluster".into(), how });
        self.end_unallowed(&[Prefix::everything()], false);
        Ok(Done::Nothing)
    }

    fn policies_changed(&mut self, old: Option<&Policy>, now: bool) {
        self.index_policies();
        if let Some(old) = old {
            self.end_unallowed(&old.on, now);
        }
    }

    /// Takes away what no policy allows any more under these prefixes: leases by notice or at once, places in queues at
    /// once.
    fn end_unallowed(&mut self, under: &[Prefix], now: bool) {
        if !self.state.authority.enforced {
            return;
        }
        let mut concerned: BTreeSet<(SessionNumber, ResourceNumber)> = BTreeSet::new();
        for number in self.resources_under(under) {
            let resource = self.resource(number);
            let queue = resource.more.iter().flat_map(|more| &more.queue);
            let waiting = queue.map(|place| self.waiter(place.waiter).session);
            let on = resource.name.as_str().as_bytes();
            let sessions = resource.holds.iter().map(|hold| hold.session).chain(waiting);
            let unallowed = sessions.filter(|session| !self.holds_by_right(*session, on));
            concerned.extend(unallowed.map(|session| (session, number)));
        }
        for (session, number) in concerned {
            self.end_rights(session, Some(number), now, DenialReason::NoPolicy);
        }
    }

    /// Ends what a session holds and waits for, by notice or at once: at one resource, or everywhere.
    fn end_rights(
        &mut self,
        session: SessionNumber,
        at: Option<ResourceNumber>,
        now: bool,
        why: DenialReason,
    ) {
        let Some(record) = self.state.sessions.get(session) else { return };
        let words = match why {
            DenialReason::Revoked => "its credential was revoked",
            _ => "no policy allows it any more",
        };
        let waits_there =
            |waiter: &WaiterNumber| at.is_none_or(|number| self.waiter(*waiter).resources.contains(&number));
        let waiters: Vec<WaiterNumber> =
            record.more.iter().flat_map(|more| &more.waiters).copied().filter(waits_there).collect();
        let leases: Vec<ResourceNumber> =
            record.leases.iter().copied().filter(|lease| at.is_none_or(|number| number == *lease)).collect();
        for waiter in waiters {
            let first = self.waiter(waiter).resources[0];
            let name = self.resource(first).name.clone();
            let identity = self.opener(session).unwrap_or(&Identity::Anyone);
            let denied = self.denied_to(identity, Verb::Hold, name.as_str().as_bytes(), why);
            let number = self.waiter(waiter).number;
            let answer = Err(denied);
            self.remember_if_awaited(session, number, &answer);
            self.leave_queue(waiter, EndReason::Revoked, answer);
        }
        for lease in leases {
            // What has ended without being cleared away needs no notice.
            self.settle(lease);
            if self.resource(lease).hold_of(session).is_some() {
                self.revoke_lease(lease, session, now, words.into());
            }
        }
        self.end_if_implicit_and_idle(session, EndReason::Revoked);
    }

    fn resources_under(&self, under: &[Prefix]) -> BTreeSet<ResourceNumber> {
        let mut found = BTreeSet::new();
        for prefix in under {
            if *prefix == Prefix::everything() {
                found.extend(self.names.values());
                continue;
            }
            found.extend(self.names.get(prefix.as_str()));
            let start = alloc::format!("{}/", prefix.as_str());
            let range = self.names.range::<str, _>((Bound::Included(&*start), Bound::Unbounded));
            let under = range.take_while(|(name, _)| name.as_str().starts_with(&start));
            found.extend(under.map(|(_, number)| *number));
        }
        found
    }
}

// Keeping count.
impl Machine {
    pub(super) fn index_authority(&mut self) -> Result<(), Contradiction> {
        check(&self.state)?;
        let (mut sessions, mut named_sessions) = (BTreeMap::<IdentityNumber, u32>::new(), 0);
        for (_, session) in self.state.sessions.iter() {
            if session.identity != IdentityNumber::ANYONE {
                *sessions.entry(session.identity).or_default() += 1;
                named_sessions += 1;
            }
        }
        let identities = &self.state.authority.identities;
        let all_named = identities.keys().all(|number| sessions.contains_key(number));
        soundness::check(all_named, "an identity has no session")?;
        let numbers = identities.iter().map(|(number, identity)| (identity.clone(), *number)).collect();
        self.authorities = Authorities { numbers, sessions, named_sessions, ..Authorities::default() };
        soundness::check(
            self.authorities.numbers.len() == identities.len(),
            "an identity stands there twice",
        )?;
        self.index_policies();
        Ok(())
    }

    /// Makes the index of the policies again, and counts again what they limit.
    pub(super) fn index_policies(&mut self) {
        let set = PolicySet::new(&self.state.authority.policies);
        let counting: Vec<u32> = set
            .rules()
            .filter(|(_, _, policy)| policy.limits.counts())
            .map(|(number, _, _)| number)
            .collect();
        self.authorities.policies = set;
        self.authorities.counting = !counting.is_empty();
        self.authorities.used.clear();
        self.authorities.stored.clear();
        let mut prefixes: Vec<Prefix> = Vec::new();
        for number in &counting {
            let policy = self.authorities.policies.rule(*number).1;
            prefixes.extend(policy.on.iter().cloned());
        }
        for number in self.resources_under(&prefixes) {
            let resource = self.resource(number);
            let name = resource.name.clone();
            let holders: Vec<SessionNumber> = resource.holds.iter().map(|hold| hold.session).collect();
            let queue = resource.more.iter().flat_map(|more| &more.queue);
            let waiting: Vec<SessionNumber> = queue.map(|place| self.waiter(place.waiter).session).collect();
            holders.into_iter().for_each(|session| self.count_lease(&name, session, Moves::Up));
            waiting.into_iter().for_each(|session| self.count_waiter(&name, session, Moves::Up));
        }
        if self.authorities.counting {
            let registers = self.state.registers.iter().filter_map(|(_, register)| {
                Some((register.key.clone(), register.content.as_ref()?.value.len() as u64))
            });
            for (key, bytes) in registers.collect::<Vec<_>>() {
                self.count_register(&key, Moves::Up, bytes);
            }
        }
    }

    /// The number of the caller, for a session that it opens.
    pub(super) fn number_of_caller(&mut self) -> IdentityNumber {
        if self.caller == Identity::Anyone || self.state.format < FormatVersion::V2 {
            return IdentityNumber::ANYONE;
        }
        let number = match self.authorities.numbers.get(&self.caller) {
            Some(number) => *number,
            None => {
                let identities = &mut self.state.authority.identities;
                // The lowest that is free, so that numbers never run out.
                let mut free = 1..;
                let taken = identities.keys().zip(&mut free).take_while(|(number, free)| number.0 == *free);
                let number = IdentityNumber(1 + taken.count() as u32);
                identities.insert(number, self.caller.clone());
                self.authorities.numbers.insert(self.caller.clone(), number);
                number
            }
        };
        *self.authorities.sessions.entry(number).or_default() += 1;
        self.authorities.named_sessions += 1;
        number
    }

    /// A session of this identity has ended.
    pub(super) fn forget_identity(&mut self, number: IdentityNumber) -> Option<IdentityName> {
        if number == IdentityNumber::ANYONE {
            return None;
        }
        let name = self.state.authority.identities.get(&number)?.name().cloned();
        self.authorities.named_sessions -= 1;
        let count = self.authorities.sessions.get_mut(&number).expect("counted when it was opened");
        *count -= 1;
        if *count == 0 {
            self.authorities.sessions.remove(&number);
            if let Some(identity) = self.state.authority.identities.remove(&number) {
                self.authorities.numbers.remove(&identity);
            }
        }
        name
    }

    /// The name of whoever opened a session, for people.
    pub(super) fn opener_name(&self, session: SessionNumber) -> Option<IdentityName> {
        // Nearly always nobody has said who they are.
        if self.state.authority.identities.is_empty() {
            return None;
        }
        self.opener(session)?.name().cloned()
    }

    /// The policies that count what this session has at this name.
    fn counted_by(&self, name: &ResourceName, session: SessionNumber) -> (Vec<u32>, Identity) {
        let identity = self.opener(session).unwrap_or(&Identity::Anyone);
        let set = &self.authorities.policies;
        let counts = |number: &u32| {
            let policy = set.rule(*number).1;
            policy.limits.counts() && policy.may.contains(Verb::Hold)
        };
        let mut numbers: Vec<u32> = set.covering(identity, name.as_str().as_bytes()).filter(counts).collect();
        numbers.sort_unstable();
        numbers.dedup();
        (numbers, identity.without_credential())
    }

    pub(super) fn count_lease(&mut self, name: &ResourceName, session: SessionNumber, moves: Moves) {
        if self.authorities.counting {
            self.count_used(name, session, |used| moves.add(&mut used.leases, 1));
        }
    }

    pub(super) fn counts_quotas(&self) -> bool {
        self.authorities.counting
    }

    pub(super) fn count_waiter(&mut self, name: &ResourceName, session: SessionNumber, moves: Moves) {
        if self.authorities.counting {
            self.count_used(name, session, |used| moves.add(&mut used.waiters, 1));
        }
    }

    fn count_used(&mut self, name: &ResourceName, session: SessionNumber, change: impl Fn(&mut Used)) {
        let (numbers, identity) = self.counted_by(name, session);
        for number in numbers {
            let key = (number, identity.clone());
            let used = self.authorities.used.entry(key.clone()).or_default();
            change(used);
            if *used == Used::default() {
                self.authorities.used.remove(&key);
            }
        }
    }

    pub(super) fn count_register(&mut self, key: &RegisterKey, moves: Moves, bytes: u64) {
        if !self.authorities.counting {
            return;
        }
        let set = &self.authorities.policies;
        let storing = |(_, _, policy): &(u32, &PolicyName, &Policy)| {
            let limited = policy.limits.registers.is_some() || policy.limits.bytes.is_some();
            limited && policy.on.iter().any(|prefix| prefix.covers(key.as_bytes()))
        };
        let numbers: Vec<u32> = set.rules().filter(storing).map(|(number, _, _)| number).collect();
        for number in numbers {
            let stored = self.authorities.stored.entry(number).or_default();
            moves.add(&mut stored.registers, 1);
            moves.add(&mut stored.bytes, bytes);
            if *stored == Stored::default() {
                self.authorities.stored.remove(&number);
            }
        }
    }

    /// The counts are what counting again gives.
    pub(crate) fn assert_counts(&self) {
        if !self.authorities.counting {
            return;
        }
        let mut again = self.clone();
        again.index_policies();
        assert_eq!(again.authorities.used, self.authorities.used, "quotas count what there is");
        assert_eq!(again.authorities.stored, self.authorities.stored, "quotas count what there is");
    }
}

/// What a state from outside says about who may do what.
fn check(state: &State) -> soundness::Sound {
    let authority = &state.authority;
    let fits = state.format >= FormatVersion::V2 || *authority == Default::default();
    soundness::check(fits, "it has policies before there were any")?;
    soundness::check(authority.policies.len() <= POLICIES_MAX, "it has too many policies")?;
    soundness::check(authority.credentials.len() <= CREDENTIALS_MAX, "it has too many credentials")?;
    let named = |identity: &Identity| matches!(identity, Identity::Named { .. } | Identity::Operator);
    soundness::check(authority.identities.values().all(named), "a session was opened by nobody")?;
    let zero = authority.identities.contains_key(&IdentityNumber::ANYONE);
    soundness::check(!zero, "an identity has the number of anyone")?;
    let known = |number: IdentityNumber| {
        number == IdentityNumber::ANYONE || authority.identities.contains_key(&number)
    };
    let all = state.sessions.iter().all(|(_, session)| known(session.identity));
    soundness::check(all, "a session was opened by an identity that is not there")
}
