//! Turns what agent programs report into a history, and has the checker judge it. Agents stamp with the
//! boot-time clock, which all processes of a machine share and which no lease rule compares across them.

use std::sync::Arc;

use serde_json::Value;
use tenure_checker::{Call, FenceStep, History, Operation, Outcome, PermitSpan, Response, judge};

/// What was reported so far.
#[derive(Default)]
pub struct Recorder {
    history: History,
    values: u64,
}

impl Recorder {
    /// Nothing yet.
    pub fn new() -> Recorder {
        Recorder::default()
    }

    /// A grant: the whole answer to an acquire.
    pub fn granted(&mut self, process: u32, resource: &str, answer: &Value) {
        let token = number(&answer["ok"]["token"]);
        self.history.operations.push(Operation {
            process,
            call: Call::Acquire { resource: resource.into() },
            invoked: number(&answer["from"]) / 1_000,
            ended: number(&answer["t"]) / 1_000,
            outcome: Outcome::Answered(Response::Granted(token)),
        });
    }

    /// A permit: `taken` and `until`, and when it was given back, if it was before that.
    pub fn permit(&mut self, process: u32, report: &Value) {
        let until = number(&report["until"]);
        let done = report["done"].as_u64().unwrap_or(until);
        self.history.permits.push(PermitSpan {
            process,
            resource: report["resource"].as_str().expect("a permit names its resource").into(),
            token: number(&report["token"]),
            from: number(&report["taken"]) / 1_000,
            until: until.min(done) / 1_000,
            excused: false,
        });
    }

    /// The events of a worker: its permits, and what its writes came to.
    pub fn worked(&mut self, process: u32, key: Option<&str>, events: &[Value]) {
        for event in events.iter().filter(|event| event["event"] == "worked") {
            self.permit(process, event);
            let Some(key) = key else { continue };
            let outcome = match event["revision"].as_u64() {
                Some(revision) => Outcome::Answered(Response::Written(Some(revision))),
                None if event["error"]["effect"] == "not_applied" => Outcome::Failed,
                None => Outcome::Unknown,
            };
            self.values += 1;
            self.history.operations.push(Operation {
                process,
                call: Call::Put { key: key.into(), value: self.values, token: event["token"].as_u64() },
                invoked: number(&event["write_from"]) / 1_000,
                ended: number(&event["done"]) / 1_000,
                outcome,
            });
        }
    }

    /// What a storage accepted, in its own order.
    pub fn accepted(&mut self, scope: &str, tokens: impl IntoIterator<Item = u64>) {
        let scope: Arc<str> = scope.into();
        for (at, token) in tokens.into_iter().enumerate() {
            self.history.fence_steps.push(FenceStep {
                scope: scope.clone(),
                token,
                at: at as u64,
                accepted: true,
            });
        }
    }

    /// How many permits were recorded.
    pub fn permits(&self) -> usize {
        self.history.permits.len()
    }

    /// What the checker finds wrong, one line each.
    pub fn violations(&self) -> Vec<String> {
        let judged = judge(&self.history);
        judged.violations.iter().map(|violation| format!("{}: {}", violation.rule, violation.what)).collect()
    }

    /// Fails with what the checker finds wrong.
    #[track_caller]
    pub fn assert_sound(&self) {
        let wrong = self.violations();
        assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), self.history.to_lines());
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}
