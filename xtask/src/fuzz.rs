//! `cargo xtask fuzz`: builds the fuzz targets and runs each for a while, as many at once as there are cores.
//!
//! A target is a file in `fuzz/src/bin`. The stable compiler builds them, with LLVM's coverage counters in
//! our code and its dependencies, and the engine that reads them. The corpus stays below the build output, so
//! a later run continues where this one ended.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::needs::find;
use crate::steps::{Judged, Verdict};
use crate::workspace::{cargo, files, host, root, shown, succeed, target};

/// How long each target runs unless told otherwise.
pub const SECONDS: u64 = 10;
/// How long each target runs in the heavy variant.
pub const SECONDS_FULL: u64 = 600;

/// Counters on every edge, a table that names them, and hints from comparisons: what the engine steers by.
const FLAGS: &[&str] = &[
    "--cfg",
    "fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// Inputs longer than this find nothing that shorter ones do not, and cost speed.
const INPUT_BYTES_MAX: &str = "-max_len=8192";
/// One input that takes longer than this (seconds) hangs.
const INPUT_SECONDS_MAX: &str = "-timeout=10";
/// A target that needs more than this (megabytes) believed a length that it was told.
const MEMORY_MAX: &str = "-rss_limit_mb=1024";

/// `cargo xtask fuzz [--seconds N] [TARGET…]`.
pub fn run(arguments: &[String]) -> ExitCode {
    let (seconds, names) = match arguments {
        [flag, seconds, names @ ..] if flag == "--seconds" => (seconds.parse().ok(), names),
        names => (Some(SECONDS), names),
    };
    let Some(seconds) = seconds.filter(|_| !names.iter().any(|name| name.starts_with('-'))) else {
        eprintln!("cargo xtask fuzz [--seconds N] [TARGET…]");
        return ExitCode::from(2);
    };
    match judge(seconds, names) {
        Ok(Verdict::Passed(note) | Verdict::Skipped(note)) => {
            eprintln!("{note}");
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            eprintln!("{wrong}");
            ExitCode::FAILURE
        }
    }
}

/// Runs these targets, or all, each for so long.
pub fn judge(seconds: u64, names: &[String]) -> Judged {
    let targets = wanted(names)?;
    if std::env::var_os("CXX").is_none() && find("c++").is_none() {
        return Ok(Verdict::Skipped("the fuzzing engine needs a C++ compiler (Debian: g++)".into()));
    }
    let programs = build(&targets)?;
    let runs = run_all(&targets, &programs, seconds)?;
    let executions: u64 = runs.iter().map(|run| run.executions).sum();
    let failed: Vec<&str> =
        runs.iter().filter(|run| run.crash.is_some()).map(|run| run.target.as_str()).collect();
    if failed.is_empty() {
        return Ok(Verdict::Passed(format!("{} targets, {executions} executions, no crash", runs.len())));
    }
    Err(format!("{} of {} targets failed: {}", failed.len(), runs.len(), failed.join(", ")))
}

/// The targets that are named, or all that there are.
fn wanted(names: &[String]) -> Result<Vec<String>, String> {
    let all: Vec<String> = files(&root().join("fuzz/src/bin"), "rs")
        .iter()
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_string()))
        .collect();
    if let Some(unknown) = names.iter().find(|name| !all.contains(name)) {
        return Err(format!("there is no target called {unknown:?}; there are: {}", all.join(", ")));
    }
    Ok(if names.is_empty() { all } else { names.to_vec() })
}

/// Where everything of this chore goes.
fn folder() -> PathBuf {
    target().join("fuzz")
}

/// Builds the targets; returns the folder that they lie in.
fn build(targets: &[String]) -> Result<PathBuf, String> {
    let host = host()?;
    let mut build = cargo(&["build", "--locked", "--manifest-path", "fuzz/Cargo.toml", "--target", &host]);
    build.args(targets.iter().flat_map(|target| ["--bin", target]));
    build.arg("--target-dir").arg(folder());
    build.env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\x1f")).env_remove("RUSTFLAGS");
    succeed(&mut build)?;
    Ok(folder().join(host).join("debug"))
}

/// How one target's run ended.
struct Run {
    target: String,
    executions: u64,
    took: Duration,
    /// What is wrong, if something is.
    crash: Option<String>,
}

