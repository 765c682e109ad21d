//! `tenure.v1.Stream`: many sessions over one connection, in both directions.
//!
//! Commands and renewals have a stream each, so that bulk never delays a heartbeat. Both prove a session once,
//! by its whole id, and then name it by its public number. Neither holds a rule about leases: frames become
//! commands, answers and events become frames.

mod commands;
mod outbox;
mod renewals;

use std::sync::Arc;

use tenure_wire::{ApiError, Code, proto};
use tonic::{Status, Streaming};

use super::Answers;
use crate::context::CallContext;
use crate::front::{Api, CODE_HEADER};

pub(crate) async fn commands(
    api: Arc<Api>,
    context: CallContext,
    frames: Streaming<proto::ClientFrames>,
) -> Result<Answers<proto::ServerFrames>, ApiError> {
    let (outbox, answers) = outbox::outbox();
    tokio::spawn(commands::serve(api, context, frames, outbox));
    Ok(Box::pin(answers))
}

pub(crate) async fn renewals(
    api: Arc<Api>,
    context: CallContext,
    frames: Streaming<proto::RenewalFrames>,
) -> Result<Answers<proto::RenewalAnswers>, ApiError> {
    Ok(Box::pin(renewals::serve(api, context, frames)))
}

/// What a client sent that is no message, sent to it as the end of its stream. If its connection broke nobody receives it.
fn unreadable(status: &Status) -> ApiError {
    if status.metadata().contains_key(CODE_HEADER) {
        // The front has refused it, in its own words.
        return status.into();
    }
    ApiError::new(Code::InvalidBody, format!("a message of this stream cannot be read: {}", status.message()))
        .hint("send the messages of tenure.v1 as its proto files describe them")
}
