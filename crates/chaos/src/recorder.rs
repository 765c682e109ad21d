//! Reads the event lines of the processes and builds a history from them. `emit.rs` writes the lines.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::ChildStdout;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_checker::{
    Call, FenceStep, History, Operation, Outcome, PermitSpan, ProcessFailure, Response, SessionSpan,
};

use crate::time::now;

/// What has been sent so far. Clones are the same recorder.
#[derive(Clone, Default)]
pub struct Recorder(Arc<Mutex<Inside>>);

#[derive(Default)]
struct Inside {
    history: History,
    /// Operations and permits under way, by process and number.
    calls: BTreeMap<(u32, u64), (u64, Call)>,
    permits: BTreeMap<(u32, u64), PermitSpan>,
    /// When processes were killed: nothing of them was out after that.
    killed: BTreeMap<u32, u64>,
    /// Processes whose clocks are wrong beyond what anybody promises.
    excused: BTreeSet<u32>,
    /// Rows that the ledger is known to have taken.
    acknowledged: Vec<u64>,
    /// What came of writes to the ledger, by word.
    entries: BTreeMap<String, u64>,
    answered_last: Option<u64>,
    unreadable: u64,
}

/// Everything that was recorded.
pub struct Recording {
    /// The history, without what the ledger says.
    pub history: History,
    /// Rows that were acknowledged to writers.
    pub acknowledged: Vec<u64>,
    /// What came of writes to the ledger, by word.
    pub entries: BTreeMap<String, u64>,
    /// Lines that could not be read: a process that is killed leaves half a line behind.
    pub unreadable: u64,
}

impl Recorder {
    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what one process tells until it ends.
    pub fn listen(&self, process: u32, lines: ChildStdout) {
        let recorder = self.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(lines).lines().map_while(Result::ok) {
                recorder.receive(process, &line);
            }
            recorder.inside().died(process, now());
        });
    }

    /// Takes in one line.
    pub fn receive(&self, process: u32, line: &str) {
        let mut inside = self.inside();
        if inside.take_in(process, line).is_none() {
            inside.unreadable += 1;
        }
    }

    /// This process is being killed: from now on it does nothing.
    pub fn killed(&self, process: u32) {
        self.inside().killed.insert(process, now());
    }

    /// No rule about time speaks of this process: its clocks are wrong beyond rho.
    pub fn excuse(&self, process: u32) {
        self.inside().excused.insert(process);
    }

    /// When anybody was last answered.
    pub fn answered_last(&self) -> Option<u64> {
        self.inside().answered_last
    }

    /// The processes that were granted something since then.
    pub fn granted_since(&self, since: u64) -> BTreeSet<u32> {
        let inside = self.inside();
        let granted = inside.history.operations.iter().rev().filter(|operation| {
            operation.invoked >= since && matches!(operation.outcome, Outcome::Answered(Response::Granted(_)))
        });
        granted.map(|operation| operation.process).collect()
    }

    /// The whole recorder, once every process has ended.
    pub fn finish(&self) -> Recording {
        let mut inside = self.inside();
        let open: BTreeSet<u32> =
            inside.calls.keys().chain(inside.permits.keys()).map(|(process, _)| *process).collect();
        for process in open {
            inside.died(process, now());
        }
        let excused = std::mem::take(&mut inside.excused);
        let mut history = std::mem::take(&mut inside.history);
        for permit in &mut history.permits {
            permit.excused = excused.contains(&permit.process);
        }
        Recording {
            history,
            acknowledged: std::mem::take(&mut inside.acknowledged),
            entries: std::mem::take(&mut inside.entries),
            unreadable: inside.unreadable,
        }
    }
}

impl Inside {
    fn take_in(&mut self, process: u32, line: &str) -> Option<()> {
        let mut words = line.split_whitespace();
        let what = words.next()?;
        let mut number = || words.next()?.parse::<u64>().ok();
        match what {
            "begin" => {
                let (id, at) = (number()?, number()?);
                let call = read_call(&mut words)?;
                self.calls.insert((process, id), (at, call));
            }
            "end" => {
                let (id, ended) = (number()?, number()?);
                let outcome = read_outcome(&mut words)?;
                let (invoked, call) = self.calls.remove(&(process, id))?;
                if matches!(outcome, Outcome::Answered(_)) {
                    self.answered_last = self.answered_last.max(Some(ended));
                }
                self.history.operations.push(Operation { process, call, invoked, ended, outcome });
            }
            "permit" => {
                let (id, from, until) = (number()?, number()?, number()?);
                let (resource, token) = (words.next()?.into(), words.next()?.parse().ok()?);
                let span = PermitSpan { process, resource, token, from, until, excused: false };
                self.permits.insert((process, id), span);
            }
            "permitend" => {
                let (id, at) = (number()?, number()?);
                let mut span = self.permits.remove(&(process, id))?;
                span.until = span.until.min(at);
                self.history.permits.push(span);
            }
            "alive" => {
                let (from, until) = (number()?, number()?);
                let (resource, token) = (words.next()?.into(), words.next()?.parse().ok()?);
                let span = PermitSpan { process, resource, token, from, until, excused: false };
                self.history.permits.push(span);
            }
            "takenback" => {
                let at = number()?;
                let (resource, token) = (words.next()?, words.next()?);
                let why = format!("the acknowledged lease of {resource} under token {token} was taken back");
                self.history.failures.push(ProcessFailure { node: None, at, why, excused: false });
            }
            "session" => {
                let (from, until) = (number()?, number()?);
                let lost = words.next()? == "true";
                self.history.sessions.push(SessionSpan { process, from, until, healthy: false, lost });
            }
            "entry" => {
                let at = number()?;
                let scope = words.next()?.into();
                let (token, id) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
                let word = words.next()?;
                match word {
                    "accepted" => self.acknowledged.push(id),
                    // What was accepted is read from the ledger itself.
                    "stale" => {
                        self.history.fence_steps.push(FenceStep { scope, token, at, accepted: false });
                    }
                    _ => {}
                }
                *self.entries.entry(word.to_owned()).or_default() += 1;
            }
            _ => return None,
        }
        Some(())
    }

