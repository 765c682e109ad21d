//! A restore in pieces: begin, any number of pieces, commit.
//!
//! A backup may be as large as a cluster's whole state, and one entry of the log may not: renewals would wait
//! for it. So the records of a backup arrive in pieces, each small enough to be applied within some
//! milliseconds, and are staged: kept in the state, so that snapshots have them, and visible to nobody. The
//! indexes of the staged records are built with each piece. So the commit changes nothing but who points to
//! what, and takes no longer for a million records.
//!
//! Every step can be repeated. A begin with the same content finds how far the restore has come; a piece that
//! is staged already changes nothing; a commit whose answer was lost is answered again, until somebody uses
//! the cluster.
//!
//! What is staged is discarded by another begin, by a piece that contradicts the others, by a commit that
//! finds the cluster used or the backup incomplete, and when no piece has arrived for [`RESTORE_KEPT_FOR`].
//!
//! What a restore means for tokens, sessions and grants is decided in `restore.rs`, and is the same here.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use core::time::Duration;

use super::cow_map::CowMap;
use super::deadlines::{Deadlines, Due};
use super::events::EventLog;
use super::fences::Fenced;
use super::free_list::FreeList;
use super::history::OldestLeases;
use super::nonces::Nonces;
use super::restore::NEWER_BACKUP;
use super::soundness::{Sound, check, check_base, check_register_counters, check_resource_counters};
use super::state::{
    BackupBase, RegisterNumber, RegisterRecord, Resource, ResourceNumber, Restored, Staging, UsedNonce,
};
use super::{Contradiction, Machine, Margins};
use crate::answer::{Answer, Done, Refusal};
use crate::command::{BackupRecords, RestoreBegin, RestorePiece};
use crate::event::EventKind;
use crate::limits::{
    CREDENTIALS_MAX, Limits, POLICIES_MAX, RESTORE_KEPT_FOR, RESTORE_PIECE_RECORDS_MAX, USED_NONCES_MAX,
};
use crate::names::{RegisterKey, ResourceName};
use crate::numbers::{RestoreId, Revision};
use crate::time::ClusterTime;

/// How far a restore has come, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingView {
    /// How many pieces have arrived.
    pub pieces: u64,
    /// How many records they had.
    pub records: u64,
    /// How many bytes of the backup.
    pub bytes: u64,
    /// After this long it is discarded, unless another piece arrives.
    pub kept_for: Duration,
}

/// A staging that will not be restored. Freeing a million records takes most of a second, so the machine
/// hands it to its driver, who can do that elsewhere.
#[derive(Clone, Debug)]
#[expect(dead_code, reason = "held only to be dropped")]
pub struct DiscardedStaging(Box<Staging>, Option<Box<StagedIndexes>>);

/// The machine's indexes, of what is staged. Derived from the staging, made again with a snapshot.
#[derive(Clone, Debug, Default)]
pub(super) struct StagedIndexes {
    names: BTreeMap<ResourceName, ResourceNumber>,
    keys: BTreeMap<RegisterKey, RegisterNumber>,
    pinned: BTreeMap<ResourceNumber, usize>,
    fenced: Fenced,
    /// Free resources that may be forgotten: since when each is free, and the longest free first.
    free_since: CowMap<ResourceNumber, Revision>,
    free: BTreeSet<(Revision, ResourceNumber)>,
    oldest_leases: OldestLeases,
    nonces: Nonces,
    nonces_since: ClusterTime,
    value_bytes: u64,
    /// How many registers each resource still claims to guard that have not arrived.
    unbound: BTreeMap<ResourceNumber, u32>,
}

