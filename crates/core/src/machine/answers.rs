//! Numbered commands and their remembered answers: what makes a retry harmless.
//!
//! A repeated number gets the same answer again and does nothing again; a forgotten one is refused. So no
//! ghost acquire after a release, no zombie waiter after a cancel, no compare-and-set that fails on its
//! own success.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use super::Machine;
use super::state::{Answers, Remembered, RememberedGrant, ResourceNumber, Session, State, WaiterNumber};
use crate::answer::{Answer, Done, Grant, Refusal};
use crate::command::Caller;
use crate::event::EndReason;
use crate::numbers::{SessionNumber, Token};
use crate::time::Span;

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

impl State {
    /// The grant that a session got when it was granted, at once, what it holds to this day.
    pub(super) fn remembered_grant(
        &self,
        session: SessionNumber,
        number: ResourceNumber,
        remaining: Span,
    ) -> RememberedGrant {
        let resource = self.resources.get(number).expect("a resource that is held exists");
        let hold = resource.hold_of(session).expect("what is remembered as held is held");
        RememberedGrant {
            resource: resource.name.clone(),
            mode: hold.mode,
            slot: hold.slot,
            token: hold.token,
            generation: hold.generation,
            remaining,
            waited: Span::default(),
        }
    }

    /// The session with all of its answers spelled out, as they stand in snapshots.
    pub fn spelled_out<'a>(&self, number: SessionNumber, session: &'a Session) -> Cow<'a, Session> {
        let mut spelled = Cow::Borrowed(session);
        for (at, (_, remembered)) in session.answers.remembered.iter().enumerate() {
            if let Remembered::Holding(resource, remaining) = *remembered {
                let remembered_grant = self.remembered_grant(number, resource, remaining);
                spelled.to_mut().answers.remembered[at].1 = Remembered::Granted(vec![remembered_grant]);
            }
        }
        spelled
    }

    /// Makes an answer that was spelled out refer to the lease wherever that says the same: the form in which a machine keeps it.
    pub fn refer_to_leases(&mut self) {
        let mut referring = Vec::new();
        for (number, session) in self.sessions.iter() {
            let mut leases = None;
            for (at, (_, remembered)) in session.answers.remembered.iter().enumerate() {
                let Remembered::Granted(grants) = remembered else { continue };
                let [grant] = &grants[..] else { continue };
                let leases = leases.get_or_insert_with(|| self.leases_by_token(number, session));
                if let Ok(found) = leases.binary_search_by_key(&grant.token, |(token, _)| *token)
                    && self.remembered_grant(number, leases[found].1, grant.remaining) == *grant
                {
                    referring.push((number, at, Remembered::Holding(leases[found].1, grant.remaining)));
                }
            }
        }
        for (number, at, remembered) in referring {
            let session = self.sessions.get_mut(number).expect("just seen");
            session.answers.remembered[at].1 = remembered;
        }
    }

    /// What a session holds, in the order of tokens.
    fn leases_by_token(&self, number: SessionNumber, session: &Session) -> Vec<(Token, ResourceNumber)> {
        let token =
            |lease: &ResourceNumber| Some((self.resources.get(*lease)?.hold_of(number)?.token, *lease));
        let mut leases: Vec<_> = session.leases.iter().filter_map(token).collect();
        leases.sort_unstable();
        leases
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
        let answers = &self.session(session).answers;
        if number < answers.floor {
            return Err(Refusal::ForgottenNumber { number });
        }
        if let Some(remembered) = answers.get(number) {
            return self.recall(session, remembered);
        }
        self.room_to_remember(answers)?;
        // Remembered as well if the session has lapsed: or a copy that arrives after the next renewal would
        // do what had been refused to its caller.
        let answer = self.check_needs(session, needs).and_then(|()| run(self, session));
        // The command may have ended its own session (a cancel of the acquire that opened it).
        if self.state.sessions.get(session).is_some() && !matches!(answer, Ok(Done::Queued { .. })) {
            self.remember(session, number, &answer);
        }
        answer
    }

    /// Refuses when the session has left too many answers unforgotten. A client that keeps no more commands
    /// in flight than this never meets it.
    pub(super) fn room_to_remember(&self, answers: &Answers) -> Result<(), Refusal> {
        let answers_max = self.limits().answers_per_session_max;
        if answers.remembered.len() >= answers_max as usize {
            return Err(Self::limit("answers_per_session_max", answers_max));
        }
        Ok(())
    }

    fn check_needs(&self, session: SessionNumber, needs: Needs) -> Result<(), Refusal> {
        if needs == Needs::Live && !self.is_live(session) { Err(Refusal::Lapsed) } else { Ok(()) }
    }

    /// The client awaits nothing below `lowest_awaited` any more.
    fn forget_answers(&mut self, session: SessionNumber, lowest_awaited: u64) {
        let answers = &self.session(session).answers;
        if lowest_awaited <= answers.floor {
            return;
        }
        // Nobody awaits these acquires any more, so nobody would learn of their grant: they leave the queue.
        let given_up = answers.remembered.iter().take_while(|(number, _)| *number < lowest_awaited);
        let given_up: Vec<WaiterNumber> = given_up
            .filter_map(|(_, remembered)| match remembered {
                Remembered::Waiting(waiter) => Some(*waiter),
                _ => None,
            })
            .collect();
        for waiter in &given_up {
            let cancelled = Refusal::Cancelled { released: false };
            self.leave_queue(*waiter, EndReason::Released, Err(cancelled));
        }
        let answers = &mut self.session_mut(session).answers;
        answers.floor = lowest_awaited;
        let keep_from = answers.remembered.partition_point(|(number, _)| *number < lowest_awaited);
        let forgotten = &answers.remembered[..keep_from];
        let freed: u64 = forgotten.iter().map(|(_, remembered)| remembered.value_bytes()).sum();
        answers.remembered.drop_first(keep_from);
        self.answer_bytes -= freed;
        // Whoever was queued behind them goes before what this command asks for.
        if !given_up.is_empty() {
            self.serve_freed();
        }
    }

    pub(super) fn remember(&mut self, session: SessionNumber, number: u64, answer: &Answer) {
        let remembered = match answer {
            Ok(Done::Granted { grants, .. }) => self.remembered_grants(session, grants),
            other => Remembered::Answered(Box::new(other.clone())),
        };
        self.set_remembered(session, number, remembered);
    }

    fn remembered_grants(&self, session: SessionNumber, grants: &[Grant]) -> Remembered {
        if let [grant] = grants
            && grant.waited.is_zero()
            && let Some(number) = self.held_under(session, grant)
        {
            return Remembered::Holding(number, grant.remaining.into());
        }
        let spelled_out = |grant: &Grant| RememberedGrant {
            resource: grant.resource.clone(),
            mode: grant.mode,
            slot: grant.slot,
            token: grant.token,
            generation: grant.generation,
            remaining: grant.remaining.into(),
            waited: grant.waited.into(),
        };
        Remembered::Granted(grants.iter().map(spelled_out).collect())
    }

    /// The record of the lease that this grant made, if the session still holds it.
    fn held_under(&self, session: SessionNumber, grant: &Grant) -> Option<ResourceNumber> {
        let made_by = |number: &ResourceNumber| {
            self.resource(*number).hold_of(session).is_some_and(|hold| hold.token == grant.token)
        };
        // Nearly always there are few leases, and looking at them is less work than searching by name.
        match &self.session(session).leases[..] {
            few @ [_] | few @ [_, _] => few.iter().copied().find(made_by),
            _ => self.names.get(&grant.resource).copied().filter(made_by),
        }
    }

    /// A lease is about to end: what refers to it is spelled out.
    pub(super) fn spell_out(&mut self, session: SessionNumber, number: ResourceNumber) {
        let refers = |(at, (_, remembered)): (usize, &(u64, Remembered))| match remembered {
            Remembered::Holding(resource, remaining) if *resource == number => Some((at, *remaining)),
            _ => None,
        };
        // Nearly always the client has seen the answer, and nothing is remembered any more.
        while let Some((at, remaining)) =
            self.session(session).answers.remembered.iter().enumerate().find_map(refers)
        {
            let remembered_grant = self.state.remembered_grant(session, number, remaining);
            self.session_mut(session).answers.remembered[at].1 = Remembered::Granted(vec![remembered_grant]);
        }
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

    pub(super) fn remember_cancelled(&mut self, session: SessionNumber, number: u64, released: bool) {
        self.set_remembered(session, number, Remembered::Cancelled { released });
    }

    fn recall(&self, session: SessionNumber, remembered: &Remembered) -> Answer {
        match remembered {
            Remembered::Holding(number, remaining) => {
                let remembered_grant = self.state.remembered_grant(session, *number, *remaining);
                self.recall(session, &Remembered::Granted(vec![remembered_grant]))
            }
            Remembered::Waiting(waiter) => Ok(self.queued_answer(*waiter)),
            Remembered::Cancelled { released } => Err(Refusal::Cancelled { released: *released }),
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
                        ttl: self.ttl_of(session),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Acquire, AcquireBy, Command, Entry, Mode, Open, Policies, Wait};
    use crate::{ClusterTime, Secret, SessionId, WallTime};
    use core::time::Duration;

    const SESSION: SessionId = SessionId { number: SessionNumber::new(1), secret: Secret::new([9; 16]) };

    fn by(number: u64) -> Caller {
        Caller { session: SESSION, number: Some(number), lowest_awaited: 1 }
    }

    fn acquire(number: u64, name: &str) -> Command {
        Command::Acquire(Box::new(Acquire {
            by: AcquireBy::Session(by(number)),
            resources: vec![name.parse().expect("a name")],
            mode: Mode::Exclusive,
            wait: Wait::No,
            policies: Policies::default(),
            fences: Vec::new(),
            transmission: None,
        }))
    }

    fn ask(machine: &mut Machine, seconds: u64, command: Command) -> Answer {
        let at = ClusterTime::from_micros(seconds * 1_000_000);
        let entry = Entry { at, wall: WallTime::default(), renewals: Vec::new(), commands: vec![command] };
        let again = Machine::from_state(machine.capture()).expect("sound");
        assert_eq!(again.capture(), machine.capture(), "a restart keeps answers in the same form");
        machine.apply(entry).answers.remove(0)
    }

    fn forms(machine: &Machine) -> Vec<bool> {
        let session = machine.session(SESSION.number);
        let refers = |remembered: &Remembered| matches!(remembered, Remembered::Holding(..));
        session.answers.remembered.iter().map(|(_, remembered)| refers(remembered)).collect()
    }

    /// An answer refers to the lease that it is about for as long as there is that lease, and is the same before and after.
    #[test]
    fn a_grant_is_repeated_word_by_word_whether_or_not_it_is_still_held() {
        let mut machine = Machine::default();
        let open = Open {
            holder: "one".parse().expect("a holder"),
            ttl: Duration::from_secs(60),
            nonce: None,
            secret: SESSION.secret,
            number: 1,
        };
        ask(&mut machine, 1, Command::Open(open)).expect("opened");
        let first = ask(&mut machine, 2, acquire(2, "a"));
        let second = ask(&mut machine, 3, acquire(3, "b"));
        let third = ask(&mut machine, 4, acquire(4, "c"));
        assert_eq!(forms(&machine), [true, true, true]);
        assert_eq!(ask(&mut machine, 5, acquire(2, "a")), first, "held");
        let release =
            Command::Release { by: by(5), resource: "b".parse().expect("a name"), token: None, rest: None };
        ask(&mut machine, 6, release).expect("released");
        assert_eq!(forms(&machine), [true, false, true, false]);
        assert_eq!(ask(&mut machine, 7, acquire(3, "b")), second, "no longer held");
        // The same name once more is another lease: the old answer stays the old one.
        ask(&mut machine, 8, acquire(6, "b")).expect("granted");
        assert_eq!(ask(&mut machine, 9, acquire(3, "b")), second, "held again, by another grant");
        assert_eq!(ask(&mut machine, 10, acquire(2, "a")), first);
        assert_eq!(ask(&mut machine, 11, acquire(4, "c")), third);

        let state = machine.capture();
        let session = state.sessions.get(SESSION.number).expect("open");
        let spelled = state.spelled_out(SESSION.number, session).into_owned();
        let refers = |(_, remembered): &(u64, Remembered)| matches!(remembered, Remembered::Holding(..));
        assert!(
            !spelled.answers.remembered.iter().any(refers),
            "a snapshot needs no other record to be read"
        );
        let mut read = state.clone();
        *read.sessions.get_mut(SESSION.number).expect("open") = spelled;
        assert_ne!(read, state);
        read.refer_to_leases();
        assert_eq!(read, state);
    }
}
