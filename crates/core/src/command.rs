//! Everything that can go into the log. An [`Entry`] is one item of the log; a [`Command`] is one of the
//! many operations in it. This file is shapes only; what they do is decided in `machine/`.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use crate::event::EndReason;
use crate::identity::{CredentialId, Identity};
use crate::limits::Limits;
use crate::machine::state::{
    BackupBase, Credential, RegisterNumber, RegisterRecord, Resource, ResourceNumber, State, UsedNonce,
};
use crate::names::{FenceName, HolderName, IdentityName, PolicyName, RegisterKey, ResourceName, Scope};
use crate::numbers::{Nonce, RestoreId, Revision, Secret, SessionId, SessionNumber, Token, TransmissionId};
use crate::policy::Policy;
use crate::time::{ClusterTime, WallTime};
use crate::version::FormatVersion;

/// One item of the replicated log: a stamp of cluster time and all that was sealed under it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The stamp: cluster time as the leader counted it when it sealed this entry.
    pub at: ClusterTime,
    /// The leader's calendar time, for display.
    pub wall: WallTime,
    /// Renewals, judged before time moves.
    pub renewals: Vec<Renewal>,
    /// Everything else, in order of arrival; opens among them.
    pub commands: Vec<Command>,
}

/// One heartbeat of one session. The session's id was checked against the applied state when the
/// renewal was taken in, and ids are never reused, so the public number is enough here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// The session.
    pub session: SessionNumber,
    /// The number of this transmission; the answer names it. Only a number above the session's highest
    /// moves its deadline.
    pub number: u64,
}

