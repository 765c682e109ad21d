//! A lease in the hands of the application, and the permits taken under it.
//!
//! # Giving back while work goes on
//!
//! A permit is owned: it can be moved into a task and outlives the borrow of its lease, because the work that
//! it covers usually does. So "releasing while a permit is out does not compile" would forbid ordinary
//! programs. Instead [`Lease::release`] takes the lease, closes the intake and *waits* for the permits that
//! are out; so does dropping the lease, in the background. Nothing is sent to the store before the last
//! permit is dropped, however it came to that: this is the rule of the session's logic, not of this file.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{
    EndReason, Generation, Grant, HolderName, Jeopardy, LeaseEnd, LeaseState, Mode, Moment, NoPermit,
    ResourceName, Scope, SessionNumber, Token,
};
use tenure_wire::Effect;
use tenure_wire::proto::event::Kind;
use tokio::sync::{oneshot, watch};

use crate::changes::Changes;
use crate::client::Shared;
use crate::error::CallError;
use crate::execution::Work;
use crate::session::Handle;
use crate::session_driver::{SessionDriver, To};

/// What a lease is to its holder, and whether it is under notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseStatus {
    /// Held, in jeopardy, or ended and how.
    pub state: LeaseState,
    /// The store wants it back, and why: give it back soon, or it ends by itself at the deadline as it stood.
    pub notice: Option<EndReason>,
}

impl LeaseStatus {
    /// Whether work under the lease has to stop whatever is left.
    pub(crate) fn must_stop(&self) -> bool {
        self.notice.is_some()
            || match self.state {
                LeaseState::Held => false,
                LeaseState::Jeopardy(doubt) => {
                    matches!(doubt, Jeopardy::PastDeadline | Jeopardy::Paused { .. })
                }
                LeaseState::Ended(_) => true,
            }
    }
}

/// Why no permit is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PermitError {
    /// The lease does not allow it now.
    #[error("{0}")]
    Refused(NoPermit),
    /// This is a fork of the process that has the lease. The child holds nothing: two processes must not act
    /// under one token.
    #[error("the lease belongs to process {holder}, and this is process {asker}, a fork of it")]
    Forked {
        /// The process that acquired it.
        holder: u32,
        /// The process that asked.
        asker: u32,
    },
}

impl PermitError {
    /// What was done: nothing. Whoever asks for a permit asks this process alone.
    pub fn effect(&self) -> Effect {
        Effect::NotApplied
    }
}

/// Proof that the lease was valid when it was taken: what a fenced write asks for. It carries the token, and
/// dropping it says that the work under it has ended.
///
/// It dereferences to [`tenure_core::Permit`], which is what fences take: hand them `&*permit`.
#[must_use = "a permit covers work only while it is kept"]
pub struct Permit {
    // Dropped in this order: first the permit is counted back, then whoever waits for that is woken.
    permit: tenure_core::Permit,
    permit_return: PermitReturn,
}

impl Permit {
    /// What is left now before the work under it must have stopped: a budget for time-outs.
    pub fn time_left(&self) -> Duration {
        self.permit.remaining(self.permit_return.driver.now())
    }
}

impl Deref for Permit {
    type Target = tenure_core::Permit;

    fn deref(&self) -> &tenure_core::Permit {
        &self.permit
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.permit.fmt(f)
    }
}

/// Proof that a *shared* lease was valid when it was taken. It has no token, so no fence accepts it for a
/// write.
#[must_use = "a permit covers work only while it is kept"]
pub struct ReadPermit {
    permit: tenure_core::ReadPermit,
    permit_return: PermitReturn,
}

impl ReadPermit {
    /// What is left now before the reader must have stopped.
    pub fn time_left(&self) -> Duration {
        self.permit.remaining(self.permit_return.driver.now())
    }
}

impl Deref for ReadPermit {
    type Target = tenure_core::ReadPermit;

    fn deref(&self) -> &tenure_core::ReadPermit {
        &self.permit
    }
}

/// Wakes whoever waits for the last permit.
struct PermitReturn {
    driver: Arc<SessionDriver>,
    token: Token,
}

