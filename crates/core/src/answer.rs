//! What applying a command answers. A refusal is an answer, so it is a value; nothing here can fail.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use crate::command::{KindSetting, Mode};
use crate::event::EndReason;
use crate::identity::{Identity, Verb};
use crate::names::{FenceName, HolderName, IdentityName, PolicyName, RegisterKey, ResourceName, Scope};
use crate::numbers::{Generation, Nonce, Revision, SessionId, SessionNumber, Slot, Token, TransmissionId};

/// What applying one command answered.
pub type Answer = Result<Done, Refusal>;

/// A lease as its holder sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The resource.
    pub resource: ResourceName,
    /// The session that holds it.
    pub session: SessionId,
    /// The session's holder.
    pub holder: HolderName,
    /// How it is held.
    pub mode: Mode,
    /// Which slot, for a semaphore.
    pub slot: Option<Slot>,
    /// The fencing token.
    pub token: Token,
    /// How often the resource has changed hands.
    pub generation: Generation,
    /// What was left of the session at the grant.
    pub remaining: Duration,
    /// The session's TTL.
    pub ttl: Duration,
    /// How long the acquire waited in the queue.
    pub waited: Duration,
    /// The fence set of the resource, whoever brought its fences: where the token is to be installed first.
    pub fences: Vec<FenceName>,
}

/// What a command did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// Nothing that needs words.
    Nothing,
    /// A session is open (again). The deadline is this entry's time plus `ttl`.
    Opened {
        /// Its id, for its opener alone.
        session: SessionId,
        /// Who.
        holder: HolderName,
        /// The TTL that the holder counts with.
        ttl: Duration,
        /// The number of the transmission that this answers.
        number: u64,
    },
    /// A session has ended.
    Closed {
        /// How many leases it gave back.
        released: u32,
    },
    /// All resources asked for are held now.
    Granted {
        /// One grant per resource, in the order asked for.
        grants: Vec<Grant>,
        /// Set when this command opened the session and so counts as its open: the number of that
        /// transmission. A waited grant never does.
        opened: Option<u64>,
    },
    /// The acquire waits in the queue; its grant, time-out or end comes as an event.
    Queued {
        /// The session that stands there.
        session: SessionId,
        /// Its TTL.
        ttl: Duration,
        /// How many stand before it, over all of its queues the largest.
        ahead: u32,
    },
    /// The acquire is undone.
    Cancelled {
        /// Whether it had been granted, and is released by this.
        released: bool,
    },
    /// The lease is given back.
    Released {
        /// False if there was nothing left to give back.
        released: bool,
    },
    /// The resource has a new holder.
    Transferred(Box<Grant>),
    /// Holders were given notice, or their leases were ended.
    Revoked {
        /// The leases touched.
        holdings: Vec<Holding>,
        /// The token taken without a holder, where the leases ended at once.
        token: Option<Token>,
    },
    /// The registers were read and written.
    Written {
        /// Whether all comparisons held.
        succeeded: bool,
        /// The revision of this command, or the present one if it changed nothing.
        revision: Revision,
        /// One result per operation, in order.
        results: Vec<Register>,
    },
    /// The cluster remembers what the backup held.
    Restored {
        /// Tokens are issued above this.
        token_floor: Token,
        /// Nobody is granted anything for this long.
        grants_in: Duration,
    },
    /// A part of a backup is staged.
    Staged {
        /// How many pieces are: the number of the next one that is missing.
        pieces: u64,
    },
    /// A token was taken without a holder.
    BarrierTaken {
        /// The token.
        token: Token,
    },
}

/// One register as a read or a write shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    /// The register.
    pub key: RegisterKey,
    /// Its value; `None` if it does not exist.
    pub value: Option<Arc<[u8]>>,
    /// The revision that created it; zero if it does not exist.
    pub create_revision: Revision,
    /// The revision that last changed it; zero if it does not exist.
    pub mod_revision: Revision,
    /// How often it was written since it was created.
    pub version: u64,
    /// The public number of the session with which it disappears.
    pub session: Option<SessionNumber>,
    /// What guards it.
    pub guard: Option<Scope>,
}

/// One holder of a resource, as anybody may see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The public number of the session.
    pub session: SessionNumber,
    /// Who.
    pub holder: HolderName,
    /// How it is held.
    pub mode: Mode,
    /// Which slot, for a semaphore.
    pub slot: Option<Slot>,
    /// The fencing token.
    pub token: Token,
    /// How often the resource has changed hands.
    pub generation: Generation,
    /// What is left before it ends without a renewal, or by the notice.
    pub remaining: Duration,
    /// The session's TTL.
    pub ttl: Duration,
    /// How long it has been held.
    pub held_for: Duration,
    /// Why it is about to end, if notice was given.
    pub notice: Option<EndReason>,
    /// The session has lapsed: the first contender takes it.
    pub lapsed: bool,
    /// Who opened the session, if that was said. Since format version 2.
    pub identity: Option<IdentityName>,
}

