//! The replica as its server sees it.

use crate::disk::Disk;
use crate::error::{BarrierError, Failure, ForwardError, MembershipError, ProposeError, StartError};
use crate::leadership::{Leadership, Office};
use crate::peer::{ForwardHandler, Network};
use crate::{Config, NodeId, StateMachine, Status};
use bytes::Bytes;
use parking_lot::RwLock;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;

/// One member of a replicated state machine. Cheap to clone; all clones are the same member.
pub struct Replica<M: StateMachine> {
    machine: Arc<RwLock<M>>,
}

/// The answer to a proposal that is on its way. Dropping it forgets the answer, not the entry.
pub struct Proposal<A> {
    answer: Pin<Box<dyn Future<Output = Result<A, ProposeError>> + Send>>,
}

impl<A> Future for Proposal<A> {
    type Output = Result<A, ProposeError>;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.answer.as_mut().poll(context)
    }
}

impl<M: StateMachine> Clone for Replica<M> {
    fn clone(&self) -> Self {
        Self { machine: self.machine.clone() }
    }
}

impl<M: StateMachine> Replica<M> {
    /// Opens (or founds) the data directory on `disk`, restores `machine` from the last snapshot,
    /// and takes part in the cluster. A cluster of one founds itself.
    pub async fn start(
        config: Config,
        disk: Arc<dyn Disk>,
        network: Arc<dyn Network>,
        machine: M,
    ) -> Result<Self, StartError> {
        let _ = (config, disk, network, machine);
        todo!()
    }

    /// This node.
    pub fn node(&self) -> NodeId {
        todo!()
    }

    /// The machine, for reading. Whoever holds the lock holds up apply: copy out and let go.
    pub fn machine(&self) -> &Arc<RwLock<M>> {
        &self.machine
    }

    /// Who leads. Changes are never missed altogether, but several may be seen as one.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        todo!()
    }

    /// Hands one entry to the log, if `office` is still held. Entries of one caller that awaits this
    /// call before making the next one enter the log in that order. The answer, what *applying* the
    /// entry answered, comes with the returned proposal.
    pub async fn propose(&self, office: Office, entry: Bytes) -> Result<Proposal<M::Answer>, ProposeError> {
        let _ = (office, entry);
        todo!()
    }

    /// Waits until this node's machine shows everything that was acknowledged anywhere before this
    /// call. By read index, never by clock; all that wait at one time share one confirmation.
    pub async fn read_barrier(&self) -> Result<(), BarrierError> {
        todo!()
    }

    /// The state of this node, for people and metrics.
    pub fn status(&self) -> Status {
        todo!()
    }

    /// Resolves when the replica has failed for good; never on a graceful shutdown.
    pub async fn failed(&self) -> Failure {
        todo!()
    }

    /// Begins a snapshot now; the log is cut behind it when it is done.
    pub async fn trigger_snapshot(&self) -> Result<(), Failure> {
        todo!()
    }

    /// Hands leadership to `to` (or the most advanced voter). Returns when this node no longer
    /// leads, or with a refusal when it still does after one election timeout.
    pub async fn transfer_leadership(&self, to: Option<NodeId>) -> Result<(), MembershipError> {
        let _ = to;
        todo!()
    }

    /// Adds a node that receives the log and does not vote; returns once it has caught up.
    /// `identity` is that of its data directory, as its own status shows it.
    pub async fn add_learner(
        &self,
        node: NodeId,
        address: String,
        identity: String,
    ) -> Result<(), MembershipError> {
        let _ = (node, address, identity);
        todo!()
    }

    /// Makes exactly these nodes the voters. All must be members already; those left out are removed.
    pub async fn change_membership(&self, voters: Vec<NodeId>) -> Result<(), MembershipError> {
        let _ = voters;
        todo!()
    }

    /// Sends opaque bytes to another node's [`ForwardHandler`] and waits for its answer.
    pub async fn forward(
        &self,
        to: NodeId,
        request: Bytes,
        deadline: Duration,
    ) -> Result<Bytes, ForwardError> {
        let _ = (to, request, deadline);
        todo!()
    }

    /// Who answers what other nodes forward to this one. Until it is set they get no answer.
    pub fn serve_forwarded(&self, handler: Arc<dyn ForwardHandler>) {
        let _ = handler;
        todo!()
    }

    /// Stops: no more proposals, the log is synced and closed, the data directory unlocked.
    pub async fn shutdown(&self) {
        todo!()
    }
}
