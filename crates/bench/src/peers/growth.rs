//! How cost grows with clients, sessions, nodes, waiters and watchers, and what a million sessions take:
//! Tenure alone.

use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};

use super::cells::Via;
use super::plot::number;
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

/// A row of a table: what it shows, and where a point says it.
type Row = (&'static str, fn(&Value) -> Option<String>);

/// What the page shows of a curve: its name, the unit of its points, where they stand in a point, and the
/// rows.
type Shown = (&'static str, &'static str, &'static str, &'static [Row]);

const SHOWN: [Shown; 5] = [
    ("clients", "clients (three nodes)", "clients", &[("lock cycles/s", per_second), ("p50", p50)]),
    (
        "nodes",
        "nodes (256 clients)",
        "nodes",
        &[("lock cycles/s", per_second), ("… per second of the servers' processor time", per_cpu_second)],
    ),
    (
        "sessions",
        "sessions with a lease (one node, 256 streams)",
        "sessions",
        &[("renewals/s", per_second), ("a round of all of them, p50", p50), ("memory of the node", memory)],
    ),
    ("waiters", "waiters in one queue (three nodes)", "waiters", &[("handover p50", p50)]),
    (
        "watchers",
        "watchers of one prefix (three nodes)",
        "clients",
        &[("event at a watcher, p50", p50), ("events delivered per second", per_second)],
    ),
];

fn per_second(point: &Value) -> Option<String> {
    point["per_second"].as_f64().map(number)
}

fn per_cpu_second(point: &Value) -> Option<String> {
    point["operations_per_cpu_second"].as_f64().map(number)
}

fn p50(point: &Value) -> Option<String> {
    point["latency"]["p50_ms"].as_f64().map(|millis| format!("{} ms", number(millis)))
}

fn memory(point: &Value) -> Option<String> {
    point["server_memory_bytes"].as_f64().map(|bytes| format!("{:.0} MB", bytes / 1e6))
}

/// The curves that were measured, as tables; empty before the first.
pub fn tables(folder: &Path) -> Result<String, String> {
    let mut out = String::new();
    for (name, unit, at, rows) in SHOWN {
        let Ok(text) = std::fs::read_to_string(folder.join(format!("growth-{name}.json"))) else { continue };
        let points: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).map_err(|error| format!("growth-{name}.json: {error}")))
            .collect::<Result<_, String>>()?;
        out += &table(unit, at, rows, &points);
    }
    Ok(out)
}

fn table(unit: &str, at: &str, rows: &[Row], points: &[Value]) -> String {
    let cells = |title: &str, shown: &dyn Fn(&Value) -> Option<String>| {
        let shown: Vec<String> =
            points.iter().map(|point| shown(point).unwrap_or_else(|| "-".into())).collect();
        format!("| {title} | {} |\n", shown.join(" | "))
    };
    let mut out = cells(unit, &|point| point[at].as_u64().map(|many| many.to_string()));
    out = format!("\n{out}|---|{}\n", "---|".repeat(points.len()));
    for (title, shown) in rows {
        out += &cells(title, shown);
    }
    out
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_a_table() {
        let point = |clients: u64, rate: f64| json!({ "clients": clients, "per_second": rate, "latency": { "p50_ms": 1.5 } });
        let (_, unit, at, rows) = SHOWN[0];
        let expected = "
| clients (three nodes) | 1 | 1024 |
|---|---|---|
| lock cycles/s | 653 | 43 k |
| p50 | 1.50 ms | 1.50 ms |
";
        assert_eq!(table(unit, at, rows, &[point(1, 653.0), point(1_024, 43_000.0)]), expected);
    }
}
