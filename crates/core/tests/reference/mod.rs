//! The lease store once more, as plainly as it can be written: flat lists, no indexes, everything looked up
//! from scratch, everything due ended at once. Too slow to serve anybody; easy to hold against the design.
//!
//! It gives the same answers and shows the same views as the machine. It knows nothing of limits, events
//! or clearing in portions.

mod leases;
mod registers;

use std::time::Duration;

use tenure_core::*;

pub struct Model {
    pub time: ClusterTime,
    pub revision: u64,
    pub last_token: u64,
    opened: u64,
    arrived: u64,
    /// Whether the step being done has raised the revision.
    raised: bool,
    /// Sessions that have not ended, in the order of their numbers.
    sessions: Vec<Session>,
    /// Resources in the order in which they were first named.
    resources: Vec<Resource>,
    /// All leases of all resources, the oldest first.
    leases: Vec<Lease>,
    /// All waiters, in the order of their arrival.
    waiters: Vec<Waiter>,
    registers: Vec<RegisterRecord>,
    /// Nonces that can open nothing any more; the reference never forgets one.
    used_nonces: Vec<Nonce>,
    /// The agreed format version; behaviour depends on it.
    format: FormatVersion,
    /// The waits that the entry being applied has ended.
    pub resolved: Vec<Resolved>,
}

#[derive(Clone)]
struct Session {
    id: SessionId,
    holder: HolderName,
    ttl: Duration,
    nonce: Option<Nonce>,
    implicit: bool,
    plain: bool,
    opened_at: ClusterTime,
    deadline: ClusterTime,
    number: u64,
    /// Set once it has lapsed: the hard limit that then holds for it.
    lapsed: Option<Duration>,
    last_lease_revision: u64,
    pause_reported_at: Option<ClusterTime>,
    events: Vec<(u64, ResourceName, Token, EndReason)>,
    floor: u64,
    answers: Vec<(u64, Remembered)>,
}

#[derive(Clone)]
enum Remembered {
    Waiting(u64),
    Cancelled(bool),
    Answered(Answer),
}

#[derive(Clone)]
struct Resource {
    name: ResourceName,
    kind: Option<KindSetting>,
    generation: u64,
    last_token: u64,
    delayed_until: Option<ClusterTime>,
    slot_tokens: Vec<(Slot, Token)>,
    fences: Vec<(FenceName, Armed)>,
    history: Vec<PastLease>,
}

/// The newest token that a fence has installed, by slot.
type Armed = Vec<(Option<Slot>, Token)>;

#[derive(Clone)]
struct Lease {
    resource: usize,
    session: u64,
    token: Token,
    generation: u64,
    mode: Mode,
    slot: Option<Slot>,
    since: ClusterTime,
    policies: Policies,
    reentered: u32,
    notice: Option<(EndReason, ClusterTime)>,
    transmissions: Vec<TransmissionId>,
}

#[derive(Clone)]
struct Waiter {
    arrival: u64,
    session: u64,
    number: Option<u64>,
    resources: Vec<usize>,
    mode: Mode,
    policies: Policies,
    fences: Vec<FenceName>,
    since: ClusterTime,
    until: Option<ClusterTime>,
    transmissions: Vec<TransmissionId>,
    /// A call that can be repeated waits beside transmissions that cannot.
    kept_by_repeatable: bool,
}

struct RegisterRecord {
    key: RegisterKey,
    guard: Option<Scope>,
    content: Option<Content>,
}

struct Content {
    value: std::sync::Arc<[u8]>,
    create_revision: u64,
    mod_revision: u64,
    version: u64,
    session: Option<u64>,
}

/// What time brings about, in the order in which things of one moment happen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Session(u64),
    Notice(usize, u64),
    Wait(u64),
    Delay(usize),
    Hold(usize, u64),
}

impl Model {
    pub fn new() -> Self {
        Model {
            time: ClusterTime::ZERO,
            revision: 0,
            last_token: 0,
            opened: 0,
            arrived: 0,
            raised: false,
            sessions: vec![],
            resources: vec![],
            leases: vec![],
            waiters: vec![],
            registers: vec![],
            used_nonces: vec![],
            format: FormatVersion::OLDEST,
            resolved: vec![],
        }
    }

