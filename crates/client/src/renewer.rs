//! The renewer: one future that keeps every session of a client alive.
//!
//! It contains no lease rule. Each session's logic says when it wants to run and what it wants to send. The
//! renewer runs it in time, puts the renewals of all sessions that are due into one message, and gives each
//! answer to its session. Only `execution.rs` knows on which thread it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tenure_clock::Clock;
use tenure_core::{Moment, RenewalAnswer, SessionId};
use tokio::sync::mpsc;

use crate::error::CallError;
use crate::session_driver::{SessionDriver, Transmit};
use crate::store::{Opened, Route, Store};

/// Sessions are looked at in steps of this, so that those that are due at about the same time ride in one
/// message. Later by this much is far from what counts as a pause, and much less than any TTL is worth.
const STEP_MAX: Duration = Duration::from_millis(50);
/// The step is a part of the shortest time that any session waits for an answer.
const STEPS_PER_DETECT: u32 = 16;
/// Renewals in one message, as many as a server takes.
const RENEWALS_PER_MESSAGE_MAX: usize = 65_536;

/// A message to the renewer.
pub(crate) enum ToRenewer {
    /// A session wants to be kept.
    Join(Arc<SessionDriver>),
    /// Something about a session has changed: look at it now.
    Nudge(u64),
    /// What came of an open.
    Opened(u64, u64, Result<Opened, CallError>),
    /// What came of renewals: sessions and numbers, and their answers.
    Renewed(Vec<(u64, u64)>, Result<Vec<Option<RenewalAnswer>>, CallError>),
}

pub(crate) struct Renewer {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    inbox: mpsc::UnboundedReceiver<ToRenewer>,
    /// To hand to the store, which answers from elsewhere. Weak, so that a renewer without sessions and
    /// clients ends.
    answers: mpsc::WeakUnboundedSender<ToRenewer>,
    origin: Moment,
    members: BTreeMap<u64, Member>,
    /// When each session wants to be looked at, as time since `origin`.
    wakes: BTreeSet<(Duration, u64)>,
}

struct Member {
    driver: Arc<SessionDriver>,
    wake: Duration,
}

impl Renewer {
    pub fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        inbox: mpsc::UnboundedReceiver<ToRenewer>,
        answers: mpsc::WeakUnboundedSender<ToRenewer>,
    ) -> Renewer {
        let origin = clock.now();
        Renewer { store, clock, inbox, answers, origin, members: BTreeMap::new(), wakes: BTreeSet::new() }
    }

    /// Runs until every client is gone and every session has ended.
    pub async fn run(mut self) {
        loop {
            let wait = self.transmit_due();
            let received = match wait {
                None => self.inbox.recv().await,
                Some(wait) => tokio::select! {
                    biased;
                    received = self.inbox.recv() => received,
                    () = tokio::time::sleep(wait) => continue,
                },
            };
            let Some(received) = received else { return };
            self.receive(received);
            // All that has come goes in before anything is sent: an answer may make a repetition needless.
            while let Ok(received) = self.inbox.try_recv() {
                self.receive(received);
            }
        }
    }

    fn receive(&mut self, received: ToRenewer) {
        match received {
            ToRenewer::Join(driver) => {
                let key = driver.key;
                self.members.insert(key, Member { driver, wake: Duration::ZERO });
                self.wakes.insert((Duration::ZERO, key));
            }
            ToRenewer::Nudge(key) => self.look_at_once(key),
            ToRenewer::Opened(key, number, answer) => {
                if let Some(member) = self.members.get(&key) {
                    member.driver.opened(number, answer);
                }
                self.look_at_once(key);
            }
            ToRenewer::Renewed(sent, answers) => {
                let answers = answers.unwrap_or_default();
                let answers = answers.into_iter().chain(std::iter::repeat_with(|| None));
                for ((key, number), answer) in sent.into_iter().zip(answers) {
                    if let Some(member) = self.members.get(&key) {
                        member.driver.renewed(number, answer);
                    }
                    self.look_at_once(key);
                }
            }
        }
    }

    fn look_at_once(&mut self, key: u64) {
        if let Some(member) = self.members.get_mut(&key) {
            self.wakes.remove(&(member.wake, key));
            member.wake = Duration::ZERO;
            self.wakes.insert((Duration::ZERO, key));
        }
    }

    /// Looks at every session that is due, sends what they want to send, and returns how long nothing is due.
    fn transmit_due(&mut self) -> Option<Duration> {
        let now = self.clock.now().longest_since(self.origin);
        let mut renewals: BTreeMap<bool, Vec<(u64, SessionId, u64)>> = BTreeMap::new();
        while let Some((wake, key)) = self.wakes.first().copied().filter(|(wake, _)| *wake <= now) {
            self.wakes.remove(&(wake, key));
            let Some(member) = self.members.get_mut(&key) else { continue };
            let next = member.driver.next_transmission();
            match next.wake {
                Some(wake) => {
                    let step = step(member.driver.options().timing.detect());
                    member.wake = round_up(wake.longest_since(self.origin), step).max(now + STEP_MIN);
                    self.wakes.insert((member.wake, key));
                }
                None => drop(self.members.remove(&key)),
            }
            match next.send {
                Some(Transmit::Renew(id, number, route)) => {
                    renewals.entry(route == Route::Another).or_default().push((key, id, number));
                }
                Some(Transmit::Open(open, route)) => {
                    let (number, answers) = (open.number, self.answers.clone());
                    let callback = Box::new(move |answer| {
                        answers.upgrade().map(|renewer| renewer.send(ToRenewer::Opened(key, number, answer)));
                    });
                    self.store.open(open, route, callback);
                }
                None => {}
            }
        }
        for (another, due) in renewals {
            let route = if another { Route::Another } else { Route::Usual };
            for part in due.chunks(RENEWALS_PER_MESSAGE_MAX) {
                self.send(part, route);
            }
        }
        let now = self.clock.now().longest_since(self.origin);
        self.wakes.first().map(|(wake, _)| wake.saturating_sub(now))
    }

    fn send(&self, due: &[(u64, SessionId, u64)], route: Route) {
        let sent = due.iter().map(|(key, _, number)| (*key, *number)).collect();
        let answers = self.answers.clone();
        let callback = Box::new(move |answer| {
            answers.upgrade().map(|renewer| renewer.send(ToRenewer::Renewed(sent, answer)));
        });
        self.store.renew(due.iter().map(|(_, id, number)| (*id, *number)).collect(), route, callback);
    }
}

/// No session is looked at more often than this, whatever its logic says.
const STEP_MIN: Duration = Duration::from_millis(1);

fn step(detect: Duration) -> Duration {
    (detect / STEPS_PER_DETECT).clamp(STEP_MIN, STEP_MAX)
}

fn round_up(wake: Duration, step: Duration) -> Duration {
    let steps = wake.as_nanos().div_ceil(step.as_nanos());
    Duration::from_nanos(u64::try_from(steps * step.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wakes_are_rounded_to_a_common_step_and_never_early() {
        let step = step(Duration::from_millis(800));
        assert_eq!(step, STEP_MAX);
        for ms in [0, 1, 49, 50, 51, 999] {
            let wake = Duration::from_millis(ms);
            let rounded = round_up(wake, step);
            assert!(rounded >= wake && rounded - wake < step, "{wake:?} became {rounded:?}");
        }
    }
}