/// Runs all targets, one per core at a time; a line for each as it ends.
fn run_all(targets: &[String], programs: &Path, seconds: u64) -> Result<Vec<Run>, String> {
    let waiting = Mutex::new(targets.iter().cloned().collect::<VecDeque<_>>());
    let ended = Mutex::new(Vec::new());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores.min(targets.len()) {
            scope.spawn(|| {
                let next = || waiting.lock().expect("another runner panicked").pop_front();
                while let Some(target) = next() {
                    let run = run_one(target, programs, seconds);
                    if let Ok(run) = &run {
                        tell(run);
                    }
                    ended.lock().expect("another runner panicked").push(run);
                }
            });
        }
    });
    ended.into_inner().expect("a runner panicked").into_iter().collect()
}

fn tell(run: &Run) {
    let seconds = run.took.as_secs_f64();
    let per_second = run.executions as f64 / seconds.max(0.001);
    let verdict = run.crash.as_deref().unwrap_or("ok");
    eprintln!(
        "    {:<16} {:>10} executions {seconds:>6.1} s {per_second:>9.0}/s  {verdict}",
        run.target, run.executions
    );
}

/// Runs one target, from its seeds, from what earlier runs learned, and from every input that ever broke it.
fn run_one(target: String, programs: &Path, seconds: u64) -> Result<Run, String> {
    let (corpus, crashes) = (folder().join("corpus").join(&target), folder().join("crashes").join(&target));
    for folder in [&corpus, &crashes] {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", shown(folder)))?;
    }
    let log = folder().join(format!("{target}.log"));
    let written = File::create(&log).and_then(|file| Ok((file.try_clone()?, file)));
    let (out, err) = written.map_err(|error| format!("{}: {error}", shown(&log)))?;

    let mut command = Command::new(programs.join(&target));
    command.arg(format!("-max_total_time={seconds}"));
    command.args([INPUT_BYTES_MAX, INPUT_SECONDS_MAX, MEMORY_MAX, "-print_final_stats=1"]);
    // The separator at the end makes it a folder and not the beginning of a name.
    command.arg(format!("-artifact_prefix={}/", crashes.display())).arg(&corpus);
    let broke_it = root().join("fuzz/found").join(&target);
    if broke_it.is_dir() {
        command.arg(broke_it);
    }
    command.env("TENURE_FUZZ_SEEDS", &corpus).env("RUST_BACKTRACE", "1").stdout(out).stderr(err);
    let started = Instant::now();
    let status = command.status().map_err(|error| format!("{target}: {error}"))?;
    let took = started.elapsed();

    let report =
        String::from_utf8_lossy(&fs::read(&log).map_err(|error| format!("{}: {error}", shown(&log)))?)
            .into_owned();
    let executions = executions(&report);
    let crash = match (status.success(), executions) {
        (true, 0) => Some(format!("nothing was executed, which proves nothing; see {}", log.display())),
        (true, _) => None,
        (false, _) => {
            Some(format!("CRASH {}; see {}", input(&report).unwrap_or("without an input"), log.display()))
        }
    };
    Ok(Run { target, executions, took, crash })
}

/// How many inputs were executed, as the engine tells at the end.
fn executions(report: &str) -> u64 {
    let number = |line: &str| line.strip_prefix("stat::number_of_executed_units:")?.trim().parse().ok();
    report.lines().find_map(number).unwrap_or(0)
}

/// The file with the input that broke the target.
fn input(report: &str) -> Option<&str> {
    report.lines().find_map(|line| Some(line.split_once("Test unit written to ")?.1.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_engine_tells_is_read() {
        let report = "#2\tINITED cov: 3\nDone 12 runs in 1 second(s)\nstat::number_of_executed_units: 12\n\
                    stat::average_exec_per_sec:     6\n";
        assert_eq!((executions(report), input(report)), (12, None));
        let report = "thread panicked\nartifact_prefix='x/'; Test unit written to x/crash-1\nBase64: YQ==\n";
        assert_eq!((executions(report), input(report)), (0, Some("x/crash-1")));
    }

    #[test]
    fn a_target_that_is_not_there_is_named() {
        assert!(wanted(&["entry".into()]).is_ok());
        assert!(wanted(&["nowhere".into()]).unwrap_err().contains("entry"));
        assert!(wanted(&[]).unwrap().len() > 10);
    }
}
