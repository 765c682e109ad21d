//! How values become bytes in what we store ourselves: log entries, snapshots, backups.
//!
//! Numbers are varints (seven bits per byte, the lowest first), signed ones zig-zag; lengths come before
//! contents; an enum begins with the tag that it was given for good. Writing cannot fail. Reading never
//! panics, and never allocates more than the bytes that are really there can account for.
//!
//! The macros `record!` and `choice!` turn a list of fields into both directions at once, so that the two
//! cannot disagree. They take values apart without `..`: a field added in `core` does not compile here
//! until somebody has decided how it is stored.
//!
//! Every value is written and read under a format version. A field or variant that came later says so
//! (`field since 2`): it is neither written nor expected under an older version, where it has its default.
//! [`Coded::fits`] tells whether a value can be written under a version without losing anything.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::{Few, FormatVersion, InvalidName, InvalidToken, Span};

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

/// The version of this number; refused if it is newer than `newest`.
pub(crate) fn version_of(
    what: &'static str,
    found: u8,
    newest: FormatVersion,
) -> Result<FormatVersion, WireError> {
    match FormatVersion::known(found) {
        Some(version) if version <= newest => Ok(version),
        None if found == 0 => Err(WireError::corrupt(what, "format version 0 was never written")),
        _ => Err(WireError::Newer { what, found, known: newest.get() }),
    }
}

/// Bytes being written, and the format version that they are written in.
pub(crate) struct Output {
    bytes: Vec<u8>,
    pub version: FormatVersion,
}

impl Output {
    pub fn new(version: FormatVersion) -> Output {
        Output { bytes: Vec::new(), version }
    }

    /// Appends what `put` writes to `out`.
    pub fn append(version: FormatVersion, out: &mut Vec<u8>, put: impl FnOnce(&mut Output)) {
        let mut output = Output { bytes: std::mem::take(out), version };
        put(&mut output);
        *out = output.bytes;
    }

    /// The bytes of one value.
    pub fn of(version: FormatVersion, value: &impl Coded) -> Vec<u8> {
        let mut output = Output::new(version);
        value.put(&mut output);
        output.bytes
    }
}

impl std::ops::Deref for Output {
    type Target = Vec<u8>;
    fn deref(&self) -> &Vec<u8> {
        &self.bytes
    }
}

impl std::ops::DerefMut for Output {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

/// Bytes being read, front to back, and the format version that they were written in.
pub(crate) struct Reader<'a> {
    what: &'static str,
    rest: &'a [u8],
    pub version: FormatVersion,
}

impl<'a> Reader<'a> {
    /// Reads `bytes` as this version wrote them; errors will say that they are about `what`.
    pub(crate) fn new(what: &'static str, version: FormatVersion, bytes: &'a [u8]) -> Self {
        Self { what, rest: bytes, version }
    }

