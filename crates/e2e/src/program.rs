//! The programs that tests start: ours, built on demand, and others, where they are installed.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use crate::scale::scale;

/// The `tenure` binary: `TENURE_BIN` if it is set, else built once per test program (release in full runs).
pub fn tenure_binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("TENURE_BIN") {
        Some(path) => {
            let path = PathBuf::from(path);
            assert!(path.is_file(), "TENURE_BIN names {}, which does not exist", path.display());
            path
        }
        None => build(),
    })
}

fn build() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--package", "tenure-cli", "--bin", "tenure"]);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    if scale().full {
        command.arg("--release");
    }
    let status = command.status().expect("cargo can be started");
    assert!(status.success(), "building the tenure binary ended with {status}");
    let target = target_folder().expect("tests run from cargo's build output");
    target.join(if scale().full { "release" } else { "debug" }).join("tenure")
}

/// The folder of cargo's build output, seen from this test program (`target/debug/deps/name-hash`).
fn target_folder() -> Option<PathBuf> {
    let program = std::env::current_exe().expect("a running program has a path");
    let profile = program.ancestors().find(|path| path.ends_with("debug") || path.ends_with("release"));
    profile.and_then(Path::parent).map(Path::to_path_buf)
}

/// Runs the CLI against one server and gives back what it said.
pub fn run_tenure(endpoint: &str, arguments: &[&str]) -> Output {
    Command::new(tenure_binary())
        .args(arguments)
        .env("TENURE_ENDPOINTS", endpoint)
        .output()
        .unwrap_or_else(|error| panic!("tenure {arguments:?} cannot be started: {error}"))
}

/// Where a program is, if it is installed: in the search path, among the servers, or where
/// `cargo xtask setup` puts Python programs.
pub fn find(program: &str) -> Option<PathBuf> {
    let search = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&search).collect();
    folders.extend(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.extend(target_folder().map(|target| target.join("tools/python/bin")));
    folders.into_iter().map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// True if `program` is missing: the test returns then, and is counted as skipped. The line goes past the
/// capture of the test's output, so that `cargo xtask ci` sees and counts it.
pub fn skipped_without(program: &str, test: &str) -> bool {
    let missing = find(program).is_none();
    if missing {
        skipped(&format!("{test} needs {program}"));
    }
    missing
}

/// Says why a test is skipped, so that it is counted.
pub(crate) fn skipped(why: &str) {
    // A closed stderr is no reason to fail.
    let _ = writeln!(std::io::stderr(), "\nskipped: {why}");
}
