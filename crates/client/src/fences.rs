//! Connects leases and fences: the barrier on taking over, and reports to the store of what fences refused.
//!
//! The fences decide; this file only carries messages. A lease's token is installed in its fences before
//! anything is read. Back come reports for people: which fence has installed which token, and how many stale
//! writes each has refused. Reports are aggregated and sent at most once in a while, so a stale holder that
//! writes in a loop costs the cluster one small command a second.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::{Command, FenceName, InvalidName, NoPermit, Scope, Token};
use tenure_fence::{Barrier, Fence, FenceError, FindOut, Stale, Takeover};
use tenure_wire::Effect;

use crate::client::{Client, Shared};
use crate::execution::Work;
use crate::lease::{Lease, PermitError};
use crate::retry::{Backoff, roll};

/// How long refusals are counted together before they are reported.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Fences whose refusals are counted at once. Past it they are refused all the same, only not counted.
const COUNTED_MAX: usize = 1_024;
/// How long to wait before a barrier that came to nothing is repeated.
const BARRIER_AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// Why a lease could not take over its fences.
#[derive(Debug, thiserror::Error)]
pub enum TakeOverError {
    /// The lease does not allow it, or not any more.
    #[error(transparent)]
    Lease(#[from] PermitError),
    /// A fence's name is none.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// A fence said no. If it has seen a newer token the lease has ended with that; else it is still held,
    /// and may try again.
    #[error("fence {fence}: {error}")]
    Fence {
        /// Which.
        fence: FenceName,
        /// What it said.
        error: FenceError,
    },
}

impl TakeOverError {
    /// What became of the token in the fence that failed. Those before it in the list have installed it,
    /// which keeps others out and harms nobody.
    pub fn effect(&self) -> Effect {
        match self {
            TakeOverError::Lease(_) | TakeOverError::Name(_) => Effect::NotApplied,
            TakeOverError::Fence { error, .. } => match error.effect() {
                tenure_fence::FenceEffect::NotApplied => Effect::NotApplied,
                tenure_fence::FenceEffect::Unknown => Effect::Unknown,
            },
        }
    }
}

impl Lease {
    /// What a fence gets on taking over: the token, and what is left of the lease.
    /// [`take_over`](Self::take_over) does this and the rest by itself.
    pub fn takeover(&self) -> Result<Takeover, PermitError> {
        if !self.mode().writes() {
            return Err(PermitError::Refused(NoPermit::ReadOnly));
        }
        // The clock is read before what is left is asked for, so that the difference is to our disadvantage.
        let now = self.shared().clock.now();
        let (scope, token) = self.barrier()?;
        Ok(Takeover::new(scope, token, self.holder().clone(), now, self.remaining()))
    }

    /// Takes over: installs the token in every one of these fences, tells the store that it is there, and
    /// answers what each fence found, in order: the predecessor's token and its cursor. When this returns,
    /// nothing that an earlier holder has sent can land any more; only now read, then work.
    ///
    /// A fence that cannot be reached, or does not say what became of the barrier, is asked again for as long
    /// as the lease lasts: a repeated barrier is harmless. One that has seen a newer token ends the lease.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// use tenure_fence::files::Files;
    ///
    /// let client = tenure_client::Client::embedded();
    /// let session = client.session().open().await?;
    /// let files = Files::open(folder.path())?;
    /// let lease = session.acquire("reports/daily").fences(["files:reports"]).await?;
    /// assert!(lease.permit().is_err(), "not before its fences know");
    ///
    /// lease.take_over(&[("files:reports", &files)]).await?;
    /// files.publish(&*lease.permit()?, |_previous, next| std::fs::write(next.join("report.csv"), "1,2,3\n"))?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn take_over(&self, fences: &[(&str, &dyn Fence)]) -> Result<Vec<Barrier>, TakeOverError> {
        let mut found = Vec::with_capacity(fences.len());
        for (name, fence) in fences {
            let name: FenceName = name.parse()?;
            found.push(self.barrier_in(&name, *fence).await?);
            self.armed(&name);
        }
        Ok(found)
    }

