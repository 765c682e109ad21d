//! Whether one caller at a time is being served, and how soon something will happen.
//!
//! Decided by what has just been, with times handed in. In a quiet time the replica is asked for speed instead of numbers,
//! and the desk looks out for what comes next before it lets its thread sleep.

use std::time::Duration;

use tenure_replica::{Callers, Row};

/// What the last entries were like.
#[derive(Debug, Default)]
pub struct Quiet {
    /// Entries with a single letter, none of which came while another was under way.
    row: Row,
    /// How long after the last answer the next letter came.
    letter_after: Option<Duration>,
    /// How long the last entry took.
    answer_after: Option<Duration>,
}

impl Quiet {
    /// A letter arrives while so many entries are under way, after so long a wait.
    pub fn arrived(&mut self, under_way: usize, waited: Option<Duration>) {
        match under_way {
            0 => self.letter_after = waited.or(self.letter_after),
            _ => self.row.came(false),
        }
    }

    /// An entry is answered after so long a wait.
    pub fn answered(&mut self, waited: Option<Duration>) {
        self.answer_after = waited.or(self.answer_after);
    }

    /// An entry with so many letters is sealed while so many others are under way.
    pub fn sealed(&mut self, letters: usize, under_way: usize) {
        match (letters, under_way) {
            // A tick is nobody's.
            (0, _) => {}
            (1, 0) => self.row.came(true),
            _ => self.row.came(false),
        }
    }

    /// Who is being served.
    pub fn callers(&self) -> Callers {
        match (self.row.is_one(), self.row.look_out(self.letter_after)) {
            (false, _) => Callers::Several,
            (true, None) => Callers::OneAfterAPause,
            (true, Some(_)) => Callers::OneInARow,
        }
    }

    /// How long to look out for the next letter, or for the answer to what is under way.
    pub fn look_out(&self, under_way: usize) -> Option<Duration> {
        self.row.look_out(if under_way == 0 { self.letter_after } else { self.answer_after })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_replica::LOOK_OUT;

    fn quiet() -> Quiet {
        let mut quiet = Quiet::default();
        for _ in 0..Row::LENGTH {
            assert_eq!(quiet.callers(), Callers::Several);
            quiet.arrived(0, Some(LOOK_OUT));
            quiet.sealed(1, 0);
        }
        assert_eq!(quiet.callers(), Callers::OneInARow);
        quiet
    }

    #[test]
    fn one_at_a_time_is_quiet_and_two_are_not() {
        let mut ticked = quiet();
        ticked.sealed(0, 0);
        assert_eq!(ticked.callers(), Callers::OneInARow);
        let mut two_in_an_entry = quiet();
        two_in_an_entry.sealed(2, 0);
        assert_eq!(two_in_an_entry.callers(), Callers::Several);
        let mut two_entries = quiet();
        two_entries.sealed(1, 1);
        assert_eq!(two_entries.callers(), Callers::Several);
        let mut one_while_another_is_served = quiet();
        one_while_another_is_served.arrived(1, None);
        one_while_another_is_served.sealed(1, 0);
        assert_eq!(one_while_another_is_served.callers(), Callers::Several);
    }

    #[test]
    fn nothing_is_looked_out_for_that_would_not_come_in_time() {
        let mut quiet = quiet();
        assert_eq!((quiet.look_out(0), quiet.look_out(1)), (Some(LOOK_OUT), None), "no answer has come yet");
        quiet.arrived(0, Some(LOOK_OUT + Duration::from_nanos(1)));
        quiet.sealed(1, 0);
        assert_eq!(quiet.callers(), Callers::OneAfterAPause);
        quiet.answered(Some(LOOK_OUT));
        assert_eq!((quiet.look_out(0), quiet.look_out(1)), (None, Some(LOOK_OUT)));
        quiet.arrived(0, Some(Duration::ZERO));
        assert_eq!(quiet.callers(), Callers::OneInARow);
        quiet.answered(Some(LOOK_OUT + Duration::from_nanos(1)));
        assert_eq!((quiet.look_out(0), quiet.look_out(1)), (Some(LOOK_OUT), None));
        quiet.sealed(2, 0);
        assert_eq!(quiet.look_out(0), None);
    }
}
