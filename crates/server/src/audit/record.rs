//! What one line of the audit log says, and which calls get one.
//!
//! A line has who, from where, what, on which name, and what came of it. It never has a secret or a value: a session
//! goes by its public number, a credential by its id, a register by its key.

use serde::Serialize;
use tenure_core::{
    AcquireBy, Command, CredentialId, Identity, Operation, RegisterKey, SessionNumber, Verb, WallTime,
};
use tenure_wire::{Code, words};

use crate::call_table::{CallRow, Cost};

/// Which calls are recorded, beyond those that always are: what was denied, and what manages, operates or grants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuditScope {
    /// No others.
    #[default]
    Sensitive,
    /// All others, too, but for renewals that were answered and pages that need no right.
    All,
}

/// What came of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// It is about to be done; what came of it is another line. Only under `--audit-strict`.
    Asked,
    /// It was allowed and done.
    Done,
    /// It was allowed, and refused or failed for another reason.
    Failed,
    /// It was not allowed.
    Denied,
}

impl Verdict {
    /// What an answer's code comes to; `None` is an answer without an error.
    pub fn of(code: Option<Code>) -> Verdict {
        match code {
            None => Verdict::Done,
            Some(Code::Unauthenticated | Code::Forbidden | Code::ForeignOrigin) => Verdict::Denied,
            Some(_) => Verdict::Failed,
        }
    }
}

/// What a call is about, as far as its surface has found out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Subject {
    /// The resource, register, policy or credential; the first of several.
    pub name: Option<String>,
    /// The public number of the session that asks.
    pub session: Option<u64>,
}

impl Subject {
    /// What a command is about.
    pub fn of(command: &Command) -> Subject {
        let (_, command) = command.attributed();
        let (name, session) = match command {
            Command::Open(open) => (Some(open.holder.to_string()), None),
            Command::Close { by, .. } | Command::Cancel { by, .. } => (None, Some(by.session.number)),
            Command::Acquire(acquire) => {
                let session = match &acquire.by {
                    AcquireBy::Session(by) => Some(by.session.number),
                    AcquireBy::Opening(_) => None,
                };
                (acquire.resources.first().map(ToString::to_string), session)
            }
            Command::CancelNonce { .. } => (None, None),
            Command::Undo { session, .. } => (None, session.map(|session| session.number)),
            Command::Release { by, resource, .. } | Command::Transfer { by, resource, .. } => {
                (Some(resource.to_string()), Some(by.session.number))
            }
            Command::Revoke { resource, .. }
            | Command::Barrier { resource }
            | Command::RemoveFence { resource, .. }
            | Command::SetKind { resource, .. } => (Some(resource.to_string()), None),
            Command::Seen { session, .. } | Command::Paused { session, .. } => (None, Some(session.number)),
            Command::Write(write) => {
                let first = write.then.iter().chain(&write.otherwise).find_map(|operation| match operation {
                    Operation::Put { key, .. } | Operation::Delete { key, .. } => Some(key_text(key)),
                    Operation::Get { .. } => None,
                });
                (first, None)
            }
            Command::Arm { scope, .. } | Command::Refused { scope, .. } => (Some(scope.to_string()), None),
            Command::Rebind { key, .. } => (Some(key_text(key)), None),
            Command::PublishKey { kid, .. } | Command::WithdrawKey { kid } => (Some(kid.to_string()), None),
            Command::PutCredential(put) => (Some(format!("{} {}", put.name, put.id)), None),
            Command::RevokeCredential { id, .. } => (Some(id.to_string()), None),
            Command::PutPolicy(put) => (Some(put.name.to_string()), None),
            Command::RemovePolicy { name, .. } => (Some(name.to_string()), None),
            Command::SetEnforced { enforced } => (Some(format!("enforced={enforced}")), None),
            Command::As(_)
            | Command::BecameLeader { .. }
            | Command::Configure(_)
            | Command::Restore { .. }
            | Command::RestoreBegin(_)
            | Command::RestorePiece(_)
            | Command::RestoreCommit { .. }
            | Command::Upgrade { .. } => (None, None),
        };
        Subject { name, session: session.map(SessionNumber::get) }
    }
}

