//! The search for a linearization (Wing and Gong's, with Lowe's memo): is there one order of the operations,
//! each at one moment between its call and its answer, that a sequential object could have gone through?
//!
//! An operation whose outcome is unknown may take effect at any moment after its call, or never. Half an hour
//! of chaos has hundreds of these and tens of thousands of others, so a search that tries each unknown one at
//! every later step never ends. This one leaves out what cannot matter. What it finds is an order, whatever
//! was left out; and each rule below keeps at least one if there was any, so that "there is none" is true as
//! well. The tests at the foot hold it against the search without rules.
//!
//! 1. *Ranks.* Tokens and revisions only rise. An operation that returned one (a grant, a write, a look, a
//!    read) has a rank, and nothing of a smaller rank is possible after it ([`Object::rank`]). So nothing is
//!    taken while something of a smaller rank is left.
//! 2. *Looks come at once.* If an answered operation that only looks ([`Object::only_looks`]) may come next,
//!    and sees what it saw, then in any order that goes on from here it can be moved to the front: all others
//!    see what they saw. Nothing else need be tried.
//! 3. *Unknown operations with one and the same call* can stand for each other, as none of them has an end.
//!    Only the one that was called first is taken.
//! 4. *Unknown operations come when they are needed.* Let an unknown `u` be followed by `o`. If `o` without
//!    `u` leads to the same state, `u` can be left out; if `o` is answered and `o` then `u` leads to the same
//!    state, `u` can be put off. Both make orders shorter or move an unknown operation behind an answered
//!    one, which cannot go on for ever; so there is an order in which neither can be done, and only such
//!    orders are tried.
//! 5. *Fewer used up is better.* Of two attempts that have taken in the same answered operations and are in
//!    the same state, one that has used up no more unknown operations of any call can do all that the other
//!    could. The other is given up.
//!
//! An object may besides tell more of unknown operations than that they are unknown, or that one cannot
//! matter ([`Object::prepared`]). The search is bounded; where the bound is met the verdict says so, and
//! nobody may take that for a yes.

use std::collections::HashMap;
use std::hash::Hash;

use crate::history::{Operation, Outcome, Time};

/// A sequential object.
pub(crate) trait Object {
    /// Its states.
    type State: Clone + Eq + Hash;

    /// The first one.
    fn initial(&self) -> Self::State;

    /// The same operations, without those that are unknown and can make no difference to what others saw, and
    /// with what others saw of unknown ones. There must be an order for these if and only if there is one for
    /// those.
    fn prepared(&self, operations: Vec<Operation>) -> Vec<Operation>;

    /// What it is after the operation with the outcome that was seen; nothing if that outcome is impossible.
    /// For an unknown outcome: what it is if the operation did take effect.
    fn after(&self, state: &Self::State, operation: &Operation) -> Option<Self::State>;

    /// Whether this answered operation is possible here and leaves the state as it is, here and wherever else
    /// it is possible from here on.
    fn only_looks(&self, state: &Self::State, operation: &Operation) -> bool;

    /// Of an answered operation: a number that only rises. Whatever comes between, an operation of a smaller
    /// rank is impossible after one of a greater.
    fn rank(&self, operation: &Operation) -> Option<u64>;
}

/// What the search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is such an order.
    Linearizable,
    /// There is none.
    Impossible {
        /// The operations that the longest attempt did not get past.
        stuck: Vec<Operation>,
    },
    /// The bound on the search was met first.
    Undecided,
}

/// Steps of one search, at most, beyond a hundred for each operation. A history of an honest store takes one
/// or two for each.
const STEPS_MAX: u64 = 2_000_000;

/// Searches for a linearization of `operations`.
pub(crate) fn search<O: Object>(object: &O, operations: Vec<Operation>) -> Verdict {
    let steps_max = STEPS_MAX + 100 * operations.len() as u64;
    Search::of(object, operations).run(steps_max)
}

/// One step of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    /// The answered operation with this number.
    Answered(usize),
    /// The next one of this group of unknown operations.
    Unknown(usize),
}

