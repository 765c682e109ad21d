//! Numbered commands and their remembered answers: what makes a retry harmless.
//!
//! A repeated number gets the same answer again and does nothing again; a forgotten one is refused. So no
//! ghost acquire after a release, no zombie waiter after a cancel, no compare-and-set that fails on its
//! own success.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Machine;
use super::state::{Answers, Remembered, RememberedGrant, WaiterNumber};
use crate::answer::{Answer, Done, Grant, Refusal};
use crate::command::Caller;
use crate::numbers::SessionNumber;

/// Whether a command is for live sessions only, or also for lapsed ones.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    Live,
    NotEnded,
}

impl Answers {
    fn find(&self, number: u64) -> Result<usize, usize> {
        self.remembered.binary_search_by_key(&number, |(n, _)| *n)
    }

    pub(super) fn get(&self, number: u64) -> Option<&Remembered> {
        self.find(number).ok().map(|at| &self.remembered[at].1)
    }

    fn set(&mut self, number: u64, remembered: Remembered) {
        match self.find(number) {
            Ok(at) => self.remembered[at].1 = remembered,
            Err(at) => self.remembered.insert(at, (number, remembered)),
        }
    }

    /// Bytes of register values that are kept alive only by being remembered here.
    pub(super) fn value_bytes(&self) -> u64 {
        self.remembered.iter().map(|(_, remembered)| remembered.value_bytes()).sum()
    }
}

impl Remembered {
    fn value_bytes(&self) -> u64 {
        match self {
            Remembered::Answered(answer) => match &**answer {
                Ok(Done::Written { results, .. }) => results
                    .iter()
                    .filter_map(|register| register.value.as_ref())
                    .map(|value| value.len() as u64)
                    .sum(),
                _ => 0,
            },
            _ => 0,
        }
    }
}

impl Machine {
    /// Runs a command of a session under its number: once, however often it arrives.
    pub(super) fn numbered(
        &mut self,
        by: Caller,
        needs: Needs,
        run: impl FnOnce(&mut Machine, SessionNumber) -> Answer,
    ) -> Answer {
        let session = self.settled_session(by.session)?;
        self.forget_answers(session, by.lowest_awaited);
        let Some(number) = by.number else {
            self.check_needs(session, needs)?;
            return run(self, session);
        };
        if number < self.session(session).answers.floor {
            return Err(Refusal::ForgottenNumber { number });
        }
        if let Some(remembered) = self.session(session).answers.get(number) {
            return self.recall(session, remembered);
        }
        self.room_to_remember(session)?;
        // Remembered as well if the session has lapsed: or a copy that arrives after the next renewal would
        // do what its caller was told had been refused.
        let answer = self.check_needs(session, needs).and_then(|()| run(self, session));
        // The command may have ended its own session (a cancel of the acquire that opened it).
        if self.state.sessions.get(session).is_some() && !matches!(answer, Ok(Done::Queued { .. })) {
            self.remember(session, number, &answer);
        }
        answer
    }

    /// Refuses when the session has left too many answers unforgotten. A client that keeps no more commands
    /// in flight than this never meets it.
    pub(super) fn room_to_remember(&self, session: SessionNumber) -> Result<(), Refusal> {
        let answers_max = self.limits().answers_per_session_max;
        if self.session(session).answers.remembered.len() >= answers_max as usize {
            return Err(Self::limit("answers_per_session_max", answers_max));
        }
        Ok(())
    }

    fn check_needs(&self, session: SessionNumber, needs: Needs) -> Result<(), Refusal> {
        if needs == Needs::Live && !self.is_live(session) { Err(Refusal::Lapsed) } else { Ok(()) }
    }

    /// The client awaits nothing below `lowest_awaited` any more.
    fn forget_answers(&mut self, session: SessionNumber, lowest_awaited: u64) {
        if lowest_awaited <= self.session(session).answers.floor {
            return;
        }
        let answers = &mut self.session_mut(session).answers;
        answers.floor = lowest_awaited;
        let keep_from = answers.remembered.partition_point(|(number, _)| *number < lowest_awaited);
        let forgotten = &answers.remembered[..keep_from];
        let freed: u64 = forgotten.iter().map(|(_, remembered)| remembered.value_bytes()).sum();
        answers.remembered.drop_first(keep_from);
        self.answer_bytes -= freed;
    }

    pub(super) fn remember(&mut self, session: SessionNumber, number: u64, answer: &Answer) {
        let remembered = match answer {
            Ok(Done::Granted { grants, .. }) => Remembered::Granted(
                grants
                    .iter()
                    .map(|grant| RememberedGrant {
                        resource: grant.resource.clone(),
                        mode: grant.mode,
                        slot: grant.slot,
                        token: grant.token,
                        generation: grant.generation,
                        remaining: grant.remaining.into(),
                        waited: grant.waited.into(),
                    })
                    .collect(),
            ),
            other => Remembered::Answered(Box::new(other.clone())),
        };
        self.set_remembered(session, number, remembered);
    }

    fn set_remembered(&mut self, session: SessionNumber, number: u64, remembered: Remembered) {
        let answers = &mut self.session_mut(session).answers;
        let replaced = answers.get(number).map_or(0, Remembered::value_bytes);
        let bytes = remembered.value_bytes();
        answers.set(number, remembered);
        self.answer_bytes = self.answer_bytes + bytes - replaced;
    }

    /// Remembers what became of an acquire while nobody was asking; unless its number is forgotten already.
    pub(super) fn remember_if_awaited(
        &mut self,
        session: SessionNumber,
        number: Option<u64>,
        answer: &Answer,
    ) {
        if let Some(number) = number
            && number >= self.session(session).answers.floor
        {
            self.remember(session, number, answer);
        }
    }

    pub(super) fn remember_waiting(&mut self, session: SessionNumber, number: u64, waiter: WaiterNumber) {
        self.set_remembered(session, number, Remembered::Waiting(waiter));
    }

    pub(super) fn remember_cancelled(&mut self, session: SessionNumber, number: u64) {
        self.set_remembered(session, number, Remembered::Cancelled);
    }

    fn recall(&self, session: SessionNumber, remembered: &Remembered) -> Answer {
        match remembered {
            Remembered::Waiting(waiter) => Ok(self.queued_answer(*waiter)),
            Remembered::Cancelled => Err(Refusal::Cancelled),
            Remembered::Answered(answer) => (**answer).clone(),
            Remembered::Granted(grants) => Ok(Done::Granted {
                grants: grants
                    .iter()
                    .map(|grant| Grant {
                        resource: grant.resource.clone(),
                        session: self.session_id(session),
                        holder: self.session(session).holder.clone(),
                        mode: grant.mode,
                        slot: grant.slot,
                        token: grant.token,
                        generation: grant.generation,
                        remaining: grant.remaining.into(),
                        ttl: self.pulse(session).ttl,
                        waited: grant.waited.into(),
                        // As it is now: a fence that was brought meanwhile wants the token, too.
                        fences: self
                            .names
                            .get(&grant.resource)
                            .map_or_else(Vec::new, |number| self.fence_set(*number)),
                    })
                    .collect(),
                opened: None,
            }),
        }
    }
}
