//! A history as text, one line for each observation, so that it can be stored and judged again. It decides
//! nothing. Lines that begin with `#` are comments.

use std::fmt::{self, Write};
use std::str::SplitWhitespace;
use std::sync::Arc;

use crate::history::{
    Call, Death, FenceStep, Final, History, Operation, Outcome, PermitSpan, ProcessFailure, Response,
    SessionSpan, Sighting, Time, Wait,
};

/// The first line, with the version of the format.
const HEAD: &str = "tenure history 1";

impl History {
    /// Everything in it, one line each. Names must be without spaces, as those of resources, registers and
    /// scopes are.
    pub fn to_lines(&self) -> String {
        let mut text = String::from(HEAD) + "\n";
        // Writing into a string does not fail.
        let _ = self.write_lines(&mut text);
        text
    }

    fn write_lines(&self, text: &mut String) -> fmt::Result {
        for Operation { process, call, invoked, ended, outcome } in &self.operations {
            write!(text, "op {process} {invoked} {} ", moment(*ended))?;
            write_call(text, call)?;
            write_outcome(text, outcome)?;
        }
        for PermitSpan { process, resource, token, from, until, excused } in &self.permits {
            writeln!(text, "permit {process} {resource} {token} {from} {} {excused}", moment(*until))?;
        }
        for FenceStep { scope, token, at, accepted } in &self.fence_steps {
            writeln!(text, "fence {scope} {token} {at} {accepted}")?;
        }
        for SessionSpan { process, from, until, healthy, lost } in &self.sessions {
            writeln!(text, "session {process} {from} {} {healthy} {lost}", moment(*until))?;
        }
        for Death { resource, token, at, freed, bound } in &self.deaths {
            writeln!(text, "death {resource} {token} {at} {} {}", perhaps(*freed), moment(*bound))?;
        }
        for Wait { process, resource, since, granted, bound } in &self.waits {
            writeln!(text, "wait {process} {resource} {since} {} {}", perhaps(*granted), moment(*bound))?;
        }
        for Sighting { node, at, resource, holders, last_token, waiters } in &self.sightings {
            write!(text, "sighting {node} {at} {resource} {last_token} {waiters}")?;
            holders.iter().try_for_each(|token| write!(text, " {token}"))?;
            writeln!(text)?;
        }
        for Final { node, entries, state, last_token, registers } in &self.finals {
            write!(text, "final {node} {entries} {state:x} {last_token}")?;
            let mut registers = registers.iter();
            registers.try_for_each(|(key, value, revision)| write!(text, " {key} {value} {revision}"))?;
            writeln!(text)?;
        }
        for ProcessFailure { node, at, why, excused } in &self.failures {
            let why = why.replace('\\', "\\\\").replace('\n', "\\n");
            writeln!(text, "failure {} {at} {excused} {why}", perhaps(*node))?;
        }
        Ok(())
    }

    /// Reads what [`History::to_lines`] wrote. An error names the line.
    pub fn from_lines(text: &str) -> Result<History, String> {
        let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
        if lines.next().map(|(_, line)| line) != Some(HEAD) {
            return Err(format!("the first line is not {HEAD:?}"));
        }
        let mut history = History::default();
        for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            read_line(&mut history, line).ok_or_else(|| format!("line {number} says nothing: {line:?}"))?;
        }
        Ok(history)
    }
}

/// A moment, or `-` for the end of time.
fn moment(time: Time) -> String {
    perhaps((time != Time::MAX).then_some(time))
}

fn perhaps(number: Option<u64>) -> String {
    number.map_or("-".to_owned(), |number| number.to_string())
}

fn write_call(text: &mut String, call: &Call) -> fmt::Result {
    match call {
        Call::Acquire { resource } => write!(text, "acquire {resource}"),
        Call::Release { resource, token } => write!(text, "release {resource} {token}"),
        Call::Look { resource } => write!(text, "look {resource}"),
        Call::Put { key, value, token } => write!(text, "put {key} {value} {}", perhaps(*token)),
        Call::PutIf { key, value, revision } => write!(text, "put-if {key} {value} {revision}"),
        Call::Delete { key } => write!(text, "delete {key}"),
        Call::Get { key } => write!(text, "get {key}"),
    }
}

fn write_outcome(text: &mut String, outcome: &Outcome) -> fmt::Result {
    match outcome {
        Outcome::Failed => writeln!(text, " failed"),
        Outcome::Unknown => writeln!(text, " unknown"),
        Outcome::Answered(answer) => match answer {
            Response::Granted(token) => writeln!(text, " granted {token}"),
            Response::Held => writeln!(text, " held"),
            Response::Released(ended) => writeln!(text, " released {ended}"),
            Response::HeldBy(token) => writeln!(text, " held-by {token}"),
            Response::Free(last) => writeln!(text, " free {}", perhaps(*last)),
            Response::Written(revision) => writeln!(text, " written {}", perhaps(*revision)),
            Response::NotEqual => writeln!(text, " not-equal"),
            Response::Fenced => writeln!(text, " fenced"),
            Response::Value(None) => writeln!(text, " none"),
            Response::Value(Some((value, revision))) => writeln!(text, " value {value} {revision}"),
        },
    }
}