    /// The design's order within an entry, word for word.
    pub fn apply(&mut self, entry: &Entry) -> (Vec<RenewalAnswer>, Vec<Answer>) {
        let at = entry.at.max(self.time);
        self.resolved.clear();
        let renewed: Vec<bool> = entry.renewals.iter().map(|renewal| self.renew(renewal, at)).collect();
        self.time = at;
        self.end_everything_due();
        self.finish_step();
        let mut answers = Vec::new();
        for command in &entry.commands {
            answers.push(self.command(command));
            self.finish_step();
        }
        let renewals = entry.renewals.iter().zip(renewed);
        (renewals.map(|(renewal, renewed)| self.renewal_answer(renewal, renewed)).collect(), answers)
    }

    fn command(&mut self, command: &Command) -> Answer {
        match command.clone() {
            Command::Open(open) => {
                let number = open.number;
                let session = self.open(open, false, false)?;
                let session = self.session(session);
                Ok(Done::Opened {
                    session: session.id,
                    holder: session.holder.clone(),
                    ttl: session.ttl,
                    number,
                })
            }
            Command::Close { by, why } => {
                let session = self.known(by.session)?;
                let released = self.leases.iter().filter(|lease| lease.session == session).count() as u32;
                self.end_session(session, why);
                Ok(Done::Closed { released })
            }
            Command::Acquire(acquire) => self.acquire(*acquire),
            Command::Cancel { by, acquire } => self.cancel(by, acquire),
            Command::CancelNonce { nonce } => self.cancel_nonce(nonce),
            Command::Undo { session, transmission } => self.undo(session, transmission),
            Command::Upgrade { to } => {
                if to > self.format {
                    self.format = to;
                    self.raise();
                }
                Ok(Done::Nothing)
            }
            Command::Release { rest: Some(rest), .. } if rest > Limits::default().ttl_max => {
                Err(Refusal::Invalid("rest must not be above the longest TTL"))
            }
            Command::Release { by, resource, token, rest } => self.numbered(by, false, |model, session| {
                let released = model.give_back(session, &resource, token);
                if let Some(rest) = rest.filter(|rest| released && !rest.is_zero()) {
                    model.rest(session, &resource, rest);
                }
                model.end_if_implicit_and_idle(session, EndReason::Released);
                Ok(Done::Released { released })
            }),
            Command::Transfer { by, resource, to } => {
                self.numbered(by, true, |model, session| model.transfer(session, &resource, to))
            }
            Command::Revoke { resource, session, now, .. } => self.revoke(&resource, session, now),
            Command::Seen { session, revision } => {
                let session = self.known(session)?;
                self.session_mut(session).events.retain(|(at, ..)| *at > revision.get());
                Ok(Done::Nothing)
            }
            Command::Write(write) => self.write(*write),
            Command::Barrier { resource } => self.barrier(&resource),
            Command::Arm { scope, fence, token } => self.arm(&scope, &fence, token),
            Command::SetKind { resource, kind } => {
                let held = |i: usize| self.leases.iter().any(|lease| lease.resource == i);
                let awaited = |i: usize| self.waiters.iter().any(|waiter| waiter.resources.contains(&i));
                if self.find(&resource).is_some_and(|i| held(i) || awaited(i)) {
                    return Err(Refusal::InUse { resource });
                }
                let i = self.named(&resource);
                self.resources[i].kind = kind;
                self.raise();
                Ok(Done::Nothing)
            }
            Command::Rebind { key, guard } => self.rebind(&key, guard),
            Command::Paused { session, .. } => {
                let number = self.known(session)?;
                let time = self.time;
                let reported_at = &mut self.session_mut(number).pause_reported_at;
                if reported_at.is_none_or(|reported_at| time.since(reported_at) >= Duration::from_secs(1)) {
                    *reported_at = Some(time);
                    self.raise();
                }
                Ok(Done::Nothing)
            }
            other => unimplemented!("the reference does not know {other:?}"),
        }
    }

