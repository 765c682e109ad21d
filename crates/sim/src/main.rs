//! `tenure-sim`: runs seeds on all cores, and reports which failed and how to replay them.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tenure_sim::{Coverage, Outcome, SEEDED, SIMULATION_THREAD, run_seed, run_upgrade, run_with_packets};

const USAGE: &str = "\
Runs whole clusters in simulation, one per seed, and judges what their clients saw.

  cargo xtask sim [--release] [--seeds N] [--from K] [--within SECONDS] [--until-failure] [--threads T] [--twice] [--upgrade] [--trace] [--packets]

  --release         build the simulator optimised first: worth it for more than a few hundred seeds
  --seeds N         how many seeds (200)
  --from K          the first of them (0)
  --within SECONDS  begin no further seed after so long; the last line says where to go on
  --until-failure   begin no further seed after one that failed
  --threads T       seeds at once (the number of cores)
  --twice           run every seed twice and compare what was written down
  --upgrade         nodes of two releases: back and forth, then forward, then the format version is raised
  --trace           print everything that happened; for one seed
  --packets         the same, with every packet
";

struct Wanted {
    from: u64,
    seeds: u64,
    within: Duration,
    until_failure: bool,
    threads: usize,
    twice: bool,
    trace: bool,
    packets: bool,
    upgrade: bool,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| matches!(argument.as_str(), "--help" | "-h")) {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    if !SEEDED {
        eprintln!(
            "built without --cfg tokio_unstable, so no seed could be replayed; `cargo xtask sim` has it"
        );
        return ExitCode::FAILURE;
    }
    match parse(&arguments) {
        Some(wanted) => run(&wanted),
        None => {
            eprint!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn parse(arguments: &[String]) -> Option<Wanted> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut wanted = Wanted {
        from: 0,
        seeds: 200,
        within: Duration::MAX,
        until_failure: false,
        threads: cores,
        twice: false,
        trace: false,
        packets: false,
        upgrade: false,
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seeds" => wanted.seeds = arguments.next()?.parse().ok()?,
            "--from" => wanted.from = arguments.next()?.parse().ok()?,
            "--within" => wanted.within = Duration::from_secs(arguments.next()?.parse().ok()?),
            "--until-failure" => wanted.until_failure = true,
            "--threads" => wanted.threads = arguments.next()?.parse().ok().filter(|threads| *threads > 0)?,
            "--twice" => wanted.twice = true,
            "--trace" => wanted.trace = true,
            "--packets" => wanted.packets = true,
            "--upgrade" => wanted.upgrade = true,
            _ => return None,
        }
    }
    Some(wanted)
}

#[derive(Default)]
struct Sum {
    coverage: Coverage,
    seeds: u64,
    simulated: u64,
    undecided: usize,
    failed: Vec<u64>,
    /// Nodes that changed their release, and runs in which the format version was raised.
    releases: (u64, u64),
}

fn run(wanted: &Wanted) -> ExitCode {
    let began = Instant::now();
    let next = AtomicU64::new(wanted.from);
    let end = wanted.from.saturating_add(wanted.seeds);
    let sum = Mutex::new(Sum::default());
    let commit = commit();
    let enough = || {
        let failed = !sum.lock().expect(CAUGHT).failed.is_empty();
        began.elapsed() >= wanted.within || (wanted.until_failure && failed)
    };
    let work = || {
        while !enough() {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return;
            }
            let run = |seed| match (wanted.upgrade, wanted.packets) {
                (true, _) => run_upgrade(seed, wanted.trace),
                (false, true) => run_with_packets(seed),
                (false, false) => run_seed(seed, wanted.trace),
            };
            let outcome = run(seed);
            let same = !wanted.twice || same(&outcome, &run(seed));
            tell(&outcome, same, &commit);
            let mut sum = sum.lock().expect(CAUGHT);
            sum.add(&outcome, same);
            if sum.seeds.is_multiple_of(100) {
                let (seeds, failed, took) = (sum.seeds, sum.failed.len(), began.elapsed());
                eprintln!("{seeds} of {} seeds, {failed} failed, {took:.0?}; {}", wanted.seeds, sum.coverage);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..wanted.threads {
            let named = std::thread::Builder::new().name(SIMULATION_THREAD.to_owned());
            named.spawn_scoped(scope, work).expect("a thread can be started");
        }
    });
    let sum = sum.into_inner().expect(CAUGHT);
    let took = began.elapsed().as_secs_f64();
    println!(
        "{} seeds from {} at commit {commit}, {:.0} simulated seconds in {took:.1} s ({:.1} seeds/s)",
        sum.seeds,
        wanted.from,
        sum.simulated as f64 / 1_000.0,
        sum.seeds as f64 / took
    );
    println!("seen: {}", sum.coverage);
    if wanted.upgrade {
        let (changes, raised) = sum.releases;
        println!("releases: {changes} changes of a node's release, format version raised in {raised} runs");
    }
    if sum.undecided > 0 {
        println!("undecided: {} histories met the bound of the search", sum.undecided);
    }
    if sum.seeds < wanted.seeds {
        let (from, left) = (wanted.from + sum.seeds, wanted.seeds - sum.seeds);
        println!("not all: go on with cargo xtask sim --from {from} --seeds {left}");
    }
    if sum.failed.is_empty() {
        println!("no violation");
        return ExitCode::SUCCESS;
    }
    println!("{} seeds failed: {:?}", sum.failed.len(), sum.failed);
    ExitCode::FAILURE
}

/// Why a lock is never poisoned.
const CAUGHT: &str = "a simulation catches its panics";

impl Sum {
    fn add(&mut self, outcome: &Outcome, same: bool) {
        self.coverage.add(&outcome.coverage);
        self.seeds += 1;
        self.simulated += outcome.ticks;
        self.undecided += outcome.undecided;
        self.releases.0 += outcome.releases.0;
        self.releases.1 += u64::from(outcome.releases.1);
        if !same || !outcome.violations.is_empty() {
            self.failed.push(outcome.seed);
        }
    }
}

/// The commit that is being run, as far as anybody knows: a seed is a replay only together with it.
fn commit() -> String {
    let asked = std::process::Command::new("git").args(["describe", "--always", "--dirty"]).output();
    let answer = asked.ok().filter(|answer| answer.status.success());
    answer.map_or("unknown".to_owned(), |answer| String::from_utf8_lossy(&answer.stdout).trim().to_owned())
}

/// Whether two runs wrote the same lines; the first that differs is printed, if lines were kept.
fn same(one: &Outcome, other: &Outcome) -> bool {
    let differs = one.lines.iter().zip(&other.lines).position(|(one, other)| one != other);
    if let Some(line) = differs {
        println!(
            "line {line} of the first run:  {}\nline {line} of the second run: {}",
            one.lines[line], other.lines[line]
        );
    }
    one.hash == other.hash
}

fn tell(outcome: &Outcome, same: bool, commit: &str) {
    for line in &outcome.lines {
        println!("{line}");
    }
    let seed = outcome.seed;
    if !same {
        println!(
            "seed {seed} at {commit}: two runs wrote different lines; replay: cargo xtask sim --from {seed} --seeds 1 --twice"
        );
    }
    if let Some(first) = outcome.violations.first() {
        let more = outcome.violations.len() - 1;
        println!(
            "seed {seed} at {commit}: {first} (and {more} more); replay: cargo xtask sim --from {seed} --seeds 1 --trace"
        );
    }
}
