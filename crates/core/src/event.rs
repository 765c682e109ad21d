//! What the machine reports: events, grouped by revision. Watchers get them, waiters receive their
//! grants by them, and the history that people read is made of them.

use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;

use crate::command::Mode;
use crate::names::{FenceName, HolderName, IdentityName, RegisterKey, ResourceName, Scope};
use crate::numbers::{Generation, Revision, SessionNumber, Slot, Token};
use crate::time::WallTime;

/// Why a lease or a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// The holder gave it back, or confirmed a notice by doing so.
    Released,
    /// No renewal came in time.
    Expired,
    /// An administrator ended it.
    Revoked,
    /// The holder handed it to another session.
    Transferred,
    /// The maximum hold was reached.
    HeldTooLong,
    /// The session had lapsed and a contender came.
    TakenOver,
    /// A supervisor saw the holder's processes dead.
    Died,
}

impl EndReason {
    /// All reasons, in a fixed order.
    pub const ALL: [EndReason; 7] = [
        EndReason::Released,
        EndReason::Expired,
        EndReason::Revoked,
        EndReason::Transferred,
        EndReason::HeldTooLong,
        EndReason::TakenOver,
        EndReason::Died,
    ];

    /// The word for it, the same on every surface.
    pub const fn as_str(self) -> &'static str {
        match self {
            EndReason::Released => "released",
            EndReason::Expired => "expired",
            EndReason::Revoked => "revoked",
            EndReason::Transferred => "transferred",
            EndReason::HeldTooLong => "held_too_long",
            EndReason::TakenOver => "taken_over",
            EndReason::Died => "died",
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One change that anybody may see. All events of one revision belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The revision of the command that made the change.
    pub revision: Revision,
    /// The leader's calendar time, for display.
    pub wall: WallTime,
    /// What changed.
    pub kind: EventKind,
    /// Who opened the session that it is about; of what has no session, who changed it. `None` if that was not said.
    pub identity: Option<IdentityName>,
}

impl EventKind {
    /// The session that it is about.
    pub fn session(&self) -> Option<SessionNumber> {
        match self {
            EventKind::Opened { session, .. }
            | EventKind::Closed { session, .. }
            | EventKind::Lapsed { session, .. }
            | EventKind::Granted { session, .. }
            | EventKind::Ended { session, .. }
            | EventKind::Noticed { session, .. }
            | EventKind::Queued { session, .. }
            | EventKind::Unqueued { session, .. }
            | EventKind::Paused { session, .. } => Some(*session),
            EventKind::Put { .. }
            | EventKind::Deleted { .. }
            | EventKind::Barrier { .. }
            | EventKind::Armed { .. }
            | EventKind::Refused { .. }
            | EventKind::BecameLeader { .. }
            | EventKind::Changed { .. } => None,
        }
    }
}

/// What changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A session was opened.
    Opened {
        /// Its public number.
        session: SessionNumber,
        /// Who.
        holder: HolderName,
    },
    /// A session ended, after all of its leases.
    Closed {
        /// Its public number.
        session: SessionNumber,
        /// Who.
        holder: HolderName,
        /// Why.
        why: EndReason,
    },
    /// A session lapsed: past its TTL, not yet past its hard limit.
    Lapsed {
        /// Its public number.
        session: SessionNumber,
        /// Who.
        holder: HolderName,
    },
    /// A resource has a (further) holder.
    Granted {
        /// The resource.
        resource: ResourceName,
        /// The session that holds it.
        session: SessionNumber,
        /// Who.
        holder: HolderName,
        /// How it is held.
        mode: Mode,
        /// Which slot, for a semaphore.
        slot: Option<Slot>,
        /// The fencing token.
        token: Token,
        /// How often the resource has changed hands.
        generation: Generation,
        /// How long the acquire waited in the queue.
        waited: Duration,
        /// The number of the acquire that this answers, if it had one.
        number: Option<u64>,
    },
    /// A lease ended.
    Ended {
        /// The resource.
        resource: ResourceName,
        /// The session that held it.
        session: SessionNumber,
        /// Who.
        holder: HolderName,
        /// Which slot, for a semaphore.
        slot: Option<Slot>,
        /// The fencing token.
        token: Token,
        /// Why.
        why: EndReason,
        /// How long it was held.
        held_for: Duration,
        /// How late it ended: cluster time past the deadline that ended it.
        late: Duration,
        /// The administrator's words, for a revocation.
        reason: Option<Arc<str>>,
    },
    /// A lease is to end: when the holder confirms, or when this much has passed.
    Noticed {
        /// The resource.
        resource: ResourceName,
        /// The session that holds it.
        session: SessionNumber,
        /// The fencing token.
        token: Token,
        /// Why it will end.
        why: EndReason,
        /// What is left.
        remaining: Duration,
        /// The administrator's words, for a revocation.
        reason: Option<Arc<str>>,
    },
    /// An acquire waits in the queue.
    Queued {
        /// The resource.
        resource: ResourceName,
        /// The session that waits.
        session: SessionNumber,
        /// Who.
        holder: HolderName,
        /// The number of the acquire, if it had one.
        number: Option<u64>,
    },
    /// An acquire left the queue without a grant.
    Unqueued {
        /// The resource.
        resource: ResourceName,
        /// The session that waited.
        session: SessionNumber,
        /// Who.
        holder: HolderName,
        /// The number of the acquire, if it had one.
        number: Option<u64>,
        /// Why: `Released` if it was cancelled, `Expired` if its time or its session ran out.
        why: EndReason,
    },
    /// A register was written.
    Put {
        /// The register.
        key: RegisterKey,
        /// Its value.
        value: Arc<[u8]>,
        /// The revision that created it.
        create_revision: Revision,
        /// How often it was written since.
        version: u64,
    },
    /// A register was removed.
    Deleted {
        /// The register.
        key: RegisterKey,
    },
    /// A token was taken without a holder.
    Barrier {
        /// The resource.
        resource: ResourceName,
        /// The token.
        token: Token,
    },
    /// A fence installed a token.
    Armed {
        /// What it guards.
        scope: Scope,
        /// The fence.
        fence: FenceName,
        /// The token.
        token: Token,
    },
    /// A fence refused stale writes.
    Refused {
        /// What it guards.
        scope: Scope,
        /// The fence.
        fence: FenceName,
        /// The token presented last.
        presented: Token,
        /// The token that it had seen.
        seen: Token,
        /// How many.
        count: u32,
    },
    /// A holder reported that it had been paused.
    Paused {
        /// The session.
        session: SessionNumber,
        /// Who.
        holder: HolderName,
        /// For how long.
        length: Duration,
    },
    /// A node became leader.
    BecameLeader {
        /// The node.
        node: u64,
        /// Its term.
        term: u64,
    },
    /// An administrator changed something about a resource or register; for people.
    Changed {
        /// The resource or register.
        what: Arc<str>,
        /// What was done to it.
        how: &'static str,
    },
}
