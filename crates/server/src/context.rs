//! What every handler knows about the call that it serves, whichever surface it came through.

use std::sync::Arc;

use parking_lot::Mutex;
use tenure_core::{Answer, Command, Identity};
use tenure_wire::ApiError;

use crate::audit::{Audit, Audited, Subject};
use crate::auth::Share;
use crate::call_table::{Call, CallRow};
use crate::calls::failed;
use crate::connections::RequestGuard;
use crate::failure::Failure;
use crate::in_flight::InFlight;

/// A command of a session stream on its way, as the audit log will see it.
pub(crate) struct FrameRecord {
    audit: Arc<Audit>,
    identity: Identity,
    source: Option<Arc<str>>,
    row: &'static CallRow,
    subject: Subject,
}

impl FrameRecord {
    /// It was answered.
    pub fn answered(&self, answer: &Result<Answer, Failure>) {
        let FrameRecord { audit, identity, source, row, subject } = self;
        let call = Audited { identity, source: source.as_deref(), row, subject };
        let error = match answer {
            Ok(Ok(_)) => None,
            Ok(Err(refusal)) => Some(ApiError::from(refusal)),
            Err(failure) => Some(failed(failure.clone())),
        };
        let policy = error.as_ref().and_then(|error| error.about.policy.as_deref());
        audit.after(&call, error.as_ref().map(|error| error.code), policy);
    }
}

/// Who calls, and what.
#[derive(Clone, Debug)]
pub(crate) struct CallContext {
    /// Who it is from.
    pub identity: Identity,
    /// Until when that is to be believed, in milliseconds since 1970; of callers with a token only.
    pub identity_expires_ms: Option<u64>,
    /// The caller's share of this node, while the call is under way.
    pub share: Option<Arc<Share>>,
    /// The address that it came from.
    pub source: Option<Arc<str>>,
    /// What it is about, for the audit log; there is nothing to be noted without one.
    pub subject: Option<Arc<Mutex<Subject>>>,
    /// The call's row in the table.
    pub row: &'static CallRow,
    /// The request on its connection; tests hand requests over without one.
    pub connection: Option<Arc<RequestGuard>>,
    /// Where a session stream counts what it has in flight.
    pub in_flight: Option<Arc<InFlight>>,
}

impl CallContext {
    /// Where this stream counts what it has in flight.
    pub fn stream(&self) -> Arc<InFlight> {
        self.in_flight.clone().expect("the row of a stream has the cost of one")
    }

    /// Notes what the call is about.
    pub fn note(&self, command: &Command) {
        if let Some(subject) = &self.subject {
            *subject.lock() = Subject::of(command);
        }
    }

    /// How a command of a session stream is recorded once it is answered; nothing without an audit log.
    pub fn frame(&self, audit: &Arc<Audit>, command: &Command) -> Option<FrameRecord> {
        self.subject.as_ref()?;
        Some(FrameRecord {
            audit: audit.clone(),
            identity: self.identity.clone(),
            source: self.source.clone(),
            row: Call::of(command)?.row(),
            subject: Subject::of(command),
        })
    }

    /// The same caller, for another call that this one includes.
    pub fn within(&self, call: Call) -> CallContext {
        CallContext { row: call.row(), ..self.clone() }
    }
}
