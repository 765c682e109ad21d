//! The leases of one session: which of them may be worked under, and how each of them ended.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use super::{Holder, Jeopardy, LeaseEnd, LeaseState, NoPermit, Suspect};
use crate::answer::Grant;
use crate::command::Mode;
use crate::event::EndReason;
use crate::names::{FenceName, Scope};
use crate::numbers::{Generation, Token};
use crate::permit::{Permit, PermitCount, ReadPermit};
use crate::time::Moment;
use crate::timing::Deadline;

/// What is known of one lease.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    scope: Scope,
    mode: Mode,
    generation: Generation,
    learned: Moment,
    /// Fences that have not answered the barrier.
    unarmed: BTreeSet<FenceName>,
    draining: bool,
    /// Releases, transfers and confirmations sent and not refused.
    giving_back: u32,
    notice: Option<Notice>,
    end: Option<LeaseEnd>,
    permits: PermitCount,
}

/// A lease under notice ends at the session's deadline as it stood: later renewals are not for it.
#[derive(Clone, Debug)]
struct Notice {
    why: EndReason,
    deadline: Option<Deadline>,
}

impl Lease {
    pub(super) fn known_before(&self, asked: Moment) -> bool {
        self.end.is_none() && asked != self.learned && self.learned.longest_since(asked).is_zero()
    }
}

/// The tokens of leases that were forgotten, so that a late repetition of a grant revives none of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Forgotten {
    tokens: BTreeSet<Token>,
    /// Every token up to this one counts as forgotten, which keeps the set small.
    floor: Option<Token>,
}

/// Forgotten tokens remembered one by one. A grant whose answer is overtaken by this many ends of later grants of the
/// same session is not believed any more.
const FORGOTTEN_MAX: usize = 4_096;

impl Forgotten {
    fn add(&mut self, token: Token) {
        self.tokens.insert(token);
        if self.tokens.len() > FORGOTTEN_MAX {
            self.floor = self.tokens.pop_first().max(self.floor);
        }
    }

    fn contains(&self, token: Token) -> bool {
        Some(token) <= self.floor || self.tokens.contains(&token)
    }
}

/// Notices of leases whose grant has not been received: a pushed grant can be overtaken by a renewal's
/// answer.
#[derive(Clone, Debug, Default)]
pub(super) struct EarlyNotices(BTreeMap<Token, Notice>);

/// Early notices remembered. Past it the oldest lease counts as forgotten and gives no permit: safe, and far beyond what one
/// late push can hide.
const EARLY_MAX: usize = 4_096;

impl Holder {
    /// A lease was granted, now or after waiting. Moves no deadline. If its acquire named fences, permits are given once the
    /// whole fence set of the resource has answered the barrier: a fence that an earlier holder brought guards data
    /// that this one may write as well. A repeated answer changes nothing, not even if the lease has ended and was forgotten.
    pub fn granted(&mut self, grant: &Grant, named: &[FenceName], now: Moment) {
        if self.forgotten.contains(grant.token) {
            return;
        }
        let unarmed = if named.is_empty() || !grant.mode.writes() {
            BTreeSet::new()
        } else {
            named.iter().chain(&grant.fences).cloned().collect()
        };
        let ended = self.session_ended().then_some(LeaseEnd::Expired { why: None });
        let notice = self.early_notices.0.remove(&grant.token);
        self.leases.entry(grant.token).or_insert_with(|| Lease {
            scope: Scope { resource: grant.resource.clone(), slot: grant.slot },
            mode: grant.mode,
            generation: grant.generation,
            learned: now,
            unarmed,
            draining: false,
            giving_back: 0,
            notice,
            end: ended,
            permits: PermitCount::default(),
        });
    }

    /// A permit to write for at least `max_op`, or why there is none.
    pub fn permit(&self, token: Token, now: Moment, max_op: Duration) -> Result<Permit, NoPermit> {
        let lease = self.leases.get(&token).ok_or(NoPermit::Unknown)?;
        if !lease.mode.writes() {
            return Err(NoPermit::ReadOnly);
        }
        self.any_permit(lease, token, now, max_op)
    }

    /// A permit to read for at least `max_op`, or why there is none.
    pub fn read_permit(&self, token: Token, now: Moment, max_op: Duration) -> Result<ReadPermit, NoPermit> {
        let lease = self.leases.get(&token).ok_or(NoPermit::Unknown)?;
        self.any_permit(lease, token, now, max_op).map(ReadPermit::new)
    }

    /// What to install in the lease's fences. The one use of a token without a permit: a barrier only keeps others out.
    pub fn barrier(&self, token: Token, now: Moment) -> Result<(Scope, Token), NoPermit> {
        let lease = self.leases.get(&token).ok_or(NoPermit::Unknown)?;
        self.usable(lease, now)?;
        Ok((lease.scope.clone(), token))
    }