/// A true no, with what the caller needs to act on it. None of these changed anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Somebody else holds it, or waits in the queue before the caller.
    Held {
        /// The resource that could not be had.
        resource: ResourceName,
        /// Who holds it; `None` if it is free but others are before the caller.
        by: Option<Box<Holding>>,
        /// How long the caller waited in the queue before its time was up.
        waited: Duration,
    },
    /// The resource rests after an unclean end.
    Delayed {
        /// The resource.
        resource: ResourceName,
        /// For how long still.
        remaining: Duration,
    },
    /// The session has ended, or never was.
    UnknownSession,
    /// The session has lapsed: past its TTL, not yet past its hard limit. A renewal makes it live again.
    Lapsed,
    /// The session named does not wait in the queue for this resource alone, so it is not ready to take it.
    NotReady {
        /// The resource.
        resource: ResourceName,
        /// The session named.
        session: SessionNumber,
    },
    /// The session does not hold this resource (with this token).
    NotHeld {
        /// The resource.
        resource: ResourceName,
    },
    /// The lease is under notice and cannot be transferred.
    UnderNotice {
        /// The resource.
        resource: ResourceName,
    },
    /// The resource is of another kind.
    WrongKind {
        /// The resource.
        resource: ResourceName,
        /// What it is.
        is: KindSetting,
    },
    /// A newer token was granted for this scope.
    StaleToken {
        /// The token presented.
        presented: Token,
        /// The newest token of the scope.
        seen: Token,
    },
    /// The lease of this token has ended, and no newer one was granted.
    LeaseEnded {
        /// The token presented.
        presented: Token,
    },
    /// No grant of this scope ever had this token, or it is a sharer's, which cannot write.
    UnknownToken {
        /// The token presented.
        presented: Token,
    },
    /// The register is guarded by something else.
    WrongGuard {
        /// The register.
        key: RegisterKey,
        /// What guards it.
        guard: Option<Scope>,
    },
    /// This command number was answered and forgotten, or lies below what the client awaits.
    ForgottenNumber {
        /// The number.
        number: u64,
    },
    /// The acquire was cancelled: before it arrived, while it was queued, or after its grant.
    Cancelled {
        /// Whether it had been granted, and the cancel gave that back.
        released: bool,
    },
    /// This nonce has had its session or its refusal: one nonce, one session.
    NonceUsed,
    /// A limit would be passed.
    Limit {
        /// Which one, as `limits.rs` names it.
        limit: &'static str,
        /// Its value.
        max: u64,
    },
    /// The TTL is outside the limits; it is refused, never clamped.
    InvalidTtl {
        /// What was asked for.
        ttl: Duration,
        /// The shortest allowed.
        min: Duration,
        /// The longest allowed.
        max: Duration,
    },
    /// What was asked for contradicts itself; the text says how.
    Invalid(&'static str),
    /// The resource is held; this can only be done while it is free.
    InUse {
        /// The resource.
        resource: ResourceName,
    },
    /// No such thing has ever been seen here.
    NotFound,
    /// The cluster was restored from a backup and grants nothing yet.
    Restoring {
        /// For how long still.
        remaining: Duration,
    },
    /// The token floor of a restore is not above what the backup itself has issued.
    FloorTooLow {
        /// The floor given.
        floor: Token,
        /// The newest token in the backup.
        issued: u64,
    },
    /// A backup can be restored only into a cluster that nobody has used.
    NotEmpty,
    /// The pieces of this restore are not staged: it was discarded, or one is missing.
    NotStaged {
        /// The first piece that is missing; `None` if no restore of that name is staged at all.
        next: Option<u64>,
    },
    /// The tokens below 2^53 are used up.
    TokensExhausted,
    /// The caller may not do this. Since format version 2.
    Forbidden(Box<Denial>),
    /// The caller may do this, but not as much of it. Since format version 2.
    OverQuota(Box<OverQuota>),
}

/// Why a caller may not do what it asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// Who asked.
    pub identity: Identity,
    /// The right that it needs.
    pub verb: Verb,
    /// On what; `*` for what concerns the whole cluster, or no name in particular.
    pub on: Arc<str>,
    /// Why not.
    pub why: DenialReason,
    /// Of its own policies the one that comes nearest.
    pub nearest: Option<PolicyName>,
}

