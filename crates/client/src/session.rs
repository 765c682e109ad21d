//! Sessions: the unit of liveness. One TTL, one heartbeat, many leases.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{
    Bounds, BrokenTiming, EndReason, HolderName, HolderOptions, InvalidName, SessionId, SessionNumber,
    Timing, TimingNumbers,
};

use crate::acquire::AcquireRequest;
use crate::client::Client;
use crate::error::CallError;
use crate::lease::Lease;
use crate::session_driver::{KeepOptions, SessionDriver, SessionStatus};
use crate::watchdog::{self, HardStop};

/// How long to try to open a session.
const OPEN_WITHIN: Duration = Duration::from_secs(10);
/// The part of the usable TTL that is kept for stopping: the soft deadline comes this much before the hard
/// one.
const STOP_SHARE: u32 = 4;

/// What keeps a session open: it is closed when the last user of it is gone.
pub(crate) struct Handle {
    driver: Arc<SessionDriver>,
}

impl Handle {
    pub(crate) fn driver(&self) -> &Arc<SessionDriver> {
        &self.driver
    }

    pub(crate) fn number(&self) -> SessionNumber {
        self.id().number
    }

    pub(crate) fn id(&self) -> SessionId {
        self.driver.id().expect("a session is handed out when it has its id")
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.driver.close(EndReason::Released);
    }
}

/// How a session is to be opened. Made by [`Client::session`].
#[derive(Clone)]
#[must_use = "nothing is opened before `open` is called"]
pub struct SessionRequest {
    client: Client,
    holder: Option<String>,
    numbers: TimingNumbers,
    bounds: Bounds,
    logic: HolderOptions,
    open_within: Duration,
    stop_before: Option<Duration>,
    hard_stop: Option<HardStop>,
    with_process: bool,
}

/// Why a session could not be opened.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    /// The five numbers do not fit together.
    #[error(transparent)]
    Timing(#[from] BrokenTiming),
    /// The holder's name is none.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// The store said no, or could not be asked.
    #[error(transparent)]
    Call(CallError),
}

impl OpenError {
    /// What the attempt has done. An unknown one may have opened a session that nobody renews: it ends by
    /// itself.
    pub fn effect(&self) -> tenure_wire::Effect {
        match self {
            OpenError::Timing(_) | OpenError::Name(_) => tenure_wire::Effect::NotApplied,
            OpenError::Call(error) => error.effect(),
        }
    }
}

impl SessionRequest {
    pub(crate) fn new(client: Client) -> SessionRequest {
        SessionRequest {
            client,
            holder: None,
            numbers: Timing::default().numbers(),
            bounds: Bounds::default(),
            logic: HolderOptions::default(),
            open_within: OPEN_WITHIN,
            stop_before: None,
            hard_stop: None,
            with_process: true,
        }
    }

    /// Who, for people; `host:pid` if not said.
    pub fn holder(mut self, holder: impl Into<String>) -> Self {
        self.holder = Some(holder.into());
        self
    }

    /// How long the session lives without a renewal, with the usual numbers for it. 10 s if not said.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.numbers = TimingNumbers::for_ttl(ttl);
        self
    }

    /// All five numbers, and what the world is bounded by. They are checked when the session is opened.
    pub fn timing(mut self, numbers: TimingNumbers, bounds: Bounds) -> Self {
        (self.numbers, self.bounds) = (numbers, bounds);
        self
    }

    /// No permit from the first failed renewal on, until one succeeds again.
    pub fn strict(mut self) -> Self {
        self.logic.strict = true;
        self
    }

    /// No renewal once no [progress](Session::progressed) was reported for this long: a heartbeat must not
    /// keep a dead-locked worker as leader. Give the worker that reports a session of its own, or it ends the
    /// leases of others with its own.
    pub fn progress_within(mut self, within: Duration) -> Self {
        self.logic.progress_within = Some(within);
        self
    }

    /// How long to try. 10 s if not said.
    pub fn open_within(mut self, within: Duration) -> Self {
        self.open_within = within;
        self
    }

    /// How long before the deadline work gets the [stop signal](Lease::stop_signal): the soft deadline. A quarter
    /// of the usable TTL if not said.
    pub fn stop_before(mut self, before: Duration) -> Self {
        self.stop_before = Some(before);
        self
    }

    /// What happens when a permit is still out at the deadline: the hard one, watched by a thread that
    /// nothing of the application's can block.
    pub fn hard_stop(mut self, hard_stop: HardStop) -> Self {
        self.hard_stop = Some(hard_stop);
        self
    }

    /// Other processes act under this session's leases and may go on when this one dies. Without this an
    /// agent of the host that sees this process dead ends the session at once, which is what makes a crash
    /// cost milliseconds.
    pub fn outlives_process(mut self) -> Self {
        self.with_process = false;
        self
    }

    /// Opens the session. Dropping this future leaves nothing behind.
    pub async fn open(self) -> Result<Session, OpenError> {
        let timing = self.numbers.checked(&self.bounds)?;
        let holder: HolderName = self.holder.unwrap_or_else(default_holder).parse()?;
        let options = KeepOptions {
            holder,
            timing,
            logic: self.logic,
            open_within: self.open_within,
            stop_before: self.stop_before.unwrap_or(timing.usable_ttl() / STOP_SHARE),
            with_process: self.with_process,
        };
        let driver = self.client.keep(options);
        let handle = Arc::new(Handle { driver });
        let mut status = handle.driver.status();
        let settled = status.wait_for(|status| !matches!(status, SessionStatus::Opening)).await;
        match settled.map(|status| status.clone()) {
            Ok(SessionStatus::Failed(error)) => Err(OpenError::Call(error)),
            Ok(_) => {
                if let Some(hard_stop) = self.hard_stop {
                    watchdog::watch(&handle.driver, hard_stop);
                }
                Ok(Session { handle })
            }
            Err(_) => unreachable!("the session driver is ours and has the sender"),
        }
    }
}