/// One operation of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Opens a session, or finds the live one that the same nonce opened.
    Open(Open),
    /// Ends a session: all of its leases are released, its waiters leave their queues.
    Close {
        /// The session and the command's number.
        by: Caller,
        /// `Released` for a clean end, `Died` when a supervisor has seen its processes dead.
        why: EndReason,
    },
    /// Takes one or several resources at once, now or in turn.
    Acquire(Box<Acquire>),
    /// Undoes an acquire by its number: leaves the queue, or releases what it was granted, and is
    /// remembered, so that the acquire does nothing if it arrives later.
    Cancel {
        /// The session and this command's own number.
        by: Caller,
        /// The number of the acquire.
        acquire: u64,
    },
    /// Undoes an acquire that opened its own session, by its nonce: ends that session, and is remembered, so
    /// that the acquire does nothing if it arrives later.
    CancelNonce {
        /// The nonce of the acquire.
        nonce: Nonce,
    },
    /// The caller of a plain acquire has hung up: takes back what this transmission did, unless another
    /// transmission was answered with it.
    Undo {
        /// The session that acquired; `None` if the acquire opened its own.
        session: Option<SessionId>,
        /// The transmission.
        transmission: TransmissionId,
    },
    /// Gives one lease back. Also the holder's confirmation of a notice.
    Release {
        /// The session and the command's number.
        by: Caller,
        /// The resource.
        resource: ResourceName,
        /// Only if the lease still has this token; `None` releases whatever the session holds there.
        token: Option<Token>,
        /// Nobody is granted the resource for this long afterwards. Since format version 2.
        rest: Option<Duration>,
    },
    /// Ends the caller's lease and grants the resource to another live session, in one step.
    Transfer {
        /// The session that holds it.
        by: Caller,
        /// The resource.
        resource: ResourceName,
        /// The public number of the session that gets it.
        to: SessionNumber,
    },
    /// An administrator ends the leases of a resource: by notice, or at once.
    Revoke {
        /// The resource.
        resource: ResourceName,
        /// Only this session's lease; `None` for every holder.
        session: Option<SessionNumber>,
        /// At once, where only fences protect; a token is taken without a holder.
        now: bool,
        /// For people; kept in the history.
        reason: Arc<str>,
    },
    /// The holder has taken in the events up to this revision; renewals need not repeat them.
    Seen {
        /// The session.
        session: SessionId,
        /// The revision up to which it has seen its own lease changes.
        revision: Revision,
    },
    /// Reads, compares and writes registers in one step.
    Write(Box<Write>),
    /// Takes a token without a holder on a free resource, to be installed in its fences.
    Barrier {
        /// The resource.
        resource: ResourceName,
    },
    /// A fence of a resource has installed this token: accepted only with the live token.
    Arm {
        /// The scope that the fence guards.
        scope: Scope,
        /// The fence.
        fence: FenceName,
        /// The live token that it installed.
        token: Token,
    },
    /// A fence refused stale writes; counted so that people see what was prevented.
    Refused {
        /// The scope that the fence guards.
        scope: Scope,
        /// The fence.
        fence: FenceName,
        /// The token that was presented last.
        presented: Token,
        /// The token that the fence had seen.
        seen: Token,
        /// How many writes were refused since the last report.
        count: u32,
    },
    /// A holder noticed that it had been paused; kept in the history of what it holds.
    Paused {
        /// The session that was paused.
        session: SessionId,
        /// For how long.
        length: Duration,
    },
    /// An administrator takes a fence out of a resource's fence set.
    RemoveFence {
        /// The resource.
        resource: ResourceName,
        /// The fence.
        fence: FenceName,
    },
    /// An administrator changes the kind of a free resource.
    SetKind {
        /// The resource.
        resource: ResourceName,
        /// The new kind; `None` lets the next grant fix it.
        kind: Option<KindSetting>,
    },
    /// An administrator binds a register to another guard, or to none.
    Rebind {
        /// The register.
        key: RegisterKey,
        /// The new guard.
        guard: Option<Scope>,
    },
    /// A node has become leader; kept for people as an event.
    BecameLeader {
        /// The node.
        node: u64,
        /// Its term.
        term: u64,
    },
    /// The cluster is formed, or its settings change.
    Configure(Box<Settings>),
    /// An administrator puts what a backup remembers into a cluster that is still empty.
    Restore {
        /// What the backup holds.
        backup: Box<State>,
        /// Above every token that was ever seen anywhere.
        token_floor: Token,
        /// Somebody vouches that no holder of the old cluster is running: grants need not wait.
        holders_stopped: bool,
    },
    /// A node published the key with which it signs sequencers. Only public halves are ever in the log.
    PublishKey {
        /// The node.
        node: u64,
        /// The key's id.
        kid: Arc<str>,
        /// The Ed25519 public key.
        key: [u8; 32],
    },
    /// A node withdraws a signing key.
    WithdrawKey {
        /// The key's id.
        kid: Arc<str>,
    },
    /// Begins to restore a backup piece by piece, or finds how far the same restore has come. Another restore
    /// that was staged is discarded. Since format version 2.
    RestoreBegin(Box<RestoreBegin>),
    /// One piece of the backup, staged: nothing of it is visible yet. Since format version 2.
    RestorePiece(Box<RestorePiece>),
    /// Makes the cluster what was staged, if that is all of the backup and the cluster is still empty. Since
    /// format version 2.
    RestoreCommit {
        /// The restore.
        id: RestoreId,
        /// How many pieces the backup has.
        pieces: u64,
        /// How many records.
        records: u64,
        /// The checksum over all pieces, see [`RestorePiece::chain`].
        checksum: u128,
    },
    /// Raises the agreed format version; never lowers it. Since format version 2.
    Upgrade {
        /// The version that every member supports.
        to: FormatVersion,
    },
    /// A command of a caller that has said who it is. What stands alone is from anyone. Since format version 2.
    As(Box<Attributed>),
    /// Makes a credential known. Since format version 2.
    PutCredential(Box<PutCredential>),
    /// Ends a credential: nothing is done with it any more, and its leases get notice. Since format version 2.
    RevokeCredential {
        /// The credential.
        id: CredentialId,
        /// Its leases end at once, where only fences protect.
        now: bool,
    },
    /// Adds or replaces a policy. Leases that nothing allows any more get notice. Since format version 2.
    PutPolicy(Box<PutPolicy>),
    /// Takes a policy away. Leases that nothing allows any more get notice. Since format version 2.
    RemovePolicy {
        /// The policy.
        name: PolicyName,
        /// The leases end at once, where only fences protect.
        now: bool,
    },
    /// From now on the policies count, or they do not. Since format version 2.
    SetEnforced {
        /// Whether they count.
        enforced: bool,
    },
}

/// A command, and who it is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributed {
    /// Who.
    pub identity: Identity,
    /// What; never attributed itself.
    pub command: Command,
}

