//! What the service knows of a resource's fences: which there are, which token each has installed, what
//! each has refused. Evidence for people; the fences themselves decide (`fence.rs`).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Bound;

use super::Machine;
use super::state::{Hold, Resource, ResourceNumber, SigningKey};
use crate::answer::{Answer, Done, Refusal};
use crate::event::EventKind;
use crate::limits::REPORT_EVERY;
use crate::names::{FenceName, ResourceName, Scope};
use crate::numbers::{SessionNumber, Slot, Token};
use crate::time::ClusterTime;

/// The resources that have fences, in the order of their names, so that a page of them costs what it shows.
/// Derived from the state.
#[derive(Clone, Debug, Default)]
pub(super) struct Fenced {
    names: BTreeMap<ResourceName, ResourceNumber>,
    fences: usize,
}

impl Fenced {
    /// A resource that had so many fences now has another number of them.
    pub fn file(&mut self, name: &ResourceName, number: ResourceNumber, had: usize, has: usize) {
        self.fences = self.fences + has - had;
        if has == 0 {
            self.names.remove(name);
        } else if had == 0 {
            self.names.insert(name.clone(), number);
        }
    }

    /// The resources from this name on, in order.
    pub fn after(&self, start: Bound<&str>) -> impl Iterator<Item = (&ResourceName, ResourceNumber)> {
        self.names.range::<str, _>((start, Bound::Unbounded)).map(|(name, number)| (name, *number))
    }

    /// How many fences there are in all.
    pub fn fences(&self) -> usize {
        self.fences
    }
}

impl Machine {
    /// The live session whose grant of this scope has this token and may write, or why there is none.
    pub(super) fn writer(&self, scope: &Scope, token: Token) -> Result<SessionNumber, Refusal> {
        let unknown = Refusal::UnknownToken { presented: token };
        let Some(number) = self.names.get(&scope.resource) else { return Err(unknown) };
        let resource = self.resource(*number);
        if let Some(hold) = resource.holds.iter().find(|hold| hold.token == token) {
            if !hold.mode.writes() || hold.slot != scope.slot {
                return Err(unknown);
            }
            let notice_passed = hold.notice().is_some_and(|notice| notice.ends_at <= self.state.time);
            return if self.is_live(hold.session) && !notice_passed {
                Ok(hold.session)
            } else {
                Err(Refusal::LeaseEnded { presented: token })
            };
        }
        match self.newest_token(scope) {
            Some(seen) if token < seen => Err(Refusal::StaleToken { presented: token, seen }),
            Some(seen) if token == seen => Err(Refusal::LeaseEnded { presented: token }),
            _ => Err(unknown),
        }
    }

    /// The newest token of a scope: what its fences should have installed. `None` if it was never granted.
    pub fn newest_token(&self, scope: &Scope) -> Option<Token> {
        let resource = self.resource(*self.names.get(&scope.resource)?);
        match scope.slot {
            None => Token::try_from(resource.last_token).ok(),
            Some(slot) => resource.more.as_ref()?.slot_tokens.get(&slot).copied(),
        }
    }

    /// Refuses when these fences do not fit into the resource's set, beside those that waiters will bring.
    pub(super) fn room_for_fences(&self, resource: &Resource, fences: &[FenceName]) -> Result<(), Refusal> {
        let known = resource.more.as_ref().map(|more| &more.fences);
        if fences.iter().all(|fence| known.is_some_and(|known| known.contains_key(fence))) {
            return Ok(());
        }
        let mut all: BTreeSet<&FenceName> = known.into_iter().flat_map(|known| known.keys()).collect();
        all.extend(fences);
        for place in resource.more.iter().flat_map(|more| &more.queue) {
            all.extend(&self.waiter(place.waiter).fences);
        }
        let fences_max = self.limits().fences_per_resource_max;
        if all.len() > fences_max as usize {
            return Err(Self::limit("fences_per_resource_max", fences_max));
        }
        Ok(())
    }

    /// Adds fences to a resource's set: acquires add, only an administrator removes.
    pub(super) fn add_fences(&mut self, number: ResourceNumber, fences: &[FenceName]) {
        if !fences.is_empty() {
            let known = &mut self.resource_mut(number).more_mut().fences;
            for fence in fences {
                known.entry(fence.clone()).or_default();
            }
        }
    }

    /// The names of all fences of a resource.
    pub(super) fn fence_set(&self, number: ResourceNumber) -> Vec<FenceName> {
        self.resource(number).more.iter().flat_map(|more| more.fences.keys().cloned()).collect()
    }