    /// The revision is raised once by each step that changes something visible.
    fn raise(&mut self) -> u64 {
        if !self.raised {
            self.revision += 1;
            self.raised = true;
        }
        self.revision
    }

    fn finish_step(&mut self) {
        self.serve();
        self.raised = false;
    }

    // Sessions.

    fn session(&self, number: u64) -> &Session {
        self.sessions.iter().find(|session| session.id.number.get() == number).expect("it has not ended")
    }

    fn session_mut(&mut self, number: u64) -> &mut Session {
        self.sessions.iter_mut().find(|session| session.id.number.get() == number).expect("it has not ended")
    }

    fn exists(&self, number: u64) -> bool {
        self.sessions.iter().any(|session| session.id.number.get() == number)
    }

    fn known(&self, id: SessionId) -> Result<u64, Refusal> {
        let found = self.sessions.iter().find(|session| session.id == id);
        found.map(|session| session.id.number.get()).ok_or(Refusal::UnknownSession)
    }

    fn is_live(&self, number: u64) -> bool {
        let found = self.sessions.iter().find(|session| session.id.number.get() == number);
        found.is_some_and(|session| session.lapsed.is_none() && session.deadline > self.time)
    }

    /// The smallest hard limit among a session's leases.
    fn hard_limit(&self, number: u64) -> Option<Duration> {
        let leases = self.leases.iter().filter(|lease| lease.session == number);
        leases.filter_map(|lease| lease.policies.hard_limit).min()
    }

    /// When time next changes this session.
    fn due_at(&self, session: &Session) -> ClusterTime {
        match session.lapsed {
            None => session.deadline,
            Some(hard_limit) => session.deadline.plus(hard_limit - session.ttl),
        }
    }

    fn renew(&mut self, renewal: &Renewal, at: ClusterTime) -> bool {
        let number = renewal.session.get();
        if !self.exists(number) || self.due_at(self.session(number)) <= self.time {
            return false;
        }
        let session = self.session_mut(number);
        if renewal.number == 0 || renewal.number > session.number {
            session.number = session.number.max(renewal.number);
            session.deadline = at.plus(session.ttl);
            session.lapsed = None;
        }
        true
    }

    fn renewal_answer(&self, renewal: &Renewal, renewed: bool) -> RenewalAnswer {
        let number = renewal.session.get();
        if !renewed || !self.exists(number) {
            return RenewalAnswer::UnknownSession;
        }
        let session = self.session(number);
        let noticed: Vec<_> = self
            .leases_of_session(number)
            .into_iter()
            .filter_map(|lease| {
                let (why, ends_at) = lease.notice?;
                let name = self.resources[lease.resource].name.clone();
                Some((name, lease.token, why, ends_at.remaining_at(self.time)))
            })
            .collect();
        let ended: Vec<_> =
            session.events.iter().map(|(_, name, token, why)| (name.clone(), *token, *why)).collect();
        let events = RenewalEvents { noticed, ended, incomplete: false };
        RenewalAnswer::Renewed {
            number: renewal.number,
            ttl: session.ttl,
            last_lease_revision: Revision::new(session.last_lease_revision),
            events: (events != RenewalEvents::default()).then(|| Box::new(events)),
        }
    }

    fn check_ttl(ttl: Duration) -> Result<(), Refusal> {
        let limits = Limits::default();
        if ttl < limits.ttl_min || ttl > limits.ttl_max {
            return Err(Refusal::InvalidTtl { ttl, min: limits.ttl_min, max: limits.ttl_max });
        }
        Ok(())
    }

    fn opened_before(&self, open: &Open) -> Result<Option<u64>, Refusal> {
        let Some(nonce) = open.nonce else { return Ok(None) };
        match self.sessions.iter().find(|session| session.nonce == Some(nonce)) {
            None if self.used_nonces.contains(&nonce) => Err(Refusal::NonceUsed),
            None => Ok(None),
            Some(session) if !self.is_live(session.id.number.get()) => Err(Refusal::NonceUsed),
            Some(session) if session.holder == open.holder && session.ttl == open.ttl => {
                Ok(Some(session.id.number.get()))
            }
            Some(_) => Err(Refusal::Invalid(
                "this nonce opened a session with another holder or TTL; draw a new one",
            )),
        }
    }

