//! The store inside the process: the same machine and the same office as a cluster's, without a log.
//!
//! For tests, for examples and for programs whose contenders are all threads of one process. It keeps nothing
//! when the process ends and is not fault-tolerant. It holds no lease rule: it stamps what arrives as a leader does
//! (`tenure_core::Office`), applies it (`tenure_core::Machine`), and carries the answers out.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tenure_clock::{Clock, SystemClock};
use tenure_core::{
    Answer, Applied, Command, Done, Entry, Event, EventKind, Line, Machine, MachineTime, Message, Office,
    OfficeLimits, Open, Refusal, Register, RegisterKey, Renewal, RenewalAnswer, ResourceName, Revision,
    Secret, SessionId, SessionNumber, Token,
};
use tenure_wire::{ApiError, grpc, proto};
use tokio::sync::Notify;

use crate::error::CallError;
use crate::execution::{Execution, Work};
use crate::store::{Ear, LeaseInfo, News, OpenSession, Opened, Route, Store, Then, TimeBase, Watcher};
use crate::transport::random_nonce;

/// What one command counts as towards the office's limits: there is no disk or network whose time it would take.
const COMMAND_BYTES: usize = 256;
/// How long the store sleeps at most.
const LOOK_UP_EVERY: Duration = Duration::from_secs(1);

/// A lease store inside this process. Cheap to clone; clones are the same store.
#[derive(Clone)]
pub struct Embedded(Arc<Shared>);

struct Shared {
    clock: Arc<dyn Clock>,
    inside: Mutex<Inside>,
    /// Something was applied: the next deadline may be another.
    turned: Notify,
}

struct Inside {
    machine: Machine,
    office: Office<Letter>,
    ears: BTreeMap<SessionNumber, (SessionId, Ear)>,
    watchers: Vec<(String, Watcher)>,
    /// What waits to be told, in the order in which it became true.
    outbox: VecDeque<Box<dyn FnOnce() + Send>>,
    /// Somebody is telling already, and will tell what is put in now as well.
    telling: bool,
}

/// Something to be applied, and what to do with the answer.
enum Letter {
    Renewals(Vec<(SessionId, u64)>, Then<Vec<Option<RenewalAnswer>>>),
    Command(Box<Command>, Then<Done>),
}

impl Message for Letter {
    fn line(&self) -> Line {
        match self {
            Letter::Renewals(..) => Line::Renewal,
            Letter::Command(command, _) if matches!(**command, Command::Open(_)) => Line::Open,
            Letter::Command(..) => Line::Other,
        }
    }

    fn bytes(&self) -> usize {
        COMMAND_BYTES
    }

    fn renewals(&self) -> usize {
        match self {
            Letter::Renewals(renewals, _) => renewals.len(),
            Letter::Command(..) => 0,
        }
    }
}

impl Embedded {
    /// An empty store that lives by this machine's clocks.
    pub fn new() -> Embedded {
        Embedded::with(Arc::new(SystemClock), &Execution::Threads)
    }

    /// An empty store that lives by the given clock and counts it in the given place.
    pub fn with(clock: Arc<dyn Clock>, execution: &Execution) -> Embedded {
        let machine = Machine::default();
        let mut office = Office::new(OfficeLimits::default());
        office.take(MachineTime::from(&machine), clock.now());
        let inside = Inside {
            machine,
            office,
            ears: BTreeMap::new(),
            watchers: Vec::new(),
            outbox: VecDeque::new(),
            telling: false,
        };
        let shared = Arc::new(Shared { clock, inside: Mutex::new(inside), turned: Notify::new() });
        execution.spawn(Work::Calls, count_time(Arc::downgrade(&shared)));
        Embedded(shared)
    }

    /// Looks at what the store has agreed on: for tests that want to see everything.
    pub fn look<T>(&self, look: impl FnOnce(&Machine) -> T) -> T {
        look(&self.0.lock().machine)
    }

