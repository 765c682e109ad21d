//! The past leases of one resource, packed: a record takes about 26 bytes and the holder's name, where the plain
//! [`Transition`] takes 112 and the name.
//!
//! Decides how records are kept in memory, and nothing else: which of them are dropped is decided in `history.rs`, and how
//! they are stored in `wire`. Records go in at the end and out at the beginning, each in constant time.
//! A copy of the list shares all blocks but the last.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use super::state::{Dropped, Transition};
use crate::command::Mode;
use crate::event::EndReason;
use crate::names::{HolderName, IdentityName};
use crate::numbers::{Generation, SessionNumber, Slot, Token};
use crate::time::{ClusterTime, WallTime};

/// A block is closed once it has this many bytes: about twenty records, so that a copy of the list copies few.
const BLOCK_BYTES: usize = 1_024;

/// Past leases, the oldest first, and what was dropped before them.
#[derive(Clone, Default)]
pub struct PackedHistory {
    /// Closed blocks; few resources have any.
    #[expect(clippy::box_collection, reason = "one word in every resource instead of four")]
    blocks: Option<Box<VecDeque<Arc<[u8]>>>>,
    /// The newest records. The last record of all is in here.
    open: Vec<u8>,
    /// Bytes of dropped records at the beginning of the first block.
    skipped: u32,
    /// Where the last record begins in `open`.
    last_at: u32,
    count: u32,
    /// What was dropped; only noted since format version 2.
    dropped: Option<Box<Dropped>>,
}

impl PackedHistory {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// What was dropped before the oldest, if that was noted.
    pub fn dropped(&self) -> Option<&Dropped> {
        self.dropped.as_deref()
    }

    /// Notes what was dropped before the oldest.
    pub fn set_dropped(&mut self, dropped: Option<Dropped>) {
        match (&mut self.dropped, dropped) {
            (Some(old), Some(new)) => **old = new,
            (old, new) => *old = new.map(Box::new),
        }
    }

    /// All of them, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = Transition> + '_ {
        self.records().map(|record| record.transition())
    }

    /// The oldest.
    pub(super) fn first(&self) -> Option<PackedLease<'_>> {
        // Asked with every lease that ends, so without the iterator over all blocks.
        let block =
            self.blocks.as_ref().and_then(|blocks| blocks.front()).map_or(&*self.open, |block| &**block);
        (!self.is_empty()).then(|| PackedLease::read(&block[self.skipped as usize..]).0)
    }

    /// The newest.
    pub(super) fn last(&self) -> Option<PackedLease<'_>> {
        (!self.is_empty()).then(|| PackedLease::read(&self.open[self.last_at as usize..]).0)
    }

    pub(super) fn records(&self) -> impl Iterator<Item = PackedLease<'_>> + '_ {
        let blocks = self.blocks.iter().flat_map(|blocks| blocks.iter()).map(|block| &**block);
        let mut skipped = self.skipped as usize;
        blocks.chain([&*self.open]).flat_map(move |block| {
            let mut rest = &block[core::mem::take(&mut skipped)..];
            core::iter::from_fn(move || {
                let (record, after) = (!rest.is_empty()).then(|| PackedLease::read(rest))?;
                rest = after;
                Some(record)
            })
        })
    }

    /// Adds the newest.
    pub fn push(&mut self, past: &Transition) {
        if self.open.len() >= BLOCK_BYTES {
            let closed = core::mem::take(&mut self.open);
            self.blocks.get_or_insert_default().push_back(closed.into());
        }
        // Most resources have one past lease: it takes no more room than it needs.
        if self.open.is_empty() {
            self.open.reserve_exact(FIXED_BYTES_USUAL + past.holder.as_str().len());
        }
        self.last_at = self.open.len() as u32;
        pack(past, &mut self.open);
        self.count += 1;
    }

    /// Drops the oldest, which takes so many bytes (`PackedLease::bytes`).
    pub(super) fn drop_first(&mut self, bytes: usize) {
        self.count -= 1;
        self.skipped += bytes as u32;
        if self.count == 0 {
            *self = PackedHistory { dropped: self.dropped.take(), ..PackedHistory::default() };
            return;
        }
        match &mut self.blocks {
            Some(blocks) if blocks.front().is_some_and(|block| block.len() == self.skipped as usize) => {
                blocks.pop_front();
                self.skipped = 0;
                if blocks.is_empty() {
                    self.blocks = None;
                }
            }
            // Moved down only when at least as much goes as stays, so each byte is moved once.
            None if self.skipped as usize * 2 >= self.open.len() => {
                self.open.drain(..self.skipped as usize);
                self.last_at -= self.skipped;
                self.skipped = 0;
            }
            Some(_) | None => {}
        }
    }
}

