//! A copy-on-write map: records under rising numbers, copied only where somebody still reads the old ones.
//!
//! Records are kept in chunks of 64. A copy of the map copies one pointer per chunk; a chunk is copied for
//! real only when it is changed while such a copy is alive. So a snapshot of a million
//! records is taken between two commands, and written out while commands go on.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicUsize, Ordering};

const CHUNK: u64 = 64;

/// A number that records stand under.
pub trait Key: Copy {
    /// The key of this number.
    fn from_number(number: u64) -> Self;
    /// The number of this key.
    fn number(self) -> u64;
}

/// Up to 64 neighbours. Records stand in the order of their numbers until one goes that is not the last: then that one moves into its
/// place, and nobody else.
#[derive(Clone, Debug)]
struct Chunk<T> {
    /// One bit per number that has a record.
    taken: u64,
    /// Where the record of each of these numbers stands, once that does not follow from their order.
    places: Option<Box<Places>>,
    records: Vec<T>,
}

type Places = [u8; CHUNK as usize];

impl<T> Chunk<T> {
    fn empty() -> Self {
        Self { taken: 0, places: None, records: Vec::new() }
    }

    fn bit(number: u64) -> u64 {
        1 << (number % CHUNK)
    }

    /// Where the record of `number` stands, if there is one.
    #[inline]
    fn place(&self, number: u64) -> Option<usize> {
        let bit = Self::bit(number);
        if self.taken & bit == 0 {
            return None;
        }
        Some(match &self.places {
            Some(places) => usize::from(places[(number % CHUNK) as usize]),
            // Nearly always all from the first one to it are here, and nobody need count.
            None if (self.taken & (bit - 1)) + (self.taken & self.taken.wrapping_neg()) == bit => {
                (number % CHUNK) as usize - self.taken.trailing_zeros() as usize
            }
            None => (self.taken & (bit - 1)).count_ones() as usize,
        })
    }

    fn places_mut(&mut self) -> &mut Places {
        let taken = self.taken;
        self.places.get_or_insert_with(|| {
            let before = |offset: usize| (taken & ((1 << offset) - 1)).count_ones() as u8;
            Box::new(core::array::from_fn(before))
        })
    }

    fn insert(&mut self, number: u64, record: T) {
        assert!(self.place(number).is_none(), "record number {number} is taken already");
        let place = self.records.len() as u8;
        let in_order = self.taken < Self::bit(number);
        if self.places.is_some() || !in_order {
            self.places_mut()[(number % CHUNK) as usize] = place;
        }
        self.taken |= Self::bit(number);
        self.records.push(record);
    }

    /// Takes the record of `number` from its place.
    fn remove(&mut self, number: u64, place: usize) -> T {
        let last = self.records.len() - 1;
        if place != last {
            let taken = self.taken;
            let places = self.places_mut();
            let stands_last =
                |offset: &usize| taken & 1 << *offset != 0 && usize::from(places[*offset]) == last;
            let moved = (0..CHUNK as usize).find(stands_last).expect("somebody stands there");
            places[moved] = place as u8;
        }
        self.taken &= !Self::bit(number);
        let record = self.records.swap_remove(place);
        // A chunk of which little is left keeps little memory.
        if self.records.len() * 4 <= self.records.capacity() {
            self.records.shrink_to(self.records.len() * 2);
        }
        record
    }
}

/// Where the chunk stood that was wanted last. A command looks at the same few records again and again. It is
/// believed only if that chunk is there, so a wrong one costs a search and nothing else.
#[derive(Debug, Default)]
struct Hint(AtomicUsize);