    async fn barrier_in(&self, name: &FenceName, fence: &dyn Fence) -> Result<Barrier, TakeOverError> {
        let mut backoff = Backoff::new(BARRIER_AGAIN.0, BARRIER_AGAIN.1);
        loop {
            // Asked anew each time: this is what ends the loop together with the lease.
            let takeover = self.takeover()?;
            let error = match fence.barrier(&takeover).await {
                Ok(found) => return Ok(found),
                Err(error) => error,
            };
            match &error {
                FenceError::Stale(stale) => {
                    self.barrier_refused(stale.seen);
                    self.report_refused(name, &error);
                }
                FenceError::Unavailable { .. } | FenceError::Unknown { find_out: FindOut::Repeat, .. } => {
                    self.shared().execution.sleep(backoff.next_delay(roll())).await;
                    continue;
                }
                _ => {}
            }
            return Err(TakeOverError::Fence { fence: name.clone(), error });
        }
    }

    /// Counts a refusal as evidence, if it was one: which fence refused which stale token is reported to the
    /// store, many at once, at most once a second. Anything but [`FenceError::Stale`] is passed over. See
    /// [`Client::report_refused`].
    pub fn report_refused(&self, fence: &FenceName, error: &FenceError) {
        if let FenceError::Stale(stale) = error {
            self.shared().refusals.count(self.shared(), fence, stale);
        }
    }
}

impl Client {
    /// Counts a stale write that a fence refused: a storage front end that is shown tokens calls this, and so
    /// may whoever gets [`FenceError::Stale`] after its own lease is gone. It shows in `tenure get`, in
    /// `explain`, in the metrics and in watches. The store knows fences by the names that acquires
    /// [brought](crate::AcquireRequest::fences).
    pub fn report_refused(&self, fence: &FenceName, stale: &Stale) {
        self.shared().refusals.count(self.shared(), fence, stale);
    }
}

/// Refusals that have not been reported yet.
#[derive(Default)]
pub(crate) struct Refusals(Mutex<BTreeMap<(Scope, FenceName), Counted>>);

struct Counted {
    presented: Token,
    seen: Token,
    count: u32,
}

impl Refusals {
    fn count(&self, shared: &Arc<Shared>, fence: &FenceName, stale: &Stale) {
        let key = (stale.scope.clone(), fence.clone());
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(counted) = waiting.get_mut(&key) {
            counted.count = counted.count.saturating_add(1);
            (counted.presented, counted.seen) = (stale.presented, stale.seen);
            return;
        }
        if waiting.len() >= COUNTED_MAX {
            return;
        }
        waiting.insert(key.clone(), Counted { presented: stale.presented, seen: stale.seen, count: 0 });
        drop(waiting);
        // The first is reported at once, because it is new; what follows waits its turn behind it.
        report(shared, &key, stale.presented, stale.seen, 1);
        let shared = shared.clone();
        shared.execution.clone().spawn(Work::Calls, async move {
            loop {
                shared.execution.sleep(REPORT_EVERY).await;
                let Some(counted) = shared.refusals.take(&key) else { return };
                report(&shared, &key, counted.presented, counted.seen, counted.count);
            }
        });
    }

    /// What has been counted since the last report; forgotten if that is nothing.
    fn take(&self, key: &(Scope, FenceName)) -> Option<Counted> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = waiting.get_mut(key)?;
        if counted.count == 0 {
            waiting.remove(key);
            return None;
        }
        Some(Counted { count: std::mem::take(&mut counted.count), ..*counted })
    }
}

fn report(shared: &Shared, (scope, fence): &(Scope, FenceName), presented: Token, seen: Token, count: u32) {
    let (scope, fence) = (scope.clone(), fence.clone());
    // For people. Nothing depends on it, so nobody waits for it and nobody repeats it.
    shared.store.submit(Command::Refused { scope, fence, presented, seen, count }, Box::new(drop));
}
