//! `tenure.v1.Cluster`.

use futures_util::stream::Empty;
use tenure_wire::proto::{self, cluster_server::Cluster};
use tenure_wire::{ApiError, Code, grpc, json};
use tonic::{Request, Status, async_trait};

use super::{Answer, Services, answer, status};

#[async_trait]
impl Cluster for Services {
    async fn status(
        &self,
        request: Request<proto::ClusterStatusRequest>,
    ) -> Answer<proto::ClusterStatusResponse> {
        answer(self.0.cluster(request.into_inner().with_state_hash).await.map(message))
    }

    async fn set_kind(&self, request: Request<proto::SetKindRequest>) -> Answer<proto::SetKindResponse> {
        answer(
            async {
                self.0.quiet(grpc::set_kind(request.into_inner())?).await?;
                Ok(proto::SetKindResponse {})
            }
            .await,
        )
    }

    async fn rebind(&self, request: Request<proto::RebindRequest>) -> Answer<proto::RebindResponse> {
        answer(
            async {
                self.0.quiet(grpc::rebind(request.into_inner())?).await?;
                Ok(proto::RebindResponse {})
            }
            .await,
        )
    }

    async fn step_down(&self, _: Request<proto::StepDownRequest>) -> Answer<proto::StepDownResponse> {
        Err(not_offered("step-down"))
    }

    async fn add(&self, _: Request<proto::NodeAddRequest>) -> Answer<proto::NodeAddResponse> {
        Err(not_offered("adding a node"))
    }

    async fn remove(&self, _: Request<proto::NodeRemoveRequest>) -> Answer<proto::NodeRemoveResponse> {
        Err(not_offered("removing a node"))
    }

    type BackupStream = Empty<Result<proto::BackupResponse, Status>>;

    async fn backup(&self, _: Request<proto::BackupRequest>) -> Answer<Self::BackupStream> {
        Err(not_offered("a backup"))
    }
}

/// What the interface has a name for and this node does not do.
fn not_offered(what: &str) -> Status {
    status(ApiError::new(Code::NoSuchCall, format!("this node does not offer {what}")))
}

fn message(cluster: json::ClusterStatus) -> proto::ClusterStatusResponse {
    proto::ClusterStatusResponse {
        cluster: cluster.cluster,
        leader: cluster.leader,
        term: cluster.term,
        nodes: cluster.nodes.into_iter().map(node).collect(),
        node: cluster.node,
        applied: cluster.applied,
        committed: cluster.committed,
        revision: cluster.revision,
        last_token: cluster.last_token,
        cluster_time_us: cluster.cluster_time_us,
        sessions: cluster.sessions,
        leases: cluster.leases,
        waiters: cluster.waiters,
        state_hash: cluster.state_hash.unwrap_or_default(),
        fault_tolerant: cluster.fault_tolerant,
        restoring_ms: cluster.restoring_ms,
    }
}

fn node(node: json::NodeStatus) -> proto::NodeStatus {
    proto::NodeStatus {
        node: node.node,
        peer_address: node.peer_address,
        client_address: node.client_address,
        role: node.role,
        reachable: node.reachable,
        last_log: node.last_log,
        version: node.version,
        identity: node.identity,
    }
}
