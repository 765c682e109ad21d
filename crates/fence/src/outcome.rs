//! What a storage can answer, distinguished so that a caller never has to guess: accepted, stale, out of
//! time, refused, unavailable, unknown. This file decides only what an unknown write's trace means.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;

use tenure_core::{HolderName, Scope, Token};

use crate::Takeover;

/// What a fence's call comes to, in a box so that fences of different storages fit in one list.
pub type FenceFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, FenceError>> + Send + 'a>>;

/// What every fence can do, whatever it guards. Guarded writes differ too much from storage to storage
/// to be one method: each adapter has its own.
pub trait Fence: Send + Sync {
    /// Installs the takeover's token and returns what the predecessor left. When it returns, no write
    /// under a smaller token can land in this scope any more. Asking again with the same token is
    /// harmless, so a barrier whose outcome is unknown is simply repeated.
    fn barrier<'a>(&'a self, takeover: &'a Takeover) -> FenceFuture<'a, Barrier>;

    /// What the fence remembers of a scope; `None` if it never saw a token for it.
    fn mark<'a>(&'a self, scope: &'a Scope) -> FenceFuture<'a, Option<FenceMark>>;

    /// Lowers a mark that a made-up token has poisoned, and writes down who did it and why. This is the
    /// one way in which a mark ever falls: use it with all holders stopped.
    fn repair<'a>(
        &'a self,
        scope: &'a Scope,
        to: Token,
        by: &'a HolderName,
        reason: &'a str,
    ) -> FenceFuture<'a, FenceMark>;
}

/// The holder's progress, kept beside the token and handed to the successor. Opaque bytes.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Cursor(Vec<u8>);

impl Cursor {
    /// The cursor's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The cursor as text, if it is text.
    pub fn as_text(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

impl<T: Into<Vec<u8>>> From<T> for Cursor {
    fn from(bytes: T) -> Cursor {
        Cursor(bytes.into())
    }
}

impl fmt::Debug for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cursor({:?})", String::from_utf8_lossy(&self.0))
    }
}

/// What a barrier found: where to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Barrier {
    /// The token seen before; equal to the new one if this barrier was a repeated one.
    pub predecessor: Option<Token>,
    /// How many serial writes the scope has seen, over all holders.
    pub seq: u64,
    /// How far the work has come.
    pub cursor: Option<Cursor>,
}

/// What a fence remembers of one scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceMark {
    /// The highest token seen.
    pub token: Token,
    /// Who installed it, for people; unknown where a write raised the mark without a barrier.
    pub holder: Option<HolderName>,
    /// How many serial writes the scope has seen, over all holders.
    pub seq: u64,
    /// How far the work has come.
    pub cursor: Option<Cursor>,
}

impl FenceMark {
    /// What the mark says about a write whose outcome was unknown: `Some(true)` it was applied,
    /// `Some(false)` it was not and, the connection being closed, will not be; `None` the mark cannot say.
    pub fn tells(&self, token: Token, find_out: FindOut) -> Option<bool> {
        match find_out {
            FindOut::Seq(seq) if self.token == token => Some(self.seq >= seq),
            _ => None,
        }
    }
}

/// How to learn what became of a write whose outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindOut {
    /// Do it again: it is idempotent (a barrier, a write of the same value).
    Repeat,
    /// Read the mark: the write was applied if and only if, still under this token, its `seq` has
    /// reached this number. See [`FenceMark::tells`].
    Seq(u64),
    /// Look for what the write would have left: the fence keeps no trace of parallel writes.
    ReadBack,
}

/// A write or barrier refused because a newer token has been seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stale {
    /// The scope it was refused for.
    pub scope: Scope,
    /// The token it came with.
    pub presented: Token,
    /// The highest token seen.
    pub seen: Token,
}

/// Why a guarded call did not answer "accepted".
#[derive(Debug)]
pub enum FenceError {
    /// A true no: a newer holder is there. Not applied. Stop working; do not retry.
    Stale(Stale),
    /// The lease's time was used up before the storage was asked to make the write final. Not applied.
    OutOfTime {
        /// The scope.
        scope: Scope,
        /// The token whose time is used up.
        token: Token,
    },
    /// A true no that has nothing to do with tokens (a constraint, a missing table, a right). Not applied.
    Refused {
        /// What the storage said.
        cause: Box<dyn Error + Send + Sync>,
    },
    /// The storage could not be asked, or gave up before doing anything. Not applied; try again.
    Unavailable {
        /// What went wrong.
        cause: Box<dyn Error + Send + Sync>,
    },
    /// May or may not have been applied.
    Unknown {
        /// How to learn which.
        find_out: FindOut,
        /// What went wrong.
        cause: Box<dyn Error + Send + Sync>,
    },
}

/// Whether a failed call has changed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceEffect {
    /// Certainly not.
    NotApplied,
    /// Nobody can tell yet; [`FindOut`] says how to.
    Unknown,
}

impl FenceError {
    /// Whether the call may have changed anything.
    pub fn effect(&self) -> FenceEffect {
        match self {
            FenceError::Unknown { .. } => FenceEffect::Unknown,
            _ => FenceEffect::NotApplied,
        }
    }

    /// The refusal, if a newer token was seen.
    pub fn stale(&self) -> Option<&Stale> {
        match self {
            FenceError::Stale(stale) => Some(stale),
            _ => None,
        }
    }
}

#[allow(dead_code)] // which of these are used depends on the adapters compiled in
impl FenceError {
    pub(crate) fn refused(cause: impl Into<Box<dyn Error + Send + Sync>>) -> FenceError {
        FenceError::Refused { cause: cause.into() }
    }

    pub(crate) fn unavailable(cause: impl Into<Box<dyn Error + Send + Sync>>) -> FenceError {
        FenceError::Unavailable { cause: cause.into() }
    }

    pub(crate) fn unknown(find_out: FindOut, cause: impl Into<Box<dyn Error + Send + Sync>>) -> FenceError {
        FenceError::Unknown { find_out, cause: cause.into() }
    }
}

impl fmt::Display for FenceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FenceError::Stale(Stale { scope, presented, seen }) => {
                write!(
                    f,
                    "{scope}: token {presented} is stale, {seen} has been seen; another holder is at work, stop"
                )
            }
            FenceError::OutOfTime { scope, token } => {
                write!(
                    f,
                    "{scope}: the lease under token {token} has no time left for this; nothing was written"
                )
            }
            FenceError::Refused { cause } => {
                write!(f, "refused by the storage, nothing was written: {cause}")
            }
            FenceError::Unavailable { cause } => {
                write!(f, "the storage could not be asked, nothing was written: {cause}")
            }
            FenceError::Unknown { find_out, cause } => {
                let how = match find_out {
                    FindOut::Repeat => "repeat the call, it is idempotent".to_owned(),
                    FindOut::Seq(seq) => format!("read the mark: applied if its seq is at least {seq}"),
                    FindOut::ReadBack => "read back what it would have written".to_owned(),
                };
                write!(f, "may or may not have been applied ({how}): {cause}")
            }
        }
    }
}

impl Error for FenceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            FenceError::Stale(_) | FenceError::OutOfTime { .. } => None,
            FenceError::Refused { cause }
            | FenceError::Unavailable { cause }
            | FenceError::Unknown { cause, .. } => Some(cause.as_ref()),
        }
    }
}
