//! `tenure.v1.Stream`: many sessions over one connection, in both directions.
//!
//! Commands and renewals have a stream each, so that bulk never delays a heartbeat. Both prove a session once,
//! by its whole id, and then name it by its public number. Neither holds a rule about leases: frames become
//! commands, answers and events become frames.

mod commands;
mod outbox;
mod renewals;

use std::pin::Pin;
use std::sync::Arc;

use futures_util::Stream;
use tenure_wire::proto::{self, stream_server::Stream as StreamService};
use tenure_wire::{ApiError, Code};
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::{GrpcResult, Services};
use crate::connections::RequestGuard;

type Frames<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[async_trait]
impl StreamService for Services {
    type CommandsStream = Frames<proto::ServerFrames>;
    type RenewalsStream = Frames<proto::RenewalAnswers>;

    async fn commands(
        &self,
        request: Request<Streaming<proto::ClientFrames>>,
    ) -> GrpcResult<Self::CommandsStream> {
        let (outbox, frames) = outbox::outbox();
        let mark = request.extensions().get::<Arc<RequestGuard>>().cloned();
        tokio::spawn(commands::serve(self.0.clone(), request.into_inner(), outbox, mark));
        Ok(Response::new(Box::pin(frames)))
    }

    async fn renewals(
        &self,
        request: Request<Streaming<proto::RenewalFrames>>,
    ) -> GrpcResult<Self::RenewalsStream> {
        let mark = request.extensions().get::<Arc<RequestGuard>>().cloned();
        Ok(Response::new(Box::pin(renewals::serve(self.0.clone(), request.into_inner(), mark))))
    }
}

/// What a client sent that is no message, sent to it as the end of its stream. If its connection broke nobody receives it.
fn unreadable(status: &Status) -> ApiError {
    ApiError::new(Code::InvalidBody, format!("a message of this stream cannot be read: {}", status.message()))
        .hint("send the messages of tenure.v1 as its proto files describe them")
}
