//! Bytes as decisions: each choice takes the next byte; without bytes, every choice is the first one. So a
//! small change of the input is a small change of what happens, which is what a fuzzer needs.

use std::time::Duration;

/// Decisions still to be made.
pub struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    /// The decisions that these bytes are.
    pub fn new(bytes: &'a [u8]) -> Self {
        Choices(bytes)
    }

    /// Whether every further choice would be the first one.
    pub fn are_made(&self) -> bool {
        self.0.is_empty()
    }

    /// One byte of decision.
    pub fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u8) -> u8 {
        self.byte() % bound
    }

    /// Whether one of `of` cases is the case.
    pub fn one_in(&mut self, of: u8) -> bool {
        self.below(of) == of - 1
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::from(self.byte()) % of.len()]
    }

    /// A number: usually small, sometimes at an edge, sometimes any at all.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..240 => u64::from(small % 16),
            240..250 => self.pick(&[u64::MAX, u64::MAX - 1, 1 << 63, (1 << 53) - 1, 1 << 53, 1 << 32]),
            _ => (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte())),
        }
    }

    /// A length of time: usually one that a person would choose, sometimes an absurd one.
    pub fn length(&mut self) -> Duration {
        match self.byte() {
            usual @ 0..230 => Duration::from_millis([500, 2_000, 5_000, 10_000][usize::from(usual % 4)]),
            230..240 => self.pick(&[Duration::ZERO, Duration::from_nanos(1), Duration::from_secs(3600)]),
            240..250 => self.pick(&[Duration::MAX, Duration::from_micros(u64::MAX)]),
            _ => Duration::from_millis(self.number()),
        }
    }
}
