//! Acquires that arrive as plain calls, by HTTP or unary gRPC: submitting them, waiting for their turn, and what a
//! hang-up does.
//!
//! An acquire belongs to its session and number, or to its nonce, never to a connection: its caller can repeat it at
//! any node, so a hang-up takes nothing back. Only a plain acquire, with neither, is undone when its caller hangs up
//! before it was answered. The machine decides how every wait ends ([`Resolved`](tenure_core::Resolved)); nothing
//! here makes up an answer.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tenure_core::{
    Acquire, AcquireBy, Answer, Caller, Command, Done, Identity, Open, ResourceName, SessionId, TransmissionId, Wait,
    WaitKey,
};
use tokio::sync::{oneshot, watch};
use tokio::time::MissedTickBehavior;

use crate::failure::Failure;
use crate::node::{Node, Submission};

/// How often it is checked that this node is in touch with its leader, while calls wait here.
const CONTACT_CHECKED_EVERY: Duration = Duration::from_secs(1);
/// How many checks in a row must fail before waiting calls are answered.
const CONTACT_LOST_AFTER: u32 = 3;
/// How often an undo is tried, with a pause between: through an election and a short loss of the quorum.
const UNDO_TRIES: u32 = 20;
const UNDO_PAUSE: Duration = Duration::from_millis(500);

/// What became of an acquire, as far as its call waited for it.
pub enum Acquired {
    /// It is over. Whoever answers the caller keeps the guard until the answer has left.
    Over(Answer, Option<HangUp>),
    /// The call's own time is over; the acquire is still queued.
    Queued {
        /// The session that waits.
        session: SessionId,
        /// Its TTL.
        ttl: Duration,
        /// How many were queued before it when it was sent.
        ahead: u32,
    },
}

/// Plain acquires whose callers hung up before they were answered, counted.
#[derive(Debug, Default)]
pub struct HangUps {
    /// A lease was given back.
    pub released: AtomicU64,
    /// Nothing was held: it left the queue, was refused or has ended, or another caller was answered with the lease.
    pub not_held: AtomicU64,
    /// The undo could not be carried out; what was granted ends with its session.
    pub failed: AtomicU64,
}

/// Undoes a plain acquire when it is dropped: its caller has gone before the answer was handed over.
pub struct HangUp {
    node: Node,
    /// Whose acquire it was: the undo is theirs.
    identity: Identity,
    undo: Option<Command>,
}

impl HangUp {
    /// The answer has been handed over, or there is nothing to undo.
    pub fn disarm(&mut self) {
        self.undo = None;
    }
}

impl Drop for HangUp {
    fn drop(&mut self) {
        let Some(undo) = self.undo.take() else { return };
        let (node, identity) = (self.node.clone(), self.identity.clone());
        tokio::spawn(async move {
            for _ in 0..UNDO_TRIES {
                let counted = match node.submit(&identity, undo.clone()).await {
                    Ok(Ok(Done::Cancelled { released: true })) => &node.hang_ups().released,
                    Ok(_) => &node.hang_ups().not_held,
                    Err(_) => {
                        tokio::time::sleep(UNDO_PAUSE).await;
                        continue;
                    }
                };
                counted.fetch_add(1, Relaxed);
                return;
            }
            node.hang_ups().failed.fetch_add(1, Relaxed);
        });
    }
}

/// How an acquire is kept alive and undone.
struct Plan {
    /// It opens its own session, which only this node can keep alive while it waits.
    keeps_alive: bool,
    /// Set for a plain acquire.
    undo: Option<Command>,
}

impl Plan {
    /// The plan of this acquire; a plain one gets the id of this transmission.
    fn of(acquire: &mut Acquire, draw: impl FnOnce() -> TransmissionId) -> Plan {
        let plain = |session| {
            let transmission = draw();
            acquire.transmission = Some(transmission);
            Some(Command::Undo { session, transmission })
        };
        match &acquire.by {
            AcquireBy::Session(by) => {
                let undo = if by.number.is_some() { None } else { plain(Some(by.session)) };
                Plan { keeps_alive: false, undo }
            }
            AcquireBy::Opening(open) => {
                let undo = if open.nonce.is_some() { None } else { plain(None) };
                Plan { keeps_alive: true, undo }
            }
        }
    }
}

/// What the end of this acquire's wait is found by, in the form in which it enters the log.
fn wait_key(acquire: &Acquire) -> Option<WaitKey> {
    match (&acquire.by, acquire.transmission) {
        (AcquireBy::Session(Caller { session, number: Some(number), .. }), _) => {
            Some(WaitKey::Number(session.number, *number))
        }
        (AcquireBy::Session(_), transmission) => transmission.map(WaitKey::Transmission),
        (AcquireBy::Opening(Open { nonce: Some(nonce), .. }), _) => Some(WaitKey::Nonce(*nonce)),
        (AcquireBy::Opening(open), transmission) => {
            transmission.map(|transmission| WaitKey::Nonce(transmission.nonce(open.secret.form())))
        }
    }
}