/// Unknown operations with one call.
struct Group {
    operation: Operation,
    /// When each was called, the first one first.
    invoked: Vec<Time>,
}

/// One point of the attempt under way: the state there, how it was reached, and what may come next.
struct Frame<S> {
    state: S,
    step: Option<Step>,
    /// All answered operations before this one have been taken in.
    open_from: usize,
    choices: Vec<Step>,
    tried: usize,
}

/// Where an attempt is, but for the unknown operations that it has used up: the sum of the answered ones, the
/// state, and, where the last step was an unknown one, that step and the state before it, as these decide
/// what may follow.
type Place<S> = (u128, S, Option<(usize, S)>);

struct Search<'a, O: Object> {
    object: &'a O,
    /// In the order of their calls.
    answered: Vec<Operation>,
    groups: Vec<Group>,
    /// The answered operations that have a rank, by rank, and where each of the answered ones stands among
    /// these.
    ranked: Vec<(u64, usize)>,
    place_in_ranked: Vec<usize>,
    /// All before this one, in the order of ranks, have been taken in.
    ranked_from: usize,
    taken: Vec<bool>,
    /// Stands for the set of the answered operations that were taken in.
    sum: u128,
    count: usize,
    /// How many of each group have been used up.
    used: Vec<u32>,
    frames: Vec<Frame<O::State>>,
    /// Where attempts have been, and what they had used up there.
    seen: HashMap<Place<O::State>, Vec<Box<[u32]>>>,
}

