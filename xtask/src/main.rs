//! Developer commands, one file each. `setup` installs what the tests need; `ci` checks everything, installs
//! nothing and writes nothing but build output; `test` does both; `fix` writes what can be generated.
//!
//! This crate is compiled first, without a cache, so it uses the standard library alone.

mod attacks;
mod bench_peers;
mod chaos;
mod ci;
mod crate_table;
mod damage;
mod fix;
mod fuzz;
mod links;
mod needs;
mod perf_gate;
mod purity;
mod requirements;
mod sdk;
mod setup;
mod sim;
mod steps;
mod surface;
mod upgrade;
mod workspace;

use std::process::ExitCode;

/// One chore: what to type, what it does, and the function that does it.
struct Chore {
    name: &'static str,
    help: &'static str,
    run: fn(&[String]) -> ExitCode,
}

const CHORES: &[Chore] = &[
    Chore {
        name: "attacks",
        help: "try every attack that must fail and print the table; groups by name, --list",
        run: attacks::run,
    },
    Chore {
        name: "chaos",
        help: "break a real cluster in network namespaces; --seconds S, --nodes N, --help for more",
        run: chaos::run,
    },
    Chore {
        name: "bench-peers",
        help: "measure Tenure, etcd, ZooKeeper and Redis side by side; --quick, --only, --help",
        run: bench_peers::run,
    },
    Chore {
        name: "ci",
        help: "judge everything, install nothing; --full runs the heavy variants of the tests",
        run: ci::run,
    },
    Chore {
        name: "damage",
        help: "damage the files of a stopped node and count what comes of it; --rounds N, --seed S, --serve",
        run: damage::run,
    },
    Chore {
        name: "fix",
        help: "write formatting, stories, golden files and public-API snapshots",
        run: fix::run,
    },
    Chore {
        name: "fuzz",
        help: "run the fuzz targets, all or those named; --seconds N for each",
        run: fuzz::run,
    },
    Chore {
        name: "sim",
        help: "run whole clusters in simulation; --seeds N, --from K, --help for more",
        run: sim::run,
    },
    Chore {
        name: "perf-gate",
        help: "hold the core's instruction counts against the baseline; --write stores a new one",
        run: perf_gate::run,
    },
    Chore {
        name: "upgrade-rehearsal",
        help: "upgrade three nodes from an older release under load, back and forth, then for good; --from REV",
        run: upgrade::run,
    },
    Chore {
        name: "setup",
        help: "install the programs that the tests use (Debian, PyPI, crates.io)",
        run: setup::run,
    },
    Chore { name: "test", help: "setup, then ci, with the arguments of ci", run: ci::run_after_setup },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let wanted = arguments.first().map(String::as_str).unwrap_or("");
    if let Some(chore) = CHORES.iter().find(|chore| chore.name == wanted) {
        return (chore.run)(&arguments[1..]);
    }
    if !matches!(wanted, "" | "help" | "--help" | "-h") {
        eprintln!("there is no chore called {wanted:?}\n");
    }
    eprintln!("cargo xtask <chore>\n");
    for chore in CHORES {
        eprintln!("  {:<11} {}", chore.name, chore.help);
    }
    if matches!(wanted, "help" | "--help" | "-h") { ExitCode::SUCCESS } else { ExitCode::from(2) }
}
