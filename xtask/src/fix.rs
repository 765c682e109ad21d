//! `cargo xtask fix`: writes what can be generated, for review in the diff: formatting, the results in
//! stories, golden files, the SDKs' vectors, snapshots of the public API.

use std::process::ExitCode;

use crate::steps::{Only, Steps, Verdict, passed};
use crate::surface;
use crate::workspace::{cargo, root, succeed};

/// Runs all writers, or those named.
pub fn run(arguments: &[String]) -> ExitCode {
    let Some(only) = Only::parse(arguments) else {
        eprintln!("cargo xtask fix [--only STEP,STEP…]");
        return ExitCode::from(2);
    };
    let mut steps = Steps::new(only);
    steps.step("format", || succeed(&mut cargo(&["fmt", "--all"])).and_then(|()| passed()));
    steps.step("stories", || {
        let mut stories = cargo(&["test", "--quiet", "--package", "tenure-core", "--test", "stories"]);
        succeed(stories.env("UPDATE_STORIES", "1")).and_then(|()| passed())
    });
    steps.step("golden-files", || {
        if !root().join("crates/wire/tests").is_dir() {
            return Ok(Verdict::Skipped("wire has no golden files".into()));
        }
        let mut golden = cargo(&["test", "--quiet", "--package", "tenure-wire"]);
        succeed(golden.env("UPDATE_GOLDEN", "1")).and_then(|()| passed())
    });
    steps.step("vectors", || {
        let mut vectors = cargo(&[
            "test",
            "--quiet",
            "--package",
            "tenure-conformance",
            "--test",
            "vectors",
            "--test",
            "features",
        ]);
        succeed(vectors.env("UPDATE_GOLDEN", "1")).and_then(|()| passed())
    });
    steps.step("public-api", surface::write);
    steps.finish()
}
