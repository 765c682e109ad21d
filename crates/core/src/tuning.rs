//! What five numbers cost and buy, what would mend numbers that do not fit, and which to choose for what was
//! measured. Everything that `tenure tune` says is computed here; it never measures anything itself.
//!
//! Keep two kinds of number apart. The *inequalities* (`timing.rs`) are promises: if the bounds hold, they
//! hold. [`Consequences`] are costs. None of them is a probability: renewals are lost together (a
//! partition, a busy disk, an election), so a chance computed from single losses would be a number without a meaning.

use alloc::vec::Vec;
use core::time::Duration;

use crate::timing::{Bounds, BrokenTiming, Timing, TimingNumbers};

const MINUTE: Duration = Duration::from_secs(60);

/// What a plan is laid on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// How long one commit takes.
    pub commit: Duration,
    /// How many sessions renew.
    pub sessions: u64,
}

impl Default for Load {
    /// One session, a commit of 6 ms.
    fn default() -> Self {
        Self { commit: Duration::from_millis(6), sessions: 1 }
    }
}

/// What numbers that fit together cost and buy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Consequences {
    /// How long after sending a renewal its holder may act.
    pub usable: Duration,
    /// The same as a part of the TTL.
    pub usable_share: f64,
    /// What of the TTL the holder gives up: sigma and what clocks may differ by. Some call it the guard period.
    pub guard: Duration,
    /// The part of the guard that is owed to clocks: rho * ttl.
    pub drift: Duration,
    /// The longest that a resource stands still after a crash.
    pub crash_gap_worst: Duration,
    /// How long it stands still in a planned change of holder.
    pub planned_gap: Duration,
    /// Renewals per minute, of all sessions. Each would be a commit of its own if they were not batched.
    pub renewals_per_minute: u64,
    /// What these would keep a log busy for in every minute, committed one after another.
    pub committing_per_minute: Duration,
    /// Renewals that fit before the deadline if a lost one is only made up for by the next.
    pub attempts_without_retries: u64,
    /// Renewals that fit when an unanswered one is repeated after R/4.
    pub attempts_with_retries: u64,
}

impl Timing {
    /// What these numbers cost and buy.
    pub fn consequences(&self, load: &Load) -> Consequences {
        let numbers = self.numbers();
        let drift = numbers.drift(numbers.ttl);
        let renewals_per_minute = nearest(MINUTE, numbers.renew_every, load.sessions);
        Consequences {
            usable: self.usable_ttl(),
            usable_share: self.usable_share(),
            guard: numbers.sigma.saturating_add(drift),
            drift,
            crash_gap_worst: self.crash_gap_worst(load.commit),
            planned_gap: self.planned_gap(load.commit),
            renewals_per_minute,
            committing_per_minute: times(load.commit, renewals_per_minute),
            attempts_without_retries: self.attempts_without_retries(),
            attempts_with_retries: self.attempts_with_retries(),
        }
    }

    /// The same TTL renewed at a half, a third and a quarter of it, as far as that fits the bounds.
    pub fn cadences(&self, bounds: &Bounds) -> Vec<Timing> {
        let at = |part| TimingNumbers { renew_every: self.ttl() / part, ..self.numbers() };
        [2, 3, 4].into_iter().filter_map(|part| at(part).checked(bounds).ok()).collect()
    }

    /// The usual numbers at these and at shorter and longer TTLs, for a curve: those that fit the bounds, the
    /// shortest first.
    pub fn trade_off(&self, bounds: &Bounds) -> Vec<Timing> {
        const LADDER_MS: [u64; 10] =
            [500, 1_000, 2_000, 3_000, 5_000, 10_000, 15_000, 30_000, 60_000, 300_000];
        let numbers = self.numbers();
        let mut points: Vec<Timing> = LADDER_MS
            .into_iter()
            .map(Duration::from_millis)
            .filter(|ttl| *ttl != numbers.ttl)
            .map(|ttl| TimingNumbers::for_world(ttl, numbers.net, bounds))
            .filter_map(|other| TimingNumbers { rho_ppm: numbers.rho_ppm, ..other }.checked(bounds).ok())
            .chain([*self])
            .collect();
        points.sort_by_key(Timing::ttl);
        points
    }
}

