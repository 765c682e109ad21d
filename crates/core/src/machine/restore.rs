//! Taking over what a backup remembers, into a cluster that is still empty.
//!
//! A backup is older than the world: tokens were issued after it, and their holders may still be writing. So a
//! restore is told a floor above every token ever seen and issues only above it; it ends every session; and it
//! grants nothing until the longest TTL has passed, unless somebody vouches that all holders are stopped.

use alloc::vec::Vec;

use super::Machine;
use super::cow_map::CowMap;
use super::few::Few;
use super::leases::Ending;
use super::state::{Resource, State};
use crate::answer::{Answer, Done, Refusal};
use crate::event::{EndReason, EventKind};
use crate::numbers::{Revision, Token};
use crate::time::ClusterTime;

impl Machine {
    pub(super) fn restore(&mut self, backup: State, floor: Token, holders_stopped: bool) -> Answer {
        if self.state.last_token > 0 || self.state.sessions_opened > 0 || self.state.registers_named > 0 {
            return Err(Refusal::NotEmpty);
        }
        if backup.format > self.state.format {
            return Err(Refusal::Invalid(
                "the backup has a newer format version than this cluster has agreed on; run `tenure cluster upgrade` first",
            ));
        }
        let issued = backup
            .last_token
            .max(backup.resources.iter().map(|(_, r)| r.last_token).max().unwrap_or_default());
        if floor.get() <= issued {
            return Err(Refusal::FloorTooLow { floor, issued });
        }
        // What is in the backup must be sound before anything of ours is given up.
        let Ok(before) = Machine::from_state(backup) else {
            return Err(Refusal::Invalid("the backup contradicts itself; take another one"));
        };
        let mut state = before.released();
        state.format = self.state.format;
        state.settings.cluster = self.state.settings.cluster;
        state.entries = self.state.entries;
        state.wall = self.state.wall;
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

    /// The state without anybody in it: leases ended and remembered as such, queues and sessions gone.
    fn released(mut self) -> State {
        let holds: Vec<_> = self
            .state
            .resources
            .iter()
            .flat_map(|(number, resource)| resource.holds.iter().map(move |hold| (number, hold.clone())))
            .collect();
        for (number, hold) in holds {
            let holder = self.session(hold.session).holder.clone();
            self.record_transition(number, &hold, holder, &Ending::imposed(EndReason::Expired));
            // What was granted and has ended must add up: people are told the difference as leases held.
            self.count_end(EndReason::Expired);
        }
        let mut resources = CowMap::default();
        for (number, resource) in self.state.resources.iter() {
            let mut more = resource.more.clone();
            if let Some(more) = &mut more {
                more.queue.clear();
                more.delayed_until = None;
            }
            resources.insert(number, Resource { holds: Few::None, more, ..resource.clone() });
        }
        let mut registers = CowMap::default();
        for (number, register) in self.state.registers.iter() {
            let mut register = register.clone();
            register.content.take_if(|content| content.session.is_some());
            if register.content.is_some() || register.guard.is_some() {
                registers.insert(number, register);
            }
        }
        State {
            pulses: CowMap::default(),
            sessions: CowMap::default(),
            waiters: CowMap::default(),
            keys: Default::default(),
            resources,
            registers,
            ..self.state
        }
    }
}
