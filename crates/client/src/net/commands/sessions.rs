//! The sessions of a command stream: which of them the current stream knows, and which commands wait for
//! that.
//!
//! Pure, and built so that a turn of the stream's loop costs as much as there is to do, not as much as there
//! is: a client may have a hundred thousand sessions, most of them idle. So everything that waits is in a
//! queue, and only a new stream looks at all sessions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tenure_core::{SessionId, SessionNumber};

use crate::store::SessionListener;

#[derive(Default)]
pub(super) struct Sessions {
    members: BTreeMap<SessionNumber, Member>,
    /// To be attached, in order. One that is gone meanwhile is passed over.
    to_attach: VecDeque<SessionNumber>,
    /// Refused for the moment.
    resting: Vec<SessionNumber>,
    /// How many sessions were looked at.
    #[cfg(test)]
    pub looked_at: std::cell::Cell<u64>,
}

pub(super) struct Member {
    pub id: SessionId,
    pub listener: SessionListener,
    attached: Attached,
    /// Its commands without an answer, sent or not.
    pub unanswered: BTreeSet<u64>,
    /// Those of them that wait for it to be attached.
    waiting: VecDeque<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Attached {
    No,
    /// In this frame.
    Asked(u64),
    Yes,
}

impl Sessions {
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub fn contains(&self, session: SessionNumber) -> bool {
        self.members.contains_key(&session)
    }

    pub fn add(&mut self, id: SessionId, listener: SessionListener) {
        let (unanswered, waiting) = (BTreeSet::new(), VecDeque::new());
        self.members.insert(id.number, Member { id, listener, attached: Attached::No, unanswered, waiting });
        self.to_attach.push_back(id.number);
    }

    pub fn remove(&mut self, session: SessionNumber) -> Option<Member> {
        self.members.remove(&session)
    }

    pub fn get(&self, session: SessionNumber) -> Option<&Member> {
        self.look(1);
        self.members.get(&session)
    }

    pub fn all(&self) -> impl Iterator<Item = &Member> {
        self.look(self.members.len());
        self.members.values()
    }

    /// A command of the session is to be sent. True if that can be done at once; else it waits until the
    /// session is attached.
    pub fn may_send(&mut self, session: SessionNumber, frame: u64) -> bool {
        self.look(1);
        let Some(member) = self.members.get_mut(&session) else { return false };
        member.unanswered.insert(frame);
        if member.attached != Attached::Yes {
            member.waiting.push_back(frame);
        }
        member.attached == Attached::Yes
    }

    /// A command of the session is answered.
    pub fn answered(&mut self, session: SessionNumber, frame: u64) {
        self.look(1);
        if let Some(member) = self.members.get_mut(&session) {
            member.unanswered.remove(&frame);
        }
    }

    /// The next session to be attached, if there is one.
    pub fn next_to_attach(&mut self) -> Option<SessionNumber> {
        while let Some(session) = self.to_attach.pop_front() {
            self.look(1);
            if self.members.get(&session).is_some_and(|member| member.attached == Attached::No) {
                return Some(session);
            }
        }
        None
    }

    /// It is being attached in this frame. Returns who it is.
    pub fn asked(&mut self, session: SessionNumber, frame: u64) -> Option<SessionId> {
        let member = self.members.get_mut(&session)?;
        member.attached = Attached::Asked(frame);
        Some(member.id)
    }

    /// Whether this frame asked for it to be attached.
    pub fn is_asked(&self, session: SessionNumber, frame: u64) -> bool {
        self.look(1);
        self.members.get(&session).is_some_and(|member| member.attached == Attached::Asked(frame))
    }

    /// It is attached. Returns the commands that waited for that, in order.
    pub fn attached(&mut self, session: SessionNumber) -> VecDeque<u64> {
        let Some(member) = self.members.get_mut(&session) else { return VecDeque::new() };
        member.attached = Attached::Yes;
        std::mem::take(&mut member.waiting)
    }

    /// It could not be attached just now.
    pub fn rests(&mut self, session: SessionNumber) {
        if let Some(member) = self.members.get_mut(&session) {
            member.attached = Attached::No;
            self.resting.push(session);
        }
    }

    pub fn is_any_resting(&self) -> bool {
        !self.resting.is_empty()
    }

    /// Those that rested are to be attached again.
    pub fn rested(&mut self) {
        self.to_attach.extend(self.resting.drain(..));
    }

    /// A new stream knows nobody.
    pub fn start_over(&mut self) {
        self.look(self.members.len());
        self.resting.clear();
        self.to_attach = self.members.keys().copied().collect();
        for member in self.members.values_mut() {
            member.attached = Attached::No;
            member.waiting.clear();
        }
    }

    fn look(&self, _sessions: usize) {
        #[cfg(test)]
        self.looked_at.set(self.looked_at.get() + _sessions as u64);
    }
}
