//! `grpc.health.v1`: whether a leader is known and serves, checked at each request.

use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use std::sync::Arc;

use super::status;
use crate::call_table::Cost;
use crate::front::Api;

/// The node, as a health check sees it.
#[derive(Clone)]
pub(super) struct NodeHealth(pub Arc<Api>);

/// What a service answers.
type GrpcResult<T> = Result<Response<T>, Status>;

/// How often a watcher of our health makes us look.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl NodeHealth {
    async fn serving(&self) -> ServingStatus {
        match self.0.ready().await {
            Ok(()) if !*self.0.stop.borrow() => ServingStatus::Serving,
            _ => ServingStatus::NotServing,
        }
    }
}

/// The whole server, or one of its services: they serve together or not at all.
fn known(service: &str) -> bool {
    service.is_empty() || service.starts_with("tenure.v1.")
}

#[async_trait]
impl Health for NodeHealth {
    async fn check(&self, request: Request<HealthCheckRequest>) -> GrpcResult<HealthCheckResponse> {
        if !known(&request.into_inner().service) {
            return Err(Status::not_found("no such service"));
        }
        Ok(Response::new(HealthCheckResponse { status: self.serving().await.into() }))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> GrpcResult<Self::WatchStream> {
        let known = known(&request.into_inner().service);
        let turn = self.0.turn(Cost::Watch).map_err(status)?;
        let changes = stream::unfold((self.clone(), None, turn), move |(health, sent, turn)| async move {
            loop {
                let now = if known { health.serving().await } else { ServingStatus::ServiceUnknown };
                if sent != Some(now) {
                    return Some((now, (health, Some(now), turn)));
                }
                tokio::select! {
                    biased;
                    () = health.0.stopping() => return None,
                    () = tokio::time::sleep(LOOK_EVERY) => {}
                }
            }
        });
        Ok(Response::new(Box::pin(changes.map(|now| Ok(HealthCheckResponse { status: now.into() })))))
    }
}
