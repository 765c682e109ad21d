//! Taking over what a backup remembers, into a cluster that is still empty; and what a backup leaves out.
//!
//! A backup is older than the world: tokens were issued after it, and their holders may still be writing. So
//! a restore gets a floor above every token ever seen and issues only above it; it ends every session; and
//! it grants nothing until the longest TTL has passed, unless somebody vouches that all holders are stopped.
//!
//! Sessions are not in a backup: their secrets would let whoever reads the file act for live holders. What
//! belongs to them goes with them: leases are remembered as ended, waiters and ephemeral registers are left
//! out. Backups of format version 1 have sessions; they are left out when such a backup is read.
//!
//! Here is the restore in one command, which only logs of format version 1 contain. In pieces: `staging.rs`.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::history::remember;
use super::leases::Ending;
use super::state::{Authority, BackupBase, RegisterNumber, RegisterRecord, Resource, ResourceNumber, State};
use super::{Contradiction, Machine};
use crate::answer::{Answer, Done, Refusal};
use crate::event::{EndReason, EventKind};
use crate::names::{HolderName, IdentityName};
use crate::numbers::{Revision, SessionNumber, Token};
use crate::time::ClusterTime;
use crate::version::FormatVersion;

/// Why a backup is refused that a newer cluster wrote.
pub(super) const NEWER_BACKUP: Refusal = Refusal::Invalid(
    "the backup has a newer format version than this cluster has agreed on; run `tenure cluster upgrade` first",
);

impl Machine {
    /// Whether anybody has used this cluster. Then nothing is restored into it: what it issued must not be
    /// forgotten.
    pub(super) fn is_used(&self) -> bool {
        self.state.last_token > 0 || self.state.sessions_opened > 0 || self.state.registers_named > 0
    }

    pub(super) fn restore(&mut self, backup: State, floor: Token, holders_stopped: bool) -> Answer {
        if self.is_used() {
            return Err(Refusal::NotEmpty);
        }
        if backup.format > self.state.format {
            return Err(NEWER_BACKUP);
        }
        let issued = backup
            .last_token
            .max(backup.resources.iter().map(|(_, r)| r.last_token).max().unwrap_or_default());
        if floor.get() <= issued {
            return Err(Refusal::FloorTooLow { floor, issued });
        }
        // What is in the backup must be sound before anything of ours is given up.
        let sound = Machine::from_state(backup).and_then(|before| before.state.without_sessions());
        let Ok(mut state) = sound else {
            return Err(Refusal::Invalid("the backup contradicts itself; take another one"));
        };
        state.format = self.state.format;
        state.settings.limits.raise(state.format);
        state.settings.cluster = self.state.settings.cluster;
        state.entries = self.state.entries;
        state.wall = self.state.wall;
        state.authority = core::mem::take(&mut self.state.authority);
        // No session exists on either side, so no deadline is cut short by time that jumps.
        state.time = state.time.max(self.state.time);
        state.revision = Revision::new(state.revision.get().max(self.state.revision.get()));
        state.last_token = floor.get();
        let longest = state.settings.limits.ttl_max;
        state.grants_from = if holders_stopped { ClusterTime::ZERO } else { state.time.plus(longest) };
        let fresh = self.events.take_fresh();
        *self = Machine::from_state(state).expect("a sound state without sessions is sound");
        fresh.into_iter().for_each(|event| self.events.push(event));
        self.emit(EventKind::Changed { what: "cluster".into(), how: "restored from a backup" });
        Ok(Done::Restored {
            token_floor: floor,
            grants_in: self.state.grants_from.remaining_at(self.state.time),
        })
    }
}

impl State {
    /// What a backup says about the cluster, without the records.
    pub fn backup_base(&self) -> BackupBase {
        BackupBase {
            format: self.format,
            limits: self.settings.limits.clone(),
            time: self.time,
            wall: self.wall,
            revision: self.revision,
            last_token: self.last_token,
            sessions_opened: self.sessions_opened,
            resources_named: self.resources_named,
            waiters_arrived: self.waiters_arrived,
            registers_named: self.registers_named,
            totals: self.totals,
            enforced: self.authority.enforced,
        }
    }

    /// Counts leases that were left out with their sessions.
    pub fn count_left_out(&mut self, ended: u64) {
        self.totals.count_expired(ended);
    }

    /// The state without sessions, as a backup holds it: leases ended and remembered as such, queues and
    /// ephemeral registers gone, and no keys, because a restored cluster has its own. Cheap: only what
    /// changes is copied.
    pub fn without_sessions(mut self) -> Result<State, Contradiction> {
        let base = self.backup_base();
        let concerned: Vec<ResourceNumber> = self
            .resources
            .iter()
            .filter(|(_, resource)| !resource.is_free_of_sessions())
            .map(|(number, _)| number)
            .collect();
        for number in concerned {
            let resource = self.resources.remove(number).expect("just listed");
            let sessions = &self.sessions;
            let identities = &self.authority.identities;
            let holder = |number| {
                let session = sessions.get(number)?;
                let identity = identities.get(&session.identity).and_then(|identity| identity.name());
                Some((session.holder.clone(), identity.cloned()))
            };
            let (resource, ended) = resource.without_sessions(&base, holder)?;
            self.resources.insert(number, resource);
            self.totals.count_expired(ended);
        }
        let ephemeral = |register: &RegisterRecord| {
            register.content.as_ref().is_some_and(|content| content.session.is_some())
        };
        let concerned: Vec<RegisterNumber> = self
            .registers
            .iter()
            .filter(|(_, register)| ephemeral(register))
            .map(|(number, _)| number)
            .collect();
        for number in concerned {
            let register = self.registers.remove(number).expect("just listed");
            if let Some(register) = register.without_sessions() {
                self.registers.insert(number, register);
            }
        }
        Ok(State {
            pulses: Default::default(),
            sessions: Default::default(),
            waiters: Default::default(),
            keys: BTreeMap::new(),
            staging: None,
            restored: None,
            authority: Authority { identities: BTreeMap::new(), ..self.authority },
            ..self
        })
    }
}

impl Resource {
    /// Whether it names no session and nothing that ends with one.
    pub fn is_free_of_sessions(&self) -> bool {
        self.holds.is_empty() && !self.has_queue() && self.delayed_until().is_none()
    }

    /// The resource without its holders and waiters, and how many leases ended by that. `holder` names the
    /// holder of a session.
    pub fn without_sessions(
        mut self,
        base: &BackupBase,
        holder: impl Fn(SessionNumber) -> Option<(HolderName, Option<IdentityName>)>,
    ) -> Result<(Resource, u64), Contradiction> {
        let holds = core::mem::take(&mut self.holds);
        for hold in &holds {
            let holder = holder(hold.session).ok_or(Contradiction("a lease belongs to no session"))?;
            let past = hold.ended(holder, &Ending::imposed(EndReason::Expired), base.time, base.wall);
            let count_max = base.limits.history_per_resource_max as usize;
            let bounded = base.format >= FormatVersion::V2;
            remember(&mut self.more_mut().history, &past, count_max, base.limits.history_age_max, bounded);
        }
        if let Some(more) = &mut self.more {
            more.queue.clear();
            more.delayed_until = None;
        }
        Ok((self, holds.len() as u64))
    }
}

impl RegisterRecord {
    /// The register without what ends with a session; `None` if nothing is left of it.
    pub fn without_sessions(mut self) -> Option<RegisterRecord> {
        let ephemeral = self.content.take_if(|content| content.session.is_some()).is_some();
        (!ephemeral || self.guard.is_some()).then_some(self)
    }
}