    /// The fences that have not answered the barrier: the lease gives no permit before they have.
    pub fn unarmed(&self, token: Token) -> impl Iterator<Item = &FenceName> {
        self.leases.get(&token).into_iter().flat_map(|lease| &lease.unarmed)
    }

    /// A fence has installed the token.
    pub fn armed(&mut self, token: Token, fence: &FenceName) {
        if let Some(lease) = self.leases.get_mut(&token) {
            lease.unarmed.remove(fence);
        }
    }

    /// A fence has seen a newer token, so the resource is another's: the lease ends.
    pub fn barrier_refused(&mut self, token: Token, seen: Token) {
        if let Some(lease) = self.leases.get_mut(&token) {
            lease.end.get_or_insert(LeaseEnd::Fenced { seen });
        }
    }

    /// Closes the intake: no new permit, those that are out go on.
    pub fn drain(&mut self, token: Token) {
        if let Some(lease) = self.leases.get_mut(&token) {
            lease.draining = true;
        }
    }

    /// Opens the intake again: the handover was called off before anything was sent.
    pub fn resume(&mut self, token: Token) {
        if let Some(lease) = self.leases.get_mut(&token) {
            lease.draining = false;
        }
    }

    /// Permits that are out.
    pub fn permits_out(&self, token: Token) -> usize {
        self.leases.get(&token).map_or(0, |lease| lease.permits.out())
    }

    /// A release, a transfer or the confirmation of a notice is about to be sent: from now on there is no permit.
    /// Refused while permits are out, with their number.
    pub fn give_back(&mut self, token: Token) -> Result<(), usize> {
        let Some(lease) = self.leases.get_mut(&token) else { return Ok(()) };
        match lease.permits.out() {
            0 => {
                lease.giving_back += 1;
                Ok(())
            }
            out => Err(out),
        }
    }

    /// The session is about to be closed, which gives all of its leases back. Refused while permits are out, with their number.
    pub fn give_back_all(&mut self) -> Result<(), usize> {
        let out: usize = self.leases.values().map(|lease| lease.permits.out()).sum();
        if out > 0 {
            return Err(out);
        }
        self.leases.values_mut().for_each(|lease| lease.giving_back += 1);
        Ok(())
    }

    /// The store said no to what [`give_back`](Self::give_back) announced: nothing was changed by it.
    pub fn give_back_refused(&mut self, token: Token) {
        if let Some(lease) = self.leases.get_mut(&token) {
            lease.giving_back = lease.giving_back.saturating_sub(1);
        }
    }

    /// How much longer the answer to a give-back that was asked for at `asked` is worth waiting for: until the lease's deadline. From
    /// then on the lease is over for this holder, whatever the store has made of it, so a store that is gone keeps
    /// nobody waiting. Asked for after the deadline, a store that is there has R/4 to say how the lease ended.
    pub fn give_back_wait(&self, token: Token, asked: Moment, now: Moment) -> Duration {
        let left = self.lease_remaining(token, now);
        if left.is_zero() && self.lease_remaining(token, asked).is_zero() {
            return self.timing.detect().saturating_sub(now.longest_since(asked));
        }
        left
    }

    /// The store has taken the lease back, or granted it to the successor (`EndReason::Transferred`).
    pub fn gave_back(&mut self, token: Token, why: EndReason) {
        if let Some(lease) = self.leases.get_mut(&token) {
            let end = if why == EndReason::Transferred { LeaseEnd::Transferred } else { LeaseEnd::Released };
            lease.end.get_or_insert(end);
        }
    }

    /// The store has given notice: pushed, or listed in a renewal's answer. Only the first one counts; the deadline
    /// it froze is not moved by hearing of it again.
    pub fn noticed(&mut self, token: Token, why: EndReason) {
        let notice = Notice { why, deadline: self.deadline };
        if let Some(lease) = self.leases.get_mut(&token) {
            lease.notice.get_or_insert(notice);
        } else if !self.forgotten.contains(token) {
            // The grant itself is still on its way. When it comes, the deadline may have moved: not for this lease.
            self.early_notices.0.entry(token).or_insert(notice);
            if self.early_notices.0.len() > EARLY_MAX
                && let Some((oldest, _)) = self.early_notices.0.pop_first()
            {
                self.forgotten.add(oldest);
            }
        }
    }

    /// The store has ended the lease without being asked to: pushed, or listed in a renewal's answer.
    pub fn ended(&mut self, token: Token, why: EndReason, now: Moment) {
        if !self.leases.contains_key(&token) {
            // Its grant may still be on its way, and must not revive it.
            self.early_notices.0.remove(&token);
            self.forgotten.add(token);
        }
        self.end_lease(token, Some(why), now);
    }

    /// The session has ended, by the store's word or because we closed it.
    pub fn end_session(&mut self, why: Option<EndReason>, now: Moment) {
        let tokens: Vec<Token> = self.leases.keys().copied().collect();
        tokens.into_iter().for_each(|token| self.end_lease(token, why, now));
        let left = self.remaining(now);
        if !self.session_ended && matches!(why, None | Some(EndReason::Expired)) && !left.is_zero() {
            self.ended_early = Some(left);
        }
        self.session_ended = true;
    }

