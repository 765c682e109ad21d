//! What anybody may see of the machine, as values of their own: nobody outside of this crate reads the state's
//! records, except to store them. Reading changes nothing, and shows nothing that has ended, cleared away or not.
//!
//! One page of a list costs what it shows, plus a search: it never copies, sorts or counts everything there is.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Bound;
use core::time::Duration;

use super::state::{
    HistoryLimit, Hold, PackedHistory, Resource, ResourceNumber, State, Totals, Transition, WaiterNumber,
};
use super::{Machine, Margins};
use crate::answer::{Grant, Holding, Register, RenewalEvents};
use crate::command::{KindSetting, Mode};
use crate::event::{EndReason, Event};
use crate::limits::Limits;
use crate::names::{FenceName, HolderName, IdentityName, RegisterKey, ResourceName};
use crate::numbers::{Generation, Nonce, Revision, SecretForm, SessionId, SessionNumber, Slot, Token};
use crate::time::{ClusterTime, WallTime};

/// How many of those who wait in the queue for a resource are shown: a queue may be long, and whoever looks
/// at it must not keep everybody else waiting.
pub const WAITERS_SHOWN_MAX: usize = 128;

/// How many records one page of a list looks at. Where most are of what has ended, a page comes back short,
/// even empty, with where to go on: whoever asks for a list must not keep everybody else waiting.
pub const SCANNED_PER_PAGE_MAX: usize = 8_192;

/// A resource as anybody may see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseView {
    /// The resource.
    pub resource: ResourceName,
    /// Its kind, once fixed.
    pub kind: Option<KindSetting>,
    /// Who holds it; empty if it is free.
    pub holders: Vec<Holding>,
    /// The newest token of it.
    pub token: Option<Token>,
    /// How often it has changed hands.
    pub generation: Generation,
    /// Who waits in the queue, the next first; no more than [`WAITERS_SHOWN_MAX`].
    pub waiters: Vec<WaiterView>,
    /// How many wait in the queue, shown or not. Where what has ended is not cleared away yet, the first
    /// [`SCANNED_PER_PAGE_MAX`] are counted one by one and the rest as they stand.
    pub waiting: usize,
    /// For how long nobody is granted it, after an unclean end.
    pub delayed: Option<Duration>,
    /// Its fences and what each has installed.
    pub fences: Vec<FenceView>,
}

/// One fence of a resource: which tokens it has installed, and what it has prevented.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceView {
    /// The resource.
    pub resource: ResourceName,
    /// The fence.
    pub fence: FenceName,
    /// The newest token that it has installed, by slot.
    pub armed: Vec<ArmedView>,
    /// How many stale writes it has refused.
    pub refused: u64,
    /// When it last did, for people; `None` if it never did.
    pub refused_wall: Option<WallTime>,
}

/// A token that a fence has installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArmedView {
    /// The slot, for a semaphore.
    pub slot: Option<Slot>,
    /// The token.
    pub token: Token,
    /// Whether it is the newest of its scope: what the fence should have installed.
    pub current: bool,
}

/// A past lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastLease {
    /// The fencing token.
    pub token: Token,
    /// How often the resource had changed hands.
    pub generation: Generation,
    /// The session.
    pub session: SessionNumber,
    /// Who.
    pub holder: HolderName,
    /// How it was held.
    pub mode: Mode,
    /// Which slot.
    pub slot: Option<Slot>,
    /// From when.
    pub from: ClusterTime,
    /// Until when.
    pub to: ClusterTime,
    /// From when, for people.
    pub from_wall: WallTime,
    /// Until when, for people.
    pub to_wall: WallTime,
    /// Why it ended.
    pub why: EndReason,
    /// The administrator's words.
    pub reason: Option<Arc<str>>,
    /// Who opened the session, if that was said.
    pub identity: Option<IdentityName>,
}

impl From<Transition> for PastLease {
    fn from(past: Transition) -> PastLease {
        PastLease {
            token: past.token,
            generation: past.generation,
            session: past.session,
            holder: past.holder,
            mode: past.mode,
            slot: past.slot,
            from: past.from,
            to: past.to,
            from_wall: past.from_wall,
            to_wall: past.to_wall,
            why: past.why,
            reason: past.reason,
            identity: past.identity,
        }
    }
}

