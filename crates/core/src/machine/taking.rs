//! Taking: what an acquire must satisfy, whether it is granted, waits or is refused. All of its resources or none.

use alloc::vec::Vec;
use core::time::Duration;

use super::Machine;
use super::answers::Needs;
use super::leases::Granting;
use super::sessions::Origin;
use super::state::ResourceNumber;
use crate::answer::{Answer, Done, Refusal};
use crate::command::{Acquire, AcquireBy, Mode, Open, Policies, Wait};
use crate::event::EndReason;
use crate::names::ResourceName;
use crate::numbers::{SessionNumber, TransmissionId};
use crate::version::FormatVersion;

/// Whether holders whose session has lapsed count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lapsed {
    Count,
    DoNotCount,
}

impl Machine {
    pub(super) fn acquire(&mut self, mut acquire: Acquire) -> Answer {
        self.check_acquire(&acquire)?;
        if acquire.wait == Wait::For(Duration::ZERO) {
            acquire.wait = Wait::No;
        }
        match acquire.by.clone() {
            AcquireBy::Session(by) => self.numbered(by, Needs::Live, |machine, session| {
                machine.acquire_for(session, by.number, &acquire)
            }),
            AcquireBy::Opening(open) => self.acquire_opening(open, &acquire),
        }
    }

    /// An acquire that opens its own session. A refusal is final for its nonce: a copy that arrives later must not
    /// be granted what had been refused to its caller.
    fn acquire_opening(&mut self, mut open: Open, acquire: &Acquire) -> Answer {
        let origin = match (open.nonce, acquire.transmission) {
            (None, Some(transmission)) => {
                open.nonce = Some(self.transmission_nonce(transmission, open.secret.form()));
                Origin::PlainAcquire
            }
            _ => Origin::Acquire,
        };
        let nonce = open.nonce.filter(|_| origin == Origin::Acquire);
        let answer = self.open_and_acquire(open, origin, acquire);
        if let (Err(_), Some(nonce)) = (&answer, nonce)
            && self.named_by(Some(nonce)).is_none()
        {
            self.nonce_used(nonce);
        }
        answer
    }