/// A session: kept alive in the background until it is closed, or it and all of its leases are dropped.
pub struct Session {
    handle: Arc<Handle>,
}

impl Session {
    /// Asks for a lease. Nothing is sent before the request is awaited.
    pub fn acquire(&self, resource: impl AsRef<str>) -> AcquireRequest<Lease> {
        AcquireRequest::new(self.handle.clone(), [resource.as_ref()])
    }

    /// Asks for several leases at once: all or none.
    pub fn acquire_all<R: AsRef<str>>(
        &self,
        resources: impl IntoIterator<Item = R>,
    ) -> AcquireRequest<Vec<Lease>> {
        AcquireRequest::new(self.handle.clone(), resources)
    }

    /// The session's public number: what lists show, and what a [transfer](Lease::transfer) names.
    pub fn number(&self) -> SessionNumber {
        self.handle.number()
    }

    /// The session's id, known to its opener alone: whoever has it can renew and close the session.
    pub fn id(&self) -> SessionId {
        self.handle.id()
    }

    /// What is left of the session's local deadline.
    pub fn remaining(&self) -> Duration {
        self.handle.driver.remaining()
    }

    /// The worker is getting on; for sessions with [`progress_within`](SessionRequest::progress_within).
    pub fn progressed(&self) {
        self.handle.driver.progressed();
    }

    /// Reads and writes registers, each write once however often it is sent.
    pub fn registers(&self) -> crate::registers::Registers {
        crate::registers::Registers::of_session(self.handle.clone())
    }

    /// Waits until the session has ended.
    pub async fn ended(&self) {
        let mut status = self.handle.driver.status();
        let _ = status.wait_for(|status| matches!(status, SessionStatus::Ended)).await;
    }

    /// By how much too early the store let the session run out, if it did: what was left of its deadline by
    /// this machine's clock. The leader's clock then runs faster than rho allows, or this machine's slower;
    /// or somebody ended the session and this process was not notified. Say so: leases may end while their
    /// holders act, and only fences protect.
    pub fn ended_early(&self) -> Option<Duration> {
        self.handle.driver.ended_early()
    }

    /// Stops waiting for a store that does not answer: all leases end here. Refused (false) while anything
    /// could still be acting on them.
    pub fn give_up(&self) -> bool {
        self.handle.driver.give_up()
    }

    /// Ends the session and gives all of its leases back, once no permit is out. Dropping this future leaves
    /// nothing behind: the session is closed all the same.
    pub async fn close(self) {
        self.handle.driver.close(EndReason::Released);
        self.ended().await;
    }

    /// Ends the session because everything that could act under it was *seen* dead: by its parent, by a
    /// pidfd, by an empty cgroup. Whoever waits is granted at once, and history says `died`; a lease without
    /// fences keeps its lock-delay, since requests may still be on their way. A closed connection or a failed
    /// probe is no proof of death.
    pub async fn died(self) {
        self.handle.driver.close(EndReason::Died);
        self.ended().await;
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }
}

fn default_holder() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    format!("{}:{}", if host.is_empty() { "localhost" } else { host }, std::process::id())
}
