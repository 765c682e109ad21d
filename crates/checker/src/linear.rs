//! The search for a linearization (Wing and Gong's, with Lowe's memo): is there one order of the operations, each at one
//! moment between its call and its answer, that a sequential object could have gone through?
//!
//! An operation whose outcome is unknown may take effect at any moment after its call, or never. The search is bounded;
//! where the bound is met the verdict says so, and nobody may take that for a yes.
//!
//! A run of half an hour has tens of thousands of operations on one subject, so a step must cost what is *open* at that moment
//! and not what has been before: choices are made one by one, and what has been tried is remembered by a 128-bit sum of the
//! operations taken in, not by the list of them.

use std::collections::HashSet;
use std::hash::Hash;

use crate::history::{Operation, Outcome, Time};

/// A sequential object.
pub(crate) trait Object {
    /// Its states.
    type State: Clone + Eq + Hash;

    /// The first one.
    fn initial(&self) -> Self::State;

    /// What it can be after the operation with the outcome that was seen; nothing if that outcome is impossible. For an
    /// unknown outcome: what it can be if the operation did take effect.
    fn after(&self, state: &Self::State, operation: &Operation) -> Vec<Self::State>;

    /// Whether an operation with an unknown outcome can make any difference to what others see. One that cannot is left
    /// out: each that stays may take effect at every later step, which is what makes a search long.
    fn matters(&self, unknown: &Operation) -> bool;
}

/// What the search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is such an order.
    Linearizable,
    /// There is none. The number is how many operations the longest attempt took in, in the order of their calls.
    Impossible {
        /// The operations that no attempt got past.
        stuck: Vec<Operation>,
    },
    /// The bound on the search was met first.
    Undecided,
}

/// Steps of one search, at most, beyond a hundred for each operation. A history of an honest store takes one or two for each.
const STEPS_MAX: u64 = 2_000_000;

/// Searches for a linearization of `operations`.
pub(crate) fn search<O: Object>(object: &O, operations: &[Operation]) -> Verdict {
    let wanted = |operation: &&Operation| match operation.outcome {
        Outcome::Failed => false,
        Outcome::Unknown => object.matters(operation),
        Outcome::Answered(_) => true,
    };
    let mut operations: Vec<&Operation> = operations.iter().filter(wanted).collect();
    operations.sort_by_key(|operation| (operation.invoked, operation.ended));
    let ends: Vec<Time> = operations.iter().map(|operation| end_of(operation)).collect();
    let needed = ends.iter().filter(|end| **end != Time::MAX).count();
    let steps_max = STEPS_MAX + 100 * operations.len() as u64;

    let mut taken = Taken::none_of(operations.len());
    let mut seen: HashSet<(u128, O::State)> = HashSet::new();
    let mut frames = vec![Frame::at(object.initial(), None, taken.candidates(&operations, &ends))];
    let (mut steps, mut known, mut best, mut stuck) = (0, 0, 0, frames[0].candidates.clone());
    while let Some(frame) = frames.last_mut() {
        if known == needed {
            return Verdict::Linearizable;
        }
        let Some((index, next)) = frame.choose(object, &operations) else {
            if let Some(index) = frame.took {
                taken.put_back(index);
                known -= usize::from(ends[index] != Time::MAX);
            }
            frames.pop();
            continue;
        };
        steps += 1;
        if steps > steps_max {
            return Verdict::Undecided;
        }
        if !seen.insert((taken.sum ^ part_of_sum(index), next.clone())) {
            continue;
        }
        taken.take(index);
        known += usize::from(ends[index] != Time::MAX);
        let candidates = taken.candidates(&operations, &ends);
        if known > best {
            best = known;
            stuck = candidates.clone();
        }
        frames.push(Frame::at(next, Some(index), candidates));
    }
    Verdict::Impossible { stuck: stuck.into_iter().map(|index| operations[index].clone()).collect() }
}

/// An operation that is not known to have ended ends never.
fn end_of(operation: &Operation) -> Time {
    if operation.outcome == Outcome::Unknown { Time::MAX } else { operation.ended }
}

/// One point of the attempt under way: the state there, and what may come next.
struct Frame<S> {
    state: S,
    /// The operation that led here.
    took: Option<usize>,
    candidates: Vec<usize>,
    /// How many of the candidates have been tried, and what else the last of them could lead to.
    tried: usize,
    others: Vec<(usize, S)>,
}

impl<S> Frame<S> {
    fn at(state: S, took: Option<usize>, candidates: Vec<usize>) -> Frame<S> {
        Frame { state, took, candidates, tried: 0, others: Vec::new() }
    }

    /// The next choice that the object allows. The earliest call comes first: it is the right one most of the time.
    fn choose<O: Object<State = S>>(&mut self, object: &O, operations: &[&Operation]) -> Option<(usize, S)> {
        loop {
            if let Some(other) = self.others.pop() {
                return Some(other);
            }
            let index = *self.candidates.get(self.tried)?;
            self.tried += 1;
            let after = object.after(&self.state, operations[index]);
            self.others.extend(after.into_iter().rev().map(|state| (index, state)));
        }
    }
}

/// Which operations the attempt under way has taken in.
struct Taken {
    bits: Vec<u64>,
    sum: u128,
}

impl Taken {
    fn none_of(operations: usize) -> Taken {
        Taken { bits: vec![0; operations.div_ceil(64)], sum: 0 }
    }

    fn take(&mut self, index: usize) {
        self.bits[index / 64] |= 1 << (index % 64);
        self.sum ^= part_of_sum(index);
    }

    fn put_back(&mut self, index: usize) {
        self.bits[index / 64] &= !(1 << (index % 64));
        self.sum ^= part_of_sum(index);
    }

    /// The operations that may come next: called before any other that is left had ended.
    fn candidates(&self, operations: &[&Operation], ends: &[Time]) -> Vec<usize> {
        let mut found = Vec::new();
        let mut first_end = Time::MAX;
        for (word, bits) in self.bits.iter().enumerate() {
            let first = word * 64;
            if operations[first].invoked > first_end {
                break;
            }
            let mut left = !bits;
            while left != 0 {
                let index = first + left.trailing_zeros() as usize;
                left &= left - 1;
                if index >= operations.len() || operations[index].invoked > first_end {
                    break;
                }
                first_end = first_end.min(ends[index]);
                found.push(index);
            }
        }
        found.retain(|index| operations[*index].invoked <= first_end);
        found
    }
}

/// One operation's part of the sum that stands for a set of them: two numbers as good as random. Two sets that a search meets
/// share a sum with a chance of less than one in 10^24, even after ten million steps.
fn part_of_sum(index: usize) -> u128 {
    let mix = |seed: u64| {
        let mut mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    let index = index as u64;
    (u128::from(mix(2 * index + 1)) << 64) | u128::from(mix(2 * index + 2))
}
