//! Election: leadership is a lease, and whoever loses it waits in the queue again.
//!
//! There is no recipe here, and so nothing that could race: the queue, the grant and the end are the store's.
//! This file only keeps a candidate going through *prepare, wait in the queue and warm up, lead*, after any
//! loss again from the start, with a session of its own each time. A session that died in the queue is
//! noticed and replaced, so no candidate becomes one that waits for ever.

use std::future::Future;
use std::ops::Deref;
use std::time::Duration;

use tenure_core::{
    HolderName, InvalidName, Jeopardy, LeaseState, ResourceName, Revision, SessionNumber, Token,
};
use tenure_wire::Effect;
use tokio::sync::oneshot;

use crate::acquire::AcquireError;
use crate::changes::Changes;
use crate::client::Client;
use crate::error::CallError;
use crate::lease::Lease;
use crate::retry::{Backoff, roll};
use crate::session::{OpenError, Session, SessionRequest};

/// Delays before a candidate that failed tries again.
const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// What a candidate does. All of it is optional but leading.
pub trait Candidate: Send + Sync {
    /// Done before waiting in the queue: a candidate that is not ready to acquire does not take the lease
    /// from one that is.
    fn prepare(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Done while waiting in the queue: caches, connections, whatever makes the first moment as leader a
    /// working one. Leading begins when both are done.
    fn warm_up(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Leads. Returning is resigning. Take a permit for each step and watch the [stop
    /// signal](Lease::stop_signal); at the deadline, or at the end of the lease, this future is dropped.
    fn lead(&self, leadership: &Leadership) -> impl Future<Output = ()> + Send;
}

/// An election under one name.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tenure_client::{Client, Leader};
///
/// let client = Client::embedded();
/// let election = client.election("payments/leader").value("10.0.0.7:9000");
/// let leadership = election.campaign().await?;
/// leadership.permit()?;
///
/// let mut observer = client.election("payments/leader").observe()?;
/// let Leader::Elected { value, .. } = observer.next().await? else { panic!("there is a leader") };
/// assert_eq!(value.as_deref(), Some(&b"10.0.0.7:9000"[..]));
/// leadership.resign().await?;
/// assert_eq!(observer.next().await?, Leader::None);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Election {
    client: Client,
    name: String,
    session: SessionRequest,
    priority: i32,
    value: Option<Vec<u8>>,
}

impl Client {
    /// An election under this name.
    pub fn election(&self, name: impl Into<String>) -> Election {
        let session = self.session();
        Election { client: self.clone(), name: name.into(), session, priority: 0, value: None }
    }
}

impl Election {
    /// How the candidate's sessions are opened.
    #[must_use]
    pub fn session(mut self, session: SessionRequest) -> Self {
        self.session = session;
        self
    }

    /// Higher goes first in the queue. Never takes leadership from a leader.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// What the leader publishes: where it can be reached, say. It disappears with the leadership.
    #[must_use]
    pub fn value(mut self, value: impl Into<Vec<u8>>) -> Self {
        self.value = Some(value.into());
        self
    }

    /// Waits in the queue once and returns when elected. Dropping this future leaves the queue.
    pub async fn campaign(&self) -> Result<Leadership, ElectionError> {
        self.campaign_and(async {}).await
    }

    async fn campaign_and(&self, warm_up: impl Future<Output = ()>) -> Result<Leadership, ElectionError> {
        let session = self.session.clone().open().await?;
        let request = session.acquire(&self.name).wait().priority(self.priority);
        let warm_up = async {
            warm_up.await;
            Ok::<(), ElectionError>(())
        };
        let granted = async { request.await.map_err(ElectionError::from) };
        // A queue that is left (the session ended in it) ends the warm-up too: it would begin again anyway.
        let (lease, ()) = tokio::try_join!(granted, warm_up)?;
        let leadership = Leadership { lease, session };
        if let Some(value) = &self.value {
            leadership.publish(value).await?;
        }
        Ok(leadership)
    }

    /// Campaigns, leads, and campaigns again after any loss, until `until` is done. Then it resigns and
    /// returns.
    pub async fn run(&self, candidate: &impl Candidate, until: impl Future<Output = ()>) {
        tokio::pin!(until);
        let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MAX);
        loop {
            let term = async {
                candidate.prepare().await;
                let leadership = self.campaign_and(candidate.warm_up()).await?;
                let led = leadership.lease_status_changes();
                tokio::select! {
                    biased;
                    () = past_leadership(led) => {}
                    () = candidate.lead(&leadership) => {}
                }
                Ok::<Leadership, ElectionError>(leadership)
            };
            let ended = tokio::select! {
                biased;
                () = &mut until => return,
                ended = term => ended,
            };
            if let Ok(leadership) = ended {
                backoff.reset();
                // Until the store has it back, waiting in the queue again would be standing behind oneself.
                // What cannot be reported to the store ends there by itself.
                tokio::select! {
                    biased;
                    () = &mut until => return,
                    _ = leadership.resign() => {}
                    () = self.client.shared().execution.sleep(BACKOFF_MAX) => {}
                }
            }
            let delay = backoff.next_delay(roll());
            tokio::select! {
                biased;
                () = &mut until => return,
                () = self.client.shared().execution.sleep(delay) => {}
            }
        }
    }

    /// Who leads, now and whenever that changes.
    pub fn observe(&self) -> Result<Observer, InvalidName> {
        let name: ResourceName = self.name.parse()?;
        let changes = self.client.watch(name.as_str());
        Ok(Observer { client: self.client.clone(), name, changes, last_seen: None, looked: None })
    }
}

/// Waits until the leader may not act any more.
async fn past_leadership(mut changes: crate::lease::StatusChanges) {
    let over = |state| matches!(state, LeaseState::Ended(_) | LeaseState::Jeopardy(Jeopardy::PastDeadline));
    while !over(changes.latest().state) {
        if changes.next().await.is_none() {
            return;
        }
    }
}

/// Leadership: the lease, and what the leader publishes.
pub struct Leadership {
    // The lease is given back before its session is closed.
    lease: Lease,
    session: Session,
}

impl Leadership {
    /// Publishes a new value, under a permit.
    pub async fn publish(&self, value: impl AsRef<[u8]>) -> Result<Revision, ElectionError> {
        let permit = self.lease.permit().map_err(|_| ElectionError::Lost)?;
        let guarded = self.session.registers().guarded(&permit).ephemeral();
        guarded.put(Leader::value_key(self.lease.resource()), value).await.map_err(ElectionError::Call)
    }

