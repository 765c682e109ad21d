//! A shelf: records under rising numbers, copied only where somebody still looks at the old ones.
//!
//! Records stand in boards of 64. Taking a copy of a shelf copies one pointer per board; a board is
//! copied for real only when it is changed while such a copy is alive. So a snapshot of a million
//! records is taken between two commands, and written out while commands go on.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicUsize, Ordering};

const BOARD: u64 = 64;

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
struct Board<T> {
    /// One bit per number that has a record.
    taken: u64,
    /// Where the record of each of these numbers stands, once that is not told by their order.
    places: Option<Box<Places>>,
    records: Vec<T>,
}

type Places = [u8; BOARD as usize];

impl<T> Board<T> {
    fn empty() -> Self {
        Self { taken: 0, places: None, records: Vec::new() }
    }

    fn bit(number: u64) -> u64 {
        1 << (number % BOARD)
    }

    /// Where the record of `number` stands, if there is one.
    #[inline]
    fn place(&self, number: u64) -> Option<usize> {
        let bit = Self::bit(number);
        if self.taken & bit == 0 {
            return None;
        }
        Some(match &self.places {
            Some(places) => usize::from(places[(number % BOARD) as usize]),
            // Nearly always all of those before it are here, and nobody need count.
            None if self.taken & (bit - 1) == bit - 1 => (number % BOARD) as usize,
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
            self.places_mut()[(number % BOARD) as usize] = place;
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
            let moved = (0..BOARD as usize).find(stands_last).expect("somebody stands there");
            places[moved] = place as u8;
        }
        self.taken &= !Self::bit(number);
        let record = self.records.swap_remove(place);
        // A board of which little is left keeps little memory.
        if self.records.len() * 4 <= self.records.capacity() {
            self.records.shrink_to(self.records.len() * 2);
        }
        record
    }
}

/// Where the board stood that was wanted last. A command looks at the same few records again and again. It is believed
/// only if that board is there, so a wrong one costs a search and nothing else.
#[derive(Debug, Default)]
struct Hint(AtomicUsize);

impl Clone for Hint {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// Records under numbers, in the order of their numbers; cheap to copy as a whole.
#[derive(Clone, Debug)]
pub struct Shelf<K, T> {
    /// The boards that have records, in the order of their numbers. Numbers rise, so most have all of their neighbours, and where
    /// one stands can be told by counting from an end.
    boards: VecDeque<(u64, Arc<Board<T>>)>,
    hint: Hint,
    len: usize,
    keys: PhantomData<K>,
}

impl<K, T> Default for Shelf<K, T> {
    fn default() -> Self {
        Self { boards: VecDeque::new(), hint: Hint::default(), len: 0, keys: PhantomData }
    }
}

impl<K: Key, T: Clone + PartialEq> PartialEq for Shelf<K, T> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len
            && self
                .iter()
                .map(|(key, record)| (key.number(), record))
                .eq(other.iter().map(|(key, record)| (key.number(), record)))
    }
}

impl<K: Key, T: Clone + Eq> Eq for Shelf<K, T> {}

impl<K: Key, T: Clone> Shelf<K, T> {
    /// How many records stand here.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where a board stands, or would stand.
    #[inline]
    fn board_at(&self, wanted: u64) -> Result<usize, usize> {
        let hint = self.hint.0.load(Ordering::Relaxed);
        if self.boards.get(hint).is_some_and(|(number, _)| *number == wanted) {
            return Ok(hint);
        }
        let found = self.search(wanted);
        if let Ok(at) = found {
            self.hint.0.store(at, Ordering::Relaxed);
        }
        found
    }

    fn search(&self, wanted: u64) -> Result<usize, usize> {
        let (Some((first, _)), Some((last, _))) = (self.boards.front(), self.boards.back()) else {
            return Err(0);
        };
        if wanted > *last {
            return Err(self.boards.len());
        }
        // Without gaps behind it; or without gaps before it; or else by halving.
        let from_the_end = (last - wanted) as usize;
        if from_the_end < self.boards.len() {
            let at = self.boards.len() - 1 - from_the_end;
            if self.boards[at].0 == wanted {
                return Ok(at);
            }
        }
        if let Some(at) = wanted.checked_sub(*first)
            && self.boards.get(at as usize).is_some_and(|(number, _)| *number == wanted)
        {
            return Ok(at as usize);
        }
        self.boards.binary_search_by_key(&wanted, |(number, _)| *number)
    }

