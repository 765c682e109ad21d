//! The one table that turns what happened into an exit code.

use std::process::ExitCode;

use tenure_client::{CallError, Code};

/// How the process ends. Scripts act on these numbers, so they never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Done = 0,
    /// Anything that has no code of its own.
    Other = 1,
    /// The command line, or something named on it, is not valid.
    Usage = 2,
    /// Somebody else holds it.
    Held = 3,
    /// The lease or its session has ended.
    Lost = 4,
    /// A newer token has been granted.
    Stale = 5,
    /// No store could be reached, or none answered in time.
    Unreachable = 6,
    /// There is no such thing, or it is free.
    NotFound = 7,
    /// The caller may not do this, or what it presented is not accepted.
    Denied = 8,
    /// Ended by SIGINT (Ctrl-C), in good order; the number that shells give it.
    Interrupted = 130,
    /// The same for SIGTERM.
    Terminated = 143,
}

impl Exit {
    /// The exit code of a call that failed.
    pub fn of_call(error: &CallError) -> Exit {
        match error {
            CallError::Refused(refused) => Exit::of_code(refused.code),
            CallError::Unreachable { .. } | CallError::Unanswered { .. } => Exit::Unreachable,
        }
    }

    /// The exit code of a refusal.
    fn of_code(code: Code) -> Exit {
        match code {
            Code::Held | Code::Delayed | Code::InUse => Exit::Held,
            Code::UnknownSession | Code::Lapsed | Code::NotHeld | Code::LeaseEnded => Exit::Lost,
            Code::StaleToken | Code::UnknownToken => Exit::Stale,
            Code::NoLeader | Code::ShuttingDown | Code::UnknownOutcome => Exit::Unreachable,
            Code::NotFound | Code::UnknownNode => Exit::NotFound,
            Code::Forbidden | Code::Unauthenticated => Exit::Denied,
            Code::InvalidTtl
            | Code::InvalidName
            | Code::InvalidSession
            | Code::InvalidToken
            | Code::InvalidNonce
            | Code::InvalidBody
            | Code::InvalidArgument => Exit::Usage,
            // Everything else is for people to read; a script can only stop.
            _ => Exit::Other,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// The exit code of `run` and `elect` for a failure of their own: apart from those of the commands that they
/// run.
pub fn of_own(exit: Exit) -> ExitCode {
    ExitCode::from(OWN + exit as u8)
}

const OWN: u8 = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_client::{Effect, proto};

    fn refused(code: &str) -> CallError {
        CallError::Refused(proto::Error { code: code.into(), ..Default::default() }.into())
    }

    #[test]
    fn the_numbers_are_those_of_the_design() {
        for (code, number) in [
            ("held", 3),
            ("delayed", 3),
            ("unknown_session", 4),
            ("lapsed", 4),
            ("not_held", 4),
            ("lease_ended", 4),
            ("stale_token", 5),
            ("no_leader", 6),
            ("shutting_down", 6),
            ("unknown_outcome", 6),
            ("not_found", 7),
            ("invalid_ttl", 2),
            ("invalid_name", 2),
            ("wrong_guard", 1),
            ("overloaded", 1),
            ("internal", 1),
            ("a_word_of_the_future", 1),
        ] {
            assert_eq!(Exit::of_call(&refused(code)) as u8, number, "{code}");
        }
        assert_eq!(Exit::of_call(&CallError::Unreachable { tried: vec![] }) as u8, 6);
        let unanswered = CallError::Unanswered { tried: vec![], effect: Effect::Unknown };
        assert_eq!(Exit::of_call(&unanswered) as u8, 6);
    }

    #[test]
    fn every_code_for_a_bad_argument_is_a_usage_error() {
        for code in Code::ALL {
            let invalid = code.as_str().starts_with("invalid_");
            assert_eq!(Exit::of_code(*code) == Exit::Usage, invalid, "{code}");
        }
    }
}
