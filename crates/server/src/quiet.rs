//! Whether one caller at a time is being served, and how soon the next command can be expected.
//!
//! Decided by what has just been, with times handed in. In a quiet time the desk looks out for the next command for a
//! moment before it lets its thread sleep: waking a thread on an idle processor takes longer than half of what a single node
//! computes for a command. It never costs more than [`LOOK_OUT`] of a processor for each answer, and only where the
//! last look-out would have been worth it.

use std::time::Duration;

/// So many entries in a row with a single letter make a quiet time.
const ROW: u32 = 8;
/// How long the next letter is looked out for, at most.
pub const LOOK_OUT: Duration = Duration::from_micros(200);

/// What the last entries were like.
#[derive(Debug, Default)]
pub struct Quiet {
    lone_in_a_row: u32,
    /// How long after the last answer the next letter came.
    pause: Option<Duration>,
}

impl Quiet {
    /// A letter arrives while so many entries are under way; `pause` is how long nothing was, if nothing is.
    pub fn arrived(&mut self, under_way: usize, pause: Option<Duration>) {
        if under_way > 0 {
            self.lone_in_a_row = 0;
        }
        self.pause = pause.or(self.pause);
    }

    /// An entry with so many letters is sealed while so many others are under way.
    pub fn sealed(&mut self, letters: usize, under_way: usize) {
        match (letters, under_way) {
            // A tick is nobody's.
            (0, _) => {}
            (1, 0) => self.lone_in_a_row = self.lone_in_a_row.saturating_add(1),
            _ => self.lone_in_a_row = 0,
        }
    }

    /// Whether it is quiet.
    pub fn is_quiet(&self) -> bool {
        self.lone_in_a_row >= ROW
    }

    /// How long to look out for the next letter, now that all are answered.
    pub fn look_out(&self) -> Option<Duration> {
        let soon = self.pause.is_some_and(|pause| pause <= LOOK_OUT);
        (self.is_quiet() && soon).then_some(LOOK_OUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet() -> Quiet {
        let mut quiet = Quiet::default();
        for _ in 0..ROW {
            assert!(!quiet.is_quiet());
            quiet.arrived(0, Some(LOOK_OUT));
            quiet.sealed(1, 0);
        }
        assert!(quiet.is_quiet());
        quiet
    }

    #[test]
    fn one_at_a_time_is_quiet_and_two_are_not() {
        let mut ticked = quiet();
        ticked.sealed(0, 0);
        assert!(ticked.is_quiet());
        let mut two_in_an_entry = quiet();
        two_in_an_entry.sealed(2, 0);
        assert!(!two_in_an_entry.is_quiet());
        let mut two_entries = quiet();
        two_entries.sealed(1, 1);
        assert!(!two_entries.is_quiet());
        let mut one_while_another_is_served = quiet();
        one_while_another_is_served.arrived(1, None);
        one_while_another_is_served.sealed(1, 0);
        assert!(!one_while_another_is_served.is_quiet());
    }

    #[test]
    fn nobody_is_looked_out_for_who_would_not_come_in_time() {
        let mut quiet = quiet();
        assert_eq!(quiet.look_out(), Some(LOOK_OUT));
        quiet.arrived(0, Some(LOOK_OUT + Duration::from_nanos(1)));
        quiet.sealed(1, 0);
        assert_eq!(quiet.look_out(), None);
        quiet.arrived(0, Some(Duration::ZERO));
        assert_eq!(quiet.look_out(), Some(LOOK_OUT));
        quiet.sealed(2, 0);
        assert_eq!(quiet.look_out(), None);
    }
}