    fn open(&mut self, open: Open, implicit: bool, plain: bool) -> Result<u64, Refusal> {
        Self::check_ttl(open.ttl)?;
        let deadline = self.time.plus(open.ttl);
        if let Some(number) = self.opened_before(&open)? {
            let session = self.session_mut(number);
            session.deadline = deadline;
            session.number = session.number.max(open.number);
            return Ok(number);
        }
        self.opened += 1;
        self.raise();
        self.sessions.push(Session {
            id: SessionId { number: SessionNumber::new(self.opened), secret: open.secret },
            holder: open.holder,
            ttl: open.ttl,
            nonce: open.nonce,
            implicit,
            plain,
            opened_at: self.time,
            deadline,
            number: open.number,
            lapsed: None,
            last_lease_revision: 0,
            pause_reported_at: None,
            events: vec![],
            floor: 0,
            answers: vec![],
        });
        Ok(self.opened)
    }

    fn end_session(&mut self, number: u64, why: EndReason) {
        self.drop_waiters(number, Err(Refusal::UnknownSession));
        while let Some(lease) = self.leases_of_session(number).first() {
            let (resource, session) = (lease.resource, lease.session);
            self.end_lease(resource, session, why, false, true);
        }
        self.drop_ephemerals(number);
        let session = self.session(number);
        let used = session.nonce.filter(|_| !session.plain);
        self.used_nonces.extend(used);
        self.sessions.retain(|session| session.id.number.get() != number);
        self.raise();
    }

    fn drop_waiters(&mut self, session: u64, answer: Answer) {
        while let Some(waiter) = self.waiters.iter().find(|waiter| waiter.session == session).cloned() {
            self.leave_queue(waiter.arrival, answer.clone());
            self.remember_if_awaited(session, waiter.number, answer.clone());
        }
    }

    fn end_if_implicit_and_idle(&mut self, number: u64, why: EndReason) {
        let holds = self.leases.iter().any(|lease| lease.session == number);
        let waits = self.waiters.iter().any(|waiter| waiter.session == number);
        if self.exists(number) && self.session(number).implicit && !holds && !waits {
            self.end_session(number, why);
        }
    }

    // Time.

    /// Everything that has come due, the earliest first, one by one, until nothing is.
    fn end_everything_due(&mut self) {
        while let Some((_, due)) = self.next_due().filter(|(at, _)| *at <= self.time) {
            match due {
                Due::Session(number) => self.session_due(number),
                Due::Notice(resource, token) => {
                    let lease = self.lease_with(resource, token);
                    let (session, (why, _)) = (lease.session, lease.notice.expect("it is under notice"));
                    self.end_lease(resource, session, why, false, false);
                    self.end_if_implicit_and_idle(session, why);
                }
                Due::Wait(arrival) => self.wait_due(arrival),
                Due::Delay(resource) => self.resources[resource].delayed_until = None,
                Due::Hold(resource, token) => {
                    let session = self.lease_with(resource, token).session;
                    self.give_notice(resource, session, EndReason::HeldTooLong);
                }
            }
        }
    }

    fn next_due(&self) -> Option<(ClusterTime, Due)> {
        let mut all: Vec<(ClusterTime, Due)> = Vec::new();
        for session in &self.sessions {
            all.push((self.due_at(session), Due::Session(session.id.number.get())));
        }
        for waiter in &self.waiters {
            all.extend(waiter.until.map(|until| (until, Due::Wait(waiter.arrival))));
        }
        for (i, resource) in self.resources.iter().enumerate() {
            all.extend(resource.delayed_until.map(|until| (until, Due::Delay(i))));
        }
        for lease in &self.leases {
            let (resource, token) = (lease.resource, lease.token.get());
            match (lease.notice, lease.policies.max_hold) {
                (Some((_, ends_at)), _) => all.push((ends_at, Due::Notice(resource, token))),
                (None, Some(max_hold)) => {
                    let ttl = self.session(lease.session).ttl;
                    all.push((lease.since.plus(max_hold - ttl), Due::Hold(resource, token)));
                }
                (None, None) => {}
            }
        }
        all.into_iter().min()
    }

