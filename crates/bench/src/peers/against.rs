//! An older release of Tenure and this one, point by point and taking turns: what has become faster or slower.
//!
//! One driver, this one's, drives both, so only the servers differ. It decides nothing about what is good
//! enough; it writes medians and their ratio beside the raw results.

use std::path::Path;

use serde_json::Value;

use super::cells::Via;
use super::plot::number;
use super::setup::{Programs, Setup};
use super::table::{brief, median};
use super::{Options, drive, wanted, write};
use crate::plan::TargetKind;

const SIDES: [&str; 2] = ["older", "newer"];

/// One row: a workload at one size.
struct Point {
    name: String,
    title: String,
    nodes: usize,
    via: Via,
    figures: &'static [Figure],
    arguments: String,
}

/// What is compared in a point: its name, where it stands in a result, and whether more is better.
struct Figure {
    name: &'static str,
    find: fn(&Value) -> Option<f64>,
    more_is_better: bool,
}

const RATE: Figure =
    Figure { name: "per second", find: |run| run["per_second"].as_f64(), more_is_better: true };
const PER_CPU_SECOND: Figure = Figure {
    name: "per second of processor time",
    find: |run| run["operations_per_cpu_second"].as_f64(),
    more_is_better: true,
};
const P50: Figure =
    Figure { name: "p50, ms", find: |run| run["latency"]["p50_ms"].as_f64(), more_is_better: false };

fn points() -> Vec<Point> {
    let timed = "--duration 3s --warm-up 1s";
    let mut all = Vec::new();
    let mut add = |name: String, title: String, nodes, via, figures, arguments: String| {
        all.push(Point { name, title, nodes, via, figures, arguments });
    };
    for clients in [1, 16, 256, 1_024] {
        let figures: &[Figure] = if clients == 1 { &[P50] } else { &[RATE, PER_CPU_SECOND] };
        let title = format!("lock cycles, clients: {clients}");
        let arguments = format!("cycles --clients {clients} {timed}");
        add(format!("clients-{clients}"), title, 3, Via::Leader, figures, arguments);
    }
    for (via, name) in [(Via::All, "all nodes"), (Via::Followers, "followers")] {
        add(
            format!("cycles-{}", name.replace(' ', "-")),
            format!("lock cycles, 256 clients through {name}"),
            3,
            via,
            &[RATE, PER_CPU_SECOND],
            format!("cycles --clients 256 {timed}"),
        );
    }
    for sessions in [1_000, 100_000] {
        let title = format!("renewals, one node, sessions: {sessions}");
        let arguments = format!("renewals --sessions {sessions} {timed}");
        add(format!("sessions-{sessions}"), title, 1, Via::Leader, &[RATE, PER_CPU_SECOND], arguments);
    }
    add(
        "renewals-followers".into(),
        "renewals, 100000 sessions through followers".into(),
        3,
        Via::Followers,
        &[RATE, PER_CPU_SECOND],
        format!("renewals --sessions 100000 {timed}"),
    );
    for waiters in [1, 100, 10_000] {
        let title = format!("handover, waiters: {waiters}");
        let arguments = format!("handover --waiters {waiters} --rounds 100 --ttl 10m");
        add(format!("waiters-{waiters}"), title, 3, Via::Leader, &[P50], arguments);
    }
    for watchers in [1, 100, 1_000] {
        let title = format!("events, watchers: {watchers}");
        let arguments = format!("watchers --clients {watchers} --rounds 50");
        add(format!("watchers-{watchers}"), title, 3, Via::Leader, &[P50], arguments);
    }
    all
}

/// Measures what has no file yet, and writes the table.
pub fn run(newer: &Programs, older: &Programs, folder: &Path, options: &Options) -> Result<(), String> {
    let points: Vec<Point> = points().into_iter().filter(|point| wanted(options, &point.name)).collect();
    for run in 1..=options.runs {
        for point in &points {
            // Each goes first in turn: what the first leaves behind on the disk slows the second.
            let mut sides = [(SIDES[0], older), (SIDES[1], newer)];
            sides.rotate_left(run % 2);
            for (side, servers) in sides {
                let file = folder.join(format!("{}.{side}.{run}.json", point.name));
                if file.exists() {
                    continue;
                }
                eprint!("run {run}  {:<22} {side:<6} ", point.name);
                let setup = Setup::start(servers, TargetKind::Tenure, point.nodes)?;
                let arguments: Vec<String> = point.arguments.split_whitespace().map(String::from).collect();
                let mut result = drive(newer, &setup, TargetKind::Tenure, &arguments, point.via)?;
                result["nodes"] = point.nodes.into();
                eprintln!("{}", brief(&result));
                write(&file, &format!("{result}\n"))?;
            }
        }
    }
    write(&folder.join("table.md"), &table(folder)?)
}

/// Medians of both, and the newer one's share of the older one's: above 1 is better, whatever is compared.
fn table(folder: &Path) -> Result<String, String> {
    let mut out =
        "| point | figure | older | newer | newer is better by |\n|---|---|---|---|---|\n".to_owned();
    for point in points() {
        let [older, newer] = SIDES.map(|side| read(folder, &point.name, side));
        let (older, newer) = (older?, newer?);
        for figure in point.figures {
            let (Some(before), Some(after)) = (median(&older, figure.find), median(&newer, figure.find))
            else {
                continue;
            };
            let ratio = if figure.more_is_better { after / before } else { before / after };
            out += &format!(
                "| {} | {} | {} | {} | {ratio:.2} x |\n",
                point.title,
                figure.name,
                number(before),
                number(after)
            );
        }
    }
    Ok(out)
}

fn read(folder: &Path, point: &str, side: &str) -> Result<Vec<Value>, String> {
    let mut runs = Vec::new();
    for run in 1.. {
        let file = folder.join(format!("{point}.{side}.{run}.json"));
        let Ok(text) = std::fs::read_to_string(&file) else { break };
        runs.push(serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))?);
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_has_a_name_of_its_own_and_a_workload_that_the_bench_knows() {
        let points = points();
        let names: std::collections::BTreeSet<_> = points.iter().map(|point| &point.name).collect();
        assert_eq!(names.len(), points.len());
        for point in &points {
            let workload = point.arguments.split_whitespace().next().expect("there is one");
            workload.parse::<crate::Workload>().unwrap_or_else(|error| panic!("{error}"));
        }
    }

    #[test]
    fn better_is_above_one_whether_more_or_less_is_better() {
        let folder = std::env::temp_dir().join(format!("tenure-against-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        for (side, p50, rate) in [("older", 2.0, 100.0), ("newer", 1.0, 150.0)] {
            let run = serde_json::json!({ "latency": { "p50_ms": p50 }, "per_second": rate });
            for point in ["clients-1", "clients-16"] {
                std::fs::write(folder.join(format!("{point}.{side}.1.json")), run.to_string())
                    .expect("a file");
            }
        }
        let table = table(&folder).expect("they can be read");
        std::fs::remove_dir_all(&folder).expect("it is there");
        assert!(table.contains("| lock cycles, clients: 1 | p50, ms | 2.00 | 1.00 | 2.00 x |"), "{table}");
        assert!(table.contains("| lock cycles, clients: 16 | per second | 100 | 150 | 1.50 x |"), "{table}");
    }
}
