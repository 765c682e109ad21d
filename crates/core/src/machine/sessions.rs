//! Sessions: how they open, live by renewals, lapse and end. Liveness only; what a session owns is
//! `leases.rs`.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use super::deadlines::Due;
use super::fences::may_report;
use super::few::Few;
use super::leases::Ending;
use super::state::{Answers, Pulse, Session, SessionMore};
use super::{Contradiction, Machine};
use crate::answer::{Answer, Done, Refusal, RenewalAnswer, RenewalEvents};
use crate::command::{Caller, Open, Renewal};
use crate::event::{EndReason, EventKind};
use crate::numbers::{Nonce, Revision, SecretForm, SessionId, SessionNumber};
use crate::time::ClusterTime;

/// What opens a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// An open.
    Open,
    /// An acquire that its caller can repeat under its nonce.
    Acquire,
    /// An acquire that only its one transmission names.
    PlainAcquire,
}

/// A session that an open made or found, and the number of the transmission that asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenedSession {
    pub session: SessionNumber,
    pub number: u64,
}

impl Machine {
    pub(super) fn index_sessions(&mut self) -> Result<(), Contradiction> {
        let sessions: Vec<SessionNumber> = self.state.sessions.iter().map(|(number, _)| number).collect();
        for number in sessions {
            let session = self.state.sessions.get(number).expect("just listed");
            if number.get() > self.state.sessions_opened {
                return Err(Contradiction("a session's number is above the last one given"));
            }
            let Some(pulse) = self.state.pulses.get(number) else {
                return Err(Contradiction("a session has no pulse"));
            };
            *self.ttls.entry(pulse.ttl.into()).or_default() += 1;
            if let Some(nonce) = session.nonce {
                if self.nonces.get(nonce, &self.state.sessions).is_some() {
                    return Err(Contradiction("one nonce opened two sessions"));
                }
                self.nonces.add(nonce, number);
            }
            self.answer_bytes += session.answers.value_bytes();
            self.lapsed_sessions += usize::from(pulse.lapsed);
            self.plain_sessions += usize::from(session.secret.form() == SecretForm::Plain);
            let due_at = self.session_due_at(number).expect("it has a pulse");
            self.deadlines.add(due_at, Due::Session(number));
            self.indexed.insert(number, due_at);
        }
        for used in &self.state.used_nonces {
            if !self.nonces.add_used(used.nonce) || self.named_by(Some(used.nonce)).is_some() {
                return Err(Contradiction("a nonce is used twice"));
            }
        }
        if self.state.pulses.len() != self.state.sessions.len() {
            return Err(Contradiction("a pulse has no session"));
        }
        Ok(())
    }

    /// When the session ends if nothing more arrives from it: at its hard limit, or else at its deadline.
    fn session_ends_at(&self, number: SessionNumber) -> Option<ClusterTime> {
        self.ends_at(number, self.state.sessions.get(number)?)
    }

    fn ends_at(&self, number: SessionNumber, session: &Session) -> Option<ClusterTime> {
        let pulse = self.state.pulses.get(number)?;
        let hard_limit = session.more.as_ref().and_then(|more| more.hard_limit);
        let beyond = hard_limit.map_or(Duration::ZERO, |limit| limit.saturating_sub(pulse.ttl.into()));
        Some(pulse.deadline.plus(beyond))
    }

    /// When time next changes the session: it ends or lapses at its deadline; once lapsed, it ends at its
    /// hard limit.
    fn session_due_at(&self, number: SessionNumber) -> Option<ClusterTime> {
        let pulse = self.state.pulses.get(number)?;
        if pulse.lapsed { self.session_ends_at(number) } else { Some(pulse.deadline) }
    }

    /// Whether time has ended the session or made it lapse, and its records do not say so yet.
    pub(super) fn is_due(&self, number: SessionNumber) -> bool {
        self.session_due_at(number).is_some_and(|due_at| due_at <= self.state.time)
    }

    /// Whether the session counts for grants and guarded writes.
    pub(super) fn is_live(&self, number: SessionNumber) -> bool {
        self.state.pulses.get(number).is_some_and(|pulse| !pulse.lapsed && pulse.deadline > self.state.time)
    }

