//! Why a command failed, and how that is reported: what happened, why, and what to do next. The exit codes
//! are in `exit.rs`.

use std::io;

use serde_json::{Value, json};
use tenure_client::{ApiError, CallError, Code, CredentialError, Effect};
use tenure_wire::json::ErrorBody;

use crate::exit::Exit;
use crate::output::Output;
use crate::render::words::span;
use crate::shapes;

/// Why a command failed.
#[derive(Debug)]
pub enum CommandError {
    /// The store refused, or could not be asked.
    Call(CallError),
    /// What the command found out could not be written.
    Output(io::Error),
    /// Anything else, in words.
    Said {
        /// How the process ends.
        exit: Exit,
        /// What happened, and why.
        message: String,
        /// What to do next.
        hint: Option<String>,
    },
}

impl From<CredentialError> for CommandError {
    fn from(error: CredentialError) -> CommandError {
        let hint =
            "name a credential file with --credential or TENURE_CREDENTIAL; `tenure auth new` writes one";
        CommandError::with_hint(Exit::Usage, error.to_string(), hint)
    }
}

impl CommandError {
    /// A failure in words.
    pub fn said(exit: Exit, message: impl Into<String>) -> CommandError {
        CommandError::Said { exit, message: message.into(), hint: None }
    }

    /// The same, with the next step.
    pub fn with_hint(exit: Exit, message: impl Into<String>, hint: impl Into<String>) -> CommandError {
        CommandError::Said { exit, message: message.into(), hint: Some(hint.into()) }
    }

    /// How the process ends.
    pub fn exit(&self) -> Exit {
        match self {
            CommandError::Call(error) => Exit::of_call(error),
            // Whoever closed the pipe has seen enough, as `head` does.
            CommandError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Done,
            CommandError::Output(_) => Exit::Other,
            CommandError::Said { exit, .. } => *exit,
        }
    }

    /// Says it on stderr.
    pub fn tell(&self, output: &Output) {
        match self {
            CommandError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            _ if output.is_json() => output.talk_json(&self.as_json()),
            _ => output.complain(&self.words()),
        }
    }

    /// What happened, why, and what to do next.
    pub fn words(&self) -> String {
        match self {
            CommandError::Call(CallError::Refused(refused)) => words_of_refusal(refused),
            CommandError::Call(error @ CallError::Unreachable { .. }) => {
                format!("{error}\n  start one with `tenure serve`, or name others with --endpoints")
            }
            CommandError::Call(error) => match error.effect() {
                Effect::NotApplied => format!("{error}; nothing was changed"),
                _ => format!("{error}\n  it may or may not have been done: look before asking again"),
            },
            CommandError::Output(error) => format!("the output cannot be written: {error}"),
            CommandError::Said { message, hint: None, .. } => message.clone(),
            CommandError::Said { message, hint: Some(hint), .. } => format!("{message}\n  {hint}"),
        }
    }

    fn as_json(&self) -> Value {
        let plain = |code: &str, message: String, effect: Effect| json!({"error": {"code": code, "message": message, "effect": shapes::value(&effect)}});
        match self {
            CommandError::Call(CallError::Refused(refused)) => {
                shapes::value(&ErrorBody { error: refused.clone() })
            }
            CommandError::Call(error) => plain("unreachable", error.to_string(), error.effect()),
            CommandError::Output(error) => plain("output", error.to_string(), Effect::Unknown),
            CommandError::Said { message, hint, .. } => {
                let mut said = plain("failed", message.clone(), Effect::NotApplied);
                if let Some(hint) = hint {
                    said["error"]["hint"] = hint.as_str().into();
                }
                said
            }
        }
    }
}

/// A refusal in the words of the command line: where a flag is the next step, the flag is named.
fn words_of_refusal(refused: &ApiError) -> String {
    let flag = match refused.code {
        Code::Held | Code::Delayed => match refused.about.waited_ms {
            Some(waited) if waited > 0 => Some(format!(
                "gave up after {} in the queue; wait longer with --wait, or see who blocks with `tenure explain`",
                span(waited)
            )),
            _ => Some("add --wait to queue".to_owned()),
        },
        Code::TooOld => refused
            .about
            .revision
            .map(|revision| format!("read the present state with `tenure ls`, then watch --from {revision}")),
        _ => None,
    };
    match flag {
        Some(flag) => format!("{refused}; {flag}"),
        None if refused.hint.is_empty() => refused.to_string(),
        None => format!("{refused}\n  {}", refused.hint),
    }
}

impl From<CallError> for CommandError {
    fn from(error: CallError) -> CommandError {
        CommandError::Call(error)
    }
}

impl From<io::Error> for CommandError {
    fn from(error: io::Error) -> CommandError {
        CommandError::Output(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use tenure_client::{Tried, proto};

    fn held(waited_ms: u64) -> CommandError {
        let detail = proto::Error {
            code: "held".into(),
            message: "settlement/cron is held by node-3 for another 4.2s".into(),
            hint: "the store's own hint".into(),
            effect: proto::Effect::NotApplied.into(),
            resource: "settlement/cron".into(),
            holder: "node-3".into(),
            remaining_ms: Some(4200),
            waited_ms: Some(waited_ms),
            token: Some(7),
            ..Default::default()
        };
        CommandError::Call(CallError::Refused(detail.into()))
    }

    fn tried() -> Vec<Tried> {
        let endpoint = "127.0.0.1:7400".parse().expect("an endpoint");
        vec![Tried { endpoint, why: "Connection refused (os error 111)".into() }]
    }

    #[test]
    fn a_held_lease_names_holder_time_and_flag() {
        expect!["settlement/cron is held by node-3 for another 4.2s; add --wait to queue"]
            .assert_eq(&held(0).words());
        expect!["settlement/cron is held by node-3 for another 4.2s; gave up after 10s in the queue; wait longer with --wait, or see who blocks with `tenure explain`"]
            .assert_eq(&held(10_000).words());
    }

    #[test]
    fn json_errors_look_like_those_of_the_http_surface() {
        expect![[r#"{"error":{"code":"held","effect":"not_applied","hint":"the store's own hint","holder":"node-3","message":"settlement/cron is held by node-3 for another 4.2s","remaining_ms":4200,"resource":"settlement/cron","token":7,"waited_ms":0}}"#]]
            .assert_eq(&held(0).as_json().to_string());
    }

    #[test]
    fn silence_says_whether_it_may_have_happened() {
        let nobody = CommandError::Call(CallError::Unreachable { tried: tried() });
        expect![[r#"
            no store could be reached (127.0.0.1:7400: Connection refused (os error 111))
              start one with `tenure serve`, or name others with --endpoints"#]]
        .assert_eq(&nobody.words());
        let unknown = CallError::Unanswered { tried: tried(), effect: Effect::Unknown };
        assert!(CommandError::Call(unknown).words().contains("may or may not have been done"));
        let read = CallError::Unanswered { tried: tried(), effect: Effect::NotApplied };
        assert!(CommandError::Call(read).words().contains("nothing was changed"));
    }

    #[test]
    fn a_closed_pipe_is_no_error() {
        let closed = CommandError::Output(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(closed.exit(), Exit::Done);
        let full = CommandError::Output(io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!(full.exit(), Exit::Other);
    }
}
