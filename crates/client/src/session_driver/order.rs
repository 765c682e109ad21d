//! In which order a session's commands on one resource may be sent. Pure: it gets what was sent and answered,
//! and says what may be sent.
//!
//! Commands of a session can overtake each other: one is lost or refused for the moment and sent again later,
//! over another node. For most commands that does not matter. But an acquire that overtakes the release, the
//! transfer or the cancel before it learns that its own session holds the resource, or waits for it. So an
//! acquire is held back here until those are answered. The answer orders them, whatever route either of them
//! takes.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::ResourceName;

/// The releases, transfers and cancels of a session that are sent and unanswered, and the acquires that wait
/// for them.
#[derive(Debug, Default)]
pub(super) struct Order {
    under_way: BTreeMap<u64, Vec<ResourceName>>,
    held_back: BTreeSet<u64>,
}

impl Order {
    /// A release, transfer or cancel of these resources has been sent.
    pub fn sent(&mut self, number: u64, resources: Vec<ResourceName>) {
        self.under_way.insert(number, resources);
    }

    /// It is answered, in whichever way.
    pub fn answered(&mut self, number: u64) {
        self.under_way.remove(&number);
    }

    /// Whether an acquire of these resources would overtake something.
    pub fn would_overtake(&self, resources: &[ResourceName]) -> bool {
        self.under_way.values().flatten().any(|given_up| resources.contains(given_up))
    }

    /// The acquire with this number waits.
    pub fn hold_back(&mut self, number: u64) {
        self.held_back.insert(number);
    }

    /// The acquire with this number was never sent. True if nobody need be notified of its end.
    pub fn drop_held_back(&mut self, number: u64) -> bool {
        self.held_back.remove(&number)
    }

    pub fn is_held_back(&self, number: u64) -> bool {
        self.held_back.contains(&number)
    }

    /// The acquires that wait, the oldest first.
    pub fn held_back(&self) -> impl Iterator<Item = u64> + '_ {
        self.held_back.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<ResourceName> {
        names.iter().map(|name| name.parse().expect("a name")).collect()
    }

    #[test]
    fn only_what_concerns_the_same_resource_is_waited_for() {
        let mut order = Order::default();
        order.sent(1, names(&["a"]));
        order.sent(2, names(&["b", "c"]));
        assert!(order.would_overtake(&names(&["x", "c"])));
        assert!(!order.would_overtake(&names(&["x"])));
        order.answered(2);
        assert!(!order.would_overtake(&names(&["b", "c"])));
        assert!(order.would_overtake(&names(&["a"])));
    }

    #[test]
    fn what_was_never_sent_is_dropped_once() {
        let mut order = Order::default();
        order.hold_back(7);
        assert!(order.is_held_back(7));
        assert!(order.drop_held_back(7));
        assert!(!order.drop_held_back(7));
    }
}
