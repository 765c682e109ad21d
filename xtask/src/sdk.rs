//! `cargo xtask ci --only sdk`: the SDKs in other languages. For each, if its toolchain is installed: vectors
//! and unit tests, types, the scripted node and a few rounds of pauses around database writes. The black-box
//! scenarios against clusters are tests of `crates/conformance`, which the step `tests` runs.

use std::path::PathBuf;
use std::process::Command;

use crate::needs::{find, python_environment};
use crate::steps::{Judged, Verdict};
use crate::workspace::{cargo, output, root, succeed, target};

/// Rounds of pauses in every run; `--full` does what the documents report.
const ROUNDS: &str = "3";
const ROUNDS_FULL: &str = "200";

/// Judges all SDKs. `built`: the tests of the workspace have just built the program, which would be compiled again with
/// other features.
pub fn judge(full: bool, built: bool) -> Judged {
    let Some(python) = python() else {
        let why = "python: Python 3.10 or later is not installed; `cargo xtask setup` installs python3";
        return Ok(Verdict::Skipped(why.into()));
    };
    let binary = binary(built)?;
    let notes = judge_python(&python, &binary, full)?;
    Ok(Verdict::Passed(format!("python: {notes}")))
}

/// The environment that `setup` makes, which has the database driver; else any Python.
fn python() -> Option<PathBuf> {
    let own = python_environment().join("bin/python3");
    std::env::var_os("TENURE_PYTHON")
        .map(PathBuf::from)
        .or_else(|| Some(own).filter(|path| path.is_file()))
        .or_else(|| find("python3"))
        .filter(|python| {
            let asked = "import sys; sys.exit(sys.version_info < (3, 10))";
            output(Command::new(python).args(["-c", asked])).is_ok()
        })
}

/// The program under test: as the tests are given it, or built here.
fn binary(built: bool) -> Result<PathBuf, String> {
    if let Some(given) = std::env::var_os("TENURE_BIN") {
        return Ok(given.into());
    }
    let program = target().join("debug/tenure");
    if built && program.is_file() {
        return Ok(program);
    }
    succeed(&mut cargo(&["build", "--quiet", "--package", "tenure-cli", "--bin", "tenure"]))?;
    Ok(program)
}

fn judge_python(python: &PathBuf, binary: &PathBuf, full: bool) -> Result<String, String> {
    let folder = root().join("sdk/python");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(python);
        command.args(arguments).current_dir(&folder).env("TENURE_BIN", binary);
        command.env("PYTHONPATH", format!("{0}/src:{0}/tests", folder.display()));
        command
    };
    let mut notes = vec!["vectors and unit tests".to_owned()];
    succeed(&mut run(&["-m", "unittest", "discover", "-s", "tests"]))?;
    succeed(&mut run(&["tools/reference.py"]))?;
    if output(&mut run(&["-m", "mypy", "--version"])).is_ok() {
        succeed(&mut run(&["-m", "mypy", "--strict", "src", "tests", "examples", "tools"]))?;
        notes.push("types".into());
    } else {
        notes.push("types skipped (mypy is not installed)".into());
    }
    let agent = format!("{} -m tenure.agent", python.display());
    succeed(&mut run(&["../conformance/node.py", "--agent", &agent]))?;
    notes.push("scripted node".into());
    if output(&mut run(&["-c", "import psycopg"])).is_ok() && find("initdb").is_some() {
        let rounds = if full { ROUNDS_FULL } else { ROUNDS };
        let pauses = ["../conformance/pauses.py", "--agent", &agent, "--rounds", rounds];
        succeed(&mut run(&pauses))?;
        succeed(&mut run(&[
            "../conformance/pauses.py",
            "--agent",
            &agent,
            "--rounds",
            ROUNDS,
            "--unfenced",
        ]))?;
        notes.push(format!("{rounds} pauses around PostgreSQL writes"));
    } else {
        notes.push("pauses around PostgreSQL writes skipped (psycopg or PostgreSQL is not installed)".into());
    }
    if full {
        succeed(&mut run(&["tools/mutate.py"]))?;
        notes.push("mutations".into());
    }
    Ok(notes.join(", "))
}