    /// Whether the session is live, or lapsed and could become live again.
    pub(super) fn has_not_ended(&self, number: SessionNumber) -> bool {
        self.session_ends_at(number).is_some_and(|ends_at| ends_at > self.state.time)
    }

    /// The session of this id, if it has not ended. The secret decides, not the number.
    pub(super) fn known(&self, id: SessionId) -> Result<SessionNumber, Refusal> {
        let ends_later =
            |session| self.ends_at(id.number, session).is_some_and(|ends_at| ends_at > self.state.time);
        match self.state.sessions.get(id.number) {
            Some(session) if session.secret == id.secret && ends_later(session) => Ok(id.number),
            _ => Err(Refusal::UnknownSession),
        }
    }

    /// The session of this id, brought up to date.
    pub(super) fn settled_session(&mut self, id: SessionId) -> Result<SessionNumber, Refusal> {
        let session = self.known(id)?;
        // Nearly always nothing is due anywhere, and it is still what it was found to be.
        if self.clearing() {
            self.settle_session(session);
            self.known(id)?;
        }
        self.check_session(session)?;
        Ok(session)
    }

    /// Ends what is due of this session and has not been cleared away yet, and serves those who were behind
    /// it. After this nothing of it can end in the middle of its own command, and a session that an acquire
    /// opened not with its last lease or wait.
    pub(super) fn settle_session(&mut self, number: SessionNumber) {
        if !self.clearing() {
            return;
        }
        if self.is_due(number) {
            self.clear_ended_session(number);
            self.serve_freed();
        }
        let Some(session) = self.state.sessions.get(number) else { return };
        let leases = session.leases.clone();
        let waiters: Vec<_> = session.more.iter().flat_map(|more| &more.waiters).copied().collect();
        for resource in &leases {
            self.settle(*resource);
        }
        for waiter in waiters {
            self.settle_waiter(waiter);
        }
    }

    pub(super) fn session(&self, number: SessionNumber) -> &Session {
        self.state.sessions.get(number).expect("a session that is named by a record exists")
    }

    pub(super) fn session_mut(&mut self, number: SessionNumber) -> &mut Session {
        self.state.sessions.get_mut(number).expect("a session that is named by a record exists")
    }

    pub(super) fn pulse(&self, number: SessionNumber) -> &Pulse {
        self.state.pulses.get(number).expect("every session has a pulse")
    }

    pub(super) fn pulse_mut(&mut self, number: SessionNumber) -> &mut Pulse {
        self.state.pulses.get_mut(number).expect("every session has a pulse")
    }

    pub(super) fn ttl_of(&self, number: SessionNumber) -> Duration {
        self.pulse(number).ttl.into()
    }

    pub(super) fn session_more(&mut self, number: SessionNumber) -> &mut SessionMore {
        self.session_mut(number).more.get_or_insert_default()
    }

    pub(super) fn session_id(&self, number: SessionNumber) -> SessionId {
        SessionId { number, secret: self.session(number).secret }
    }

    pub(super) fn check_ttl(&self, ttl: Duration) -> Result<(), Refusal> {
        let (min, max) = (self.limits().ttl_min, self.limits().ttl_max);
        // Refused, never clamped: the holder counts with what it asked for.
        if ttl < min || ttl > max { Err(Refusal::InvalidTtl { ttl, min, max }) } else { Ok(()) }
    }

    /// The session that this nonce opened, live or not.
    pub(super) fn named_by(&self, nonce: Option<Nonce>) -> Option<SessionNumber> {
        self.nonces.get(nonce?, &self.state.sessions)
    }

    /// The live session that this nonce opened. One nonce opens one session: refused once that has ended.
    pub(super) fn opened_before(&self, open: &Open) -> Result<Option<SessionNumber>, Refusal> {
        let Some(nonce) = open.nonce else { return Ok(None) };
        let Some(number) = self.named_by(open.nonce) else {
            return if self.nonces.is_used(nonce) { Err(Refusal::NonceUsed) } else { Ok(None) };
        };
        self.check_session(number)?;
        if !self.is_live(number) {
            return Err(Refusal::NonceUsed);
        }
        if self.session(number).holder != open.holder || self.pulse(number).ttl != open.ttl.into() {
            return Err(Refusal::Invalid(
                "this nonce opened a session with another holder or TTL; draw a new one",
            ));
        }
        Ok(Some(number))
    }

