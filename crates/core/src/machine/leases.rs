//! Leases: what a resource and a hold on it are, how a grant is made and how a lease ends. Who may take one
//! is `taking.rs`, how it is given back or taken away `giving.rs`, how a session lives `sessions.rs`, how a
//! queue moves `waiters.rs`.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::authority::Moves;
use super::deadlines::Due;
use super::few::Few;
use super::state::{EndedLease, Hold, HoldMore, Notice, Resource, ResourceMore, ResourceNumber};
use super::{Contradiction, Machine, Succession};
use crate::answer::{Grant, Holding, Refusal};
use crate::command::{Mode, Policies};
use crate::event::{EndReason, EventKind};
use crate::names::{FenceName, ResourceName};
use crate::numbers::{Generation, Revision, SessionNumber, Slot, TransmissionId};
use crate::time::ClusterTime;

/// How a lease ends.
#[derive(Clone, Debug)]
pub(super) struct Ending {
    pub why: EndReason,
    /// The holder asked for it, so it needs no notification.
    pub asked: bool,
    /// The deadline that ended it, to say how late it was.
    pub due: Option<ClusterTime>,
    /// The whole session ends, so there is nobody to tell.
    pub session_ends: bool,
    pub reason: Option<Arc<str>>,
}

impl Ending {
    pub fn asked(why: EndReason) -> Ending {
        Ending { asked: true, ..Ending::imposed(why) }
    }

    pub fn imposed(why: EndReason) -> Ending {
        Ending { why, asked: false, due: None, session_ends: false, reason: None }
    }

    /// Whether the holder may still have been acting: what a lock-delay is for.
    fn is_unclean(&self) -> bool {
        !self.asked && !matches!(self.why, EndReason::Released | EndReason::Transferred)
    }
}

impl Hold {
    pub(super) fn notice(&self) -> Option<&Notice> {
        self.more.as_ref()?.notice.as_ref()
    }

    pub(super) fn policies(&self) -> Policies {
        self.more.as_ref().map_or_else(Policies::default, |more| more.policies)
    }

    /// When notice must be given so that the lease is not held too long.
    pub(super) fn notice_from(&self, ttl: Duration) -> Option<ClusterTime> {
        Some(self.since.plus(self.policies().max_hold?.saturating_sub(ttl)))
    }
}

impl Resource {
    pub(super) fn hold_of(&self, session: SessionNumber) -> Option<&Hold> {
        self.holds.iter().find(|hold| hold.session == session)
    }

    pub(super) fn hold_of_mut(&mut self, session: SessionNumber) -> Option<&mut Hold> {
        self.holds.iter_mut().find(|hold| hold.session == session)
    }

    pub(super) fn more_mut(&mut self) -> &mut ResourceMore {
        self.more.get_or_insert_default()
    }

    pub(super) fn has_queue(&self) -> bool {
        self.more.as_ref().is_some_and(|more| !more.queue.is_empty())
    }

    pub(super) fn delayed_until(&self) -> Option<ClusterTime> {
        self.more.as_ref()?.delayed_until
    }
}

impl Machine {
    pub(super) fn index_resources(&mut self) -> Result<(), Contradiction> {
        let resources: Vec<ResourceNumber> = self.state.resources.iter().map(|(number, _)| number).collect();
        for number in resources {
            let resource = self.state.resources.get(number).expect("just listed").clone();
            if number.0 > self.state.resources_named {
                return Err(Contradiction("a resource's number is above the last one given"));
            }
            if self.names.insert(resource.name.clone(), number).is_some() {
                return Err(Contradiction("two resources have one name"));
            }
            if let Some(until) = resource.delayed_until() {
                self.deadlines.add(until, Due::Delay(number));
            }
            if let Some(more) = &resource.more {
                self.oldest_leases.add(number, &more.history);
            }
            for hold in &resource.holds {
                let Some(pulse) = self.state.pulses.get(hold.session) else {
                    return Err(Contradiction("a lease belongs to no session"));
                };
                if let Some(notice) = hold.notice() {
                    self.deadlines.add(notice.ends_at, Due::Notice(number, hold.token));
                } else if let Some(at) = hold.notice_from(pulse.ttl.into()) {
                    self.deadlines.add(at, Due::Hold(number, hold.token));
                }
            }
            self.file_resource(number);
        }
        Ok(())
    }

    pub(super) fn resource(&self, number: ResourceNumber) -> &Resource {
        self.state.resources.get(number).expect("a resource that is named by a record exists")
    }

    pub(super) fn resource_mut(&mut self, number: ResourceNumber) -> &mut Resource {
        if self.touched.last() != Some(&number) {
            self.touched.push(number);
        }
        self.state.resources.get_mut(number).expect("a resource that is named by a record exists")
    }

