//! What anybody may see of the machine. Reading changes nothing, and shows nothing that has ended, cleared
//! away or not.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Bound;
use core::time::Duration;

use super::state::{FenceRecord, Hold, Resource, ResourceNumber, State, Totals, Transition, WaiterNumber};
use super::{Machine, Margins};
use crate::answer::{Grant, Holding, Register, RenewalEvents};
use crate::command::{KindSetting, Mode};
use crate::event::Event;
use crate::names::{FenceName, HolderName, RegisterKey, ResourceName};
use crate::numbers::{Generation, Revision, SessionId, SessionNumber, Token};
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
    /// How many wait in the queue, shown or not.
    pub waiting: usize,
    /// For how long nobody is granted it, after an unclean end.
    pub delayed: Option<Duration>,
    /// Its fences and what each has installed.
    pub fences: Vec<(FenceName, FenceRecord)>,
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
}

/// A session as the one who knows its id may see it: everything that a client needs that lost track.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnSession {
    /// What anybody may see of it.
    pub view: SessionView,
    /// What it holds.
    pub leases: Vec<Grant>,
    /// The numbers of its numbered acquires that still wait in the queue.
    pub waiting: Vec<u64>,
    /// Leases under notice, and ended ones that it has not seen.
    pub events: RenewalEvents,
    /// The revision of its last lease change.
    pub last_lease_revision: Revision,
    /// The highest number of an open or renewal that was applied.
    pub number: u64,
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

    /// One resource; `None` if it was never seen, or is forgotten.
    pub fn lease(&self, name: &ResourceName) -> Option<LeaseView> {
        Some(self.lease_view(*self.names.get(name)?))
    }

    fn lease_view(&self, number: ResourceNumber) -> LeaseView {
        let resource = self.resource(number);
        let more = resource.more.as_deref();
        let queue = || more.into_iter().flat_map(|more| &more.queue);
        let queued = queue().filter(|place| self.is_queued(place.waiter));
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
            waiting: queued.count(),
            delayed: resource
                .delayed_until()
                .map(|until| until.remaining_at(self.state.time))
                .filter(|remaining| !remaining.is_zero()),
            fences: more
                .into_iter()
                .flat_map(|more| &more.fences)
                .map(|(name, fence)| (name.clone(), fence.clone()))
                .collect(),
        }
    }

    /// The leases that have not ended, cleared away or not.
    pub(super) fn live_holds<'a>(&'a self, resource: &'a Resource) -> impl Iterator<Item = &'a Hold> {
        resource.holds.iter().filter(|hold| {
            let noticed_away = hold.notice().is_some_and(|notice| notice.ends_at <= self.state.time);
            // A session past its deadline keeps what has a hard limit, until that.
            let session_keeps = !self.is_due(hold.session)
                || (hold.policies().hard_limit.is_some() && self.has_not_ended(hold.session));
            session_keeps && !noticed_away
        })
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
        })
    }

    /// The held resources whose names begin with `prefix`, after `after`, in order; and where to go on.
    pub fn leases(
        &self,
        prefix: &str,
        after: Option<&ResourceName>,
        limit: usize,
    ) -> (Vec<LeaseView>, Next<ResourceName>) {
        let from = match after {
            Some(after) if after.as_str() >= prefix => Bound::Excluded(after.as_str()),
            _ => Bound::Included(prefix),
        };
        let mut found = Vec::new();
        let mut last: Option<&ResourceName> = None;
        let known = self.names.range::<str, _>((from, Bound::Unbounded));
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

    /// The past leases of a resource, the newest last; `None` if it was never seen, or is forgotten.
    pub fn history(&self, name: &ResourceName) -> Option<Vec<Transition>> {
        let resource = self.resource(*self.names.get(name)?);
        Some(resource.more.iter().flat_map(|more| &more.history).cloned().collect())
    }

    /// When the leases of a resource that have not ended were granted, by the leaders' calendars: for people, who would
    /// else take a stall that was not counted for a gap between two holders.
    pub fn granted_wall(&self, name: &ResourceName) -> Option<Vec<(Token, WallTime)>> {
        let resource = self.resource(*self.names.get(name)?);
        Some(self.live_holds(resource).map(|hold| (hold.token, hold.since_wall)).collect())
    }

    /// The resources whose names begin with `prefix`, after `after`, in order, that have past leases; and where to go on. Whole
    /// resources, as many as have `limit` past leases together, and at least one.
    pub fn histories(
        &self,
        prefix: &str,
        after: Option<&ResourceName>,
        limit: usize,
    ) -> (Vec<(LeaseView, Vec<Transition>)>, Next<ResourceName>) {
        let from = match after {
            Some(after) if after.as_str() >= prefix => Bound::Excluded(after.as_str()),
            _ => Bound::Included(prefix),
        };
        let mut found: Vec<(LeaseView, Vec<Transition>)> = Vec::new();
        let (mut count, mut last) = (0, None::<&ResourceName>);
        let names = self.names.range::<str, _>((from, Bound::Unbounded));
        for (scanned, (name, number)) in names.enumerate() {
            if !name.as_str().starts_with(prefix) {
                break;
            }
            if scanned == SCANNED_PER_PAGE_MAX {
                return (found, last.cloned());
            }
            let past = self.resource(*number).more.iter().flat_map(|more| &more.history);
            let many = past.clone().count();
            if count > 0 && many > 0 && count + many > limit {
                return (found, last.cloned());
            }
            last = Some(name);
            if many > 0 {
                count += many;
                found.push((self.lease_view(*number), past.cloned().collect()));
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
        })
    }

    /// What a session holds, for the one who knows its id: what a client asks that missed something.
    pub fn leases_of(&self, id: &SessionId) -> Option<Vec<Grant>> {
        let session = self.known(*id).ok()?;
        let held = |number: &&ResourceNumber| {
            self.live_holds(self.resource(**number)).any(|hold| hold.session == session)
        };
        let leases = self.session(session).leases.iter().filter(held);
        Some(leases.map(|number| self.grant_of(*number, session, Duration::ZERO)).collect())
    }

    /// Everything about a session, for the one who knows its id.
    pub fn own_session(&self, id: &SessionId) -> Option<OwnSession> {
        let number = self.known(*id).ok()?;
        let waiters = self.session(number).more.as_ref().map(|more| &more.waiters);
        Some(OwnSession {
            view: self.session_view(number)?,
            leases: self.leases_of(id)?,
            waiting: waiters.into_iter().flatten().filter_map(|waiter| self.waiter(*waiter).number).collect(),
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
        }
    }

    /// The resources that have fences, in no order that means anything. They are never forgotten, so this does not
    /// look at all the others.
    pub fn fenced(&self) -> impl Iterator<Item = &Resource> {
        let has_fences =
            |resource: &&Resource| resource.more.as_ref().is_some_and(|more| !more.fences.is_empty());
        self.pinned.iter().map(|number| self.resource(*number)).filter(has_fences)
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
