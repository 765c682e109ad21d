//! One register as a sequential object: a value, and the revision that wrote it, which only rises.

use std::collections::HashMap;

use crate::history::{Call, Operation, Outcome, Response, Time};
use crate::linear::Object;

/// A register.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Cell {
    value: Option<u64>,
    /// The revision of the last change, or, if that is not known, a revision below it.
    revision: u64,
    exact: bool,
}

impl Cell {
    /// The state in which the last change is known to have this revision, if that can be.
    fn at(&self, revision: u64) -> Option<Cell> {
        let fits = if self.exact { revision == self.revision } else { revision > self.revision };
        fits.then_some(Cell { revision, exact: true, ..self.clone() })
    }

    /// Whether a comparison with this revision can hold; the state in which it does.
    fn compared(&self, revision: u64) -> Option<Cell> {
        match (self.value, revision) {
            (None, 0) => Some(self.clone()),
            (None, _) | (_, 0) => None,
            (Some(_), revision) => self.at(revision),
        }
    }

    fn written(&self, value: Option<u64>, revision: Option<u64>) -> Option<Cell> {
        match revision {
            None => Some(Cell { value, revision: self.revision, exact: false }),
            Some(revision) => (revision > self.revision).then_some(Cell { value, revision, exact: true }),
        }
    }
}

pub(crate) struct Register;

impl Object for Register {
    type State = Cell;

    fn initial(&self) -> Cell {
        Cell { value: None, revision: 0, exact: true }
    }

    /// Values are written once, so a read tells who wrote what it found.
    ///
    /// - A write without an answer whose value was read did happen, with the revision that was read, and
    ///   before the first such read ended: as good as answered then.
    /// - One whose value nobody read can only be told by a comparison. Without any, take it out of an order:
    ///   every read found another's value, so none was between it and the next change, and that leaves what
    ///   it would have left (a removal that now finds nothing leaves an older revision, which allows more and
    ///   forbids nothing).
    /// - A read without an answer changes nothing.
    fn prepared(&self, operations: Vec<Operation>) -> Vec<Operation> {
        let compares = operations.iter().any(|operation| matches!(operation.call, Call::PutIf { .. }));
        let mut writers: HashMap<u64, u32> = HashMap::new();
        let mut reads: HashMap<u64, (u64, Time)> = HashMap::new();
        for operation in &operations {
            if let Some(value) = value_of(&operation.call) {
                *writers.entry(value).or_default() += 1;
            }
            if let Outcome::Answered(Response::Value(Some((value, revision)))) = operation.outcome {
                let first = reads.entry(value).or_insert((revision, operation.ended));
                *first = (first.0.min(revision), first.1.min(operation.ended));
            }
        }
        let tell = |mut operation: Operation| {
            if operation.outcome != Outcome::Unknown {
                return Some(operation);
            }
            match (&operation.call, value_of(&operation.call)) {
                (Call::Get { .. }, _) => return None,
                (_, Some(value)) if writers.get(&value) == Some(&1) => match reads.get(&value) {
                    Some((revision, ended)) => {
                        operation.ended = operation.invoked.max(*ended);
                        operation.outcome = Outcome::Answered(Response::Written(Some(*revision)));
                    }
                    None if !compares => return None,
                    None => {}
                },
                _ => {}
            }
            Some(operation)
        };
        operations.into_iter().filter_map(tell).collect()
    }

    fn after(&self, cell: &Cell, operation: &Operation) -> Option<Cell> {
        match (&operation.call, &operation.outcome) {
            (Call::Get { .. }, Outcome::Answered(Response::Value(None))) => {
                cell.value.is_none().then(|| cell.clone())
            }
            (Call::Get { .. }, Outcome::Answered(Response::Value(Some((value, revision))))) => {
                (cell.value == Some(*value)).then(|| cell.at(*revision)).flatten()
            }
            (Call::Put { value, .. }, Outcome::Answered(Response::Written(revision))) => {
                cell.written(Some(*value), *revision)
            }
            (Call::Put { value, .. }, Outcome::Unknown) => cell.written(Some(*value), None),
            (Call::PutIf { value, revision, .. }, Outcome::Answered(Response::Written(at))) => {
                cell.compared(*revision).and_then(|cell| cell.written(Some(*value), *at))
            }
            (Call::PutIf { value, revision, .. }, Outcome::Unknown) => {
                cell.compared(*revision).and_then(|cell| cell.written(Some(*value), None))
            }
            (Call::PutIf { revision, .. }, Outcome::Answered(Response::NotEqual)) => {
                let equal = match cell.value {
                    None => *revision == 0,
                    Some(_) => cell.exact && cell.revision == *revision,
                };
                (!equal).then(|| cell.clone())
            }
            // Removing what is not there changes nothing and raises nothing.
            (Call::Delete { .. }, _) if cell.value.is_none() => Some(cell.clone()),
            (Call::Delete { .. }, Outcome::Answered(Response::Written(revision))) => {
                cell.written(None, *revision)
            }
            (Call::Delete { .. }, Outcome::Unknown) => cell.written(None, None),
            // A refused write changes nothing; why it was refused is `fence_never_falls`' business.
            (_, Outcome::Answered(Response::Fenced)) => Some(cell.clone()),
            _ => None,
        }
    }

    fn only_looks(&self, cell: &Cell, operation: &Operation) -> bool {
        // A removal that finds nothing here may find something later. A read that finds the revision that is
        // known finds no other later: revisions rise.
        let looks = matches!(
            operation.outcome,
            Outcome::Answered(Response::Value(_) | Response::NotEqual | Response::Fenced)
        );
        looks && self.after(cell, operation).as_ref() == Some(cell)
    }

    fn rank(&self, operation: &Operation) -> Option<u64> {
        // The revision never falls. A write raises it to its own, so it comes before everybody who read that
        // one, and after everybody who read a smaller one. A removal may have found nothing to remove, and
        // then raised nothing.
        match (&operation.call, &operation.outcome) {
            (Call::Put { .. } | Call::PutIf { .. }, Outcome::Answered(Response::Written(Some(revision)))) => {
                revision.checked_mul(2)
            }
            (Call::Get { .. }, Outcome::Answered(Response::Value(Some((_, revision))))) => {
                revision.checked_mul(2)?.checked_add(1)
            }
            _ => None,
        }
    }
}

/// What a call writes.
fn value_of(call: &Call) -> Option<u64> {
    match call {
        Call::Put { value, .. } | Call::PutIf { value, .. } => Some(*value),
        _ => None,
    }
}
