//! Where things are in the workspace, and how a command is started in it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the workspace.
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().expect("xtask lies one folder below the root").to_path_buf()
}

/// Where cargo puts what it builds.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root().join(folder),
        None => root().join("target"),
    }
}

/// The cargo that started us, in the root of the workspace.
pub fn cargo(arguments: &[&str]) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root());
    command
}

/// The target that this machine is. A build that names it keeps its flags away from build scripts and macros,
/// which are then not built again, and has a folder of its own.
pub fn host() -> Result<String, String> {
    let compiler = output(Command::new("rustc").arg("-vV"))?;
    let host = compiler.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(String::from).ok_or("rustc names no host".into())
}

/// Runs a command with our own standard streams; a failure names the command.
pub fn succeed(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{}: {error}", words(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{} ended with {status}", words(command))) }
}

/// Runs a command and gives back what it printed.
pub fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{}: {error}", words(command)))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{} ended with {}: {}", words(command), output.status, stderr.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The command as one would type it.
fn words(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let mut text = program.to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}

/// All files below `folder` with this extension, in a fixed order; hidden folders and build output are left
/// out.
pub fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let left_out = name.starts_with('.') || name.starts_with("target") || name == "tenure-data";
            if path.is_dir() {
                if !left_out {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// A path as a reader of the workspace would write it.
pub fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}
