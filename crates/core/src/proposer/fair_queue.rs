//! A queue that takes turns between callers: each has one message served before any has its second. It decides the order
//! between callers; what one caller sent stays in its order. While everything is from one caller it is a plain queue,
//! and costs what one costs.

use alloc::collections::{BTreeMap, VecDeque, vec_deque};

use super::Message;

/// The queue.
#[derive(Clone, Debug)]
pub(super) struct FairQueue<M> {
    /// Everything, while all of it is from one caller.
    single: VecDeque<M>,
    /// Else what each caller has waiting, and nothing is in `single`.
    callers: BTreeMap<u64, VecDeque<M>>,
    /// Whose turn is next: each caller with something waiting, once.
    turns: VecDeque<u64>,
}

impl<M> Default for FairQueue<M> {
    fn default() -> Self {
        Self { single: VecDeque::new(), callers: BTreeMap::new(), turns: VecDeque::new() }
    }
}

impl<M: Message> FairQueue<M> {
    pub fn is_empty(&self) -> bool {
        self.single.is_empty() && self.callers.is_empty()
    }

    /// Everything, if it is all from one caller.
    pub fn single(&mut self) -> Option<&mut VecDeque<M>> {
        self.callers.is_empty().then_some(&mut self.single)
    }

    pub fn push(&mut self, message: M) {
        let caller = message.caller();
        if self.callers.is_empty() {
            match self.single.back() {
                Some(last) if last.caller() != caller => {
                    let first = last.caller();
                    self.callers.insert(first, core::mem::take(&mut self.single));
                    self.turns.push_back(first);
                }
                _ => return self.single.push_back(message),
            }
        }
        let waiting = self.callers.entry(caller).or_default();
        if waiting.is_empty() {
            self.turns.push_back(caller);
        }
        waiting.push_back(message);
    }

    /// The message whose turn it is.
    pub fn front(&self) -> Option<&M> {
        match self.turns.front() {
            Some(caller) => self.callers.get(caller)?.front(),
            None => self.single.front(),
        }
    }

    /// Takes the message whose turn it is; its caller's next one comes after everybody else's.
    pub fn pop(&mut self) -> Option<M> {
        let Some(caller) = self.turns.pop_front() else { return self.single.pop_front() };
        let waiting = self.callers.get_mut(&caller)?;
        let message = waiting.pop_front();
        match waiting.is_empty() {
            true => drop(self.callers.remove(&caller)),
            false => self.turns.push_back(caller),
        }
        if self.callers.len() == 1 {
            // One is left: a plain queue again.
            self.turns.clear();
            self.single = self.callers.pop_first().map(|(_, rest)| rest).unwrap_or_default();
        }
        message
    }

    /// Makes room for a caller: takes the newest message of whoever has most waiting, if that is more than this caller
    /// would have with one more.
    pub fn give_way(&mut self, caller: u64) -> Option<M> {
        if self.callers.is_empty() {
            let another = self.single.back()?.caller() != caller && self.single.len() > 1;
            return if another { self.single.pop_back() } else { None };
        }
        let own = self.callers.get(&caller).map_or(0, VecDeque::len);
        let (_, longest) = self.callers.iter_mut().max_by_key(|(_, waiting)| waiting.len())?;
        if longest.len() > own + 1 { longest.pop_back() } else { None }
    }

    /// Takes everything.
    pub fn drain(&mut self) -> impl Iterator<Item = M> {
        self.turns.clear();
        let single: vec_deque::IntoIter<M> = core::mem::take(&mut self.single).into_iter();
        single.chain(core::mem::take(&mut self.callers).into_values().flatten())
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::super::QueueKind;
    use super::*;

    /// A caller, and which of its messages.
    impl Message for (u64, u32) {
        fn queue(&self) -> QueueKind {
            QueueKind::Other
        }

        fn bytes(&self) -> usize {
            1
        }

        fn caller(&self) -> u64 {
            self.0
        }
    }

    fn taken(queue: &mut FairQueue<(u64, u32)>) -> Vec<(u64, u32)> {
        core::iter::from_fn(|| {
            let next = queue.front().copied();
            assert_eq!(queue.pop(), next, "what is in front is what is taken");
            next
        })
        .collect()
    }

    /// A thousand of one caller's wait; another's is served second, not a thousand and first.
    #[test]
    fn a_flood_does_not_keep_others_waiting() {
        let mut queue = FairQueue::default();
        (0..1_000).for_each(|number| queue.push((1, number)));
        queue.push((2, 0));
        queue.push((3, 0));
        queue.push((2, 1));
        let order = taken(&mut queue);
        assert_eq!(order[..6], [(1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (1, 2)]);
        let flood: Vec<u32> =
            order.iter().filter(|(caller, _)| *caller == 1).map(|(_, number)| *number).collect();
        assert!(flood.is_sorted() && flood.len() == 1_000, "one caller's messages stay in their order");
    }

    /// However many there are, nobody waits for more than one message of each other caller per own message before it.
    #[test]
    fn everybodys_wait_is_bounded_by_turns() {
        let mut queue = FairQueue::default();
        for number in 0..50 {
            for caller in 1..=20u64 {
                (0..caller).for_each(|more| queue.push((caller, number * 20 + more as u32)));
            }
        }
        let order = taken(&mut queue);
        for caller in 1..=20 {
            let places: Vec<usize> = (0..order.len()).filter(|place| order[*place].0 == caller).collect();
            assert!(
                places.iter().enumerate().all(|(own, place)| *place < (own + 1) * 20),
                "{caller}: {places:?}"
            );
        }
    }

    #[test]
    fn one_caller_has_a_plain_queue_again_when_the_others_are_done() {
        let mut queue = FairQueue::default();
        (0..3).for_each(|number| queue.push((1, number)));
        assert_eq!(queue.single().map(|single| single.len()), Some(3));
        queue.push((2, 0));
        assert!(queue.single().is_none());
        assert_eq!((queue.pop(), queue.pop()), (Some((1, 0)), Some((2, 0))));
        assert_eq!(queue.single().map(|single| single.len()), Some(2));
        assert_eq!(queue.drain().count(), 2);
        assert!(queue.is_empty());
    }

    /// A full queue makes room for who has little, at the cost of who has most, and never the other way round.
    #[test]
    fn whoever_has_most_gives_way() {
        let mut queue = FairQueue::default();
        (0..10).for_each(|number| queue.push((1, number)));
        assert_eq!(queue.give_way(1), None, "nobody is pushed out by its own");
        assert_eq!(queue.give_way(2), Some((1, 9)));
        (0..5).for_each(|number| queue.push((2, number)));
        assert_eq!(queue.give_way(2), Some((1, 8)));
        assert_eq!(queue.give_way(1), None);
        assert_eq!(queue.give_way(3), Some((1, 7)));
        let mut alone = FairQueue::default();
        alone.push((1, 0));
        assert_eq!(alone.give_way(2), None, "a single message is nobody's flood");
    }
}
