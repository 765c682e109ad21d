//! Seeds, each judged; one seed twice, byte by byte; and every seed that has ever failed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tenure_sim::{Coverage, run_seed};

/// Whether the heavy variants are wanted.
fn full() -> bool {
    std::env::var_os("TENURE_TEST_FULL").is_some()
}

#[test]
fn the_same_seed_writes_the_same_lines_twice() {
    for seed in if full() { 0..50 } else { 0..3 } {
        let (first, second) = (run_seed(seed, true), run_seed(seed, true));
        for (number, (one, other)) in first.lines.iter().zip(&second.lines).enumerate() {
            assert_eq!(one, other, "seed {seed} differs at line {number}");
        }
        assert_eq!(first.lines.len(), second.lines.len(), "seed {seed}");
        assert_eq!(first.hash, second.hash, "seed {seed}");
        assert!(first.lines.len() > 500, "seed {seed} wrote only {} lines", first.lines.len());
    }
}

#[test]
fn seeds_hold_every_rule() {
    // A fixed number: a build must not fail because a machine was fast enough to come further than any before.
    let seeds = if full() { 2_000 } else { 30 };
    let began = Instant::now();
    let next = AtomicU64::new(0);
    let sum = Mutex::new((Coverage::default(), 0u64));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    let outcome = run_seed(seed, false);
                    let broken: Vec<String> = outcome.violations.iter().map(ToString::to_string).collect();
                    assert!(
                        broken.is_empty(),
                        "seed {seed}: {broken:#?}\nreplay: cargo xtask sim --from {seed} --seeds 1"
                    );
                    assert_eq!(outcome.undecided, 0, "seed {seed}: a history could not be decided");
                    let mut sum = sum.lock().expect("another seed failed");
                    sum.0.add(&outcome.coverage);
                    sum.1 += 1;
                }
            });
        }
    });
    let (coverage, seeds) = sum.into_inner().expect("a seed failed");
    println!("{seeds} seeds in {:.1?}: {coverage}", began.elapsed());
    // A run in which nothing happened proves nothing.
    assert!(coverage.grants > seeds, "{coverage}");
    assert!(coverage.permits > seeds, "{coverage}");
    if seeds >= 20 {
        let Coverage { expiries, failovers, stale_writes, kills, power_losses, pauses, cuts, .. } = coverage;
        for many in [expiries, failovers, stale_writes, kills, power_losses, pauses, cuts] {
            assert!(many > 0, "{coverage}");
        }
    }
    if seeds >= 300 {
        assert_eq!(coverage.missing(), Vec::<&str>::new(), "{coverage}");
    }
}

/// Seeds that once failed: what they found is told in `docs/invariants.md`.
#[test]
fn seeds_that_once_failed_pass() {
    for seed in REGRESSIONS {
        let outcome = run_seed(*seed, false);
        assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
    }
}

const REGRESSIONS: &[u64] = &[39];
