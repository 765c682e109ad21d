//! `cargo xtask upgrade-rehearsal`: builds an older release and upgrades a cluster from it, under load.

use std::path::PathBuf;
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
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.args(arguments).current_dir(root());
        git
    };
    let commit = output(&mut git(&["rev-parse", "--verify", &format!("{from}^{{commit}}")]))?;
    let commit = commit.trim();
    let folder = target().join("upgrade").join(commit);
    let sources = folder.join("sources");
    println!("building the release of {commit}");
    if !sources.join("Cargo.toml").is_file() {
        std::fs::create_dir_all(&sources).map_err(|error| format!("{}: {error}", sources.display()))?;
        let archive = folder.join("sources.tar");
        let archive = archive.to_string_lossy().into_owned();
        succeed(&mut git(&["archive", "--output", &archive, commit]))?;
        succeed(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&sources))?;
    }
    let mut build = cargo(&["build", "--quiet", "--package", "tenure-cli", "--bin", "tenure"]);
    succeed(build.current_dir(&sources).env("CARGO_TARGET_DIR", folder.join("target")))?;
    let older: PathBuf = folder.join("target/debug/tenure");
    let name = "a_rolling_upgrade_loses_nothing_and_can_be_undone_until_the_raise";
    let mut test = cargo(&["test", "--quiet", "--package", "tenure-e2e", "--test", "under_load", name]);
    test.args(["--", "--nocapture"]).env("TENURE_OLD_BIN", older).env("TENURE_TEST_FULL", "1");
    succeed(&mut test)
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