    #[inline]
    fn board(&self, wanted: u64) -> Option<&Board<T>> {
        self.board_at(wanted).ok().map(|at| &*self.boards[at].1)
    }

    /// The record under this key.
    #[inline]
    pub fn get(&self, key: K) -> Option<&T> {
        let number = key.number();
        let board = self.board(number / BOARD)?;
        board.place(number).map(|place| &board.records[place])
    }

    /// The record under this key, to be changed.
    pub fn get_mut(&mut self, key: K) -> Option<&mut T> {
        let number = key.number();
        let at = self.board_at(number / BOARD).ok()?;
        let board = &mut self.boards[at].1;
        let place = board.place(number)?;
        Some(&mut Arc::make_mut(board).records[place])
    }

    /// Puts a record under a key that is free. Keys are never used twice, so a taken one is a bug.
    pub fn insert(&mut self, key: K, record: T) {
        let number = key.number();
        let at = self.board_at(number / BOARD).unwrap_or_else(|at| {
            self.boards.insert(at, (number / BOARD, Arc::new(Board::empty())));
            at
        });
        Arc::make_mut(&mut self.boards[at].1).insert(number, record);
        self.len += 1;
    }

    /// Takes a record away.
    pub fn remove(&mut self, key: K) -> Option<T> {
        let number = key.number();
        let at = self.board_at(number / BOARD).ok()?;
        let board = &mut self.boards[at].1;
        let place = board.place(number)?;
        let board = Arc::make_mut(board);
        let record = board.remove(number, place);
        self.len -= 1;
        if board.taken == 0 {
            self.boards.remove(at);
        }
        Some(record)
    }

    /// All records with their keys, in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        self.boards.iter().flat_map(|(first, board)| Self::board_iter(*first, board))
    }

    /// The records whose keys come after `after`, in order; all of them for `None`.
    pub fn iter_after(&self, after: Option<K>) -> impl Iterator<Item = (K, &T)> {
        let after = after.map(K::number);
        let from = after.map_or(0, |number| number / BOARD);
        let from = self.board_at(from).unwrap_or_else(|at| at);
        self.boards
            .range(from..)
            .flat_map(|(first, board)| Self::board_iter(*first, board))
            .filter(move |(key, _)| after.is_none_or(|after| key.number() > after))
    }

    fn board_iter(board_number: u64, board: &Board<T>) -> impl Iterator<Item = (K, &T)> {
        (0..BOARD)
            .filter_map(move |offset| Some((board_number * BOARD + offset, board.place(offset)?)))
            .map(|(number, place)| (K::from_number(number), &board.records[place]))
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
    fn a_shelf_is_a_map_in_the_order_of_its_keys() {
        let mut shelf = Shelf::<u64, u64>::default();
        let mut model = BTreeMap::new();
        let mut seed = 7u64;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let key = (seed >> 33) % 1_000;
            match (seed >> 20) % 3 {
                0 if !model.contains_key(&key) => {
                    shelf.insert(key, seed);
                    model.insert(key, seed);
                }
                1 => assert_eq!(shelf.remove(key), model.remove(&key)),
                _ => assert_eq!(shelf.get_mut(key).copied(), model.get(&key).copied()),
            }
            assert_eq!(shelf.len(), model.len());
        }
        assert!(shelf.iter().map(|(k, v)| (k, *v)).eq(model.iter().map(|(k, v)| (*k, *v))));
        assert!(shelf.iter_after(Some(500)).map(|(k, _)| k).eq(model.range(501..).map(|(k, _)| *k)));
    }

    #[test]
    fn a_copy_keeps_what_it_saw() {
        let mut shelf = Shelf::<u64, u64>::default();
        (0..200).for_each(|n| shelf.insert(n, n));
        let copy = shelf.clone();
        *shelf.get_mut(77).unwrap() = 0;
        shelf.remove(78);
        shelf.insert(1_000, 1);
        assert_eq!(
            (copy.get(77), copy.get(78), copy.get(1_000), copy.len()),
            (Some(&77), Some(&78), None, 200)
        );
    }
}