impl Drop for PermitReturn {
    fn drop(&mut self) {
        self.driver.permit_returned(self.token);
    }
}

/// A lease: the right to act on a resource, for as long as it is renewed.
///
/// It is kept alive in the background. Whether it may be used is asked at the moment of use, with
/// [`permit`](Self::permit). Dropping it gives it back as soon as no permit is out.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = tenure_client::Client::embedded();
/// let session = client.session().open().await?;
/// let lease = session.acquire("settlement/cron").await?;
/// {
///     let permit = lease.permit()?;       // reads the clock now; refused once the lease may be another's
///     println!("write with token {}", permit.token());
/// }
/// lease.release().await?;
/// # Ok(())
/// # }
/// ```
pub struct Lease {
    handle: Arc<Handle>,
    scope: Scope,
    mode: Mode,
    token: Token,
    generation: Generation,
    waited: Duration,
    status: watch::Receiver<LeaseStatus>,
}

impl Lease {
    pub(crate) fn new(handle: Arc<Handle>, grant: &Grant, status: watch::Receiver<LeaseStatus>) -> Lease {
        Lease {
            handle,
            scope: Scope { resource: grant.resource.clone(), slot: grant.slot },
            mode: grant.mode,
            token: grant.token,
            generation: grant.generation,
            waited: grant.waited,
            status,
        }
    }

    fn driver(&self) -> &Arc<SessionDriver> {
        self.handle.driver()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.driver().shared
    }

    /// Who holds it, for people.
    pub fn holder(&self) -> &HolderName {
        self.driver().holder()
    }

    /// The resource.
    pub fn resource(&self) -> &ResourceName {
        &self.scope.resource
    }

    /// The resource, or one slot of it: what fences keep a token for.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// How it is held.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// How often the resource has changed hands; for people.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// How long it took to get it, as the store counted.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// The public number of the session that holds it.
    pub fn session_number(&self) -> SessionNumber {
        self.handle.number()
    }

    /// A permit to act now. The only way to the token.
    pub fn permit(&self) -> Result<Permit, PermitError> {
        self.permit_for(Duration::ZERO)
    }

    /// A permit for work that takes up to `max_op`: refused when less than that is left. Nothing can take a
    /// message back that was sent in time and arrives late, so give the operation itself a time-out, and
    /// fence it.
    pub fn permit_for(&self, max_op: Duration) -> Result<Permit, PermitError> {
        let permit = self.ask(|logic, now| logic.permit(self.token, now, max_op))?;
        Ok(Permit { permit, permit_return: self.permit_return() })
    }

    /// A permit to read now: what a sharer gets.
    pub fn read_permit(&self) -> Result<ReadPermit, PermitError> {
        self.read_permit_for(Duration::ZERO)
    }

    /// A permit to read for up to `max_op`.
    pub fn read_permit_for(&self, max_op: Duration) -> Result<ReadPermit, PermitError> {
        let permit = self.ask(|logic, now| logic.read_permit(self.token, now, max_op))?;
        Ok(ReadPermit { permit, permit_return: self.permit_return() })
    }

    fn ask<P>(
        &self,
        ask: impl FnOnce(&tenure_core::Holder, tenure_core::Moment) -> Result<P, NoPermit>,
    ) -> Result<P, PermitError> {
        let driver = self.driver();
        if let Some(asker) = driver.forked() {
            return Err(PermitError::Forked { holder: driver.process(), asker });
        }
        driver.permit(ask).map_err(PermitError::Refused)
    }

    fn permit_return(&self) -> PermitReturn {
        PermitReturn { driver: self.driver().clone(), token: self.token }
    }

    /// What has to be installed in the lease's fences before it gives its first permit, and what was acquired
    /// with [`fences`](crate::AcquireRequest::fences) gives none before. The one use of a token without a
    /// permit: a barrier only keeps others out.
    pub fn barrier(&self) -> Result<(Scope, Token), PermitError> {
        self.ask(|logic, now| logic.barrier(self.token, now))
    }