struct Words<'a>(SplitWhitespace<'a>);

impl<'a> Words<'a> {
    fn word(&mut self) -> Option<&'a str> {
        self.0.next()
    }

    fn name(&mut self) -> Option<Arc<str>> {
        self.word().map(Arc::from)
    }

    fn number(&mut self) -> Option<u64> {
        self.word()?.parse().ok()
    }

    fn process(&mut self) -> Option<u32> {
        self.word()?.parse().ok()
    }

    fn truth(&mut self) -> Option<bool> {
        self.word()?.parse().ok()
    }

    /// A number, or `-` for none; nothing at all is an error.
    fn perhaps(&mut self) -> Option<Option<u64>> {
        match self.word()? {
            "-" => Some(None),
            word => word.parse().ok().map(Some),
        }
    }

    fn moment(&mut self) -> Option<Time> {
        self.perhaps().map(|moment| moment.unwrap_or(Time::MAX))
    }

    fn call(&mut self) -> Option<Call> {
        let (what, name) = (self.word()?, self.name()?);
        Some(match what {
            "acquire" => Call::Acquire { resource: name },
            "release" => Call::Release { resource: name, token: self.number()? },
            "look" => Call::Look { resource: name },
            "put" => Call::Put { key: name, value: self.number()?, token: self.perhaps()? },
            "put-if" => Call::PutIf { key: name, value: self.number()?, revision: self.number()? },
            "delete" => Call::Delete { key: name },
            "get" => Call::Get { key: name },
            _ => return None,
        })
    }

    fn outcome(&mut self) -> Option<Outcome> {
        Some(Outcome::Answered(match self.word()? {
            "failed" => return Some(Outcome::Failed),
            "unknown" => return Some(Outcome::Unknown),
            "granted" => Response::Granted(self.number()?),
            "held" => Response::Held,
            "released" => Response::Released(self.truth()?),
            "held-by" => Response::HeldBy(self.number()?),
            "free" => Response::Free(self.perhaps()?),
            "written" => Response::Written(self.perhaps()?),
            "not-equal" => Response::NotEqual,
            "fenced" => Response::Fenced,
            "none" => Response::Value(None),
            "value" => Response::Value(Some((self.number()?, self.number()?))),
            _ => return None,
        }))
    }
}

