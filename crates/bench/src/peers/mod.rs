//! Tenure and other stores side by side, on one machine, with the same driver: the runs behind
//! `docs/benchmarks.md`.
//!
//! Every cell of the table (a workload on a store with so many nodes) gets a fresh setup, with an `fsync`
//! before every acknowledgement on every node. The stores alternate cell by cell, so that other load on the
//! machine affects all of them equally. Each run writes one file of raw results; a run whose file exists is
//! not repeated.

mod against;
mod cells;
mod growth;
mod plot;
mod setup;
mod table;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use self::cells::{Cell, Via, cells};
use self::setup::{Programs, Setup};

/// How the comparison is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The root of the workspace, below which the results go.
    pub root: PathBuf,
    /// The `tenure` binary.
    pub tenure: PathBuf,
    /// An older `tenure` binary to compare with, instead of the other stores.
    pub against: Option<PathBuf>,
    /// The `etcd` binary, if there is one.
    pub etcd: Option<PathBuf>,
    /// Only cells and stores whose names contain one of these.
    pub only: Vec<String>,
    /// One short run of the main rows instead of three of all.
    pub quick: bool,
    /// How many runs of each.
    pub runs: usize,
    /// Where results go, below `docs/benchmarks`; another name for another machine or moment.
    pub name: String,
}

/// Runs what is missing, then writes the table and the plots.
pub fn run(options: &Options) -> Result<(), String> {
    let folder = options.root.join("docs/benchmarks").join(&options.name);
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let programs = Programs::find(options);
    if let Some(older) = &options.against {
        return against::run(&programs, &programs.with_tenure(older), &folder, options);
    }
    for missing in programs.missing() {
        eprintln!("{missing} is not installed: its rows are left out");
    }
    let cells: Vec<Cell> =
        cells(options.quick).into_iter().filter(|cell| wanted(options, &cell.name)).collect();
    let mut troubles = Vec::new();
    for run in 1..=options.runs {
        for cell in &cells {
            for target in cell.targets.iter().filter(|target| programs.has(**target)) {
                let file = folder.join(format!("{}.{target}.{run}.json", cell.name));
                if file.exists() {
                    continue;
                }
                eprint!("run {run}  {:<28} {:<10} ", cell.name, target.name());
                match measure(&programs, cell, *target) {
                    Ok(result) => {
                        eprintln!("{}", table::brief(&result));
                        write(&file, &format!("{result}\n"))?;
                    }
                    Err(why) => {
                        eprintln!("{why}");
                        troubles.push(format!("{} on {target}: {why}", cell.name));
                    }
                }
            }
        }
    }
    if wanted(options, "growth") && !options.quick {
        growth::run(&programs, &folder, options, &mut troubles)?;
    }
    table::publish(options, &folder)?;
    if troubles.is_empty() { Ok(()) } else { Err(troubles.join("\n")) }
}

fn wanted(options: &Options, name: &str) -> bool {
    options.only.is_empty() || options.only.iter().any(|only| name.contains(only.as_str()))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    std::fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}

/// One cell on one store: set up, driven, torn down.
fn measure(programs: &Programs, cell: &Cell, target: crate::TargetKind) -> Result<Value, String> {
    let setup = Setup::start(programs, target, cell.nodes)?;
    let mut result = drive(programs, &setup, target, &cell.arguments(target), cell.via)?;
    result["nodes"] = cell.nodes.into();
    result["cell"] = cell.name.clone().into();
    if let Some(bytes) = setup.disk_bytes() {
        result["disk_bytes"] = bytes.into();
    }
    Ok(result)
}

/// Runs `tenure bench` against a set-up.
fn drive(
    programs: &Programs,
    setup: &Setup,
    target: crate::TargetKind,
    arguments: &[String],
    via: Via,
) -> Result<Value, String> {
    let pids: Vec<String> = setup.pids().iter().map(ToString::to_string).collect();
    let mut command = Command::new(programs.tenure());
    command.args(["bench", "--json", "--target", target.name()]).args(arguments);
    command.args(["--server-pids", &pids.join(",")]);
    command.args(["--endpoints", &setup.endpoints(via).join(",")]);
    if arguments.iter().any(|argument| argument == "leader-killed") {
        command.args(["--leader-pid", &setup.leader_pid().to_string()]);
    }
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| format!("the driver cannot be started: {error}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the driver ended with {}: {}", output.status, stderr.trim()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Result<Vec<Value>, _> = text.lines().map(serde_json::from_str).collect();
    let mut lines = lines.map_err(|error| format!("the driver's answer cannot be read: {error}"))?;
    match lines.len() {
        1 => Ok(lines.remove(0)),
        _ => Ok(Value::Array(lines)),
    }
}
