//! What a holder may believe about its session and its lease, as `core/holder.rs` decides it. It takes every
//! permit that it may: "may act" here means that a permit is in force.

use super::{Beats, Reply, Who, usable};
use crate::Mutation;

/// What is known of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The token.
    pub token: u8,
    /// A release or transfer was sent.
    pub giving_back: bool,
    /// Under notice: the session's deadline as it stood.
    pub notice: Option<Option<Beats>>,
    /// Ended.
    pub ended: bool,
}

/// The logic of one session's holder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// Who it is.
    pub who: Who,
    /// What its clock shows.
    pub clock: Beats,
    /// The TTL that it counts with.
    pub ttl: Beats,
    /// The next transmission's number.
    pub next_number: u8,
    /// Sent and unanswered, oldest first: number and moment of sending.
    pub sent: Vec<(u8, Beats)>,
    /// Until when it may act; `None` before its open was answered.
    pub deadline: Option<Beats>,
    /// The latest send among the transmissions that were answered: what the deadline must be worth.
    pub answered_from: Beats,
    /// Its lease.
    pub lease: Option<Lease>,
    /// An event of a lease whose grant has not arrived yet: its token, the deadline by then, and whether it
    /// has ended.
    pub early: Option<(u8, Option<Beats>, bool)>,
    /// Its session has ended.
    pub session_ended: bool,
    /// When its acquire was sent; only kept for the mutation that counts from there.
    pub asked: Option<Beats>,
}

impl Holder {
    /// A holder whose open was sent and answered at the start; one that `opens` later has nothing to believe
    /// yet.
    pub fn new(who: Who, ttl: Beats, opens: bool, start: Beats) -> Holder {
        Holder {
            who,
            clock: start,
            ttl,
            next_number: if opens { 1 } else { 2 },
            sent: Vec::new(),
            deadline: (!opens).then_some(start + usable(ttl)),
            answered_from: if opens { 0 } else { start },
            lease: None,
            early: None,
            session_ended: false,
            asked: None,
        }
    }

    /// An open or a renewal leaves; the clock is read before that.
    pub fn transmit(&mut self) -> u8 {
        let number = self.next_number;
        self.next_number += 1;
        self.sent.push((number, self.clock));
        number
    }

    /// Until when the lease may be worked under; zero if it never may.
    pub fn lease_deadline(&self) -> Beats {
        let session = self.deadline.unwrap_or(0);
        match self.lease.and_then(|lease| lease.notice) {
            None => session,
            Some(notice) => notice.unwrap_or(0).min(session),
        }
    }

    /// The token under which it may act now.
    pub fn may_act(&self, mutation: Mutation) -> Option<u8> {
        let lease = self.lease?;
        let given_back = lease.giving_back && mutation != Mutation::PermitAfterRelease;
        (!lease.ended && !given_back && self.clock < self.lease_deadline()).then_some(lease.token)
    }

    /// Whether its deadline is worth the best answer that it has received.
    pub fn counts_in_full(&self) -> bool {
        self.session_ended
            || self.deadline.is_none_or(|deadline| deadline >= self.answered_from + usable(self.ttl))
    }

    /// Takes in an answer or a push.
    pub fn receive(&mut self, reply: Reply, mutation: Mutation) {
        match reply {
            Reply::Renewed { number, noticed, ended, .. } => {
                if mutation == Mutation::NoticeAfterDeadline {
                    self.acknowledged(number, mutation);
                }
                // First what the answer says about the lease, by the deadline as it stands …
                noticed.into_iter().for_each(|token| self.noticed(token, mutation));
                ended.into_iter().for_each(|token| self.ended(token, mutation));
                // … and only then the deadline.
                if mutation != Mutation::NoticeAfterDeadline {
                    self.acknowledged(number, mutation);
                }
            }
            // A repeated open extends the session too, but its answer lists no notices: only the first is
            // believed.
            Reply::Opened { number, .. }
                if self.deadline.is_some() && mutation != Mutation::LateOpenBelieved =>
            {
                self.sent.retain(|other| other.0 > number);
            }
            Reply::Opened { number, .. } => self.acknowledged(number, mutation),
            Reply::Unknown { .. } => {
                self.session_ended = true;
                self.lease.iter_mut().for_each(|lease| lease.ended = true);
            }
            Reply::Granted { token, waited, .. } => self.granted(token, waited, mutation),
            Reply::Released { token, .. } => {
                self.lease
                    .iter_mut()
                    .filter(|lease| lease.token == token)
                    .for_each(|lease| lease.ended = true);
            }
            Reply::Noticed { token, .. } => self.noticed(token, mutation),
        }
    }

    fn granted(&mut self, token: u8, waited: bool, mutation: Mutation) {
        // A repeated or late answer revives nothing.
        if self.lease.is_none_or(|lease| lease.token < token) {
            let early = self.early.filter(|early| early.0 == token);
            self.lease = Some(Lease {
                token,
                giving_back: false,
                notice: early.map(|early| early.1),
                ended: self.session_ended || early.is_some_and(|early| early.2),
            });
            self.early = None;
        }
        let counted_from = match mutation {
            Mutation::AcquireMovesDeadline if !waited => self.asked,
            Mutation::PushMovesDeadline if waited => Some(self.clock),
            _ => None,
        };
        if let Some(from) = counted_from {
            self.deadline = self.deadline.max(Some(from + usable(self.ttl)));
        }
    }

    fn noticed(&mut self, token: u8, mutation: Mutation) {
        let deadline = self.deadline;
        match &mut self.lease {
            // Only the first notice counts: the deadline it froze is not moved by hearing of it again.
            Some(lease) if lease.token == token => {
                lease.notice.get_or_insert(deadline);
            }
            Some(lease) if lease.token > token => {}
            _ if mutation == Mutation::EarlyEventForgotten => {}
            _ => {
                self.early.get_or_insert((token, deadline, false));
            }
        }
    }

    fn ended(&mut self, token: u8, mutation: Mutation) {
        match &mut self.lease {
            Some(lease) if lease.token == token => lease.ended = true,
            Some(lease) if lease.token > token => {}
            _ if mutation == Mutation::EarlyEventForgotten => {}
            _ => self.early = Some((token, self.early.map_or(self.deadline, |early| early.1), true)),
        }
    }

    /// The store has answered this transmission. An answer whose number is not known any more moves nothing.
    fn acknowledged(&mut self, number: u8, mutation: Mutation) {
        let Some(place) = self.sent.iter().position(|sent| sent.0 == number) else { return };
        let sent = self.sent[place].1;
        let from = match mutation {
            Mutation::DeadlineFromReceipt => self.clock,
            Mutation::DeadlineFromFirstSend => self.sent[0].1,
            Mutation::DeadlineFromLastSend => self.sent[self.sent.len() - 1].1,
            _ => sent,
        };
        self.sent.retain(|other| other.0 > number);
        if self.session_ended {
            return;
        }
        self.answered_from = self.answered_from.max(sent);
        let length = if mutation == Mutation::NoSigmaAndRho { self.ttl } else { usable(self.ttl) };
        self.deadline = self.deadline.max(Some(from + length));
    }
}
