//! Permits: proof, taken at one moment, that a lease is valid now.
//!
//! A permit carries the token, and it is the only thing that does: what writes to a fenced storage
//! demands one. This file decides nothing; `holder.rs` decides whether a permit may be given.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;

use crate::names::Scope;
use crate::numbers::{Generation, Token};
use crate::time::Moment;

/// Counts the permits that are out, so that a drain can wait for them.
#[derive(Clone, Debug, Default)]
pub struct PermitCount(Arc<AtomicUsize>);

impl PermitCount {
    /// How many permits are out now.
    pub fn out(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    fn taken(&self) -> PermitCount {
        self.0.fetch_add(1, Ordering::AcqRel);
        self.clone()
    }
}

/// Proof that an exclusive lease (or one slot of a semaphore) was valid when the permit was taken, and
/// for how long work may go on under it. Write authority: adapters of fenced storages ask for this type.
///
/// Dropping it says that the work under it has ended.
#[must_use = "a permit covers work only while it is kept"]
#[derive(Debug)]
pub struct Permit {
    scope: Scope,
    token: Token,
    generation: Generation,
    taken: Moment,
    remaining: Duration,
    count: PermitCount,
}

impl Permit {
    /// A permit taken at `taken` with `remaining` left until the holder's local deadline. For the holder's
    /// logic and for tests of storages; applications get permits from a lease.
    pub fn new(
        scope: Scope,
        token: Token,
        generation: Generation,
        taken: Moment,
        remaining: Duration,
        count: &PermitCount,
    ) -> Permit {
        Permit { scope, token, generation, taken, remaining, count: count.taken() }
    }

    /// What the permit covers: the resource, or one slot of it.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The fencing token to write with.
    pub fn token(&self) -> Token {
        self.token
    }

    /// How often the resource had changed hands at this grant; for people.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// What is left at `now` before the holder must have stopped; zero when nothing is.
    pub fn remaining(&self, now: Moment) -> Duration {
        self.remaining.saturating_sub(now.longest_since(self.taken))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.count.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Proof that a *shared* lease was valid when the permit was taken. Sharers are readers: this type has no
/// token, so no fenced storage can accept it for a write.
#[must_use = "a permit covers work only while it is kept"]
#[derive(Debug)]
pub struct ReadPermit(Permit);

impl ReadPermit {
    /// The reader's permit made of what a writer's would be, without the right to its token.
    pub fn new(permit: Permit) -> ReadPermit {
        ReadPermit(permit)
    }

    /// What the permit covers.
    pub fn scope(&self) -> &Scope {
        self.0.scope()
    }

    /// What is left at `now` before the reader must have stopped.
    pub fn remaining(&self, now: Moment) -> Duration {
        self.0.remaining(now)
    }
}