    /// The resource of this name, brought up to date: what is due there ends before anything else happens to it.
    pub(super) fn settled(&mut self, name: &ResourceName) -> Option<ResourceNumber> {
        let number = *self.names.get(name)?;
        self.settle(number);
        Some(number)
    }

    /// The record of this name, made if there is none.
    pub(super) fn named(&mut self, name: &ResourceName) -> ResourceNumber {
        if let Some(number) = self.names.get(name) {
            return *number;
        }
        self.state.resources_named += 1;
        let number = ResourceNumber(self.state.resources_named);
        self.state.resources.insert(
            number,
            Resource {
                name: name.clone(),
                kind: None,
                generation: Generation::default(),
                last_token: 0,
                holds: Few::default(),
                freed_at: self.state.revision,
                more: None,
            },
        );
        self.names.insert(name.clone(), number);
        self.touched.push(number);
        number
    }

    /// Ends what is due at this resource and has not been cleared away yet, and serves its queue.
    pub(super) fn settle(&mut self, number: ResourceNumber) {
        // Nearly always nothing is due anywhere, and the records are what they look like.
        let mut settled = false;
        while self.clearing() {
            let time = self.state.time;
            let resource = self.resource(number);
            let due = resource.holds.iter().find_map(|hold| {
                let notice_due = hold.notice().is_some_and(|notice| notice.ends_at <= time);
                (notice_due || self.is_due(hold.session)).then_some((hold.session, hold.token, notice_due))
            });
            match due {
                Some((_, token, true)) => {
                    self.notice_due(number, token);
                }
                Some((session, _, false)) => self.clear_ended_session(session),
                None if resource.delayed_until().is_some_and(|until| until <= time) => {
                    self.delay_due(number);
                }
                None => {
                    // Whoever stands first may have ended, too, and keep those behind from going.
                    if self.first_queued_has_ended(number) {
                        self.freed.push(number);
                        settled = true;
                    }
                    break;
                }
            }
            settled = true;
        }
        // Only if something did end here: what the command itself has freed so far is served when it has
        // ended all that it ends, and the same on every replica, whatever its index looks like.
        if settled {
            self.serve_freed();
        }
    }

    /// Whether the resource could be granted in this mode now, leaving aside who waits in the queue.
    pub(super) fn admits(&self, resource: &Resource, mode: Mode) -> bool {
        let rests = resource.delayed_until().is_some_and(|until| until > self.state.time);
        let restoring = self.state.grants_from > self.state.time;
        !rests && !restoring && self.has_room(resource, mode)
    }

    /// Whether those who hold the resource leave room for a further holder in this mode.
    pub(super) fn has_room(&self, resource: &Resource, mode: Mode) -> bool {
        self.has_room_beside(resource.holds.len(), resource.holds.first(), mode)
    }

    /// The same, if the sessions that have lapsed held nothing.
    pub(super) fn has_room_without_lapsed(&self, resource: &Resource, mode: Mode) -> bool {
        if self.lapsed_sessions == 0 {
            return self.has_room(resource, mode);
        }
        let mut others = resource.holds.iter().filter(|hold| !self.pulse(hold.session).lapsed);
        let count = others.clone().count();
        self.has_room_beside(count, others.next(), mode)
    }

