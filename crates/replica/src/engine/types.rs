//! The types that the engine is instantiated with.

use super::runtime::Runtime;
use crate::NodeId;
use crate::wal::LogId;
use bytes::Bytes;
use openraft::RaftTypeConfig;
use openraft::alias::LogIdOf;
use std::any::Any;
use std::fmt;
use tenure_tls::KeyHash;

/// The engine, applying to our machine.
pub(crate) type Engine = openraft::Raft<Types, super::machine::Applier>;

/// What the engine is made of. `leader_id_std`: at most one leader in a term, as in the paper, so
/// that a term alone names a leader.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Types;

impl RaftTypeConfig for Types {
    type D = Payload;
    type R = Reply;
    type NodeId = NodeId;
    type Node = Member;
    type Term = u64;
    type LeaderId = openraft::impls::leader_id_std::LeaderId<u64, NodeId>;
    type Vote = openraft::impls::Vote<Self::LeaderId>;
    type Payload = openraft::EntryPayload<Payload, NodeId, Member>;
    type Entry =
        openraft::impls::Entry<<Self::LeaderId as openraft::vote::RaftLeaderId>::Committed, Self::Payload>;
    type AsyncRuntime = Runtime;
    type Responder<T>
        = openraft::impls::ProgressResponder<Self, T>
    where
        T: openraft::OptionalSend + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: openraft::OptionalSend + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

/// What the application proposed. Cloning it, once per follower, copies nothing.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Payload(pub Bytes);

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The machine's answer on its way back to the proposer; none for the engine's own entries. Its type
/// is erased so that log, network and engine are compiled once and not once per machine.
pub(crate) struct Reply(pub Option<Box<dyn Any + Send + Sync>>);

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "an answer" } else { "no answer" })
    }
}

/// A member as the membership remembers it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Member {
    /// Where it listens for peers.
    pub address: String,
    /// The identity of its data directory: a node with another one under this number is refused.
    pub identity: u128,
    /// The hash of its key, once it has proved one: from then on it is known by that key.
    pub key: Option<KeyHash>,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:032x})", self.address, self.identity)
    }
}

/// Our name for an entry, from the engine's.
pub(crate) fn from_log_id(id: &LogIdOf<Types>) -> LogId {
    LogId { term: id.committed_leader_id().term, index: id.index() }
}

/// The engine's name for an entry, from ours.
pub(crate) fn to_log_id(id: LogId) -> LogIdOf<Types> {
    LogIdOf::<Types>::new(id.term.into(), id.index)
}
