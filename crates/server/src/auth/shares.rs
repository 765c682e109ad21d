//! How much of a node one identity may have at once, so that one caller's flood leaves room for the others.
//!
//! Counts what each identity has under way on this node: calls, waits, watches, streams, connections, and calls a
//! second. What the cluster keeps of an identity (sessions, leases, registers) is counted by the machine, not here. A
//! caller without a name is not counted: what strangers may have is bounded for all of them together.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;
use tenure_core::{Identity, IdentityName, Moment};
use tenure_wire::{About, ApiError, Code};

use crate::call_table::Cost;

/// How much of a node one identity may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentityLimits {
    /// Calls a second, renewals apart; a second's worth may come at once. `None` is as many as the node takes.
    pub calls_per_second: Option<u32>,
    /// Calls under way, renewals apart.
    pub calls: u32,
    /// Renewals under way.
    pub renewals: u32,
    /// Acquires that wait.
    pub waits: u32,
    /// Watches.
    pub watches: u32,
    /// Session streams.
    pub streams: u32,
}

impl Default for IdentityLimits {
    /// Half of what a node takes in all: one identity alone is hardly ever refused, and never takes everything.
    fn default() -> Self {
        Self {
            calls_per_second: None,
            calls: 4_096,
            renewals: 4_096,
            waits: 32_768,
            watches: 2_048,
            streams: 8_192,
        }
    }
}

/// What a call counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Call,
    Renewal,
    Wait,
    Watch,
    Stream,
}

impl Kind {
    fn of(cost: Cost) -> Option<Kind> {
        match cost {
            Cost::Page | Cost::Check => None,
            Cost::Read | Cost::Command | Cost::Open | Cost::Restore => Some(Kind::Call),
            Cost::Renewal => Some(Kind::Renewal),
            Cost::Wait => Some(Kind::Wait),
            Cost::Watch => Some(Kind::Watch),
            Cost::Stream | Cost::RenewalStream => Some(Kind::Stream),
        }
    }

    fn limit(self, limits: &IdentityLimits) -> (&'static str, u32) {
        match self {
            Kind::Call => ("calls", limits.calls),
            Kind::Renewal => ("renewals", limits.renewals),
            Kind::Wait => ("waits", limits.waits),
            Kind::Watch => ("watches", limits.watches),
            Kind::Stream => ("streams", limits.streams),
        }
    }
}

/// What every identity has under way.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    limits: IdentityLimits,
    of: Mutex<HashMap<IdentityName, Used>>,
}

#[derive(Debug)]
struct Used {
    under_way: [u32; 5],
    /// Calls that may still come now, in thousandths, and when that was counted.
    budget_milli: u64,
    counted: Moment,
}

/// A call's share, while it is under way.
#[derive(Debug)]
pub(crate) struct Share {
    shares: Arc<Shares>,
    name: IdentityName,
    kind: Kind,
}

impl Shares {
    pub fn new(limits: IdentityLimits) -> Shares {
        Shares { limits, of: Mutex::default() }
    }

    /// A share for a call, if its caller has a name; or why it gets none.
    pub fn take(
        self: &Arc<Self>,
        identity: &Identity,
        cost: Cost,
        now: Moment,
    ) -> Result<Option<Share>, ApiError> {
        let (Some(name), Some(kind)) = (identity.name(), Kind::of(cost)) else { return Ok(None) };
        let mut all = self.of.lock();
        let used = all.entry_ref(name).or_insert_with(|| Used::new(&self.limits, now));
        let (limit, most) = kind.limit(&self.limits);
        let under_way = used.under_way[kind as usize];
        if under_way >= most {
            return Err(over(name, limit, most, "under way"));
        }
        if let Some(rate) = self.limits.calls_per_second.filter(|_| kind != Kind::Renewal)
            && !used.spend(rate, now)
        {
            return Err(over(name, "calls_per_second", rate, "a second"));
        }
        used.under_way[kind as usize] = under_way + 1;
        Ok(Some(Share { shares: self.clone(), name: name.clone(), kind }))
    }

    /// How many identities have something under way, or had within the last second.
    pub fn identities(&self) -> usize {
        self.of.lock().len()
    }
}

