//! A hundred thousand operations, thousands of them without an answer, on one resource and one register: the
//! search must decide these, and must not have become blind by it. What is broken here is broken at one
//! place.

use std::sync::Arc;

use tenure_checker::{Call, History, Judged, Operation, Outcome, Response, linearizable};

const PROCESSES: u64 = 8;
const OPERATIONS: u64 = 100_000;

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

/// When something was called, happened and ended. What never happened, or was never answered, has no such
/// moment.
struct Moments {
    process: u64,
    invoked: u64,
    happened: Option<u64>,
    ended: Option<u64>,
}

/// Eight processes that call one thing after another. Most calls take milliseconds, some seconds; one in
/// thirty is not answered, and then happens in time, or up to a minute later, or never.
fn moments(dice: &mut Dice) -> Vec<Moments> {
    let mut all = Vec::new();
    for process in 0..PROCESSES {
        let mut now = dice.below(1_000);
        for _ in 0..OPERATIONS / PROCESSES {
            now += 1 + dice.below(30_000);
            let length = if dice.once_in(50) { 1 + dice.below(5_000_000) } else { 1 + dice.below(20_000) };
            let at = now + dice.below(length);
            let (happened, ended) = match (dice.once_in(30), dice.below(3)) {
                (false, _) => (Some(at), Some(now + length)),
                (true, 0) => (None, None),
                (true, 1) => (Some(at), None),
                (true, _) => (Some(now + dice.below(60_000_000)), None),
            };
            all.push(Moments { process, invoked: now, happened, ended });
            now += length;
        }
    }
    // A call that never happens is in nobody's way, wherever it stands.
    all.sort_by_key(|moments| moments.happened.unwrap_or(moments.invoked));
    all
}

/// What an honest store would have answered.
fn honest(seed: u64) -> History {
    let dice = &mut Dice(seed);
    let (resource, key): (Arc<str>, Arc<str>) = ("r".into(), "k".into());
    let mut operations = Vec::new();
    let (mut token, mut holder, mut cell, mut revision) = (0, None, None, 0);
    let mut ours = [None; PROCESSES as usize];
    for (number, Moments { process, invoked, happened, ended }) in moments(dice).into_iter().enumerate() {
        let (happens, ours) = (happened.is_some(), &mut ours[process as usize]);
        // Sessions end.
        if dice.once_in(40) {
            holder = None;
        }
        let (call, answer) = match (dice.below(8), *ours) {
            (0..=2, None) => {
                let is_free = holder.is_none();
                if is_free && happens {
                    (token, holder) = (token + 1 + dice.below(3), Some(process));
                    *ours = ended.is_some().then_some(token);
                }
                let answer = if is_free { Response::Granted(token) } else { Response::Held };
                (Call::Acquire { resource: resource.clone() }, answer)
            }
            (0..=2, Some(held)) => {
                if happens && held == token {
                    holder = None;
                }
                *ours = None;
                (Call::Release { resource: resource.clone(), token: held }, Response::Released(false))
            }
            (3, _) => {
                let answer =
                    if holder.is_some() { Response::HeldBy(token) } else { Response::Free(Some(token)) };
                let answer = if token == 0 { Response::Free(None) } else { answer };
                (Call::Look { resource: resource.clone() }, answer)
            }
            (4 | 5, _) => {
                revision += 1 + dice.below(3);
                if happens {
                    cell = Some((number as u64, revision));
                }
                let call = Call::Put { key: key.clone(), value: number as u64, token: None };
                (call, Response::Written(Some(revision)))
            }
            _ => (Call::Get { key: key.clone() }, Response::Value(cell)),
        };
        let outcome = if ended.is_some() { Outcome::Answered(answer) } else { Outcome::Unknown };
        let ended = ended.unwrap_or(u64::MAX);
        operations.push(Operation { process: process as u32, call, invoked, ended, outcome });
    }
    History { operations, ..History::default() }
}

/// Breaks the first operation behind the middle that the breaker can break.
fn broken(mut history: History, breaker: impl Fn(&mut Operation) -> bool) -> Judged {
    let middle = history.operations.len() / 2;
    assert!(history.operations[middle..].iter_mut().any(breaker), "nothing to break");
    linearizable(&history)
}

#[track_caller]
fn rejected(judged: &Judged, subject: &str) {
    assert!(judged.undecided.is_empty(), "undecided: {:?}", judged.undecided);
    let [violation] = &judged.violations[..] else { panic!("{:?}", judged.violations) };
    assert!(violation.what.starts_with(&format!("{subject}: ")), "{violation}");
}

#[test]
fn a_long_honest_history_with_many_unanswered_calls_is_decided() {
    for seed in 1..=3 {
        let history = honest(seed);
        let unanswered = history.operations.iter().filter(|operation| operation.outcome == Outcome::Unknown);
        assert!(unanswered.count() > 3_000);
        assert_eq!(linearizable(&history), Judged::default(), "seed {seed}");
    }
}

#[test]
fn one_stale_look_among_many_is_found() {
    let judged = broken(honest(1), |operation| match &mut operation.outcome {
        Outcome::Answered(Response::HeldBy(token)) => {
            *token -= 100;
            true
        }
        _ => false,
    });
    rejected(&judged, "r");
}

#[test]
fn one_token_from_the_future_is_found() {
    let judged = broken(honest(1), |operation| match &mut operation.outcome {
        Outcome::Answered(Response::HeldBy(token)) => {
            *token += 100;
            true
        }
        _ => false,
    });
    rejected(&judged, "r");
}

#[test]
fn one_stale_read_among_many_is_found() {
    let history = honest(2);
    let mut old = history.operations.iter().filter_map(|operation| match operation.outcome {
        Outcome::Answered(Response::Value(Some(read))) => Some(read),
        _ => None,
    });
    let old = old.nth(1_000).expect("something was read");
    let judged = broken(history, |operation| match &mut operation.outcome {
        Outcome::Answered(Response::Value(read @ Some(_))) => {
            *read = Some(old);
            true
        }
        _ => false,
    });
    rejected(&judged, "k");
}

#[test]
fn one_write_that_was_denied_and_shows_is_found() {
    let history = honest(3);
    let read: std::collections::HashSet<u64> = history
        .operations
        .iter()
        .filter_map(|operation| match operation.outcome {
            Outcome::Answered(Response::Value(Some((value, _)))) => Some(value),
            _ => None,
        })
        .collect();
    let judged = broken(history, |operation| match operation.call {
        Call::Put { value, .. } if read.contains(&value) => {
            operation.outcome = Outcome::Failed;
            true
        }
        _ => false,
    });
    rejected(&judged, "k");
}

#[test]
fn a_hidden_grant_that_no_unanswered_call_explains_is_found() {
    // All of them are said to have done nothing from the middle on; those before it may be late, but there
    // are too few.
    let mut history = honest(1);
    let middle = history.operations.len() / 2;
    for operation in &mut history.operations[middle..] {
        let is_acquire = matches!(operation.call, Call::Acquire { .. });
        if is_acquire && operation.outcome == Outcome::Unknown {
            operation.outcome = Outcome::Failed;
        }
    }
    let before = |operation: &&mut Operation| {
        matches!(operation.call, Call::Acquire { .. }) && operation.outcome == Outcome::Unknown
    };
    let kept = 5;
    history.operations[..middle].iter_mut().filter(before).skip(kept).for_each(|operation| {
        operation.outcome = Outcome::Failed;
    });
    rejected(&linearizable(&history), "r");
}