    /// Gives the leadership back, once no permit is out. The next in the queue is elected in the same step.
    pub async fn resign(self) -> Result<(), CallError> {
        let Leadership { lease, session } = self;
        let released = lease.release().await.map(drop);
        session.close().await;
        released
    }

    /// The session that leads.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The lease, to hand it over or to drain it.
    pub fn into_lease(self) -> Lease {
        self.lease
    }

    fn lease_status_changes(&self) -> crate::lease::StatusChanges {
        self.lease.changes()
    }
}

impl Deref for Leadership {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leader {
    /// Nobody.
    None,
    /// Somebody, as the store says. Whether it still does is for its own permits and for fences to say.
    Elected {
        /// Who, for people.
        holder: HolderName,
        /// The public number of its session.
        session: SessionNumber,
        /// Its token.
        token: Token,
        /// What it has published.
        value: Option<Vec<u8>>,
    },
}

impl Leader {
    /// The register that a leader publishes in: under the election's name, so that one watch covers both.
    /// What is in it is the leader's only while the register belongs to the leader's session.
    pub fn value_key(election: &ResourceName) -> String {
        format!("{election}/leader")
    }
}

/// Is notified of leaders, and of there being none.
pub struct Observer {
    client: Client,
    name: ResourceName,
    changes: Changes,
    last_seen: Option<Leader>,
    /// The revision at which the leader was last looked up.
    looked: Option<Revision>,
}

impl Observer {
    /// Who leads, as soon as that is another answer than the last one. The first answer is about now.
    pub async fn next(&mut self) -> Result<Leader, CallError> {
        loop {
            let leader = self.look().await?;
            if self.last_seen.as_ref() != Some(&leader) {
                self.last_seen = Some(leader.clone());
                return Ok(leader);
            }
            loop {
                match self.changes.next().await {
                    // What happened before the last look is no reason for another.
                    Some(Ok(change)) if Some(Revision::new(change.revision)) <= self.looked => {}
                    Some(Ok(_)) => break,
                    // Cut off, or too far behind: the next look tells what was missed.
                    Some(Err(_)) | None => {
                        self.changes = self.client.watch(self.name.as_str());
                        break;
                    }
                }
            }
        }
    }

    async fn look(&mut self) -> Result<Leader, CallError> {
        let store = &self.client.shared().store;
        let (reply, answer) = oneshot::channel();
        store.lease(self.name.clone(), Box::new(move |found| drop(reply.send(found))));
        let found = answer.await.unwrap_or(Ok(None))?;
        self.looked = found.as_ref().map(|found| found.revision);
        let Some((session, holder, token)) = found.and_then(|found| found.holders.into_iter().next()) else {
            return Ok(Leader::None);
        };
        let register = self.client.registers().get(Leader::value_key(&self.name)).await?;
        // Only what this very session has published: the last leader's value may not be cleared away yet.
        let value = register.value.filter(|_| register.session == Some(session)).map(|value| value.to_vec());
        Ok(Leader::Elected { holder, session, token, value })
    }
}

/// Why there is no leadership.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ElectionError {
    /// No session could be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The queue was left without a grant.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// It was won, and lost before it began.
    #[error("the leadership was lost before it began")]
    Lost,
    /// The value could not be published.
    #[error(transparent)]
    Call(CallError),
}

impl ElectionError {
    /// What the campaign, or the publishing, has done. What a campaign that failed was granted is given back
    /// by itself.
    pub fn effect(&self) -> Effect {
        match self {
            ElectionError::Open(error) => error.effect(),
            ElectionError::Acquire(error) => error.effect(),
            // Nobody leads by it, and nothing was published.
            ElectionError::Lost => Effect::NotApplied,
            ElectionError::Call(error) => error.effect(),
        }
    }
}