    fn has_room_beside(&self, holders: usize, first: Option<&Hold>, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => holders == 0,
            // An exclusive holder is alone, so the first holder's mode is everybody's.
            Mode::Shared => {
                first.is_none_or(|hold| hold.mode == Mode::Shared)
                    && holders < self.limits().sharers_max as usize
            }
            Mode::Slots(slots) => holders < slots as usize,
        }
    }

    pub(super) fn held_refusal(&self, number: ResourceNumber, waited: Duration) -> Refusal {
        let resource = self.resource(number);
        // One that has lapsed is named only if there is no other: it would not have been in the way alone.
        let first = self.live_holds(resource).next();
        let live = self.live_holds(resource).find(|hold| !self.pulse(hold.session).lapsed);
        let by = live.or(first).map(|hold| Box::new(self.holding(hold)));
        Refusal::Held { resource: resource.name.clone(), by, waited }
    }

    pub(super) fn holding(&self, hold: &Hold) -> Holding {
        let pulse = self.pulse(hold.session);
        let ends_at = hold.notice().map_or(pulse.deadline, |notice| notice.ends_at);
        Holding {
            session: hold.session,
            holder: self.session(hold.session).holder.clone(),
            mode: hold.mode,
            slot: hold.slot,
            token: hold.token,
            generation: hold.generation,
            remaining: ends_at.remaining_at(self.state.time),
            ttl: pulse.ttl.into(),
            held_for: self.state.time.since(hold.since),
            notice: hold.notice().map(|notice| notice.why),
            lapsed: !self.is_live(hold.session),
            identity: self.opener_name(hold.session),
        }
    }

    /// Makes a lease. Callers have made sure that the resource admits it and that a token is left.
    pub(super) fn grant(&mut self, number: ResourceNumber, granting: Granting<'_>) -> Grant {
        let Granting { session, mode, slot, policies, fences, waited, number: acquire_number, transmissions } =
            granting;
        let token = self.next_token();
        let (time, wall) = (self.state.time, self.state.wall);
        let ttl = self.ttl_of(session);
        self.add_fences(number, fences);

        let resource = self.resource_mut(number);
        let kind = *resource.kind.get_or_insert(mode.kind());
        assert_eq!(kind, mode.kind(), "one_holder: {} was granted as another kind than it is", resource.name);
        resource.generation = resource.generation.next();
        resource.last_token = token.get();
        let slot =
            matches!(mode, Mode::Slots(_)).then(|| slot.unwrap_or_else(|| lowest_free_slot(&resource.holds)));
        if let Some(slot) = slot {
            resource.more_mut().slot_tokens.insert(slot, token);
        }
        let more = (policies != Policies::default() || !transmissions.is_empty())
            .then(|| Box::new(HoldMore { policies, notice: None, transmissions: transmissions.to_vec() }));
        let generation = resource.generation;
        let hold = Hold {
            session,
            token,
            generation,
            mode,
            slot,
            since: time,
            since_wall: wall,
            reentered: 0,
            more,
        };
        let notice_from = hold.notice_from(ttl);
        // In the order of slots, so that the lowest free one is found by halving.
        let at = resource.holds.partition_point(|other| other.slot <= slot);
        resource.holds.insert(at, hold);
        let name = resource.name.clone();
        // Where several may hold, an end leaves no gap to speak of.
        let past =
            resource.more.as_ref().filter(|_| mode == Mode::Exclusive).and_then(|more| more.history.last());
        let succession = past.map(|past| {
            let gap = wall.as_unix_millis().saturating_sub(past.to_wall.as_unix_millis());
            Succession { after: past.why, gap: Duration::from_millis(gap) }
        });
        self.successions.extend(succession);

        if let Some(at) = notice_from {
            self.deadlines.add(at, Due::Hold(number, token));
        }
        if let Some(hard_limit) = policies.hard_limit {
            let limit = &mut self.session_more(session).hard_limit;
            *limit = Some(limit.map_or(hard_limit, |known| known.min(hard_limit)));
        }
        let leases = &mut self.session_mut(session).leases;
        let at = leases.binary_search(&number).expect_err("one_holder: a session holds a resource once");
        leases.insert(at, number);
        self.count_lease(&name, session, Moves::Up);

        self.state.totals.grants += 1;
        let holder = self.session(session).holder.clone();
        let revision = self.emit(EventKind::Granted {
            resource: name.clone(),
            session,
            holder: holder.clone(),
            mode,
            slot,
            token,
            generation,
            waited,
            number: acquire_number,
        });
        self.lease_changed(session, revision);
        Grant {
            resource: name,
            session: self.session_id(session),
            holder,
            mode,
            slot,
            token,
            generation,
            remaining: self.pulse(session).deadline.remaining_at(time),
            ttl,
            waited,
            fences: self.fence_set(number),
        }
    }

    pub(super) fn count_end(&mut self, why: EndReason) {
        self.state.totals.count_end(why, 1);
    }

    pub(super) fn grant_of(&self, number: ResourceNumber, session: SessionNumber, waited: Duration) -> Grant {
        let resource = self.resource(number);
        let hold = resource.hold_of(session).expect("asked only about what the session holds");
        let pulse = self.pulse(session);
        let ends_at = hold.notice().map_or(pulse.deadline, |notice| notice.ends_at);
        Grant {
            resource: resource.name.clone(),
            session: self.session_id(session),
            holder: self.session(session).holder.clone(),
            mode: hold.mode,
            slot: hold.slot,
            token: hold.token,
            generation: hold.generation,
            remaining: ends_at.remaining_at(self.state.time),
            ttl: pulse.ttl.into(),
            waited,
            fences: self.fence_set(number),
        }
    }

    pub(super) fn lease_changed(&mut self, session: SessionNumber, revision: Revision) {
        self.pulse_mut(session).last_lease_revision = revision;
        self.changed_sessions.push(session);
    }

    /// Ends one lease: the only place where a lease goes away.
    pub(super) fn end_lease(&mut self, number: ResourceNumber, session: SessionNumber, ending: Ending) {
        let time = self.state.time;
        let ttl = self.ttl_of(session);
        if !ending.session_ends {
            self.spell_out(session, number);
        }
        let resource = self.resource_mut(number);
        let at = resource
            .holds
            .iter()
            .position(|hold| hold.session == session)
            .expect("the lease that ends exists");
        let hold = resource.holds.remove(at);
        let name = resource.name.clone();

        if let Some(notice) = hold.notice() {
            self.deadlines.remove(notice.ends_at, Due::Notice(number, hold.token));
        } else if let Some(at) = hold.notice_from(ttl) {
            self.deadlines.remove(at, Due::Hold(number, hold.token));
        }
        if let Some(delay) = hold.policies().lock_delay
            && ending.is_unclean()
            && !(ending.why == EndReason::Died && self.is_armed(number, &hold))
        {
            self.delay(number, time.plus(delay));
        }
        let leases = &mut self.session_mut(session).leases;
        let at = leases.binary_search(&number).expect("one_holder: the session lists what it holds");
        leases.remove(at);
        if hold.policies().hard_limit.is_some() && !ending.session_ends {
            self.recount_hard_limit(session);
        }

        let holder = self.session(session).holder.clone();
        let identity = self.opener_name(session);
        self.record_transition(number, &hold, (holder.clone(), identity), &ending);
        self.count_lease(&name, session, Moves::Down);
        self.count_end(ending.why);
        let revision = self.emit(EventKind::Ended {
            resource: name.clone(),
            session,
            holder,
            slot: hold.slot,
            token: hold.token,
            why: ending.why,
            held_for: time.since(hold.since),
            late: ending.due.map_or(Duration::ZERO, |due| time.since(due)),
            reason: ending.reason,
        });
        self.resource_mut(number).freed_at = revision;
        self.freed.push(number);
        self.lease_changed(session, revision);
        if !ending.session_ends {
            if !ending.asked {
                self.add_ended(
                    session,
                    EndedLease { revision, resource: name, token: hold.token, why: ending.why },
                );
            }
            if self.pulse(session).has_events || !ending.asked {
                self.refresh_events(session);
            }
        }
    }

    pub(super) fn recount_hard_limit(&mut self, session: SessionNumber) {
        let smallest = self
            .session(session)
            .leases
            .iter()
            .filter_map(|resource| self.resource(*resource).hold_of(session)?.policies().hard_limit)
            .min();
        // A lapsed session keeps its limit until it ends: without one it would have no end to be indexed under.
        if !self.pulse(session).lapsed {
            self.session_more(session).hard_limit = smallest;
        }
    }

    fn add_ended(&mut self, session: SessionNumber, events: EndedLease) {
        let ended_max = self.limits().ended_per_session_max as usize;
        let more = self.session_more(session);
        more.events.push_back(events);
        if more.events.len() > ended_max {
            more.events.pop_front();
            more.ended_lost = true;
        }
    }

    pub(super) fn delay(&mut self, number: ResourceNumber, until: ClusterTime) {
        let old = self.resource(number).delayed_until();
        if old.is_some_and(|old| old >= until) {
            return;
        }
        if let Some(old) = old {
            self.deadlines.remove(old, Due::Delay(number));
        }
        self.resource_mut(number).more_mut().delayed_until = Some(until);
        self.deadlines.add(until, Due::Delay(number));
    }

    pub(super) fn delay_due(&mut self, number: ResourceNumber) -> i64 {
        if let Some(until) = self.resource_mut(number).more_mut().delayed_until.take() {
            self.deadlines.remove(until, Due::Delay(number));
        }
        self.freed.push(number);
        1
    }

    /// A restored cluster may grant again: everybody who waits in the queue may be served.
    pub(super) fn grace_due(&mut self) -> i64 {
        let waited_for: Vec<ResourceNumber> =
            self.state.waiters.iter().flat_map(|(_, waiter)| waiter.resources.iter().copied()).collect();
        self.freed.extend(waited_for);
        // Said in the state, so that a replica restored from a snapshot knows that this is done.
        self.state.grants_from = ClusterTime::ZERO;
        1
    }
}

/// What a grant is made of.
pub(super) struct Granting<'a> {
    pub session: SessionNumber,
    pub mode: Mode,
    /// A certain slot, for a transfer; otherwise the lowest free one.
    pub slot: Option<Slot>,
    pub policies: Policies,
    pub fences: &'a [FenceName],
    pub waited: Duration,
    pub number: Option<u64>,
    /// The transmissions that wait for the answer; the undo of the last one undoes the grant.
    pub transmissions: &'a [TransmissionId],
}

/// The lowest slot that nobody holds; `holds` are in the order of their slots.
fn lowest_free_slot(holds: &[Hold]) -> Slot {
    let (mut low, mut high) = (0, holds.len());
    while low < high {
        let middle = (low + high) / 2;
        if holds[middle].slot == Some(Slot::new(middle as u32)) { low = middle + 1 } else { high = middle }
    }
    Slot::new(low as u32)
}
