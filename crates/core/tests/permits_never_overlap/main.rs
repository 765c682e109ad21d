//! Proposer, machine and holder together in a small world with a real time of its own, which none of them sees.
//!
//! Three nodes take turns as leader; four processes contend for one resource. Every clock has its own
//! rate, as far apart as rho allows; messages are late, lost, repeated and reordered; leaders and holders are
//! paused, cut off and deposed; entries are cut by tiny size limits. Checked in real time:
//!
//! - `permits_never_overlap`: no permit of a lease is in force when the leader reads its clock for the entry
//!   that ends the lease, nor when another's grant is applied;
//! - `healthy_holder_keeps`: process 0 is never at fault itself, and never loses its session.
//!
//! A failure names its seed.

mod parts;
mod world;

use std::time::Duration;

use parts::SECOND;
use world::World;

#[test]
fn permits_never_overlap_and_a_healthy_holder_keeps_its_lease() {
    let mut seen = Seen::default();
    for seed in 0..300 {
        World::new(seed).run(40 * SECOND, &mut seen);
    }
    // A world in which nothing happens proves nothing.
    assert!(seen.grants > 1_000, "{seen:?}");
    assert!(seen.expired > 1_000, "{seen:?}");
    assert!(seen.released > 1_000, "{seen:?}");
    assert!(seen.permits > 10_000, "{seen:?}");
    assert!(seen.terms > 1_000, "{seen:?}");
    assert!(seen.left_behind > 1_000, "{seen:?}");
    assert!(seen.dropped > Duration::from_secs(100), "{seen:?}");
}

#[test]
fn the_same_seed_gives_the_same_world() {
    let run = |seed| {
        let mut seen = Seen::default();
        World::new(seed).run(20 * SECOND, &mut seen);
        format!("{seen:?}")
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

/// What has happened in a world.
#[derive(Debug, Default)]
struct Seen {
    grants: u64,
    expired: u64,
    released: u64,
    permits: u64,
    terms: u64,
    left_behind: u64,
    dropped: Duration,
}