/// Makes a credential known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutCredential {
    /// Its public half.
    pub id: CredentialId,
    /// Whom it makes its bearer.
    pub name: IdentityName,
    /// The SHA-256 of its secret half.
    pub hash: [u8; 32],
    /// When it expires, by the calendar.
    pub expires: Option<WallTime>,
}

/// Adds or replaces a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutPolicy {
    /// Its name.
    pub name: PolicyName,
    /// What it allows.
    pub policy: Policy,
    /// Leases that nothing allows any more end at once, where only fences protect.
    pub now: bool,
}

impl Command {
    /// The command itself, and who it is from.
    pub fn attributed(&self) -> (&Identity, &Command) {
        match self {
            Command::As(attributed) => (&attributed.identity, &attributed.command),
            command => (&Identity::Anyone, command),
        }
    }
}

/// What a restore begins with: enough to refuse it before anything large is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreBegin {
    /// The sender's name for this restore. A begin with the same content goes on where it stopped.
    pub id: RestoreId,
    /// What the backup says about its cluster.
    pub base: BackupBase,
    /// Above every token that was ever seen anywhere.
    pub token_floor: Token,
    /// Somebody vouches that no holder of the old cluster is running: grants need not wait.
    pub holders_stopped: bool,
}

/// One piece of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestorePiece {
    /// The restore.
    pub id: RestoreId,
    /// Its place: pieces are numbered from 0 and staged in order. A piece that was staged already changes
    /// nothing.
    pub number: u64,
    /// How many bytes of the backup it holds, for people.
    pub bytes: u64,
    /// The checksum of these bytes.
    pub checksum: u128,
    /// How many leases were ended because their sessions are left out: backups of version 1 have sessions.
    pub ended: u64,
    /// What it holds.
    pub records: BackupRecords,
}

impl RestorePiece {
    /// The checksum over all pieces up to this one, given the one before it; zero before the first. Order
    /// counts.
    pub const fn chain(&self, before: u128) -> u128 {
        const ODD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
        (before ^ self.checksum).wrapping_mul(ODD).rotate_left(61).wrapping_add(self.checksum)
    }
}

/// Records of a backup, each kind in the order of its numbers. They belong to no session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackupRecords {
    /// Resources: free, and nobody waits for them.
    pub resources: Vec<(ResourceNumber, Resource)>,
    /// Registers, none of them ephemeral.
    pub registers: Vec<(RegisterNumber, RegisterRecord)>,
    /// Nonces that can open nothing any more, the oldest first.
    pub used_nonces: Vec<UsedNonce>,
    /// Credentials, in the order of their ids. Since format version 2.
    pub credentials: Vec<(CredentialId, Credential)>,
    /// Policies, in the order of their names. Since format version 2.
    pub policies: Vec<(PolicyName, Policy)>,
}

impl BackupRecords {
    /// How many there are.
    pub fn len(&self) -> usize {
        let authority = self.credentials.len() + self.policies.len();
        self.resources.len() + self.registers.len() + self.used_nonces.len() + authority
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What every node of a cluster must agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The cluster's name for itself; a restore makes a new one.
    pub cluster: [u8; 16],
    /// The limits that the machine enforces.
    pub limits: Limits,
}

/// The session that a command belongs to, and the command's place in that session's numbering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The session.
    pub session: SessionId,
    /// The client's rising number; `None` for callers that keep none (curl): at-least-once.
    pub number: Option<u64>,
    /// The lowest number whose answer the client still awaits; smaller ones are forgotten.
    pub lowest_awaited: u64,
}

impl Caller {
    /// A caller that numbers nothing: at-least-once.
    pub const fn unnumbered(session: SessionId) -> Caller {
        Caller { session, number: None, lowest_awaited: 0 }
    }
}

/// Opens a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// Who, for people.
    pub holder: HolderName,
    /// How long the session lives without a renewal.
    pub ttl: Duration,
    /// Lets a repeated open find the live session that it made, if holder and TTL are equal.
    pub nonce: Option<Nonce>,
    /// The secret half of the new session's id, drawn by the proposer.
    pub secret: Secret,
    /// The number of this transmission, in the numbering of renewals; the answer names it.
    pub number: u64,
}

/// Who acquires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireBy {
    /// A session that is open.
    Session(Caller),
    /// A session opened by this very command. It ends with a refusal, with the wait's time-out, or with its
    /// last lease.
    Opening(Open),
}

