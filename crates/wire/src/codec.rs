//! How values become bytes in what we store ourselves: log entries, snapshots, backups.
//!
//! Numbers are varints (seven bits per byte, the lowest first), signed ones zig-zag; lengths come before
//! contents; an enum begins with the tag that it was given for good. Writing cannot fail. Reading never
//! panics, and never allocates more than the bytes that are really there can account for.
//!
//! The macros `record!` and `choice!` turn a list of fields into both directions at once, so that the two
//! cannot disagree. They take values apart without `..`: a field added in `core` does not compile here
//! until somebody has decided how it is stored.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::state::Few;
use tenure_core::{InvalidName, InvalidToken, Span};

/// Why bytes could not be read.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The bytes end before the value does.
    #[error("{what} ends too early: it was cut off or damaged")]
    Truncated {
        /// What was being read.
        what: &'static str,
    },
    /// The bytes do not say what they should.
    #[error("{what} is damaged: {why}")]
    Corrupt {
        /// What was being read.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A later version of Tenure wrote this.
    #[error(
        "{what} has format version {found}, and this build reads versions up to {known}: a newer tenure wrote it; \
         run that version (or a later one) on this node"
    )]
    Newer {
        /// What was being read.
        what: &'static str,
        /// The version found.
        found: u8,
        /// The newest version that this build reads.
        known: u8,
    },
    /// The bytes could not be had.
    #[error("reading {what} failed: {source}")]
    Io {
        /// What was being read.
        what: &'static str,
        /// What the operating system said.
        source: std::io::Error,
    },
}

impl WireError {
    pub(crate) fn corrupt(what: &'static str, why: impl Into<String>) -> WireError {
        WireError::Corrupt { what, why: why.into() }
    }

    pub(crate) fn io(what: &'static str, source: std::io::Error) -> WireError {
        match source.kind() {
            std::io::ErrorKind::UnexpectedEof => WireError::Truncated { what },
            _ => WireError::Io { what, source },
        }
    }
}

/// Refuses a format version that this build does not know.
pub(crate) fn check_version(what: &'static str, found: u8, known: u8) -> Result<(), WireError> {
    match found {
        0 => Err(WireError::corrupt(what, "format version 0 was never written")),
        _ if found > known => Err(WireError::Newer { what, found, known }),
        _ => Ok(()),
    }
}

/// Bytes being read, front to back.
pub(crate) struct Reader<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads `bytes`; errors will say that they are about `what`.
    pub(crate) fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, rest: bytes }
    }

    /// How many bytes are left.
    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Everything must have been read.
    pub(crate) fn finish(self) -> Result<(), WireError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(WireError::corrupt(self.what, format!("{} bytes follow its end", self.rest.len())))
    }

    pub(crate) fn corrupt(&self, why: impl Into<String>) -> WireError {
        WireError::corrupt(self.what, why)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, WireError> {
        let (&first, rest) = self.rest.split_first().ok_or(WireError::Truncated { what: self.what })?;
        self.rest = rest;
        Ok(first)
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) =
            self.rest.split_at_checked(count).ok_or(WireError::Truncated { what: self.what })?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (taken, rest) =
            self.rest.split_first_chunk::<N>().ok_or(WireError::Truncated { what: self.what })?;
        self.rest = rest;
        Ok(*taken)
    }

    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u64, WireError> {
        // Most numbers in a log are below 128 or 16384; the loop is for the others.
        match self.rest {
            [a, rest @ ..] if *a < 0x80 => {
                self.rest = rest;
                Ok(u64::from(*a))
            }
            [a, b, rest @ ..] if *b < 0x80 => {
                self.rest = rest;
                Ok(u64::from(*a & 0x7f) | u64::from(*b) << 7)
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, WireError> {
        let mut value = 0u64;
        for (at, &byte) in self.rest.iter().take(10).enumerate() {
            // The tenth byte holds the 64th bit alone.
            if at == 9 && byte > 1 {
                return Err(self.corrupt("a number has more than 64 bits"));
            }
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                self.rest = &self.rest[at + 1..];
                return Ok(value);
            }
        }
        Err(WireError::Truncated { what: self.what })
    }

    #[inline]
    pub(crate) fn signed(&mut self) -> Result<i64, WireError> {
        let zigzag = self.varint()?;
        Ok((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64))
    }

    /// A length of something of which each element takes at least `bytes_min` bytes: one that the
    /// remaining bytes cannot hold is refused before anything is allocated for it.
    pub(crate) fn length(&mut self, bytes_min: usize) -> Result<usize, WireError> {
        let length = self.varint()?;
        match usize::try_from(length) {
            Ok(length) if length <= self.remaining() / bytes_min => Ok(length),
            _ => Err(WireError::Truncated { what: self.what }),
        }
    }

    fn text(&mut self) -> Result<&'a str, WireError> {
        let length = self.length(1)?;
        let bytes = self.bytes(length)?;
        std::str::from_utf8(bytes).map_err(|error| self.corrupt(format!("a text is not UTF-8: {error}")))
    }

    /// A text that becomes a checked name.
    pub(crate) fn name<T: std::str::FromStr<Err = InvalidName>>(&mut self) -> Result<T, WireError> {
        self.text()?.parse().map_err(|error: InvalidName| self.corrupt(error.to_string()))
    }

    /// `count` elements. Room is made for what the remaining bytes could fill, not for what they claim.
    pub(crate) fn elements<T: Coded>(&mut self, count: usize) -> Result<Vec<T>, WireError> {
        let room = self.remaining() / size_of::<T>().max(1) + 1;
        let mut elements = Vec::with_capacity(count.min(room));
        for _ in 0..count {
            elements.push(T::take(self)?);
        }
        Ok(elements)
    }
}