    /// A fence has installed the token. The store is notified, and if it says that the token is no longer the
    /// live one, the lease ends.
    pub fn armed(&self, fence: &tenure_core::FenceName) {
        self.driver().with_logic(|logic, _| logic.armed(self.token, fence));
        let command =
            tenure_core::Command::Arm { scope: self.scope.clone(), fence: fence.clone(), token: self.token };
        let (driver, token) = (self.driver().clone(), self.token);
        let callback = Box::new(move |answer| driver.arming_answered(token, answer));
        self.driver().shared.store.submit(command, callback);
    }

    /// The fences that have not answered the barrier, of all that the resource has: a lease whose acquire
    /// named fences gives no permit before. One that is no more is taken out of the set by an administrator:
    /// `tenure fence forget`.
    pub fn unarmed(&self) -> Vec<tenure_core::FenceName> {
        self.driver().with_logic(|logic, _| logic.unarmed(self.token).cloned().collect())
    }

    /// A fence has seen a newer token: the resource is another's, and this lease ends.
    pub fn barrier_refused(&self, seen: Token) {
        self.driver().with_logic(|logic, _| logic.barrier_refused(self.token, seen));
    }

    /// A signed statement of this lease, for storage front ends that must not believe bare numbers: they
    /// check it offline with the keys at `/.well-known/jwks.json`. It proves order, not life.
    pub async fn sequencer(&self) -> Result<String, CallError> {
        let (reply, answer) = oneshot::channel();
        let callback = Box::new(move |signed| drop(reply.send(signed)));
        self.driver().shared.store.sequencer(self.handle.id(), self.scope.clone(), self.token, callback);
        answer.await.unwrap_or_else(|_| {
            let gone = tenure_wire::ApiError::unknown_outcome("the store went away without answering");
            Err(CallError::Refused(gone))
        })
    }

    /// What the lease is at this moment.
    pub fn status(&self) -> LeaseStatus {
        self.driver().lease_status(self.token).map_or(*self.status.borrow(), |(status, _)| status)
    }

    /// What is left at this moment before the work must have stopped.
    pub fn remaining(&self) -> Duration {
        self.driver().lease_status(self.token).map_or(Duration::ZERO, |(_, remaining)| remaining)
    }

    /// Changes of the lease's status, as they are noticed.
    pub fn changes(&self) -> StatusChanges {
        StatusChanges(self.status.clone())
    }

    /// Calls `hook` with every new status, one at a time, on a thread that nothing else depends on.
    pub fn on_change(&self, hook: impl Fn(LeaseStatus) + Send + 'static) {
        let mut changes = self.changes();
        self.driver().shared.execution.spawn(Work::Hooks, async move {
            while let Some(status) = changes.next().await {
                hook(status);
            }
        });
    }

    /// A signal that work under this lease has to stop: at the soft deadline, on notice, after a pause, at
    /// the end. It never takes back what it said; after the lease is held again, ask for a new one.
    pub fn stop_signal(&self) -> StopSignal {
        let stop = self.driver().stop_signal(self.token);
        StopSignal(stop.unwrap_or_else(|| watch::channel(true).1))
    }

    /// Gives the lease back: no new permit from now on, then waits for the permits that are out, then tells
    /// the store. Answers how the lease ended, which may have been otherwise meanwhile.
    ///
    /// Returns at the latest at the lease's deadline: if the store has not answered by then the error's
    /// effect is [`Unknown`](Effect::Unknown). Dropping this future leaves nothing behind: the lease is given
    /// back all the same.
    pub async fn release(self) -> Result<LeaseEnd, CallError> {
        let returning = self.give_back(To::Store);
        let ended = self.returned(returning, None).await;
        ended.unwrap_or_else(|_| Err(self.driver().unanswered(Effect::Unknown)))
    }

