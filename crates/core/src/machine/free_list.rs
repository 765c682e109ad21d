//! Free resources: which of them is forgotten first when there are too many.
//!
//! A resource comes here with every release and goes with every grant, so both must be cheap: what has gone is not
//! searched for in the queue, but passed over when it gets to the front.

use alloc::collections::VecDeque;

use super::cow_map::CowMap;
use super::state::ResourceNumber;
use crate::numbers::Revision;

/// How much longer the queue may be than what counts in it before it is cleared up, beyond twice as long.
const STALE_MAX: usize = 64;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct FreeList {
    /// Since when each of them is free.
    since: CowMap<ResourceNumber, Revision>,
    /// The longest free first, and of equals the one with the smaller number; what `since` does not confirm counts
    /// for nothing.
    queue: VecDeque<(Revision, ResourceNumber)>,
}

impl FreeList {
    /// A list of these: since when each is free, and the same in the order of the queue.
    pub fn new(
        since: CowMap<ResourceNumber, Revision>,
        queue: impl IntoIterator<Item = (Revision, ResourceNumber)>,
    ) -> FreeList {
        FreeList { since, queue: queue.into_iter().collect() }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.since.len()
    }

    /// A resource may be forgotten; it has been free since this revision.
    pub fn put(&mut self, number: ResourceNumber, since: Revision) {
        match self.since.get(number) {
            Some(known) if *known == since => return,
            Some(_) => self.take(number),
            None => {}
        }
        self.since.insert(number, since);
        let place = (since, number);
        // Nearly always it is the last that became free.
        if self.queue.back().is_none_or(|last| *last < place) {
            self.queue.push_back(place);
        } else if let Err(at) = self.queue.binary_search(&place) {
            self.queue.insert(at, place);
        }
        if self.queue.len() > 2 * self.since.len() + STALE_MAX {
            let since = &self.since;
            self.queue.retain(|(then, number)| since.get(*number) == Some(then));
        }
    }

    /// A resource may not be forgotten any more.
    pub fn take(&mut self, number: ResourceNumber) {
        self.since.remove(number);
    }

    /// Takes the one that has been free for longest.
    pub fn take_oldest(&mut self) -> Option<ResourceNumber> {
        while let Some((since, number)) = self.queue.pop_front() {
            if self.since.get(number) == Some(&since) {
                self.since.remove(number);
                return Some(number);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::{BTreeMap, BTreeSet};

    /// What the list must amount to, kept the plain way.
    #[derive(Default)]
    struct Plain {
        order: BTreeSet<(Revision, ResourceNumber)>,
        since: BTreeMap<ResourceNumber, Revision>,
    }

    impl Plain {
        fn take(&mut self, number: ResourceNumber) {
            if let Some(since) = self.since.remove(&number) {
                self.order.remove(&(since, number));
            }
        }

        fn put(&mut self, number: ResourceNumber, since: Revision) {
            self.take(number);
            self.order.insert((since, number));
            self.since.insert(number, since);
        }

        fn take_oldest(&mut self) -> Option<ResourceNumber> {
            let (_, number) = self.order.pop_first()?;
            self.since.remove(&number);
            Some(number)
        }
    }

    #[test]
    fn it_is_the_ordered_set_that_it_stands_for() {
        let (mut list, mut plain) = (FreeList::default(), Plain::default());
        let mut random = 7u64;
        for step in 0..20_000u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let number = ResourceNumber((random >> 33) % 200);
            // Mostly the newest, now and then one that became free long ago or at the same time as another.
            let since =
                Revision::new(if random >> 61 == 0 { step / 2 } else { step.saturating_sub(step % 3) });
            match (random >> 56) % 8 {
                0 => assert_eq!(list.take_oldest(), plain.take_oldest()),
                1..4 => {
                    list.take(number);
                    plain.take(number);
                }
                _ => {
                    list.put(number, since);
                    plain.put(number, since);
                }
            }
            assert_eq!(list.len(), plain.order.len());
            assert!(list.queue.len() <= 2 * list.len() + STALE_MAX + 200, "what has gone is cleared up");
        }
        while let Some(number) = plain.take_oldest() {
            assert_eq!(list.take_oldest(), Some(number));
        }
        assert_eq!(list.take_oldest(), None);
    }
}