    /// Opens a session, or finds the live one that the same nonce opened. Either way its deadline is set
    /// from this entry's time: the answer promises a full TTL, so a repeated open must give one.
    pub(super) fn open(&mut self, open: Open, origin: Origin) -> Result<OpenedSession, Refusal> {
        self.check_ttl(open.ttl)?;
        let deadline = self.state.time.plus(open.ttl);
        if let Some(session) = self.opened_before(&open)? {
            let pulse = self.pulse_mut(session);
            pulse.deadline = deadline;
            pulse.number = pulse.number.max(open.number);
            return Ok(OpenedSession { session, number: open.number });
        }
        self.check_open(open.ttl)?;
        let sessions_max = self.limits().sessions_max;
        if self.state.sessions.len() >= sessions_max as usize {
            return Err(Self::limit("sessions_max", sessions_max));
        }

        self.state.sessions_opened += 1;
        let session = SessionNumber::new(self.state.sessions_opened);
        // A process opens its sessions one after the other: they share one copy of its name.
        let before = SessionNumber::new(session.get() - 1);
        let holder = match self.state.sessions.get(before) {
            Some(before) if before.holder == open.holder => before.holder.clone(),
            _ => open.holder,
        };
        let identity = self.number_of_caller();
        self.state.pulses.insert(
            session,
            Pulse {
                deadline,
                ttl: open.ttl.into(),
                number: open.number,
                last_lease_revision: Revision::default(),
                lapsed: false,
                has_events: false,
            },
        );
        self.state.sessions.insert(
            session,
            Session {
                secret: open.secret,
                holder: holder.clone(),
                nonce: open.nonce,
                identity,
                implicit: origin != Origin::Open,
                plain: origin == Origin::PlainAcquire,
                opened_at: self.state.time,
                leases: Few::default(),
                answers: Answers::default(),
                more: None,
            },
        );
        self.emit(EventKind::Opened { session, holder });
        self.plain_sessions += usize::from(open.secret.form() == SecretForm::Plain);
        if let Some(nonce) = open.nonce {
            self.nonces.add(nonce, session);
        }
        *self.ttls.entry(self.ttl_of(session)).or_default() += 1;
        self.deadlines.add(deadline, Due::Session(session));
        self.indexed.insert(session, deadline);
        Ok(OpenedSession { session, number: open.number })
    }

    pub(super) fn opened_answer(&self, opened: OpenedSession) -> Done {
        Done::Opened {
            session: self.session_id(opened.session),
            holder: self.session(opened.session).holder.clone(),
            ttl: self.ttl_of(opened.session),
            number: opened.number,
        }
    }

    /// Judges one renewal by the time before its entry, which is still the machine's, and sets the deadline
    /// from the entry's stamp.
    pub(super) fn renew(&mut self, renewal: Renewal, at: ClusterTime) -> RenewalAnswer {
        let session = renewal.session;
        // Its deadline may have passed without its records saying so yet. What ends with it has ended;
        // what lapses must lapse first, because a contender in the queue takes it before this renewal.
        if self.is_due(session) && self.has_not_ended(session) {
            self.clear_ended_session(session);
            self.serve_freed();
        }
        if !self.has_not_ended(session) {
            return RenewalAnswer::UnknownSession;
        }
        let now = self.state.time;
        let pulse = self.pulse_mut(session);
        let left = pulse.deadline.remaining_at(now);
        // Number zero is a caller that keeps no numbers. A number that is not above the highest was sent
        // before one that already counted: it sets nothing, and is answered all the same.
        if renewal.number == 0 || renewal.number > pulse.number {
            pulse.number = pulse.number.max(renewal.number);
            pulse.deadline = at.plus(pulse.ttl);
            let ttl = pulse.ttl.into();
            // A contender would have ended it, so a lapsed session that is still here is uncontested.
            if core::mem::take(&mut pulse.lapsed) {
                self.lapsed_sessions -= 1;
                self.recount_hard_limit(session);
                self.index_session(session);
            }
            self.margins.count(left, ttl);
        }
        self.state.totals.renewals += 1;
        self.renewal_answer(renewal)
    }

