//! The source of the client's randomness: the operating system, or a seed while a simulation runs on this
//! thread.

use std::cell::Cell;

thread_local! {
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From now on, clients whose work runs on this thread draw their nonces and their jitter from `seed`: for
/// simulation, where everything runs on one thread and has to run the same way again.
pub fn seed_chance(seed: u64) {
    SEED.set(Some(seed));
}

/// 64 random bits.
pub(crate) fn draw() -> Option<u64> {
    let Some(seed) = SEED.get() else { return getrandom::u64().ok() };
    // SplitMix64: well spread, which is all that jitter and the nonces of a simulation need.
    let state = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    SEED.set(Some(state));
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    Some(mixed ^ (mixed >> 31))
}
