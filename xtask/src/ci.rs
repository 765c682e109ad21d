//! `cargo xtask ci`: checks everything, installs nothing, writes nothing but build output. The cheap steps
//! come first, so that a mistake in a document is reported early. `cargo xtask test` is `setup`, then this.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;

use crate::needs::find;
use crate::steps::{Judged, Only, Steps, Verdict, passed};
use crate::workspace::{cargo, root, succeed, target};
use crate::{crate_table, fuzz, links, perf_gate, purity, requirements, sdk, setup, sim, surface};

/// Tests that print a line starting so have counted themselves as skipped.
const SKIPPED: &str = "skipped: ";

/// Every fence adapter, for the one build that all tests share: a build of its own for them would compile
/// half of the workspace twice. DynamoDB's stays out, because its cryptography is a C library that takes
/// a minute to build; `--full` has it.
const FENCES: &str =
    "tenure-fence/postgres,tenure-fence/mysql,tenure-fence/sqlite,tenure-fence/redis,tenure-fence/stand-in";

fn fences(full: bool) -> String {
    if full {
        format!("{FENCES},tenure-fence/dynamodb,tenure-examples/s3,tenure-examples/sqlx")
    } else {
        FENCES.into()
    }
}

/// `cargo xtask ci`: runs all steps, or those named.
pub fn run(arguments: &[String]) -> ExitCode {
    steps("ci", false, arguments)
}

/// `cargo xtask test`: installs what the tests use, then runs all steps.
pub fn run_after_setup(arguments: &[String]) -> ExitCode {
    steps("test", true, arguments)
}

fn steps(chore: &str, with_setup: bool, arguments: &[String]) -> ExitCode {
    let (full, rest) = match arguments {
        [flag, rest @ ..] if flag == "--full" => (true, rest),
        rest => (false, rest),
    };
    let Some(only) = Only::parse(rest) else {
        eprintln!("cargo xtask {chore} [--full] [--only STEP,STEP…]");
        return ExitCode::from(2);
    };
    let all = matches!(only, Only::All);
    let mut steps = Steps::new(only);
    if with_setup {
        steps.step("setup", setup::install);
    }
    steps.step("format", || succeed(&mut cargo(&["fmt", "--all", "--check"])).and_then(|()| passed()));
    steps.step("links", links::judge);
    steps.step("requirements", requirements::judge);
    steps.step("crate-table", crate_table::judge);
    steps.step("public-api", surface::judge);
    steps.step("pure-core", purity::judge);
    steps.step("licences", licences);
    steps.step("clippy", || {
        let (fences, lints) = (fences(full), ["--all-targets", "--quiet", "--", "-D", "warnings"]);
        let arguments = [&["clippy", "--workspace", "--features", &fences][..], &lints].concat();
        succeed(&mut cargo(&arguments)).and_then(|()| passed())
    });
    steps.step("documents", || {
        let mut doc = cargo(&["doc", "--workspace", "--no-deps", "--quiet"]);
        succeed(doc.env("RUSTDOCFLAGS", "-D warnings")).and_then(|()| passed())
    });
    steps.step("lean-binary", || {
        // The features of everything else as in the step before, so that only the binary is compiled.
        let features = ["--no-default-features", "--features", "tenure-fence/default"];
        let arguments = [&["check", "--quiet", "--workspace", "--bin", "tenure"][..], &features].concat();
        succeed(&mut cargo(&arguments)).and_then(|()| passed())
    });
    steps.step("instructions", || perf_gate::judge(false));
    steps.step("tests", || tests(full));
    steps.step("sdk", || sdk::judge(full, all));
    steps.step("simulation", || simulation(full));
    if full {
        steps.step("fuzz", || fuzz::judge(fuzz::SECONDS_FULL, &[]));
    }
    steps.finish()
}