impl FromIterator<Transition> for PackedHistory {
    fn from_iter<I: IntoIterator<Item = Transition>>(transitions: I) -> Self {
        let mut past = PackedHistory::default();
        transitions.into_iter().for_each(|transition| past.push(&transition));
        past
    }
}

/// Where the blocks are cut does not count: the same leases are the same history.
impl PartialEq for PackedHistory {
    fn eq(&self, other: &Self) -> bool {
        self.count == other.count && self.dropped == other.dropped && self.iter().eq(other.iter())
    }
}

impl Eq for PackedHistory {}

impl fmt::Debug for PackedHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackedHistory")
            .field("leases", &self.iter().collect::<Vec<_>>())
            .field("dropped", &self.dropped)
            .finish()
    }
}

/// What a record usually takes beside the holder's name.
const FIXED_BYTES_USUAL: usize = 32;

/// One packed record.
#[derive(Clone, Copy)]
pub(super) struct PackedLease<'a> {
    pub token: Token,
    pub to: ClusterTime,
    pub to_wall: WallTime,
    pub why: EndReason,
    /// Bytes of the holder's name, of the administrator's words and of the identity's name.
    pub text_bytes: usize,
    holder: &'a [u8],
    identity: Option<&'a [u8]>,
    reason: Option<&'a [u8]>,
    generation: u64,
    session: u64,
    mode: Mode,
    slot: Option<Slot>,
    from: ClusterTime,
    from_wall: WallTime,
    /// Bytes of the whole record.
    pub bytes: usize,
}

/// The first byte of a record: why it ended in the lowest three bits, then how it was held, then what follows.
mod head {
    pub const WHY: u8 = 0b111;
    pub const SHARED: u8 = 1 << 3;
    pub const SLOTS: u8 = 1 << 4;
    pub const SLOT: u8 = 1 << 5;
    pub const REASON: u8 = 1 << 6;
    pub const IDENTITY: u8 = 1 << 7;
}

fn pack(past: &Transition, out: &mut Vec<u8>) {
    let Transition {
        token,
        generation,
        session,
        holder,
        mode,
        slot,
        from,
        to,
        from_wall,
        to_wall,
        why,
        reason,
        identity,
    } = past;
    let why = EndReason::ALL.iter().position(|one| one == why).expect("all reasons are listed") as u8;
    let mode_bits = match mode {
        Mode::Exclusive => 0,
        Mode::Shared => head::SHARED,
        Mode::Slots(_) => head::SLOTS,
    };
    let slot_bit = if slot.is_some() { head::SLOT } else { 0 };
    let reason_bit = if reason.is_some() { head::REASON } else { 0 };
    let identity_bit = if identity.is_some() { head::IDENTITY } else { 0 };
    out.push(why | mode_bits | slot_bit | reason_bit | identity_bit);
    put(token.get(), out);
    put(generation.get(), out);
    put(session.get(), out);
    if let Mode::Slots(slots) = mode {
        put(u64::from(*slots), out);
    }
    if let Some(slot) = slot {
        put(u64::from(slot.get()), out);
    }
    put(from.as_micros(), out);
    put(to.as_micros().wrapping_sub(from.as_micros()), out);
    put(from_wall.as_unix_millis(), out);
    // The calendar may go back; half a lease that did takes one byte more.
    let wall_held = to_wall.as_unix_millis().wrapping_sub(from_wall.as_unix_millis()) as i64;
    put((wall_held << 1 ^ wall_held >> 63) as u64, out);
    put_text(holder.as_str(), out);
    if let Some(reason) = reason {
        put_text(reason, out);
    }
    if let Some(identity) = identity {
        put_text(identity.as_str(), out);
    }
}

