//! Instruction counts of the core's apply path, compared with a stored baseline. Instructions, not time:
//! other load on the machine does not affect them, so a few per cent more is a change of the code.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::needs::find;
use crate::steps::{Judged, Verdict};
use crate::workspace::{cargo, output, root, succeed, target};

/// The kinds of commands, as the example calls them.
const KINDS: [&str; 7] = ["renew", "cycle", "handover", "open-close", "expire", "write", "permit"];
/// Commands that are counted, on top of a set-up that is counted apart.
const COUNT: u64 = 4_000;
/// How much more is too much: inlining shifts a little with every change anywhere.
const TOLERANCE_PERCENT: f64 = 3.0;

/// `cargo xtask perf-gate [--write]`.
pub fn run(arguments: &[String]) -> ExitCode {
    let write = match arguments {
        [] => false,
        [flag] if flag == "--write" => true,
        _ => {
            eprintln!("cargo xtask perf-gate [--write]");
            return ExitCode::from(2);
        }
    };
    match judge(write) {
        Ok(Verdict::Passed(note)) => {
            eprintln!("{note}");
            ExitCode::SUCCESS
        }
        Ok(Verdict::Skipped(why)) => {
            eprintln!("skipped: {why}");
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            eprintln!("{wrong}");
            ExitCode::FAILURE
        }
    }
}

/// Counts, and compares with the baseline or writes it.
pub fn judge(write: bool) -> Judged {
    let Some(valgrind) = find("valgrind") else {
        return Ok(Verdict::Skipped("valgrind is not installed (Debian: valgrind)".into()));
    };
    succeed(&mut cargo(&[
        "build",
        "--quiet",
        "--release",
        "--package",
        "tenure-core",
        "--example",
        "apply_cost",
    ]))?;
    let compiler = output(Command::new("rustc").arg("--version"))?.trim().to_owned();
    let program = target().join("release/examples/apply_cost");
    let count = |kind: &str, commands: u64| instructions(&valgrind, &program, kind, commands);
    let mut counted = Vec::new();
    for kind in KINDS {
        let (empty, full) = (count(kind, 0)?, count(kind, COUNT)?);
        counted.push((kind, full.saturating_sub(empty) / COUNT));
    }
    let file = root().join("crates/core/examples/apply_cost.txt");
    if write {
        let lines: String = counted.iter().map(|(kind, many)| format!("{kind} {many}\n")).collect();
        let text = format!("# instructions per command; {compiler}\n{lines}");
        std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        return Ok(Verdict::Passed(report(&counted, &[])));
    }
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    if !text.lines().next().unwrap_or("").ends_with(&compiler) {
        return Ok(Verdict::Skipped(format!(
            "the baseline is another compiler's, this is {compiler}; `cargo xtask perf-gate --write` on a known good state"
        )));
    }
    let stored = baseline(&text);
    let grown: Vec<String> = counted
        .iter()
        .filter_map(|(kind, now)| {
            let before = stored.iter().find(|(stored, _)| stored == kind)?.1;
            let percent = (*now as f64 / before as f64 - 1.0) * 100.0;
            (percent > TOLERANCE_PERCENT)
                .then(|| format!("{kind}: {now} instructions, {before} before ({percent:+.1} %)"))
        })
        .collect();
    if grown.is_empty() {
        return Ok(Verdict::Passed(report(&counted, &stored)));
    }
    Err(format!(
        "the apply path has become slower:\n  {}\nif that is worth it, say why and run `cargo xtask perf-gate --write`",
        grown.join("\n  ")
    ))
}

fn report(counted: &[(&str, u64)], stored: &[(String, u64)]) -> String {
    let one = |(kind, now): &(&str, u64)| {
        let before = stored.iter().find(|(stored, _)| stored == kind).map_or(*now, |(_, before)| *before);
        format!("{kind} {now} ({:+.1} %)", (*now as f64 / before.max(1) as f64 - 1.0) * 100.0)
    };
    format!("instructions per command: {}", counted.iter().map(one).collect::<Vec<_>>().join(", "))
}

fn baseline(text: &str) -> Vec<(String, u64)> {
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.filter_map(|(kind, many)| Some((kind.to_owned(), many.parse().ok()?))).collect()
}

/// What callgrind has counted of one run.
fn instructions(valgrind: &Path, program: &Path, kind: &str, commands: u64) -> Result<u64, String> {
    let mut command = Command::new(valgrind);
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(program);
    command.args([kind, &commands.to_string()]);
    let run = command.output().map_err(|error| format!("valgrind: {error}"))?;
    let report = String::from_utf8_lossy(&run.stderr);
    let collected = report.lines().find_map(|line| line.split_once("Collected : "));
    collected
        .and_then(|(_, number)| number.trim().parse().ok())
        .ok_or_else(|| format!("callgrind counted nothing for {kind}: {}", report.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_baseline_is_read_without_its_heading() {
        let text = "# instructions per command; rustc 1.95.0\nrenew 120\ncycle 4000\n";
        assert_eq!(baseline(text), [("renew".to_owned(), 120), ("cycle".to_owned(), 4_000)]);
    }
}