/// Licences, bans and sources; advisories would need a database from the network.
fn licences() -> Judged {
    let Some(deny) = find("cargo-deny") else {
        return Ok(Verdict::Skipped("cargo-deny is not installed; `cargo xtask setup` installs it".into()));
    };
    let mut check = Command::new(deny);
    check.args(["--all-features", "check", "--hide-inclusion-graph", "licenses", "bans", "sources"]);
    succeed(check.current_dir(root()))?;
    passed()
}

/// What the test programs told.
#[derive(Default)]
struct TestReport {
    passed: u64,
    failed: u64,
    ignored: u64,
    skipped: Vec<String>,
}

impl TestReport {
    fn take_in(&mut self, line: &str) {
        if let Some(why) = line.strip_prefix(SKIPPED) {
            self.skipped.push(why.to_string());
        }
        // test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.02s
        let Some(counts) = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". ")) else {
            return;
        };
        for part in counts.1.split("; ") {
            let Some((number, what)) = part.split_once(' ') else { continue };
            let Ok(number) = number.parse::<u64>() else { continue };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }
}

/// All tests of the workspace but the simulator's, doc tests among them.
fn tests(full: bool) -> Judged {
    let mut test = cargo(&["test", "--workspace", "--exclude", "tenure-sim", "--features", &fences(full)]);
    if !full && root().join("crates/cli/tests").is_dir() {
        // This very command builds the binary for the integration tests of `cli`, so the end-to-end
        // tests need not build it again with other features.
        test.env("TENURE_BIN", target().join("debug/tenure"));
    }
    run_tests(test, full)
}

/// The tests of the simulator: a build of its own, with the flag that nothing else has.
fn simulation(full: bool) -> Judged {
    let mut test = sim::cargo_for_simulator("test")?;
    // It skips only without that flag, and here that would be a mistake.
    test.env("TENURE_TEST_NO_SKIP", "1");
    run_tests(test, full)
}

fn run_tests(mut test: Command, full: bool) -> Judged {
    test.arg("--no-fail-fast");
    // What would make the next build faster is written once for every test program: more bytes than all
    // programs together, and on a fresh machine there is no next build.
    if std::env::var_os("CARGO_INCREMENTAL").is_none() {
        test.env("CARGO_INCREMENTAL", "0");
    }
    if full {
        test.env("TENURE_TEST_FULL", "1");
    }
    let mut child = test
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cargo test: {error}"))?;
    let report = Mutex::new(TestReport::default());
    let (out, err) = (child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        scope.spawn(|| pass_on(out, std::io::stdout(), &report));
        scope.spawn(|| pass_on(err, std::io::stderr(), &report));
    });
    let status = child.wait().map_err(|error| format!("cargo test: {error}"))?;
    let report = report.into_inner().expect("a reader of the tests' output panicked");
    for why in &report.skipped {
        eprintln!("    skipped: {why}");
    }
    let counts = format!(
        "{} passed, {} failed, {} ignored, {} skipped for want of a program",
        report.passed,
        report.failed,
        report.ignored,
        report.skipped.len()
    );
    if !status.success() {
        return Err(counts);
    }
    if report.passed == 0 {
        return Err("no test ran, which proves nothing".into());
    }
    Ok(Verdict::Passed(counts))
}

/// Shows every line as it comes and counts what it tells.
fn pass_on(from: Option<impl Read>, mut to: impl Write, report: &Mutex<TestReport>) {
    let Some(from) = from else { return };
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    // Bytes, not text: a test may print anything, and that must not end the reading.
    while from.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        // Nobody may be looking at our output any more; the tests are judged all the same.
        let _ = to.write_all(&line);
        report.lock().expect("the other reader panicked").take_in(String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_what_tests_print() {
        let mut report = TestReport::default();
        report.take_in(
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.02s",
        );
        report.take_in("test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out");
        report.take_in("skipped: stalled_sync needs strace");
        report.take_in("running 3 tests");
        assert_eq!((report.passed, report.failed, report.ignored), (14, 1, 1));
        assert_eq!(report.skipped, ["stalled_sync needs strace"]);
    }
}
