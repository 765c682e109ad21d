//! Twenty seconds of chaos, so that what is run for half an hour by hand keeps working: real nodes, a real
//! database, faults one after another, everything judged. `TENURE_TEST_FULL=1` makes it two minutes.

use std::path::Path;
use std::process::Command;

use tenure_e2e::{Lan, Scratch, scale, skipped_without, tenure_binary};

#[test]
fn a_short_run_breaks_no_rule() {
    if Lan::missing("a_short_run_breaks_no_rule") || skipped_without("setpriv", "a_short_run_breaks_no_rule")
    {
        return;
    }
    let scratch = Scratch::new("chaos");
    let seconds = if scale().full { "120" } else { "20" };
    let output = Command::new(env!("CARGO_BIN_EXE_tenure-chaos"))
        .args(["--seconds", seconds, "--holders", "2", "--seed", "7", "--report"])
        .arg(scratch.path().join("run"))
        .env("TENURE_BIN", tenure_binary())
        .output()
        .expect("the breaker can be started");
    let printed =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if printed.contains("skipped: ") {
        // It has told that there is no PostgreSQL; past the capture, so that it is counted.
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "\nskipped: a_short_run_breaks_no_rule needs PostgreSQL");
        return;
    }
    assert!(output.status.success(), "{printed}");
    assert!(printed.contains("# Chaos: no violation"), "{printed}");
    // A run in which nothing happened proves nothing.
    let report = std::fs::read_to_string(scratch.path().join("run/report.md")).expect("there is a report");
    let row =
        report.lines().find(|line| line.starts_with("| row in PostgreSQL |")).expect("rows are counted");
    let written: u64 = row.split('|').nth(2).and_then(|cell| cell.trim().parse().ok()).expect("a number");
    assert!(written > 20, "{report}");
    assert!(!report.contains(", 0 faults in"), "{report}");
    assert!(scratch.path().join("run/timeline.svg").is_file());
    // What was seen is kept, and judging it again says the same.
    let kept = scratch.path().join("run/history.txt");
    let (status, printed) = check(&kept);
    assert!(status && printed.contains(" 0 violations, 0 undecided"), "{printed}");
    let text = std::fs::read_to_string(&kept).expect("there is a history");
    let printed = check_broken(&kept, &(text + "failure 1 5 false it fell over\n"));
    assert!(printed.contains("no_one_takes_us_down: node 1 failed"), "{printed}");
}

/// Judges a kept history again: whether it passed, and what was said.
fn check(history: &Path) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tenure-chaos"))
        .arg("--check")
        .arg(history)
        .output()
        .expect("the breaker can be started");
    let printed =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), printed)
}

fn check_broken(file: &Path, history: &str) -> String {
    std::fs::write(file, history).expect("it can be written");
    let (passed, printed) = check(file);
    assert!(!passed, "{printed}");
    printed
}
