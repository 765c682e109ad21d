//! `cargo xtask upgrade-rehearsal`: builds an older release and upgrades a cluster from it, under load.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::workspace::{cargo, output, root, succeed, target};

/// `cargo xtask upgrade-rehearsal [--from REV]`: from the last release in `RELEASES`, or from any commit.
pub fn run(arguments: &[String]) -> ExitCode {
    let from = match arguments {
        [] => last_release(),
        [flag, from] if flag == "--from" => Ok(from.clone()),
        _ => {
            eprintln!("cargo xtask upgrade-rehearsal [--from REV]");
            return ExitCode::from(2);
        }
    };
    match from.and_then(|from| rehearse(&from)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The commit of the last release.
fn last_release() -> Result<String, String> {
    let text =
        std::fs::read_to_string(root().join("RELEASES")).map_err(|error| format!("RELEASES: {error}"))?;
    last_commit(&text).ok_or_else(|| "RELEASES names no release".to_owned())
}

fn last_commit(releases: &str) -> Option<String> {
    let lines = releases.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_whitespace().nth(1)).next_back().map(str::to_owned)
}

fn rehearse(from: &str) -> Result<(), String> {
    let commit = output(&mut git(&["rev-parse", "--verify", &format!("{from}^{{commit}}")]))?;
    let commit = commit.trim();
    let older = older_binary(commit)?;
    // The development build, like the older release: what is rehearsed does not depend on optimisation.
    succeed(&mut cargo(&["build", "--quiet", "--package", "tenure-cli", "--bin", "tenure"]))?;
    let newer = target().join("debug/tenure");
    let name = "a_rolling_upgrade_loses_nothing_and_can_be_undone_until_the_raise";
    let mut test = cargo(&["test", "--quiet", "--package", "tenure-e2e", "--test", "under_load", name]);
    test.args(["--", "--nocapture"]).env("TENURE_TEST_FULL", "1");
    succeed(test.env("TENURE_OLD_BIN", older).env("TENURE_BIN", newer))
}

/// The binary of a release, built on the first call. All releases share one build folder, so that what they
/// have in common is compiled once.
fn older_binary(commit: &str) -> Result<PathBuf, String> {
    let folder = target().join("upgrade");
    let binary = folder.join(format!("tenure-{commit}"));
    if binary.is_file() {
        return Ok(binary);
    }
    println!("building the release of {commit}");
    let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let sources = folder.join("sources").join(commit);
    if !sources.join("Cargo.toml").is_file() {
        std::fs::create_dir_all(&sources).map_err(|error| failed(&sources, error))?;
        let archive = folder.join(format!("{commit}.tar"));
        succeed(git(&["archive", "--output"]).arg(&archive).arg(commit))?;
        succeed(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&sources))?;
        std::fs::remove_file(&archive).map_err(|error| failed(&archive, error))?;
    }
    let built = folder.join("target");
    let mut build = cargo(&["build", "--quiet", "--package", "tenure-cli", "--bin", "tenure"]);
    succeed(build.current_dir(&sources).env("CARGO_TARGET_DIR", &built))?;
    std::fs::copy(built.join("debug/tenure"), &binary).map_err(|error| failed(&binary, error))?;
    Ok(binary)
}

fn git(arguments: &[&str]) -> Command {
    let mut git = Command::new("git");
    git.args(arguments).current_dir(root());
    git
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_release_is_found() {
        let text = "# a comment\n0.1.0 abc 1\n0.2.0 def 2\n";
        assert_eq!(last_commit(text).as_deref(), Some("def"));
        assert_eq!(last_commit("# nothing\n"), None);
    }
}
