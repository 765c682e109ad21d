//! The store inside the process: the same machine and the same proposer as a cluster's, without a log.
//!
//! For tests, for examples and for programs whose contenders are all threads of one process. It keeps nothing
//! when the process ends and is not fault-tolerant. It holds no lease rule: it stamps what arrives as a
//! leader does (`tenure_core::Proposer`), applies it (`tenure_core::Machine`), and carries the answers out.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tenure_clock::{Clock, SystemClock};
use tenure_core::{
    Answer, Applied, Command, Done, Entry, Event, EventKind, Machine, MachineTime, Message, Open, Proposer,
    ProposerLimits, QueueKind, Refusal, Register, RegisterKey, Renewal, RenewalAnswer, ResourceName,
    Revision, Secret, SessionId, SessionNumber, Token,
};
use tenure_wire::{ApiError, grpc, proto};
use tokio::sync::Notify;

use crate::error::CallError;
use crate::execution::{Execution, Work};
use crate::store::{
    Callback, LeaseInfo, OpenSession, Opened, Route, SessionEvent, SessionListener, Store, TimeBase, Watcher,
};
use crate::transport::random_nonce;

/// What one command counts as towards the proposer's limits: there is no disk or network whose time it would
/// take.
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
    proposer: Proposer<QueuedRequest>,
    listeners: BTreeMap<SessionNumber, (SessionId, SessionListener)>,
    watchers: Vec<(String, Watcher)>,
    /// What waits to be sent, in the order in which it became true.
    outbox: VecDeque<Box<dyn FnOnce() + Send>>,
    /// Somebody is sending already, and will send what is put in now as well.
    telling: bool,
}

/// Something to be applied, and what to do with the answer.
enum QueuedRequest {
    Renewals(Vec<(SessionId, u64)>, Callback<Vec<Option<RenewalAnswer>>>),
    Command(Box<Command>, Callback<Done>),
}

impl Message for QueuedRequest {
    fn queue(&self) -> QueueKind {
        match self {
            QueuedRequest::Renewals(..) => QueueKind::Renewal,
            QueuedRequest::Command(command, _) if matches!(**command, Command::Open(_)) => QueueKind::Open,
            QueuedRequest::Command(..) => QueueKind::Other,
        }
    }

    fn bytes(&self) -> usize {
        COMMAND_BYTES
    }