impl StagedIndexes {
    fn add_resource(&mut self, base: &BackupBase, number: ResourceNumber, resource: &Resource) -> Sound {
        check(number.0 <= base.resources_named, "a resource's number is above the last one given")?;
        check(resource.is_free_of_sessions(), "a resource is not free")?;
        check(resource.last_token <= base.last_token, "a resource has a token that was not issued")?;
        check_resource_counters(resource)?;
        let guards = resource.more.as_ref().map_or(0, |more| more.guards);
        if guards > 0 {
            self.unbound.insert(number, guards);
        }
        if let Some(more) = &resource.more {
            self.oldest_leases.add(number, &more.history);
        }
        if Machine::is_pinned(resource) {
            let fences = resource.more.as_ref().map_or(0, |more| more.fences.len());
            self.pinned.insert(number, fences);
            if fences > 0 {
                self.fenced.file(&resource.name, number, 0, fences);
            }
        } else {
            self.free_since.insert(number, resource.freed_at);
            self.free.insert((resource.freed_at, number));
        }
        check(self.names.insert(resource.name.clone(), number).is_none(), "two resources have one name")
    }

    fn add_register(
        &mut self,
        base: &BackupBase,
        number: RegisterNumber,
        register: &RegisterRecord,
    ) -> Sound {
        check(number.0 <= base.registers_named, "a register's number is above the last one given")?;
        check(register.content.is_some() || register.guard.is_some(), "a register is empty")?;
        check_register_counters(register)?;
        if let Some(content) = &register.content {
            check(content.session.is_none(), "a register belongs to a session")?;
            self.value_bytes = self.value_bytes.saturating_add(content.value.len() as u64);
        }
        if let Some(guard) = &register.guard {
            let resource = self.names.get(&guard.resource);
            let resource =
                *resource.ok_or(Contradiction("a register is guarded by a resource that is not there"))?;
            let miscounts = Contradiction("a resource miscounts the registers that it guards");
            let left = self.unbound.get_mut(&resource).ok_or(miscounts)?;
            *left -= 1;
            if *left == 0 {
                self.unbound.remove(&resource);
            }
        }
        check(self.keys.insert(register.key.clone(), number).is_none(), "two registers have one key")
    }

    fn add_nonce(&mut self, used: UsedNonce) -> Sound {
        check(used.since >= self.nonces_since, "its used nonces are out of order")?;
        self.nonces_since = used.since;
        check(self.nonces.add_used(used.nonce), "a nonce is used twice")
    }

    /// The resource that is forgotten because there are more free ones than are remembered.
    fn forget_oldest(&mut self, limits: &Limits) -> Option<ResourceNumber> {
        if self.free.len() <= limits.free_resources_max as usize {
            return None;
        }
        let (_, number) = self.free.pop_first()?;
        self.free_since.remove(number);
        Some(number)
    }

    /// Refuses more than the cluster may have afterwards.
    fn check_limits(&self, limits: &Limits) -> Result<(), Refusal> {
        let limit = |limit: &'static str, max: u64, count: u64| match count <= max {
            true => Ok(()),
            false => Err(Machine::limit(limit, max)),
        };
        limit("registers_max", limits.registers_max.into(), self.keys.len() as u64)?;
        limit("value_bytes_total_max", limits.value_bytes_total_max, self.value_bytes)?;
        limit("pinned_resources_max", limits.pinned_resources_max.into(), self.pinned.len() as u64)
    }
}

impl Staging {
    fn new(begin: RestoreBegin, kept_until: ClusterTime) -> Staging {
        Staging {
            begin,
            pieces: 0,
            records: 0,
            bytes: 0,
            ended: 0,
            checksum: 0,
            kept_until,
            resource_last: 0,
            register_last: 0,
            resources: CowMap::default(),
            registers: CowMap::default(),
            used_nonces: Default::default(),
            credentials: BTreeMap::new(),
            policies: BTreeMap::new(),
        }
    }

