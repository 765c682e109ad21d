//! Which followers an entry is sent to immediately, and which get it a moment later.
//!
//! An entry is committed as soon as a majority has it. While a single client waits for it, only the followers
//! that complete the majority matter; what the others do meanwhile takes processors, network and shared disks
//! away from them. So the others wait: until the first ones should have answered twice over, or, once the
//! entry is committed, until a few more can go in the same message and share a sync. That message is sent
//! after the answer to the client.
//!
//! Every follower gets every entry, in order. A first follower that does not answer in time is not counted on
//! any more, and then all followers are sent to immediately.

use super::LowLatencyOptions;
use crate::NodeId;
use std::time::Duration;
use tokio::time::Instant;

/// How many answers a follower must have given before it is counted on.
const ANSWERS_MIN: u32 = 8;

/// The followers of this node, fastest first.
#[derive(Default)]
pub(crate) struct FollowerRanks(Vec<Follower>);

struct Follower {
    node: NodeId,
    /// How long it usually takes to answer.
    usual: Duration,
    answers: u32,
    /// When the oldest request that it has not answered was sent.
    owes_since: Option<Instant>,
}

impl Follower {
    /// Whether its next answer can be expected in its usual time.
    fn is_prompt(&self, now: Instant) -> bool {
        let in_time = |since: Instant| now.saturating_duration_since(since) <= 2 * self.usual;
        self.answers >= ANSWERS_MIN && self.owes_since.is_none_or(in_time)
    }
}

impl FollowerRanks {
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
        // Only past those that take twice as long; otherwise two similar ones would keep changing places.
        while place > 0 && self.0[place - 1].usual > 2 * self.0[place].usual {
            self.0.swap(place - 1, place);
            place -= 1;
        }
    }

    /// A follower's append stream has ended: forget what is known of it.
    pub fn left(&mut self, node: NodeId) {
        self.0.retain(|follower| follower.node != node);
    }

    /// How long an entry for `node` may wait, if it may: twice as long as the followers ahead of it usually
    /// take, if those are enough for a majority of the voters. `own` is the leader, which may or may not
    /// vote.
    pub fn may_wait(&self, node: NodeId, own: NodeId, voters: &[NodeId], now: Instant) -> Option<Duration> {
        let needed = voters.len() / 2 + usize::from(!voters.contains(&own));
        let in_front = self.0.iter().take_while(|follower| follower.node != node);
        let counted_on = in_front.filter(|first| voters.contains(&first.node) && first.is_prompt(now));
        let usual: Vec<Duration> = counted_on.map(|first| first.usual).take(needed).collect();
        let slowest = usual.iter().max().filter(|_| usual.len() == needed)?;
        Some(2 * *slowest)
    }

    fn place(&mut self, node: NodeId) -> usize {
        self.0.iter().position(|follower| follower.node == node).unwrap_or_else(|| {
            self.0.push(Follower { node, usual: Duration::ZERO, answers: 0, owes_since: None });
            self.0.len() - 1
        })
    }
}

/// Since when a request is held back, and until when so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HoldTimes {
    pub since: Instant,
    pub until: Instant,
}

/// Until when entries are held back, once another request was added to them at `now`.
pub(super) fn held_until(
    options: &LowLatencyOptions,
    held: HoldTimes,
    committed: bool,
    now: Instant,
    may_wait: Duration,
) -> Instant {
    match committed {
        true if now >= held.since + options.gather => now,
        true => held.since + options.late_max,
        false => held.until.min(now + may_wait),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Duration = Duration::from_micros(100);

    /// Followers that have answered often enough, each in its time.
    fn ranks(usual: &[(NodeId, Duration)]) -> (FollowerRanks, Instant) {
        let (mut ranks, now) = (FollowerRanks::default(), Instant::now());
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
    fn the_wait_is_twice_what_the_first_ones_take() {
        let (ranks, now) = ranks(&[(2, USUAL), (3, USUAL)]);
        assert_eq!(ranks.may_wait(3, 1, &[1, 2, 3], now), Some(2 * USUAL));
    }

    #[test]
    fn entries_wait_longer_once_they_are_committed() {
        let options = LowLatencyOptions::default();
        let since = Instant::now();
        let held = HoldTimes { since, until: since + USUAL };
        let until = |committed, now| held_until(&options, held, committed, now, USUAL);
        assert_eq!(until(false, since), since + USUAL);
        assert_eq!(until(false, since + USUAL), since + USUAL, "the first waits no longer");
        assert_eq!(until(true, since + USUAL), since + options.late_max);
        assert_eq!(until(true, since + options.gather), since + options.gather, "there are enough, send now");
    }

    #[test]
    fn nobody_waits_for_one_that_is_late_or_unknown() {
        let (mut ranks, now) = ranks(&[(2, USUAL), (3, USUAL)]);
        let waits = |ranks: &FollowerRanks, now| ranks.may_wait(3, 1, &[1, 2, 3], now).is_some();
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
        let first =
            |ranks: &FollowerRanks| if ranks.may_wait(3, 1, &[1, 2, 3], now).is_some() { 2 } else { 3 };
        assert_eq!(first(&ranks), 2, "a little quicker is not enough");
        for _ in 0..100 {
            ranks.answered(2, 5 * USUAL, None);
            ranks.answered(3, 2 * USUAL, None);
        }
        assert_eq!(first(&ranks), 3);
    }
}