/// The present and past leases of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryView {
    /// The resource.
    pub resource: ResourceName,
    /// Who holds it, and since when by the leader's calendar: for people, who would else take a stall that was
    /// not counted for a gap between two holders.
    pub holders: Vec<(Holding, WallTime)>,
    /// Its past leases, the newest last.
    pub past: Vec<PastLease>,
    /// How much of its past is no longer remembered; `None` if all of it is.
    pub dropped: Option<DroppedLeases>,
}

/// How much of a resource's past is no longer remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DroppedLeases {
    /// How many past leases were dropped since the resource was first seen.
    pub leases: u64,
    /// The newest of them; `None` if they were dropped before format version 2, which is when this was first noted.
    pub newest: Option<NewestDropped>,
}

/// Where a history was cut, and by what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewestDropped {
    /// Which limit dropped it.
    pub limit: HistoryLimit,
    /// That limit: leases, seconds or bytes.
    pub max: u64,
    /// The highest token that was dropped: every past lease with a higher one is there.
    pub token: Token,
    /// When the one dropped last had ended, for people.
    pub to_wall: WallTime,
}

impl HistoryLimit {
    /// The name of the limit, the same on every surface.
    pub const fn as_str(self) -> &'static str {
        match self {
            HistoryLimit::Count => "history_per_resource_max",
            HistoryLimit::Age => "history_age_max",
            HistoryLimit::Bytes => "history_bytes_total_max",
        }
    }

    fn max(self, limits: &Limits) -> u64 {
        match self {
            HistoryLimit::Count => limits.history_per_resource_max.into(),
            HistoryLimit::Age => limits.history_age_max.as_secs(),
            HistoryLimit::Bytes => limits.history_bytes_total_max,
        }
    }
}

/// One who waits in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaiterView {
    /// The session.
    pub session: SessionNumber,
    /// Who.
    pub holder: HolderName,
    /// How it wants to hold the resource.
    pub mode: Mode,
    /// Higher goes first.
    pub priority: i32,
    /// Since how long it waits.
    pub waited: Duration,
    /// How long it will still wait; `None` for as long as its session lives.
    pub remaining: Option<Duration>,
    /// Everything that it waits for.
    pub resources: Vec<ResourceName>,
    /// Who opened the session, if that was said.
    pub identity: Option<IdentityName>,
}

/// A session as anybody may see it: never its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// Its public number.
    pub session: SessionNumber,
    /// Who.
    pub holder: HolderName,
    /// How long it lives without a renewal.
    pub ttl: Duration,
    /// What is left of that.
    pub remaining: Duration,
    /// How long it has been open.
    pub open_for: Duration,
    /// How many leases it has.
    pub leases: usize,
    /// How many acquires of it wait in the queue.
    pub waiters: usize,
    /// Past its TTL, not yet past its hard limit.
    pub lapsed: bool,
    /// Who opened it, if that was said.
    pub identity: Option<IdentityName>,
}

/// A session as the one who knows its id may see it: everything that a client needs that lost track.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnSession {
    /// What anybody may see of it.
    pub view: SessionView,
    /// What it holds.
    pub leases: Vec<OwnLease>,
    /// Its acquires that still wait in the queue.
    pub waits: Vec<OwnWait>,
    /// Leases under notice, and ended ones that it has not seen.
    pub events: RenewalEvents,
    /// The revision of its last lease change.
    pub last_lease_revision: Revision,
    /// The highest number of an open or renewal that was applied.
    pub number: u64,
}

/// A lease as its own session and as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnLease {
    /// As the acquire was answered.
    pub grant: Grant,
    /// As anybody may see it.
    pub holding: Holding,
}

/// An acquire of a session that waits in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnWait {
    /// Its number, if it has one.
    pub number: Option<u64>,
    /// What it waits for.
    pub resources: Vec<ResourceName>,
}

/// Where a page of a list goes on.
pub type Next<K> = Option<K>;

impl Machine {
    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    pub(crate) fn resource_if_known(&self, number: ResourceNumber) -> Option<&Resource> {
        self.state.resources.get(number)
    }

    pub(crate) fn session_holds(&self, session: SessionNumber, resource: ResourceNumber) -> bool {
        let session = self.state.sessions.get(session);
        session.is_some_and(|session| session.leases.binary_search(&resource).is_ok())
    }

