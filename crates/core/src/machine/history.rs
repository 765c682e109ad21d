//! What is remembered of the past, and what is forgotten: past leases by count and age, and by bytes over all
//! resources; free resources the longest free first. Nothing here searches: what goes next is always known.

use alloc::collections::BTreeSet;
use core::time::Duration;

use super::Machine;
use super::leases::Ending;
use super::packed::Packed;
use super::packed_history::{PackedHistory, PackedLease};
use super::state::{Dropped, HistoryLimit, Hold, Resource, ResourceNumber, Transition};
use crate::answer::Refusal;
use crate::command::KindSetting;
use crate::limits::{HISTORY_DROPPED_PER_LEASE_MAX, HISTORY_LEASE_BYTES};
use crate::names::{HolderName, IdentityName, ResourceName};
use crate::numbers::Token;
use crate::time::{ClusterTime, WallTime};
use crate::version::FormatVersion;

/// The oldest past lease of every resource that has one, the oldest of all first, and how many bytes they
/// have together. Derived from the state, so that the byte bound finds what to drop without a search.
#[derive(Clone, Debug, Default)]
pub(super) struct OldestLeases {
    order: Packed<Oldest>,
    bytes: u64,
}

/// When the oldest past lease of a resource ended, its token, and the resource. Tokens are unique, so there
/// is one order.
type Oldest = (ClusterTime, Token, ResourceNumber);

impl OldestLeases {
    /// A resource that is not known yet has this history.
    pub fn add(&mut self, number: ResourceNumber, history: &PackedHistory) {
        self.bytes += history.records().map(|past| weight(&past)).sum::<u64>();
        self.moved(None, oldest(number, history));
    }

    /// A resource is forgotten, and its history with it.
    pub fn remove(&mut self, number: ResourceNumber, history: &PackedHistory) {
        self.bytes -= history.records().map(|past| weight(&past)).sum::<u64>();
        self.moved(oldest(number, history), None);
    }

    /// The oldest past lease of a resource is another one now.
    fn moved(&mut self, from: Option<Oldest>, to: Option<Oldest>) {
        if from == to {
            return;
        }
        if let Some(from) = from {
            assert!(self.order.remove(&from), "the oldest past lease of a resource is in the order");
        }
        if let Some(to) = to {
            assert!(self.order.insert(to), "a resource has one oldest past lease");
        }
    }
}

fn oldest(number: ResourceNumber, history: &PackedHistory) -> Option<Oldest> {
    history.first().map(|first| (first.to, first.token, number))
}

/// What a past lease counts for against the byte bound.
fn weight(past: &PackedLease<'_>) -> u64 {
    HISTORY_LEASE_BYTES + past.text_bytes as u64
}

/// The same before it is packed.
fn weight_of(past: &Transition) -> u64 {
    let reason = past.reason.as_ref().map_or(0, |reason| reason.len());
    let identity = past.identity.as_ref().map_or(0, |identity| identity.as_str().len());
    HISTORY_LEASE_BYTES + (past.holder.as_str().len() + reason + identity) as u64
}

/// Notes that a past lease was dropped, and by which limit.
fn dropped(known: Option<&Dropped>, past: &PackedLease<'_>, limit: HistoryLimit) -> Dropped {
    // Those who share a resource may end in another order than they came.
    let token = known.map_or(past.token, |known| known.token.max(past.token));
    Dropped { limit, token, to_wall: past.to_wall }
}

impl Machine {
    pub(super) fn record_transition(
        &mut self,
        number: ResourceNumber,
        hold: &Hold,
        who: (HolderName, Option<IdentityName>),
        ending: &Ending,
    ) {
        let (time, wall) = (self.state.time, self.state.wall);
        let count_max = self.limits().history_per_resource_max as usize;
        let age_max = self.limits().history_age_max;
        // Release 0.1.0 noted nothing of what it dropped, and had no bound over all resources.
        let bounded = self.state.format >= FormatVersion::V2;
        let past = hold.ended(who, ending, time, wall);
        let history = &mut self.resource_mut(number).more_mut().history;
        let Kept { freed, was_oldest, is_oldest } = remember(history, &past, count_max, age_max, bounded);
        let added = if count_max > 0 { weight_of(&past) } else { 0 };
        self.oldest_leases.bytes += added;
        self.oldest_leases.bytes -= freed;
        // Every lease weighs something: without a weight that was freed, the oldest is still the same.
        if freed > 0 || was_oldest.is_none() {
            let placed = |(to, token)| (to, token, number);
            self.oldest_leases.moved(was_oldest.map(placed), is_oldest.map(placed));
        }
        if bounded {
            self.drop_oldest_leases();
        }
    }

    /// Drops the oldest past leases of all resources until the byte bound is kept.
    fn drop_oldest_leases(&mut self) {
        let bytes_max = self.limits().history_bytes_total_max;
        for _ in 0..HISTORY_DROPPED_PER_LEASE_MAX {
            if self.oldest_leases.bytes <= bytes_max {
                return;
            }
            let Some((_, _, number)) = self.oldest_leases.order.pop_first() else { return };
            let resource = self.state.resources.get_mut(number).expect("what has a history exists");
            let history = &mut resource.more_mut().history;
            let first = history.first().expect("it is in the order of those that have one");
            let (bytes, note) = (first.bytes, dropped(history.dropped(), &first, HistoryLimit::Bytes));
            self.oldest_leases.bytes -= weight(&first);
            history.drop_first(bytes);
            history.set_dropped(Some(note));
            let is_oldest = oldest(number, history);
            self.oldest_leases.moved(None, is_oldest);
        }
    }