    /// What a renewal must say at this moment.
    pub(super) fn renewal_answer(&self, renewal: Renewal) -> RenewalAnswer {
        let Some(pulse) = self.state.pulses.get(renewal.session) else {
            return RenewalAnswer::UnknownSession;
        };
        RenewalAnswer::Renewed {
            number: renewal.number,
            ttl: pulse.ttl.into(),
            last_lease_revision: pulse.last_lease_revision,
            events: pulse.has_events.then(|| Box::new(self.renewal_events(renewal.session))),
        }
    }

    pub(super) fn renewal_events(&self, number: SessionNumber) -> RenewalEvents {
        let session = self.session(number);
        let noticed = session
            .leases
            .iter()
            .filter_map(|resource| {
                let resource = self.resource(*resource);
                let hold = resource.hold_of(number)?;
                let notice = hold.notice()?;
                Some((
                    resource.name.clone(),
                    hold.token,
                    notice.why,
                    notice.ends_at.remaining_at(self.state.time),
                ))
            })
            .collect();
        let more = session.more.as_ref();
        let ended = more
            .into_iter()
            .flat_map(|more| &more.events)
            .map(|events| (events.resource.clone(), events.token, events.why))
            .collect();
        RenewalEvents { noticed, ended, incomplete: more.is_some_and(|more| more.ended_lost) }
    }

    /// Sets whether the session's renewals have something to say.
    pub(super) fn refresh_events(&mut self, number: SessionNumber) {
        let session = self.session(number);
        let ended = session.more.as_ref().is_some_and(|more| more.ended_lost || !more.events.is_empty());
        let has_events = ended
            || session.leases.iter().any(|resource| {
                self.resource(*resource).hold_of(number).is_some_and(|hold| hold.notice().is_some())
            });
        self.pulse_mut(number).has_events = has_events;
        self.changed_sessions.push(number);
    }

    pub(super) fn seen(&mut self, id: SessionId, revision: Revision) -> Answer {
        let number = self.settled_session(id)?;
        if let Some(more) = &mut self.session_mut(number).more {
            more.events.retain(|events| events.revision > revision);
            if more.events.is_empty() {
                more.ended_lost = false;
            }
        }
        self.refresh_events(number);
        Ok(Done::Nothing)
    }

    pub(super) fn paused(&mut self, id: SessionId, length: Duration) -> Answer {
        let session = self.settled_session(id)?;
        self.state.totals.pauses += 1;
        let time = self.state.time;
        let reported_at = self.session(session).more.as_ref().and_then(|more| more.pause_reported_at);
        if may_report(reported_at, time) {
            self.session_more(session).pause_reported_at = Some(time);
            let holder = self.session(session).holder.clone();
            self.emit(EventKind::Paused { session, holder, length });
        }
        Ok(Done::Nothing)
    }

    pub(super) fn close(&mut self, by: Caller, why: EndReason) -> Answer {
        let why = match why {
            EndReason::Released | EndReason::Died => why,
            _ => return Err(Refusal::Invalid("a session is closed as released or as died")),
        };
        let number = self.settled_session(by.session)?;
        let released = self.session(number).leases.len() as u32;
        self.end_session(number, why);
        Ok(Done::Closed { released })
    }

    /// Brings the index up to a deadline that moved, or ends the session. Returns how much was cleared away.
    pub(super) fn session_due(&mut self, number: SessionNumber, place: ClusterTime) -> i64 {
        self.indexed.remove(number);
        let Some(due_at) = self.session_due_at(number) else { return 0 };
        if due_at > place {
            // Even if it is due as well, it is not its turn yet, and this counts as nothing cleared: another
            // replica may have made its index again from a snapshot, where every place is exact, and has to
            // clear the same records in the same order, as many in each entry.
            self.deadlines.add(due_at, Due::Session(number));
            self.indexed.insert(number, due_at);
            return 0;
        }
        self.expire_session(number)
    }

    /// Clears away a session whose time has passed; for whoever touches one of its records before the
    /// expiry pass has come to it.
    pub(super) fn clear_ended_session(&mut self, number: SessionNumber) {
        if self.is_due(number) {
            self.expire_session(number);
        }
    }

