//! What the cluster has agreed: two sessions, one resource, its queue. Applies an entry in the order of
//! `core/machine`.

use super::{Beats, Entry, Reply, Request, TTL, TTL_LONG, TTL_SHORT, Who};
use crate::Mutation;

/// A session that has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Session {
    /// When it ends without a renewal.
    pub deadline: Beats,
    /// How long it lives without one.
    pub ttl: Beats,
    /// The highest number of an open or renewal that was applied.
    pub number: u8,
    /// A lease that ended although it did not ask, which renewals repeat.
    pub ended: Option<u8>,
}

/// The lease of the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    /// Whose.
    pub who: Who,
    /// Its token.
    pub token: u8,
    /// It is under notice, and ends then.
    pub ends_at: Option<Beats>,
}

/// The agreed state, and what the checker remembers of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    /// Cluster time.
    pub time: Beats,
    /// The sessions.
    pub sessions: [Option<Session>; 2],
    /// Whose session was ever opened.
    pub opened: [bool; 2],
    /// Who holds the resource. More than one only if something is broken.
    pub holds: Vec<Hold>,
    /// Who waits in the queue for it.
    pub queue: Vec<Who>,
    /// The last token issued.
    pub last_token: u8,
    /// A grant had a token that was not above all earlier ones.
    pub token_fell: bool,
    /// A session ended although the leader had its renewal in time.
    pub lost_though_renewed: bool,
    /// A freed resource waits for the entry that grants it; only with the mutation that does so.
    pub to_grant: bool,
}

/// What applying an entry did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// What it answers and pushes, in order.
    pub replies: Vec<Reply>,
    /// Sessions that expired.
    pub expired: Vec<Who>,
}

impl Machine {
    /// A machine without sessions.
    pub fn new(time: Beats) -> Machine {
        Machine {
            time,
            sessions: [None, None],
            opened: [false, false],
            holds: Vec::new(),
            queue: Vec::new(),
            last_token: 0,
            token_fell: false,
            lost_though_renewed: false,
            to_grant: false,
        }
    }

    /// How far the count may run ahead: a quarter of the smallest TTL, at most a second (8 beats).
    pub fn k(&self) -> Beats {
        self.sessions.iter().flatten().map(|session| session.ttl / 4).min().unwrap_or(8).min(8)
    }

    /// The token under which `who` holds the resource.
    pub fn held_by(&self, who: Who) -> Option<u8> {
        self.holds.iter().find(|hold| hold.who == who).map(|hold| hold.token)
    }

    /// Whether somebody live waits for a resource that nobody holds.
    pub fn stuck(&self) -> bool {
        self.holds.is_empty() && self.queue.iter().any(|who| self.sessions[*who as usize].is_some())
    }

    /// Applies one entry.
    pub fn apply(&mut self, entry: &Entry, mutation: Mutation) -> Applied {
        let mut applied = Applied::default();
        let at = entry.at.max(self.time);
        let before = self.time;
        // A renewal that counts, in the entry or left behind by it, had arrived before its session's
        // deadline.
        let numbers =
            [0, 1].map(|who: usize| self.sessions[who].as_ref().map_or(u8::MAX, |session| session.number));
        let had_renewal = |who: Who, deadline: Beats| {
            let counts = |other: Who, number: u8| other == who && number > numbers[who as usize];
            let rode = entry
                .batch
                .iter()
                .any(|request| matches!(*request, Request::Renew { who, number } if counts(who, number)));
            let left = entry
                .behind
                .iter()
                .any(|(other, number, received)| counts(*other, *number) && *received < deadline);
            (rode && deadline > before) || left
        };
        if mutation == Mutation::ExpiryBeforeRenewals {
            self.end_due(at, &had_renewal, mutation, &mut applied);
        }
        for request in &entry.batch {
            if let Request::Renew { who, number } = *request {
                self.renew(who, number, at);
            }
        }
        self.time = at;
        if mutation == Mutation::GrantedInLaterEntry && std::mem::take(&mut self.to_grant) {
            self.grant_next(Mutation::None, &mut applied);
        }
        self.end_due(at, &had_renewal, mutation, &mut applied);
        for request in &entry.batch {
            self.command(*request, mutation, &mut applied);
        }
        // What a renewal says is what is true at the end of its entry.
        for request in &entry.batch {
            if let Request::Renew { who, number } = *request {
                applied.replies.push(self.renewal_answer(who, number, mutation));
            }
        }
        applied
    }

    fn renew(&mut self, who: Who, number: u8, at: Beats) {
        let Some(session) = &mut self.sessions[who as usize] else { return };
        if number > session.number {
            session.number = number;
            session.deadline = at + session.ttl;
        }
    }

    fn renewal_answer(&self, who: Who, number: u8, mutation: Mutation) -> Reply {
        match &self.sessions[who as usize] {
            _ if mutation == Mutation::AnsweredAtCommit => {
                Reply::Renewed { to: who, number, noticed: None, ended: None }
            }
            None => Reply::Unknown { to: who },
            Some(session) => {
                let noticed = self.holds.iter().find(|hold| hold.who == who && hold.ends_at.is_some());
                Reply::Renewed {
                    to: who,
                    number,
                    noticed: noticed.map(|hold| hold.token),
                    ended: session.ended,
                }
            }
        }
    }