#[inline]
pub(crate) fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[inline]
pub(crate) fn put_signed(value: i64, out: &mut Vec<u8>) {
    put_varint((value << 1 ^ value >> 63) as u64, out);
}

pub(crate) fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    put_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// A value with one stored form, at least one byte long.
pub(crate) trait Coded: Sized {
    /// Appends the value.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads the value back.
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError>;
}

/// Stores a struct as its fields, one after the other, in the order given here.
macro_rules! record {
    ($type:ident { $($field:ident),* $(,)? }) => {
        impl $crate::codec::Coded for $type {
            fn put(&self, out: &mut Vec<u8>) {
                let $type { $($field),* } = self;
                $($field.put(out);)*
            }
            fn take(input: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::codec::WireError> {
                Ok($type { $($field: $crate::codec::Coded::take(input)?),* })
            }
        }
    };
}

/// Stores an enum as a tag and the variant's fields. A tag is given once and never used again for another variant.
macro_rules! choice {
    (
        $type:ident { $($tag:literal => $variant:ident $(( $($part:ident),* ))? $({ $($field:ident),* })?),* $(,)? }
        $(never $never:ident: $why:literal)?
    ) => {
        impl $crate::codec::Coded for $type {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $($type::$variant $(( $($part),* ))? $({ $($field),* })? => {
                        out.push($tag);
                        $($($part.put(out);)*)?
                        $($($field.put(out);)*)?
                    })*
                    $($type::$never { .. } => unreachable!($why),)?
                }
            }
            fn take(input: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::codec::WireError> {
                match input.byte()? {
                    $($tag => Ok($type::$variant
                        $(( $({ let $part = $crate::codec::Coded::take(input)?; $part }),* ))?
                        $({ $($field: $crate::codec::Coded::take(input)?),* })?
                    ),)*
                    tag => Err(input.corrupt(format!(concat!("{} is no ", stringify!($type)), tag))),
                }
            }
        }
    };
}

pub(crate) use {choice, record};

impl Coded for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        put_varint(*self, out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        input.varint()
    }
}

impl Coded for u32 {
    fn put(&self, out: &mut Vec<u8>) {
        put_varint(u64::from(*self), out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        u32::try_from(input.varint()?).map_err(|_| input.corrupt("a number has more than 32 bits"))
    }
}

impl Coded for i32 {
    fn put(&self, out: &mut Vec<u8>) {
        put_signed(i64::from(*self), out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        i32::try_from(input.signed()?).map_err(|_| input.corrupt("a number has more than 32 bits"))
    }
}

impl Coded for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        match input.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(input.corrupt(format!("{other} is neither yes nor no"))),
        }
    }
}

