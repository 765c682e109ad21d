//! Whether one caller at a time is being served, and how soon something will happen.
//!
//! Idle detection, by what has just been, with times handed in. While one caller at a time is served, the replica is in
//! low-latency mode, and the leader loop spins for what comes next before it lets its thread sleep.

use std::time::Duration;

use tenure_replica::{Callers, Streak};

/// What the last entries were like.
#[derive(Debug, Default)]
pub struct IdleDetection {
    /// Entries with a single request, none of which came while another was under way.
    streak: Streak,
    /// How long after the last answer the next request came.
    request_after: Option<Duration>,
    /// How long the last entry took.
    answer_after: Option<Duration>,
}

impl IdleDetection {
    /// A request arrives while so many entries are under way, after so long a wait.
    pub fn arrived(&mut self, under_way: usize, waited: Option<Duration>) {
        match under_way {
            0 => self.request_after = waited.or(self.request_after),
            _ => self.streak.came(false),
        }
    }

    /// An entry is answered after so long a wait.
    pub fn answered(&mut self, waited: Option<Duration>) {
        self.answer_after = waited.or(self.answer_after);
    }

    /// An entry with so many requests is sealed while so many others are under way.
    pub fn sealed(&mut self, requests: usize, under_way: usize) {
        match (requests, under_way) {
            // A tick is nobody's.
            (0, _) => {}
            (1, 0) => self.streak.came(true),
            _ => self.streak.came(false),
        }
    }

    /// Who is being served.
    pub fn callers(&self) -> Callers {
        match (self.streak.is_on(), self.streak.spin_for(self.request_after)) {
            (false, _) => Callers::Several,
            (true, None) => Callers::OneAfterAPause,
            (true, Some(_)) => Callers::OneBackToBack,
        }
    }

    /// How long to spin for the next request, or for the answer to what is under way.
    pub fn spin_for(&self, under_way: usize) -> Option<Duration> {
        self.streak.spin_for(if under_way == 0 { self.request_after } else { self.answer_after })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_replica::SPIN_MAX;

    fn detection() -> IdleDetection {
        let mut detection = IdleDetection::default();
        for _ in 0..Streak::LENGTH {
            assert_eq!(detection.callers(), Callers::Several);
            detection.arrived(0, Some(SPIN_MAX));
            detection.sealed(1, 0);
        }
        assert_eq!(detection.callers(), Callers::OneBackToBack);
        detection
    }

    #[test]
    fn one_caller_at_a_time_is_detected_and_two_are_not() {
        let mut ticked = detection();
        ticked.sealed(0, 0);
        assert_eq!(ticked.callers(), Callers::OneBackToBack);
        let mut two_in_an_entry = detection();
        two_in_an_entry.sealed(2, 0);
        assert_eq!(two_in_an_entry.callers(), Callers::Several);
        let mut two_entries = detection();
        two_entries.sealed(1, 1);
        assert_eq!(two_entries.callers(), Callers::Several);
        let mut one_while_another_is_served = detection();
        one_while_another_is_served.arrived(1, None);
        one_while_another_is_served.sealed(1, 0);
        assert_eq!(one_while_another_is_served.callers(), Callers::Several);
    }

    #[test]
    fn there_is_no_spin_wait_for_what_would_not_come_in_time() {
        let mut detection = detection();
        assert_eq!(
            (detection.spin_for(0), detection.spin_for(1)),
            (Some(SPIN_MAX), None),
            "no answer has come yet"
        );
        detection.arrived(0, Some(SPIN_MAX + Duration::from_nanos(1)));
        detection.sealed(1, 0);
        assert_eq!(detection.callers(), Callers::OneAfterAPause);
        detection.answered(Some(SPIN_MAX));
        assert_eq!((detection.spin_for(0), detection.spin_for(1)), (None, Some(SPIN_MAX)));
        detection.arrived(0, Some(Duration::ZERO));
        assert_eq!(detection.callers(), Callers::OneBackToBack);
        detection.answered(Some(SPIN_MAX + Duration::from_nanos(1)));
        assert_eq!((detection.spin_for(0), detection.spin_for(1)), (Some(SPIN_MAX), None));
        detection.sealed(2, 0);
        assert_eq!(detection.spin_for(0), None);
    }
}
