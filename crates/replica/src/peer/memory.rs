//! What this node knows of its own log and of the others' at the start of a connection.

use super::acknowledged::{Acknowledged, Acknowledgements, LogEnd};
use super::handshake::{Hello, Loss, Spoken};
use super::standing::is_plausible;
use crate::NodeId;
use crate::data_dir::Identity;
use crate::engine::{Engine, Types, from_log_id};
use crate::snapshot::SnapshotStore;
use crate::wal::{LogId, SharedLog};
use openraft::ServerState;
use openraft::alias::WatchReceiverOf;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::metrics::RaftServerMetrics;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, OnceLock};
use tenure_tls::{KeyHash, PeerProof};
use tokio::sync::watch;

/// The engine's word on who leads and who belongs.
pub(super) type Members = WatchReceiverOf<Types, RaftServerMetrics<Types>>;

/// See the module. Clones are the same.
#[derive(Clone)]
pub(crate) struct Memory {
    /// Which protocols are spoken.
    pub spoken: Arc<Spoken>,
    log: SharedLog,
    store: SnapshotStore,
    seen: Arc<Mutex<Acknowledgements>>,
    /// Known as soon as there is an engine.
    members: Arc<OnceLock<Members>>,
    failed: watch::Sender<Option<String>>,
    /// What members have proved, with the identity under which they did.
    proofs: Proofs,
}

/// The key that each member has proved last, together with its identity.
pub(crate) type Proofs = watch::Sender<BTreeMap<NodeId, (u128, KeyHash)>>;

impl Memory {
    pub fn new(
        spoken: Arc<Spoken>,
        log: SharedLog,
        store: SnapshotStore,
        failed: watch::Sender<Option<String>>,
    ) -> Self {
        let proofs = watch::Sender::default();
        Self { spoken, log, store, seen: Arc::default(), members: Arc::default(), failed, proofs }
    }

    /// From now on it is known who votes and who leads.
    pub fn follow(&self, engine: &Engine) {
        // Only an engine that is started twice could have set it before.
        let _ = self.members.set(engine.server_metrics());
    }

    pub(super) fn members(&self) -> Option<&Members> {
        self.members.get()
    }

    /// A member that came with the identity that the membership remembers has proved a key.
    pub fn proved(&self, node: NodeId, identity: u128, proof: Option<PeerProof>) {
        let Some(PeerProof { key, .. }) = proof else { return };
        self.proofs.send_if_modified(|proofs| proofs.insert(node, (identity, key)) != Some((identity, key)));
    }

    /// What members have proved.
    pub fn proofs(&self) -> &Proofs {
        &self.proofs
    }

    /// The key that the membership names for a node.
    pub fn key_of(&self, node: NodeId) -> Option<KeyHash> {
        let metrics = self.members.get()?.borrow_watched();
        metrics.membership_config.membership().get_node(&node)?.key
    }

    /// How far this node's log reaches. A snapshot that was installed counts before the log is cut behind it.
    pub fn log_end(&self) -> LogEnd {
        let covered = self.store.current().and_then(|current| current.meta.last.as_ref().map(from_log_id));
        let log = self.log.lock();
        LogEnd { term: log.vote.map_or(0, |vote| vote.term), last: log.last().max(covered) }
    }

    /// A follower has acknowledged everything up to an entry to this node, the leader of `term`.
    pub fn note(&self, node: NodeId, term: u64, last: LogId) {
        self.seen.lock().note(node, term, last);
    }

    /// What a node has acknowledged to this one, if this one still leads in the same term.
    pub fn acknowledged(&self, node: NodeId) -> Option<Acknowledged> {
        let metrics = self.members.get()?.borrow_watched();
        let leads = metrics.state == ServerState::Leader;
        leads.then(|| self.seen.lock().of(node, metrics.vote.leader_id.term)).flatten()
    }

    /// Refuses a term that is so far ahead that no election led to it.
    pub fn plausible(&self, node: NodeId, term: u64) -> io::Result<()> {
        let ours = self.log.lock().vote.map_or(0, |vote| vote.term);
        if is_plausible(term, ours) {
            return Ok(());
        }
        let what =
            format!("node {node} speaks of term {term}, and this node is in term {ours}: it is not believed");
        tracing::warn!("{what}");
        Err(io::Error::new(io::ErrorKind::InvalidData, what))
    }

    /// Whether one of the two has lost what it had acknowledged to the other. If it is this node, it stops.
    pub fn loss(&self, hello: &Hello, ours: Identity) -> Option<Loss> {
        let loss = hello.loss(ours, self.log_end(), self.acknowledged(hello.from.node));
        if let Some(Loss::Ours(why)) = &loss {
            crate::replica::fail(&self.failed, why);
        }
        loss
    }
}