    /// Reads `bytes` that begin with their format version, which may be at most `newest`.
    pub(crate) fn versioned(
        what: &'static str,
        newest: FormatVersion,
        bytes: &'a [u8],
    ) -> Result<Self, WireError> {
        let mut reader = Self::new(what, newest, bytes);
        let found = reader.byte()?;
        reader.version = version_of(what, found, newest)?;
        Ok(reader)
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

    /// The next byte, without taking it.
    pub(crate) fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
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

/// A value with one stored form in each format version, at least one byte long.
pub(crate) trait Coded: Sized {
    /// Appends the value, in the output's version.
    fn put(&self, out: &mut Output);
    /// Reads the value back, as the input's version wrote it.
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError>;
    /// Whether this version can say all of it.
    fn fits(&self, _version: FormatVersion) -> bool {
        true
    }
}

/// One field of a record: stored always, or since a version.
macro_rules! field {
    (put $field:ident, $out:ident) => {
        $field.put($out)
    };
    (put $field:ident, $out:ident, $since:literal) => {
        if $out.version.get() >= $since {
            $field.put($out)
        }
    };
    (take $input:ident) => {
        $crate::codec::Coded::take($input)?
    };
    (take $input:ident, $since:literal) => {
        if $input.version.get() >= $since { $crate::codec::Coded::take($input)? } else { Default::default() }
    };
    (fits $field:ident, $version:ident) => {
        $crate::codec::Coded::fits($field, $version)
    };
    (fits $field:ident, $version:ident, $since:literal) => {
        if $version.get() >= $since {
            $crate::codec::Coded::fits($field, $version)
        } else {
            $crate::codec::is_default($field)
        }
    };
}

/// Whether a field that an older version cannot say has nothing to say.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Stores a struct as its fields, one after the other, in the order given here. A later field is `name since 2`.
macro_rules! record {
    ($type:ident { $($field:ident $(since $since:literal)?),* $(,)? }) => {
        impl $crate::codec::Coded for $type {
            fn put(&self, out: &mut $crate::codec::Output) {
                let $type { $($field),* } = self;
                $($crate::codec::field!(put $field, out $(, $since)?);)*
            }
            fn take(input: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::codec::WireError> {
                Ok($type { $($field: $crate::codec::field!(take input $(, $since)?)),* })
            }
            fn fits(&self, version: tenure_core::FormatVersion) -> bool {
                let $type { $($field),* } = self;
                $($crate::codec::field!(fits $field, version $(, $since)?))&&*
            }
        }
    };
}

/// Stores an enum as a tag and the variant's fields. A tag is given once and never used again for another variant.
/// A later variant is `24 since 2 => Name`, a later field `name since 2`.
macro_rules! choice {
    (
        $type:ident { $(
            $tag:literal $(since $variant_since:literal)? => $variant:ident
                $(( $($part:ident),* ))?
                $({ $($field:ident $(since $since:literal)?),* })?
        ),* $(,)? }
        $(never $never:ident: $why:literal)?
    ) => {
        impl $crate::codec::Coded for $type {
            fn put(&self, out: &mut $crate::codec::Output) {
                match self {
                    $($type::$variant $(( $($part),* ))? $({ $($field),* })? => {
                        out.push($tag);
                        $($($part.put(out);)*)?
                        $($($crate::codec::field!(put $field, out $(, $since)?);)*)?
                    })*
                    $($type::$never { .. } => unreachable!($why),)?
                }
            }
            fn take(input: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::codec::WireError> {
                match input.byte()? {
                    $($tag $(if input.version.get() >= $variant_since)? => Ok($type::$variant
                        $(( $({ let $part = $crate::codec::Coded::take(input)?; $part }),* ))?
                        $({ $($field: $crate::codec::field!(take input $(, $since)?)),* })?
                    ),)*
                    tag => Err(input.corrupt(format!(concat!("{} is no ", stringify!($type)), tag))),
                }
            }
            fn fits(&self, version: tenure_core::FormatVersion) -> bool {
                // A plain list of names fits every version.
                let _ = version;
                match self {
                    $($type::$variant $(( $($part),* ))? $({ $($field),* })? => {
                        true
                            $(&& version.get() >= $variant_since)?
                            $($(&& $crate::codec::Coded::fits($part, version))*)?
                            $($(&& $crate::codec::field!(fits $field, version $(, $since)?))*)?
                    })*
                    $($type::$never { .. } => unreachable!($why),)?
                }
            }
        }
    };
}

pub(crate) use {choice, field, record};

impl Coded for u64 {
    fn put(&self, out: &mut Output) {
        put_varint(*self, out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        input.varint()
    }
}

/// A checksum: no small number, so no varint.
impl Coded for u128 {
    fn put(&self, out: &mut Output) {
        out.extend_from_slice(&self.to_le_bytes());
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        input.array().map(u128::from_le_bytes)
    }
}

impl Coded for u32 {
    fn put(&self, out: &mut Output) {
        put_varint(u64::from(*self), out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        u32::try_from(input.varint()?).map_err(|_| input.corrupt("a number has more than 32 bits"))
    }
}

impl Coded for i32 {
    fn put(&self, out: &mut Output) {
        put_signed(i64::from(*self), out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        i32::try_from(input.signed()?).map_err(|_| input.corrupt("a number has more than 32 bits"))
    }
}

impl Coded for bool {
    fn put(&self, out: &mut Output) {
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
    fn put(&self, out: &mut Output) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        bool::take(input)?.then(|| T::take(input)).transpose()
    }
    fn fits(&self, version: FormatVersion) -> bool {
        self.as_ref().is_none_or(|value| value.fits(version))
    }
}

impl<T: Coded> Coded for Box<T> {
    fn put(&self, out: &mut Output) {
        (**self).put(out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        T::take(input).map(Box::new)
    }
    fn fits(&self, version: FormatVersion) -> bool {
        (**self).fits(version)
    }
}

/// Implements tuples: their parts, one after the other.
macro_rules! tuple {
    ($($part:ident),*) => {
        impl<$($part: Coded),*> Coded for ($($part,)*) {
            fn put(&self, out: &mut Output) {
                #[allow(non_snake_case)]
                let ($($part,)*) = self;
                $($part.put(out);)*
            }
            fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
                Ok(($($part::take(input)?,)*))
            }
            fn fits(&self, version: FormatVersion) -> bool {
                #[allow(non_snake_case)]
                let ($($part,)*) = self;
                $($part.fits(version))&&*
            }
        }
    };
}

tuple!(A, B);
tuple!(A, B, C);
tuple!(A, B, C, D);

impl<A: Coded, B: Coded> Coded for Result<A, B> {
    fn put(&self, out: &mut Output) {
        self.is_ok().put(out);
        match self {
            Ok(value) => value.put(out),
            Err(value) => value.put(out),
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(if bool::take(input)? { Ok(A::take(input)?) } else { Err(B::take(input)?) })
    }
    fn fits(&self, version: FormatVersion) -> bool {
        match self {
            Ok(value) => value.fits(version),
            Err(value) => value.fits(version),
        }
    }
}

/// Implements sequences: a count, then the elements in their own order.
macro_rules! sequence {
    ($($type:ty),*) => {$(
        impl<T: Coded> Coded for $type {
            fn put(&self, out: &mut Output) {
                put_varint(self.len() as u64, out);
                self.iter().for_each(|element| element.put(out));
            }
            fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
                let count = input.length(1)?;
                input.elements(count).map(Into::into)
            }
            fn fits(&self, version: FormatVersion) -> bool {
                self.iter().all(|element| element.fits(version))
            }
        }
    )*};
}

sequence!(Vec<T>, VecDeque<T>, Few<T>);

impl<T: Coded + Ord> Coded for BTreeSet<T> {
    fn put(&self, out: &mut Output) {
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
    fn fits(&self, version: FormatVersion) -> bool {
        self.iter().all(|element| element.fits(version))
    }
}

impl<K: Coded + Ord, V: Coded> Coded for BTreeMap<K, V> {
    fn put(&self, out: &mut Output) {
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
    fn fits(&self, version: FormatVersion) -> bool {
        self.iter().all(|(key, value)| key.fits(version) && value.fits(version))
    }
}

impl<const N: usize> Coded for [u8; N] {
    fn put(&self, out: &mut Output) {
        out.extend_from_slice(self);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        input.array()
    }
}

impl Coded for Arc<[u8]> {
    fn put(&self, out: &mut Output) {
        put_bytes(self, out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let length = input.length(1)?;
        Ok(input.bytes(length)?.into())
    }
}

impl Coded for Arc<str> {
    fn put(&self, out: &mut Output) {
        put_bytes(self.as_bytes(), out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(input.text()?.into())
    }
}

/// The fixed texts of refusals, which sessions remember. They come back as `&'static str`, so each distinct
/// one is kept for good; the bounds keep a damaged or hostile file from making that a leak.
impl Coded for &'static str {
    fn put(&self, out: &mut Output) {
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
    fn put(&self, out: &mut Output) {
        Duration::from(*self).put(out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Duration::take(input).map(Span::from)
    }
}

impl Coded for Duration {
    fn put(&self, out: &mut Output) {
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
        Output::of(FormatVersion::NEWEST, value)
    }

    fn reader(bytes: &[u8]) -> Reader<'_> {
        Reader::new("value", FormatVersion::NEWEST, bytes)
    }

    #[track_caller]
    fn survives<T: Coded + PartialEq + std::fmt::Debug>(value: T) {
        let bytes = coded(&value);
        let mut input = reader(&bytes);
        assert_eq!(T::take(&mut input).unwrap(), value);
        input.finish().unwrap();
        for cut in 0..bytes.len() {
            assert!(T::take(&mut reader(&bytes[..cut])).is_err(), "cut at {cut} of {bytes:?}");
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
            assert_eq!(reader(&out).signed().unwrap(), value);
        }
    }

    #[test]
    fn a_number_too_wide_is_refused() {
        let mut wide = vec![0xff; 9];
        wide.push(2);
        assert!(u64::take(&mut reader(&wide)).is_err());
        assert!(u32::take(&mut reader(&coded(&(1u64 << 32)))).is_err());
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
        assert!(Vec::<u64>::take(&mut reader(&claim)).is_err());
        assert!(<Arc<[u8]>>::take(&mut reader(&claim)).is_err());
    }

    #[test]
    fn sets_and_maps_have_one_order() {
        survives(BTreeSet::from([1u64, 2, 9]));
        survives(BTreeMap::from([(1u64, true), (2, false)]));
        assert!(<BTreeSet<u64> as Coded>::take(&mut reader(&[2, 5, 5])).is_err());
        assert!(BTreeMap::<u64, u64>::take(&mut reader(&[2, 5, 0, 4, 0])).is_err());
    }

    #[test]
    fn fixed_texts_come_back_as_such() {
        survives("leases_per_session_max");
        assert!(<&'static str>::take(&mut reader(&coded(&Arc::<str>::from("x".repeat(513))))).is_err());
    }

    #[derive(Debug, Default, PartialEq)]
    struct Grown {
        old: u64,
        new: Option<u64>,
    }

    #[derive(Debug, PartialEq)]
    enum Wider {
        Old { first: bool, second: u64 },
        New(u64),
    }

    record!(Grown { old, new since 2 });
    choice!(Wider { 1 => Old { first, second since 2 }, 2 since 2 => New(number) });

    fn under<T: Coded>(version: FormatVersion, bytes: &[u8]) -> Result<T, WireError> {
        let mut input = Reader::new("value", version, bytes);
        let value = T::take(&mut input)?;
        input.finish()?;
        Ok(value)
    }

    /// An older version neither writes nor expects what came later, and a value that would lose something does not fit.
    #[test]
    fn a_later_field_exists_since_its_version() {
        let (old, new) = (FormatVersion::V1, FormatVersion::V2);
        let grown = |new| Grown { old: 7, new };
        assert_eq!(Output::of(old, &grown(None)), [7]);
        assert_eq!(Output::of(new, &grown(Some(3))), [7, 1, 3]);
        assert_eq!(under::<Grown>(old, &[7]).unwrap(), grown(None));
        assert_eq!(under::<Grown>(new, &[7, 1, 3]).unwrap(), grown(Some(3)));
        assert!(under::<Grown>(old, &[7, 1, 3]).is_err() && under::<Grown>(new, &[7]).is_err());
        assert!(grown(None).fits(old) && !grown(Some(3)).fits(old) && grown(Some(3)).fits(new));
        assert!(!vec![Box::new((true, Some(grown(Some(3)))))].fits(old), "wherever it stands");
    }

    #[test]
    fn a_later_variant_exists_since_its_version() {
        let (old, new) = (FormatVersion::V1, FormatVersion::V2);
        assert!(under::<Wider>(old, &[2, 9]).is_err());
        assert_eq!(under::<Wider>(new, &[2, 9]).unwrap(), Wider::New(9));
        assert_eq!(under::<Wider>(old, &[1, 1]).unwrap(), Wider::Old { first: true, second: 0 });
        assert!(!Wider::New(9).fits(old) && Wider::New(9).fits(new));
        assert!(Wider::Old { first: true, second: 0 }.fits(old));
        assert!(!Wider::Old { first: true, second: 5 }.fits(old));
    }
}