impl<'a, O: Object> Search<'a, O> {
    fn of(object: &'a O, operations: Vec<Operation>) -> Search<'a, O> {
        let did_something = operations.into_iter().filter(|operation| operation.outcome != Outcome::Failed);
        let (unknown, mut answered): (Vec<Operation>, Vec<Operation>) = object
            .prepared(did_something.collect())
            .into_iter()
            .partition(|operation| operation.outcome == Outcome::Unknown);
        answered.sort_by_key(|operation| (operation.invoked, operation.ended));
        let ranks = answered.iter().enumerate();
        let mut ranked: Vec<(u64, usize)> =
            ranks.filter_map(|(index, operation)| Some((object.rank(operation)?, index))).collect();
        ranked.sort_unstable();
        let mut place_in_ranked = vec![usize::MAX; answered.len()];
        for (place, (_, index)) in ranked.iter().enumerate() {
            place_in_ranked[*index] = place;
        }
        let groups = groups(unknown);
        let (taken, used) = (vec![false; answered.len()], vec![0; groups.len()]);
        Search {
            object,
            answered,
            groups,
            ranked,
            place_in_ranked,
            ranked_from: 0,
            taken,
            sum: 0,
            count: 0,
            used,
            frames: Vec::new(),
            seen: HashMap::new(),
        }
    }

    fn run(mut self, steps_max: u64) -> Verdict {
        let (mut steps, mut best, mut stuck) = (0, None, Vec::new());
        let initial = self.object.initial();
        self.enter(initial, None);
        while let Some(frame) = self.frames.last_mut() {
            if self.count == self.answered.len() {
                return Verdict::Linearizable;
            }
            if best.is_none_or(|best| self.count > best) {
                best = Some(self.count);
                stuck = self.in_the_way();
                continue;
            }
            let Some(step) = frame.choices.get(frame.tried).copied() else {
                self.retreat();
                continue;
            };
            frame.tried += 1;
            steps += 1;
            if steps > steps_max {
                return Verdict::Undecided;
            }
            if let Some(state) = self.after(step) {
                self.advance(step, state);
            }
        }
        Verdict::Impossible { stuck: stuck.into_iter().map(|index| self.answered[index].clone()).collect() }
    }

    fn operation(&self, step: Step) -> &Operation {
        match step {
            Step::Answered(index) => &self.answered[index],
            Step::Unknown(group) => &self.groups[group].operation,
        }
    }

    /// Where a step leads from here, if it is possible and not one of those that need not be tried (4).
    fn after(&self, step: Step) -> Option<O::State> {
        let [.., frame] = &self.frames[..] else { return None };
        let next = self.object.after(&frame.state, self.operation(step))?;
        let is_unknown = matches!(step, Step::Unknown(_));
        if is_unknown && next == frame.state {
            return None;
        }
        if let [.., before, Frame { step: Some(last @ Step::Unknown(_)), .. }] = &self.frames[..]
            && let Some(without) = self.object.after(&before.state, self.operation(step))
        {
            if without == next {
                return None;
            }
            let put_off = || self.object.after(&without, self.operation(*last));
            if !is_unknown && put_off().is_some_and(|state| state == next) {
                return None;
            }
        }
        Some(next)
    }

    /// Takes a step, unless it leads to where an attempt has been that had used up no more (5).
    fn advance(&mut self, step: Step, state: O::State) {
        self.take(step);
        let before = self.frames.last().map(|frame| &frame.state);
        let owed = match (step, before) {
            (Step::Unknown(group), Some(before)) => Some((group, before.clone())),
            _ => None,
        };
        let seen = self.seen.entry((self.sum, state.clone(), owed)).or_default();
        let no_more = |these: &[u32], those: &[u32]| these.iter().zip(those).all(|(this, that)| this <= that);
        if seen.iter().any(|used| no_more(used, &self.used)) {
            self.put_back(step);
            return;
        }
        seen.retain(|used| !no_more(&self.used, used));
        seen.push(self.used.clone().into_boxed_slice());
        self.enter(state, Some(step));
    }

    fn retreat(&mut self) {
        if let Some(step) = self.frames.pop().and_then(|frame| frame.step) {
            self.put_back(step);
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Answered(index) => {
                self.taken[index] = true;
                self.sum ^= part_of_sum(index);
                self.count += 1;
                while self.ranked.get(self.ranked_from).is_some_and(|(_, index)| self.taken[*index]) {
                    self.ranked_from += 1;
                }
            }
            Step::Unknown(group) => self.used[group] += 1,
        }
    }

    fn put_back(&mut self, step: Step) {
        match step {
            Step::Answered(index) => {
                self.taken[index] = false;
                self.sum ^= part_of_sum(index);
                self.count -= 1;
                self.ranked_from = self.ranked_from.min(self.place_in_ranked[index]);
            }
            Step::Unknown(group) => self.used[group] -= 1,
        }
    }

    /// Comes to a point, and sees what may come next there.
    fn enter(&mut self, state: O::State, step: Option<Step>) {
        let mut open_from = self.frames.last().map_or(0, |frame| frame.open_from);
        while self.taken.get(open_from) == Some(&true) {
            open_from += 1;
        }
        let (mut open, first_end) = self.open(open_from);
        let rank_max = self.ranked.get(self.ranked_from).map_or(u64::MAX, |(rank, _)| *rank);
        open.retain(|index| match self.place_in_ranked[*index] {
            usize::MAX => true,
            place => self.ranked[place].0 <= rank_max,
        });
        let only_looks = |index: &&usize| self.object.only_looks(&state, &self.answered[**index]);
        let is_owed = matches!(step, Some(Step::Unknown(_)));
        let choices = match open.iter().find(only_looks) {
            Some(index) if !is_owed => vec![Step::Answered(*index)],
            _ => {
                let next = |group: &usize| self.groups[*group].invoked.get(self.used[*group] as usize);
                let called = |group: &usize| next(group).is_some_and(|invoked| *invoked <= first_end);
                let unknown = (0..self.groups.len()).filter(called).map(Step::Unknown);
                open.into_iter().map(Step::Answered).chain(unknown).collect()
            }
        };
        self.frames.push(Frame { state, step, open_from, choices, tried: 0 });
    }

    /// The answered operations that may come next, as far as time goes: called before any other that is left
    /// had ended. And when the first of those that are left ended.
    fn open(&self, from: usize) -> (Vec<usize>, Time) {
        let mut found = Vec::new();
        let mut first_end = Time::MAX;
        for (index, operation) in self.answered.iter().enumerate().skip(from) {
            if operation.invoked > first_end {
                break;
            }
            if !self.taken[index] {
                first_end = first_end.min(operation.ended);
                found.push(index);
            }
        }
        found.retain(|index| self.answered[*index].invoked <= first_end);
        (found, first_end)
    }

    /// What an attempt that ends here could not take in: whatever may come next as far as time goes, and
    /// first of all what the others would have to wait for.
    fn in_the_way(&self) -> Vec<usize> {
        let (mut open, _) = self.open(self.frames.last().map_or(0, |frame| frame.open_from));
        if let Some((_, lowest)) = self.ranked.get(self.ranked_from) {
            open.retain(|index| index != lowest);
            open.insert(0, *lowest);
        }
        open
    }
}

/// Unknown operations by their calls.
fn groups(mut unknown: Vec<Operation>) -> Vec<Group> {
    unknown.sort_by_key(|operation| operation.invoked);
    let mut groups: Vec<Group> = Vec::new();
    let mut known: HashMap<crate::history::Call, usize> = HashMap::new();
    for operation in unknown {
        let invoked = operation.invoked;
        let group = *known.entry(operation.call.clone()).or_insert_with(|| {
            groups.push(Group { operation, invoked: Vec::new() });
            groups.len() - 1
        });
        groups[group].invoked.push(invoked);
    }
    groups
}

/// One operation's part of the sum that stands for a set of them: two numbers as good as random. Two sets
/// that a search meets share a sum with a chance of less than one in 10^24, even after ten million steps.
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::history::{Call, Response};
    use crate::leases::LeaseTable;
    use crate::registers::Register;

