//! `tenure.v1.Cluster`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use tenure_wire::{ApiError, Code, grpc, proto};
use tonic::Streaming;

use super::Answers;
use crate::context::CallContext;
use crate::front::Api;
use crate::restore::Restore;

/// When to try a restore again on a node that reads several.
const RESTORE_AGAIN_AFTER: Duration = Duration::from_secs(5);

pub(crate) async fn status(
    api: Arc<Api>,
    context: CallContext,
    request: proto::ClusterStatusRequest,
) -> Result<proto::ClusterStatusResponse, ApiError> {
    api.cluster(&context, request.with_state_hash).await.map(Into::into)
}

pub(crate) async fn set_kind(
    api: Arc<Api>,
    context: CallContext,
    request: proto::SetKindRequest,
) -> Result<proto::SetKindResponse, ApiError> {
    api.submit_without_result(&context, grpc::set_kind(request)?).await?;
    Ok(proto::SetKindResponse {})
}

pub(crate) async fn rebind(
    api: Arc<Api>,
    context: CallContext,
    request: proto::RebindRequest,
) -> Result<proto::RebindResponse, ApiError> {
    api.submit_without_result(&context, grpc::rebind(request)?).await?;
    Ok(proto::RebindResponse {})
}

pub(crate) async fn step_down(
    api: Arc<Api>,
    context: CallContext,
    request: proto::StepDownRequest,
) -> Result<proto::StepDownResponse, ApiError> {
    let _turn = api.turn(context.row.cost)?;
    api.node.step_down(request).await
}

pub(crate) async fn add(
    api: Arc<Api>,
    context: CallContext,
    request: proto::NodeAddRequest,
) -> Result<proto::NodeAddResponse, ApiError> {
    let _turn = api.turn(context.row.cost)?;
    api.node.add_nodes(request).await
}

pub(crate) async fn remove(
    api: Arc<Api>,
    context: CallContext,
    request: proto::NodeRemoveRequest,
) -> Result<proto::NodeRemoveResponse, ApiError> {
    let _turn = api.turn(context.row.cost)?;
    api.node.remove_node(request).await
}

pub(crate) async fn upgrade(
    api: Arc<Api>,
    context: CallContext,
    request: proto::UpgradeRequest,
) -> Result<proto::UpgradeResponse, ApiError> {
    let _turn = api.turn(context.row.cost)?;
    api.node.upgrade(request).await
}

pub(crate) async fn backup(
    api: Arc<Api>,
    context: CallContext,
    request: proto::BackupRequest,
) -> Result<Answers<proto::BackupResponse>, ApiError> {
    let turn = api.turn(context.row.cost)?;
    let pieces = api.node.backup(request.stale).await?;
    Ok(Box::pin(stream::unfold((pieces, turn), |(mut pieces, turn)| async move {
        let message = match pieces.recv().await? {
            Ok(piece) => Ok(proto::BackupResponse { piece }),
            Err(error) => Err(ApiError::new(Code::Internal, error.to_string())),
        };
        Some((message, (pieces, turn)))
    })))
}

pub(crate) async fn restore(
    api: Arc<Api>,
    context: CallContext,
    mut messages: Streaming<proto::RestoreRequest>,
) -> Result<proto::RestoreResponse, ApiError> {
    let _turn = api.turn(context.row.cost)?;
    let busy = |_| ApiError::overloaded("it reads several backups already", RESTORE_AGAIN_AFTER);
    let _one = api.node.admin().restores.try_acquire().map_err(busy)?;
    let mut next = async || messages.message().await.map_err(|status| ApiError::from(&status));
    let first = next().await?.unwrap_or_default();
    let mut restore = Restore::new(&api.node, &context.identity, &first)?;
    restore.take(&first.piece).await?;
    while let Some(message) = next().await? {
        restore.take(&message.piece).await?;
    }
    restore.finish().await
}