    /// Hands the lease to another session that waits in the queue for it, without a moment in which it is
    /// free. Waits for the permits that are out. If the store says no (the other is gone, or not in the
    /// queue) the lease comes back. It does so at its deadline too, if the store has not answered by then; it
    /// gives no permit after that unless the store says no.
    pub async fn transfer(self, to: SessionNumber) -> Result<(), TransferError> {
        let returning = self.give_back(To::Session(to));
        match self.returned(returning, None).await {
            Ok(Ok(LeaseEnd::Transferred)) => Ok(()),
            Ok(Ok(end)) => Err(TransferError::Ended(end)),
            Ok(Err(error)) => Err(TransferError::Refused { lease: self, error }),
            Err(Unreturned) => {
                // A permit may be out, and nothing sent: then it is called off, and nothing will be.
                let called_off = self.driver().keep_after_all(self.token);
                let effect = if called_off { Effect::NotApplied } else { Effect::Unknown };
                Err(TransferError::Refused { error: self.driver().unanswered(effect), lease: self })
            }
        }
    }

    /// Closes the intake, waits up to `within` for the permits that are out, and gives the lease back. If
    /// they are not back in time the intake opens again and the lease comes back with their number: what to
    /// do with work that does not end is the application's to decide.
    ///
    /// Returns within `within`, and at the latest at the lease's deadline: if the store has not answered by
    /// then the error's effect is [`Unknown`](Effect::Unknown), and the lease is given back all the same.
    pub async fn drain(self, within: Duration) -> Result<LeaseEnd, DrainError> {
        let asked = self.driver().now();
        self.drain_asked(asked, within).await
    }

    async fn drain_asked(self, asked: Moment, within: Duration) -> Result<LeaseEnd, DrainError> {
        let returning = GivingBack { asked, ..self.give_back(To::Store) };
        match self.returned(returning, Some(within)).await {
            Ok(ended) => ended.map_err(DrainError::Failed),
            Err(Unreturned) => {
                let driver = self.driver();
                let out = driver.permit(|logic, _| Ok(logic.permits_out(self.token))).unwrap_or_default();
                if out > 0 && driver.keep_after_all(self.token) {
                    return Err(DrainError::StillOut { lease: self, out });
                }
                Err(DrainError::Failed(driver.unanswered(Effect::Unknown)))
            }
        }
    }

    /// [Drains](Self::drain), and then waits up to `seen_within` until somebody else has been granted the resource: what a
    /// process does that is told to end and wants to leave no gap. Answers the successor's public number, or
    /// `None` if there was none in time.
    pub async fn hand_over(
        self,
        within: Duration,
        seen_within: Duration,
    ) -> Result<Option<SessionNumber>, DrainError> {
        let shared = self.driver().shared.clone();
        let resource = self.resource().clone();
        let ours = self.session_number();
        let asked = self.driver().now();
        // Watched from before the end, and begun when the store says so: the grant may follow in the same
        // step. A watch that does not begin must not keep the lease from going back.
        let mut changes = Changes::begin(&shared, resource.to_string(), None);
        let begin_within = within.min(self.driver().give_back_wait(self.token, asked));
        let watched = tokio::select! {
            biased;
            begun = changes.next() => matches!(begun, Some(Ok(_))),
            () = shared.execution.sleep(begin_within) => false,
        };
        self.drain_asked(asked, within).await?;
        if !watched {
            return Ok(None);
        }
        let granted = async {
            while let Some(Ok(change)) = changes.next().await {
                let to = change.events.into_iter().find_map(|event| match event.kind {
                    Some(Kind::Granted(grant))
                        if grant.resource == resource.as_str() && grant.session_number != ours.get() =>
                    {
                        Some(SessionNumber::new(grant.session_number))
                    }
                    _ => None,
                });
                if to.is_some() {
                    return to;
                }
            }
            None
        };
        tokio::select! {
            biased;
            successor = granted => Ok(successor),
            () = shared.execution.sleep(seen_within) => Ok(None),
        }
    }

    fn give_back(&self, to: To) -> GivingBack {
        let asked = self.driver().now();
        GivingBack { asked, outcome: self.driver().give_back(self.token, to) }
    }

