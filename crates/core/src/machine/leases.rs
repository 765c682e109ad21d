//! Leases: how a resource is taken, held, given back, handed over and taken away. Ownership only; how a
//! session lives is `sessions.rs`, how a line moves is `waiters.rs`.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use super::answers::Needs;
use super::deadlines::Due;
use super::state::{EndedNews, Hold, HoldMore, Notice, Remembered, Resource, ResourceMore, ResourceNumber};
use super::{Contradiction, Machine};
use crate::answer::{Answer, Done, Grant, Holding, Refusal};
use crate::command::{Acquire, AcquireBy, Caller, KindSetting, Mode, Policies, Wait};
use crate::event::{EndReason, EventKind};
use crate::names::{FenceName, ResourceName};
use crate::numbers::{Generation, Revision, SessionNumber, Slot, Token};
use crate::time::ClusterTime;

/// How a lease ends.
#[derive(Clone, Debug)]
pub(super) struct Ending {
    pub why: EndReason,
    /// The holder asked for it, so it need not be told.
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

    pub(super) fn has_line(&self) -> bool {
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
            for hold in &resource.holds {
                let Some(pulse) = self.state.pulses.get(hold.session) else {
                    return Err(Contradiction("a lease belongs to no session"));
                };
                if let Some(notice) = hold.notice() {
                    self.deadlines.add(notice.ends_at, Due::Notice(number, hold.token));
                } else if let Some(at) = hold.notice_from(pulse.ttl) {
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
        self.touched.insert(number);
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
                holds: Vec::new(),
                freed_at: self.state.revision,
                more: None,
            },
        );
        self.names.insert(name.clone(), number);
        self.touched.insert(number);
        number
    }

    /// Ends what is due at this resource and has not been cleared away yet, and serves its line.
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
                    if self.first_in_line_has_ended(number) {
                        self.freed.insert(number);
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

    /// Whether the resource could be granted in this mode now, leaving aside who stands in line.
    pub(super) fn admits(&self, resource: &Resource, mode: Mode) -> bool {
        let rests = resource.delayed_until().is_some_and(|until| until > self.state.time);
        let restoring = self.state.grants_from > self.state.time;
        !rests && !restoring && self.has_room(resource, mode)
    }

    /// Whether those who hold the resource leave room for a further holder in this mode.
    pub(super) fn has_room(&self, resource: &Resource, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => resource.holds.is_empty(),
            // An exclusive holder is alone, so the first holder's mode is everybody's.
            Mode::Shared => {
                resource.holds.first().is_none_or(|hold| hold.mode == Mode::Shared)
                    && resource.holds.len() < self.limits().sharers_max as usize
            }
            Mode::Slots(slots) => resource.holds.len() < slots as usize,
        }
    }

    pub(super) fn acquire(&mut self, mut acquire: Acquire) -> Answer {
        self.check_acquire(&acquire)?;
        if acquire.wait == Wait::For(Duration::ZERO) {
            acquire.wait = Wait::No;
        }
        match acquire.by.clone() {
            AcquireBy::Session(by) => self.numbered(by, Needs::Live, |machine, session| {
                machine.acquire_for(session, by.number, &acquire)
            }),
            AcquireBy::Opening(open) => {
                self.check_ttl(open.ttl)?;
                self.check_policies(&acquire.policies, open.ttl)?;
                // Refused before it opens anything: a refused acquire leaves no session behind. The resource is
                // looked at as the new session would see it.
                if let Some(former) = open.nonce.and_then(|nonce| self.nonces.get(&nonce)).copied() {
                    self.settle_session(former);
                }
                let known = self.opened_before(&open)?;
                if known.is_none() {
                    self.settle_all(&acquire)?;
                    self.contest(&acquire);
                    if let Err(refusal) = self.grantable(&acquire)
                        && acquire.wait == Wait::No
                    {
                        return Err(refusal);
                    }
                }
                let opened = self.open(open, true)?;
                let answer = self.acquire_for(opened.session, None, &acquire);
                match answer {
                    Ok(Done::Granted { grants, .. }) => {
                        // A repeated one may find its leases under notice, and this answer has no room for
                        // news: then it moves no deadline, and the next renewal tells.
                        let opened = (!self.pulse(opened.session).has_news).then_some(opened.number);
                        Ok(Done::Granted { grants, opened })
                    }
                    Ok(other) => Ok(other),
                    Err(refusal) => {
                        self.end_if_implicit_and_idle(opened.session, EndReason::Released);
                        Err(refusal)
                    }
                }
            }
        }
    }