    /// Whether a resource must stay: a fence, a register or a slot somewhere is bound to what it is.
    pub(super) fn is_pinned(resource: &Resource) -> bool {
        let semaphore = matches!(resource.kind, Some(KindSetting::Semaphore(_)));
        semaphore
            || resource
                .more
                .as_ref()
                .is_some_and(|more| more.kind_set || more.guards > 0 || !more.fences.is_empty())
    }

    fn is_idle(resource: &Resource) -> bool {
        resource.holds.is_empty() && !resource.has_queue() && resource.delayed_until().is_none()
    }

    /// Refuses when these resources cannot be kept for ever; those that are kept already need no room.
    pub(super) fn room_to_pin<'a>(
        &self,
        names: impl IntoIterator<Item = &'a ResourceName>,
    ) -> Result<(), Refusal> {
        let is_new = |name: &&ResourceName| {
            self.names.get(*name).is_none_or(|number| !self.pinned.contains_key(number))
        };
        let new: BTreeSet<&ResourceName> = names.into_iter().filter(is_new).collect();
        let pinned_max = self.limits().pinned_resources_max;
        if !new.is_empty() && self.pinned.len() + new.len() > pinned_max as usize {
            return Err(Self::limit("pinned_resources_max", pinned_max));
        }
        Ok(())
    }

    /// Puts a resource where it belongs: among those that stay, those that may be forgotten, or neither.
    pub(super) fn file_resource(&mut self, number: ResourceNumber) {
        let Some(resource) = self.state.resources.get(number) else {
            return self.forgettable.take(number);
        };
        let pinned = Self::is_pinned(resource);
        let fences = resource.more.as_ref().map_or(0, |more| more.fences.len());
        let had = if pinned { self.pinned.insert(number, fences) } else { self.pinned.remove(&number) };
        // Names are compared only when the number of fences changes, which is hardly ever.
        let had = had.unwrap_or_default();
        if had != fences {
            self.fenced.file(&resource.name, number, had, fences);
        }
        if !pinned && Self::is_idle(resource) {
            self.forgettable.put(number, resource.freed_at);
        } else {
            self.forgettable.take(number);
        }
    }

    /// Forgets the free resources that are too many, the longest free first.
    pub(super) fn forget_oldest(&mut self) {
        while self.forgettable.len() > self.limits().free_resources_max as usize
            && let Some(number) = self.forgettable.take_oldest()
        {
            let resource = self.state.resources.remove(number).expect("what is filed exists");
            self.names.remove(&resource.name);
            if let Some(more) = &resource.more {
                self.oldest_leases.remove(number, &more.history);
            }
        }
    }
}

impl Hold {
    /// The past lease that this one becomes.
    pub(super) fn ended(
        &self,
        (holder, identity): (HolderName, Option<IdentityName>),
        ending: &Ending,
        time: ClusterTime,
        wall: WallTime,
    ) -> Transition {
        Transition {
            token: self.token,
            generation: self.generation,
            session: self.session,
            holder,
            mode: self.mode,
            slot: self.slot,
            from: self.since,
            to: time,
            from_wall: self.since_wall,
            to_wall: wall,
            why: ending.why,
            reason: ending.reason.clone(),
            identity,
        }
    }
}

/// What became of a history to which a lease was added.
pub(super) struct Kept {
    /// What those that were dropped counted for.
    freed: u64,
    /// When the oldest lease ended before that, and its token.
    was_oldest: Option<(ClusterTime, Token)>,
    /// The same after it.
    is_oldest: Option<(ClusterTime, Token)>,
}

/// Adds a lease that ends now to a history, which drops others by age and count; says what those counted for.
/// `bounded` since format version 2: then it is noted what was dropped.
pub(super) fn remember(
    history: &mut PackedHistory,
    past: &Transition,
    count_max: usize,
    age_max: Duration,
    bounded: bool,
) -> Kept {
    // A record is unpacked once: with most leases nothing is dropped, and only the oldest is looked at.
    let mut first = history.first();
    let end_of = |first: &PackedLease<'_>| (first.to, first.token);
    let mut kept = Kept { freed: 0, was_oldest: first.as_ref().map(end_of), is_oldest: None };
    // Age is judged only here, when something is written: history keeps no idle cluster awake.
    while let Some(oldest) = first {
        let limit = if past.to.since(oldest.to) > age_max {
            HistoryLimit::Age
        } else if history.len() >= count_max {
            HistoryLimit::Count
        } else {
            kept.is_oldest = Some(end_of(&oldest));
            break;
        };
        kept.freed += weight(&oldest);
        let (bytes, note) = (oldest.bytes, dropped(history.dropped(), &oldest, limit));
        history.drop_first(bytes);
        if bounded {
            history.set_dropped(Some(note));
        }
        first = history.first();
    }
    if count_max > 0 {
        history.push(past);
        kept.is_oldest = kept.is_oldest.or(Some((past.to, past.token)));
    } else if bounded {
        let note = Dropped { limit: HistoryLimit::Count, token: past.token, to_wall: past.to_wall };
        history.set_dropped(Some(note));
    }
    kept
}