    fn session_due(&mut self, number: u64) {
        if let (None, Some(hard_limit)) = (self.session(number).lapsed, self.hard_limit(number)) {
            self.session_mut(number).lapsed = Some(hard_limit);
            self.raise();
            self.drop_waiters(number, Err(Refusal::Lapsed));
            for lease in self.leases_of_session(number) {
                if lease.policies.hard_limit.is_none() {
                    self.end_lease(lease.resource, number, EndReason::Expired, false, false);
                }
            }
            // Time may have passed the hard limit in the same step.
            if self.due_at(self.session(number)) > self.time {
                return;
            }
        }
        self.end_session(number, EndReason::Expired);
    }

    // Numbered commands.

    fn numbered(
        &mut self,
        by: Caller,
        must_live: bool,
        run: impl FnOnce(&mut Model, u64) -> Answer,
    ) -> Answer {
        let number = self.known(by.session)?;
        let session = self.session_mut(number);
        session.floor = session.floor.max(by.lowest_awaited);
        let floor = session.floor;
        let (mut forgotten, kept): (Vec<_>, Vec<_>) =
            session.answers.drain(..).partition(|(n, _)| *n < floor);
        session.answers = kept;
        forgotten.sort_by_key(|(n, _)| *n);
        // Nobody awaits these any more: their waits end, and those behind them go before this command.
        for (_, remembered) in forgotten {
            if let Remembered::Waiting(arrival) = remembered {
                self.leave_queue(arrival, Err(Refusal::Cancelled { released: false }));
            }
        }
        self.serve();
        let session = self.session_mut(number);
        if let Some(n) = by.number {
            if n < floor {
                return Err(Refusal::ForgottenNumber { number: n });
            }
            let remembered = session.answers.iter().find(|(known, _)| *known == n).cloned();
            match remembered {
                Some((_, Remembered::Waiting(arrival))) => return Ok(self.queued(arrival)),
                Some((_, Remembered::Cancelled(released))) => return Err(Refusal::Cancelled { released }),
                Some((_, Remembered::Answered(mut answer))) => {
                    if let Ok(Done::Granted { grants, .. }) = &mut answer {
                        grants.iter_mut().for_each(|grant| grant.fences = self.fence_set(&grant.resource));
                    }
                    return answer;
                }
                None => {}
            }
        }
        let answer =
            if must_live && !self.is_live(number) { Err(Refusal::Lapsed) } else { run(self, number) };
        if let (Some(n), true) = (by.number, self.exists(number)) {
            match &answer {
                Ok(Done::Queued { .. }) => {
                    let waiter = self.waiters.last().expect("it has just been queued").arrival;
                    self.remember(number, n, Remembered::Waiting(waiter));
                }
                answer => self.remember(number, n, Remembered::Answered(answer.clone())),
            }
        }
        answer
    }

    fn remember(&mut self, session: u64, number: u64, remembered: Remembered) {
        let answers = &mut self.session_mut(session).answers;
        answers.retain(|(known, _)| *known != number);
        answers.push((number, remembered));
    }

    fn remember_if_awaited(&mut self, session: u64, number: Option<u64>, answer: Answer) {
        if let Some(number) = number
            && number >= self.session(session).floor
        {
            self.remember(session, number, Remembered::Answered(answer));
        }
    }

