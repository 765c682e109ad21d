//! `tenure.v1.Cluster`.

use std::pin::Pin;

use futures_util::{Stream, stream};
use tenure_wire::proto::{self, cluster_server::Cluster};
use tenure_wire::{ApiError, Code, grpc, json};
use tonic::{Request, Status, Streaming, async_trait};

use super::{GrpcResult, Services, answer, status};
use crate::admin::RESTORE_BYTES_MAX;

#[async_trait]
impl Cluster for Services {
    async fn status(
        &self,
        request: Request<proto::ClusterStatusRequest>,
    ) -> GrpcResult<proto::ClusterStatusResponse> {
        answer(self.0.cluster(request.into_inner().with_state_hash).await.map(message))
    }

    async fn set_kind(&self, request: Request<proto::SetKindRequest>) -> GrpcResult<proto::SetKindResponse> {
        answer(
            async {
                self.0.submit_without_result(grpc::set_kind(request.into_inner())?).await?;
                Ok(proto::SetKindResponse {})
            }
            .await,
        )
    }

    async fn rebind(&self, request: Request<proto::RebindRequest>) -> GrpcResult<proto::RebindResponse> {
        answer(
            async {
                self.0.submit_without_result(grpc::rebind(request.into_inner())?).await?;
                Ok(proto::RebindResponse {})
            }
            .await,
        )
    }

    async fn step_down(
        &self,
        request: Request<proto::StepDownRequest>,
    ) -> GrpcResult<proto::StepDownResponse> {
        answer(self.0.node.step_down(request.into_inner()).await)
    }

    async fn add(&self, request: Request<proto::NodeAddRequest>) -> GrpcResult<proto::NodeAddResponse> {
        answer(self.0.node.add_nodes(request.into_inner()).await)
    }

    async fn remove(
        &self,
        request: Request<proto::NodeRemoveRequest>,
    ) -> GrpcResult<proto::NodeRemoveResponse> {
        answer(self.0.node.remove_node(request.into_inner()).await)
    }

    async fn upgrade(&self, request: Request<proto::UpgradeRequest>) -> GrpcResult<proto::UpgradeResponse> {
        answer(self.0.node.upgrade(request.into_inner()).await)
    }

    type BackupStream = Pin<Box<dyn Stream<Item = Result<proto::BackupResponse, Status>> + Send>>;

    async fn backup(&self, request: Request<proto::BackupRequest>) -> GrpcResult<Self::BackupStream> {
        let turn = self.0.call_turn().map_err(status)?;
        let pieces = self.0.node.backup(request.into_inner().stale).await.map_err(status)?;
        let messages = stream::unfold((pieces, turn), |(mut pieces, turn)| async move {
            let message = match pieces.recv().await? {
                Ok(piece) => Ok(proto::BackupResponse { piece }),
                Err(error) => Err(status(ApiError::new(Code::Internal, error.to_string()))),
            };
            Some((message, (pieces, turn)))
        });
        answer(Ok(Box::pin(messages) as Self::BackupStream))
    }

    async fn restore(
        &self,
        request: Request<Streaming<proto::RestoreRequest>>,
    ) -> GrpcResult<proto::RestoreResponse> {
        let _turn = self.0.call_turn().map_err(status)?;
        let mut messages = request.into_inner();
        let mut asked: Option<(u64, bool)> = None;
        let mut backup = Vec::new();
        while let Some(message) = messages.message().await? {
            asked.get_or_insert((message.token_floor, message.holders_stopped));
            if backup.len() + message.piece.len() > RESTORE_BYTES_MAX {
                let megabytes = RESTORE_BYTES_MAX >> 20;
                return Err(status(
                    ApiError::new(Code::TooLarge, format!("the backup is larger than {megabytes} MiB")).hint(
                        "a restore is one entry of the log, and a larger one does not fit between nodes",
                    ),
                ));
            }
            backup.extend_from_slice(&message.piece);
        }
        let (token_floor, holders_stopped) = asked.unwrap_or_default();
        answer(self.0.node.restore(backup, token_floor, holders_stopped).await)
    }
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
        format: cluster.format,
        format_next: cluster.format_next,
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
        format_newest: node.format_newest,
    }
}