/// A register's key is any bytes.
fn key_text(key: &RegisterKey) -> String {
    String::from_utf8_lossy(key.as_bytes()).into_owned()
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct AuditRecord {
    /// When, as RFC 3339.
    pub time: String,
    /// The node that answered.
    pub node: u64,
    /// Who asked: `anyone` for whoever did not prove it.
    pub identity: String,
    /// The credential that proved it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
    /// The address that the call came from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The call, as in metrics.
    pub call: &'static str,
    /// The right that it needs.
    pub verb: &'static str,
    /// What it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What came of it.
    pub verdict: Verdict,
    /// The code of the answer, unless it was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    /// The policy that decided, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The public number of the session that asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<u64>,
    /// How many more like this one there were since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeats: Option<u64>,
}

/// Bytes of any text in a line. Names are shorter; what a stranger made up need not be.
const TEXT_BYTES_MAX: usize = 1_024;

impl AuditRecord {
    /// The line of a call. `code` is that of its error, if it has one.
    #[expect(clippy::too_many_arguments, reason = "each is one field of the line")]
    pub fn new(
        at: WallTime,
        node: u64,
        identity: &Identity,
        source: Option<&str>,
        row: &CallRow,
        subject: &Subject,
        code: Option<Code>,
        policy: Option<&str>,
    ) -> AuditRecord {
        AuditRecord {
            time: words::calendar(at),
            node,
            identity: identity.to_string(),
            credential: identity.credential().map(|id: CredentialId| id.to_string()),
            source: source.map(str::to_owned),
            call: row.name,
            verb: row.verb.as_str(),
            name: subject.name.as_deref().map(bounded),
            verdict: Verdict::of(code),
            code: code.map(Code::as_str),
            policy: policy.map(bounded),
            session: subject.session,
            repeats: None,
        }
    }

    /// As it is written: one line, whatever is in it.
    pub fn line(&self) -> String {
        let mut line = serde_json::to_string(self).expect("a record is made of text and numbers");
        line.push('\n');
        line
    }
}

fn bounded(text: &str) -> String {
    let ends = (0..=TEXT_BYTES_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    text[..ends.unwrap_or_default()].to_owned()
}

/// Whether a call is recorded before anybody knows what comes of it.
pub(crate) fn is_sensitive(scope: AuditScope, row: &CallRow) -> bool {
    match row.verb {
        Verb::Manage | Verb::Operate | Verb::Grant => true,
        // What everybody may ask for and the state then judges, such as giving up a credential.
        Verb::Public => row.cost == Cost::Command,
        Verb::Read | Verb::Hold | Verb::Write | Verb::Observe => {
            scope == AuditScope::All && !row.cost.is_renewal() && row.cost != Cost::Page
        }
    }
}

/// Whether a call with this result is recorded.
pub(crate) fn is_recorded(scope: AuditScope, row: &CallRow, verdict: Verdict) -> bool {
    let refused_renewal = scope == AuditScope::All && row.cost.is_renewal() && verdict != Verdict::Done;
    verdict == Verdict::Denied || refused_renewal || is_sensitive(scope, row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call_table::Call;

    fn record(identity: &Identity, call: Call, subject: &Subject, code: Option<Code>) -> AuditRecord {
        let at = WallTime::from_unix_millis(1_795_012_345_678);
        AuditRecord::new(at, 2, identity, Some("10.0.0.9:5123"), call.row(), subject, code, Some("pay-team"))
    }

    #[test]
    fn a_line_is_as_it_was_promised() {
        let identity = Identity::Named {
            name: "cred/pay-worker".parse().unwrap(),
            credential: Some("00010203ffeeddcc".parse().unwrap()),
        };
        let subject = Subject { name: Some("pay/cron".into()), session: Some(7) };
        assert_eq!(
            record(&identity, Call::LeasesRevoke, &subject, Some(Code::Forbidden)).line(),
            "{\"time\":\"2026-11-18T14:32:25.678Z\",\"node\":2,\"identity\":\"cred/pay-worker\",\
             \"credential\":\"00010203ffeeddcc\",\"source\":\"10.0.0.9:5123\",\"call\":\"leases.revoke\",\
             \"verb\":\"manage\",\"name\":\"pay/cron\",\"verdict\":\"denied\",\"code\":\"forbidden\",\
             \"policy\":\"pay-team\",\"session\":7}\n"
        );
    }

    /// Whoever chooses a name must not be able to write a second line with it.
    #[test]
    fn a_name_cannot_forge_a_line() {
        let subject = Subject { name: Some("a\n{\"verdict\":\"done\"}\r\u{2028}\"".into()), session: None };
        let line = record(&Identity::Anyone, Call::LeasesGet, &subject, None).line();
        assert_eq!(line.matches('\n').count(), 1, "{line}");
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["name"], "a\n{\"verdict\":\"done\"}\r\u{2028}\"");
        let long = Subject { name: Some("ü".repeat(5_000)), session: None };
        assert!(record(&Identity::Anyone, Call::LeasesGet, &long, None).line().len() < 2_000);
    }

    #[test]
    fn what_is_denied_and_what_is_sensitive_is_always_recorded() {
        use AuditScope::{All, Sensitive};
        for call in Call::ALL {
            let row = call.row();
            assert!(is_recorded(Sensitive, row, Verdict::Denied), "{}", row.name);
            let sensitive = match row.verb {
                Verb::Manage | Verb::Operate | Verb::Grant => true,
                Verb::Public => row.name == "auth.revoke_credential",
                _ => false,
            };
            assert_eq!(is_recorded(Sensitive, row, Verdict::Done), sensitive, "{}", row.name);
            assert_eq!(is_recorded(Sensitive, row, Verdict::Failed), sensitive, "{}", row.name);
        }
        assert!(is_recorded(All, Call::LeasesGet.row(), Verdict::Done));
        assert!(!is_recorded(All, Call::SessionsRenew.row(), Verdict::Done));
        assert!(is_recorded(All, Call::SessionsRenew.row(), Verdict::Failed));
        assert!(!is_recorded(All, Call::PageHealth.row(), Verdict::Done));
    }
}
