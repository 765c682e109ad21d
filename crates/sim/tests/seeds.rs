//! Seeds, each judged; and some of them twice, byte by byte.

use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tenure_sim::{Coverage, Outcome, SEEDED, run_seed, run_upgrade};

/// Whether the heavy variants are wanted.
fn full() -> bool {
    std::env::var_os("TENURE_TEST_FULL").is_some()
}

/// Whether this build cannot replay a seed, and so a test of seeds would prove nothing.
fn skipped_without_seed(test: &str) -> bool {
    if !SEEDED {
        assert!(std::env::var_os("TENURE_TEST_NO_SKIP").is_none(), "{test} needs --cfg tokio_unstable");
        // Past the capture of the test's output, so that it is counted; a closed stderr is no reason to fail.
        let why = "needs --cfg tokio_unstable (cargo xtask ci --only simulation)";
        let _ = writeln!(std::io::stderr(), "\nskipped: {test} {why}");
    }
    !SEEDED
}

#[test]
fn the_same_seed_writes_the_same_lines_twice() {
    if skipped_without_seed("the_same_seed_writes_the_same_lines_twice") {
        return;
    }
    for seed in if full() { 0..50 } else { 0..3 } {
        let (first, second) = (run_seed(seed, true), run_seed(seed, true));
        for (number, (one, other)) in first.lines.iter().zip(&second.lines).enumerate() {
            assert_eq!(one, other, "seed {seed} differs at line {number}");
        }
        assert_eq!(first.lines.len(), second.lines.len(), "seed {seed}");
        assert_eq!(first.hash, second.hash, "seed {seed}");
        // A run that did anything writes hundreds of lines.
        assert!(first.lines.len() > 300, "seed {seed} wrote only {} lines", first.lines.len());
    }
}

/// Judges seeds on all cores; what happened in them, and how many nodes changed their release and clusters
/// their format.
fn judged(seeds: u64, option: &str, run: impl Fn(u64) -> Outcome + Sync) -> (Coverage, u64, u64) {
    let began = Instant::now();
    let next = AtomicU64::new(0);
    let sum = Mutex::new((Coverage::default(), 0u64, 0u64));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    let outcome = run(seed);
                    let broken: Vec<String> = outcome.violations.iter().map(ToString::to_string).collect();
                    assert!(
                        broken.is_empty(),
                        "seed {seed}: {broken:#?}\nreplay: cargo xtask sim {option}--from {seed} --seeds 1"
                    );
                    assert_eq!(outcome.undecided, 0, "seed {seed}: a history could not be decided");
                    let mut sum = sum.lock().expect("another seed failed");
                    sum.0.add(&outcome.coverage);
                    sum.1 += outcome.releases.0;
                    sum.2 += u64::from(outcome.releases.1);
                }
            });
        }
    });
    let sum = sum.into_inner().expect("a seed failed");
    println!("{seeds} seeds in {:.1?}: {}", began.elapsed(), sum.0);
    sum
}

#[test]
fn seeds_hold_every_rule() {
    if skipped_without_seed("seeds_hold_every_rule") {
        return;
    }
    // A fixed number: a build must not fail because a machine was fast enough to come further than any
    // before. As many as it takes to see every kind of fault.
    let seeds = if full() { 2_000 } else { 40 };
    let (coverage, ..) = judged(seeds, "", |seed| run_seed(seed, false));
    // A run in which nothing happened proves nothing.
    assert!(coverage.grants > 5 * seeds, "{coverage}");
    assert!(coverage.permits > 10 * seeds, "{coverage}");
    assert_eq!(coverage.missing(), Vec::<&str>::new(), "{coverage}");
}

/// Nodes of two releases in one cluster: no rule is broken, equal logs give equal states, and what was agreed
/// on stays so.
#[test]
fn seeds_with_two_releases_hold_every_rule() {
    if skipped_without_seed("seeds_with_two_releases_hold_every_rule") {
        return;
    }
    let seeds = if full() { 500 } else { 16 };
    let (coverage, changes, raised) = judged(seeds, "--upgrade ", |seed| run_upgrade(seed, false));
    assert!(coverage.grants > 5 * seeds, "{coverage}");
    assert!(changes > 4 * seeds, "nodes changed their release only {changes} times");
    assert!(raised > seeds / 2, "the format version was raised in {raised} of {seeds} runs");
}