impl Used {
    fn new(limits: &IdentityLimits, now: Moment) -> Used {
        let budget_milli = u64::from(limits.calls_per_second.unwrap_or(0)) * 1_000;
        Used { under_way: [0; 5], budget_milli, counted: now }
    }

    /// Spends one call of the budget, which fills up again as time passes; false if there is none left.
    fn spend(&mut self, rate: u32, now: Moment) -> bool {
        let full = u64::from(rate) * 1_000;
        let passed = now.shortest_since(self.counted);
        let gained = passed.as_millis().saturating_mul(u128::from(rate));
        if gained > 0 {
            self.budget_milli = full.min(self.budget_milli.saturating_add(gained.try_into().unwrap_or(full)));
            self.counted = now;
        }
        let spent = self.budget_milli.checked_sub(1_000);
        self.budget_milli = spent.unwrap_or(self.budget_milli);
        spent.is_some()
    }

    /// Whether forgetting it changes nothing.
    fn is_forgettable(&self, limits: &IdentityLimits) -> bool {
        let full = u64::from(limits.calls_per_second.unwrap_or(0)) * 1_000;
        self.under_way.iter().all(|count| *count == 0) && self.budget_milli >= full
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut all = self.shares.of.lock();
        let Some(used) = all.get_mut(&self.name) else { return };
        used.under_way[self.kind as usize] -= 1;
        if used.is_forgettable(&self.shares.limits) {
            all.remove(&self.name);
        }
        // Budgets that are not full stay: forgetting one would fill it. There are no more of them than identities.
    }
}

fn over(name: &IdentityName, limit: &str, most: u32, how: &str) -> ApiError {
    let message =
        format!("{name} has {most} {limit} {how} on this node, and no more are allowed; nothing was done");
    ApiError::new(Code::Overloaded, message)
        .hint("ask again after `retry_after_ms`, with growing pauses; or spread the calls over the nodes")
        .retry_after(Duration::from_millis(200))
        .about(About { limit: Some(limit.into()), max: Some(most.into()), ..About::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_readings(Duration::from_millis(millis), Duration::from_millis(millis))
    }

    fn named(name: &str) -> Identity {
        Identity::named(format!("cred/{name}").parse().unwrap())
    }

    #[test]
    fn one_identity_leaves_room_for_the_others() {
        let limits = IdentityLimits { calls: 2, ..IdentityLimits::default() };
        let shares = Arc::new(Shares::new(limits));
        let take = |who: &Identity, cost| shares.take(who, cost, at(0));
        let (a, b) = (named("a"), named("b"));
        let held = [take(&a, Cost::Read), take(&a, Cost::Command)];
        assert!(held.iter().all(|share| matches!(share, Ok(Some(_)))));
        let refused = take(&a, Cost::Open).unwrap_err();
        assert_eq!((refused.code, refused.about.limit.as_deref()), (Code::Overloaded, Some("calls")));
        assert!(take(&a, Cost::Renewal).is_ok(), "a flood of calls keeps nobody's heartbeat out");
        assert!(take(&b, Cost::Read).is_ok());
        assert!(matches!(take(&Identity::Anyone, Cost::Read), Ok(None)));
        drop(held);
        assert!(take(&a, Cost::Open).is_ok());
        assert_eq!(shares.identities(), 0, "what has nothing under way is forgotten");
    }

    #[test]
    fn a_rate_fills_up_with_time_and_no_further() {
        let limits = IdentityLimits { calls_per_second: Some(10), ..IdentityLimits::default() };
        let shares = Arc::new(Shares::new(limits));
        let a = named("a");
        let granted = |millis| (0..100).filter(|_| shares.take(&a, Cost::Read, at(millis)).is_ok()).count();
        assert_eq!(granted(0), 10);
        assert_eq!(granted(99), 0);
        assert_eq!(granted(250), 2);
        assert_eq!(granted(3_600_000), 10);
        assert!(shares.take(&a, Cost::Renewal, at(3_600_000)).is_ok());
        assert!(shares.take(&named("b"), Cost::Read, at(3_600_000)).is_ok());
    }
}