    /// Takes in the records of a piece, and indexes them.
    fn add(&mut self, indexes: &mut StagedIndexes, records: BackupRecords) -> Result<(), Refusal> {
        let contradicts =
            |_: Contradiction| Refusal::Invalid("the backup contradicts itself; take another one");
        let limits = &self.begin.base.limits;
        for (number, resource) in records.resources {
            check(number.0 > self.resource_last, "its record numbers do not rise").map_err(contradicts)?;
            indexes.add_resource(&self.begin.base, number, &resource).map_err(contradicts)?;
            self.resource_last = number.0;
            self.resources.insert(number, resource);
            if let Some(oldest) = indexes.forget_oldest(limits)
                && let Some(forgotten) = self.resources.remove(oldest)
            {
                indexes.names.remove(&forgotten.name);
                if let Some(more) = &forgotten.more {
                    indexes.oldest_leases.remove(oldest, &more.history);
                }
            }
        }
        for (number, register) in records.registers {
            check(number.0 > self.register_last, "its record numbers do not rise").map_err(contradicts)?;
            indexes.add_register(&self.begin.base, number, &register).map_err(contradicts)?;
            self.register_last = number.0;
            self.registers.insert(number, register);
        }
        for used in records.used_nonces {
            indexes.add_nonce(used).map_err(contradicts)?;
            self.used_nonces.push_back(used);
        }
        for (id, credential) in records.credentials {
            let rises = self.credentials.last_key_value().is_none_or(|(last, _)| *last < id);
            check(rises, "its credentials are out of order").map_err(contradicts)?;
            self.credentials.insert(id, credential);
        }
        for (name, policy) in records.policies {
            let rises = self.policies.last_key_value().is_none_or(|(last, _)| *last < name);
            check(rises, "its policies are out of order").map_err(contradicts)?;
            self.policies.insert(name, Arc::new(policy));
        }
        if self.credentials.len() > CREDENTIALS_MAX || self.policies.len() > POLICIES_MAX {
            return Err(contradicts(Contradiction("it has too many credentials or policies")));
        }
        if self.used_nonces.len() > USED_NONCES_MAX {
            return Err(contradicts(Contradiction("it has too many used nonces")));
        }
        indexes.check_limits(limits)
    }
}

impl Machine {
    pub(super) fn index_staging(&mut self) -> Result<(), Contradiction> {
        let Some(staging) = &self.state.staging else { return Ok(()) };
        let mut indexes = StagedIndexes::default();
        let base = &staging.begin.base;
        check_base(base)?;
        for (number, resource) in staging.resources.iter() {
            check(number.0 <= staging.resource_last, "a staged resource has not arrived")?;
            indexes.add_resource(base, number, resource)?;
        }
        for (number, register) in staging.registers.iter() {
            check(number.0 <= staging.register_last, "a staged register has not arrived")?;
            indexes.add_register(base, number, register)?;
        }
        staging.used_nonces.iter().try_for_each(|used| indexes.add_nonce(*used))?;
        self.deadlines.add(staging.kept_until, Due::Staging);
        self.staged = Some(Box::new(indexes));
        Ok(())
    }

    pub(super) fn restore_begin(&mut self, begin: RestoreBegin) -> Answer {
        if self.is_used() {
            return self
                .restored_before(begin.id)
                .filter(|_| self.restored_with(&begin))
                .ok_or(Refusal::NotEmpty);
        }
        if begin.base.format > self.state.format {
            return Err(NEWER_BACKUP);
        }
        if begin.token_floor.get() <= begin.base.last_token {
            return Err(Refusal::FloorTooLow { floor: begin.token_floor, issued: begin.base.last_token });
        }
        if check_base(&begin.base).is_err() {
            return Err(Refusal::Invalid("the backup contradicts itself; take another one"));
        }
        match &mut self.state.staging {
            Some(staging) if staging.begin == begin => {}
            _ => {
                self.discard_staging();
                let staging = Staging::new(begin, self.state.time);
                self.deadlines.add(staging.kept_until, Due::Staging);
                self.state.staging = Some(Box::new(staging));
                self.staged = Some(Box::default());
            }
        }
        self.keep_staging();
        Ok(self.staged_answer())
    }

