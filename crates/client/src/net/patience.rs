//! How long to wait for a silent node. Pure: it gets the sessions, and how soon each wants silence to be
//! detected.
//!
//! A command that a node leaves unanswered is sent to another one. When depends on the sessions: one with a
//! TTL of two seconds has lost its lease when one of ten minutes has plenty of time left. So it is R/4 of the
//! session with the shortest TTL, within bounds, which is also when an unanswered renewal is sent elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_core::SessionNumber;

/// The longest first wait, and the wait where there is no session. A node that will answer may need an
/// election (0.6 s and a few round trips) and a disk that is slow to sync.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(3);
/// The shortest: below it every hiccup of a disk would send clients wandering. To leave too early costs
/// little, a command is done once however often it is sent; but each time all sessions are attached again.
pub(super) const WAIT_MIN: Duration = Duration::from_millis(250);
/// How often the wait is doubled when no endpoint at all answers: all of them may be slow, and what is sent
/// again and again would make them slower. Four times R/4 is R: the pace of renewals when all is well.
pub(super) const DOUBLINGS_MAX: u32 = 2;
/// Silence is counted in this many steps, so that a process that was stopped has slept through one step and
/// not through all of them, and takes in what came meanwhile before it judges.
const STEPS: u32 = 4;
const STEP_MAX: Duration = Duration::from_millis(250);

/// The sessions that are kept, by how soon they want silence noticed.
#[derive(Debug, Default)]
pub(super) struct Patience {
    detects: BTreeMap<SessionNumber, Duration>,
    shortest_first: BTreeSet<(Duration, SessionNumber)>,
}

impl Patience {
    /// This session is kept, and wants silence noticed this soon.
    pub fn keep(&mut self, session: SessionNumber, detect: Duration) {
        self.forget(session);
        self.detects.insert(session, detect);
        self.shortest_first.insert((detect, session));
    }

    pub fn forget(&mut self, session: SessionNumber) {
        if let Some(detect) = self.detects.remove(&session) {
            self.shortest_first.remove(&(detect, session));
        }
    }

    /// How long an endpoint may be silent when all of them have been silent for so many rounds before.
    pub fn wait(&self, rounds: u32) -> Duration {
        let first = self.shortest_first.first().map_or(WAIT_MAX, |(detect, _)| *detect);
        first.clamp(WAIT_MIN, WAIT_MAX) * (1 << rounds.min(DOUBLINGS_MAX))
    }

    /// The length of one step of silence.
    pub fn step(&self) -> Duration {
        (self.wait(0) / STEPS).min(STEP_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(number: u64) -> SessionNumber {
        SessionNumber::new(number)
    }

    #[test]
    fn the_most_impatient_session_decides_within_bounds() {
        let mut patience = Patience::default();
        assert_eq!(patience.wait(0), WAIT_MAX, "nothing is at stake");
        patience.keep(session(1), Duration::from_secs(50));
        assert_eq!(patience.wait(0), WAIT_MAX);
        patience.keep(session(2), Duration::from_millis(833));
        assert_eq!(patience.wait(0), Duration::from_millis(833));
        patience.keep(session(3), Duration::from_millis(41));
        assert_eq!(patience.wait(0), WAIT_MIN);
        patience.keep(session(3), Duration::from_millis(500));
        assert_eq!(patience.wait(0), Duration::from_millis(500));
        patience.forget(session(3));
        assert_eq!(patience.wait(0), Duration::from_millis(833));
        patience.forget(session(3));
        patience.forget(session(2));
        assert_eq!(patience.wait(0), WAIT_MAX);
    }

    #[test]
    fn the_wait_grows_with_every_round_up_to_a_bound() {
        let mut patience = Patience::default();
        patience.keep(session(1), Duration::from_millis(800));
        let waits: Vec<u128> = (0..5).map(|rounds| patience.wait(rounds).as_millis()).collect();
        assert_eq!(waits, [800, 1_600, 3_200, 3_200, 3_200]);
        assert!(patience.step() * 2 < patience.wait(0));
    }
}