    /// The search without any of the rules that make it short: every order, every unknown operation at every
    /// step.
    fn by_force<O: Object>(object: &O, operations: &[Operation]) -> bool {
        let may_be_left = |index: usize| operations[index].outcome == Outcome::Unknown;
        let takes_effect: Vec<Operation> = operations
            .iter()
            .map(|operation| match (&operation.call, &operation.outcome) {
                // What a release without an answer does, if it does anything.
                (Call::Release { .. }, Outcome::Unknown) => {
                    let outcome = Outcome::Answered(Response::Released(false));
                    Operation { outcome, ..operation.clone() }
                }
                _ => operation.clone(),
            })
            .collect();
        let end = |index: usize| if may_be_left(index) { Time::MAX } else { operations[index].ended };
        let all: Vec<usize> =
            (0..operations.len()).filter(|index| operations[*index].outcome != Outcome::Failed).collect();
        let mut seen = HashSet::new();
        let mut to_try = vec![(0u32, object.initial())];
        while let Some((taken, state)) = to_try.pop() {
            let left: Vec<usize> = all.iter().copied().filter(|index| taken & (1 << index) == 0).collect();
            if left.iter().all(|index| may_be_left(*index)) {
                return true;
            }
            for index in &left {
                let in_time = left.iter().all(|other| operations[*index].invoked <= end(*other));
                if in_time && let Some(next) = object.after(&state, &takes_effect[*index]) {
                    let place = (taken | (1 << index), next);
                    if seen.insert(place.clone()) {
                        to_try.push(place);
                    }
                }
            }
        }
        false
    }

    struct Dice(u64);

    impl Dice {
        fn below(&mut self, many: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % many
        }

        fn once_in(&mut self, many: u64) -> bool {
            self.below(many) == 0
        }
    }

