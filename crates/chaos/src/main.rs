//! `tenure-chaos`: fault injection on real processes, disks, networks and a real database. What holders
//! observed is judged by the same checkers as the simulation.
//!
//! It needs root, `ip`, `nft` and PostgreSQL. Everything that it breaks is in its own network namespaces and
//! is removed with them. Start reading at `nemesis.rs` for the faults, `holder.rs` and `worker.rs` for the
//! observed processes, and `evidence.rs` for what is judged.

mod emit;
mod evidence;
mod holder;
mod ledger;
mod managed;
mod nemesis;
mod plain;
mod recorder;
mod report;
mod testbed;
mod time;
mod timeline;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tenure_checker::{History, Judged, Violation, judge};
use tenure_client::Endpoints;
use tenure_e2e::Dice;

use crate::evidence::Onlooker;
use crate::holder::Holder;
use crate::ledger::Database;
use crate::nemesis::{Nemesis, rest};
use crate::recorder::Recorder;
use crate::report::Ran;
use crate::testbed::{Testbed, Wanted};
use crate::time::now;

/// The file beside the report that holds everything that was judged.
const HISTORY: &str = "history.txt";
/// How a line of it begins that tells what was found broken by looking at more than the history: PostgreSQL's
/// rows, a cluster that did not heal.
const FOUND: &str = "# found ";

const USAGE: &str = "\
Breaks a real cluster and judges what its holders saw.

  cargo xtask chaos [--seconds S] [--nodes 3|5] [--holders H] [--seed K] [--report FOLDER]
  cargo xtask chaos --check FILE

  --seconds S      how long (120)
  --nodes N        how many nodes (3)
  --holders H      how many holders that link the library; beside them run two through a host agent, two plain callers, and `tenure run` (3)
  --seed K         decides which faults, whom they strike and how long they last (1)
  --report FOLDER  where report.md, timeline.svg, the history and the logs go (target/chaos)
  --check FILE     breaks nothing: judges the history that an earlier run has kept (history.txt beside its report)

Needs root, `ip` (iproute2), `nft` (nftables), PostgreSQL, and libfaketime for clocks that go wrong.
TENURE_BIN names the binary to break.
";

