//! How long one call to a storage may take: what is left of the lease, turned into a duration that the
//! storage's own timer and ours can count. No instant leaves this process.

use std::time::Duration;

use tenure_clock::Clock;
use tenure_core::{Scope, Token};

use crate::{Authority, FenceError, Takeover};

/// Used where the authority says nothing about time, so that no call waits without a bound.
#[allow(dead_code)] // not every adapter waits for a server
pub(crate) const UNSTATED: Duration = Duration::from_secs(30);

/// Below this nothing is started: a store's timers count in milliseconds, and zero turns them off.
const LEAST: Duration = Duration::from_millis(1);

/// What is left for a guarded write, or a refusal if nothing is.
#[allow(dead_code)] // not compiled in without an adapter
pub(crate) fn of(
    authority: &(impl Authority + ?Sized),
    clock: &dyn Clock,
) -> Result<Option<Duration>, FenceError> {
    check(authority.remaining(clock.now()), authority.scope(), authority.token())
}

/// What is left for a barrier, or a refusal if nothing is.
#[allow(dead_code)]
pub(crate) fn of_takeover(takeover: &Takeover, clock: &dyn Clock) -> Result<Option<Duration>, FenceError> {
    check(takeover.remaining(clock.now()), takeover.scope(), takeover.token())
}

fn check(remaining: Option<Duration>, scope: &Scope, token: Token) -> Result<Option<Duration>, FenceError> {
    match remaining {
        Some(left) if left < LEAST => Err(FenceError::OutOfTime { scope: scope.clone(), token }),
        left => Ok(left),
    }
}

/// The budget in whole milliseconds, rounded down: a store's timer must not outlast the lease.
#[allow(dead_code)]
pub(crate) fn millis(budget: Duration) -> u64 {
    u64::try_from(budget.as_millis()).unwrap_or(u64::MAX).clamp(1, i32::MAX as u64)
}