    /// The application gives up waiting for the store; refused (false) while it could still be acting.
    pub fn give_up(&mut self, now: Moment) -> bool {
        let may = self.remaining(now).is_zero();
        if may {
            self.end_session(None, now);
        }
        may
    }

    /// What the lease is at `now`; `None` if no lease with this token is known here.
    pub fn state(&self, token: Token, now: Moment) -> Option<LeaseState> {
        let lease = self.leases.get(&token)?;
        Some(match (lease.end, self.jeopardy(now)) {
            (Some(end), _) => LeaseState::Ended(end),
            (None, _) if self.left(lease, now).is_zero() => LeaseState::Jeopardy(Jeopardy::PastDeadline),
            (None, Some(jeopardy)) => LeaseState::Jeopardy(jeopardy),
            (None, None) => LeaseState::Held,
        })
    }

    /// Why the lease is about to end, if notice was given.
    pub fn notice(&self, token: Token) -> Option<EndReason> {
        self.leases.get(&token)?.notice.as_ref().map(|notice| notice.why)
    }

    /// What is left of the lease at `now`: of the session, or of the notice.
    pub fn lease_remaining(&self, token: Token, now: Moment) -> Duration {
        self.leases.get(&token).map_or(Duration::ZERO, |lease| self.left(lease, now))
    }

    /// The leases that are known, ended ones included until they are forgotten.
    pub fn tokens(&self) -> impl Iterator<Item = Token> + '_ {
        self.leases.keys().copied()
    }

    /// Forgets a lease that has ended; one that has not is kept.
    pub fn forget(&mut self, token: Token) {
        if self.leases.get(&token).is_some_and(|lease| lease.end.is_some()) {
            self.leases.remove(&token);
            self.forgotten.add(token);
        }
    }

    fn any_permit(
        &self,
        lease: &Lease,
        token: Token,
        now: Moment,
        max_op: Duration,
    ) -> Result<Permit, NoPermit> {
        let remaining = self.usable(lease, now)?;
        if lease.draining {
            return Err(NoPermit::Draining);
        }
        if !lease.unarmed.is_empty() {
            return Err(NoPermit::NotArmed { missing: lease.unarmed.len() });
        }
        if remaining < max_op {
            return Err(NoPermit::TooShort { remaining, max_op });
        }
        Ok(Permit::new(lease.scope.clone(), token, lease.generation, now, remaining, &lease.permits))
    }

    /// What is left of the lease, if its token may be used at all.
    fn usable(&self, lease: &Lease, now: Moment) -> Result<Duration, NoPermit> {
        if let Some(end) = lease.end {
            return Err(NoPermit::Ended(end));
        }
        if lease.giving_back > 0 {
            return Err(NoPermit::GivingBack);
        }
        let remaining = self.left(lease, now);
        if remaining.is_zero() {
            return Err(NoPermit::Jeopardy(Jeopardy::PastDeadline));
        }
        match self.jeopardy(now) {
            Some(jeopardy @ (Jeopardy::PastDeadline | Jeopardy::Paused { .. })) => {
                Err(NoPermit::Jeopardy(jeopardy))
            }
            Some(jeopardy) if self.options.strict => Err(NoPermit::Jeopardy(jeopardy)),
            _ => Ok(remaining),
        }
    }

    fn left(&self, lease: &Lease, now: Moment) -> Duration {
        let session = self.remaining(now);
        match &lease.notice {
            None => session,
            Some(notice) => {
                session.min(notice.deadline.map_or(Duration::ZERO, |deadline| deadline.remaining(now)))
            }
        }
    }

    pub(super) fn end_lease(&mut self, token: Token, why: Option<EndReason>, now: Moment) {
        let deadline = self.deadline;
        let Some(lease) = self.leases.get(&token).filter(|lease| lease.end.is_none()) else { return };
        let asked_for =
            matches!(why, Some(EndReason::Released | EndReason::Transferred)) || lease.giving_back > 0;
        // The server ends nothing of its own before our deadline, unless it is asked to, immediately. So past the
        // deadline "expired", or no word at all, means that we had stopped; as does any end by notice.
        let due = matches!(why, None | Some(EndReason::Expired)) || lease.notice.is_some();
        let end = if asked_for {
            if why == Some(EndReason::Transferred) { LeaseEnd::Transferred } else { LeaseEnd::Released }
        } else if due && self.left(lease, now).is_zero() {
            LeaseEnd::Expired { why }
        } else {
            let suspect =
                deadline.map_or(Suspect { from: now, length: Duration::ZERO }, |deadline| Suspect {
                    from: deadline.sent(),
                    length: deadline.length().min(now.longest_since(deadline.sent())),
                });
            LeaseEnd::Lost { why, suspect }
        };
        if let Some(lease) = self.leases.get_mut(&token) {
            lease.end = Some(end);
        }
    }
}
