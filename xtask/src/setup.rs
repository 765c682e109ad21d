//! Installs what the tests use, as far as this user may: Debian packages as root, Python packages and crates
//! into folders below the build output. What cannot be installed is printed with the command to run. That is
//! no failure, because the tests that need it are then reported as skipped.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::needs::{NEEDS, Need, Source, cargo_environment, find, is_there, python_environment};
use crate::steps::{Judged, Verdict};
use crate::workspace::{cargo, output, succeed};

/// `cargo xtask setup`.
pub fn run(_arguments: &[String]) -> ExitCode {
    match install() {
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

/// Installs what is missing and says what still is.
pub fn install() -> Judged {
    let missing: Vec<&Need> = NEEDS.iter().filter(|need| !is_there(need)).collect();
    if missing.is_empty() {
        return Ok(Verdict::Passed(format!("all {} programs are there", NEEDS.len())));
    }
    let mut report = install_needs(&missing);
    let still: Vec<&str> = NEEDS.iter().filter(|need| !is_there(need)).map(|need| need.program).collect();
    if still.is_empty() {
        return Ok(Verdict::Passed(format!("installed {}", names(&missing))));
    }
    report.insert(0, format!("not installed: {}; tests that need them are skipped", still.join(", ")));
    Ok(Verdict::Skipped(report.join("\n    ")))
}

/// Installs these, as far as this user may; what could not be is said.
pub fn install_needs(missing: &[&Need]) -> Vec<String> {
    let mut debian: Vec<&str> = Vec::new();
    let mut python: Vec<&str> = Vec::new();
    let mut crates: Vec<&str> = Vec::new();
    for need in missing {
        eprintln!("    {} is missing ({})", need.program, need.used_for);
        match need.source {
            Source::Debian(package) => debian.push(package),
            Source::PyPi(package) | Source::PyPiModule(package) => python.push(package),
            Source::CratesIo(package) => crates.push(package),
        }
    }
    if !python.is_empty() && !python_can_make_environments() {
        debian.push("python3-venv");
    }

    let mut report = Vec::new();
    if !debian.is_empty()
        && let Err(why) = install_debian(&debian)
    {
        report.push(why);
    }
    if !python.is_empty()
        && let Err(why) = install_python(&python)
    {
        report.push(why);
    }
    if !crates.is_empty()
        && let Err(why) = install_crates(&crates)
    {
        report.push(why);
    }
    report
}

fn names(needs: &[&Need]) -> String {
    needs.iter().map(|need| need.program).collect::<Vec<_>>().join(", ")
}

/// One `update`, one `install`, for all packages together.
fn install_debian(packages: &[&str]) -> Result<(), String> {
    let line = format!("apt-get install -y --no-install-recommends {}", packages.join(" "));
    if find("apt-get").is_none() {
        return Err(format!("no apt-get here; on Debian: {line}"));
    }
    let user = output(Command::new("id").arg("-u")).unwrap_or_default();
    if user.trim() != "0" {
        return Err(format!("as root: apt-get update && {line}"));
    }
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    succeed(&mut apt(&["update", "-q"]))?;
    let mut arguments = vec!["install", "-q", "-y", "--no-install-recommends"];
    arguments.extend(packages);
    succeed(&mut apt(&arguments))
}

/// Debian ships `python3` without the means to make an environment.
fn python_can_make_environments() -> bool {
    output(Command::new("python3").args(["-c", "import ensurepip, venv"])).is_ok()
}

fn install_python(packages: &[&str]) -> Result<(), String> {
    let environment = python_environment();
    if !environment.join("bin/pip").is_file() {
        succeed(Command::new("python3").args(["-m", "venv"]).arg(Path::new(&environment)))?;
    }
    let mut pip = Command::new(environment.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check"]).args(packages);
    succeed(&mut pip)
}

/// Built without optimisation and without tables for a debugger: these programs run for seconds, and building
/// them as they are shipped takes several times as long.
fn install_crates(crates: &[&str]) -> Result<(), String> {
    let mut install = cargo(&["install", "--quiet", "--locked", "--debug", "--root"]);
    install.arg(cargo_environment()).args(crates);
    install.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_INCREMENTAL", "0");
    // Built in a folder that cargo clears away, not among our own build output.
    install.env_remove("CARGO_TARGET_DIR");
    succeed(&mut install)
}
