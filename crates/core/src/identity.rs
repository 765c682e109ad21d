//! Who calls, and what kind of right a call needs.
//!
//! This file only names the two; what an identity may do is decided by `policy.rs`. Every call of a node states its
//! [`Verb`] in the server's table of calls, and every command arrives with the [`Identity`] of its caller.

use core::fmt;
use core::str::FromStr;

use crate::names::{HolderName, IdentityName, InvalidName};

/// Who a call or a command is from.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// A caller that has not said who it is.
    #[default]
    Anyone,
    /// A member of the cluster, for what it does by itself. No client is ever this.
    Node,
    /// Whoever has the cluster's root: may do everything.
    Operator,
    /// A caller that has proved who it is.
    Named {
        /// Who.
        name: IdentityName,
        /// The credential that proved it, if it was one that the cluster issued.
        credential: Option<CredentialId>,
    },
}

impl Identity {
    /// The caller of this name, proved without a credential of the cluster.
    pub fn named(name: IdentityName) -> Identity {
        Identity::Named { name, credential: None }
    }

    /// The name, of a caller that has one.
    pub fn name(&self) -> Option<&IdentityName> {
        match self {
            Identity::Named { name, .. } => Some(name),
            Identity::Anyone | Identity::Node | Identity::Operator => None,
        }
    }

    /// The credential that proved it, if it was one that the cluster issued.
    pub fn credential(&self) -> Option<CredentialId> {
        match self {
            Identity::Named { credential, .. } => *credential,
            Identity::Anyone | Identity::Node | Identity::Operator => None,
        }
    }

    /// Whether both are the same caller, whichever credential proved it: a credential is replaced while its
    /// sessions live.
    pub fn is_same(&self, other: &Identity) -> bool {
        match (self, other) {
            (Identity::Named { name, .. }, Identity::Named { name: other, .. }) => name == other,
            _ => self == other,
        }
    }

    /// The caller, whichever credential proved it.
    #[must_use]
    pub fn without_credential(&self) -> Identity {
        match self {
            Identity::Named { name, .. } => Identity::named(name.clone()),
            other => other.clone(),
        }
    }

    /// Whether a holder of this name is this caller by name: `pay-worker`, `pay-worker/7` and `cred/pay-worker` are
    /// `cred/pay-worker`.
    pub fn owns_holder(&self, holder: &HolderName) -> bool {
        let Some(name) = self.name() else { return false };
        let within = |own: &str| {
            let rest = holder.as_str().strip_prefix(own);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        within(name.as_str()) || within(name.within_source())
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identity::Anyone => f.write_str("anyone"),
            Identity::Node => f.write_str("node"),
            Identity::Operator => f.write_str("operator"),
            Identity::Named { name, .. } => fmt::Display::fmt(name, f),
        }
    }
}

/// The public half of a credential: what the state knows it by. Written as 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CredentialId([u8; 8]);

impl CredentialId {
    /// Wraps 64 random bits.
    pub const fn new(bits: [u8; 8]) -> Self {
        Self(bits)
    }

    /// The bits.
    pub const fn as_bytes(&self) -> &[u8; 8] {
        &self.0
    }
}

impl fmt::Display for CredentialId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CredentialId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CredentialId({self})")
    }
}

impl FromStr for CredentialId {
    type Err = InvalidName;
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let hex = text.len() == 16 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        let bits = u64::from_str_radix(text, 16).ok().filter(|_| hex);
        let invalid = || InvalidName::new("credential", "it is 16 hexadecimal digits");
        Ok(CredentialId(bits.ok_or_else(invalid)?.to_be_bytes()))
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
    /// Give rights to others: policies and credentials.
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

impl FromStr for Verb {
    type Err = InvalidName;
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let found = Verb::ALL.into_iter().find(|verb| verb.as_str() == text);
        found.ok_or_else(|| {
            InvalidName::new("verb", "it is read, hold, write, manage, observe, operate or grant")
        })
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_id_reads_what_it_writes() {
        let id = CredentialId::new([0, 1, 2, 3, 0xff, 0xee, 0xdd, 0xcc]);
        assert_eq!(alloc::format!("{id}"), "00010203ffeeddcc");
        assert_eq!("00010203ffeeddcc".parse(), Ok(id));
        for bad in ["", "0", "00010203FFEEDDCC", "+0010203ffeeddcc", "00010203ffeeddcc0"] {
            assert!(bad.parse::<CredentialId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_holder_is_its_own_only_by_whole_segments() {
        let identity = Identity::named("cred/pay".parse().unwrap());
        for (holder, own) in [
            ("pay", true),
            ("cred/pay", true),
            ("pay/7", true),
            ("payroll", false),
            ("cert/pay", false),
            ("x", false),
        ] {
            assert_eq!(identity.owns_holder(&holder.parse().unwrap()), own, "{holder}");
        }
        assert!(!Identity::Anyone.owns_holder(&"anyone".parse().unwrap()));
    }
}
