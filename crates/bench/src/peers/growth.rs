//! How cost grows with clients, sessions, nodes, waiters and watchers, and what a million sessions take: Tenure alone.

use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};

use super::cells::Via;
use super::setup::{Programs, Setup};
use super::{Options, drive, wanted, write};
use crate::plan::TargetKind;

/// One curve: its name, the nodes, and the arguments of each of its points.
struct Curve {
    name: &'static str,
    points: Vec<(usize, Vec<String>)>,
}

/// Measures what has no file yet.
pub fn run(
    programs: &Programs,
    folder: &Path,
    options: &Options,
    troubles: &mut Vec<String>,
) -> Result<(), String> {
    for curve in curves() {
        let file = folder.join(format!("growth-{}.json", curve.name));
        if file.exists() || !wanted(options, &format!("growth-{}", curve.name)) {
            continue;
        }
        let mut found = Vec::new();
        for (nodes, arguments) in &curve.points {
            eprintln!("growth  {:<10} {nodes} nodes: {}", curve.name, arguments.join(" "));
            match point(programs, *nodes, arguments) {
                Ok(point) => found.push(point),
                Err(why) => troubles.push(format!("{} {}: {why}", curve.name, arguments.join(" "))),
            }
        }
        write(&file, &lines(&found))?;
    }
    for (name, measure) in [("million", million as fn(&Programs) -> _), ("steady", steady)] {
        let file = folder.join(format!("growth-{name}.json"));
        if file.exists() || !wanted(options, &format!("growth-{name}")) {
            continue;
        }
        eprintln!("growth  {name}");
        match measure(programs) {
            Ok(found) => write(&file, &lines(&[found]))?,
            Err(why) => troubles.push(format!("{name}: {why}")),
        }
    }
    Ok(())
}

fn lines(found: &[Value]) -> String {
    found.iter().map(|one| format!("{one}\n")).collect()
}

fn curves() -> Vec<Curve> {
    let words = |text: String| text.split_whitespace().map(String::from).collect::<Vec<_>>();
    let timed = "--duration 3s --warm-up 1s";
    vec![
        Curve {
            name: "clients",
            points: [1, 4, 16, 64, 256, 1_024]
                .map(|clients| (3, words(format!("cycles --clients {clients} {timed}"))))
                .to_vec(),
        },
        Curve {
            name: "nodes",
            points: [1, 3, 5].map(|nodes| (nodes, words(format!("cycles --clients 256 {timed}")))).to_vec(),
        },
        Curve {
            name: "sessions",
            points: [1_000, 10_000, 100_000, 1_000_000]
                .map(|sessions| (1, words(format!("renewals --sessions {sessions} {timed}"))))
                .to_vec(),
        },
        Curve {
            name: "waiters",
            points: [1, 10, 100, 1_000, 10_000]
                .map(|waiters| (3, words(format!("handover --waiters {waiters} --rounds 100 --ttl 10m"))))
                .to_vec(),
        },
        Curve {
            name: "watchers",
            points: [1, 10, 100, 1_000]
                .map(|watchers| (3, words(format!("watchers --clients {watchers} --rounds 50"))))
                .to_vec(),
        },
    ]
}

fn point(programs: &Programs, nodes: usize, arguments: &[String]) -> Result<Value, String> {
    let setup = Setup::start(programs, TargetKind::Tenure, nodes)?;
    let mut found = drive(programs, &setup, TargetKind::Tenure, arguments, Via::Leader)?;
    found["nodes"] = nodes.into();
    Ok(found)
}

/// A million sessions on one node: opened, renewed, restarted from snapshot and log, expired.
fn million(programs: &Programs) -> Result<Value, String> {
    let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
    let mut setup = Setup::start(programs, TargetKind::Tenure, 1)?;
    let renewals = words("renewals --sessions 1000000 --streams 256 --ttl 10m --duration 10s --warm-up 2s");
    let renewed = drive(programs, &setup, TargetKind::Tenure, &renewals, Via::Leader)?;
    let (files, memory) = (setup.files(), crate::Usage::of(&setup.pids()).memory_bytes);
    let restarted = setup.restart()?;
    let sessions = setup.metric("tenure_sessions ");
    let after_restart = crate::Usage::of(&setup.pids()).memory_bytes;
    drop(setup);

    let setup = Setup::start(programs, TargetKind::Tenure, 1)?;
    let started = Instant::now();
    let expiry = words("expiry --sessions 1000000 --streams 64 --ttl 2m");
    let expired = drive(programs, &setup, TargetKind::Tenure, &expiry, Via::Leader)?;
    Ok(json!({
        "renewals": renewed,
        "expiry": expired,
        "expiry_in_all_s": started.elapsed().as_secs_f64(),
        "memory_bytes": memory,
        "restart_s": restarted.as_secs_f64(),
        "sessions_after_restart": sessions,
        "memory_after_restart_bytes": after_restart,
        "files": files,
    }))
}

/// What lies on disk after a minute in which 100,000 sessions are renewed every three seconds.
fn steady(programs: &Programs) -> Result<Value, String> {
    let setup = Setup::start(programs, TargetKind::Tenure, 1)?;
    let arguments =
        "renewals --sessions 100000 --streams 256 --rate 33000 --ttl 10s --duration 60s --warm-up 1s";
    let arguments: Vec<String> = arguments.split_whitespace().map(String::from).collect();
    let renewed = drive(programs, &setup, TargetKind::Tenure, &arguments, Via::Leader)?;
    Ok(json!({ "renewals": renewed, "disk_bytes": setup.disk_bytes(), "files": setup.files() }))
}