/// Takes one or several resources: all or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// Who acquires.
    pub by: AcquireBy,
    /// What: at least one, each once.
    pub resources: Vec<ResourceName>,
    /// How it is held.
    pub mode: Mode,
    /// Whether and how long to wait in the queue.
    pub wait: Wait,
    /// What else was asked for.
    pub policies: Policies,
    /// Fences to be added to the resources' fence sets.
    pub fences: Vec<FenceName>,
    /// Set for a plain acquire, which has neither a number nor a nonce: what undoes it when its caller hangs
    /// up.
    pub transmission: Option<TransmissionId>,
}

/// How a resource is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// One holder, with write authority.
    Exclusive,
    /// Many readers, no write authority.
    Shared,
    /// One of `n` slots, each with write authority over its own scope.
    Slots(u32),
}

/// The kind of a resource: which modes its grants can have. Fixed by the first grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KindSetting {
    /// Exclusive and shared grants.
    Lock,
    /// A semaphore of `n` slots.
    Semaphore(u32),
}

impl Mode {
    /// The kind of resource that can be held like this.
    pub const fn kind(self) -> KindSetting {
        match self {
            Mode::Exclusive | Mode::Shared => KindSetting::Lock,
            Mode::Slots(n) => KindSetting::Semaphore(n),
        }
    }

    /// Whether a grant in this mode may write.
    pub const fn writes(self) -> bool {
        !matches!(self, Mode::Shared)
    }
}

/// Whether and how long an acquire waits in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: granted now, or refused.
    No,
    /// At most this long, in cluster time.
    For(Duration),
    /// As long as its session lives.
    Forever,
}

/// What an acquire may ask for beyond the lease itself; each is off unless asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    /// After an unclean end nobody is granted the resource for this long.
    pub lock_delay: Option<Duration>,
    /// The lease ends by notice at the latest after this long.
    pub max_hold: Option<Duration>,
    /// Past the TTL the session lapses instead of ending, until this long after its last renewal.
    pub hard_limit: Option<Duration>,
    /// Higher goes first in the queue. Never takes from a holder.
    pub priority: i32,
    /// A further acquire by the session that holds the resource is counted instead of refused.
    pub reentrant: bool,
}

/// Several reads, comparisons and writes of registers as one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The session, for numbered writes and for ephemeral keys without a guard.
    pub by: Option<Caller>,
    /// All must hold for `then` to be done; otherwise `otherwise` is.
    pub compares: Vec<Compare>,
    /// What to do when all comparisons hold.
    pub then: Vec<Operation>,
    /// What to do when one does not.
    pub otherwise: Vec<Operation>,
}

/// One comparison with a register's present state; a register that does not exist has zero in every
/// number and an empty value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    /// The register.
    pub key: RegisterKey,
    /// What is compared.
    pub field: CompareField,
    /// How.
    pub op: CompareOp,
}

/// What of a register is compared, and with what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompareField {
    /// The revision that created it.
    CreateRevision(u64),
    /// The revision that last changed it.
    ModRevision(u64),
    /// How often it was written since it was created.
    Version(u64),
    /// Its value.
    Value(Arc<[u8]>),
}

/// How a register's field relates to the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareOp {
    /// The field equals the operand.
    Equal,
    /// The field differs from the operand.
    NotEqual,
    /// The field is greater than the operand.
    Greater,
    /// The field is less than the operand.
    Less,
}

/// The authority under which a register is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The resource, or one slot of it.
    pub scope: Scope,
    /// The token of a live exclusive grant of it.
    pub token: Token,
}

/// One operation on registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Writes a value.
    Put {
        /// The register.
        key: RegisterKey,
        /// Its new value.
        value: Arc<[u8]>,
        /// The authority, for a guarded register; the first guarded write fixes the guard.
        guard: Option<Guard>,
        /// The register disappears with the session: the guard's, or else the caller's.
        ephemeral: bool,
    },
    /// Removes a register; its guard stays.
    Delete {
        /// The register.
        key: RegisterKey,
        /// The authority, for a guarded register.
        guard: Option<Guard>,
    },
    /// Reads a register.
    Get {
        /// The register.
        key: RegisterKey,
    },
}
