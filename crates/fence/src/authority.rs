//! Who may write: the values that carry a token to a storage. Decides nothing about tokens; it only
//! makes sure, by type, that a token arrives with the right to use it.

use std::time::Duration;

use tenure_core::{HolderName, Moment, Permit, Scope, Token};

/// The right to write under a token. A closed set: a [`Permit`] (the holder itself, with time left), a
/// [`VerifiedSequencer`](crate::VerifiedSequencer) (somebody else, with a signature), or [`Unchecked`] (the
/// caller takes the blame). A reader's permit is not in the set, so sharers cannot write; nor is a number.
///
/// ```
/// fn write(_: impl tenure_fence::Authority) {}
/// fn holder(permit: tenure_core::Permit) { write(permit) }
/// ```
/// ```compile_fail
/// fn write(_: impl tenure_fence::Authority) {}
/// fn reader(permit: tenure_core::ReadPermit) { write(permit) }
/// ```
/// ```compile_fail
/// fn write(_: impl tenure_fence::Authority) {}
/// fn number(token: tenure_core::Token) { write(token) }
/// ```
pub trait Authority: sealed::Sealed + Sync {
    /// What the write is guarded by.
    fn scope(&self) -> &Scope;

    /// The token to write with.
    fn token(&self) -> Token;

    /// What is left at `now` to finish the write in; `None` if the authority says nothing about time.
    fn remaining(&self, now: Moment) -> Option<Duration>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for tenure_core::Permit {}
    impl Sealed for super::Unchecked {}
    #[cfg(feature = "sequencer")]
    impl Sealed for crate::sequencer::VerifiedSequencer {}
}

impl Authority for Permit {
    fn scope(&self) -> &Scope {
        self.scope()
    }

    fn token(&self) -> Token {
        self.token()
    }

    fn remaining(&self, now: Moment) -> Option<Duration> {
        Some(self.remaining(now))
    }
}

/// A token that nobody vouches for: it may be old (the fence will tell) or made up (the fence cannot
/// tell, and a made-up high token shuts everybody out until `repair`). For migrations, tools and tests.
#[derive(Clone, Debug)]
pub struct Unchecked {
    scope: Scope,
    token: Token,
    budget: Option<Duration>,
}

impl Unchecked {
    /// Takes the number as it is. `budget` bounds each call; it does not shrink as time passes.
    #[allow(
        clippy::self_named_constructors,
        reason = "the word is the warning, and belongs where it is called"
    )]
    pub fn unchecked(scope: Scope, token: Token, budget: Option<Duration>) -> Unchecked {
        Unchecked { scope, token, budget }
    }
}

impl Authority for Unchecked {
    fn scope(&self) -> &Scope {
        &self.scope
    }

    fn token(&self) -> Token {
        self.token
    }

    fn remaining(&self, _now: Moment) -> Option<Duration> {
        self.budget
    }
}

/// What a new holder brings to the barrier: the one use of a token without a permit, because an armed
/// lease gives its first permit only after all its fences have answered. The lease makes it.
#[derive(Clone, Debug)]
pub struct Takeover {
    scope: Scope,
    token: Token,
    holder: HolderName,
    taken: Option<(Moment, Duration)>,
}

impl Takeover {
    /// A takeover of `scope` under `token`, of which `remaining` was left when `taken` was read.
    pub fn new(
        scope: Scope,
        token: Token,
        holder: HolderName,
        taken: Moment,
        remaining: Duration,
    ) -> Takeover {
        Takeover { scope, token, holder, taken: Some((taken, remaining)) }
    }

    /// A takeover on somebody else's behalf, for a storage front end that was shown a sequencer.
    #[cfg(feature = "sequencer")]
    pub fn verified(sequencer: &crate::VerifiedSequencer, holder: HolderName) -> Takeover {
        Takeover {
            scope: Authority::scope(sequencer).clone(),
            token: Authority::token(sequencer),
            holder,
            taken: None,
        }
    }

    /// A takeover with a bare number, for tools; see [`Unchecked`] for what that risks.
    pub fn unchecked(scope: Scope, token: Token, holder: HolderName) -> Takeover {
        Takeover { scope, token, holder, taken: None }
    }

    /// What is being taken over.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The new holder's token.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The new holder, for people.
    pub fn holder(&self) -> &HolderName {
        &self.holder
    }

    /// What is left at `now` of the lease; `None` if the takeover says nothing about time.
    pub fn remaining(&self, now: Moment) -> Option<Duration> {
        self.taken.map(|(taken, remaining)| remaining.saturating_sub(now.longest_since(taken)))
    }
}