    /// Everything due ends, all of it before any grant.
    fn end_due(
        &mut self,
        time: Beats,
        had_renewal: &impl Fn(Who, Beats) -> bool,
        mutation: Mutation,
        applied: &mut Applied,
    ) {
        let mut freed = false;
        for who in 0..2u8 {
            let deadline = match &self.sessions[who as usize] {
                Some(session) if session.deadline <= time => session.deadline,
                _ => continue,
            };
            self.lost_though_renewed |= had_renewal(who, deadline);
            self.sessions[who as usize] = None;
            self.queue.retain(|other| *other != who);
            freed |= self.holds.iter().any(|hold| hold.who == who);
            self.holds.retain(|hold| hold.who != who);
            applied.expired.push(who);
        }
        if let Some(hold) = self.holds.iter().find(|hold| hold.ends_at.is_some_and(|at| at <= time)).copied()
        {
            freed = true;
            self.end_imposed(hold);
        }
        if freed {
            self.grant_next(mutation, applied);
        }
    }

    /// A lease ends that its holder did not give back: its renewals say so from now on.
    fn end_imposed(&mut self, hold: Hold) {
        self.holds.retain(|other| other.token != hold.token);
        if let Some(session) = &mut self.sessions[hold.who as usize] {
            session.ended = Some(hold.token);
        }
    }

    fn grant_next(&mut self, mutation: Mutation, applied: &mut Applied) {
        if !self.holds.is_empty() || self.queue.is_empty() {
            return;
        }
        if mutation == Mutation::GrantedInLaterEntry {
            self.to_grant = true;
            return;
        }
        let who = self.queue.remove(0);
        self.grant(who, true, mutation, applied);
    }

    fn grant(&mut self, who: Who, waited: bool, mutation: Mutation, applied: &mut Applied) {
        let same = mutation == Mutation::TokenIssuedTwice && waited && self.last_token > 0;
        let token = if same { self.last_token } else { self.last_token + 1 };
        self.token_fell |= token <= self.last_token;
        self.last_token = token;
        self.holds.push(Hold { who, token, ends_at: None });
        applied.replies.push(Reply::Granted { to: who, token, waited });
    }

    fn command(&mut self, request: Request, mutation: Mutation, applied: &mut Applied) {
        match request {
            Request::Open { who, number } => self.open(who, number, mutation, applied),
            Request::Acquire { who } => self.acquire(who, mutation, applied),
            Request::Release { who, token } => {
                if self.sessions[who as usize].is_none() {
                    return applied.replies.push(Reply::Unknown { to: who });
                }
                let had = self.holds.len();
                self.holds.retain(|hold| (hold.who, hold.token) != (who, token));
                applied.replies.push(Reply::Released { to: who, token });
                if self.holds.len() < had {
                    self.grant_next(mutation, applied);
                }
            }
            Request::Transfer { who, token } => {
                let to = 1 - who;
                let held =
                    self.holds.iter().any(|hold| (hold.who, hold.token, hold.ends_at) == (who, token, None));
                let live = self.sessions[who as usize].is_some() && self.sessions[to as usize].is_some();
                // Anything else is a refusal, which this holder treats as an answer that never came.
                if held && live && self.queue.contains(&to) {
                    self.holds.clear();
                    self.queue.retain(|other| *other != to);
                    self.grant(to, true, mutation, applied);
                }
            }
            Request::Revoke => self.revoke(mutation, applied),
            Request::Renew { .. } | Request::Noise | Request::Chatter => {}
        }
    }

    /// Opens a session, or sets the deadline of the live one that the same nonce opened. An open that comes
    /// after its session has ended would open another one, which is nobody's here: left out.
    fn open(&mut self, who: Who, number: u8, mutation: Mutation, applied: &mut Applied) {
        let deadline = self.time;
        match &mut self.sessions[who as usize] {
            Some(session) => {
                if mutation != Mutation::RepeatedOpenSetsNothing {
                    session.deadline = deadline + session.ttl;
                    session.number = session.number.max(number);
                }
            }
            None if !self.opened[who as usize] => {
                let ttl = if who == 0 { TTL } else { TTL_SHORT };
                let deadline = deadline + ttl;
                self.opened[who as usize] = true;
                self.sessions[who as usize] = Some(Session { deadline, ttl, number, ended: None });
            }
            None => return,
        }
        applied.replies.push(Reply::Opened { to: who, number });
    }

    fn acquire(&mut self, who: Who, mutation: Mutation, applied: &mut Applied) {
        if self.sessions[who as usize].is_none() {
            return applied.replies.push(Reply::Unknown { to: who });
        }
        let noticed = self.holds.iter().all(|hold| hold.ends_at.is_some());
        let free = self.holds.is_empty() || (noticed && mutation == Mutation::GrantedWhileHeld);
        match self.held_by(who) {
            Some(token) => applied.replies.push(Reply::Granted { to: who, token, waited: false }),
            None if free && self.queue.is_empty() => self.grant(who, false, mutation, applied),
            None if !self.queue.contains(&who) => self.queue.push(who),
            None => {}
        }
    }

    fn revoke(&mut self, mutation: Mutation, applied: &mut Applied) {
        let Some(hold) = self.holds.first().copied() else { return };
        if mutation == Mutation::RevokeWithoutNotice {
            self.end_imposed(hold);
            return self.grant_next(mutation, applied);
        }
        let deadline = self.sessions[hold.who as usize].as_ref().map(|session| session.deadline);
        if hold.ends_at.is_none() {
            self.holds[0].ends_at = deadline;
            applied.replies.push(Reply::Noticed { to: hold.who, token: hold.token });
        }
    }

    /// A session from the start: its open was number 1.
    pub fn with_session(mut self, who: Who, long: bool) -> Machine {
        let ttl = if long { TTL_LONG } else { TTL };
        self.opened[who as usize] = true;
        self.sessions[who as usize] =
            Some(Session { deadline: self.time + ttl, ttl, number: 1, ended: None });
        self
    }
}
