//! What the messages of the session stream mean to a client: which commands may be sent twice, and what a push says
//! to a session. How values look as messages is `tenure_wire`'s.

use tenure_core::{Command, Operation, Register, RegisterKey, Revision, SessionId};
use tenure_wire::grpc::{self, Push};
use tenure_wire::proto::server_frame::Content;
use tenure_wire::{ApiError, proto};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::store::{LeaseInfo, SessionEvent};

/// What is sent on a stream.
pub(super) fn outgoing<T>(waiting: mpsc::Receiver<T>) -> ReceiverStream<T> {
    ReceiverStream::new(waiting)
}

/// Whether sending a command twice does what sending it once does.
pub(super) fn is_repeatable(command: &Command) -> bool {
    match command {
        Command::Write(write) => write.by.is_some_and(|by| by.number.is_some()) || only_reads(&write.then),
        Command::Refused { .. } => false,
        _ => true,
    }
}

fn only_reads(operations: &[Operation]) -> bool {
    operations.iter().all(|operation| matches!(operation, Operation::Get { .. }))
}

/// What a push says to the session; `None` for what does not concern it.
pub(super) fn session_event(content: Content, session: SessionId) -> Option<SessionEvent> {
    Some(match grpc::read_push(content, session)? {
        // Granted and ended again meanwhile, or unreadable: the number is asked, and answers.
        Push::Granted { number, grants } if grants.is_empty() => SessionEvent::Unqueued { number: number? },
        Push::Granted { number, grants } => SessionEvent::Granted { number: number?, grants },
        Push::Unqueued { number } => SessionEvent::Unqueued { number: number? },
        Push::Noticed { token, why } => SessionEvent::Noticed { token, why },
        Push::Ended { token, why } => SessionEvent::Ended { token, why },
        Push::Closed { why } => SessionEvent::Closed { why },
    })
}

/// A register that does not exist.
pub(super) fn absent(key: RegisterKey) -> Register {
    Register {
        key,
        value: None,
        create_revision: Revision::default(),
        mod_revision: Revision::default(),
        version: 0,
        session: None,
        guard: None,
    }
}

/// Who holds a resource, as it was answered.
pub(super) fn lease_info(answer: proto::LeaseGetResponse) -> Result<LeaseInfo, ApiError> {
    let lease = answer.lease.ok_or_else(|| grpc::unreadable("the answer has no lease"))?;
    Ok(LeaseInfo::new(grpc::read_lease(lease)?, Revision::new(answer.revision)))
}
