//! gRPC `tenure.v1`: the surface that client libraries use, with health checks and reflection.
//!
//! Services turn messages into commands with `tenure_wire::grpc`, ask [`Api`](crate::front::Api), and turn answers
//! into messages. They hold no rule of their own.

mod cluster;
mod error;
mod fences;
mod health;
mod leases;
mod registers;
mod sequencers;
mod sessions;
mod stream;
mod watch;

use std::sync::Arc;

use axum::Router;
use tenure_wire::proto;
use tenure_wire::proto::cluster_server::ClusterServer;
use tenure_wire::proto::fences_server::FencesServer;
use tenure_wire::proto::leases_server::LeasesServer;
use tenure_wire::proto::registers_server::RegistersServer;
use tenure_wire::proto::sequencers_server::SequencersServer;
use tenure_wire::proto::sessions_server::SessionsServer;
use tenure_wire::proto::stream_server::StreamServer;
use tenure_wire::proto::watch_server::WatchServer;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;

use crate::front::Api;

pub(crate) use error::status;

/// What all services stand on.
#[derive(Clone)]
struct Services(Arc<Api>);

/// What a service answers.
type GrpcResult<T> = Result<tonic::Response<T>, tonic::Status>;

/// Wraps what a call answered.
fn answer<T>(result: Result<T, tenure_wire::ApiError>) -> GrpcResult<T> {
    result.map(tonic::Response::new).map_err(status)
}

/// Every service there is.
pub(crate) fn router(api: Arc<Api>) -> Router {
    let services = Services(api);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let described = "the descriptors were made by the build that made the services";
    Routes::new(SessionsServer::new(services.clone()))
        .add_service(LeasesServer::new(services.clone()))
        .add_service(RegistersServer::new(services.clone()))
        .add_service(WatchServer::new(services.clone()))
        .add_service(FencesServer::new(services.clone()))
        .add_service(SequencersServer::new(services.clone()))
        .add_service(ClusterServer::new(services.clone()))
        .add_service(StreamServer::new(services.clone()))
        .add_service(HealthServer::new(services))
        .add_service(reflection().build_v1().expect(described))
        .add_service(reflection().build_v1alpha().expect(described))
        .into_axum_router()
}

/// What a call is named in metrics and logs: the same word for the same thing on HTTP and gRPC.
pub(crate) fn call(path: &str) -> &'static str {
    match path.strip_prefix("/tenure.v1.").unwrap_or_default() {
        "Sessions/Open" => "sessions.open",
        "Sessions/Renew" => "sessions.renew",
        "Sessions/Close" => "sessions.close",
        "Sessions/List" => "sessions.list",
        "Sessions/Get" => "sessions.get",
        "Sessions/Seen" => "sessions.seen",
        "Sessions/ReportPause" => "sessions.report_pause",
        "Leases/Acquire" => "leases.acquire",
        "Leases/Cancel" => "leases.cancel",
        "Leases/Release" => "leases.release",
        "Leases/Transfer" => "leases.transfer",
        "Leases/Revoke" => "leases.revoke",
        "Leases/Get" => "leases.get",
        "Leases/List" => "leases.list",
        "Leases/History" => "leases.history",
        "Leases/Barrier" => "leases.barrier",
        "Registers/Write" => "registers.write",
        "Registers/Get" => "registers.get",
        "Registers/List" => "registers.list",
        "Watch/Watch" => "watch.watch",
        "Fences/Arm" => "fences.arm",
        "Fences/ReportRefused" => "fences.report_refused",
        "Fences/Remove" => "fences.remove",
        "Fences/List" => "fences.list",
        "Sequencers/Issue" => "sequencers.issue",
        "Sequencers/Check" => "sequencers.check",
        "Cluster/Status" => "cluster.status",
        "Cluster/StepDown" => "cluster.step_down",
        "Cluster/Upgrade" => "cluster.upgrade",
        "Cluster/Add" => "cluster.add",
        "Cluster/Remove" => "cluster.remove",
        "Cluster/Backup" => "cluster.backup",
        "Cluster/Restore" => RESTORE,
        "Cluster/SetKind" => "cluster.set_kind",
        "Cluster/Rebind" => "cluster.rebind",
        "Stream/Commands" | "Stream/Renewals" => STREAM,
        _ if path.starts_with("/grpc.health.v1.") => "health",
        _ if path.starts_with("/grpc.reflection.") => "reflection",
        _ => "other",
    }
}

/// The name of a restore, whose body is a backup.
pub(crate) const RESTORE: &str = "cluster.restore";
/// The name of the session stream, whose requests live as long as their clients.
pub(crate) const STREAM: &str = "stream";
