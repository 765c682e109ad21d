//! Who calls, and what kind of right a call needs.
//!
//! This file only names the two; it judges nothing. Every call of a node states its [`Verb`] in the server's table
//! of calls, and every command arrives with the [`Identity`] of its caller.

use core::fmt;

/// Who a call or a command is from.
///
/// Nobody has to prove who they are yet, so there is only one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// A caller that has not said who it is.
    Anyone,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identity::Anyone => f.write_str("anyone"),
        }
    }
}

/// The kind of right that a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// None: health checks, the dashboard's files, public keys.
    Public,
    /// See leases, queues, history, events and registers.
    Read,
    /// Open a session; acquire, renew, release and hand over one's own leases; arm their fences.
    Hold,
    /// Write registers.
    Write,
    /// End or reshape what belongs to others: revoke, barrier, kind, rebind, removal of a fence.
    Manage,
    /// See how the cluster does: its status and its metrics.
    Observe,
    /// Change the cluster: membership, backup, restore, keys, format version.
    Operate,
    /// Give rights to others.
    Grant,
}

impl Verb {
    /// All of them.
    pub const ALL: [Verb; 8] = [
        Verb::Public,
        Verb::Read,
        Verb::Hold,
        Verb::Write,
        Verb::Manage,
        Verb::Observe,
        Verb::Operate,
        Verb::Grant,
    ];

    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Verb::Public => "public",
            Verb::Read => "read",
            Verb::Hold => "hold",
            Verb::Write => "write",
            Verb::Manage => "manage",
            Verb::Observe => "observe",
            Verb::Operate => "operate",
            Verb::Grant => "grant",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