fn read_line(history: &mut History, line: &str) -> Option<()> {
    let mut words = Words(line.split_whitespace());
    match words.word()? {
        "op" => {
            let (process, invoked, ended) = (words.process()?, words.number()?, words.moment()?);
            let (call, outcome) = (words.call()?, words.outcome()?);
            history.operations.push(Operation { process, call, invoked, ended, outcome });
        }
        "permit" => {
            let (process, resource, token) = (words.process()?, words.name()?, words.number()?);
            let (from, until, excused) = (words.number()?, words.moment()?, words.truth()?);
            history.permits.push(PermitSpan { process, resource, token, from, until, excused });
        }
        "fence" => {
            let (scope, token, at) = (words.name()?, words.number()?, words.number()?);
            history.fence_steps.push(FenceStep { scope, token, at, accepted: words.truth()? });
        }
        "session" => {
            let (process, from, until) = (words.process()?, words.number()?, words.moment()?);
            let (healthy, lost) = (words.truth()?, words.truth()?);
            history.sessions.push(SessionSpan { process, from, until, healthy, lost });
        }
        "death" => {
            let (resource, token, at) = (words.name()?, words.number()?, words.number()?);
            let (freed, bound) = (words.perhaps()?, words.moment()?);
            history.deaths.push(Death { resource, token, at, freed, bound });
        }
        "wait" => {
            let (process, resource, since) = (words.process()?, words.name()?, words.number()?);
            let (granted, bound) = (words.perhaps()?, words.moment()?);
            history.waits.push(Wait { process, resource, since, granted, bound });
        }
        "sighting" => {
            let (node, at, resource) = (words.number()?, words.number()?, words.name()?);
            let (last_token, waiters) = (words.number()?, words.number()?);
            let holders = words.0.by_ref().map(|word| word.parse().ok()).collect::<Option<_>>()?;
            history.sightings.push(Sighting { node, at, resource, holders, last_token, waiters });
        }
        "final" => {
            let (node, entries) = (words.number()?, words.number()?);
            let state = u128::from_str_radix(words.word()?, 16).ok()?;
            let last_token = words.number()?;
            let mut registers = Vec::new();
            while let Some(key) = words.name() {
                registers.push((key, words.number()?, words.number()?));
            }
            history.finals.push(Final { node, entries, state, last_token, registers });
        }
        "failure" => {
            let (node, at, excused) = (words.perhaps()?, words.number()?, words.truth()?);
            let why = line.splitn(5, ' ').nth(4)?;
            let why = why.split("\\\\").map(|part| part.replace("\\n", "\n")).collect::<Vec<_>>().join("\\");
            history.failures.push(ProcessFailure { node, at, why, excused });
            return Some(());
        }
        _ => return None,
    }
    words.word().is_none().then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(call: Call, ended: Time, outcome: Outcome) -> Operation {
        Operation { process: 7, call, invoked: 5, ended, outcome }
    }

    /// One of everything that can be seen.
    fn everything() -> History {
        let (resource, key): (Arc<str>, Arc<str>) = ("a/r".into(), "a/k".into());
        let (r, k) = (|| resource.clone(), || key.clone());
        let calls = [
            (Call::Acquire { resource: r() }, Outcome::Answered(Response::Granted(3))),
            (Call::Acquire { resource: r() }, Outcome::Answered(Response::Held)),
            (Call::Acquire { resource: r() }, Outcome::Failed),
            (Call::Release { resource: r(), token: 3 }, Outcome::Answered(Response::Released(true))),
            (Call::Look { resource: r() }, Outcome::Answered(Response::HeldBy(3))),
            (Call::Look { resource: r() }, Outcome::Answered(Response::Free(None))),
            (Call::Look { resource: r() }, Outcome::Answered(Response::Free(Some(3)))),
            (Call::Put { key: k(), value: 1, token: None }, Outcome::Answered(Response::Written(None))),
            (Call::Put { key: k(), value: 2, token: Some(3) }, Outcome::Answered(Response::Fenced)),
            (Call::PutIf { key: k(), value: 4, revision: 0 }, Outcome::Answered(Response::NotEqual)),
            (Call::Delete { key: k() }, Outcome::Answered(Response::Written(Some(9)))),
            (Call::Get { key: k() }, Outcome::Answered(Response::Value(None))),
            (Call::Get { key: k() }, Outcome::Answered(Response::Value(Some((1, 8))))),
        ];
        let mut operations: Vec<Operation> =
            calls.into_iter().map(|(call, outcome)| operation(call, 6, outcome)).collect();
        operations.push(operation(Call::Get { key: k() }, Time::MAX, Outcome::Unknown));
        let permit =
            PermitSpan { process: 7, resource: r(), token: 3, from: 1, until: Time::MAX, excused: true };
        let sighting =
            Sighting { node: 1, at: 2, resource: r(), holders: vec![3, 4], last_token: 4, waiters: 5 };
        let end = Final { node: 1, entries: 2, state: 0xfe, last_token: 4, registers: vec![(k(), 1, 8)] };
        let why = "it said \\nothing\nand fell over".to_owned();
        History {
            operations,
            permits: vec![permit],
            fence_steps: vec![FenceStep { scope: r(), token: 3, at: 4, accepted: true }],
            sessions: vec![SessionSpan { process: 7, from: 1, until: 2, healthy: true, lost: false }],
            deaths: vec![Death { resource: r(), token: 3, at: 4, freed: None, bound: 9 }],
            waits: vec![Wait { process: 7, resource: r(), since: 1, granted: Some(2), bound: Time::MAX }],
            sightings: vec![
                sighting,
                Sighting { node: 2, at: 3, resource: r(), holders: vec![], last_token: 0, waiters: 0 },
            ],
            finals: vec![end],
            failures: vec![ProcessFailure { node: None, at: 5, why, excused: false }],
        }
    }

    #[test]
    fn what_is_kept_is_read_again() {
        let history = everything();
        let lines = history.to_lines() + "# for people\n";
        assert_eq!(History::from_lines(&lines), Ok(history), "{lines}");
    }

    #[test]
    fn what_is_cut_short_or_strange_is_not_taken_for_a_history() {
        let lines = everything().to_lines();
        assert!(History::from_lines("").is_err());
        assert!(History::from_lines(lines.strip_prefix(HEAD).expect("a head")).is_err());
        for (number, line) in lines.lines().enumerate().skip(1) {
            // Of these the last words are as many as there are, or free text.
            if ["sighting", "final", "failure"].iter().any(|kind| line.starts_with(kind)) {
                continue;
            }
            let (short, _) = line.rsplit_once(' ').expect("several words");
            for strange in [short.to_owned(), format!("{line} 1"), format!("x{line}")] {
                let described = History::from_lines(&format!("{HEAD}\n{strange}\n"));
                assert!(described.is_err_and(|why| why.starts_with("line 2 ")), "line {number}: {strange}");
            }
        }
    }
}
