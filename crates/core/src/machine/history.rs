//! What is remembered of the past, and what is forgotten: transitions by count and age, free resources
//! the longest free first.

use alloc::collections::BTreeSet;

use super::Machine;
use super::leases::Ending;
use super::state::{Hold, Resource, ResourceNumber, Transition};
use crate::answer::Refusal;
use crate::command::KindSetting;
use crate::names::{HolderName, ResourceName};

impl Machine {
    pub(super) fn record_transition(
        &mut self,
        number: ResourceNumber,
        hold: &Hold,
        holder: HolderName,
        ending: &Ending,
    ) {
        let (time, wall) = (self.state.time, self.state.wall);
        let count_max = self.limits().history_per_resource_max as usize;
        let age_max = self.limits().history_age_max;
        let history = &mut self.resource_mut(number).more_mut().history;
        // Age is judged only here, when something is written: history keeps no idle cluster awake.
        while history.front().is_some_and(|oldest| time.since(oldest.to) > age_max)
            || (history.len() >= count_max && !history.is_empty())
        {
            history.pop_front();
        }
        if count_max == 0 {
            return;
        }
        // Most have one past lease or as many as are remembered: from one on, room is doubled up to just that.
        if history.len() == history.capacity() {
            history.reserve_exact(history.len().clamp(1, count_max - history.len()));
        }
        history.push_back(Transition {
            token: hold.token,
            generation: hold.generation,
            session: hold.session,
            holder,
            mode: hold.mode,
            slot: hold.slot,
            from: hold.since,
            to: time,
            from_wall: hold.since_wall,
            to_wall: wall,
            why: ending.why,
            reason: ending.reason.clone(),
        });
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
        let is_new =
            |name: &&ResourceName| self.names.get(*name).is_none_or(|number| !self.pinned.contains(number));
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
        if pinned {
            self.pinned.insert(number);
        } else {
            self.pinned.remove(&number);
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
        }
    }
}
