//! Queues: who waits for what, and who is next.
//!
//! A waiter waits in the queue of every resource that it asked for and is granted all of them when it is
//! first in every one and all are free. All queues follow one total order (priority, then arrival), so the
//! first of them all is first in each of its own, and nobody waits in a circle. The command that frees a
//! resource grants it to the next in the queue in the same step: nobody polls, and no crash falls in between.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::time::Duration;

use super::authority::Moves;
use super::deadlines::Due;
use super::leases::Granting;
use super::state::{HoldMore, Place, Resource, ResourceNumber, Waiter, WaiterNumber};
use super::{Contradiction, Machine};
use crate::answer::{Answer, Done, Grant, Refusal, Resolved, WaitKey};
use crate::command::{Acquire, Wait};
use crate::event::{EndReason, EventKind};
use crate::limits::TRANSMISSIONS_PER_WAITER_MAX;
use crate::numbers::{SessionNumber, Slot, TransmissionId};
use crate::version::FormatVersion;

impl Resource {
    fn first_queued(&self) -> Option<Place> {
        self.more.as_ref()?.queue.first().copied()
    }
}

impl HoldMore {
    /// The holder's session was granted this lease again, by this transmission or without one.
    pub(super) fn granted_again(&mut self, transmission: Option<TransmissionId>, format: FormatVersion) {
        let known = &mut self.transmissions;
        match transmission {
            Some(transmission) if known.contains(&transmission) => {}
            Some(transmission)
                if format >= FormatVersion::V2
                    && !known.is_empty()
                    && known.len() < TRANSMISSIONS_PER_WAITER_MAX as usize =>
            {
                known.push(transmission);
            }
            // Somebody is answered with it who never undoes, or nobody can be remembered any more: it stays.
            _ => known.clear(),
        }
    }

    /// The caller of this transmission, one of those that it was granted to, has hung up. True if it was the last
    /// one: the grant is undone.
    pub(super) fn undone_by(&mut self, transmission: TransmissionId, format: FormatVersion) -> bool {
        // Version 1 keeps the one it knows, so that each undo of a lease that was entered again counts.
        if format < FormatVersion::V2 {
            return self.transmissions == [transmission];
        }
        self.transmissions.retain(|known| *known != transmission);
        self.transmissions.is_empty()
    }
}

impl Machine {
    pub(super) fn index_waiters(&mut self) -> Result<(), Contradiction> {
        for (number, waiter) in self.state.waiters.iter() {
            if number.0 > self.state.waiters_arrived {
                return Err(Contradiction("a waiter's number is above the last one given"));
            }
            if self.state.sessions.get(waiter.session).is_none() {
                return Err(Contradiction("a waiter belongs to no session"));
            }
            if let Some(until) = waiter.until {
                self.deadlines.add(until, Due::Wait(number));
            }
        }
        Ok(())
    }

    pub(super) fn waiter(&self, number: WaiterNumber) -> &Waiter {
        self.state.waiters.get(number).expect("a waiter that is named by a record exists")
    }

    /// The waiter with which this session waits in the queue for this resource and nothing else.
    pub(super) fn waiter_of(&self, session: SessionNumber, resource: ResourceNumber) -> Option<WaiterNumber> {
        let waiters = &self.state.sessions.get(session)?.more.as_ref()?.waiters;
        waiters.iter().copied().find(|waiter| self.waiter(*waiter).resources == [resource])
    }