/// One change that makes one broken inequality hold, everything else being as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Lengthen the TTL to at least this.
    TtlAtLeast(Duration),
    /// Shorten the TTL to at most this.
    TtlAtMost(Duration),
    /// Renew at least this often.
    RenewAtMostEvery(Duration),
    /// Raise sigma to at least this.
    SigmaAtLeast(Duration),
    /// Lower sigma to at most this.
    SigmaAtMost(Duration),
    /// Bound the longest operation by this.
    OperationAtMost(Duration),
}

impl TimingNumbers {
    /// Single changes that make a broken inequality hold, each enough on its own, in whole milliseconds. Another
    /// inequality may still be broken after it.
    pub fn changes(&self, broken: &BrokenTiming, bounds: &Bounds) -> Vec<Change> {
        // As if the server's limits were wide: whether a length is within them is an inequality of its own.
        let wide = Bounds { ttl_min: Duration::ZERO, ttl_max: bounds.ttl_max.max(self.ttl), ..*bounds };
        let mends = |numbers: TimingNumbers, bounds: Bounds| {
            let still =
                |other: &BrokenTiming| core::mem::discriminant(other) == core::mem::discriminant(broken);
            !numbers.broken(&bounds).iter().any(still)
        };
        let ttl = || {
            let holds = |ttl| mends(TimingNumbers { ttl, ..*self }, wide);
            smallest(wide.ttl_max, holds).map(Change::TtlAtLeast)
        };
        let renew_every = || {
            let holds = |renew_every| mends(TimingNumbers { renew_every, ..*self }, wide);
            // Zero is no cadence.
            largest(self.renew_every, holds).filter(|every| !every.is_zero()).map(Change::RenewAtMostEvery)
        };
        let sigma_at_most = || {
            let holds = |sigma| mends(TimingNumbers { sigma, ..*self }, wide);
            largest(self.sigma, holds).filter(|sigma| *sigma >= bounds.pause).map(Change::SigmaAtMost)
        };
        let operation = || {
            let holds = |max_op| mends(*self, Bounds { max_op, ..wide });
            largest(bounds.max_op, holds).map(Change::OperationAtMost)
        };
        match *broken {
            BrokenTiming::NothingUsable { .. } => [ttl(), sigma_at_most()].into_iter().flatten().collect(),
            BrokenTiming::SlackTooSmall { sigma_min, .. } => [Change::SigmaAtLeast(sigma_min)].into(),
            BrokenTiming::OutsideLimits { ttl, ttl_min, .. } if ttl < ttl_min => {
                [Change::TtlAtLeast(ttl_min)].into()
            }
            BrokenTiming::OutsideLimits { ttl_max, .. } => [Change::TtlAtMost(ttl_max)].into(),
            BrokenTiming::BelowFloor { floor, .. } => [Change::TtlAtLeast(floor)].into(),
            BrokenTiming::RenewsWithoutPause => [Change::RenewAtMostEvery(self.ttl / 3)].into(),
            BrokenTiming::RenewsTooLate { .. } => [renew_every(), ttl()].into_iter().flatten().collect(),
            BrokenTiming::WorkTooLong { .. } => {
                [operation(), renew_every(), ttl()].into_iter().flatten().collect()
            }
        }
    }

    /// Numbers that fit the bounds and stay close to these: this TTL with the usual rest if that fits, else the shortest TTL
    /// that does; `None` if no allowed TTL does.
    pub fn mended(&self, bounds: &Bounds) -> Option<Timing> {
        let kept =
            TimingNumbers { rho_ppm: self.rho_ppm, ..TimingNumbers::for_world(self.ttl, self.net, bounds) };
        kept.checked(bounds).ok().or_else(|| TimingNumbers::shortest(self.net, bounds))
    }
}

/// Where the middle and the end of many measurements lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// How many there were.
    pub count: usize,
    /// Half were shorter.
    pub median: Duration,
    /// One in a hundred was longer.
    pub p99: Duration,
    /// One in a thousand was longer; the longest, if there were fewer than a thousand.
    pub p999: Duration,
    /// None was longer.
    pub longest: Duration,
}

