//! Random numbers, drawn from a seed and from nowhere else.

use std::time::Duration;

/// A generator (SplitMix64). Forks are independent, so that one more draw in one place does not change all
/// others.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice that fall as `seed` says.
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// Dice of their own for one purpose.
    pub fn fork(&mut self) -> Dice {
        Dice(self.draw())
    }

    /// 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number in `low..=high`.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.draw() % (high - low + 1)
    }

    /// True `percent` times out of a hundred.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.draw() % 100 < percent
    }

    /// One of several.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[(self.draw() % of.len() as u64) as usize]
    }

    /// So many milliseconds, in `low..=high`.
    pub fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.within(low, high))
    }
}