    pub(super) fn enqueue(
        &mut self,
        session: SessionNumber,
        number: Option<u64>,
        acquire: &Acquire,
    ) -> Answer {
        let limits = self.limits();
        let (waiters_max, per_session_max) = (limits.waiters_max, limits.waiters_per_session_max);
        if self.state.waiters.len() >= waiters_max as usize {
            return Err(Self::limit("waiters_max", waiters_max));
        }
        if self.session_more(session).waiters.len() >= per_session_max as usize {
            return Err(Self::limit("waiters_per_session_max", per_session_max));
        }
        let resources: Vec<ResourceNumber> = acquire.resources.iter().map(|name| self.named(name)).collect();
        let until = match acquire.wait {
            Wait::No => unreachable!("only those who wait are queued"),
            Wait::For(length) => Some(self.state.time.plus(length)),
            Wait::Forever => None,
        };
        self.state.waiters_arrived += 1;
        let waiter_number = WaiterNumber(self.state.waiters_arrived);
        let waiter = Waiter {
            session,
            number,
            resources: resources.clone(),
            mode: acquire.mode,
            policies: acquire.policies,
            fences: acquire.fences.clone(),
            since: self.state.time,
            until,
            transmissions: self.named_transmission(session, acquire).into_iter().collect(),
        };
        let place = waiter.place(waiter_number);
        let holder = self.session(session).holder.clone();
        self.state.waiters.insert(waiter_number, waiter);
        for resource in resources {
            let record = self.resource_mut(resource);
            record.more_mut().queue.insert(place);
            let resource = record.name.clone();
            self.count_waiter(&resource, session, Moves::Up);
            self.emit(EventKind::Queued { resource, session, holder: holder.clone(), number });
        }
        if let Some(until) = until {
            self.deadlines.add(until, Due::Wait(waiter_number));
        }
        self.session_more(session).waiters.insert(waiter_number);
        if let Some(number) = number {
            self.remember_waiting(session, number, waiter_number);
        }
        Ok(self.queued_answer(waiter_number))
    }

    pub(super) fn queued_answer(&self, number: WaiterNumber) -> Done {
        let waiter = self.waiter(number);
        let place = waiter.place(number);
        let ahead = waiter
            .resources
            .iter()
            .filter_map(|resource| self.resource(*resource).more.as_ref())
            // Counting a long queue would make queueing quadratic; past this many the number says enough.
            .map(|more| more.queue.range(..place).take(1_000).count())
            .max();
        Done::Queued {
            session: self.session_id(waiter.session),
            ttl: self.ttl_of(waiter.session),
            ahead: ahead.unwrap_or_default() as u32,
        }
    }

    /// Serves the queues of everything that may have become free, until no one in them can move: whoever
    /// comes first in the one order over all queues goes first.
    pub(super) fn serve_freed(&mut self) {
        let mut firsts: BTreeSet<Place> = BTreeSet::new();
        loop {
            while let Some(resource) = self.freed.pop() {
                firsts.extend(self.state.resources.get(resource).and_then(Resource::first_queued));
            }
            let Some(place) = firsts.pop_first() else { return };
            let Some(waiter) = self.state.waiters.get(place.waiter) else { continue };
            let (session, mode) = (waiter.session, waiter.mode);
            if !self.is_live(session) {
                // It died in the queue: nobody grants to the dead.
                self.clear_ended_session(session);
            } else if waiter.until.is_some_and(|until| until <= self.state.time) {
                self.wait_due(place.waiter);
            } else if let Some(kept) = self.kept_by_lapsed(place) {
                self.take_over_lapsed(kept, mode);
                firsts.insert(place);
            } else if self.can_grant(place) {
                self.grant_waiter(place.waiter, None);
            }
        }
    }

    /// Whether the first in the queue has ended or waited long enough, and its record does not say so yet.
    pub(super) fn first_queued_has_ended(&self, resource: ResourceNumber) -> bool {
        self.resource(resource).first_queued().is_some_and(|place| {
            let waiter = self.waiter(place.waiter);
            !self.is_live(waiter.session) || waiter.until.is_some_and(|until| until <= self.state.time)
        })
    }

    /// Brings a waiter up to date: what is due where it stands ends first, its own time included.
    pub(super) fn settle_waiter(&mut self, number: WaiterNumber) {
        if !self.clearing() || self.state.waiters.get(number).is_none() {
            return;
        }
        if self.waiter(number).until.is_some_and(|until| until <= self.state.time) {
            self.wait_due(number);
            return;
        }
        for resource in self.waiter(number).resources.clone() {
            self.settle(resource);
        }
    }

    /// A resource that this waiter is next for and that lapsed sessions hold: it is their contender.
    fn kept_by_lapsed(&self, place: Place) -> Option<ResourceNumber> {
        let waiter = self.waiter(place.waiter);
        waiter.resources.iter().copied().filter(|_| self.lapsed_sessions > 0).find(|resource| {
            let resource = self.resource(*resource);
            resource.first_queued() == Some(place)
                && !self.has_room(resource, waiter.mode)
                && resource.holds.iter().any(|hold| self.pulse(hold.session).lapsed)
        })
    }