    /// Whether every fence of the resource has installed this lease's token.
    pub(super) fn is_armed(&self, number: ResourceNumber, hold: &Hold) -> bool {
        let fences = self.resource(number).more.as_ref().map(|more| &more.fences);
        fences.is_some_and(|fences| {
            !fences.is_empty()
                && fences.values().all(|fence| fence.armed.get(&hold.slot) == Some(&hold.token))
        })
    }

    pub(super) fn arm(&mut self, scope: Scope, fence: FenceName, token: Token) -> Answer {
        self.settled(&scope.resource).ok_or(Refusal::NotFound)?;
        let holder = self.writer(&scope, token)?;
        self.check_holder(holder, &scope)?;
        let number = self.names[&scope.resource];
        self.room_for_fences(self.resource(number), core::slice::from_ref(&fence))?;
        self.room_to_pin([&scope.resource])?;
        let record = self.resource_mut(number).more_mut().fences.entry(fence.clone()).or_default();
        if record.armed.insert(scope.slot, token) != Some(token) {
            self.emit(EventKind::Armed { scope, fence, token });
        }
        Ok(Done::Nothing)
    }

    pub(super) fn fence_refused(
        &mut self,
        scope: Scope,
        fence: &FenceName,
        presented: Token,
        seen: Token,
        count: u32,
    ) -> Answer {
        let number = self.settled(&scope.resource).ok_or(Refusal::NotFound)?;
        self.check_reporter(&scope, [presented, seen])?;
        let (time, wall) = (self.state.time, self.state.wall);
        let record = self.resource_mut(number).more_mut().fences.get_mut(fence).ok_or(Refusal::NotFound)?;
        record.refused += u64::from(count);
        record.refused_wall = wall;
        record.unreported += u64::from(count);
        // What is not reported now is reported with the next: every refusal is counted once, in the record and in an event.
        let due = may_report(record.reported_at, time);
        let unreported = if due { core::mem::take(&mut record.unreported) } else { 0 };
        if due {
            record.reported_at = Some(time);
        }
        self.state.totals.refused += u64::from(count);
        if due {
            let count = u32::try_from(unreported).unwrap_or(u32::MAX);
            self.emit(EventKind::Refused { scope, fence: fence.clone(), presented, seen, count });
        }
        Ok(Done::Nothing)
    }

    pub(super) fn remove_fence(&mut self, resource: &ResourceName, fence: &FenceName) -> Answer {
        let number = self.settled(resource).ok_or(Refusal::NotFound)?;
        self.resource_mut(number).more_mut().fences.remove(fence).ok_or(Refusal::NotFound)?;
        self.emit(EventKind::Changed { what: resource.as_str().into(), how: "fence removed" });
        Ok(Done::Nothing)
    }

    /// Takes a token without a holder on a free resource, so that fences can be raised above every token in the field.
    pub(super) fn barrier(&mut self, name: &ResourceName) -> Answer {
        if let Some(number) = self.settled(name)
            && !self.resource(number).holds.is_empty()
        {
            return Err(Refusal::InUse { resource: name.clone() });
        }
        self.tokens_left(1)?;
        let number = self.named(name);
        let slots: Vec<Option<Slot>> = self
            .resource(number)
            .more
            .iter()
            .flat_map(|more| more.slot_tokens.keys().copied().map(Some))
            .collect();
        Ok(Done::BarrierTaken { token: self.take_token_for_nobody(number, &slots) })
    }

    pub(super) fn publish_key(&mut self, node: u64, kid: Arc<str>, key: [u8; 32]) -> Answer {
        let keys_max = self.limits().keys_max;
        if !self.state.keys.contains_key(&kid) && self.state.keys.len() >= keys_max as usize {
            return Err(Self::limit("keys_max", keys_max));
        }
        self.state.keys.insert(kid.clone(), SigningKey { node, key });
        self.emit(EventKind::Changed { what: kid, how: "signing key published" });
        Ok(Done::Nothing)
    }

    pub(super) fn withdraw_key(&mut self, kid: &Arc<str>) -> Answer {
        self.state.keys.remove(kid).ok_or(Refusal::NotFound)?;
        self.emit(EventKind::Changed { what: kid.clone(), how: "signing key withdrawn" });
        Ok(Done::Nothing)
    }
}

/// Whether watchers may be notified again, `reported_at` being when they last were.
pub(super) fn may_report(reported_at: Option<ClusterTime>, time: ClusterTime) -> bool {
    reported_at.is_none_or(|reported_at| time.since(reported_at) >= REPORT_EVERY)
}
