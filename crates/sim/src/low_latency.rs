//! Which nodes of a simulated cluster run in low-latency mode, and with which numbers.
//!
//! Each node of each seed draws its own mode: off, the shipped numbers, or numbers for the simulator's clock.
//! Simulated time advances by milliseconds and a packet takes at least two, so with the shipped numbers
//! hardly any pause is short enough; the third mode makes each decision of `tenure_replica`'s module common.
//! Spinning itself is never simulated.

use std::time::Duration;

use tenure_replica::{LowLatencyOptions, LowLatencyStatus};

use crate::coverage::Coverage;
use crate::dice::Dice;

/// For the simulator's clock: long enough for a few packets, and far below an election timeout.
const SIMULATED: LowLatencyOptions = LowLatencyOptions {
    enabled: true,
    streak_min: 2,
    spin_max: Duration::from_millis(50),
    hold_max: Duration::from_millis(20),
    gather: Duration::from_millis(30),
    late_max: Duration::from_millis(50),
};

/// The mode of one node. By dice of its own: the faults of a seed do not depend on it.
pub fn options(seed: u64, node: u64) -> LowLatencyOptions {
    let mut dice = Dice::new(seed.wrapping_mul(0xa24b_aed4_963e_e407) ^ node);
    match dice.within(0, 3) {
        0 => LowLatencyOptions { enabled: false, ..LowLatencyOptions::default() },
        1 => LowLatencyOptions::default(),
        _ => SIMULATED,
    }
}

/// Counts what a node decided between two looks at it.
pub fn count(coverage: &mut Coverage, before: LowLatencyStatus, after: LowLatencyStatus) {
    coverage.spin_waits += after.spins - before.spins;
    coverage.held_back += after.held - before.held;
    coverage.leader_in_place += after.leader_writes - before.leader_writes;
    coverage.follower_in_place += after.follower_writes - before.follower_writes;
}
