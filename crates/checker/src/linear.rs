//! The search for a linearization (Wing and Gong's, with Lowe's memo): is there one order of the operations, each at one
//! moment between its call and its answer, that a sequential object could have gone through?
//!
//! An operation whose outcome is unknown may take effect at any moment after its call, or never. The search is bounded;
//! where the bound is met the verdict says so, and nobody may take that for a yes.

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

/// Steps of one search, at most. A history of an honest store takes a few hundred.
const STEPS_MAX: u64 = 2_000_000;

/// Searches for a linearization of `operations`.
pub(crate) fn search<O: Object>(object: &O, operations: &[Operation]) -> Verdict {
    let mut operations: Vec<&Operation> =
        operations.iter().filter(|operation| operation.outcome != Outcome::Failed).collect();
    operations.sort_by_key(|operation| (operation.invoked, operation.ended));
    let ends: Vec<Time> = operations.iter().map(|operation| end_of(operation)).collect();
    let needed = ends.iter().filter(|end| **end != Time::MAX).count();

    let mut seen: HashSet<(Vec<u64>, O::State)> = HashSet::new();
    let mut stack = vec![(vec![0u64; operations.len().div_ceil(64)], 0usize, object.initial())];
    let (mut steps, mut best, mut best_done) = (0, 0, None);
    while let Some((done, known, state)) = stack.pop() {
        if known == needed {
            return Verdict::Linearizable;
        }
        if known > best || best_done.is_none() {
            best = known;
            best_done = Some(done.clone());
        }
        // Pushed in reverse, so that the earliest call is tried first: it is the right one most of the time.
        for index in candidates(&operations, &ends, &done).into_iter().rev() {
            steps += 1;
            if steps > STEPS_MAX {
                return Verdict::Undecided;
            }
            let known = known + usize::from(ends[index] != Time::MAX);
            for next in object.after(&state, operations[index]) {
                let mut done = done.clone();
                done[index / 64] |= 1 << (index % 64);
                if seen.insert((done.clone(), next.clone())) {
                    stack.push((done, known, next));
                }
            }
        }
    }
    let done = best_done.unwrap_or_default();
    let stuck = candidates(&operations, &ends, &done).into_iter().map(|index| operations[index].clone());
    Verdict::Impossible { stuck: stuck.collect() }
}

/// An operation that is not known to have ended ends never.
fn end_of(operation: &Operation) -> Time {
    if operation.outcome == Outcome::Unknown { Time::MAX } else { operation.ended }
}

/// The operations that may come next: called before any other that is left had ended.
fn candidates(operations: &[&Operation], ends: &[Time], done: &[u64]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut first_end = Time::MAX;
    for (index, operation) in operations.iter().enumerate() {
        if operation.invoked > first_end {
            break;
        }
        if done[index / 64] & (1 << (index % 64)) == 0 {
            first_end = first_end.min(ends[index]);
            found.push(index);
        }
    }
    found.retain(|index| operations[*index].invoked <= first_end);
    found
}