impl Node {
    /// Acquires, and if the acquire is queued, waits for the end of its wait, or for as long as `poll` says. While it
    /// waits, a session that it opened itself is kept alive: its caller has no way to.
    pub async fn acquire(
        &self,
        identity: &Identity,
        mut acquire: Acquire,
        poll: Option<Duration>,
    ) -> Result<Acquired, Failure> {
        let Plan { keeps_alive, undo } = Plan::of(&mut acquire, || self.draw_transmission());
        let waits = !matches!(acquire.wait, Wait::No | Wait::For(Duration::ZERO));
        let poll = async {
            match poll {
                Some(poll) => tokio::time::sleep(poll).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(poll);
        let mut contact = self.contact();
        let mut was_queued = false;
        loop {
            let concealed = self.conceal(Command::Acquire(Box::new(acquire.clone())));
            let own = concealed.own;
            let key = match &concealed.command {
                Command::Acquire(acquire) => wait_key(acquire),
                _ => None,
            };
            // Registered before it is sent: the wait may end before its own answer has come back from the leader.
            let mut resolved = key.filter(|_| waits).map(|key| self.event_hub().await_end(key));
            let submission = Submission::Command(Arc::new(concealed));
            let (answer, mut hang_up) = match &undo {
                None => (self.answer_to(identity, submission).await, None),
                Some(undo) => {
                    let (answer, hang_up) = self.submit_plain(identity, submission, undo.clone()).await?;
                    (answer, Some(hang_up))
                }
            };
            let answer = match answer {
                Ok(answer) => answer,
                // This transmission did nothing, but an earlier one is queued, or has been granted since.
                Err(failure) if was_queued => return Err(failure.of_a_repetition()),
                Err(failure) => {
                    if let (Some(hang_up), false) = (&mut hang_up, failure.may_have_been_applied()) {
                        hang_up.disarm();
                    }
                    return Err(failure);
                }
            };
            let Ok(Done::Queued { session, ttl, ahead }) = answer else {
                if let (Some(hang_up), Err(_)) = (&mut hang_up, &answer) {
                    hang_up.disarm();
                }
                return Ok(Acquired::Over(answer, hang_up));
            };
            let Some(resolved) = &mut resolved else {
                // It does not wait, and finds that an earlier transmission of it does. A plain call is refused.
                return Ok(match hang_up {
                    None => Acquired::Queued { session, ttl, ahead },
                    Some(hang_up) => Acquired::Over(answer, Some(hang_up)),
                });
            };
            was_queued = true;
            let ended = tokio::select! {
                biased;
                answer = resolved => answer.ok(),
                () = &mut poll => return Ok(Acquired::Queued { session, ttl, ahead }),
                () = lost(&mut contact) => {
                    let reason = "this node lost touch with its leader while the acquire was queued".into();
                    return Err(Failure::Unknown { reason });
                }
                never = self.keep_alive(identity, session, ttl), if keeps_alive => match never {},
            };
            match ended.filter(|answer| is_about(answer, &acquire.resources)) {
                Some(mut answer) => {
                    own.iter().for_each(|own| own.give_back(&mut answer));
                    if let (Some(hang_up), Err(_)) = (&mut hang_up, &answer) {
                        hang_up.disarm();
                    }
                    return Ok(Acquired::Over(answer, hang_up));
                }
                // A snapshot replaced the machine, and the end may have been in what it skipped; or it is the end of
                // another acquire under the same nonce. Sending the acquire again, under the same number, nonce or
                // transmission id, tells. Its own undo takes over.
                None => {
                    if let Some(hang_up) = &mut hang_up {
                        hang_up.disarm();
                    }
                }
            }
        }
    }

    /// Renews a session for as long as it is polled.
    async fn keep_alive(&self, identity: &Identity, session: SessionId, ttl: Duration) -> Infallible {
        let mut renew = tokio::time::interval(ttl / 3);
        renew.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            renew.tick().await;
            let _ = self.renew(identity, vec![(session, 0)]).await;
        }
    }

    /// Submits a plain acquire in a task of its own, which a caller that hangs up does not take with it: whoever has
    /// the answer last undoes it, this caller or the task.
    async fn submit_plain(
        &self,
        identity: &Identity,
        submission: Submission,
        undo: Command,
    ) -> Result<(Result<Answer, Failure>, HangUp), Failure> {
        let (sender, receiver) = oneshot::channel();
        let (node, identity) = (self.clone(), identity.clone());
        tokio::spawn(async move {
            let hang_up = HangUp { node: node.clone(), identity, undo: Some(undo) };
            let answer = node.answer_to(&hang_up.identity, submission).await;
            let _ = sender.send((answer, hang_up));
        });
        receiver.await.map_err(|_| Failure::stopped_meanwhile())
    }
}

/// Whether a wait that ended so was for these resources.
fn is_about(answer: &Answer, resources: &[ResourceName]) -> bool {
    match answer {
        Ok(Done::Granted { grants, .. }) => grants.iter().map(|grant| &grant.resource).eq(resources),
        _ => true,
    }
}

/// Resolves when this node is out of touch with its leader.
async fn lost(contact: &mut watch::Receiver<bool>) {
    if contact.wait_for(|in_touch| !in_touch).await.is_err() {
        std::future::pending().await
    }
}

/// Checks, while calls wait on this node, whether it is in touch with its leader: a call that waits on a node that
/// was cut off would wait for ever, and its caller can ask another node.
pub(crate) async fn watch_contact(node: Node, contact: Arc<watch::Sender<bool>>) {
    let mut waiting = node.event_hub().waiting();
    loop {
        if waiting.wait_for(|waiting| *waiting > 0).await.is_err() {
            return;
        }
        let mut failed = 0;
        while *waiting.borrow_and_update() > 0 {
            tokio::time::sleep(CONTACT_CHECKED_EVERY).await;
            failed = if node.ready().await.is_ok() { 0 } else { failed + 1 };
            contact.send_if_modified(|in_touch| {
                let now = failed < CONTACT_LOST_AFTER;
                std::mem::replace(in_touch, now) != now
            });
        }
        contact.send_replace(true);
    }
}