    pub(crate) fn first_queued_could_go(&self, resource: ResourceNumber) -> bool {
        let place = self.resource(resource).more.as_ref().and_then(|more| more.queue.first().copied());
        place.is_some_and(|place| {
            let waiter = self.waiter(place.waiter);
            let due = waiter.until.is_some_and(|until| until <= self.state.time);
            // A rest that is over serves the queue when it is cleared away, which may not have been its turn
            // yet.
            let rests = |resource: &ResourceNumber| self.resource(*resource).delayed_until().is_some();
            let may_go = self.state.grants_from == ClusterTime::ZERO && !waiter.resources.iter().any(rests);
            may_go && !due && self.is_live(waiter.session) && self.can_grant(place)
        })
    }

    /// Whether this is the id of a session that has not ended. Once true it stays true until the session
    /// ends, because ids are never reused: what a renewal's intake asks.
    pub fn knows(&self, id: &SessionId) -> bool {
        self.known(*id).is_ok()
    }

    /// The form in which this session's secret is kept; `None` if there is no such session.
    pub fn secret_form(&self, session: SessionNumber) -> Option<SecretForm> {
        self.state.sessions.get(session).map(|session| session.secret.form())
    }

    /// Whether this nonce, in this form, has opened a session or can open none any more.
    pub fn knows_nonce(&self, nonce: Nonce) -> bool {
        self.named_by(Some(nonce)).is_some() || self.nonces.is_used(nonce)
    }

    /// What proves to another node that this one knows the session; `None` if it has ended.
    pub fn proof_of(&self, session: SessionNumber) -> Option<u64> {
        let proof = self.state.sessions.get(session)?.secret.proof();
        self.has_not_ended(session).then_some(proof)
    }

    /// The highest number of an open or renewal of this session that was applied.
    pub fn last_transmission(&self, session: SessionNumber) -> Option<u64> {
        self.state.pulses.get(session).map(|pulse| pulse.number)
    }

    /// How many sessions were ever opened.
    pub fn sessions_opened(&self) -> u64 {
        self.state.sessions_opened
    }

    /// How many sessions are left whose secrets are kept as their openers know them.
    pub fn plain_sessions(&self) -> usize {
        self.plain_sessions
    }

    /// Whether the state has nothing left in plain form: neither a session's secret nor a nonce. Under format version
    /// 2 this stays true once it is.
    pub fn is_concealed(&self) -> bool {
        self.plain_sessions == 0 && self.nonces.used_plain() == 0
    }

    /// One resource; `None` if it was never seen, or is forgotten.
    pub fn lease(&self, name: &ResourceName) -> Option<LeaseView> {
        Some(self.lease_view(*self.names.get(name)?))
    }

    fn lease_view(&self, number: ResourceNumber) -> LeaseView {
        let resource = self.resource(number);
        let more = resource.more.as_deref();
        let queue = || more.into_iter().flat_map(|more| &more.queue).take(SCANNED_PER_PAGE_MAX);
        LeaseView {
            resource: resource.name.clone(),
            kind: resource.kind,
            holders: self.live_holds(resource).map(|hold| self.holding(hold)).collect(),
            token: Token::try_from(resource.last_token).ok(),
            generation: resource.generation,
            waiters: queue()
                .filter_map(|place| self.waiter_view(place.waiter))
                .take(WAITERS_SHOWN_MAX)
                .collect(),
            waiting: self.waiting_for(resource),
            delayed: resource
                .delayed_until()
                .map(|until| until.remaining_at(self.state.time))
                .filter(|remaining| !remaining.is_zero()),
            fences: Self::fences_of(resource).collect(),
        }
    }

    /// How many wait in the queue for a resource. A queue may be long, so it is counted one by one only where
    /// something in it may have ended.
    fn waiting_for(&self, resource: &Resource) -> usize {
        let Some(more) = &resource.more else { return 0 };
        let all = more.queue.len();
        if self.lapsed_sessions == 0 && !self.clearing() {
            return all;
        }
        let looked_at = more.queue.iter().take(SCANNED_PER_PAGE_MAX);
        let ended = looked_at.filter(|place| !self.is_queued(place.waiter)).count();
        all - ended
    }