    fn renewals(&self) -> usize {
        match self {
            QueuedRequest::Renewals(renewals, _) => renewals.len(),
            QueuedRequest::Command(..) => 0,
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
        let mut proposer = Proposer::new(ProposerLimits::default());
        proposer.start_term(MachineTime::from(&machine), clock.now());
        let inside = Inside {
            machine,
            proposer,
            listeners: BTreeMap::new(),
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

    fn enqueue(&self, request: QueuedRequest) {
        let turned_away = {
            let mut inside = self.0.lock();
            inside.proposer.arrived(request).err()
        };
        if let Some((request, _)) = turned_away {
            let full =
                || CallError::Refused(ApiError::overloaded("the embedded store", Duration::from_millis(10)));
            match request {
                QueuedRequest::Renewals(_, callback) => callback(Err(full())),
                QueuedRequest::Command(_, callback) => callback(Err(full())),
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
        let wake = shared.lock().proposer.next_wake(now).map(|wake| wake.longest_since(now));
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
        // A broken invariant of the machine panics under this lock; what it protects is not to be believed
        // then.
        self.inside.lock().unwrap_or_else(|broken: PoisonError<_>| {
            panic!("the embedded store has stopped after a broken invariant: {broken}")
        })
    }

    /// Stamps and applies all that waits and all that is due, then notifies everybody concerned.
    fn turn(&self) {
        let mut inside = self.lock();
        let mut applied_any = false;
        loop {
            let now = self.clock.now();
            if inside.proposer.probe_due(now) {
                // There is no port that could be deaf: a probe returns as it leaves.
                inside.proposer.probe_sent(0, now);
                inside.proposer.probe_returned(0);
            }
            let Some(sealed) = inside.proposer.seal(|| self.clock.now()) else { break };
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
        // Sent without the lock, so that receivers may call again; and by one thread at a time, so that
        // nobody receives an end before the grant.
        while let Some(notify) = inside.outbox.pop_front() {
            drop(inside);
            notify();
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
        batch: Vec<QueuedRequest>,
    ) {
        let mut entry = Entry { at, wall, renewals: Vec::new(), commands: Vec::new() };
        let mut renewed = Vec::new();
        let mut commanded = Vec::new();
        for request in batch {
            match request {
                QueuedRequest::Renewals(renewals, callback) => {
                    let known: Vec<bool> = renewals.iter().map(|(id, _)| self.machine.knows(id)).collect();
                    let known_ones = renewals.iter().zip(&known).filter(|(_, known)| **known);
                    entry.renewals.extend(
                        known_ones.map(|((id, number), _)| Renewal { session: id.number, number: *number }),
                    );
                    renewed.push((known, callback));
                }
                QueuedRequest::Command(command, callback) => {
                    entry.commands.push(*command);
                    commanded.push(callback);
                }
            }
        }
        let Applied { renewals, answers, .. } = self.machine.apply(entry);
        let events = self.machine.fresh_events().to_vec();
        self.proposer.applied(MachineTime::from(&self.machine));
        self.proposer.answered(number);
        let mut renewals = renewals.into_iter();
        for (known, callback) in renewed {
            let answers = known
                .into_iter()
                .map(|known| if known { renewals.next() } else { Some(RenewalAnswer::UnknownSession) })
                .collect();
            self.outbox.push_back(Box::new(move || callback(Ok(answers))));
        }
        for (callback, answer) in commanded.into_iter().zip(answers) {
            self.outbox.push_back(Box::new(move || callback(answered(answer))));
        }
        self.notify_sessions(&events);
        self.notify_watchers(&events);
    }

    fn notify_sessions(&mut self, events: &[Event]) {
        let mut events = events.iter().peekable();
        while let Some(event) = events.next() {
            let (session, session_event) = match &event.kind {
                // What was granted at once has been answered; only those who waited need to be notified.
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
                    let Some((id, _)) = self.listeners.get(session) else { continue };
                    let leases = self.machine.leases_of(id).unwrap_or_default();
                    let grants: Vec<_> =
                        leases.into_iter().filter(|grant| resources.contains(&&grant.resource)).collect();
                    // Granted and ended again in one entry: the number is asked, and answers.
                    if grants.len() < resources.len() {
                        (*session, SessionEvent::Unqueued { number: *number })
                    } else {
                        (*session, SessionEvent::Granted { number: *number, grants })
                    }
                }
                EventKind::Unqueued { session, number: Some(number), .. } => {
                    (*session, SessionEvent::Unqueued { number: *number })
                }
                EventKind::Noticed { session, token, why, .. } => {
                    (*session, SessionEvent::Noticed { token: *token, why: *why })
                }
                EventKind::Ended { session, token, why, .. } => {
                    (*session, SessionEvent::Ended { token: *token, why: *why })
                }
                EventKind::Closed { session, why, .. } => {
                    (*session, SessionEvent::Closed { why: Some(*why) })
                }
                _ => continue,
            };
            let listener = if matches!(session_event, SessionEvent::Closed { .. }) {
                self.listeners.remove(&session).map(|(_, listener)| listener)
            } else {
                self.listeners.get(&session).map(|(_, listener)| listener.clone())
            };
            if let Some(listener) = listener {
                self.outbox.push_back(Box::new(move || listener(session_event)));
            }
        }
    }

    fn notify_watchers(&mut self, events: &[Event]) {
        if events.is_empty() {
            return;
        }
        self.watchers.retain(|(prefix, watcher)| {
            watcher.is_watched()
                && revisions(events.iter(), prefix).into_iter().all(|batch| watcher.notify(Ok(batch)))
        });
    }
}

impl Store for Embedded {
    fn time_base(&self) -> TimeBase {
        TimeBase::ThisProcess
    }

    fn open(&self, open: OpenSession, _route: Route, callback: Callback<Opened>) {
        let OpenSession { holder, ttl, nonce, number, with_process: _ } = open;
        let secret = Secret::new(random_nonce());
        let command = Command::Open(Open { holder, ttl, nonce: Some(nonce), secret, number });
        let callback: Callback<Done> = Box::new(move |answer| {
            callback(answer.and_then(|done| match done {
                Done::Opened { session, ttl, number, .. } => Ok(Opened { session, ttl, number }),
                other => Err(CallError::unexpected("an open", &other)),
            }));
        });
        self.enqueue(QueuedRequest::Command(Box::new(command), callback));
    }

    fn renew(
        &self,
        renewals: Vec<(SessionId, u64)>,
        _route: Route,
        callback: Callback<Vec<Option<RenewalAnswer>>>,
    ) {
        self.enqueue(QueuedRequest::Renewals(renewals, callback));
    }

    fn submit(&self, command: Command, callback: Callback<Done>) {
        self.enqueue(QueuedRequest::Command(Box::new(command), callback));
    }

    fn held(&self, session: SessionId, callback: Callback<Vec<Token>>) {
        let leases = self.look(|machine| machine.leases_of(&session));
        let tokens = leases.map(|leases| leases.iter().map(|grant| grant.token).collect());
        callback(tokens.ok_or_else(|| CallError::Refused(Refusal::UnknownSession.into())));
    }

    fn listen(&self, session: SessionId, listener: SessionListener) {
        self.0.lock().listeners.insert(session.number, (session, listener));
    }

    fn forget(&self, session: SessionNumber) {
        self.0.lock().listeners.remove(&session);
    }

    fn lease(&self, resource: ResourceName, callback: Callback<Option<LeaseInfo>>) {
        callback(Ok(self
            .look(|machine| machine.lease(&resource).map(|view| LeaseInfo::new(view, machine.revision())))));
    }

    fn register(&self, key: RegisterKey, callback: Callback<Register>) {
        callback(Ok(self.look(|machine| machine.register(&key))));
    }

    fn watch(&self, prefix: String, from: Option<Revision>, watcher: Watcher) {
        let mut inside = self.0.lock();
        let present = inside.machine.revision();
        let after = from.map_or(present, |from| Revision::new(from.get().saturating_sub(1)));
        let wanted = match inside.machine.events_after(after) {
            Ok(events) => {
                let begun = proto::WatchResponse { revision: after.get(), ..Default::default() };
                watcher.notify(Ok(begun))
                    && revisions(events, &prefix).into_iter().all(|batch| watcher.notify(Ok(batch)))
            }
            Err(complete_after) => {
                let error = ApiError::too_old(after.next().get(), complete_after.next().get());
                watcher.notify(Err(CallError::Refused(error)));
                false
            }
        };
        // Those that are gone would else be noticed only when something happens.
        inside.watchers.retain(|(_, watcher)| watcher.is_watched());
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
