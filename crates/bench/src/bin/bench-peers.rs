//! What `cargo xtask bench-peers` runs once everything is installed and built.

use std::path::PathBuf;
use std::process::ExitCode;

use tenure_bench::peers::{Options, run};

fn main() -> ExitCode {
    match options().and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        root: PathBuf::from("."),
        tenure: PathBuf::from("tenure"),
        against: None,
        etcd: None,
        only: Vec::new(),
        quick: false,
        runs: 0,
        name: String::new(),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--root" => options.root = value()?.into(),
            "--tenure" => options.tenure = value()?.into(),
            "--against" => options.against = Some(value()?.into()),
            "--etcd" => options.etcd = Some(value()?.into()),
            "--only" => options.only = value()?.split(',').map(String::from).collect(),
            "--runs" => options.runs = value()?.parse().map_err(|_| "--runs needs a number".to_owned())?,
            "--name" => options.name = value()?,
            "--quick" => options.quick = true,
            other => return Err(format!("{other} is not known; see cargo xtask bench-peers --help")),
        }
    }
    if options.runs == 0 {
        options.runs = if options.quick { 1 } else { 3 };
    }
    if options.name.is_empty() {
        options.name = match (&options.against, options.quick) {
            (Some(_), _) => "against".into(),
            (None, true) => "quick".into(),
            (None, false) => "results".into(),
        };
    }
    Ok(options)
}
