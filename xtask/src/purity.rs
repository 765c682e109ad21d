//! Checks that `core` is pure: it is `no_std`, uses the standard library only in tests, has no dependency,
//! and builds for a target without an operating system where one is installed.

use std::path::Path;
use std::process::Command;

use crate::steps::{Judged, Verdict};
use crate::workspace::{cargo, output, root, succeed};

/// A target without an operating system; any would do.
const BARE_METAL: &str = "thumbv7em-none-eabi";

/// Judges the crate.
pub fn judge() -> Judged {
    let library = root().join("crates/core/src/lib.rs");
    let text =
        std::fs::read_to_string(&library).map_err(|error| format!("crates/core/src/lib.rs: {error}"))?;
    says_no_std(&text)?;
    depends_on_nothing(&output(&mut cargo(&[
        "tree",
        "--package",
        "tenure-core",
        "--edges",
        "normal,build",
        "--prefix",
        "none",
    ]))?)?;
    if !bare_metal_is_installed() {
        return Ok(Verdict::Passed(format!(
            "no_std, no dependency; {BARE_METAL} is not installed, not built for it"
        )));
    }
    succeed(&mut cargo(&["build", "--quiet", "--package", "tenure-core", "--target", BARE_METAL]))?;
    Ok(Verdict::Passed(format!("no_std, no dependency, builds for {BARE_METAL}")))
}

fn says_no_std(library: &str) -> Result<(), String> {
    if !library.lines().any(|line| line.trim() == "#![no_std]") {
        return Err("crates/core/src/lib.rs does not say #![no_std]".into());
    }
    let mut before = "";
    for line in library.lines() {
        if line.trim() == "extern crate std;" && before.trim() != "#[cfg(test)]" {
            return Err("crates/core/src/lib.rs brings std in outside of its tests".into());
        }
        before = line;
    }
    Ok(())
}

fn depends_on_nothing(tree: &str) -> Result<(), String> {
    let others: Vec<&str> = tree.lines().skip(1).filter(|line| !line.trim().is_empty()).collect();
    if others.is_empty() { Ok(()) } else { Err(format!("core depends on {}", others.join(", "))) }
}

fn bare_metal_is_installed() -> bool {
    let folder = output(Command::new("rustc").args(["--print", "target-libdir", "--target", BARE_METAL]));
    folder.is_ok_and(|folder| Path::new(folder.trim()).is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn std_is_allowed_for_tests_alone() {
        assert!(says_no_std("#![no_std]\n#[cfg(test)]\nextern crate std;\n").is_ok());
        assert!(says_no_std("#![no_std]\nextern crate std;\n").is_err());
        assert!(says_no_std("extern crate alloc;\n").is_err());
    }

    #[test]
    fn any_second_line_of_the_tree_is_a_dependency() {
        assert!(depends_on_nothing("tenure-core v0.1.0\n").is_ok());
        assert!(depends_on_nothing("tenure-core v0.1.0\nserde v1.0.0\n").is_err());
    }
}