/// Why a caller may not do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DenialReason {
    /// No policy allows it.
    NoPolicy,
    /// Its credential has expired, and takes nothing new.
    Expired,
    /// Its credential was revoked, or expired too long ago.
    Revoked,
    /// Another identity opened the session.
    OtherSession,
    /// Another identity holds the lease of this token.
    OtherHolder,
    /// The policy binds the holder to the name of the identity, and the session has another.
    HolderName,
    /// It would give a right that the caller does not have itself.
    BeyondOwn,
}

impl DenialReason {
    /// All of them.
    pub const ALL: [DenialReason; 7] = [
        DenialReason::NoPolicy,
        DenialReason::Expired,
        DenialReason::Revoked,
        DenialReason::OtherSession,
        DenialReason::OtherHolder,
        DenialReason::HolderName,
        DenialReason::BeyondOwn,
    ];

    /// The word for it, the same on every surface.
    pub const fn as_str(self) -> &'static str {
        match self {
            DenialReason::NoPolicy => "no_policy",
            DenialReason::Expired => "expired",
            DenialReason::Revoked => "revoked",
            DenialReason::OtherSession => "other_session",
            DenialReason::OtherHolder => "other_holder",
            DenialReason::HolderName => "holder_name",
            DenialReason::BeyondOwn => "beyond_own",
        }
    }
}

impl core::fmt::Display for Denial {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Denial { identity, verb, on, why, nearest } = self;
        match why {
            DenialReason::NoPolicy => write!(f, "no policy allows {identity} to {verb} {on}")?,
            DenialReason::Expired => {
                write!(f, "the credential of {identity} has expired and takes nothing new: {verb} {on}")?;
            }
            DenialReason::Revoked => write!(f, "the credential of {identity} has ended: {verb} {on}")?,
            DenialReason::OtherSession => {
                write!(f, "another identity than {identity} opened this session: {verb} {on}")?;
            }
            DenialReason::OtherHolder => {
                write!(f, "another identity than {identity} holds the lease of this token: {verb} {on}")?;
            }
            DenialReason::HolderName => {
                write!(f, "the policy binds the holder to the name of {identity}: {verb} {on}")?;
            }
            DenialReason::BeyondOwn => {
                write!(f, "{identity} cannot give more than it may itself: {verb} {on}")?;
            }
        }
        match nearest {
            Some(nearest) => write!(f, " (the nearest policy is {nearest})"),
            None => Ok(()),
        }
    }
}

/// What a policy allows no more of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverQuota {
    /// Who asked.
    pub identity: Identity,
    /// Which limit, as [`Quotas`](crate::Quotas) names it.
    pub limit: &'static str,
    /// Its value; of `ttl_max` in milliseconds.
    pub max: u64,
    /// What there would be.
    pub used: u64,
    /// The policy that sets it.
    pub policy: Option<PolicyName>,
}

impl core::fmt::Display for OverQuota {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let OverQuota { identity, limit, max, used, policy } = self;
        write!(f, "{limit} of {identity} would be {used}, and ")?;
        match policy {
            Some(policy) => write!(f, "policy {policy} allows {max}"),
            None => write!(f, "no policy allows more than {max}"),
        }
    }
}

/// What an acquire that was queued is found by when its wait ends: known to whoever sent it before it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitKey {
    /// A numbered acquire of a session.
    Number(SessionNumber, u64),
    /// An acquire that opened its own session.
    Nonce(Nonce),
    /// One transmission of a plain acquire.
    Transmission(TransmissionId),
}

/// The end of a wait: what everyone who waits under this key is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Whose wait it was.
    pub key: WaitKey,
    /// The grant, or why there is none.
    pub answer: Answer,
}

/// What a renewal answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenewalAnswer {
    /// The session lives; its deadline counts from this transmission's own send, if its number was the highest.
    Renewed {
        /// The number of the transmission that this answers.
        number: u64,
        /// The TTL that the holder counts with.
        ttl: Duration,
        /// The revision of the session's last lease change; a client that knows an older one missed a push.
        last_lease_revision: Revision,
        /// Leases under notice or ended, to be taken in before the deadline moves; `None` if there are none.
        events: Option<Box<RenewalEvents>>,
    },
    /// The session has ended, or never was.
    UnknownSession,
}

/// What a holder must take in before its deadline moves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RenewalEvents {
    /// Leases under notice: resource, token, why, and what is left of the lease.
    pub noticed: Vec<(ResourceName, Token, EndReason, Duration)>,
    /// Leases that ended without the holder asking for it: resource, token, why.
    pub ended: Vec<(ResourceName, Token, EndReason)>,
    /// More ended than are remembered: ask for the list of leases still held.
    pub incomplete: bool,
}