impl<'a> PackedLease<'a> {
    /// The record at the beginning of these bytes, and what follows it.
    fn read(bytes: &'a [u8]) -> (PackedLease<'a>, &'a [u8]) {
        let mut input = Input(bytes);
        let flags = input.byte();
        let has = |bit: u8| flags & bit != 0;
        let token = Token::try_from(input.number()).expect("a token was packed");
        let generation = input.number();
        let session = input.number();
        let mode = if has(head::SLOTS) {
            Mode::Slots(input.number() as u32)
        } else if has(head::SHARED) {
            Mode::Shared
        } else {
            Mode::Exclusive
        };
        let slot = has(head::SLOT).then(|| Slot::new(input.number() as u32));
        let from = input.number();
        let held = input.number();
        let from_wall = input.number();
        let zigzag = input.number();
        let wall_held = (zigzag >> 1) ^ (zigzag & 1).wrapping_neg();
        let holder = input.text();
        let reason = has(head::REASON).then(|| input.text());
        let identity = has(head::IDENTITY).then(|| input.text());
        let text_bytes = holder.len() + reason.map_or(0, <[u8]>::len) + identity.map_or(0, <[u8]>::len);
        let record = PackedLease {
            token,
            to: ClusterTime::from_micros(from.wrapping_add(held)),
            to_wall: WallTime::from_unix_millis(from_wall.wrapping_add(wall_held)),
            why: EndReason::ALL[usize::from(flags & head::WHY)],
            text_bytes,
            holder,
            identity,
            reason,
            generation,
            session,
            mode,
            slot,
            from: ClusterTime::from_micros(from),
            from_wall: WallTime::from_unix_millis(from_wall),
            bytes: bytes.len() - input.0.len(),
        };
        (record, input.0)
    }

    fn transition(&self) -> Transition {
        Transition {
            token: self.token,
            generation: Generation::new(self.generation),
            session: SessionNumber::new(self.session),
            holder: text(self.holder).parse::<HolderName>().expect("a checked name was packed"),
            mode: self.mode,
            slot: self.slot,
            from: self.from,
            to: self.to,
            from_wall: self.from_wall,
            to_wall: self.to_wall,
            why: self.why,
            reason: self.reason.map(|reason| text(reason).into()),
            identity: self
                .identity
                .map(|name| text(name).parse::<IdentityName>().expect("a checked name was packed")),
        }
    }
}

fn put(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    put(text.len() as u64, out);
    out.extend_from_slice(text.as_bytes());
}

/// Packed bytes being read. They never left this memory, so they are what was packed.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().expect("a record was packed whole");
        self.0 = rest;
        *first
    }

    fn number(&mut self) -> u64 {
        let mut number = 0;
        for shift in (0..).step_by(7) {
            let byte = self.byte();
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        number
    }

    fn text(&mut self) -> &'a [u8] {
        let length = self.number() as usize;
        let (text, rest) = self.0.split_at(length);
        self.0 = rest;
        text
    }
}

