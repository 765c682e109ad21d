//! For tests of programs that hold leases: *your* pause, in milliseconds.
//!
//! A [`Bench`] is a store and any number of processes that use it, all inside one test. Its time is the
//! virtual time of a paused tokio runtime: it stands still while anything can still happen and jumps when
//! nothing can, so a test that waits out an hour is over at once and does the same every time. A [`Process`]
//! can be stopped and woken, suspended, cut off, slowed down; its answers and pushes can be lost.
//!
//! ```
//! use std::time::Duration;
//! use tenure_client::testing::Bench;
//!
//! #[tokio::main(flavor = "current_thread", start_paused = true)]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let bench = Bench::new();
//!     let (ours, theirs) = (bench.process(), bench.process());
//!     let session = ours.client().session().open().await?;
//!     let lease = session.acquire("settlement/cron").await?;
//!     let rival = theirs.client().session().open().await?;
//!
//!     ours.freeze(Duration::from_secs(41)).await; // a pause of the collector, say
//!
//!     let next = rival.acquire("settlement/cron").wait().await?;
//!     assert!(next.permit().is_ok());
//!     assert!(lease.permit().is_err(), "whoever slept through its lease may not act on it");
//!     Ok(())
//! }
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_clock::Clock;
use tenure_core::{
    Command, Done, Moment, Register, RegisterKey, RenewalAnswer, ResourceName, Revision, SessionId,
    SessionNumber, Token, WallTime,
};
use tokio::sync::oneshot;
use tokio::time::Instant;

pub use crate::chance::seed_chance;
use crate::client::Client;
use crate::embedded::Embedded;
use crate::error::{CallError, in_doubt};
use crate::execution::{Execution, Gate, Tasks, Work};
use crate::store::{
    Callback, LeaseInfo, OpenSession, Opened, Route, SessionEvent, SessionListener, Store, TimeBase, Watcher,
};

/// How long after a lost answer a command is sent again.
const REPEAT_AFTER: Duration = Duration::from_millis(100);

/// A store and the processes that use it, in the virtual time of the test's runtime.
pub struct Bench {
    store: Embedded,
}

impl Bench {
    /// An empty store. Call it inside a runtime with paused time: `#[tokio::test(start_paused = true)]`.
    pub fn new() -> Bench {
        let execution = Execution::Tasks(Tasks::current());
        Bench { store: Embedded::with(Arc::new(VirtualClock::new()), &execution) }
    }

    /// Another process, with a client of its own.
    pub fn process(&self) -> Process {
        let tasks = Tasks::current();
        let gate = tasks.gate().clone();
        let execution = Execution::Tasks(tasks);
        let clock = VirtualClock::new();
        let link = Link(Arc::new(LinkShared {
            store: self.store.clone(),
            execution: execution.clone(),
            gate,
            faults: Mutex::default(),
        }));
        let client = Client::with(Arc::new(link.clone()), Arc::new(clock.clone()), execution);
        Process { client, clock, link }
    }

    /// The store itself, as no process sees it.
    pub fn store(&self) -> &Embedded {
        &self.store
    }

    /// Lets time pass for everybody.
    pub async fn pass(&self, length: Duration) {
        tokio::time::sleep(length).await;
    }
}

impl Default for Bench {
    fn default() -> Self {
        Bench::new()
    }
}

/// One process of a [`Bench`].
pub struct Process {
    client: Client,
    clock: VirtualClock,
    link: Link,
}