    pub(super) fn restore_piece(&mut self, piece: RestorePiece) -> Answer {
        let (Some(staging), Some(indexes)) = (&mut self.state.staging, &mut self.staged) else {
            return Err(Refusal::NotStaged { next: None });
        };
        if staging.begin.id != piece.id {
            return Err(Refusal::NotStaged { next: None });
        }
        if piece.number > staging.pieces {
            return Err(Refusal::NotStaged { next: Some(staging.pieces) });
        }
        if piece.number == staging.pieces {
            if piece.records.len() > RESTORE_PIECE_RECORDS_MAX {
                return Err(Refusal::Invalid("a piece of a backup has too many records"));
            }
            staging.pieces += 1;
            staging.records += piece.records.len() as u64;
            staging.bytes = staging.bytes.saturating_add(piece.bytes);
            staging.ended = staging.ended.saturating_add(piece.ended);
            staging.checksum = piece.chain(staging.checksum);
            // A part of the piece may be in; what contradicts itself must not be completed by a better piece.
            if let Err(refusal) = staging.add(indexes, piece.records) {
                self.discard_staging();
                return Err(refusal);
            }
        }
        self.keep_staging();
        Ok(self.staged_answer())
    }

    pub(super) fn restore_commit(
        &mut self,
        id: RestoreId,
        pieces: u64,
        records: u64,
        checksum: u128,
    ) -> Answer {
        if self.is_used() {
            self.discard_staging();
            return self.restored_before(id).ok_or(Refusal::NotEmpty);
        }
        let Some(staging) = self.state.staging.as_ref().filter(|staging| staging.begin.id == id) else {
            return Err(Refusal::NotStaged { next: None });
        };
        if staging.pieces < pieces {
            return Err(Refusal::NotStaged { next: Some(staging.pieces) });
        }
        if (staging.pieces, staging.records, staging.checksum) != (pieces, records, checksum) {
            self.discard_staging();
            return Err(Refusal::Invalid(
                "what has arrived of the backup does not match its checksum; nothing was restored, begin again",
            ));
        }
        if self.staged.as_ref().is_none_or(|indexes| !indexes.unbound.is_empty()) {
            self.discard_staging();
            return Err(Refusal::Invalid("the backup contradicts itself; take another one"));
        }
        self.take_over_staging();
        self.emit(EventKind::Changed { what: "cluster".into(), how: "restored from a backup" });
        Ok(self.restored_before(id).expect("just restored"))
    }

