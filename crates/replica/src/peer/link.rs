//! One peer, as the engine talks to it.

use crate::NodeId;
use crate::engine::{Member, Types};
use crate::snapshot::SnapshotFile;
use openraft::alias::{SnapshotOf, VoteOf};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use std::future::Future;

pub(crate) struct Links;
pub(crate) struct Link;

impl RaftNetworkFactory<Types> for Links {
    type Network = Link;
    async fn new_client(&mut self, _: NodeId, _: &Member) -> Link {
        Link
    }
}

fn unreachable() -> Unreachable<Types> {
    Unreachable::new(&std::io::Error::from(std::io::ErrorKind::NotConnected))
}

impl RaftNetworkV2<Types> for Link {
    type SnapshotData = SnapshotFile;
    async fn append_entries(
        &mut self,
        _: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        Err(RPCError::Unreachable(unreachable()))
    }
    async fn vote(
        &mut self,
        _: VoteRequest<Types>,
        _: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Err(RPCError::Unreachable(unreachable()))
    }
    async fn full_snapshot(
        &mut self,
        _: VoteOf<Types>,
        _: SnapshotOf<Types, SnapshotFile>,
        _: impl Future<Output = ReplicationClosed> + Send + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        Err(StreamingError::Unreachable(unreachable()))
    }
}
