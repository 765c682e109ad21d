//! What a run recorded about itself. Plain values; nothing here judges.

use std::sync::Arc;

/// Microseconds of the one clock that the recorder reads and nobody else does.
pub type Time = u64;

/// Everything that was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// What clients asked and what they were answered.
    pub operations: Vec<Operation>,
    /// When permits were out.
    pub permits: Vec<PermitSpan>,
    /// What storages were asked to accept, in the order in which they judged it.
    pub fence_steps: Vec<FenceStep>,
    /// How sessions fared.
    pub sessions: Vec<SessionSpan>,
    /// Holders that died, and how long their leases stayed.
    pub deaths: Vec<Death>,
    /// Those who waited in the queue at the end.
    pub waits: Vec<Wait>,
    /// Looks into the state of a node.
    pub sightings: Vec<Sighting>,
    /// What was there at the very end, when all faults were over.
    pub finals: Vec<Final>,
    /// Processes that ended although nobody ended them.
    pub failures: Vec<ProcessFailure>,
}

/// One call of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Who called.
    pub process: u32,
    /// What was asked.
    pub call: Call,
    /// When it was asked.
    pub invoked: Time,
    /// When the outcome was known.
    pub ended: Time,
    /// What came of it.
    pub outcome: Outcome,
}

/// What was asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// An exclusive lease of a resource, with or without a wait.
    Acquire {
        /// Of what.
        resource: Arc<str>,
    },
    /// The end of a lease.
    Release {
        /// Of what.
        resource: Arc<str>,
        /// Under which token it was held.
        token: u64,
    },
    /// A linearizable look at a resource.
    Look {
        /// At what.
        resource: Arc<str>,
    },
    /// A register written, guarded or not.
    Put {
        /// Which.
        key: Arc<str>,
        /// A value that no other write of the run writes.
        value: u64,
        /// The token of the guard.
        token: Option<u64>,
    },
    /// A register written if it was last changed at a revision.
    PutIf {
        /// Which.
        key: Arc<str>,
        /// A value that no other write of the run writes.
        value: u64,
        /// Zero: if it does not exist.
        revision: u64,
    },
    /// A register removed.
    Delete {
        /// Which.
        key: Arc<str>,
    },
    /// A linearizable read of a register.
    Get {
        /// Which.
        key: Arc<str>,
    },
}

impl Call {
    /// The resource or register that it is about.
    pub fn subject(&self) -> &Arc<str> {
        match self {
            Call::Acquire { resource } | Call::Release { resource, .. } | Call::Look { resource } => resource,
            Call::Put { key, .. } | Call::PutIf { key, .. } | Call::Delete { key } | Call::Get { key } => key,
        }
    }

    /// Whether it is about the lease table.
    pub fn is_about_leases(&self) -> bool {
        matches!(self, Call::Acquire { .. } | Call::Release { .. } | Call::Look { .. })
    }
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was answered.
    Answered(Response),
    /// It certainly did nothing.
    Failed,
    /// It may have happened, or happen later, or never.
    Unknown,
}

/// What the store said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// Granted under this token.
    Granted(u64),
    /// Refused: it is held.
    Held,
    /// It is over: true if it was this call that ended it, false if nothing was left to release or nobody can
    /// say.
    Released(bool),
    /// A look: held under this token.
    HeldBy(u64),
    /// A look: free; the token of the last grant, if there was one.
    Free(Option<u64>),
    /// Written at this revision, if it was answered.
    Written(Option<u64>),
    /// A comparison did not hold, so nothing was written.
    NotEqual,
    /// Refused by the guard.
    Fenced,
    /// A read: the value and the revision that wrote it.
    Value(Option<(u64, u64)>),
}

/// A permit: from when it was taken until it was dropped or its local deadline came, whichever was first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitSpan {
    /// Who took it.
    pub process: u32,
    /// For what.
    pub resource: Arc<str>,
    /// Under which token.
    pub token: u64,
    /// When it was taken.
    pub from: Time,
    /// When it was over.
    pub until: Time,
    /// Whether the rule does not speak of it: a clock ran wrong beyond rho, or the lease was revoked at once.
    pub excused: bool,
}

/// One judgement of a storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceStep {
    /// For which scope.
    pub scope: Arc<str>,
    /// What was presented.
    pub token: u64,
    /// When.
    pub at: Time,
    /// What it said.
    pub accepted: bool,
}

/// One session of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSpan {
    /// Whose.
    pub process: u32,
    /// From when on it was open.
    pub from: Time,
    /// When it was last seen.
    pub until: Time,
    /// Whether its process ran, reached the servers and had a right clock all the while.
    pub healthy: bool,
    /// Whether the store ended it.
    pub lost: bool,
}

/// A holder that died.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    /// What it held.
    pub resource: Arc<str>,
    /// Under which token.
    pub token: u64,
    /// When it was over with all faults and with it, whichever was later.
    pub at: Time,
    /// When the resource was first seen in other hands, or free.
    pub freed: Option<Time>,
    /// How long it may take.
    pub bound: Time,
}

/// Somebody who waited in the queue when all faults were over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Who.
    pub process: u32,
    /// For what.
    pub resource: Arc<str>,
    /// Since when.
    pub since: Time,
    /// When it was granted.
    pub granted: Option<Time>,
    /// How long it may take.
    pub bound: Time,
}

/// What the state of one node said about one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// Which node.
    pub node: u64,
    /// When.
    pub at: Time,
    /// Of what.
    pub resource: Arc<str>,
    /// The tokens of its exclusive holders.
    pub holders: Vec<u64>,
    /// The newest token of it that the node knows of.
    pub last_token: u64,
    /// How many wait.
    pub waiters: u64,
}

/// What one node had at the very end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Final {
    /// Which node.
    pub node: u64,
    /// How many entries it has applied.
    pub entries: u64,
    /// The hash of its state.
    pub state: u128,
    /// The last token that was issued.
    pub last_token: u64,
    /// Every register: its value and the revision that wrote it.
    pub registers: Vec<(Arc<str>, u64, u64)>,
}

/// A process that ended although nobody ended it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessFailure {
    /// Which node, if it was one.
    pub node: Option<u64>,
    /// When.
    pub at: Time,
    /// What it said.
    pub why: String,
    /// Whether a fault that was injected explains it.
    pub excused: bool,
}
