//! Records what happens: the history that is judged, and a hash of every line, so that two runs of one seed
//! can be compared.

use std::fmt;
use std::hash::{DefaultHasher, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_checker::{Call, History, Operation, Outcome, Response};

use crate::coverage::Coverage;
use crate::host::ProcessClock;

/// The record of a run. Clones write into the same one.
#[derive(Clone)]
pub struct Record(Arc<Mutex<Inside>>);

struct Inside {
    history: History,
    coverage: Coverage,
    hash: DefaultHasher,
    /// The lines themselves, if they are wanted.
    lines: Option<Vec<String>>,
    next_value: u64,
    repeats: bool,
}

impl Record {
    /// An empty record, which keeps its lines or only their hash. Where what is said may be said again by
    /// others (`repeats`), a change that could not be made may be made later all the same: its outcome is
    /// unknown.
    pub fn new(keep_lines: bool, repeats: bool) -> Record {
        Record(Arc::new(Mutex::new(Inside {
            history: History::default(),
            coverage: Coverage::default(),
            hash: DefaultHasher::new(),
            lines: keep_lines.then(Vec::new),
            next_value: 1,
            repeats,
        })))
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a line.
    pub fn note(&self, at: u64, what: fmt::Arguments<'_>) {
        let line = format!("{:>10.3} {what}", at as f64 / 1_000.0);
        let mut inside = self.inside();
        inside.hash.write(line.as_bytes());
        if let Some(lines) = &mut inside.lines {
            lines.push(line);
        }
    }

    /// Writes into the history.
    pub fn history<T>(&self, write: impl FnOnce(&mut History) -> T) -> T {
        write(&mut self.inside().history)
    }

    /// Counts something.
    pub fn count(&self, count: impl FnOnce(&mut Coverage)) {
        count(&mut self.inside().coverage);
    }

    /// A value that nobody else writes.
    pub fn fresh_value(&self) -> u64 {
        let mut inside = self.inside();
        inside.next_value += 1;
        inside.next_value
    }

    /// Begins an operation. If it is dropped before its outcome is recorded, that is unknown.
    pub fn invoke(&self, process: u32, clock: &ProcessClock, call: Call) -> Invoked {
        let invoked = clock.truth();
        self.note(invoked, format_args!("p{process} {call:?}"));
        Invoked { record: self.clone(), clock: clock.clone(), process, invoked, call: Some(call) }
    }

    /// What was written, once everybody has stopped writing.
    pub fn take(&self) -> (History, Coverage, u64, Vec<String>) {
        let mut inside = self.inside();
        let (history, coverage) = (std::mem::take(&mut inside.history), inside.coverage.clone());
        (history, coverage, inside.hash.finish(), inside.lines.take().unwrap_or_default())
    }
}

/// An operation under way.
pub struct Invoked {
    record: Record,
    clock: ProcessClock,
    process: u32,
    invoked: u64,
    call: Option<Call>,
}

impl Invoked {
    /// It was answered.
    pub fn answered(self, answer: Response) {
        self.ended(Outcome::Answered(answer));
    }

    /// Its outcome is known.
    pub fn ended(mut self, outcome: Outcome) {
        let changes = !matches!(self.call, Some(Call::Look { .. } | Call::Get { .. }));
        if outcome == Outcome::Failed && changes && self.record.inside().repeats {
            return;
        }
        let ended = self.clock.truth();
        self.write(outcome, ended);
    }

    fn write(&mut self, outcome: Outcome, ended: u64) {
        let Some(call) = self.call.take() else { return };
        let process = self.process;
        if outcome != Outcome::Unknown {
            self.record.note(ended, format_args!("p{process} {call:?} -> {outcome:?}"));
        }
        let operation = Operation { process, call, invoked: self.invoked, ended, outcome };
        self.record.history(|history| history.operations.push(operation));
    }
}

impl Drop for Invoked {
    fn drop(&mut self) {
        self.write(Outcome::Unknown, u64::MAX);
    }
}