    /// What a dead process had begun is unknown; its permits died with it.
    fn died(&mut self, process: u32, at: u64) {
        let at = self.killed.get(&process).map_or(at, |killed| at.min(*killed));
        let under_way: Vec<_> = self.calls.keys().copied().filter(|(whose, _)| *whose == process).collect();
        for (invoked, call) in under_way.iter().filter_map(|key| self.calls.remove(key)) {
            let outcome = Outcome::Unknown;
            self.history.operations.push(Operation { process, call, invoked, ended: u64::MAX, outcome });
        }
        let out: Vec<_> = self.permits.keys().copied().filter(|(whose, _)| *whose == process).collect();
        for mut span in out.iter().filter_map(|key| self.permits.remove(key)) {
            span.until = span.until.min(at);
            self.history.permits.push(span);
        }
    }
}

fn read_call<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<Call> {
    let (what, subject) = (words.next()?, words.next()?);
    let mut number = || words.next()?.parse::<u64>().ok();
    Some(match what {
        "acquire" => Call::Acquire { resource: subject.into() },
        "release" => Call::Release { resource: subject.into(), token: number()? },
        "put" => {
            let (value, token) = (number()?, number());
            Call::Put { key: subject.into(), value, token }
        }
        "get" => Call::Get { key: subject.into() },
        "look" => Call::Look { resource: subject.into() },
        _ => return None,
    })
}

fn read_outcome<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<Outcome> {
    let what = words.next()?;
    let mut number = || words.next()?.parse::<u64>().ok();
    Some(Outcome::Answered(match what {
        "granted" => Response::Granted(number()?),
        "held" => Response::Held,
        "over" => Response::Released(false),
        "written" => Response::Written(number()),
        "fenced" => Response::Fenced,
        "value" => Response::Value(Some((number()?, number()?))),
        "none" => Response::Value(None),
        "heldby" => Response::HeldBy(number()?),
        "free" => Response::Free(number()),
        "failed" => return Some(Outcome::Failed),
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_begun_and_never_ended_is_unknown() {
        let recorder = Recorder::default();
        recorder.receive(1, "begin 7 100 acquire r");
        recorder.receive(1, "begin 8 110 put k 5 3");
        recorder.receive(1, "end 8 120 written 9");
        recorder.receive(1, "begi");
        let finished = recorder.finish();
        let outcomes: Vec<_> = finished.history.operations.iter().map(|op| (op.ended, &op.outcome)).collect();
        assert_eq!(
            outcomes,
            [(120, &Outcome::Answered(Response::Written(Some(9)))), (u64::MAX, &Outcome::Unknown)]
        );
        assert_eq!(finished.unreadable, 1);
    }

    #[test]
    fn a_permit_ends_with_its_deadline_its_drop_or_its_process() {
        let recorder = Recorder::default();
        recorder.receive(1, "permit 1 10 1000 r 4");
        recorder.receive(1, "permitend 1 500");
        recorder.receive(1, "permit 2 600 1000 r 4");
        recorder.receive(1, "permitend 2 5000");
        recorder.killed(2);
        recorder.receive(2, "permit 1 20 18446744073709551615 r 5");
        let finished = recorder.finish();
        let ends: Vec<u64> = finished.history.permits.iter().map(|permit| permit.until).collect();
        assert_eq!(ends[..2], [500, 1000]);
        assert!(ends[2] <= now(), "it died");
    }

    #[test]
    fn only_what_the_ledger_refused_is_taken_from_what_writers_tell() {
        let recorder = Recorder::default();
        recorder.receive(1, "entry 5 r 1 77 accepted");
        recorder.receive(1, "entry 6 r 1 78 stale");
        let finished = recorder.finish();
        assert_eq!(finished.acknowledged, [77]);
        assert_eq!(finished.history.fence_steps.len(), 1);
        assert!(!finished.history.fence_steps[0].accepted);
    }
}