impl Clone for Hint {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// Records under numbers, in the order of their numbers; cheap to copy as a whole.
#[derive(Clone, Debug)]
pub struct CowMap<K, T> {
    /// The chunks that have records, in the order of their numbers. Numbers rise, so most have all of their
    /// neighbours, and where one stands can be found by counting from an end.
    chunks: VecDeque<(u64, Arc<Chunk<T>>)>,
    hint: Hint,
    len: usize,
    keys: PhantomData<K>,
}

impl<K, T> Default for CowMap<K, T> {
    fn default() -> Self {
        Self { chunks: VecDeque::new(), hint: Hint::default(), len: 0, keys: PhantomData }
    }
}

impl<K: Key, T: Clone + PartialEq> PartialEq for CowMap<K, T> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len
            && self
                .iter()
                .map(|(key, record)| (key.number(), record))
                .eq(other.iter().map(|(key, record)| (key.number(), record)))
    }
}

impl<K: Key, T: Clone + Eq> Eq for CowMap<K, T> {}

impl<K: Key, T: Clone> CowMap<K, T> {
    /// How many records stand here.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where a chunk stands, or would stand.
    #[inline]
    fn board_at(&self, wanted: u64) -> Result<usize, usize> {
        let hint = self.hint.0.load(Ordering::Relaxed);
        match self.chunks.get(hint) {
            Some((number, _)) if *number == wanted => Ok(hint),
            _ => self.search_and_note(wanted),
        }
    }

    // Apart, so that what nearly always suffices is small enough to be inlined everywhere.
    #[cold]
    #[inline(never)]
    fn search_and_note(&self, wanted: u64) -> Result<usize, usize> {
        let found = self.search(wanted);
        if let Ok(at) = found {
            self.hint.0.store(at, Ordering::Relaxed);
        }
        found
    }

    fn search(&self, wanted: u64) -> Result<usize, usize> {
        let (Some((first, _)), Some((last, _))) = (self.chunks.front(), self.chunks.back()) else {
            return Err(0);
        };
        if wanted > *last {
            return Err(self.chunks.len());
        }
        // Without gaps behind it; or without gaps before it; or else by halving.
        let from_the_end = (last - wanted) as usize;
        if from_the_end < self.chunks.len() {
            let at = self.chunks.len() - 1 - from_the_end;
            if self.chunks[at].0 == wanted {
                return Ok(at);
            }
        }
        if let Some(at) = wanted.checked_sub(*first)
            && self.chunks.get(at as usize).is_some_and(|(number, _)| *number == wanted)
        {
            return Ok(at as usize);
        }
        self.chunks.binary_search_by_key(&wanted, |(number, _)| *number)
    }

    /// The record under this key.
    #[inline]
    pub fn get(&self, key: K) -> Option<&T> {
        let number = key.number();
        match self.chunks.get(self.hint.0.load(Ordering::Relaxed)) {
            Some((wanted, chunk)) if *wanted == number / CHUNK => {
                chunk.place(number).map(|place| &chunk.records[place])
            }
            _ => self.get_elsewhere(number),
        }
    }

    #[cold]
    #[inline(never)]
    fn get_elsewhere(&self, number: u64) -> Option<&T> {
        let chunk = &self.chunks[self.search_and_note(number / CHUNK).ok()?].1;
        chunk.place(number).map(|place| &chunk.records[place])
    }

    /// The record under this key, to be changed.
    pub fn get_mut(&mut self, key: K) -> Option<&mut T> {
        let number = key.number();
        let at = self.board_at(number / CHUNK).ok()?;
        let chunk = &mut self.chunks[at].1;
        let place = chunk.place(number)?;
        Some(&mut Arc::make_mut(chunk).records[place])
    }

    /// Puts a record under a key that is free. Keys are never used twice, so a taken one is a bug.
    pub fn insert(&mut self, key: K, record: T) {
        let number = key.number();
        let at = self.board_at(number / CHUNK).unwrap_or_else(|at| {
            self.chunks.insert(at, (number / CHUNK, Arc::new(Chunk::empty())));
            at
        });
        Arc::make_mut(&mut self.chunks[at].1).insert(number, record);
        self.len += 1;
    }

