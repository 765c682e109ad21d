//! The protocol's logic, each actor in a few whole numbers. It decides what `tenure_core` decides, for one
//! resource and two sessions, and takes a [`Mutation`](crate::Mutation); nothing else is mutated.

mod holder;
mod machine;
mod proposer;

pub use holder::{Holder, Lease};
pub use machine::{Applied, Hold, Machine, Session};
pub use proposer::{ModelProposer, Tagged, Turn};

/// Time of any kind, in beats: [`TICK`] of them are one step of real time.
pub type Beats = u16;

/// What every leader's clock shows for one step of real time.
pub const TICK: Beats = 4;
/// What a slow holder's clock shows for it: rho is a quarter, far more than any quartz, so that a rule that
/// forgets it shows.
pub const SLOW_TICK: Beats = 3;
/// The TTL of a session that can end: four steps.
pub const TTL: Beats = 4 * TICK;
/// The TTL of a session that makes K shrink.
pub const TTL_SHORT: Beats = 2 * TICK;
/// The TTL of a session that does not end within any stage: one hour.
pub const TTL_LONG: Beats = 28_800;
/// Sigma, the slack between check and act.
pub const SIGMA: Beats = 1;

/// How long after the send a holder may act: ttl (1 - rho) - sigma, rounded down.
pub const fn usable(ttl: Beats) -> Beats {
    (ttl - ttl.div_ceil(TICK) * (TICK - SLOW_TICK)) - SIGMA
}

/// Who: 0 or 1.
pub type Who = u8;

/// What travels to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Request {
    /// Renews a session.
    Renew {
        /// Whose.
        who: Who,
        /// The transmission's number.
        number: u8,
    },
    /// Opens a session, again or for the first time.
    Open {
        /// Whose.
        who: Who,
        /// The transmission's number.
        number: u8,
    },
    /// Asks for the resource and waits in the queue for it.
    Acquire {
        /// Who asks.
        who: Who,
    },
    /// Gives the lease with this token back.
    Release {
        /// Who had it.
        who: Who,
        /// Its token.
        token: u8,
    },
    /// Hands the lease to the other, who waits in the queue.
    Transfer {
        /// Who had it.
        who: Who,
        /// Its token.
        token: u8,
    },
    /// An administrator gives notice to whoever holds the resource.
    Revoke,
    /// A renewal of nobody's, to fill the queue.
    Noise,
    /// A command that changes nothing: it only makes an entry due.
    Chatter,
}

/// What travels to a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reply {
    /// The session is renewed.
    Renewed {
        /// To whom.
        to: Who,
        /// The transmission that this answers.
        number: u8,
        /// The lease that is under notice.
        noticed: Option<u8>,
        /// The lease that ended although its holder did not ask.
        ended: Option<u8>,
    },
    /// The session is open.
    Opened {
        /// To whom.
        to: Who,
        /// The transmission that this answers.
        number: u8,
    },
    /// The session has ended.
    Unknown {
        /// To whom.
        to: Who,
    },
    /// The resource is granted: at once, or pushed after a wait.
    Granted {
        /// To whom.
        to: Who,
        /// The token.
        token: u8,
        /// The holder waited in the queue.
        waited: bool,
    },
    /// The lease is taken back, or nothing was left of it.
    Released {
        /// To whom.
        to: Who,
        /// The token.
        token: u8,
    },
    /// Notice is given: pushed, and perhaps never received.
    Noticed {
        /// To whom.
        to: Who,
        /// The token.
        token: u8,
    },
}

impl Reply {
    /// Whom it is for.
    pub fn to(&self) -> Who {
        match *self {
            Reply::Renewed { to, .. }
            | Reply::Opened { to, .. }
            | Reply::Unknown { to }
            | Reply::Granted { to, .. }
            | Reply::Released { to, .. }
            | Reply::Noticed { to, .. } => to,
        }
    }
}

/// One entry of the log, and what only the checker knows of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The stamp.
    pub at: Beats,
    /// What rides in it, in the order of the batch.
    pub batch: Vec<Request>,
    /// Renewals that were left behind although they had arrived: whose, which, and the count at their
    /// receipt.
    pub behind: Vec<(Who, u8, Beats)>,
}
