//! `grpc.health.v1`: whether a leader is known and serves, asked when it is asked.

use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::{GrpcResult, Services, status};

/// How often a watcher of our health makes us look.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Services {
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
impl Health for Services {
    async fn check(&self, request: Request<HealthCheckRequest>) -> GrpcResult<HealthCheckResponse> {
        if !known(&request.into_inner().service) {
            return Err(Status::not_found("no such service"));
        }
        Ok(Response::new(HealthCheckResponse { status: self.serving().await.into() }))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> GrpcResult<Self::WatchStream> {
        let known = known(&request.into_inner().service);
        let turn = self.0.watch_turn().map_err(status)?;
        let changes = stream::unfold((self.clone(), None, turn), move |(services, sent, turn)| async move {
            loop {
                let now = if known { services.serving().await } else { ServingStatus::ServiceUnknown };
                if sent != Some(now) {
                    return Some((now, (services, Some(now), turn)));
                }
                tokio::select! {
                    biased;
                    () = services.0.stopping() => return None,
                    () = tokio::time::sleep(LOOK_EVERY) => {}
                }
            }
        });
        Ok(Response::new(Box::pin(changes.map(|now| Ok(HealthCheckResponse { status: now.into() })))))
    }
}