    fn fences_of(resource: &Resource) -> impl Iterator<Item = FenceView> + '_ {
        let more = resource.more.as_deref();
        let newest = move |slot: Option<Slot>| match slot {
            None => Token::try_from(resource.last_token).ok(),
            Some(slot) => more?.slot_tokens.get(&slot).copied(),
        };
        more.into_iter().flat_map(|more| &more.fences).map(move |(fence, record)| FenceView {
            resource: resource.name.clone(),
            fence: fence.clone(),
            armed: record
                .armed
                .iter()
                .map(|(&slot, &token)| ArmedView { slot, token, current: newest(slot) == Some(token) })
                .collect(),
            refused: record.refused,
            refused_wall: (record.refused > 0).then_some(record.refused_wall),
        })
    }

    /// The leases that have not ended, cleared away or not.
    pub(super) fn live_holds<'a>(&'a self, resource: &'a Resource) -> impl Iterator<Item = &'a Hold> {
        resource.holds.iter().filter(|hold| self.is_held(hold))
    }

    /// Whether a lease has not ended, cleared away or not.
    fn is_held(&self, hold: &Hold) -> bool {
        let noticed_away = hold.notice().is_some_and(|notice| notice.ends_at <= self.state.time);
        // A session past its deadline keeps what has a hard limit, until that.
        let session_keeps = !self.is_due(hold.session)
            || (hold.policies().hard_limit.is_some() && self.has_not_ended(hold.session));
        session_keeps && !noticed_away
    }

    /// Neither timed out nor of a session that has ended, cleared away or not.
    fn is_queued(&self, number: WaiterNumber) -> bool {
        let waiter = self.waiter(number);
        let due = waiter.until.is_some_and(|until| until <= self.state.time);
        !due && self.is_live(waiter.session)
    }

    fn waiter_view(&self, number: WaiterNumber) -> Option<WaiterView> {
        let waiter = self.waiter(number);
        self.is_queued(number).then(|| WaiterView {
            session: waiter.session,
            holder: self.session(waiter.session).holder.clone(),
            mode: waiter.mode,
            priority: waiter.policies.priority,
            waited: self.state.time.since(waiter.since),
            remaining: waiter.until.map(|until| until.remaining_at(self.state.time)),
            resources: waiter.resources.iter().map(|number| self.resource(*number).name.clone()).collect(),
            identity: self.opener_name(waiter.session),
        })
    }

    /// The held resources whose names begin with `prefix`, after `after`, in order; and where to go on.
    pub fn leases(
        &self,
        prefix: &str,
        after: Option<&ResourceName>,
        limit: usize,
    ) -> (Vec<LeaseView>, Next<ResourceName>) {
        let mut found = Vec::new();
        let mut last: Option<&ResourceName> = None;
        let known = self.names.range::<str, _>((page_start(prefix, after), Bound::Unbounded));
        for (scanned, (name, number)) in known.enumerate() {
            if !name.as_str().starts_with(prefix) {
                break;
            }
            if scanned == SCANNED_PER_PAGE_MAX {
                return (found, last.cloned());
            }
            last = Some(name);
            if self.live_holds(self.resource(*number)).next().is_none() {
                continue;
            }
            if found.len() == limit {
                let next = found.last().map(|view: &LeaseView| view.resource.clone());
                return (found, next);
            }
            found.push(self.lease_view(*number));
        }
        (found, None)
    }

    /// The present and past leases of a resource; `None` if it was never seen, or is forgotten.
    pub fn history(&self, name: &ResourceName) -> Option<HistoryView> {
        Some(self.history_view(self.resource(*self.names.get(name)?)))
    }

    fn dropped_leases(&self, resource: &Resource) -> Option<DroppedLeases> {
        let history = resource.more.as_ref().map(|more| &more.history);
        // Every grant raises the generation by one, and is held, remembered or dropped.
        let there = resource.holds.len() + history.map_or(0, PackedHistory::len);
        let leases = resource.generation.get().saturating_sub(there as u64);
        let newest = history.and_then(PackedHistory::dropped).map(|newest| NewestDropped {
            limit: newest.limit,
            max: newest.limit.max(self.limits()),
            token: newest.token,
            to_wall: newest.to_wall,
        });
        (leases > 0).then_some(DroppedLeases { leases, newest })
    }

    fn history_view(&self, resource: &Resource) -> HistoryView {
        HistoryView {
            resource: resource.name.clone(),
            holders: self.live_holds(resource).map(|hold| (self.holding(hold), hold.since_wall)).collect(),
            past: resource.more.iter().flat_map(|more| more.history.iter()).map(PastLease::from).collect(),
            dropped: self.dropped_leases(resource),
        }
    }

    /// The resources whose names begin with `prefix`, after `after`, in order, that have past leases; and where to go on. Whole
    /// resources, as many as have `limit` past leases together, and at least one.
    pub fn histories(
        &self,
        prefix: &str,
        after: Option<&ResourceName>,
        limit: usize,
    ) -> (Vec<HistoryView>, Next<ResourceName>) {
        let mut found: Vec<HistoryView> = Vec::new();
        let (mut count, mut last) = (0, None::<&ResourceName>);
        let names = self.names.range::<str, _>((page_start(prefix, after), Bound::Unbounded));
        for (scanned, (name, number)) in names.enumerate() {
            if !name.as_str().starts_with(prefix) {
                break;
            }
            if scanned == SCANNED_PER_PAGE_MAX {
                return (found, last.cloned());
            }
            let resource = self.resource(*number);
            let many = resource.more.as_ref().map_or(0, |more| more.history.len());
            if count > 0 && many > 0 && count + many > limit {
                return (found, last.cloned());
            }
            last = Some(name);
            if many > 0 {
                count += many;
                found.push(self.history_view(resource));
            }
        }
        (found, None)
    }

    /// What renewals found left of their sessions since this machine was made; not part of the state.
    pub fn margins(&self) -> &Margins {
        &self.margins
    }

    /// The sessions after `after`, in the order of their numbers; and where to go on.
    pub fn sessions(
        &self,
        after: Option<SessionNumber>,
        limit: usize,
    ) -> (Vec<SessionView>, Next<SessionNumber>) {
        let mut found = Vec::new();
        let mut last = None;
        for (scanned, (number, _)) in self.state.sessions.iter_after(after).enumerate() {
            if scanned == SCANNED_PER_PAGE_MAX {
                return (found, last);
            }
            last = Some(number);
            let Some(view) = self.session_view(number) else { continue };
            if found.len() == limit {
                let next = found.last().map(|view: &SessionView| view.session);
                return (found, next);
            }
            found.push(view);
        }
        (found, None)
    }

    /// One session by its public number.
    pub fn session_view(&self, number: SessionNumber) -> Option<SessionView> {
        if !self.has_not_ended(number) {
            return None;
        }
        let (session, pulse) = (self.session(number), self.pulse(number));
        Some(SessionView {
            session: number,
            holder: session.holder.clone(),
            ttl: pulse.ttl.into(),
            remaining: pulse.deadline.remaining_at(self.state.time),
            open_for: self.state.time.since(session.opened_at),
            leases: session.leases.len(),
            waiters: session.more.as_ref().map_or(0, |more| more.waiters.len()),
            lapsed: !self.is_live(number),
            identity: self.opener_name(number),
        })
    }

    /// What a session holds, for the one who knows its id: what a client asks that missed something.
    pub fn leases_of(&self, id: &SessionId) -> Option<Vec<Grant>> {
        Some(self.own_holds(id)?.map(|(number, hold)| self.own_grant(number, hold)).collect())
    }

    /// One lease of a session, for the one who knows its id; `None` if it does not hold the resource. Costs the
    /// same however much it holds besides.
    pub fn lease_of(&self, id: &SessionId, name: &ResourceName) -> Option<Grant> {
        let session = self.known(*id).ok()?;
        let number = *self.names.get(name)?;
        Some(self.own_grant(number, self.live_hold(number, session)?))
    }

    fn own_holds(&self, id: &SessionId) -> Option<impl Iterator<Item = (ResourceNumber, &Hold)>> {
        let session = self.known(*id).ok()?;
        let held = self.session(session).leases.iter();
        Some(held.filter_map(move |number| Some((*number, self.live_hold(*number, session)?))))
    }

    fn live_hold(&self, number: ResourceNumber, session: SessionNumber) -> Option<&Hold> {
        self.resource(number).hold_of(session).filter(|hold| self.is_held(hold))
    }

    fn own_grant(&self, number: ResourceNumber, hold: &Hold) -> Grant {
        self.grant_of(number, hold.session, Duration::ZERO)
    }

    /// Everything about a session, for the one who knows its id.
    pub fn own_session(&self, id: &SessionId) -> Option<OwnSession> {
        let number = self.known(*id).ok()?;
        let waiters = self.session(number).more.as_ref().map(|more| &more.waiters);
        let lease = |(number, hold): (ResourceNumber, &Hold)| OwnLease {
            grant: self.own_grant(number, hold),
            holding: self.holding(hold),
        };
        let wait = |waiter: &WaiterNumber| {
            let waiter = self.waiter(*waiter);
            let names = waiter.resources.iter().map(|number| self.resource(*number).name.clone());
            OwnWait { number: waiter.number, resources: names.collect() }
        };
        Some(OwnSession {
            view: self.session_view(number)?,
            leases: self.own_holds(id)?.map(lease).collect(),
            waits: waiters.into_iter().flatten().map(wait).collect(),
            events: self.renewal_events(number),
            last_lease_revision: self.pulse(number).last_lease_revision,
            number: self.pulse(number).number,
        })
    }

    /// One register; its value is `None` if it does not exist.
    pub fn register(&self, key: &RegisterKey) -> Register {
        self.shown(key)
    }

    /// The registers whose keys begin with `prefix`, after `after`, in order; and where to go on.
    pub fn registers(
        &self,
        prefix: &[u8],
        after: Option<&RegisterKey>,
        limit: usize,
    ) -> (Vec<Register>, Next<RegisterKey>) {
        let from = match after {
            Some(after) if after.as_bytes() >= prefix => Bound::Excluded(after.as_bytes()),
            _ => Bound::Included(prefix),
        };
        let mut found: Vec<Register> = Vec::new();
        let mut last: Option<&RegisterKey> = None;
        let known = self.keys.range::<[u8], _>((from, Bound::Unbounded)).map(|(key, _)| key);
        for (scanned, key) in known.enumerate() {
            if !key.as_bytes().starts_with(prefix) {
                break;
            }
            if scanned == SCANNED_PER_PAGE_MAX {
                return (found, last.cloned());
            }
            last = Some(key);
            let register = self.shown(key);
            if register.value.is_none() {
                continue;
            }
            if found.len() == limit {
                let next = found.last().map(|register| register.key.clone());
                return (found, next);
            }
            found.push(register);
        }
        (found, None)
    }

    /// What the last entry changed, for watchers and for those who wait: all of it, however many events are remembered.
    pub fn fresh_events(&self) -> &[Event] {
        self.events.fresh()
    }

    /// The events after `revision`; or, if they are no longer all here, the revision to start again from.
    pub fn events_after(&self, revision: Revision) -> Result<impl Iterator<Item = &Event>, Revision> {
        self.events.after(revision)
    }

    /// How many entries were applied: what a reader on another node must have come to.
    pub fn entries(&self) -> u64 {
        self.state.entries
    }

    /// The present revision.
    pub fn revision(&self) -> Revision {
        self.state.revision
    }

    /// The last token issued.
    pub fn last_token(&self) -> Option<Token> {
        Token::try_from(self.state.last_token).ok()
    }

    /// What has happened so far, counted.
    pub fn totals(&self) -> &Totals {
        &self.state.totals
    }

    /// How many sessions, held or remembered resources, waiters and registers there are.
    pub fn counts(&self) -> Counts {
        Counts {
            sessions: self.state.sessions.len(),
            leases: self.state.resources.len() - self.forgettable.len(),
            remembered: self.forgettable.len(),
            waiters: self.state.waiters.len(),
            registers: self.state.registers.len(),
            fences: self.fenced.fences(),
        }
    }

    /// The fences of the resources whose names begin with `prefix`, after `after`, in order; and where to go on.
    /// `limit` counts resources.
    pub fn fences(
        &self,
        prefix: &str,
        after: Option<&ResourceName>,
        limit: usize,
    ) -> (Vec<FenceView>, Next<ResourceName>) {
        let mut found = Vec::new();
        let mut last: Option<&ResourceName> = None;
        let fenced = self.fenced.after(page_start(prefix, after));
        for (shown, (name, number)) in fenced.enumerate() {
            if !name.as_str().starts_with(prefix) {
                break;
            }
            if shown == limit {
                return (found, last.cloned());
            }
            last = Some(name);
            found.extend(Self::fences_of(self.resource(number)));
        }
        (found, None)
    }

    /// All fences, in the order of their resources' names: for whoever takes the first few.
    pub fn all_fences(&self) -> impl Iterator<Item = FenceView> {
        let fenced = self.fenced.after(Bound::Unbounded);
        fenced.flat_map(|(_, number)| Self::fences_of(self.resource(number)))
    }

    /// The public keys with which nodes sign sequencers: key id, node, key.
    pub fn signing_keys(&self) -> impl Iterator<Item = (&Arc<str>, u64, &[u8; 32])> {
        self.state.keys.iter().map(|(kid, key)| (kid, key.node, &key.key))
    }
}