    fn expire_session(&mut self, number: SessionNumber) -> i64 {
        let cost = 1 + self.session(number).leases.len() as i64;
        let lapses = !self.pulse(number).lapsed
            && self.session(number).more.as_ref().is_some_and(|more| more.hard_limit.is_some());
        if lapses {
            self.lapse(number);
            // The hard limit may lie in the past as well: the server may have stood still in between.
            if self.has_not_ended(number) {
                return cost;
            }
        }
        self.state.totals.sessions_expired += 1;
        // The first renewal has a number above that of the open, or moves the deadline: neither has happened.
        let session = self.session(number);
        let unrenewed = session.opened_at.plus(self.pulse(number).ttl) == self.pulse(number).deadline;
        self.state.totals.plain_unrenewed += u64::from(session.plain && unrenewed);
        self.end_session(number, EndReason::Expired);
        cost
    }

    /// Past the TTL, not yet past the hard limit: what has no hard limit ends, the rest stays until a contender comes.
    fn lapse(&mut self, number: SessionNumber) {
        let due = self.pulse(number).deadline;
        self.pulse_mut(number).lapsed = true;
        self.lapsed_sessions += 1;
        self.index_session(number);
        let holder = self.session(number).holder.clone();
        self.emit(EventKind::Lapsed { session: number, holder });
        self.drop_waiters(number, EndReason::Expired, &Err(Refusal::Lapsed));
        for resource in self.session(number).leases.clone().iter().copied() {
            let keeps = self
                .resource(resource)
                .hold_of(number)
                .is_some_and(|hold| hold.policies().hard_limit.is_some());
            if keeps {
                // Whoever waits in the queue for it is a contender: serving the queue ends this session.
                self.freed.push(resource);
            } else {
                self.end_lease(
                    resource,
                    number,
                    Ending { due: Some(due), ..Ending::imposed(EndReason::Expired) },
                );
            }
        }
    }

    /// A contender has come for what a lapsed session holds.
    pub(super) fn take_over(&mut self, number: SessionNumber) {
        self.end_session(number, EndReason::TakenOver);
    }

    /// Ends a session: its leases, its places in the queue, its ephemeral registers, and then itself.
    pub(super) fn end_session(&mut self, number: SessionNumber, why: EndReason) {
        let due = self.session_due_at(number).filter(|_| why == EndReason::Expired);
        self.drop_waiters(number, why, &Err(Refusal::UnknownSession));
        for resource in self.session(number).leases.clone().iter().copied() {
            self.end_lease(resource, number, Ending { due, session_ends: true, ..Ending::imposed(why) });
        }
        self.drop_ephemerals(number);

        if let Some(at) = self.indexed.remove(number) {
            self.deadlines.remove(at, Due::Session(number));
        }
        let pulse = self.state.pulses.remove(number).expect("every session has a pulse");
        let session = self.state.sessions.remove(number).expect("a session that ends exists");
        self.lapsed_sessions -= usize::from(pulse.lapsed);
        self.plain_sessions -= usize::from(session.secret.form() == SecretForm::Plain);
        if let Some(nonce) = session.nonce {
            self.nonces.remove(nonce, number);
            // Nobody repeats a plain acquire, so nobody need be notified.
            if !session.plain {
                self.nonce_used(nonce);
            }
        }
        let ttl = pulse.ttl.into();
        if let Some(count) = self.ttls.get_mut(&ttl) {
            *count -= 1;
            if *count == 0 {
                self.ttls.remove(&ttl);
            }
        }
        self.answer_bytes -= session.answers.value_bytes();
        self.changed_sessions.push(number);
        let identity = self.forget_identity(session.identity);
        self.emit_about(EventKind::Closed { session: number, holder: session.holder, why }, identity);
    }

    /// Ends a session that an acquire opened, once it neither holds nor awaits anything.
    pub(super) fn end_if_implicit_and_idle(&mut self, number: SessionNumber, why: EndReason) {
        let Some(session) = self.state.sessions.get(number) else { return };
        let waits = session.more.as_ref().is_some_and(|more| !more.waiters.is_empty());
        if session.implicit && session.leases.is_empty() && !waits {
            self.end_session(number, why);
        }
    }

    fn index_session(&mut self, number: SessionNumber) {
        let due_at = self.session_due_at(number).expect("only sessions that exist are indexed");
        if let Some(old) = self.indexed.remove(number) {
            self.deadlines.remove(old, Due::Session(number));
        }
        self.deadlines.add(due_at, Due::Session(number));
        self.indexed.insert(number, due_at);
    }
}