    fn post(&self, letter: Letter) {
        let turned_away = {
            let mut inside = self.0.lock();
            inside.office.arrived(letter).err()
        };
        if let Some((letter, _)) = turned_away {
            let full =
                || CallError::Refused(ApiError::overloaded("the embedded store", Duration::from_millis(10)));
            match letter {
                Letter::Renewals(_, then) => then(Err(full())),
                Letter::Command(_, then) => then(Err(full())),
            }
            return;
        }
        self.0.turn();
    }
}

impl Default for Embedded {
    fn default() -> Self {
        Embedded::new()
    }
}

/// Ends what is due while nothing else happens, for as long as the store exists.
async fn count_time(store: Weak<Shared>) {
    loop {
        let Some(shared) = store.upgrade() else { return };
        // Listened to before looking, so that nothing applied in between is slept over.
        let turned = shared.turned.notified();
        tokio::pin!(turned);
        turned.as_mut().enable();
        shared.turn();
        let now = shared.clock.now();
        let wake = shared.lock().office.next_wake(now).map(|wake| wake.longest_since(now));
        // Looks up now and then in any case, to see whether anybody still has the store.
        let wake = wake.map_or(LOOK_UP_EVERY, |wake| wake.min(LOOK_UP_EVERY));
        tokio::select! {
            biased;
            () = turned => {}
            () = tokio::time::sleep(wake) => {}
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        // A broken invariant of the machine panics under this lock; what it protects is not to be believed then.
        self.inside.lock().unwrap_or_else(|broken: PoisonError<_>| {
            panic!("the embedded store has stopped after a broken invariant: {broken}")
        })
    }

    /// Stamps and applies all that waits and all that is due, then tells everybody concerned.
    fn turn(&self) {
        let mut inside = self.lock();
        let mut applied_any = false;
        loop {
            let now = self.clock.now();
            if inside.office.probe_due(now) {
                // There is no port that could be deaf: a probe returns as it leaves.
                inside.office.probe_sent(0, now);
                inside.office.probe_returned(0);
            }
            let Some(sealed) = inside.office.seal(|| self.clock.now()) else { break };
            let wall = self.clock.wall();
            inside.apply(sealed.number, sealed.at, wall, sealed.batch);
            applied_any = true;
        }
        if applied_any {
            self.turned.notify_waiters();
        }
        if std::mem::replace(&mut inside.telling, true) {
            return;
        }
        // Told without the lock, so that whoever is told may ask again; and by one thread at a time, so that nobody
        // hears of an end before the grant.
        while let Some(tell) = inside.outbox.pop_front() {
            drop(inside);
            tell();
            inside = self.lock();
        }
        inside.telling = false;
    }
}

impl Inside {
    fn apply(
        &mut self,
        number: u64,
        at: tenure_core::ClusterTime,
        wall: tenure_core::WallTime,
        batch: Vec<Letter>,
    ) {
        let mut entry = Entry { at, wall, renewals: Vec::new(), commands: Vec::new() };
        let mut renewed = Vec::new();
        let mut commanded = Vec::new();
        for letter in batch {
            match letter {
                Letter::Renewals(renewals, then) => {
                    let known: Vec<bool> = renewals.iter().map(|(id, _)| self.machine.knows(id)).collect();
                    let known_ones = renewals.iter().zip(&known).filter(|(_, known)| **known);
                    entry.renewals.extend(
                        known_ones.map(|((id, number), _)| Renewal { session: id.number, number: *number }),
                    );
                    renewed.push((known, then));
                }
                Letter::Command(command, then) => {
                    entry.commands.push(*command);
                    commanded.push(then);
                }
            }
        }
        let Applied { renewals, answers, .. } = self.machine.apply(entry);
        let events = self.machine.fresh_events().to_vec();
        self.office.applied(MachineTime::from(&self.machine));
        self.office.answered(number);
        let mut renewals = renewals.into_iter();
        for (known, then) in renewed {
            let answers = known
                .into_iter()
                .map(|known| if known { renewals.next() } else { Some(RenewalAnswer::UnknownSession) })
                .collect();
            self.outbox.push_back(Box::new(move || then(Ok(answers))));
        }
        for (then, answer) in commanded.into_iter().zip(answers) {
            self.outbox.push_back(Box::new(move || then(answered(answer))));
        }
        self.tell_sessions(&events);
        self.tell_watchers(&events);
    }

    fn tell_sessions(&mut self, events: &[Event]) {
        let mut events = events.iter().peekable();
        while let Some(event) = events.next() {
            let (session, news) = match &event.kind {
                // What was granted at once has been answered; only those who waited need to be told.
                EventKind::Granted { session, number: Some(number), waited, resource, .. }
                    if !waited.is_zero() =>
                {
                    let mut resources = vec![resource];
                    while let Some(next) = events.next_if(|next| {
                        next.revision == event.revision
                            && matches!(&next.kind, EventKind::Granted { session: s, number: n, .. }
                                if s == session && *n == Some(*number))
                    }) {
                        if let EventKind::Granted { resource, .. } = &next.kind {
                            resources.push(resource);
                        }
                    }
                    let Some((id, _)) = self.ears.get(session) else { continue };
                    let leases = self.machine.leases_of(id).unwrap_or_default();
                    let grants: Vec<_> =
                        leases.into_iter().filter(|grant| resources.contains(&&grant.resource)).collect();
                    // Granted and ended again in one entry: the number is asked, and answers.
                    if grants.len() < resources.len() {
                        (*session, News::Unqueued { number: *number })
                    } else {
                        (*session, News::Granted { number: *number, grants })
                    }
                }
                EventKind::Unqueued { session, number: Some(number), .. } => {
                    (*session, News::Unqueued { number: *number })
                }
                EventKind::Noticed { session, token, why, .. } => {
                    (*session, News::Noticed { token: *token, why: *why })
                }
                EventKind::Ended { session, token, why, .. } => {
                    (*session, News::Ended { token: *token, why: *why })
                }
                EventKind::Closed { session, why, .. } => (*session, News::Closed { why: Some(*why) }),
                _ => continue,
            };
            let ear = if matches!(news, News::Closed { .. }) {
                self.ears.remove(&session).map(|(_, ear)| ear)
            } else {
                self.ears.get(&session).map(|(_, ear)| ear.clone())
            };
            if let Some(ear) = ear {
                self.outbox.push_back(Box::new(move || ear(news)));
            }
        }
    }

    fn tell_watchers(&mut self, events: &[Event]) {
        if events.is_empty() {
            return;
        }
        self.watchers.retain(|(prefix, watcher)| {
            watcher.is_heard()
                && revisions(events.iter(), prefix).into_iter().all(|batch| watcher.tell(Ok(batch)))
        });
    }
}

impl Store for Embedded {
    fn time_base(&self) -> TimeBase {
        TimeBase::ThisProcess
    }

    fn open(&self, open: OpenSession, _route: Route, then: Then<Opened>) {
        let OpenSession { holder, ttl, nonce, number, with_process: _ } = open;
        let secret = Secret::new(random_nonce());
        let command = Command::Open(Open { holder, ttl, nonce: Some(nonce), secret, number });
        let then: Then<Done> = Box::new(move |answer| {
            then(answer.and_then(|done| match done {
                Done::Opened { session, ttl, number, .. } => Ok(Opened { session, ttl, number }),
                other => Err(CallError::unexpected("an open", &other)),
            }));
        });
        self.post(Letter::Command(Box::new(command), then));
    }

    fn renew(&self, renewals: Vec<(SessionId, u64)>, _route: Route, then: Then<Vec<Option<RenewalAnswer>>>) {
        self.post(Letter::Renewals(renewals, then));
    }

    fn submit(&self, command: Command, then: Then<Done>) {
        self.post(Letter::Command(Box::new(command), then));
    }

    fn held(&self, session: SessionId, then: Then<Vec<Token>>) {
        let leases = self.look(|machine| machine.leases_of(&session));
        let tokens = leases.map(|leases| leases.iter().map(|grant| grant.token).collect());
        then(tokens.ok_or_else(|| CallError::Refused(Refusal::UnknownSession.into())));
    }

    fn listen(&self, session: SessionId, ear: Ear) {
        self.0.lock().ears.insert(session.number, (session, ear));
    }

    fn forget(&self, session: SessionNumber) {
        self.0.lock().ears.remove(&session);
    }

    fn lease(&self, resource: ResourceName, then: Then<Option<LeaseInfo>>) {
        then(Ok(self.look(|machine| {
            machine.lease(&resource).map(|view| LeaseInfo {
                resource: view.resource,
                holders: view.holders.into_iter().map(|by| (by.session, by.holder, by.token)).collect(),
                waiters: view.waiters.iter().map(|waiter| waiter.session).collect(),
                revision: machine.revision(),
            })
        })));
    }

    fn register(&self, key: RegisterKey, then: Then<Register>) {
        then(Ok(self.look(|machine| machine.register(&key))));
    }

    fn watch(&self, prefix: String, from: Option<Revision>, watcher: Watcher) {
        let mut inside = self.0.lock();
        let present = inside.machine.revision();
        let after = from.map_or(present, |from| Revision::new(from.get().saturating_sub(1)));
        let wanted = match inside.machine.events_after(after) {
            Ok(events) => {
                let begun = proto::WatchResponse { revision: after.get(), ..Default::default() };
                watcher.tell(Ok(begun))
                    && revisions(events, &prefix).into_iter().all(|batch| watcher.tell(Ok(batch)))
            }
            Err(complete_after) => {
                let error = ApiError::too_old(after.next().get(), complete_after.next().get());
                watcher.tell(Err(CallError::Refused(error)));
                false
            }
        };
        // Those that are gone would else be noticed only when something happens.
        inside.watchers.retain(|(_, watcher)| watcher.is_heard());
        if wanted {
            inside.watchers.push((prefix, watcher));
        }
    }
}

/// The events under a prefix, revision by revision.
fn revisions<'a>(events: impl Iterator<Item = &'a Event>, prefix: &str) -> Vec<proto::WatchResponse> {
    let mut batches: Vec<Vec<&Event>> = Vec::new();
    for event in events.filter(|event| concerns(&event.kind, prefix)) {
        match batches.last_mut() {
            Some(batch) if batch[0].revision == event.revision => batch.push(event),
            _ => batches.push(vec![event]),
        }
    }
    batches.iter().filter_map(|batch| grpc::events_of(batch)).collect()
}

/// Whether an event is about a resource or a register whose name begins with `prefix`.
fn concerns(kind: &EventKind, prefix: &str) -> bool {
    prefix.is_empty()
        || match kind {
            EventKind::Granted { resource, .. }
            | EventKind::Ended { resource, .. }
            | EventKind::Noticed { resource, .. }
            | EventKind::Queued { resource, .. }
            | EventKind::Unqueued { resource, .. }
            | EventKind::Barrier { resource, .. } => resource.as_str().starts_with(prefix),
            EventKind::Put { key, .. } | EventKind::Deleted { key } => {
                key.as_bytes().starts_with(prefix.as_bytes())
            }
            EventKind::Armed { scope, .. } | EventKind::Refused { scope, .. } => {
                scope.resource.as_str().starts_with(prefix)
            }
            _ => false,
        }
}

fn answered(answer: Answer) -> Result<Done, CallError> {
    answer.map_err(|refusal| CallError::Refused(refusal.into()))
}
