//! The three kinds of time, kept apart by type so that none can be compared with another.
//!
//! [`Moment`] is one reading of one process's clocks and never leaves the process. [`ClusterTime`] is
//! what the log itself counts. [`WallTime`] is text for people. Only a `Duration` crosses a boundary.

use core::time::Duration;

/// One reading of this process's clocks; meaningless in any other process, so it cannot be serialized.
///
/// A reading holds two clocks because they fail differently: the boot-time clock counts suspended time
/// but is slewed, the raw clock is never slewed but stands still in suspend. Whoever reads decides which
/// error is the safe one: a holder counts the longer of the two, a leader the shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    boot: Duration,
    raw: Duration,
}

impl Moment {
    /// A reading made of what the two clocks showed, each counted from an arbitrary origin of its own.
    pub const fn from_readings(boot: Duration, raw: Duration) -> Self {
        Self { boot, raw }
    }

    /// The longer of the two clocks' elapsed times: what a holder must assume has passed.
    pub fn longest_since(self, earlier: Moment) -> Duration {
        let (boot, raw) = self.elapsed(earlier);
        boot.max(raw)
    }

    /// The shorter of the two clocks' elapsed times: all that a leader may count against a holder.
    pub fn shortest_since(self, earlier: Moment) -> Duration {
        let (boot, raw) = self.elapsed(earlier);
        boot.min(raw)
    }

    /// How far the two clocks disagree about the time since `earlier`.
    pub fn disagreement_since(self, earlier: Moment) -> Duration {
        self.longest_since(earlier) - self.shortest_since(earlier)
    }

    /// The moment at which both clocks will have advanced by `by`; for planning wake-ups, not for judging.
    #[must_use]
    pub fn plus(self, by: Duration) -> Moment {
        Moment { boot: self.boot.saturating_add(by), raw: self.raw.saturating_add(by) }
    }

    fn elapsed(self, earlier: Moment) -> (Duration, Duration) {
        (self.boot.saturating_sub(earlier.boot), self.raw.saturating_sub(earlier.raw))
    }
}

/// The time that the log keeps, in microseconds since the cluster was formed. Never compared with a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterTime(u64);

impl ClusterTime {
    /// The moment the cluster was formed.
    pub const ZERO: ClusterTime = ClusterTime(0);

    /// A time `micros` microseconds after the cluster was formed.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the cluster was formed.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The time `by` later; saturates, so that "for ever" needs no special case.
    #[must_use]
    pub fn plus(self, by: impl Into<Span>) -> ClusterTime {
        ClusterTime(self.0.saturating_add(by.into().0))
    }

    /// What is left until `self` as seen at `now`; zero when it has come.
    pub const fn remaining_at(self, now: ClusterTime) -> Duration {
        Duration::from_micros(self.0.saturating_sub(now.0))
    }

    /// The time from `earlier` to `self`; zero if `earlier` is not earlier.
    pub const fn since(self, earlier: ClusterTime) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// A length of cluster time: a `Duration` in half the memory, for records of which there are many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span(u64);

impl From<Duration> for Span {
    fn from(length: Duration) -> Self {
        Self(length.as_micros().try_into().unwrap_or(u64::MAX))
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        Duration::from_micros(span.0)
    }
}

/// Calendar time in milliseconds since 1970, stamped by the leader for display. Nothing decides by it,
/// so it has no order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WallTime(u64);

impl WallTime {
    /// The calendar time `millis` milliseconds after the start of 1970.
    pub const fn from_unix_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the start of 1970.
    pub const fn as_unix_millis(self) -> u64 {
        self.0
    }
}
