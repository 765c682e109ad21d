//! Seeded chance: a test that draws prints its seed, and the seed replays what the test drew.

/// A small generator (splitmix64); good enough to choose victims and moments, and nothing else.
#[derive(Clone, Debug)]
pub struct Dice {
    state: u64,
}

impl Dice {
    /// Draws from `TENURE_SEED` if it is set, else from a fresh seed; prints which.
    pub fn for_test(test: &str) -> Self {
        let given = std::env::var("TENURE_SEED").ok().and_then(|text| text.parse().ok());
        let seed = given.unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.map_or(1, |since| since.as_nanos() as u64) ^ (u64::from(std::process::id()) << 32)
        });
        println!("{test}: TENURE_SEED={seed}");
        Self::seeded(seed)
    }

    /// The generator of one seed.
    pub fn seeded(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A generator of its own for a thread.
    pub fn split(&mut self) -> Self {
        Self::seeded(self.draw())
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `low..high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low < high, "an empty range {low}..{high} cannot be drawn from");
        low + self.draw() % (high - low)
    }

    /// True once in `n` draws.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.between(0, n) == 0
    }
}
