//! Giving up: how a lease is released, cancelled, transferred, revoked by notice or at once; and how the kind of a
//! free resource is changed.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use super::Machine;
use super::answers::Needs;
use super::deadlines::Due;
use super::leases::Ending;
use super::state::{Notice, Remembered, ResourceNumber};
use crate::answer::{Answer, Done, Refusal};
use crate::command::{Caller, KindSetting};
use crate::event::{EndReason, EventKind};
use crate::names::ResourceName;
use crate::numbers::{Nonce, SecretForm, SessionId, SessionNumber, Slot, Token, TransmissionId};
use crate::version::FormatVersion;

impl Machine {
    pub(super) fn release(
        &mut self,
        by: Caller,
        name: &ResourceName,
        token: Option<Token>,
        rest: Option<Duration>,
    ) -> Answer {
        if rest.is_some_and(|rest| rest > self.limits().ttl_max) {
            return Err(Refusal::Invalid("rest must not be above the longest TTL"));
        }
        self.numbered(by, Needs::NotEnded, |machine, session| {
            let released = machine.give_back(session, name, token, rest);
            machine.end_if_implicit_and_idle(session, EndReason::Released);
            Ok(Done::Released { released })
        })
    }

    /// Gives back what one acquire of this resource took: one count of a lease that was entered again, or
    /// the lease, after which nobody is granted the resource for `rest`. Says whether there was anything to give back.
    fn give_back(
        &mut self,
        session: SessionNumber,
        name: &ResourceName,
        token: Option<Token>,
        rest: Option<Duration>,
    ) -> bool {
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
        if let Some(rest) = rest.filter(|rest| !rest.is_zero()) {
            self.delay(number, self.state.time.plus(rest));
        }
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
                Some(Remembered::Waiting(waiter)) => {
                    let cancelled = Refusal::Cancelled { released: false };
                    machine.leave_queue(waiter, EndReason::Released, Err(cancelled));
                }
                Some(Remembered::Holding(number, remaining)) => {
                    let grant = machine.state.remembered_grant(session, number, remaining);
                    released = machine.give_back(session, &grant.resource, Some(grant.token), None);
                }
                Some(Remembered::Granted(grants)) => {
                    for grant in &grants {
                        released |= machine.give_back(session, &grant.resource, Some(grant.token), None);
                    }
                }
                // It has not arrived: that it was cancelled takes a place among the answers.
                None => machine.room_to_remember(&machine.session(session).answers)?,
                // It was refused, or cancelled before: nothing is left to undo, and its answer stays.
                Some(Remembered::Answered(_) | Remembered::Cancelled { .. }) => {
                    return Ok(Done::Cancelled { released });
                }
            }
            machine.remember_cancelled(session, acquire, released);
            machine.end_if_implicit_and_idle(session, EndReason::Released);
            Ok(Done::Cancelled { released })
        })
    }

    /// Undoes an acquire that opened its own session, by its nonce, whether it was granted, is queued, or has not
    /// arrived yet.
    pub(super) fn cancel_nonce(&mut self, nonce: Nonce) -> Answer {
        if let Some(session) = self.named_by(Some(nonce)) {
            self.settle_session(session);
        }
        let Some(session) = self.named_by(Some(nonce)) else {
            self.check_cancels()?;
            self.nonce_used(nonce);
            return Ok(Done::Cancelled { released: false });
        };
        self.check_session(session)?;
        if !self.session(session).implicit {
            return Err(Refusal::Invalid(
                "this nonce opened a session and acquired nothing; close the session by its id",
            ));
        }
        let released = self.end_cancelled(session);
        Ok(Done::Cancelled { released })
    }

    /// Takes back what one transmission of a plain acquire did, because its caller has hung up.
    pub(super) fn undo(&mut self, session: Option<SessionId>, transmission: TransmissionId) -> Answer {
        let Some(id) = session else {
            // An undo does not say which form its acquire had: once it is known, that of the session; until then,
            // the usual one.
            let [usual, other] = match self.format() {
                FormatVersion::V1 => [SecretForm::Plain, SecretForm::Hashed],
                _ => [SecretForm::Hashed, SecretForm::Plain],
            }
            .map(|form| transmission.nonce(form));
            let nonce = if self.named_by(Some(other)).is_some() { other } else { usual };
            if let Some(session) = self.named_by(Some(nonce)) {
                self.settle_session(session);
            }
            let Some(session) = self.named_by(Some(nonce)) else {
                // It was refused or has ended; or it is still on its way, and must do nothing when it arrives.
                self.check_cancels()?;
                self.nonce_used(nonce);
                return Ok(Done::Cancelled { released: false });
            };
            self.check_session(session)?;
            let released = self.session(session).plain && self.end_cancelled(session);
            return Ok(Done::Cancelled { released });
        };
        let session = self.settled_session(id)?;
        let waiters: Vec<_> =
            self.session(session).more.iter().flat_map(|more| &more.waiters).copied().collect();
        if waiters.into_iter().any(|waiter| self.detach_transmission(waiter, transmission)) {
            self.end_if_implicit_and_idle(session, EndReason::Released);
            return Ok(Done::Cancelled { released: false });
        }
        let granted_to = |resource: &ResourceNumber| {
            let more = self.resource(*resource).hold_of(session)?.more.as_ref()?;
            more.transmissions.contains(&transmission).then_some(*resource)
        };
        let granted: Vec<_> = self.session(session).leases.iter().filter_map(granted_to).collect();
        let format = self.state.format;
        let mut undone = Vec::new();
        for resource in granted {
            let record = self.resource_mut(resource);
            let hold = record.hold_of_mut(session).expect("found above");
            let token = hold.token;
            if hold.more.as_mut().is_some_and(|more| more.undone_by(transmission, format)) {
                undone.push((record.name.clone(), token));
            }
        }
        for (name, token) in &undone {
            self.give_back(session, name, Some(*token), None);
        }
        self.end_if_implicit_and_idle(session, EndReason::Released);
        Ok(Done::Cancelled { released: !undone.is_empty() })
    }

    /// Ends the session of an acquire that was cancelled. Says whether it held anything.
    fn end_cancelled(&mut self, session: SessionNumber) -> bool {
        let released = !self.session(session).leases.is_empty();
        self.drop_waiters(session, EndReason::Released, &Err(Refusal::Cancelled { released: false }));
        self.end_session(session, EndReason::Released);
        released
    }

    /// Ends the caller's lease and grants the resource to a session that waits in the queue for it, in one
    /// step.
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
            // Waiting in the queue for this resource alone is how a session says that it is ready to take it.
            let waiter = machine.waiter_of(to, number).filter(|waiter| {
                let waiter = machine.waiter(*waiter);
                let waits = waiter.until.is_none_or(|until| until > machine.state.time);
                waits && machine.is_live(to) && waiter.mode == mode && to != session
            });
            let Some(waiter) = waiter else {
                return Err(Refusal::NotReady { resource: name.clone(), session: to });
            };
            machine.check_transfer(session, to, name)?;
            if machine.state.grants_from > machine.state.time {
                let remaining = machine.state.grants_from.remaining_at(machine.state.time);
                return Err(Refusal::Restoring { remaining });
            }
            machine.tokens_left(1)?;
            machine.end_lease(number, session, Ending::asked(EndReason::Transferred));
            let waited = machine.grant_waiter(waiter, slot);
            let grant = machine.grant_of(number, to, waited);
            machine.end_if_implicit_and_idle(session, EndReason::Released);
            Ok(Done::Transferred(Box::new(grant)))
        })
    }

    /// An administrator ends leases: by notice, so that the holder stops first; or at once, where only
    /// fences protect, which is why a token is then taken without a holder.
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

    /// Ends one lease because the right to it is gone: by notice, or at once with a token for nobody.
    pub(super) fn revoke_lease(
        &mut self,
        number: ResourceNumber,
        session: SessionNumber,
        now: bool,
        reason: Arc<str>,
    ) {
        // Without a token left nothing would tell the fences.
        if !now || self.tokens_left(1).is_err() {
            return self.give_notice(number, session, EndReason::Revoked, Some(reason));
        }
        let slot = self.resource(number).hold_of(session).and_then(|hold| hold.slot);
        let ending = Ending { reason: Some(reason), ..Ending::imposed(EndReason::Revoked) };
        self.end_lease(number, session, ending);
        self.take_token_for_nobody(number, &[slot]);
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
        let (deadline, ttl, time) = (self.pulse(session).deadline, self.ttl_of(session), self.state.time);
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
        self.pulse_mut(session).has_events = true;
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
            if !resource.holds.is_empty() || resource.has_queue() {
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
