//! `tenure.v1.Stream`: many sessions over one connection, in both directions.
//!
//! Commands and renewals have a stream each, so that bulk never delays a heartbeat. Both prove a session once,
//! by its whole id, and then name it by its public number. Neither holds a rule about leases: frames become
//! commands, answers and events become frames.

mod commands;
mod outbox;
mod renewals;

use std::pin::Pin;

use futures_util::Stream;
use tenure_wire::proto::{self, stream_server::Stream as StreamService};
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::{Answer, Services};

type Frames<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[async_trait]
impl StreamService for Services {
    type CommandsStream = Frames<proto::ServerFrames>;
    type RenewalsStream = Frames<proto::RenewalAnswers>;

    async fn commands(
        &self,
        request: Request<Streaming<proto::ClientFrames>>,
    ) -> Answer<Self::CommandsStream> {
        let (outbox, frames) = outbox::outbox();
        tokio::spawn(commands::serve(self.0.clone(), request.into_inner(), outbox));
        Ok(Response::new(Box::pin(frames)))
    }

    async fn renewals(
        &self,
        request: Request<Streaming<proto::RenewalFrames>>,
    ) -> Answer<Self::RenewalsStream> {
        Ok(Response::new(Box::pin(renewals::serve(self.0.clone(), request.into_inner()))))
    }
}
