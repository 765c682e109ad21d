//! Which followers an entry is sent to at once, and which may get it a moment later.
//!
//! An entry is committed as soon as a majority has it. While a single caller waits for it (see
//! [`crate::low_latency`]), those followers count that answer first; what the others do meanwhile only takes
//! processors, the network and shared disks away from these. So the others wait: until the first ones should
//! have answered twice over, or, once the entry is committed, until a few more can go in the same message and
//! be durable with the same sync. That message goes behind the answer to the caller, while the caller makes
//! up its mind.
//!
//! This is a matter of time alone. Every follower gets every entry, in order; who fails to answer in time is no longer counted
//! on, and then everybody is sent to at once, as always.

use crate::NodeId;
use std::time::Duration;
use tokio::time::Instant;

/// How long a message may be held back before it is known that nobody waits for its answer.
pub(super) const HELD_MAX: Duration = Duration::from_millis(1);
/// For how long entries are gathered that are committed without this follower …
pub(super) const GATHERED: Duration = Duration::from_millis(2);
/// … and how long one may wait then for the moment behind an answer in which they disturb nobody.
pub(super) const LATE_MAX: Duration = Duration::from_millis(3);
/// How many answers a follower must have given before it is counted on.
const ANSWERS_MIN: u32 = 8;

/// The followers of this node, those that answer soonest in front.
#[derive(Default)]
pub(super) struct Ranks(Vec<Follower>);

struct Follower {
    node: NodeId,
    /// How long it usually takes to answer.
    usual: Duration,
    answers: u32,
    /// Since when it owes an answer.
    owes_since: Option<Instant>,
}

impl Follower {
    /// Whether an answer can be expected in its usual time.
    fn is_prompt(&self, now: Instant) -> bool {
        let in_time = |since: Instant| now.saturating_duration_since(since) <= 2 * self.usual;
        self.answers >= ANSWERS_MIN && self.owes_since.is_none_or(in_time)
    }
}

impl Ranks {
    /// Something was sent to a follower.
    pub fn sent(&mut self, node: NodeId, now: Instant) {
        let place = self.place(node);
        self.0[place].owes_since.get_or_insert(now);
    }

    /// A follower has answered after so long; what it still owes was sent at `owes_since`.
    pub fn answered(&mut self, node: NodeId, took: Duration, owes_since: Option<Instant>) {
        let mut place = self.place(node);
        let follower = &mut self.0[place];
        follower.owes_since = owes_since;
        follower.usual = if follower.answers == 0 { took } else { (7 * follower.usual + took) / 8 };
        follower.answers = follower.answers.saturating_add(1);
        // Only past those that take twice as long, or two that are alike would change places for ever.
        while place > 0 && self.0[place - 1].usual > 2 * self.0[place].usual {
            self.0.swap(place - 1, place);
            place -= 1;
        }
    }

    /// A follower's stream has ended: nothing is known of it any more.
    pub fn left(&mut self, node: NodeId) {
        self.0.retain(|follower| follower.node != node);
    }

    /// How long an entry for `node` may wait, if it may: enough others are in front of it for a majority of the voters, of which
    /// `own` may be one.
    pub fn may_wait(&self, node: NodeId, own: NodeId, voters: &[NodeId], now: Instant) -> Option<Duration> {
        let needed = voters.len() / 2 + usize::from(!voters.contains(&own));
        let in_front = self.0.iter().take_while(|follower| follower.node != node);
        let counted_on = in_front.filter(|first| voters.contains(&first.node) && first.is_prompt(now));
        let usual: Vec<Duration> = counted_on.map(|first| first.usual).take(needed).collect();
        let slowest = usual.iter().max().filter(|_| usual.len() == needed)?;
        Some((2 * *slowest).min(HELD_MAX))
    }

    fn place(&mut self, node: NodeId) -> usize {
        self.0.iter().position(|follower| follower.node == node).unwrap_or_else(|| {
            self.0.push(Follower { node, usual: Duration::ZERO, answers: 0, owes_since: None });
            self.0.len() - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Duration = Duration::from_micros(100);

    /// Followers that have answered often enough, each in its time.
    fn ranks(usual: &[(NodeId, Duration)]) -> (Ranks, Instant) {
        let (mut ranks, now) = (Ranks::default(), Instant::now());
        for _ in 0..ANSWERS_MIN {
            for (node, usual) in usual {
                ranks.sent(*node, now);
                ranks.answered(*node, *usual, None);
            }
        }
        (ranks, now)
    }

    #[test]
    fn what_no_majority_needs_may_wait() {
        let (ranks, now) = ranks(&[(2, USUAL), (3, USUAL), (4, USUAL), (5, USUAL)]);
        let waits = |node, own, voters: &[NodeId]| ranks.may_wait(node, own, voters, now).is_some();
        assert!(!waits(2, 1, &[1, 2, 3]));
        assert!(waits(3, 1, &[1, 2, 3]));
        assert!(!waits(3, 1, &[1, 2, 3, 4, 5]), "two others are a majority with the leader");
        assert!(waits(4, 1, &[1, 2, 3, 4, 5]) && waits(5, 1, &[1, 2, 3, 4, 5]));
        assert!(!waits(3, 1, &[1, 2, 3, 4]), "an even number needs one more");
        assert!(waits(5, 1, &[1, 2, 3]), "a learner is no part of it");
        assert!(!waits(3, 1, &[1, 3, 4]), "nor is one in front");
        assert!(!waits(3, 1, &[2, 3]), "a leader that does not vote counts for nothing");
        assert!(!waits(2, 1, &[1]), "alone there is nobody to wait for");
    }

    #[test]
    fn the_wait_is_twice_what_the_first_ones_take_and_never_long() {
        let may_wait = |usual| {
            let (ranks, now) = ranks(&[(2, usual), (3, usual)]);
            ranks.may_wait(3, 1, &[1, 2, 3], now)
        };
        assert_eq!(may_wait(USUAL), Some(2 * USUAL));
        assert_eq!(may_wait(Duration::from_millis(40)), Some(HELD_MAX));
    }

    #[test]
    fn nobody_waits_for_one_that_is_late_or_unknown() {
        let (mut ranks, now) = ranks(&[(2, USUAL), (3, USUAL)]);
        let waits = |ranks: &Ranks, now| ranks.may_wait(3, 1, &[1, 2, 3], now).is_some();
        ranks.sent(2, now);
        ranks.sent(2, now + USUAL);
        assert!(waits(&ranks, now + 2 * USUAL));
        assert!(!waits(&ranks, now + 2 * USUAL + Duration::from_nanos(1)), "its oldest debt counts");
        ranks.answered(2, USUAL, Some(now + USUAL));
        assert!(waits(&ranks, now + 3 * USUAL));
        ranks.left(2);
        assert!(!waits(&ranks, now));
        ranks.sent(2, now);
        ranks.answered(2, USUAL, None);
        assert!(!waits(&ranks, now), "it has come back, behind the other");
        assert!(ranks.may_wait(2, 1, &[1, 2, 3], now).is_some());
    }

    #[test]
    fn a_much_quicker_one_goes_in_front() {
        let (mut ranks, now) = ranks(&[(2, 3 * USUAL), (3, 2 * USUAL)]);
        let first = |ranks: &Ranks| if ranks.may_wait(3, 1, &[1, 2, 3], now).is_some() { 2 } else { 3 };
        assert_eq!(first(&ranks), 2, "a little quicker is not enough");
        for _ in 0..100 {
            ranks.answered(2, 5 * USUAL, None);
            ranks.answered(3, 2 * USUAL, None);
        }
        assert_eq!(first(&ranks), 3);
    }
}
