//! A list that nearly always has one element: that one is stored in the record itself, without an allocation.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::{fmt, mem, ops, slice};

/// Read and searched as the slice that it is.
#[derive(Clone, Default)]
pub enum Few<T> {
    /// Nothing.
    #[default]
    None,
    /// The one that there nearly always is.
    One(T),
    /// Several; or fewer, where there were several. Boxed, so that the list takes no more room than one small element.
    Many(Box<Vec<T>>),
}

impl<T> Few<T> {
    /// Puts an element at this place.
    pub fn insert(&mut self, at: usize, element: T) {
        match self {
            Few::None => {
                assert_eq!(at, 0, "an empty list has one place");
                *self = Few::One(element);
            }
            Few::One(_) => {
                let Few::One(first) = mem::take(self) else { unreachable!("it was one") };
                let mut many = Box::new(Vec::from([first]));
                many.insert(at, element);
                *self = Few::Many(many);
            }
            Few::Many(many) => many.insert(at, element),
        }
    }

    /// Puts an element at the end.
    pub fn push(&mut self, element: T) {
        self.insert(self.len(), element);
    }

    /// Takes the element at this place.
    pub fn remove(&mut self, at: usize) -> T {
        match self {
            Few::Many(many) => many.remove(at),
            Few::One(_) if at == 0 => match mem::take(self) {
                Few::One(element) => element,
                _ => unreachable!("it was one"),
            },
            _ => panic!("there is no element at {at}"),
        }
    }

    /// Takes the first `count` elements away.
    pub fn drop_first(&mut self, count: usize) {
        match self {
            Few::Many(many) => drop(many.drain(..count)),
            _ if count > 0 => *self = Few::None,
            _ => {}
        }
    }

    /// Takes all elements away.
    pub fn clear(&mut self) {
        *self = Few::None;
    }
}

impl<T> ops::Deref for Few<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match self {
            Few::None => &[],
            Few::One(element) => slice::from_ref(element),
            Few::Many(many) => many,
        }
    }
}

impl<T> ops::DerefMut for Few<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Few::None => &mut [],
            Few::One(element) => slice::from_mut(element),
            Few::Many(many) => many,
        }
    }
}

impl<T> From<Vec<T>> for Few<T> {
    fn from(mut many: Vec<T>) -> Self {
        match many.len() {
            0 => Few::None,
            1 => Few::One(many.remove(0)),
            _ => Few::Many(Box::new(many)),
        }
    }
}

impl<T> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        let mut few = Few::None;
        elements.into_iter().for_each(|element| few.push(element));
        few
    }
}

impl<'a, T> IntoIterator for &'a Few<T> {
    type Item = &'a T;
    type IntoIter = slice::Iter<'a, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

// What counts is what is in it, not how it is kept: replicas may have reached it differently.
impl<T: PartialEq> PartialEq for Few<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Eq> Eq for Few<T> {}

impl<T: fmt::Debug> fmt::Debug for Few<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_is_a_list() {
        let (mut few, mut plain) = (Few::default(), Vec::new());
        let mut seed = 3u64;
        for _ in 0..2_000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (seed >> 40) as usize % (plain.len() + 1);
            match (seed >> 33) % 6 {
                0..3 => {
                    few.insert(at, seed);
                    plain.insert(at, seed);
                }
                3 if at < plain.len() => assert_eq!(few.remove(at), plain.remove(at)),
                4 => {
                    few.drop_first(at);
                    plain.drain(..at);
                }
                5 if (seed >> 50).is_multiple_of(8) => {
                    few.clear();
                    plain.clear();
                }
                _ => {}
            }
            assert_eq!(*few, plain[..]);
            assert_eq!(few, Few::from(plain.clone()), "equal, however it is kept");
        }
    }
}