    /// An honest history of a few operations, some of which are not answered and some of these without
    /// effect; then, mostly, one of its answers is made another.
    fn drawn(dice: &mut Dice, leases: bool) -> Vec<Operation> {
        let many = 3 + dice.below(7);
        let (mut operations, mut moment) = (Vec::new(), 10);
        let (mut last, mut held, mut cell, mut revision) = (0, false, None, 0);
        for value in 1..=many {
            moment += dice.below(4);
            let (unanswered, no_effect) = (dice.once_in(3), dice.once_in(2));
            let (invoked, ended) = (moment - dice.below(9), moment + dice.below(9));
            let acts = !(unanswered && no_effect);
            let (call, answer) = if leases {
                let resource = "r".into();
                match dice.below(4) {
                    0 if held && dice.once_in(2) => (Call::Acquire { resource }, Response::Held),
                    0 | 1 => {
                        if acts {
                            (last, held) = (last + 1 + dice.below(2), true);
                        }
                        (Call::Acquire { resource }, Response::Granted(last))
                    }
                    2 => {
                        let (ended, sure) = (held, dice.once_in(2));
                        held &= !acts;
                        (Call::Release { resource, token: last }, Response::Released(ended && sure))
                    }
                    _ if held => (Call::Look { resource }, Response::HeldBy(last)),
                    _ => (Call::Look { resource }, Response::Free((last > 0).then_some(last))),
                }
            } else {
                let key = "k".into();
                let found = cell.map_or(0, |(_, revision)| revision);
                match dice.below(6) {
                    0 | 1 => {
                        let answered = (!dice.once_in(4)).then_some(revision + 1);
                        if acts {
                            revision += 1;
                            cell = Some((value, revision));
                        }
                        (Call::Put { key, value, token: None }, Response::Written(answered))
                    }
                    2 if dice.once_in(2) => {
                        if acts {
                            revision += 1;
                            cell = Some((value, revision));
                        }
                        (
                            Call::PutIf { key, value, revision: found },
                            Response::Written(Some(found.max(revision))),
                        )
                    }
                    2 => (Call::PutIf { key, value, revision: found + 1 }, Response::NotEqual),
                    3 if dice.once_in(2) => {
                        if acts && cell.is_some() {
                            revision += 1;
                            cell = None;
                        }
                        (Call::Delete { key }, Response::Written(Some(revision)))
                    }
                    _ => (Call::Get { key }, Response::Value(cell)),
                }
            };
            let outcome = if unanswered { Outcome::Unknown } else { Outcome::Answered(answer) };
            operations.push(Operation { process: 1, call, invoked, ended, outcome });
        }
        if !dice.once_in(4) {
            let which = dice.below(many) as usize;
            break_one(&mut operations[which], dice);
        }
        operations
    }

    fn break_one(operation: &mut Operation, dice: &mut Dice) {
        let by = |number: u64, dice: &mut Dice| (number + 1 + dice.below(3)).saturating_sub(2);
        match &mut operation.outcome {
            Outcome::Answered(Response::Granted(token) | Response::HeldBy(token)) => {
                *token = by(*token, dice)
            }
            Outcome::Answered(Response::Free(last)) => *last = Some(by(last.unwrap_or(0), dice)),
            Outcome::Answered(Response::Released(ended)) => *ended = !*ended,
            Outcome::Answered(Response::Written(Some(revision))) => *revision = by(*revision, dice),
            Outcome::Answered(Response::Value(Some((value, revision)))) => {
                (*value, *revision) = (by(*value, dice), by(*revision, dice));
            }
            outcome @ Outcome::Answered(Response::Value(None)) => {
                *outcome = Outcome::Answered(Response::Value(Some((1 + dice.below(3), 1 + dice.below(3)))));
            }
            outcome => *outcome = Outcome::Failed,
        }
    }

    /// Both searches on many small histories; how many of these had an order, and how many none.
    fn compared<O: Object>(object: &O, leases: bool) -> [u32; 2] {
        let mut found = [0, 0];
        for seed in 0..60_000 {
            let operations = drawn(&mut Dice(seed), leases);
            let expected = by_force(object, &operations);
            let verdict = search(object, operations.clone());
            assert_eq!(verdict == Verdict::Linearizable, expected, "seed {seed}: {operations:#?}");
            assert_ne!(verdict, Verdict::Undecided);
            found[usize::from(!expected)] += 1;
        }
        found
    }

    #[test]
    fn the_short_search_of_leases_finds_what_the_long_one_finds() {
        let found = compared(&LeaseTable, true);
        assert!(found.iter().all(|many| *many > 5_000), "one-sided: {found:?}");
    }

    #[test]
    fn the_short_search_of_registers_finds_what_the_long_one_finds() {
        let found = compared(&Register, false);
        assert!(found.iter().all(|many| *many > 5_000), "one-sided: {found:?}");
    }
}