impl<T: Coded> Coded for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        bool::take(input)?.then(|| T::take(input)).transpose()
    }
}

impl<T: Coded> Coded for Box<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (**self).put(out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        T::take(input).map(Box::new)
    }
}

/// Implements tuples: their parts, one after the other.
macro_rules! tuple {
    ($($part:ident),*) => {
        impl<$($part: Coded),*> Coded for ($($part,)*) {
            fn put(&self, out: &mut Vec<u8>) {
                #[allow(non_snake_case)]
                let ($($part,)*) = self;
                $($part.put(out);)*
            }
            fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
                Ok(($($part::take(input)?,)*))
            }
        }
    };
}

tuple!(A, B);
tuple!(A, B, C);
tuple!(A, B, C, D);

impl<A: Coded, B: Coded> Coded for Result<A, B> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_ok().put(out);
        match self {
            Ok(value) => value.put(out),
            Err(value) => value.put(out),
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(if bool::take(input)? { Ok(A::take(input)?) } else { Err(B::take(input)?) })
    }
}

/// Implements sequences: a count, then the elements in their own order.
macro_rules! sequence {
    ($($type:ty),*) => {$(
        impl<T: Coded> Coded for $type {
            fn put(&self, out: &mut Vec<u8>) {
                put_varint(self.len() as u64, out);
                self.iter().for_each(|element| element.put(out));
            }
            fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
                let count = input.length(1)?;
                input.elements(count).map(Into::into)
            }
        }
    )*};
}

sequence!(Vec<T>, VecDeque<T>, Few<T>);

impl<T: Coded + Ord> Coded for BTreeSet<T> {
    fn put(&self, out: &mut Vec<u8>) {
        put_varint(self.len() as u64, out);
        self.iter().for_each(|element| element.put(out));
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut set = BTreeSet::new();
        for _ in 0..input.length(1)? {
            let element = T::take(input)?;
            if set.last().is_some_and(|last| *last >= element) {
                return Err(input.corrupt("a set is out of order"));
            }
            set.insert(element);
        }
        Ok(set)
    }
}

impl<K: Coded + Ord, V: Coded> Coded for BTreeMap<K, V> {
    fn put(&self, out: &mut Vec<u8>) {
        put_varint(self.len() as u64, out);
        for (key, value) in self {
            key.put(out);
            value.put(out);
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut map = BTreeMap::new();
        for _ in 0..input.length(1)? {
            let (key, value) = <(K, V)>::take(input)?;
            if map.last_key_value().is_some_and(|(last, _)| *last >= key) {
                return Err(input.corrupt("a map is out of order"));
            }
            map.insert(key, value);
        }
        Ok(map)
    }
}

impl<const N: usize> Coded for [u8; N] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        input.array()
    }
}

impl Coded for Arc<[u8]> {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(self, out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let length = input.length(1)?;
        Ok(input.bytes(length)?.into())
    }
}

impl Coded for Arc<str> {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(self.as_bytes(), out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(input.text()?.into())
    }
}

/// The fixed texts of refusals, which sessions remember. They come back as `&'static str`, so each distinct
/// one is kept for good; the bounds keep a damaged or hostile file from making that a leak.
impl Coded for &'static str {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(self.as_bytes(), out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        const TEXTS_MAX: usize = 1024;
        const TEXT_BYTES_MAX: usize = 512;
        static TEXTS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

        let text = input.text()?;
        let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = texts.get(text) {
            return Ok(known);
        }
        if text.len() > TEXT_BYTES_MAX || texts.len() == TEXTS_MAX {
            return Err(input.corrupt("it holds a refusal in words that no version of tenure uses"));
        }
        let kept: &'static str = Box::leak(text.into());
        texts.insert(kept);
        Ok(kept)
    }
}

