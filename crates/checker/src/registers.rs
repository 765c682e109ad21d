//! One register as a sequential object: a value, and the revision that wrote it, which only rises.

use crate::history::{Answer, Call, Operation, Outcome};
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

    fn after(&self, cell: &Cell, operation: &Operation) -> Vec<Cell> {
        let next = match (&operation.call, &operation.outcome) {
            (Call::Get { .. }, Outcome::Unknown) => Some(cell.clone()),
            (Call::Get { .. }, Outcome::Answered(Answer::Value(None))) => {
                cell.value.is_none().then(|| cell.clone())
            }
            (Call::Get { .. }, Outcome::Answered(Answer::Value(Some((value, revision))))) => {
                (cell.value == Some(*value)).then(|| cell.at(*revision)).flatten()
            }
            (Call::Put { value, .. }, Outcome::Answered(Answer::Written(revision))) => {
                cell.written(Some(*value), *revision)
            }
            (Call::Put { value, .. }, Outcome::Unknown) => cell.written(Some(*value), None),
            (Call::PutIf { value, revision, .. }, Outcome::Answered(Answer::Written(at))) => {
                cell.compared(*revision).and_then(|cell| cell.written(Some(*value), *at))
            }
            (Call::PutIf { value, revision, .. }, Outcome::Unknown) => {
                cell.compared(*revision).and_then(|cell| cell.written(Some(*value), None))
            }
            (Call::PutIf { revision, .. }, Outcome::Answered(Answer::NotEqual)) => {
                let equal = match cell.value {
                    None => *revision == 0,
                    Some(_) => cell.exact && cell.revision == *revision,
                };
                (!equal).then(|| cell.clone())
            }
            // Removing what is not there changes nothing and raises nothing.
            (Call::Delete { .. }, _) if cell.value.is_none() => Some(cell.clone()),
            (Call::Delete { .. }, Outcome::Answered(Answer::Written(revision))) => {
                cell.written(None, *revision)
            }
            (Call::Delete { .. }, Outcome::Unknown) => cell.written(None, None),
            // A refused write changes nothing; why it was refused is `fence_never_falls`' business.
            (_, Outcome::Answered(Answer::Fenced)) => Some(cell.clone()),
            _ => None,
        };
        next.into_iter().collect()
    }

    fn matters(&self, unknown: &Operation) -> bool {
        !matches!(unknown.call, Call::Get { .. })
    }
}
