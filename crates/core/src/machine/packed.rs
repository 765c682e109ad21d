//! An ordered set of small values in chunks without gaps, for indexes that take in most values at their end and give most of them
//! back at their beginning: half the memory of a tree, whose leaves are then half empty.

use alloc::collections::VecDeque;

/// The longest chunk.
const CHUNK: usize = 128;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Packed<T> {
    /// Each has something in it; all values of a chunk are below those of the next.
    chunks: VecDeque<VecDeque<T>>,
}

impl<T> Default for Packed<T> {
    fn default() -> Self {
        Self { chunks: VecDeque::new() }
    }
}

impl<T: Ord + Copy> Packed<T> {
    /// The smallest.
    pub fn first(&self) -> Option<&T> {
        self.chunks.front()?.front()
    }

    /// Takes the smallest out.
    pub fn pop_first(&mut self) -> Option<T> {
        let chunk = self.chunks.front_mut()?;
        let first = chunk.pop_front();
        if chunk.is_empty() {
            self.chunks.pop_front();
        }
        first
    }

    /// Puts a value in; `false` if it is there already.
    pub fn insert(&mut self, value: T) -> bool {
        if self.chunks.back().and_then(VecDeque::back).is_none_or(|last| *last < value) {
            match self.chunks.back_mut() {
                Some(chunk) if chunk.len() < CHUNK => chunk.push_back(value),
                _ => self.chunks.push_back(VecDeque::from([value])),
            }
            return true;
        }
        let mut at = self.row_of(&value);
        let Err(mut place) = self.chunks[at].binary_search(&value) else { return false };
        if self.chunks[at].len() == CHUNK {
            let upper = self.chunks[at].split_off(CHUNK / 2);
            self.chunks[at].shrink_to_fit();
            self.chunks.insert(at + 1, upper);
            if place > CHUNK / 2 {
                (at, place) = (at + 1, place - CHUNK / 2);
            }
        }
        self.chunks[at].insert(place, value);
        true
    }

    /// Takes a value out; `false` if it is not there.
    pub fn remove(&mut self, value: &T) -> bool {
        let at = self.row_of(value);
        let Some(chunk) = self.chunks.get_mut(at) else { return false };
        let Ok(place) = chunk.binary_search(value) else { return false };
        chunk.remove(place);
        if chunk.is_empty() {
            self.chunks.remove(at);
        } else if chunk.len() <= CHUNK / 4 {
            self.join(at);
        }
        true
    }

    /// The chunk that a value is in, or would be in; the one after the last for what is above everything.
    fn row_of(&self, value: &T) -> usize {
        self.chunks.partition_point(|chunk| chunk.back() < Some(value))
    }

    /// Little is left of a chunk: puts it together with the next one, if that leaves room to grow.
    fn join(&mut self, at: usize) {
        let together = self.chunks.get(at + 1).map(|next| self.chunks[at].len() + next.len());
        if together.is_some_and(|together| together <= CHUNK / 2) {
            let mut next = self.chunks.remove(at + 1).expect("just seen");
            self.chunks[at].append(&mut next);
        }
        if self.chunks[at].len() * 4 <= self.chunks[at].capacity() {
            self.chunks[at].shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn packed_is_an_ordered_set() {
        let (mut packed, mut model) = (Packed::default(), BTreeSet::new());
        let mut seed = 5u64;
        let mut now = 0;
        for step in 0..60_000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let any = now + (seed >> 33) % 3_000;
            // It grows, then shrinks; values rise, most are taken from the front, some from anywhere.
            match (seed >> 20) % 8 {
                0..2 => {
                    now += 1;
                    assert_eq!(packed.insert(now + 3_000), model.insert(now + 3_000));
                }
                2..5 if step < 30_000 => assert_eq!(packed.insert(any), model.insert(any)),
                5 => assert_eq!(packed.pop_first(), model.pop_first()),
                _ => assert_eq!(packed.remove(&any), model.remove(&any)),
            }
            assert_eq!(packed.first(), model.first());
            assert!(packed.chunks.iter().all(|chunk| !chunk.is_empty() && chunk.len() <= CHUNK));
            if step % 500 == 0 {
                assert!(packed.chunks.iter().flatten().eq(&model), "after {step} steps");
            }
        }
        assert!(packed.chunks.iter().flatten().eq(&model));
        while let Some(first) = model.pop_first() {
            assert_eq!(packed.pop_first(), Some(first));
        }
        assert!(packed.chunks.is_empty());
    }

    #[test]
    fn what_comes_in_order_leaves_no_gaps() {
        let mut packed = Packed::default();
        (0..10_000).for_each(|value| assert!(packed.insert(value)));
        let room: usize = packed.chunks.iter().map(VecDeque::capacity).sum();
        assert!(room < 10_000 + CHUNK, "{room}");
    }
}