fn text(bytes: &[u8]) -> &str {
    core::str::from_utf8(bytes).expect("a text was packed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::vec;

    fn lease(number: u64) -> Transition {
        let from = 86_400_000_000 + number * 1_500_000;
        let wall = 1_760_000_000_000 + number * 1_500;
        Transition {
            token: Token::try_from(1_000_000 + number).unwrap(),
            generation: Generation::new(number + 1),
            session: SessionNumber::new(200_000 + number),
            holder: "node-17:48213".parse().unwrap(),
            mode: Mode::Exclusive,
            slot: None,
            from: ClusterTime::from_micros(from),
            to: ClusterTime::from_micros(from + 1_400_000),
            from_wall: WallTime::from_unix_millis(wall),
            to_wall: WallTime::from_unix_millis(wall + 1_400),
            why: EndReason::Released,
            reason: None,
            identity: None,
        }
    }

    fn odd_ones() -> Vec<Transition> {
        let plain = lease(1);
        vec![
            Transition { mode: Mode::Shared, why: EndReason::Died, ..plain.clone() },
            Transition { identity: Some("cred/pay-worker".parse().unwrap()), ..plain.clone() },
            Transition { mode: Mode::Slots(u32::MAX), slot: Some(Slot::new(7)), ..plain.clone() },
            Transition { reason: Some("".into()), why: EndReason::Revoked, ..plain.clone() },
            Transition { reason: Some("maintenance ü".into()), ..plain.clone() },
            // The calendar was set back, and a state that contradicts itself must come back as it was.
            Transition {
                to_wall: WallTime::default(),
                from_wall: WallTime::from_unix_millis(u64::MAX),
                ..plain.clone()
            },
            Transition { to: ClusterTime::ZERO, from: ClusterTime::from_micros(u64::MAX), ..plain.clone() },
            Transition { token: Token::MAX, generation: Generation::new(u64::MAX), ..plain },
        ]
    }

    #[test]
    fn every_record_comes_back_as_it_was() {
        for past in odd_ones() {
            let packed = PackedHistory::from_iter([past.clone()]);
            assert_eq!(packed.iter().collect::<Vec<_>>(), [past]);
        }
        let all: Vec<Transition> =
            EndReason::ALL.iter().map(|why| Transition { why: *why, ..lease(3) }).collect();
        assert_eq!(PackedHistory::from_iter(all.clone()).iter().collect::<Vec<_>>(), all);
    }

    /// The list is the queue that it stands for, whatever is taken off its front and wherever its blocks are cut.
    #[test]
    fn it_is_the_queue_that_it_stands_for() {
        let (mut packed, mut plain) = (PackedHistory::default(), VecDeque::new());
        let mut seed = 11u64;
        let odd = odd_ones();
        for step in 0..6_000u64 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // It grows to a few hundred, is emptied, and grows again.
            let shrinks = (step / 1_000) % 2 == 1;
            if (seed >> 60) < if shrinks { 12 } else { 4 } {
                if let Some(first) = packed.first().map(|first| first.bytes) {
                    packed.drop_first(first);
                }
                plain.pop_front();
            } else {
                let past = if seed >> 33 & 15 == 0 { odd[(step % 7) as usize].clone() } else { lease(step) };
                packed.push(&past);
                plain.push_back(past);
            }
            assert_eq!(packed.len(), plain.len());
            assert_eq!(packed.first().map(|past| past.transition()).as_ref(), plain.front());
            assert_eq!(packed.last().map(|past| past.transition()).as_ref(), plain.back());
            if step % 97 == 0 {
                assert!(packed.iter().eq(plain.iter().cloned()), "after {step} steps");
                assert_eq!(packed, plain.iter().cloned().collect(), "however it came about");
            }
        }
    }

    /// What the documents say a past lease costs.
    #[test]
    fn a_record_takes_the_bytes_that_are_published() {
        let past: PackedHistory = (0..1_000).map(lease).collect();
        let blocks = past.blocks.iter().flat_map(|blocks| blocks.iter());
        let packed: usize = blocks.clone().map(|block| block.len()).sum::<usize>() + past.open.len();
        let memory: usize = packed + blocks.map(|_| 32).sum::<usize>();
        assert_eq!(packed / 1_000, 26 + 13, "and the holder's name of 13 bytes");
        assert!(memory < 42_000, "{memory}");
        assert!(size_of::<PackedHistory>() <= 56, "{}", size_of::<PackedHistory>());
        let one = PackedHistory::from_iter([lease(1)]);
        assert!(one.open.capacity() <= 48, "{}", one.open.capacity());
    }

    #[test]
    fn a_copy_shares_what_is_closed() {
        let past: PackedHistory = (0..1_000).map(lease).collect();
        let copy = past.clone();
        let block = |past: &PackedHistory| past.blocks.as_ref().expect("there are blocks")[0].clone();
        assert!(Arc::ptr_eq(&block(&past), &block(&copy)), "{}", format!("{}", past.len()));
    }
}