    /// Whether this waiter is first in every queue that it is in, everything it asked for is free for it,
    /// and tokens are left.
    pub(super) fn can_grant(&self, place: Place) -> bool {
        let waiter = self.waiter(place.waiter);
        self.tokens_left(waiter.resources.len()).is_ok()
            && waiter.resources.iter().all(|resource| {
                let resource = self.resource(*resource);
                resource.first_queued() == Some(place) && self.admits(resource, waiter.mode)
            })
    }

    /// Grants a waiter everything that it waits for. Returns how long it has waited.
    pub(super) fn grant_waiter(&mut self, number: WaiterNumber, slot: Option<Slot>) -> Duration {
        let waiter = self.take_from_queue(number);
        let transmissions = match &waiter.transmissions[..] {
            // Version 1 remembers one at most: with several, nobody undoes the grant.
            [_, _, ..] if self.state.format < FormatVersion::V2 => &[],
            // Somebody is answered with it who never undoes.
            several if several.contains(&TransmissionId::NEVER_UNDONE) => &[],
            transmissions => transmissions,
        };
        // Never zero: who waited is notified of the grant by push, and is known by having waited at all.
        let waited = self.state.time.since(waiter.since).max(Duration::from_micros(1));
        let grants: Vec<Grant> = waiter
            .resources
            .iter()
            .map(|resource| {
                self.grant(
                    *resource,
                    Granting {
                        session: waiter.session,
                        mode: waiter.mode,
                        slot,
                        policies: waiter.policies,
                        fences: &waiter.fences,
                        waited,
                        number: waiter.number,
                        transmissions,
                    },
                )
            })
            .collect();
        let answer = Ok(Done::Granted { grants, opened: None });
        self.remember_if_awaited(waiter.session, waiter.number, &answer);
        self.resolve(&waiter, answer);
        waited
    }

    /// The wait of an acquire is over: everyone who waits for it is answered this.
    fn resolve(&mut self, waiter: &Waiter, answer: Answer) {
        let session = self.session(waiter.session);
        let nobody_undoes = TransmissionId::NEVER_UNDONE;
        // Of several waits of one session, that of the acquire under its nonce is the one that nobody's hang-up ends.
        let by_nonce = match self.state.format >= FormatVersion::V2 {
            true => waiter.transmissions.is_empty() || waiter.transmissions.contains(&nobody_undoes),
            false => session.implicit,
        };
        let own = match waiter.number {
            Some(number) => Some(WaitKey::Number(waiter.session, number)),
            None => session.nonce.filter(|_| by_nonce).map(WaitKey::Nonce),
        };
        for transmission in waiter.transmissions.iter().filter(|id| **id != nobody_undoes) {
            let key = WaitKey::Transmission(*transmission);
            self.resolved.push(Resolved { key, answer: answer.clone() });
        }
        self.resolved.extend(own.map(|key| Resolved { key, answer }));
    }

    /// Takes a waiter out of every queue. Whoever was behind it may now be first.
    fn take_from_queue(&mut self, number: WaiterNumber) -> Waiter {
        let waiter = self.state.waiters.remove(number).expect("a waiter that leaves exists");
        let place = waiter.place(number);
        for resource in &waiter.resources {
            let record = self.resource_mut(*resource);
            record.more_mut().queue.remove(&place);
            if self.counts_quotas() {
                let name = self.resource(*resource).name.clone();
                self.count_waiter(&name, waiter.session, Moves::Down);
            }
            self.freed.push(*resource);
        }
        if let Some(until) = waiter.until {
            self.deadlines.remove(until, Due::Wait(number));
        }
        self.session_more(waiter.session).waiters.remove(&number);
        waiter
    }

