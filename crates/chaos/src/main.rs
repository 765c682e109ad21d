//! `tenure-chaos`: real processes, real disks and a real network that is broken on purpose; what holders saw is judged by the
//! same checkers that judge the simulation.
//!
//! It needs root, `ip` and `nft`. What it breaks lives in network namespaces of its own, and goes with them.

mod cast;
mod holder;
mod nemesis;
mod net;
mod report;
mod story;
mod time;

use std::path::PathBuf;
use std::process::ExitCode;

use tenure_checker::judge;

use crate::cast::Cast;
use crate::holder::Holder;
use crate::nemesis::Nemesis;
use crate::report::Ran;
use crate::story::Story;
use crate::time::now;

const USAGE: &str = "\
Breaks a real cluster and judges what its holders saw.

  cargo xtask chaos [--seconds S] [--nodes 3|5] [--holders H] [--seed K] [--report FOLDER]

  --seconds S      how long (120)
  --nodes N        how many nodes (3)
  --holders H      how many holders (3)
  --seed K         decides whom faults strike and how long they last (1)
  --report FOLDER  where report.md, timeline.svg and the nodes' logs go (target/chaos)

Needs root, `ip` (iproute2) and `nft` (nftables). TENURE_BIN names the binary to break.
";

struct Wanted {
    seconds: u64,
    nodes: u32,
    holders: u32,
    seed: u64,
    folder: PathBuf,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.first().map(String::as_str) {
        Some("holder") => hold(&arguments[1..]),
        Some("--help" | "-h") => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => match parse(&arguments) {
            Some(wanted) => run(&wanted),
            None => {
                eprint!("{USAGE}");
                return ExitCode::from(2);
            }
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: &[String]) -> Option<Wanted> {
    let folder = PathBuf::from("target/chaos");
    let mut wanted = Wanted { seconds: 120, nodes: 3, holders: 3, seed: 1, folder };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let value = arguments.next()?;
        match argument.as_str() {
            "--seconds" => wanted.seconds = value.parse().ok()?,
            "--nodes" => wanted.nodes = value.parse().ok().filter(|nodes| (3..=9).contains(nodes))?,
            "--holders" => {
                wanted.holders = value.parse().ok().filter(|holders| (1..=50).contains(holders))?
            }
            "--seed" => wanted.seed = value.parse().ok()?,
            "--report" => wanted.folder = value.into(),
            _ => return None,
        }
    }
    Some(wanted)
}

/// The other half of this program: one holder.
fn hold(arguments: &[String]) -> Result<(), String> {
    let [process, endpoints, storage] = arguments else { return Err("a holder is started by a run".into()) };
    let process: u32 = process.parse().map_err(|_| "a holder has a number")?;
    let endpoints = endpoints.parse().map_err(|error| format!("{error}"))?;
    Holder { process, endpoints, storage: storage.clone(), seed: u64::from(process) * 7_919 }.run()
}

fn run(wanted: &Wanted) -> Result<(), String> {
    let binary = std::env::var_os("TENURE_BIN").map(PathBuf::from);
    let binary =
        binary.ok_or("TENURE_BIN must name the tenure binary; `cargo xtask chaos` builds and names it")?;
    // Data of an earlier run would be another cluster's.
    let _ = std::fs::remove_dir_all(&wanted.folder);
    std::fs::create_dir_all(&wanted.folder)
        .map_err(|error| format!("{}: {error}", wanted.folder.display()))?;
    let folder = wanted.folder.canonicalize().map_err(|error| error.to_string())?;
    let story = Story::default();
    story.serve_storage(&folder.join("storage"))?;
    let mut cast = Cast::start(wanted.nodes, wanted.holders, binary, &folder, &story)?;
    let formed_by = now() + 60_000_000;
    while story.progress().1.is_none() {
        if now() > formed_by {
            return Err(format!("the cluster did not form; its logs are in {}", folder.display()));
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let mut ran = Ran {
        nodes: wanted.nodes,
        holders: wanted.holders,
        seed: wanted.seed,
        from: now(),
        until: 0,
        faults: Vec::new(),
        unreadable: 0,
    };
    let mut nemesis = Nemesis::new(wanted.seed);
    while now() < ran.from + wanted.seconds * 1_000_000 {
        let injected = nemesis.strike(&mut cast, &story)?;
        eprintln!(
            "{:>6.1} s  {} for {:.1} s; longest silence {:.2} s",
            (now() - ran.from) as f64 / 1e6,
            injected.fault.word(),
            (injected.until - injected.from) as f64 / 1e6,
            injected.silence as f64 / 1e6
        );
        ran.faults.push(injected);
    }
    ran.until = now();
    let mut fallen = Vec::new();
    for node in &mut cast.nodes {
        if !node.runs() {
            fallen.push(node.host);
        }
    }
    drop(cast);
    // Holders are gone; their last words may still be on their way.
    std::thread::sleep(std::time::Duration::from_millis(500));
    let (mut history, unreadable) = story.finish();
    ran.unreadable = unreadable;
    for node in fallen {
        history.failures.push(tenure_checker::Failure {
            node: Some(u64::from(node)),
            at: ran.until,
            why: "it was not running at the end".into(),
            excused: false,
        });
    }
    let judged = judge(&history);
    let text = report::markdown(&ran, &history, &judged, "timeline.svg");
    std::fs::write(folder.join("report.md"), &text).map_err(|error| error.to_string())?;
    std::fs::write(folder.join("timeline.svg"), report::svg(&ran, &history))
        .map_err(|error| error.to_string())?;
    println!("{text}");
    println!("report: {}", folder.join("report.md").display());
    if judged.violations.is_empty() { Ok(()) } else { Err("rules were broken".into()) }
}