impl Spread {
    /// The spread of what was measured; `None` if nothing was.
    pub fn of(samples: &[Duration]) -> Option<Spread> {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable();
        let longest = *sorted.last()?;
        let rank = |per_mille: usize| sorted[(sorted.len() * per_mille).div_ceil(1_000).max(1) - 1];
        Some(Spread { count: sorted.len(), median: rank(500), p99: rank(990), p999: rank(999), longest })
    }
}

/// What was measured against a live store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Questions that change nothing: the network and the server's attention.
    pub round_trip: Spread,
    /// Renewals: the same and a commit.
    pub renewal: Spread,
    /// How much later than asked for this process was woken.
    pub gap: Spread,
}

impl Measured {
    /// What a commit takes, as far as this can tell from outside.
    pub fn commit(&self) -> Duration {
        self.renewal.median.saturating_sub(self.round_trip.median)
    }

    /// The bound on one exchange: twice the longest that was seen, because a short look misses the rare long one.
    pub fn net(&self) -> Duration {
        whole_ms(self.renewal.longest.max(self.round_trip.longest).saturating_mul(2))
    }

    /// The bounds: a pause of twice the longest gap, one more attempt and a new connection of twice the longest
    /// exchange. None is below what is usual, except the pause, which was measured here.
    pub fn bounds(&self, given: &Bounds) -> Bounds {
        Bounds {
            pause: whole_ms(self.gap.longest.saturating_mul(2)),
            retry: given.retry.max(self.net()),
            reconnect: given.reconnect.max(self.net()),
            ..*given
        }
    }
}

/// Which numbers to take for what was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advice {
    /// These.
    pub timing: Timing,
    /// The shortest TTL that still fits: for those who have fences everywhere and want short gaps.
    pub shortest: Timing,
    /// What both were fitted to.
    pub bounds: Bounds,
}

impl Advice {
    /// How many times the shortest TTL is advised: what a short look did not see (collections of garbage, a
    /// migration, a busy disk) is longer than what it saw.
    pub const ROOM: u32 = 4;

    /// Advice for what was measured; `None` if no allowed TTL fits it. The usual 10 s where that leaves room
    /// enough, else as many whole seconds as do.
    pub fn on(measured: &Measured, given: &Bounds) -> Option<Advice> {
        let (net, bounds) = (measured.net(), measured.bounds(given));
        let shortest = TimingNumbers::shortest(net, &bounds)?;
        let roomy =
            Duration::from_secs(shortest.ttl().saturating_mul(Self::ROOM).as_millis().div_ceil(1_000) as u64);
        let ttl = roomy.max(Timing::default().ttl()).min(bounds.ttl_max);
        let timing = TimingNumbers::for_world(ttl, net, &bounds).checked(&bounds).ok()?;
        Some(Advice { timing, shortest, bounds })
    }
}

/// The smallest whole number of milliseconds up to `most` for which something holds that, once it does, holds for all longer ones.
fn smallest(most: Duration, holds: impl Fn(Duration) -> bool) -> Option<Duration> {
    let (mut low, mut high) = (0, millis(most));
    if !holds(Duration::from_millis(high)) {
        return None;
    }
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(Duration::from_millis(middle)) { high = middle } else { low = middle + 1 }
    }
    Some(Duration::from_millis(high))
}

/// The largest up to `most` for which something holds that, where it does, holds for all shorter ones.
fn largest(most: Duration, holds: impl Fn(Duration) -> bool) -> Option<Duration> {
    if !holds(Duration::ZERO) {
        return None;
    }
    let (mut low, mut high) = (0, millis(most));
    while low < high {
        let middle = high - (high - low) / 2;
        if holds(Duration::from_millis(middle)) { low = middle } else { high = middle - 1 }
    }
    Some(Duration::from_millis(low))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Rounded up to whole milliseconds, and at least one.
fn whole_ms(duration: Duration) -> Duration {
    Duration::from_millis(u64::try_from(duration.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX).max(1))
}

/// How often `every` fits into `span`, `many` times, to the nearest whole number.
fn nearest(span: Duration, every: Duration, many: u64) -> u64 {
    let every = every.as_nanos().max(1);
    u64::try_from((span.as_nanos() * u128::from(many) + every / 2) / every).unwrap_or(u64::MAX)
}

fn times(length: Duration, many: u64) -> Duration {
    let nanos = length.as_nanos().saturating_mul(u128::from(many));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