    /// Waits for what becomes of a give-back: for `within`, if that is given, and for no longer than it is
    /// worth.
    async fn returned(
        &self,
        GivingBack { asked, mut outcome }: GivingBack,
        within: Option<Duration>,
    ) -> Result<Result<LeaseEnd, CallError>, Unreturned> {
        let driver = self.driver();
        loop {
            let passed = driver.now().longest_since(asked);
            let own = within.map_or(Duration::MAX, |within| within.saturating_sub(passed));
            let left = driver.give_back_wait(self.token, asked).min(own);
            if left.is_zero() {
                return match outcome.try_recv() {
                    Err(oneshot::error::TryRecvError::Empty) => Err(Unreturned),
                    Err(oneshot::error::TryRecvError::Closed) => Ok(forgotten()),
                    Ok(outcome) => Ok(outcome),
                };
            }
            tokio::select! {
                biased;
                outcome = &mut outcome => return Ok(receive(outcome)),
                // The deadline may have moved meanwhile: renewals go on.
                () = driver.shared.execution.sleep(left) => {}
            }
        }
    }
}

/// A lease on its way back.
struct GivingBack {
    asked: Moment,
    outcome: oneshot::Receiver<Result<LeaseEnd, CallError>>,
}

/// The time to wait for an answer was up.
struct Unreturned;

impl Drop for Lease {
    fn drop(&mut self) {
        self.driver().lease_dropped(self.token);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("scope", &self.scope)
            .field("token", &self.token)
            .field("status", &*self.status.borrow())
            .finish()
    }
}

fn receive(
    outcome: Result<Result<LeaseEnd, CallError>, oneshot::error::RecvError>,
) -> Result<LeaseEnd, CallError> {
    outcome.unwrap_or_else(|_| forgotten())
}

/// The sender is dropped without an answer only if the lease was forgotten, which it is after its end.
fn forgotten() -> Result<LeaseEnd, CallError> {
    Ok(LeaseEnd::Expired { why: None })
}

/// Why a lease was not handed over.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The store said no, or could not be asked; the lease is still there.
    #[error("the lease was not handed over: {error}")]
    Refused {
        /// The lease.
        lease: Lease,
        /// Why.
        error: CallError,
    },
    /// The lease had ended otherwise.
    #[error("the lease ended before it could be handed over")]
    Ended(LeaseEnd),
}

impl TransferError {
    /// What the transfer has done.
    pub fn effect(&self) -> Effect {
        match self {
            TransferError::Refused { error, .. } => error.effect(),
            // Its session ended while the transfer was under way, which may have been applied before.
            TransferError::Ended(LeaseEnd::Released) => Effect::Unknown,
            TransferError::Ended(_) => Effect::NotApplied,
        }
    }
}

/// Why a lease was not drained.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// Permits are still out; the lease is still there.
    #[error("{out} permits were still out when the time to drain was up")]
    StillOut {
        /// The lease.
        lease: Lease,
        /// How many.
        out: usize,
    },
    /// The store said no, or could not be asked.
    #[error(transparent)]
    Failed(CallError),
}

impl DrainError {
    /// What the drain has done. An unknown release is one from whose sending on the lease gives no permit.
    pub fn effect(&self) -> Effect {
        match self {
            DrainError::StillOut { .. } => Effect::NotApplied,
            DrainError::Failed(error) => error.effect(),
        }
    }
}

/// Changes of a lease's status, as they are noticed. A status that lasted for a moment only may be skipped;
/// the last one never is.
#[derive(Clone, Debug)]
pub struct StatusChanges(watch::Receiver<LeaseStatus>);

impl StatusChanges {
    /// The next status; `None` when the lease is forgotten, after its end.
    pub async fn next(&mut self) -> Option<LeaseStatus> {
        self.0.changed().await.ok()?;
        Some(*self.0.borrow_and_update())
    }

    /// The status as it was last noticed.
    pub fn latest(&self) -> LeaseStatus {
        *self.0.borrow()
    }
}

/// Says when work has to stop.
#[derive(Clone, Debug)]
pub struct StopSignal(watch::Receiver<bool>);

impl StopSignal {
    /// Whether it has been said.
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until it is said.
    pub async fn stopped(&mut self) {
        // A sender that is gone without having said so belonged to a lease that is gone.
        let _ = self.0.wait_for(|stopped| *stopped).await;
    }
}