struct Asked {
    seconds: u64,
    nodes: usize,
    holders: usize,
    seed: u64,
    folder: PathBuf,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["holder", process, endpoints, ledger] => hold(process, endpoints, ledger),
        ["prober", process, endpoints] => {
            number(process).and_then(|process| holder::probe(process, &parse_endpoints(endpoints)?))
        }
        ["plain", process, endpoints] => number(process).and_then(|process| plain::run(process, endpoints)),
        ["command", process, ledger, program] => {
            number(process).and_then(|process| worker::command(process, ledger, program))
        }
        ["descendant", process, ledger] => {
            number(process).and_then(|process| worker::descendant(process, ledger))
        }
        ["--check", file] => check(file),
        ["--help" | "-h", ..] => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => match parse(&arguments) {
            Some(asked) => run(&asked),
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

fn parse(arguments: &[String]) -> Option<Asked> {
    let folder = PathBuf::from("target/chaos");
    let mut asked = Asked { seconds: 120, nodes: 3, holders: 3, seed: 1, folder };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let value = arguments.next()?;
        match argument.as_str() {
            "--seconds" => asked.seconds = value.parse().ok()?,
            "--nodes" => asked.nodes = value.parse().ok().filter(|nodes| [3, 5, 7].contains(nodes))?,
            "--holders" => {
                asked.holders = value.parse().ok().filter(|holders| (1..=50).contains(holders))?;
            }
            "--seed" => asked.seed = value.parse().ok()?,
            "--report" => asked.folder = value.into(),
            _ => return None,
        }
    }
    Some(asked)
}

fn number(process: &str) -> Result<u32, String> {
    process.parse().map_err(|_| "this is started by a run".to_owned())
}

fn parse_endpoints(endpoints: &str) -> Result<Endpoints, String> {
    endpoints.parse().map_err(|error| format!("{error}"))
}

/// The other half of this program: one holder.
fn hold(process: &str, endpoints: &str, ledger: &str) -> Result<(), String> {
    let process = number(process)?;
    let dice = Dice::seeded(u64::from(process) * 7_919);
    Holder { process, endpoints: parse_endpoints(endpoints)?, ledger: ledger.to_owned(), dice }.run()
}

fn run(asked: &Asked) -> Result<(), String> {
    let binary = std::env::var_os("TENURE_BIN").map(PathBuf::from);
    let binary =
        binary.ok_or("TENURE_BIN must name the tenure binary; `cargo xtask chaos` builds and names it")?;
    // Data of an earlier run would be another cluster's.
    let _ = std::fs::remove_dir_all(&asked.folder);
    std::fs::create_dir_all(&asked.folder).map_err(|error| format!("{}: {error}", asked.folder.display()))?;
    let folder = asked.folder.canonicalize().map_err(|error| error.to_string())?;
    let database = Database::start()?;
    let recorder = Recorder::default();
    let mut nemesis = Nemesis::new(asked.seed);
    let wanted = Wanted {
        nodes: asked.nodes,
        holders: asked.holders,
        binary,
        folder: folder.clone(),
        ledger: database.place(),
    };
    let mut testbed = Testbed::start(wanted, &recorder, Dice::seeded(asked.seed))?;
    let formed_by = now() + 60_000_000;
    while recorder.answered_last().is_none() {
        if now() > formed_by {
            return Err(format!("the cluster did not form; its logs are in {}", folder.display()));
        }
        rest(&mut testbed, Duration::from_millis(50))?;
    }
    let onlooker = Onlooker::start(&testbed, &recorder);
    // What it is like when nothing is broken.
    rest(&mut testbed, Duration::from_secs(2))?;
    let mut ran = Ran::begin(asked.nodes, asked.holders, asked.seed);
    let mut broken = Ok(());
    while now() < ran.from + asked.seconds * 1_000_000 {
        match nemesis.draw().carry_out(&mut testbed, &recorder) {
            Ok(injected) => {
                report::say(&ran, &injected);
                ran.faults.extend(injected);
            }
            Err(why) => {
                broken = Err(why);
                break;
            }
        }
    }
    ran.until = now();
    let waits = if broken.is_ok() { evidence::turns(&mut testbed, &recorder)? } else { Vec::new() };
    testbed.end_players();
    drop(onlooker);
    let finals = if broken.is_ok() { evidence::finals(&mut testbed) } else { Vec::new() };
    let (failures, deaths) = (std::mem::take(&mut testbed.failures), std::mem::take(&mut testbed.deaths));
    ran.runs = std::mem::take(&mut testbed.runs);
    let hosts = std::mem::take(&mut testbed.hosts);
    ran.stood_still = std::mem::take(&mut testbed.stood_still);
    drop(testbed);
    // Everybody is gone; their last words may still be on their way.
    std::thread::sleep(Duration::from_millis(500));
    let finished = recorder.finish();
    let ledger = database.judge(&finished.acknowledged)?;
    ran.entries = finished.entries;
    ran.unreadable = finished.unreadable;
    let mut history = finished.history;
    // Refusals first: what was accepted must stay in the order of the commits, and only that is compared.
    history.fence_steps.extend(ledger.steps);
    (history.failures, history.waits, history.finals) = (failures, waits, finals);
    evidence::mark_healthy(&mut history, &hosts, &ran.faults, &ran.stood_still);
    history.deaths = evidence::deaths(&history, &deaths, &ran.faults, &ran.stood_still, ran.until);
    let also = |rule, what| Violation { rule, what };
    let mut found: Vec<Violation> =
        ledger.wrong.into_iter().map(|what| also("fence_never_falls", what)).collect();
    found.extend(broken.err().map(|what| also("heals", what)));
    let write =
        |name: &str, text: &str| std::fs::write(folder.join(name), text).map_err(|error| error.to_string());
    // Before it is judged: whatever comes of that, it can be judged again.
    let mut kept = history.to_lines();
    found.iter().for_each(|violation| kept += &format!("{FOUND}{violation}\n"));
    ran.faults.iter().for_each(|fault| kept += &format!("# fault {}\n", report::one_line(fault)));
    write(HISTORY, &kept)?;
    let mut judged = judge(&history);
    judged.violations.extend(found);
    let text = report::markdown(&ran, &history, &judged, "timeline.svg");
    write("report.md", &text)?;
    write("timeline.svg", &timeline::svg(&ran, &history))?;
    println!("{text}");
    println!("report: {}", folder.join("report.md").display());
    verdict(&judged)
}

fn verdict(judged: &Judged) -> Result<(), String> {
    match (judged.violations.len(), judged.undecided.len()) {
        (0, 0) => Ok(()),
        (0, _) => Err(format!("could not be decided: {}", judged.undecided.join(", "))),
        _ => Err("rules were broken".into()),
    }
}

/// Judges what an earlier run has kept.
fn check(file: &str) -> Result<(), String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let history = History::from_lines(&text).map_err(|why| format!("{file}: {why}"))?;
    let began = Instant::now();
    let judged = judge(&history);
    let took = began.elapsed().as_secs_f64();
    let found: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(FOUND)).collect();
    found.iter().for_each(|violation| println!("{violation} (found by the run itself)"));
    judged.violations.iter().for_each(|violation| println!("{violation}"));
    let (broken, undecided) = (judged.violations.len() + found.len(), judged.undecided.len());
    println!(
        "{} operations, {} permits, {} steps of fences judged in {took:.1} s: {broken} violations, {undecided} undecided",
        history.operations.len(),
        history.permits.len(),
        history.fence_steps.len()
    );
    if found.is_empty() { verdict(&judged) } else { Err("rules were broken".into()) }
}