/// How much there is of everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sessions, ended ones that are not cleared away among them.
    pub sessions: usize,
    /// Resources that are held, waited for, resting or pinned.
    pub leases: usize,
    /// Free resources whose history is remembered.
    pub remembered: usize,
    /// Acquires that wait in the queue.
    pub waiters: usize,
    /// Registers that exist or whose guard is remembered.
    pub registers: usize,
    /// Fences of all resources.
    pub fences: usize,
}

/// Where the names of a page begin.
fn page_start<'a>(prefix: &'a str, after: Option<&'a ResourceName>) -> Bound<&'a str> {
    match after {
        Some(after) if after.as_str() >= prefix => Bound::Excluded(after.as_str()),
        _ => Bound::Included(prefix),
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::vec;

    use super::*;
    use crate::command::{Acquire, AcquireBy, Command, Entry, Open, Policies, Wait};
    use crate::numbers::Secret;

    fn taken(resource: &str, secret: u64, ttl: Duration) -> Command {
        let mut bits = [0; 16];
        bits[..8].copy_from_slice(&secret.to_be_bytes());
        let holder = "node-a".parse().expect("a good name");
        let open = Open { holder, ttl, nonce: None, secret: Secret::new(bits), number: 1 };
        Command::Acquire(alloc::boxed::Box::new(Acquire {
            by: AcquireBy::Opening(open),
            resources: vec![resource.parse().expect("a good name")],
            mode: Mode::Exclusive,
            wait: Wait::No,
            policies: Policies::default(),
            fences: vec![],
            transmission: None,
        }))
    }

    fn fenced(resource: &str, secret: u64, fences: &[&str]) -> Command {
        let Command::Acquire(mut acquire) = taken(resource, secret, Duration::from_secs(60)) else {
            unreachable!("it is one")
        };
        acquire.fences = fences.iter().map(|fence| fence.parse().expect("a good name")).collect();
        Command::Acquire(acquire)
    }

    fn apply(machine: &mut Machine, micros: u64, commands: Vec<Command>) {
        let at = ClusterTime::from_micros(micros);
        let applied = machine.apply(Entry { at, wall: WallTime::default(), renewals: vec![], commands });
        applied.answers.into_iter().for_each(|answer| drop(answer.expect("done")));
    }

    fn pages(machine: &Machine, prefix: &str, limit: usize) -> Vec<Vec<alloc::string::String>> {
        let (mut after, mut pages) = (None, vec![]);
        loop {
            let (found, next) = machine.fences(prefix, after.as_ref(), limit);
            pages.push(found.iter().map(|view| format!("{} {}", view.resource, view.fence)).collect());
            after = next;
            if after.is_none() {
                return pages;
            }
        }
    }

    /// A page of fences is found by name, so the order of grants does not matter and nothing is sorted.
    #[test]
    fn fences_come_in_the_order_of_names_page_by_page() {
        let mut machine = Machine::default();
        let commands = vec![
            fenced("b/2", 1, &["pg"]),
            fenced("a/1", 2, &["pg", "files"]),
            taken("a/2", 3, Duration::from_secs(60)),
            fenced("b/1", 4, &["pg"]),
        ];
        apply(&mut machine, 1_000_000, commands);
        let all = [["a/1 files", "a/1 pg"].as_slice(), &["b/1 pg"], &["b/2 pg"]];
        assert_eq!(pages(&machine, "", 1), all);
        assert_eq!(pages(&machine, "", 3).concat(), all.concat());
        assert_eq!(pages(&machine, "b/", 2), [["b/1 pg", "b/2 pg"].as_slice()]);
        assert_eq!(machine.all_fences().count(), 4);
        assert_eq!(machine.counts().fences, 4);

        // A machine made again from the state shows the same.
        let again = Machine::from_state(machine.capture()).expect("sound");
        assert_eq!(pages(&again, "", 1), all);
        assert_eq!(again.counts(), machine.counts());

        let removed = |resource: &str, fence: &str| Command::RemoveFence {
            resource: resource.parse().expect("a good name"),
            fence: fence.parse().expect("a good name"),
        };
        apply(&mut machine, 2_000_000, vec![removed("a/1", "pg"), removed("b/1", "pg")]);
        assert_eq!(pages(&machine, "", 9).concat(), ["a/1 files", "b/2 pg"]);
        assert_eq!(machine.counts().fences, 2);
    }

    /// Those who wait are counted by the length of the queue, and one by one where some of them have ended.
    #[test]
    fn a_waiter_that_has_ended_and_is_not_cleared_away_is_not_counted() {
        let waiting = |secret: u64, ttl: u64| {
            let Command::Acquire(mut acquire) = taken("a", secret, Duration::from_secs(ttl)) else {
                unreachable!("it is one")
            };
            acquire.wait = Wait::Forever;
            Command::Acquire(acquire)
        };
        let mut machine = Machine::default();
        let mut limits = machine.settings().limits.clone();
        limits.cleared_per_entry_max = 1;
        let settings = crate::command::Settings { limits, ..machine.settings().clone() };
        let commands = vec![
            Command::Configure(alloc::boxed::Box::new(settings)),
            taken("a", 1, Duration::from_secs(60)),
            // They are due before the waiters, and the portion is used up with the first of them.
            taken("b", 6, Duration::from_secs(1)),
            taken("c", 7, Duration::from_secs(1)),
            waiting(2, 2),
            waiting(3, 2),
            waiting(4, 2),
            waiting(5, 60),
        ];
        apply(&mut machine, 1_000_000, commands);
        let name = "a".parse().expect("a good name");
        assert_eq!(machine.lease(&name).expect("held").waiting, 4);
        apply(&mut machine, 9_000_000, vec![]);
        assert!(machine.clearing(), "one portion does not clear all of them away");
        assert_eq!(machine.lease(&name).expect("held").waiting, 1);
    }

    /// What a session has is found without looking at anybody else's.
    #[test]
    fn an_own_session_shows_its_leases_and_waits() {
        let mut machine = Machine::default();
        apply(&mut machine, 1_000_000, vec![taken("a", 1, Duration::from_secs(60)), fenced("b", 2, &["pg"])]);
        let (own, _) = machine.sessions(None, 2);
        let secret = |number: u64| {
            let mut bits = [0; 16];
            bits[..8].copy_from_slice(&number.to_be_bytes());
            Secret::new(bits)
        };
        let id = SessionId { number: own[1].session, secret: secret(2) };
        let Command::Acquire(mut acquire) = taken("a", 9, Duration::from_secs(60)) else {
            unreachable!("it is one")
        };
        acquire.by =
            AcquireBy::Session(crate::command::Caller { session: id, number: Some(4), lowest_awaited: 0 });
        acquire.wait = Wait::Forever;
        apply(&mut machine, 2_000_000, vec![Command::Acquire(acquire)]);

        let shown = machine.own_session(&id).expect("it is open");
        let [lease] = shown.leases.as_slice() else { panic!("it holds one") };
        assert_eq!((lease.grant.resource.as_str(), lease.grant.token), ("b", lease.holding.token));
        assert_eq!(lease.holding.held_for, Duration::from_secs(1));
        let waits = [OwnWait { number: Some(4), resources: vec!["a".parse().expect("a good name")] }];
        assert_eq!(shown.waits, waits);
        let name = |name: &str| name.parse::<ResourceName>().expect("a good name");
        assert_eq!(machine.lease_of(&id, &name("b")), Some(lease.grant.clone()));
        assert_eq!(machine.lease_of(&id, &name("a")), None, "another session holds it");
        let stranger = SessionId { secret: secret(7), ..id };
        assert_eq!(machine.lease_of(&stranger, &name("b")), None);
        assert_eq!(machine.own_session(&stranger), None);
    }

    #[test]
    fn a_list_of_the_dead_is_looked_at_page_by_page() {
        let (short, long) = (Duration::from_secs(2), Duration::from_secs(60));
        let many = 2 * SCANNED_PER_PAGE_MAX + 10;
        let mut commands: Vec<Command> =
            (0..many).map(|number| taken(&format!("a/{number:06}"), number as u64, short)).collect();
        commands.push(taken("a/living", many as u64, long));
        let mut machine = Machine::default();
        let mut apply = |micros, commands| {
            let at = ClusterTime::from_micros(micros);
            machine.apply(Entry { at, wall: WallTime::default(), renewals: vec![], commands });
        };
        apply(1_000_000, commands);
        apply(9_000_000, vec![]);

        let (mut after, mut pages) = (None, vec![]);
        loop {
            let (found, next) = machine.leases("a/", after.as_ref(), 10);
            pages.push(found.len());
            after = next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(pages, [0, 0, 1], "the living one is found, and no page looks at everything");
    }
}