    fn cancel(&mut self, by: Caller, acquire: u64) -> Answer {
        if by.number == Some(acquire) {
            return Err(Refusal::Invalid("a cancel has a number of its own"));
        }
        self.numbered(by, false, |model, session| {
            if acquire < model.session(session).floor {
                return Err(Refusal::ForgottenNumber { number: acquire });
            }
            let known = model.session(session).answers.iter().find(|(n, _)| *n == acquire).cloned();
            let mut released = false;
            match known.map(|(_, remembered)| remembered) {
                None => {}
                Some(Remembered::Waiting(arrival)) => {
                    model.leave_queue(arrival, Err(Refusal::Cancelled { released: false }));
                }
                Some(Remembered::Answered(Ok(Done::Granted { grants, .. }))) => {
                    for grant in grants {
                        released |= model.give_back(session, &grant.resource, Some(grant.token));
                    }
                }
                Some(_) => return Ok(Done::Cancelled { released }),
            }
            model.remember(session, acquire, Remembered::Cancelled(released));
            model.end_if_implicit_and_idle(session, EndReason::Released);
            Ok(Done::Cancelled { released })
        })
    }

    fn opened_with(&self, nonce: Nonce) -> Option<&Session> {
        self.sessions.iter().find(|session| session.nonce == Some(nonce))
    }

    fn cancel_nonce(&mut self, nonce: Nonce) -> Answer {
        match self.opened_with(nonce) {
            None => {
                self.used_nonces.push(nonce);
                Ok(Done::Cancelled { released: false })
            }
            Some(session) if !session.implicit => Err(Refusal::Invalid(
                "this nonce opened a session and acquired nothing; close the session by its id",
            )),
            Some(session) => Ok(Done::Cancelled { released: self.end_cancelled(session.id.number.get()) }),
        }
    }

    fn end_cancelled(&mut self, session: u64) -> bool {
        let released = self.leases.iter().any(|lease| lease.session == session);
        self.drop_waiters(session, Err(Refusal::Cancelled { released: false }));
        self.end_session(session, EndReason::Released);
        released
    }

    fn undo(&mut self, session: Option<SessionId>, transmission: TransmissionId) -> Answer {
        let Some(id) = session else {
            let nonce = transmission.nonce(SecretForm::Plain);
            let Some(session) = self.opened_with(nonce) else {
                self.used_nonces.push(nonce);
                return Ok(Done::Cancelled { released: false });
            };
            let (plain, number) = (session.plain, session.id.number.get());
            return Ok(Done::Cancelled { released: plain && self.end_cancelled(number) });
        };
        let session = self.known(id)?;
        let attached =
            |waiter: &&mut Waiter| waiter.session == session && waiter.transmissions.contains(&transmission);
        if let Some(waiter) = self.waiters.iter_mut().find(attached) {
            let last = waiter.transmissions == [transmission] && !waiter.kept_by_repeatable;
            let arrival = waiter.arrival;
            if !last {
                waiter.transmissions.retain(|known| *known != transmission);
            } else {
                self.leave_queue(arrival, Err(Refusal::Cancelled { released: false }));
            }
            self.end_if_implicit_and_idle(session, EndReason::Released);
            return Ok(Done::Cancelled { released: false });
        }
        let mut released = false;
        for lease in self.leases_of_session(session) {
            if !lease.transmissions.contains(&transmission) {
                continue;
            }
            // Format version 1 keeps the transmission, so that each undo of a re-entered lease counts.
            if self.format >= FormatVersion::V2 {
                let transmissions = &mut self.lease_of_mut(lease.resource, session).transmissions;
                transmissions.retain(|known| *known != transmission);
            }
            if lease.transmissions == [transmission] {
                let name = self.resources[lease.resource].name.clone();
                released |= self.give_back(session, &name, Some(lease.token));
            }
        }
        self.end_if_implicit_and_idle(session, EndReason::Released);
        Ok(Done::Cancelled { released })
    }

    // What can be seen.

    pub fn session_views(&self) -> Vec<SessionView> {
        let view = |session: &Session| {
            let number = session.id.number.get();
            SessionView {
                session: session.id.number,
                holder: session.holder.clone(),
                ttl: session.ttl,
                remaining: session.deadline.remaining_at(self.time),
                open_for: self.time.since(session.opened_at),
                leases: self.leases.iter().filter(|lease| lease.session == number).count(),
                waiters: self.waiters.iter().filter(|waiter| waiter.session == number).count(),
                lapsed: !self.is_live(number),
                identity: None,
            }
        };
        self.sessions.iter().map(view).collect()
    }
}