    fn check_acquire(&self, acquire: &Acquire) -> Result<(), Refusal> {
        let limits = self.limits();
        if acquire.resources.is_empty() {
            return Err(Refusal::Invalid("an acquire names at least one resource"));
        }
        if acquire.resources.len() > limits.resources_per_acquire_max as usize {
            return Err(Self::limit("resources_per_acquire_max", limits.resources_per_acquire_max));
        }
        let mut names: Vec<&ResourceName> = acquire.resources.iter().collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Refusal::Invalid("an acquire names each resource once"));
        }
        if let Mode::Slots(slots) = acquire.mode {
            if slots == 0 {
                return Err(Refusal::Invalid("a semaphore has at least one slot"));
            }
            if slots > limits.slots_max {
                return Err(Self::limit("slots_max", limits.slots_max));
            }
        }
        if acquire.fences.len() > limits.fences_per_resource_max as usize {
            return Err(Self::limit("fences_per_resource_max", limits.fences_per_resource_max));
        }
        Ok(())
    }

    fn check_policies(&self, policies: &Policies, ttl: Duration) -> Result<(), Refusal> {
        if policies.max_hold.is_some_and(|max_hold| max_hold <= ttl) {
            return Err(Refusal::Invalid(
                "max_hold must be above the TTL: notice is given one TTL before it",
            ));
        }
        if policies.hard_limit.is_some_and(|hard_limit| hard_limit <= ttl) {
            return Err(Refusal::Invalid("hard_limit must be above the TTL, which is the soft limit"));
        }
        if policies.lock_delay.is_some_and(|delay| delay > self.limits().ttl_max) {
            return Err(Refusal::Invalid("lock_delay must not be above the longest TTL"));
        }
        Ok(())
    }

    /// Settles every resource asked for and refuses what can never be granted there.
    fn settle_all(&mut self, acquire: &Acquire) -> Result<(), Refusal> {
        for name in &acquire.resources {
            let Some(number) = self.settled(name) else { continue };
            let resource = self.resource(number);
            // Before the first grant, the kind is the one that those in line are waiting for: else one of
            // them would stand there for what the resource has become too different to give.
            let first_in_line = resource.more.as_ref().and_then(|more| more.queue.first());
            let awaited = first_in_line.map(|place| self.waiter(place.waiter).mode.kind());
            if let Some(is) = resource.kind.or(awaited)
                && is != acquire.mode.kind()
            {
                return Err(Refusal::WrongKind { resource: name.clone(), is });
            }
            self.room_for_fences(resource, &acquire.fences)?;
        }
        if !acquire.fences.is_empty() || matches!(acquire.mode, Mode::Slots(_)) {
            self.room_to_pin(&acquire.resources)?;
        }
        Ok(())
    }

    fn acquire_for(&mut self, session: SessionNumber, number: Option<u64>, acquire: &Acquire) -> Answer {
        self.check_policies(&acquire.policies, self.pulse(session).ttl)?;
        self.settle_all(acquire)?;
        if let Some(answer) = self.held_already(session, number, acquire) {
            return answer;
        }
        if let Some(answer) = self.waits_already(session, number, acquire) {
            return answer;
        }
        // What it waits for counts, too: when its turn comes there is nobody to refuse.
        let leases_max = self.limits().leases_per_session_max;
        let owned = self.session(session).leases.len() + self.awaited_by(session);
        if owned + acquire.resources.len() > leases_max as usize {
            return Err(Self::limit("leases_per_session_max", leases_max));
        }
        self.contest(acquire);
        match self.grantable(acquire) {
            Ok(()) => {
                self.tokens_left(acquire.resources.len())?;
                let numbers: Vec<ResourceNumber> =
                    acquire.resources.iter().map(|name| self.named(name)).collect();
                // With a higher priority it went past those in line, who may now contend with the lapsed.
                self.freed.extend(&numbers);
                let grants = numbers
                    .into_iter()
                    .map(|resource| {
                        self.grant(
                            resource,
                            Granting {
                                session,
                                mode: acquire.mode,
                                slot: None,
                                policies: acquire.policies,
                                fences: &acquire.fences,
                                waited: Duration::ZERO,
                                number,
                            },
                        )
                    })
                    .collect();
                Ok(Done::Granted { grants, opened: None })
            }
            Err(refusal) if acquire.wait == Wait::No => Err(refusal),
            Err(_) => self.enqueue(session, number, acquire),
        }
    }

    /// What a session gets that asks for what it holds already.
    fn held_already(
        &mut self,
        session: SessionNumber,
        number: Option<u64>,
        acquire: &Acquire,
    ) -> Option<Answer> {
        let numbers: Vec<Option<ResourceNumber>> =
            acquire.resources.iter().map(|name| self.names.get(name).copied()).collect();
        let held = |machine: &Machine, number: &Option<ResourceNumber>| {
            number.filter(|number| machine.session(session).leases.binary_search(number).is_ok())
        };
        let first = numbers.iter().find_map(|number| held(self, number))?;
        let all: Option<Vec<ResourceNumber>> = numbers.iter().map(|number| held(self, number)).collect();
        let same_mode = |machine: &Machine, number: &ResourceNumber| {
            machine.resource(*number).hold_of(session).is_some_and(|hold| hold.mode == acquire.mode)
        };
        match all {
            // A caller without numbers may be repeating itself: same session, same token. With numbers it
            // is a second acquire, which only re-entrance makes meaningful.
            Some(all)
                if all.iter().all(|number| same_mode(self, number))
                    && (number.is_none() || acquire.policies.reentrant) =>
            {
                if number.is_some() {
                    for resource in &all {
                        let hold =
                            self.resource_mut(*resource).hold_of_mut(session).expect("held, as found above");
                        hold.reentered += 1;
                    }
                }
                let grants =
                    all.iter().map(|number| self.grant_of(*number, session, Duration::ZERO)).collect();
                Some(Ok(Done::Granted { grants, opened: None }))
            }
            _ => Some(Err(self.held_refusal(first, Duration::ZERO))),
        }
    }

    /// What a session gets that asks for what it stands in line for already. A session stands in each
    /// line once, because it can hold each resource once. A caller without numbers may be repeating
    /// itself; anything else is a second acquire.
    fn waits_already(
        &self,
        session: SessionNumber,
        number: Option<u64>,
        acquire: &Acquire,
    ) -> Option<Answer> {
        let waiters = &self.session(session).more.as_ref()?.waiters;
        let asked: Vec<Option<ResourceNumber>> =
            acquire.resources.iter().map(|name| self.names.get(name).copied()).collect();
        waiters.iter().find_map(|place| {
            let waiter = self.waiter(*place);
            let twice =
                asked.iter().flatten().copied().find(|resource| waiter.resources.contains(resource))?;
            let repeats = number.is_none()
                && waiter.number.is_none()
                && waiter.mode == acquire.mode
                && asked.iter().copied().eq(waiter.resources.iter().copied().map(Some));
            Some(if repeats {
                Ok(self.queued_answer(*place))
            } else {
                Err(self.held_refusal(twice, Duration::ZERO))
            })
        })
    }

    /// How many leases a session will have more if everything that it waits for is granted.
    fn awaited_by(&self, session: SessionNumber) -> usize {
        let waiters = self.session(session).more.iter().flat_map(|more| &more.waiters);
        waiters.map(|waiter| self.waiter(*waiter).resources.len()).sum()
    }

    /// Ends the lapsed sessions that stand in the way of this acquire: it is their contender.
    fn contest(&mut self, acquire: &Acquire) {
        for name in &acquire.resources {
            if let Some(number) = self.names.get(name).copied() {
                self.take_over_lapsed(number, acquire.mode);
            }
        }
        self.serve_freed();
    }

    /// Ends the lapsed holders of a resource if they keep it from being granted in this mode.
    pub(super) fn take_over_lapsed(&mut self, number: ResourceNumber, mode: Mode) {
        while self.lapsed_sessions > 0
            && !self.has_room(self.resource(number), mode)
            && let Some(hold) =
                self.resource(number).holds.iter().find(|hold| self.pulse(hold.session).lapsed)
        {
            self.take_over(hold.session);
        }
    }

    /// Whether the acquire can be granted now: everything is free for it, and nobody is before it in any line.
    fn grantable(&self, acquire: &Acquire) -> Result<(), Refusal> {
        if self.state.grants_from > self.state.time {
            return Err(Refusal::Restoring {
                remaining: self.state.grants_from.remaining_at(self.state.time),
            });
        }
        for name in &acquire.resources {
            let Some(number) = self.names.get(name).copied() else { continue };
            let resource = self.resource(number);
            if let Some(until) = resource.delayed_until()
                && until > self.state.time
            {
                let remaining = until.remaining_at(self.state.time);
                return Err(Refusal::Delayed { resource: name.clone(), remaining });
            }
            let first_in_line = resource.more.as_ref().and_then(|more| more.queue.first());
            let others_first = first_in_line.is_some_and(|place| place.rank.0 >= acquire.policies.priority);
            if others_first || !self.admits(resource, acquire.mode) {
                let sharers_max = self.limits().sharers_max;
                let full = acquire.mode == Mode::Shared && resource.holds.len() >= sharers_max as usize;
                return Err(if full && !others_first {
                    Self::limit("sharers_max", sharers_max)
                } else {
                    self.held_refusal(number, Duration::ZERO)
                });
            }
        }
        Ok(())
    }

    pub(super) fn held_refusal(&self, number: ResourceNumber, waited: Duration) -> Refusal {
        let resource = self.resource(number);
        let by = self.live_holds(resource).next().map(|hold| Box::new(self.holding(hold)));
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
            ttl: pulse.ttl,
            held_for: self.state.time.since(hold.since),
            notice: hold.notice().map(|notice| notice.why),
            lapsed: !self.is_live(hold.session),
        }
    }

    /// Makes a lease. Callers have made sure that the resource admits it and that a token is left.
    pub(super) fn grant(&mut self, number: ResourceNumber, granting: Granting<'_>) -> Grant {
        let Granting { session, mode, slot, policies, fences, waited, number: acquire_number } = granting;
        let token = self.next_token();
        let (time, wall) = (self.state.time, self.state.wall);
        let ttl = self.pulse(session).ttl;
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
        let more = (policies != Policies::default()).then(|| Box::new(HoldMore { policies, notice: None }));
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
        resource.holds.reserve_exact(1);
        // In the order of slots, so that the lowest free one is found by halving.
        let at = resource.holds.partition_point(|other| other.slot <= slot);
        resource.holds.insert(at, hold);
        let name = resource.name.clone();

        if let Some(at) = notice_from {
            self.deadlines.add(at, Due::Hold(number, token));
        }
        if let Some(hard_limit) = policies.hard_limit {
            let limit = &mut self.session_more(session).hard_limit;
            *limit = Some(limit.map_or(hard_limit, |known| known.min(hard_limit)));
        }
        let leases = &mut self.session_mut(session).leases;
        let at = leases.binary_search(&number).expect_err("one_holder: a session holds a resource once");
        leases.reserve_exact(1);
        leases.insert(at, number);

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
        }
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
            ttl: pulse.ttl,
            waited,
        }
    }

    fn lease_changed(&mut self, session: SessionNumber, revision: Revision) {
        self.pulse_mut(session).last_lease_revision = revision;
        self.changed_sessions.insert(session);
    }

    /// Ends one lease: the only place where a lease goes away.
    pub(super) fn end_lease(&mut self, number: ResourceNumber, session: SessionNumber, ending: Ending) {
        let time = self.state.time;
        let ttl = self.pulse(session).ttl;
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
        self.record_transition(number, &hold, holder.clone(), &ending);
        let why_index =
            EndReason::ALL.iter().position(|why| *why == ending.why).expect("ALL lists every reason");
        self.state.totals.ends[why_index] += 1;
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
        self.freed.insert(number);
        self.lease_changed(session, revision);
        if !ending.session_ends {
            if !ending.asked {
                self.add_news(
                    session,
                    EndedNews { revision, resource: name, token: hold.token, why: ending.why },
                );
            }
            if self.pulse(session).has_news || !ending.asked {
                self.refresh_news(session);
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

    fn add_news(&mut self, session: SessionNumber, news: EndedNews) {
        let news_max = self.limits().news_per_session_max as usize;
        let more = self.session_more(session);
        more.news.push_back(news);
        if more.news.len() > news_max {
            more.news.pop_front();
            more.news_lost = true;
        }
    }

    fn delay(&mut self, number: ResourceNumber, until: ClusterTime) {
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
        self.freed.insert(number);
        1
    }

    /// A restored cluster may grant again: everybody who stands in line may be served.
    pub(super) fn grace_due(&mut self) -> i64 {
        let waited_for: Vec<ResourceNumber> =
            self.state.waiters.iter().flat_map(|(_, waiter)| waiter.resources.iter().copied()).collect();
        self.freed.extend(waited_for);
        // Said in the state, so that a replica restored from a snapshot knows that this is done.
        self.state.grants_from = ClusterTime::ZERO;
        1
    }

    pub(super) fn release(&mut self, by: Caller, name: &ResourceName, token: Option<Token>) -> Answer {
        self.numbered(by, Needs::NotEnded, |machine, session| {
            let released = machine.give_back(session, name, token);
            machine.end_if_implicit_and_idle(session, EndReason::Released);
            Ok(Done::Released { released })
        })
    }

    /// Gives back what one acquire of this resource took: one count of a lease that was entered again, or
    /// the lease. Says whether there was anything to give back.
    fn give_back(&mut self, session: SessionNumber, name: &ResourceName, token: Option<Token>) -> bool {
        let Some(number) = self.settled(name) else { return false };
        // Settling may have ended the lease.
        let Some(hold) = self.resource(number).hold_of(session) else { return false };
        if token.is_some_and(|token| token != hold.token) {
            return false;
        }
        let ending = match hold.notice() {
            None if hold.reentered > 0 => {
                let hold = self.resource_mut(number).hold_of_mut(session).expect("found above");
                hold.reentered -= 1;
                return true;
            }
            None => Ending::asked(EndReason::Released),
            Some(notice) => Ending { reason: notice.reason.clone(), ..Ending::asked(notice.why) },
        };
        self.end_lease(number, session, ending);
        true
    }

    /// Undoes an acquire by its number, whether it has been granted, still waits, or has not arrived yet.
    pub(super) fn cancel(&mut self, by: Caller, acquire: u64) -> Answer {
        if by.number == Some(acquire) {
            return Err(Refusal::Invalid("a cancel has a number of its own"));
        }
        self.numbered(by, Needs::NotEnded, |machine, session| {
            if acquire < machine.session(session).answers.floor {
                return Err(Refusal::ForgottenNumber { number: acquire });
            }
            let mut released = false;
            match machine.session(session).answers.get(acquire).cloned() {
                Some(Remembered::Waiting(waiter)) => machine.leave_line(waiter, EndReason::Released),
                Some(Remembered::Granted(grants)) => {
                    for grant in grants {
                        released |= machine.give_back(session, &grant.resource, Some(grant.token));
                    }
                }
                // It has not arrived: that it was cancelled takes a place among the answers.
                None => machine.room_to_remember(session)?,
                // It was refused, or cancelled before: nothing is left to undo, and its answer stays.
                Some(Remembered::Answered(_) | Remembered::Cancelled) => {
                    return Ok(Done::Cancelled { released });
                }
            }
            machine.remember_cancelled(session, acquire);
            machine.end_if_implicit_and_idle(session, EndReason::Released);
            Ok(Done::Cancelled { released })
        })
    }

    /// Ends the caller's lease and grants the resource to a session that stands in line for it, in one step.
    pub(super) fn transfer(&mut self, by: Caller, name: &ResourceName, to: SessionNumber) -> Answer {
        self.numbered(by, Needs::Live, |machine, session| {
            let not_held = || Refusal::NotHeld { resource: name.clone() };
            let number = machine.settled(name).ok_or_else(not_held)?;
            let hold = machine.resource(number).hold_of(session).ok_or_else(not_held)?;
            if hold.notice().is_some() {
                return Err(Refusal::UnderNotice { resource: name.clone() });
            }
            if !hold.mode.writes() {
                return Err(Refusal::Invalid(
                    "a shared lease cannot be transferred: it carries no authority",
                ));
            }
            let (mode, slot) = (hold.mode, hold.slot);
            // Standing in line for this resource alone is how a session says that it is ready to take it.
            let waiter = machine.waiter_of(to, number).filter(|waiter| {
                let waiter = machine.waiter(*waiter);
                let waits = waiter.until.is_none_or(|until| until > machine.state.time);
                waits && machine.is_live(to) && waiter.mode == mode && to != session
            });
            let Some(waiter) = waiter else {
                return Err(Refusal::NotReady { resource: name.clone(), session: to });
            };
            if machine.state.grants_from > machine.state.time {
                let remaining = machine.state.grants_from.remaining_at(machine.state.time);
                return Err(Refusal::Restoring { remaining });
            }
            machine.tokens_left(1)?;
            machine.end_lease(number, session, Ending::asked(EndReason::Transferred));
            let grant =
                machine.grant_waiter(waiter, slot).into_iter().next().expect("it waits for one resource");
            machine.end_if_implicit_and_idle(session, EndReason::Released);
            Ok(Done::Transferred(Box::new(grant)))
        })
    }

    /// An administrator ends leases: by notice, so that the holder stops first; or at once, where only
    /// fences protect, which is why a token is then taken for nobody.
    pub(super) fn revoke(
        &mut self,
        name: &ResourceName,
        session: Option<SessionNumber>,
        now: bool,
        reason: Arc<str>,
    ) -> Answer {
        let number = self.settled(name).ok_or(Refusal::NotFound)?;
        let sessions: Vec<SessionNumber> = self
            .resource(number)
            .holds
            .iter()
            .map(|hold| hold.session)
            .filter(|held_by| session.is_none_or(|session| session == *held_by))
            .collect();
        if !now {
            let mut holdings = Vec::with_capacity(sessions.len());
            for session in sessions {
                let before = self.resource(number).hold_of(session).map(|hold| self.holding(hold));
                self.give_notice(number, session, EndReason::Revoked, Some(reason.clone()));
                let after = self.resource(number).hold_of(session).map(|hold| self.holding(hold));
                holdings.extend(after.or(before));
            }
            return Ok(Done::Revoked { holdings, token: None });
        }
        if sessions.is_empty() {
            return Ok(Done::Revoked { holdings: vec![], token: None });
        }
        self.tokens_left(1)?;
        let resource = self.resource(number);
        let holdings = sessions
            .iter()
            .filter_map(|session| resource.hold_of(*session))
            .map(|h| self.holding(h))
            .collect();
        let slots: Vec<Option<Slot>> =
            sessions.iter().filter_map(|session| Some(resource.hold_of(*session)?.slot)).collect();
        for session in sessions {
            let ending = Ending { reason: Some(reason.clone()), ..Ending::imposed(EndReason::Revoked) };
            self.end_lease(number, session, ending);
            self.end_if_implicit_and_idle(session, EndReason::Revoked);
        }
        let token = self.take_token_for_nobody(number, &slots);
        Ok(Done::Revoked { holdings, token: Some(token) })
    }

    /// Takes a token that nobody gets, so that every earlier one is stale.
    pub(super) fn take_token_for_nobody(&mut self, number: ResourceNumber, slots: &[Option<Slot>]) -> Token {
        let token = self.next_token();
        let resource = self.resource_mut(number);
        resource.last_token = token.get();
        for slot in slots.iter().flatten() {
            resource.more_mut().slot_tokens.insert(*slot, token);
        }
        let resource = resource.name.clone();
        self.emit(EventKind::Barrier { resource, token });
        token
    }

    /// Tells a holder that its lease will end: at the session's deadline as it stands now, or when it confirms.
    fn give_notice(
        &mut self,
        number: ResourceNumber,
        session: SessionNumber,
        why: EndReason,
        reason: Option<Arc<str>>,
    ) {
        let (deadline, ttl, time) = (self.pulse(session).deadline, self.pulse(session).ttl, self.state.time);
        if deadline <= time {
            // The session has lapsed: there is nobody to wait for.
            let ending = Ending { due: Some(deadline), reason, ..Ending::imposed(why) };
            self.end_lease(number, session, ending);
            self.end_if_implicit_and_idle(session, why);
            return;
        }
        let resource = self.resource_mut(number);
        let name = resource.name.clone();
        let hold = resource.hold_of_mut(session).expect("notice is given to holders");
        if hold.notice().is_some() {
            return;
        }
        let token = hold.token;
        let notice_from = hold.notice_from(ttl);
        hold.more.get_or_insert_default().notice =
            Some(Notice { why, ends_at: deadline, reason: reason.clone() });
        if let Some(at) = notice_from {
            self.deadlines.remove(at, Due::Hold(number, token));
        }
        self.deadlines.add(deadline, Due::Notice(number, token));
        let remaining = deadline.remaining_at(time);
        let revision =
            self.emit(EventKind::Noticed { resource: name, session, token, why, remaining, reason });
        self.lease_changed(session, revision);
        self.pulse_mut(session).has_news = true;
    }

    pub(super) fn notice_due(&mut self, number: ResourceNumber, token: Token) -> i64 {
        let hold = self.resource(number).holds.iter().find(|hold| hold.token == token);
        let (session, notice) = match hold.and_then(|hold| Some((hold.session, hold.notice()?.clone()))) {
            Some(found) => found,
            None => return 0,
        };
        let ending =
            Ending { due: Some(notice.ends_at), reason: notice.reason, ..Ending::imposed(notice.why) };
        self.end_lease(number, session, ending);
        self.end_if_implicit_and_idle(session, notice.why);
        1
    }

    pub(super) fn hold_due(&mut self, number: ResourceNumber, token: Token) -> i64 {
        let Some(resource) = self.state.resources.get(number) else { return 0 };
        let Some(session) = resource.holds.iter().find(|hold| hold.token == token).map(|hold| hold.session)
        else {
            return 0;
        };
        self.give_notice(number, session, EndReason::HeldTooLong, None);
        1
    }

    pub(super) fn set_kind(&mut self, name: &ResourceName, kind: Option<KindSetting>) -> Answer {
        match kind {
            Some(KindSetting::Semaphore(0)) => {
                return Err(Refusal::Invalid("a semaphore has at least one slot"));
            }
            Some(KindSetting::Semaphore(slots)) if slots > self.limits().slots_max => {
                return Err(Self::limit("slots_max", self.limits().slots_max));
            }
            _ => {}
        }
        if let Some(number) = self.settled(name) {
            let resource = self.resource(number);
            if !resource.holds.is_empty() || resource.has_line() {
                return Err(Refusal::InUse { resource: name.clone() });
            }
        }
        if kind.is_some() {
            self.room_to_pin([name])?;
        }
        let number = self.named(name);
        let resource = self.resource_mut(number);
        resource.kind = kind;
        resource.more_mut().kind_set = kind.is_some();
        self.emit(EventKind::Changed { what: name.as_str().into(), how: "kind set" });
        Ok(Done::Nothing)
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