impl Process {
    /// The process's client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The process's clock, for what else lives by it: a fence, say.
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(self.clock.clone())
    }

    /// Stops the process for so long, as SIGSTOP or a long collection would: its clocks go on, its timers run
    /// out, its messages wait. When this returns it has woken, and the test runs before anything else of it
    /// does.
    pub async fn freeze(&self, length: Duration) {
        self.link.0.gate.shut();
        tokio::time::sleep(length).await;
        self.link.thaw();
    }

    /// Suspends the machine that the process is on: as [`freeze`](Self::freeze), and one of its two clocks
    /// does not notice.
    pub async fn suspend(&self, length: Duration) {
        self.freeze(length).await;
        *self.clock.raw_lag() += length;
    }

    /// Cuts the process off: nothing leaves it and nothing reaches it.
    pub fn cut(&self) {
        self.link.faults().cut = true;
    }

    /// Ends a [`cut`](Self::cut): like a new connection, with a word about what may have been missed.
    pub fn heal(&self) {
        let listeners = {
            let mut faults = self.link.faults();
            faults.cut = false;
            faults.listeners.clone()
        };
        for (_, listener) in listeners {
            self.link.deliver(move || listener(SessionEvent::Missed));
        }
    }

    /// From now on every message takes this long, in each direction.
    pub fn delay(&self, each_way: Duration) {
        self.link.faults().delay = each_way;
    }

    /// The next so many commands and renewals are lost on their way to the store. A command is sent again
    /// after a while, so whatever is sent behind it arrives first.
    pub fn drop_requests(&self, many: u32) {
        self.link.faults().requests_to_drop = many;
    }

    /// The next so many answers are lost, after what they answer was done.
    pub fn drop_answers(&self, many: u32) {
        self.link.faults().answers_to_drop = many;
    }

    /// How many messages with renewals have left the process.
    pub fn messages_sent(&self) -> u64 {
        self.link.faults().messages
    }

    /// Whether pushes are lost from now on.
    pub fn drop_pushes(&self, drop: bool) {
        self.link.faults().drop_pushes = drop;
    }
}

/// Time as a paused runtime counts it, with a machine of its own underneath. This is the clock of a world
/// that is made up for a test, so it is the one place of this crate that asks for the time itself.
#[derive(Clone)]
struct VirtualClock {
    origin: Instant,
    /// What the clock that stands still in suspend has missed.
    raw_lag: Arc<Mutex<Duration>>,
}

impl VirtualClock {
    fn new() -> VirtualClock {
        VirtualClock { origin: Instant::now(), raw_lag: Arc::default() }
    }

    fn raw_lag(&self) -> MutexGuard<'_, Duration> {
        self.raw_lag.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Moment {
        let boot = self.origin.elapsed();
        Moment::from_readings(boot, boot.saturating_sub(*self.raw_lag()))
    }

    fn wall(&self) -> WallTime {
        WallTime::from_unix_millis(u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}

/// The way between one process and the store.
#[derive(Clone)]
struct Link(Arc<LinkShared>);

struct LinkShared {
    store: Embedded,
    execution: Execution,
    gate: Arc<Gate>,
    faults: Mutex<Faults>,
}

#[derive(Default)]
struct Faults {
    cut: bool,
    delay: Duration,
    requests_to_drop: u32,
    answers_to_drop: u32,
    drop_pushes: bool,
    messages: u64,
    listeners: Vec<(SessionNumber, SessionListener)>,
    /// What has reached a process that is stopped.
    undelivered: VecDeque<Box<dyn FnOnce() + Send>>,
}

impl Link {
    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.0.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands something to the process: at once, or when it wakes.
    fn deliver(&self, what: impl FnOnce() + Send + 'static) {
        if self.0.gate.is_shut() {
            self.faults().undelivered.push_back(Box::new(what));
        } else {
            what();
        }
    }

    fn thaw(&self) {
        self.0.gate.open();
        let undelivered = std::mem::take(&mut self.faults().undelivered);
        // In a task: what has just been woken does not read its inbox before it goes on with what it was
        // doing.
        self.0.execution.spawn(Work::Calls, async move { undelivered.into_iter().for_each(|what| what()) });
    }

    /// Whether the way is free of any trouble, so that messages pass at once.
    fn is_clear(&self) -> bool {
        let faults = self.faults();
        !faults.cut && faults.delay.is_zero() && faults.requests_to_drop == 0 && faults.answers_to_drop == 0
    }

    /// Whether the request that leaves now is to be lost.
    fn loses_request(&self) -> bool {
        let mut faults = self.faults();
        let lost = faults.requests_to_drop > 0;
        faults.requests_to_drop = faults.requests_to_drop.saturating_sub(1);
        lost
    }

    /// Carries one message there: false if it is lost.
    async fn there(&self) -> bool {
        let delay = self.faults().delay;
        tokio::time::sleep(delay).await;
        !self.faults().cut
    }

    /// Carries one answer back: false if it is lost.
    async fn back(&self) -> bool {
        {
            let mut faults = self.faults();
            if faults.answers_to_drop > 0 {
                faults.answers_to_drop -= 1;
                return false;
            }
        }
        self.there().await
    }

    /// Sends once, and hands the answer on if it comes through.
    fn once<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Embedded, Callback<T>) + Send + 'static,
        callback: Callback<T>,
    ) {
        let link = self.clone();
        if self.is_clear() {
            let callback = Box::new(move |answer| link.deliver(move || callback(answer)));
            return ask(&self.0.store, callback);
        }
        let lost = self.loses_request();
        self.0.execution.spawn(Work::Calls, async move {
            if lost || !link.there().await {
                return;
            }
            let (reply, answer) = oneshot::channel();
            ask(&link.0.store, Box::new(move |answer| drop(reply.send(answer))));
            if let Ok(answer) = answer.await
                && link.back().await
            {
                link.deliver(move || callback(answer));
            }
        });
    }