    /// Makes the cluster what is staged. Whatever is large changes hands and is not touched.
    fn take_over_staging(&mut self) {
        let staging = *self.state.staging.take().expect("checked before");
        let indexes = *self.staged.take().expect("a staging has indexes");
        let Staging { begin, ended, resources, registers, used_nonces, credentials, policies, .. } = staging;
        let RestoreBegin { id, base, token_floor, holders_stopped } = begin;
        // Taken apart without `..`, so that a new index cannot be forgotten here. What belongs to sessions is
        // empty, and what this entry has brought about so far stays.
        let Machine {
            state,
            deadlines,
            indexed: _,
            names,
            keys,
            nonces,
            ttls: _,
            forgettable,
            pinned,
            fenced,
            oldest_leases,
            value_bytes,
            answer_bytes: _,
            lapsed_sessions: _,
            authorities: _,
            plain_sessions: _,
            staged: _,
            discarded: _,
            events,
            margins,
            caller: _,
            revision_raised,
            successions: _,
            resolved: _,
            freed,
            touched,
            changed_sessions: _,
        } = self;
        // What this cluster was given before the restore stays: whoever restores must not lock themselves out.
        let authority = &mut state.authority;
        authority.enforced |= base.enforced;
        for (id, credential) in credentials {
            if authority.credentials.len() < CREDENTIALS_MAX {
                authority.credentials.entry(id).or_insert(credential);
            }
        }
        for (name, policy) in policies {
            if authority.policies.len() < POLICIES_MAX {
                authority.policies.entry(name).or_insert(policy);
            }
        }
        state.settings.limits = base.limits;
        // An older backup has the limits of its version.
        state.settings.limits.raise(state.format);
        // No session exists on either side, so no deadline is cut short by time that jumps.
        state.time = base.time.max(state.time);
        state.revision = Revision::new(base.revision.get().max(state.revision.get()));
        state.last_token = token_floor.get();
        let longest = state.settings.limits.ttl_max;
        state.grants_from = if holders_stopped { ClusterTime::ZERO } else { state.time.plus(longest) };
        state.sessions_opened = base.sessions_opened;
        state.resources_named = base.resources_named;
        state.waiters_arrived = base.waiters_arrived;
        state.registers_named = base.registers_named;
        state.totals = base.totals;
        state.totals.count_expired(ended);
        state.resources = resources;
        state.registers = registers;
        state.used_nonces = used_nonces;
        state.keys.clear();
        state.restored = Some(Restored {
            id,
            token_floor,
            sessions_opened: state.sessions_opened,
            registers_named: state.registers_named,
        });

        *names = indexes.names;
        *keys = indexes.keys;
        *nonces = indexes.nonces;
        *pinned = indexes.pinned;
        *fenced = indexes.fenced;
        *oldest_leases = indexes.oldest_leases;
        *forgettable = FreeList::new(indexes.free_since, indexes.free);
        *value_bytes = indexes.value_bytes;
        *deadlines = Deadlines::default();
        if state.grants_from > ClusterTime::ZERO {
            deadlines.add(state.grants_from, Due::Grace);
        }
        *margins = Margins::default();
        touched.clear();
        freed.clear();
        // Watchers start again: what happened here before is not what the restored cluster remembers.
        let fresh = events.take_fresh();
        *events = EventLog::starting_after(state.revision);
        fresh.into_iter().for_each(|event| events.push(event));
        *revision_raised = false;
        self.index_policies();
    }

    /// The answer of a restore that was committed, as long as nobody has used the cluster since.
    fn restored_before(&self, id: RestoreId) -> Option<Done> {
        let state = &self.state;
        let restored = state.restored.filter(|restored| restored.id == id)?;
        let unused = state.last_token == restored.token_floor.get()
            && state.sessions_opened == restored.sessions_opened
            && state.registers_named == restored.registers_named;
        unused.then(|| Done::Restored { token_floor: restored.token_floor, grants_in: self.grants_in() })
    }

    fn restored_with(&self, begin: &RestoreBegin) -> bool {
        self.state.restored.is_some_and(|restored| restored.token_floor == begin.token_floor)
    }

    fn staged_answer(&self) -> Done {
        Done::Staged { pieces: self.state.staging.as_ref().map_or(0, |staging| staging.pieces) }
    }

    /// The time for which a staging is kept starts again.
    fn keep_staging(&mut self) {
        let Some(staging) = &mut self.state.staging else { return };
        self.deadlines.remove(staging.kept_until, Due::Staging);
        staging.kept_until = self.state.time.plus(RESTORE_KEPT_FOR);
        self.deadlines.add(staging.kept_until, Due::Staging);
    }

    fn discard_staging(&mut self) {
        let Some(staging) = self.state.staging.take() else { return };
        self.deadlines.remove(staging.kept_until, Due::Staging);
        self.discarded = Some(DiscardedStaging(staging, self.staged.take()));
    }

    /// Nobody has continued a restore for too long.
    pub(super) fn staging_due(&mut self) -> i64 {
        self.discard_staging();
        1
    }

    /// How far a restore has come that is not visible yet.
    pub fn staging(&self) -> Option<StagingView> {
        let staging = self.state.staging.as_ref()?;
        Some(StagingView {
            pieces: staging.pieces,
            records: staging.records,
            bytes: staging.bytes,
            kept_for: staging.kept_until.remaining_at(self.state.time),
        })
    }

    /// What was staged and will not be restored, to be dropped where that delays nobody.
    pub fn take_discarded(&mut self) -> Option<DiscardedStaging> {
        self.discarded.take()
    }
}