    fn open_and_acquire(&mut self, open: Open, origin: Origin, acquire: &Acquire) -> Answer {
        self.check_ttl(open.ttl)?;
        self.check_policies(&acquire.policies, open.ttl)?;
        self.check_take(None, &open.holder, open.ttl, acquire, false)?;
        // Refused before it opens anything: a refused acquire leaves no session behind. The resource is
        // looked at as the new session would see it.
        if let Some(former) = self.named_by(open.nonce) {
            self.settle_session(former);
        }
        let known = self.opened_before(&open)?;
        if known.is_none() {
            self.check_take(None, &open.holder, open.ttl, acquire, true)?;
            self.check_open(open.ttl)?;
            let known = self.records_of(acquire);
            self.settle_all(acquire, &known)?;
            match self.make_way(acquire, &known) {
                Err(Refusal::TokensExhausted) => return Err(Refusal::TokensExhausted),
                Err(refusal) if acquire.wait == Wait::No => return Err(refusal),
                _ => {}
            }
        }
        let opened = self.open(open, origin)?;
        match self.acquire_for(opened.session, None, acquire) {
            Ok(Done::Granted { grants, .. }) => {
                // A repeated one may find its leases under notice, and this answer has no room for
                // events: then it moves no deadline, and the next renewal brings them.
                let opened = (!self.pulse(opened.session).has_events).then_some(opened.number);
                Ok(Done::Granted { grants, opened })
            }
            Ok(other) => Ok(other),
            Err(refusal) => {
                self.end_if_implicit_and_idle(opened.session, EndReason::Released);
                Err(refusal)
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
        if acquire.resources.len() > 1 {
            let mut names: Vec<&ResourceName> = acquire.resources.iter().collect();
            names.sort_unstable();
            if names.windows(2).any(|pair| pair[0] == pair[1]) {
                return Err(Refusal::Invalid("an acquire names each resource once"));
            }
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

    /// The records of the resources asked for, where there are any. Good for the whole command: records are made by a grant or a
    /// place in the queue, and forgotten only between commands.
    fn records_of(&self, acquire: &Acquire) -> Vec<Option<ResourceNumber>> {
        acquire.resources.iter().map(|name| self.names.get(name).copied()).collect()
    }

    /// Settles every resource asked for and refuses what can never be granted there.
    fn settle_all(&mut self, acquire: &Acquire, known: &[Option<ResourceNumber>]) -> Result<(), Refusal> {
        for (name, number) in acquire.resources.iter().zip(known) {
            let Some(number) = *number else { continue };
            self.settle(number);
            let resource = self.resource(number);
            // Before the first grant, the kind is the one that those in the queue are waiting for: else one
            // of them would stand there for what the resource has become too different to give.
            let first_queued = resource.more.as_ref().and_then(|more| more.queue.first());
            let awaited = first_queued.map(|place| self.waiter(place.waiter).mode.kind());
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
        self.check_policies(&acquire.policies, self.ttl_of(session))?;
        self.check_take_for(session, acquire, false)?;
        let known = self.records_of(acquire);
        self.settle_all(acquire, &known)?;
        if let Some(answer) = self.held_already(session, number, acquire, &known) {
            return answer;
        }
        if let Some(answer) = self.waits_already(session, number, acquire, &known) {
            return answer;
        }
        self.check_take_for(session, acquire, true)?;
        // What it waits for counts, too: when its turn comes there is nobody to refuse.
        let leases_max = self.limits().leases_per_session_max;
        let owned = self.session(session).leases.len() + self.awaited_by(session);
        if owned + acquire.resources.len() > leases_max as usize {
            return Err(Self::limit("leases_per_session_max", leases_max));
        }
        match self.make_way(acquire, &known) {
            Ok(()) => {
                let transmission = self.named_transmission(session, acquire);
                let pairs = acquire.resources.iter().zip(&known);
                let numbers: Vec<ResourceNumber> =
                    pairs.map(|(name, known)| known.unwrap_or_else(|| self.named(name))).collect();
                // With a higher priority it went past those in the queue, who may now contend with the
                // lapsed.
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
                                transmissions: transmission.as_slice(),
                            },
                        )
                    })
                    .collect();
                Ok(Done::Granted { grants, opened: None })
            }
            Err(Refusal::TokensExhausted) => Err(Refusal::TokensExhausted),
            Err(refusal) if acquire.wait == Wait::No => Err(refusal),
            Err(_) => {
                let queued = self.enqueue(session, number, acquire)?;
                // As the first in a queue it is the contender of the lapsed sessions that hold the resource.
                if self.lapsed_sessions > 0 {
                    self.freed.extend(known.iter().flatten());
                }
                Ok(queued)
            }
        }
    }

    fn check_take_for(
        &self,
        session: SessionNumber,
        acquire: &Acquire,
        counted: bool,
    ) -> Result<(), Refusal> {
        let record = self.session(session);
        self.check_take(Some(session), &record.holder, self.ttl_of(session), acquire, counted)
    }

    /// What a session gets that asks for what it holds already.
    fn held_already(
        &mut self,
        session: SessionNumber,
        number: Option<u64>,
        acquire: &Acquire,
        numbers: &[Option<ResourceNumber>],
    ) -> Option<Answer> {
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
                let format = self.state.format;
                for resource in &all {
                    let hold =
                        self.resource_mut(*resource).hold_of_mut(session).expect("held, as found above");
                    if number.is_some() {
                        hold.reentered += 1;
                    } else if let Some(more) = &mut hold.more {
                        more.granted_again(acquire.transmission, format);
                    }
                }
                let grants =
                    all.iter().map(|number| self.grant_of(*number, session, Duration::ZERO)).collect();
                Some(Ok(Done::Granted { grants, opened: None }))
            }
            _ => Some(Err(self.held_refusal(first, Duration::ZERO))),
        }
    }

    /// What a session gets that asks for what it waits in the queue for already. A session waits in each
    /// queue once, because it can hold each resource once. A caller without numbers may be repeating
    /// itself; anything else is a second acquire.
    fn waits_already(
        &mut self,
        session: SessionNumber,
        number: Option<u64>,
        acquire: &Acquire,
        asked: &[Option<ResourceNumber>],
    ) -> Option<Answer> {
        let waiters = &self.session(session).more.as_ref()?.waiters;
        let (waiter, twice, repeats) = waiters.iter().find_map(|waiter_number| {
            let waiter = self.waiter(*waiter_number);
            let twice =
                asked.iter().flatten().copied().find(|resource| waiter.resources.contains(resource))?;
            let repeats = number.is_none()
                && waiter.number.is_none()
                && waiter.mode == acquire.mode
                && asked.iter().copied().eq(waiter.resources.iter().copied().map(Some));
            Some((*waiter_number, twice, repeats))
        })?;
        if !repeats {
            return Some(Err(self.held_refusal(twice, Duration::ZERO)));
        }
        if let Err(refusal) = self.joins(waiter, self.named_transmission(session, acquire)) {
            return Some(Err(refusal));
        }
        Some(Ok(self.queued_answer(waiter)))
    }

    /// The transmission that a waiter or a lease names, of an acquire by this session. The one that opened the session
    /// is not named: the session ends with its undo.
    pub(super) fn named_transmission(
        &self,
        session: SessionNumber,
        acquire: &Acquire,
    ) -> Option<TransmissionId> {
        let session = self.session(session);
        acquire.transmission.filter(|transmission| match self.state.format >= FormatVersion::V2 {
            true => session.nonce != Some(transmission.nonce(session.secret.form())),
            false => !session.plain,
        })
    }

    /// How many leases a session will have more if everything that it waits for is granted.
    fn awaited_by(&self, session: SessionNumber) -> usize {
        let waiters = self.session(session).more.iter().flat_map(|more| &more.waiters);
        waiters.map(|waiter| self.waiter(*waiter).resources.len()).sum()
    }

    /// Ends the lapsed sessions that keep this acquire from being granted, if nothing else does: it is their
    /// contender. Says whether it can be granted now. An acquire that is refused for another reason ends
    /// nobody; one that only meets the lock-delay of the lease that it has ended was still the contender.
    fn make_way(&mut self, acquire: &Acquire, known: &[Option<ResourceNumber>]) -> Result<(), Refusal> {
        self.grantable(acquire, known, Lapsed::DoNotCount)?;
        self.tokens_left(acquire.resources.len())?;
        if self.lapsed_sessions == 0 {
            return Ok(());
        }
        for number in known.iter().flatten() {
            self.take_over_lapsed(*number, acquire.mode);
        }
        self.serve_freed();
        self.grantable(acquire, known, Lapsed::Count)
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

    /// Whether the acquire can be granted now: everything is free for it, and nobody is before it in any
    /// queue.
    fn grantable(
        &self,
        acquire: &Acquire,
        known: &[Option<ResourceNumber>],
        lapsed: Lapsed,
    ) -> Result<(), Refusal> {
        if self.state.grants_from > self.state.time {
            return Err(Refusal::Restoring {
                remaining: self.state.grants_from.remaining_at(self.state.time),
            });
        }
        for (name, number) in acquire.resources.iter().zip(known) {
            let Some(number) = *number else { continue };
            let resource = self.resource(number);
            if let Some(until) = resource.delayed_until()
                && until > self.state.time
            {
                let remaining = until.remaining_at(self.state.time);
                return Err(Refusal::Delayed { resource: name.clone(), remaining });
            }
            let first_queued = resource.more.as_ref().and_then(|more| more.queue.first());
            let others_first = first_queued.is_some_and(|place| place.rank.0 >= acquire.policies.priority);
            let has_room = match lapsed {
                Lapsed::Count => self.has_room(resource, acquire.mode),
                Lapsed::DoNotCount => self.has_room_without_lapsed(resource, acquire.mode),
            };
            if others_first || !has_room {
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
}