    /// Sends again and again until an answer comes through.
    fn until_answered<T: Send + 'static>(
        &self,
        ask: impl Fn(&Embedded, Callback<T>) + Send + Sync + 'static,
        callback: Callback<T>,
    ) {
        let link = self.clone();
        if self.is_clear() {
            let callback = Box::new(move |answer| link.deliver(move || callback(answer)));
            return ask(&self.0.store, callback);
        }
        let mut lost = self.loses_request();
        self.0.execution.spawn(Work::Calls, async move {
            let mut doubtful = false;
            loop {
                if !std::mem::take(&mut lost) && link.there().await {
                    let (reply, answer) = oneshot::channel();
                    ask(&link.0.store, Box::new(move |answer| drop(reply.send(answer))));
                    if let Ok(answer) = answer.await
                        && link.back().await
                    {
                        let answer = answer.map_err(|error| match error {
                            CallError::Refused(no) if doubtful => CallError::Refused(in_doubt(no)),
                            error => error,
                        });
                        return link.deliver(move || callback(answer));
                    }
                    doubtful = true;
                }
                tokio::time::sleep(REPEAT_AFTER).await;
            }
        });
    }
}

impl Store for Link {
    fn time_base(&self) -> TimeBase {
        TimeBase::ClusterTime
    }

    fn open(&self, open: OpenSession, route: Route, callback: Callback<Opened>) {
        self.once(move |store, callback| store.open(open, route, callback), callback);
    }

    fn renew(
        &self,
        renewals: Vec<(SessionId, u64)>,
        route: Route,
        callback: Callback<Vec<Option<RenewalAnswer>>>,
    ) {
        self.faults().messages += 1;
        self.once(move |store, callback| store.renew(renewals, route, callback), callback);
    }

    fn submit(&self, command: Command, callback: Callback<Done>) {
        self.until_answered(move |store, callback| store.submit(command.clone(), callback), callback);
    }

    fn held(&self, session: SessionId, callback: Callback<Vec<Token>>) {
        self.until_answered(move |store, callback| store.held(session, callback), callback);
    }

    fn listen(&self, session: SessionId, listener: SessionListener) {
        self.faults().listeners.push((session.number, listener.clone()));
        let link = self.clone();
        let received = Arc::new(move |event| {
            let lost = {
                let faults = link.faults();
                faults.cut || faults.drop_pushes
            };
            let listener = listener.clone();
            if !lost {
                link.deliver(move || listener(event));
            }
        });
        self.0.store.listen(session, received);
    }

    fn forget(&self, session: SessionNumber) {
        self.faults().listeners.retain(|(number, _)| *number != session);
        self.0.store.forget(session);
    }

    fn lease(&self, resource: ResourceName, callback: Callback<Option<LeaseInfo>>) {
        self.until_answered(move |store, callback| store.lease(resource.clone(), callback), callback);
    }

    fn register(&self, key: RegisterKey, callback: Callback<Register>) {
        self.until_answered(move |store, callback| store.register(key.clone(), callback), callback);
    }

    fn watch(&self, prefix: String, from: Option<Revision>, watcher: Watcher) {
        if !self.faults().cut {
            return self.0.store.watch(prefix, from, watcher);
        }
        let link = self.clone();
        self.0.execution.spawn(Work::Calls, async move {
            while link.faults().cut && watcher.is_watched() {
                tokio::time::sleep(REPEAT_AFTER).await;
            }
            link.0.store.watch(prefix, from, watcher);
        });
    }
}