/// Durations are exact: whole microseconds, doubled, as nearly all are; the number 1 announces any other
/// as seconds and nanoseconds.
impl Coded for Span {
    fn put(&self, out: &mut Vec<u8>) {
        Duration::from(*self).put(out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Duration::take(input).map(Span::from)
    }
}

impl Coded for Duration {
    fn put(&self, out: &mut Vec<u8>) {
        let micros = self.as_micros();
        if self.subsec_nanos().is_multiple_of(1_000) && micros < 1 << 63 {
            put_varint((micros as u64) << 1, out);
        } else {
            put_varint(1, out);
            put_varint(self.as_secs(), out);
            put_varint(u64::from(self.subsec_nanos()), out);
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let doubled = input.varint()?;
        if doubled.is_multiple_of(2) {
            return Ok(Duration::from_micros(doubled >> 1));
        }
        let (seconds, nanos) = <(u64, u32)>::take(input)?;
        if doubled != 1 || nanos >= 1_000_000_000 {
            return Err(input.corrupt("a duration makes no sense"));
        }
        Ok(Duration::new(seconds, nanos))
    }
}

/// A token as stored: any number that is none is damage.
pub(crate) fn token_of(input: &Reader<'_>, number: u64) -> Result<tenure_core::Token, WireError> {
    number.try_into().map_err(|error: InvalidToken| input.corrupt(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coded<T: Coded>(value: &T) -> Vec<u8> {
        let mut out = Vec::new();
        value.put(&mut out);
        out
    }

    #[track_caller]
    fn survives<T: Coded + PartialEq + std::fmt::Debug>(value: T) {
        let bytes = coded(&value);
        let mut input = Reader::new("value", &bytes);
        assert_eq!(T::take(&mut input).unwrap(), value);
        input.finish().unwrap();
        for cut in 0..bytes.len() {
            assert!(T::take(&mut Reader::new("value", &bytes[..cut])).is_err(), "cut at {cut} of {bytes:?}");
        }
    }

    #[test]
    fn numbers_survive_at_every_width() {
        for bits in 0..64 {
            for value in [1u64 << bits, (1 << bits) - 1, !0 >> bits] {
                survives(value);
            }
        }
        for value in [0, 1, -1, i32::MIN, i32::MAX] {
            survives(value);
        }
        for value in [0, 1, -1, i64::MIN, i64::MAX] {
            let mut out = Vec::new();
            put_signed(value, &mut out);
            assert_eq!(Reader::new("value", &out).signed().unwrap(), value);
        }
    }

    #[test]
    fn a_number_too_wide_is_refused() {
        let mut wide = vec![0xff; 9];
        wide.push(2);
        assert!(u64::take(&mut Reader::new("value", &wide)).is_err());
        assert!(u32::take(&mut Reader::new("value", &coded(&(1u64 << 32)))).is_err());
    }

    #[test]
    fn durations_are_exact() {
        for value in [
            Duration::ZERO,
            Duration::from_micros(1),
            Duration::from_nanos(1),
            Duration::from_secs(10),
            Duration::new(u64::MAX, 999_999_999),
            Duration::from_micros(u64::MAX),
        ] {
            survives(value);
        }
    }

    #[test]
    fn a_claimed_length_allocates_nothing() {
        let claim = coded(&u64::MAX);
        assert!(Vec::<u64>::take(&mut Reader::new("value", &claim)).is_err());
        assert!(<Arc<[u8]>>::take(&mut Reader::new("value", &claim)).is_err());
    }

    #[test]
    fn sets_and_maps_have_one_order() {
        survives(BTreeSet::from([1u64, 2, 9]));
        survives(BTreeMap::from([(1u64, true), (2, false)]));
        assert!(<BTreeSet<u64> as Coded>::take(&mut Reader::new("value", &[2, 5, 5])).is_err());
        assert!(BTreeMap::<u64, u64>::take(&mut Reader::new("value", &[2, 5, 0, 4, 0])).is_err());
    }

    #[test]
    fn fixed_texts_come_back_as_such() {
        survives("leases_per_session_max");
        assert!(
            <&'static str>::take(&mut Reader::new("value", &coded(&Arc::<str>::from("x".repeat(513)))))
                .is_err()
        );
    }
}