    /// Takes a record away.
    pub fn remove(&mut self, key: K) -> Option<T> {
        let number = key.number();
        let at = self.board_at(number / CHUNK).ok()?;
        let chunk = &mut self.chunks[at].1;
        let place = chunk.place(number)?;
        let chunk = Arc::make_mut(chunk);
        let record = chunk.remove(number, place);
        self.len -= 1;
        if chunk.taken == 0 {
            self.chunks.remove(at);
        }
        Some(record)
    }

    /// All records with their keys, in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        self.chunks.iter().flat_map(|(first, chunk)| Self::board_iter(*first, chunk))
    }

    /// The records whose keys come after `after`, in order; all of them for `None`.
    pub fn iter_after(&self, after: Option<K>) -> impl Iterator<Item = (K, &T)> {
        let after = after.map(K::number);
        let from = after.map_or(0, |number| number / CHUNK);
        let from = self.board_at(from).unwrap_or_else(|at| at);
        self.chunks
            .range(from..)
            .flat_map(|(first, chunk)| Self::board_iter(*first, chunk))
            .filter(move |(key, _)| after.is_none_or(|after| key.number() > after))
    }

    fn board_iter(board_number: u64, chunk: &Chunk<T>) -> impl Iterator<Item = (K, &T)> {
        (0..CHUNK)
            .filter_map(move |offset| Some((board_number * CHUNK + offset, chunk.place(offset)?)))
            .map(|(number, place)| (K::from_number(number), &chunk.records[place]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;

    impl Key for u64 {
        fn from_number(number: u64) -> Self {
            number
        }
        fn number(self) -> u64 {
            self
        }
    }

    #[test]
    fn it_is_a_map_in_the_order_of_its_keys() {
        let mut map = CowMap::<u64, u64>::default();
        let mut model = BTreeMap::new();
        let mut seed = 7u64;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let key = (seed >> 33) % 1_000;
            match (seed >> 20) % 3 {
                0 if !model.contains_key(&key) => {
                    map.insert(key, seed);
                    model.insert(key, seed);
                }
                1 => assert_eq!(map.remove(key), model.remove(&key)),
                _ => assert_eq!(map.get_mut(key).copied(), model.get(&key).copied()),
            }
            assert_eq!(map.len(), model.len());
        }
        assert!(map.iter().map(|(k, v)| (k, *v)).eq(model.iter().map(|(k, v)| (*k, *v))));
        assert!(map.iter_after(Some(500)).map(|(k, _)| k).eq(model.range(501..).map(|(k, _)| *k)));
    }

    /// Where a record stands is counted in three ways; which one applies depends on which neighbours there are.
    #[test]
    fn every_record_is_found_whichever_neighbours_are_missing() {
        for missing in 0..CHUNK {
            for first in [0, 1, 2, 62, 63] {
                let keys = || (first..2 * CHUNK).filter(|key| key % CHUNK != missing);
                let mut map = CowMap::<u64, u64>::default();
                keys().for_each(|key| map.insert(key, key));
                assert!(keys().all(|key| map.get(key) == Some(&key)), "{missing} {first}");
                assert_eq!((map.get(missing), map.get(missing + CHUNK)), (None, None));
                let mut taken = map.clone();
                assert!(keys().all(|key| taken.remove(key) == Some(key)), "{missing} {first}");
                assert!(keys().rev().all(|key| map.remove(key) == Some(key)), "{missing} {first}");
                assert!(map.is_empty() && taken.is_empty());
            }
        }
    }

    #[test]
    fn a_copy_keeps_what_it_saw() {
        let mut map = CowMap::<u64, u64>::default();
        (0..200).for_each(|n| map.insert(n, n));
        let copy = map.clone();
        *map.get_mut(77).unwrap() = 0;
        map.remove(78);
        map.insert(1_000, 1);
        assert_eq!(
            (copy.get(77), copy.get(78), copy.get(1_000), copy.len()),
            (Some(&77), Some(&78), None, 200)
        );
    }
}