    /// Takes a waiter out of every queue without a grant; `answer` is what those who wait for it are
    /// answered.
    pub(super) fn leave_queue(&mut self, number: WaiterNumber, why: EndReason, answer: Answer) {
        let waiter = self.take_from_queue(number);
        self.resolve(&waiter, answer);
        let holder = self.session(waiter.session).holder.clone();
        for resource in &waiter.resources {
            let resource = self.resource(*resource);
            let event = EventKind::Unqueued {
                resource: resource.name.clone(),
                session: waiter.session,
                holder: holder.clone(),
                number: waiter.number,
                why,
            };
            self.emit(event);
        }
        for resource in waiter.resources {
            let record = self.resource(resource);
            if record.holds.is_empty() && !record.has_queue() {
                self.resource_mut(resource).freed_at = self.state.revision;
            }
        }
    }

    /// The wait's own time is up: remembered as a refusal that says who holds it.
    pub(super) fn wait_due(&mut self, number: WaiterNumber) -> i64 {
        let Some(waiter) = self.state.waiters.get(number) else { return 0 };
        let (session, acquire_number, first) = (waiter.session, waiter.number, waiter.resources[0]);
        let waited = self.state.time.since(waiter.since);
        let refusal = self.blocking_refusal(number, first, waited);
        let answer = Err(refusal);
        self.remember_if_awaited(session, acquire_number, &answer);
        self.leave_queue(number, EndReason::Expired, answer);
        self.end_if_implicit_and_idle(session, EndReason::Expired);
        1
    }

    fn blocking_refusal(&self, number: WaiterNumber, first: ResourceNumber, waited: Duration) -> Refusal {
        let waiter = self.waiter(number);
        let held = |resource: &ResourceNumber| self.live_holds(self.resource(*resource)).next().is_some();
        let blocking = waiter.resources.iter().copied().find(held);
        self.held_refusal(blocking.unwrap_or(first), waited)
    }

    /// One more call waits for what this waiter waits for: a plain one with its transmission, or one that can be
    /// repeated. Beside one that can be repeated the hang-ups of plain ones undo nothing.
    pub(super) fn joins(
        &mut self,
        number: WaiterNumber,
        transmission: Option<TransmissionId>,
    ) -> Result<(), Refusal> {
        // Nothing is listed for a waiter of calls that can all be repeated.
        let others_repeat = self.waiter(number).transmissions.is_empty();
        if others_repeat != transmission.is_none() && self.state.format >= FormatVersion::V2 {
            self.attach_transmission(number, TransmissionId::NEVER_UNDONE)?;
        }
        transmission.map_or(Ok(()), |transmission| self.attach_transmission(number, transmission))
    }

    fn attach_transmission(
        &mut self,
        number: WaiterNumber,
        transmission: TransmissionId,
    ) -> Result<(), Refusal> {
        let waiter = self.state.waiters.get_mut(number).expect("a waiter that is named by a record exists");
        if waiter.transmissions.contains(&transmission) {
            return Ok(());
        }
        if waiter.transmissions.len() >= TRANSMISSIONS_PER_WAITER_MAX as usize {
            return Err(Self::limit("transmissions_per_waiter_max", TRANSMISSIONS_PER_WAITER_MAX));
        }
        waiter.transmissions.push(transmission);
        Ok(())
    }

    /// The caller of this transmission has hung up: the waiter leaves with the last of them. False if it was not
    /// among them.
    pub(super) fn detach_transmission(&mut self, number: WaiterNumber, transmission: TransmissionId) -> bool {
        let waiter = self.state.waiters.get_mut(number).expect("a waiter that is named by a record exists");
        let Some(at) = waiter.transmissions.iter().position(|known| *known == transmission) else {
            return false;
        };
        if waiter.transmissions.len() > 1 {
            waiter.transmissions.remove(at);
        } else {
            self.leave_queue(number, EndReason::Released, Err(Refusal::Cancelled { released: false }));
        }
        true
    }

    /// Takes all waiters of a session out of their queues; `answer` is what their acquires will return.
    pub(super) fn drop_waiters(&mut self, session: SessionNumber, why: EndReason, answer: &Answer) {
        let waiters = self.session(session).more.as_ref().map(|more| more.waiters.clone());
        for waiter in waiters.into_iter().flatten() {
            let number = self.waiter(waiter).number;
            self.leave_queue(waiter, why, answer.clone());
            self.remember_if_awaited(session, number, answer);
        }
    }
}
