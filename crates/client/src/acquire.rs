//! Acquire requests. A request is a value until it is awaited; if it is dropped before it is answered, it is
//! undone on the store.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{
    Acquire, AcquireBy, Caller, FenceName, InvalidName, Mode, Policies, ResourceName, SessionId, Wait,
};
use tenure_wire::{ApiError, Code, Effect};

use crate::error::CallError;
use crate::lease::Lease;
use crate::session::Handle;
use crate::session_driver::SessionDriver;

/// How long the store may take to answer, on top of the time that the request may wait in the queue.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// A request for leases, from [`Session::acquire`](crate::Session::acquire). Await it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// let client = tenure_client::Client::embedded();
/// let first = client.session().open().await?;
/// let second = client.session().open().await?;
/// let lease = first.acquire("shard/7").await?;
/// let refused = second.acquire("shard/7").await.expect_err("it is held");
/// assert!(refused.is_held());
/// lease.release().await?;
/// let lease = second.acquire("shard/7").wait_for(Duration::from_secs(5)).await?;
/// # drop(lease);
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is asked before the request is awaited"]
pub struct AcquireRequest<T> {
    handle: Arc<Handle>,
    resources: Result<Vec<ResourceName>, InvalidName>,
    fences: Result<Vec<FenceName>, InvalidName>,
    mode: Mode,
    wait: Wait,
    policies: Policies,
    answer_within: Duration,
    leases: PhantomData<fn() -> T>,
}

impl<T> AcquireRequest<T> {
    pub(crate) fn new<R: AsRef<str>>(
        handle: Arc<Handle>,
        resources: impl IntoIterator<Item = R>,
    ) -> AcquireRequest<T> {
        AcquireRequest {
            handle,
            resources: resources.into_iter().map(|name| name.as_ref().parse()).collect(),
            fences: Ok(Vec::new()),
            mode: Mode::Exclusive,
            wait: Wait::No,
            policies: Policies::default(),
            answer_within: ANSWER_WITHIN,
            leases: PhantomData,
        }
    }

    /// Waits in the queue for as long as the session lives.
    pub fn wait(mut self) -> Self {
        self.wait = Wait::Forever;
        self
    }

    /// Waits in the queue for at most this long, as the store counts it.
    pub fn wait_for(mut self, length: Duration) -> Self {
        self.wait = if length.is_zero() { Wait::No } else { Wait::For(length) };
        self
    }

    /// Shared with others: to read, without the right to write.
    pub fn shared(mut self) -> Self {
        self.mode = Mode::Shared;
        self
    }

    /// One of `n` slots of a semaphore.
    pub fn slots(mut self, n: u32) -> Self {
        self.mode = Mode::Slots(n);
        self
    }

    /// Higher goes first in the queue. Never takes from a holder.
    pub fn priority(mut self, priority: i32) -> Self {
        self.policies.priority = priority;
        self
    }

    /// Everything else that can be asked for.
    pub fn policies(mut self, policies: Policies) -> Self {
        self.policies = policies;
        self
    }

    /// Fences of the resource. The lease gives no permit before each of them has [installed](Lease::armed)
    /// its token.
    pub fn fences<F: AsRef<str>>(mut self, fences: impl IntoIterator<Item = F>) -> Self {
        self.fences = fences.into_iter().map(|name| name.as_ref().parse()).collect();
        self
    }

    /// How long the store may take to answer, on top of waiting in the queue. 10 s if not said.
    pub fn answer_within(mut self, within: Duration) -> Self {
        self.answer_within = within;
        self
    }

    async fn ask(self) -> Result<Vec<Lease>, AcquireError> {
        let driver = self.handle.driver().clone();
        let acquire = Acquire {
            // Replaced by the session's next number when it is sent.
            by: AcquireBy::Session(Caller::unnumbered(nobody())),
            resources: self.resources?,
            mode: self.mode,
            wait: self.wait,
            policies: self.policies,
            fences: self.fences?,
            transmission: None,
        };
        let within = match self.wait {
            Wait::No => Some(self.answer_within),
            Wait::For(length) => Some(length.saturating_add(self.answer_within)),
            Wait::Forever => None,
        };
        let (number, answer) = driver.acquire(self.handle, acquire);
        // Dropped on every way out but the one with an answer: then it is undone, however far it got.
        let mut undo = Undo { driver: &driver, number: Some(number) };
        let answer = match within {
            None => answer.await,
            Some(within) => tokio::select! {
                biased;
                answer = answer => answer,
                () = driver.shared.execution.sleep(within) => {
                    return Err(AcquireError::Call(driver.acquire_unanswered(number)));
                }
            },
        };
        undo.number = None;
        match answer {
            Ok(Ok(leases)) => Ok(leases),
            Ok(Err(error)) => Err(AcquireError::from(error)),
            // It is forgotten by its own cancel alone. If that should ever not be so, nobody knows what
            // became of it.
            Err(_) => Err(AcquireError::Call(driver.acquire_unanswered(number))),
        }
    }
}

impl IntoFuture for AcquireRequest<Lease> {
    type Output = Result<Lease, AcquireError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async {
            let driver = self.handle.driver().clone();
            let lease = self.ask().await?.pop();
            // The session driver lets no answer through that grants something else than was asked for.
            lease.ok_or_else(|| AcquireError::Call(driver.unanswered(Effect::Unknown)))
        })
    }
}

impl IntoFuture for AcquireRequest<Vec<Lease>> {
    type Output = Result<Vec<Lease>, AcquireError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.ask())
    }
}

struct Undo<'a> {
    driver: &'a Arc<SessionDriver>,
    number: Option<u64>,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.driver.cancel(number);
        }
    }
}

fn nobody() -> SessionId {
    SessionId { number: tenure_core::SessionNumber::new(0), secret: tenure_core::Secret::new([0; 16]) }
}

/// Why there is no lease.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AcquireError {
    /// A name is none.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// Somebody else has it, or waits in the queue before: a true no. Ask again later, or wait in the queue.
    #[error("{0}")]
    Held(ApiError),
    /// The store said no for another reason, or could not be asked.
    #[error(transparent)]
    Call(CallError),
}

impl AcquireError {
    /// Whether the resource is another's.
    pub fn is_held(&self) -> bool {
        matches!(self, AcquireError::Held(_))
    }

    /// What the request has done. An unknown one is being undone already.
    pub fn effect(&self) -> Effect {
        match self {
            AcquireError::Name(_) | AcquireError::Held(_) => Effect::NotApplied,
            AcquireError::Call(error) => error.effect(),
        }
    }
}

impl From<CallError> for AcquireError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused(no) if no.code == Code::Held => AcquireError::Held(no),
            error => AcquireError::Call(error),
        }
    }
}
