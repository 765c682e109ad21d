//! From raw results to the table: medians over the runs, ratios, and which store is ahead. It decides only
//! how results are reported.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::cells::{Cell, Figure, cells};
use super::plot::{Bars, number};
use super::{Options, growth, write};
use crate::plan::TargetKind;

const BEGIN: &str = "<!-- begin: written by cargo xtask bench-peers -->";
const END: &str = "<!-- end: written by cargo xtask bench-peers -->";
const GROWTH_BEGIN: &str = "<!-- begin: growth, written by cargo xtask bench-peers -->";
const GROWTH_END: &str = "<!-- end: growth, written by cargo xtask bench-peers -->";

/// A group of bars in a plot: its title, and each bar with its name.
type Group = (String, Vec<(String, f64)>);

/// All results of one store in one cell.
type Runs = BTreeMap<(String, &'static str), Vec<Value>>;

/// One result in a few words.
pub fn brief(result: &Value) -> String {
    let number_at = |name: &str| result[name].as_f64().unwrap_or(0.0);
    let latency = &result["latency"];
    let mut text = format!(
        "{}/s  p50 {:.2} ms  p99 {:.2} ms",
        number(number_at("per_second")),
        latency["p50_ms"].as_f64().unwrap_or(0.0),
        latency["p99_ms"].as_f64().unwrap_or(0.0),
    );
    if let Some(figures) = result["figures"].as_object() {
        for (name, value) in figures {
            text += &format!("  {name}={}", value.as_f64().unwrap_or(0.0));
        }
    }
    text
}

/// Writes the table into the page, and the plots beside the raw results.
pub fn publish(options: &Options, folder: &Path) -> Result<(), String> {
    let mut all = cells(false);
    if options.quick {
        all = cells(true);
    }
    let runs = read(folder, &all)?;
    if runs.is_empty() {
        return Err("there are no results yet".into());
    }
    let text = page(&all, &runs, folder)?;
    let file = options.root.join("docs/benchmarks.md");
    let empty = || format!("# Benchmarks\n\n{BEGIN}\n{END}\n\n{GROWTH_BEGIN}\n{GROWTH_END}\n");
    let before = std::fs::read_to_string(&file).unwrap_or_else(|_| empty());
    if options.quick {
        // A quick look is for the one who looks.
        println!("{text}");
        return Ok(());
    }
    let linked = text.replace("RESULTS", &format!("benchmarks/{}", options.name));
    let after = put_between(&before, BEGIN, END, &linked)?;
    let after = put_between(&after, GROWTH_BEGIN, GROWTH_END, &growth::tables(folder)?)?;
    write(&file, &after)
}

/// The page with this text between two marks.
fn put_between(page: &str, begin: &str, end: &str, text: &str) -> Result<String, String> {
    let missing = || format!("docs/benchmarks.md has no line {begin:?} with {end:?} after it");
    let (head, rest) = page.split_once(begin).ok_or_else(missing)?;
    let (_, tail) = rest.split_once(end).ok_or_else(missing)?;
    Ok(format!("{head}{begin}\n{text}{end}{tail}"))
}

fn read(folder: &Path, all: &[Cell]) -> Result<Runs, String> {
    let mut runs = Runs::new();
    for cell in all {
        for target in &cell.targets {
            for run in 1.. {
                let file = folder.join(format!("{}.{target}.{run}.json", cell.name));
                let Ok(text) = std::fs::read_to_string(&file) else { break };
                let value = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", file.display()))?;
                runs.entry((cell.name.clone(), target.name())).or_default().push(value);
            }
        }
    }
    Ok(runs)
}

/// The median over the runs of what `look` finds in one.
pub fn median(runs: &[Value], look: impl Fn(&Value) -> Option<f64>) -> Option<f64> {
    let mut found: Vec<f64> = runs.iter().filter_map(look).collect();
    found.sort_by(f64::total_cmp);
    match found.len() {
        0 => None,
        many if many % 2 == 1 => Some(found[many / 2]),
        many => Some((found[many / 2 - 1] + found[many / 2]) / 2.0),
    }
}

fn latency(name: &'static str) -> impl Fn(&Value) -> Option<f64> {
    move |run| run["latency"][name].as_f64()
}

/// The number by which a row compares.
fn headline(cell: &Cell, runs: &[Value]) -> Option<f64> {
    match cell.figure {
        Figure::PerSecond => rate(runs, "per_second"),
        Figure::Latency | Figure::LatencyMax => median(runs, latency("p50_ms")),
        Figure::Named(name) => median(runs, |run| run["figures"][name].as_f64()),
    }
}

/// A rate, if anything was done at all: nothing compares with nothing.
fn rate(runs: &[Value], name: &str) -> Option<f64> {
    median(runs, |run| run[name].as_f64()).filter(|rate| *rate > 0.0)
}

/// What stands in one cell.
fn shown(cell: &Cell, runs: &[Value]) -> Option<String> {
    let Some(value) = headline(cell, runs) else {
        let seconds = runs.first()?["seconds"].as_f64()?;
        return Some(format!("none done within {seconds:.0} s"));
    };
    let millis = |value: f64| format!("{} ms", number(value));
    Some(match cell.figure {
        Figure::PerSecond => {
            let mut text = number(value);
            if let Some(p50) = median(runs, latency("p50_ms")) {
                text += &format!(", p50 {}", millis(p50));
            }
            if let Some(p99) = median(runs, latency("p99_ms")) {
                text += &format!(", p99 {}", millis(p99));
            }
            text
        }
        Figure::Latency => {
            let p99 = median(runs, latency("p99_ms"))?;
            format!("p50 {}, p99 {}", millis(value), millis(p99))
        }
        Figure::LatencyMax => {
            // The worst of all runs, not the median of the worst.
            let max = runs.iter().filter_map(latency("max_ms")).fold(0.0, f64::max);
            format!("p50 {}, max {}", millis(value), millis(max))
        }
        Figure::Named(_) => {
            let sessions = runs[0]["sessions"].as_u64().map(|many| format!(" ({many})")).unwrap_or_default();
            format!("{}{sessions}", millis(value))
        }
    })
}

/// How far ahead we are: above one is ahead, whichever way the row counts.
fn ratio(cell: &Cell, ours: f64, theirs: f64) -> f64 {
    match cell.figure {
        Figure::PerSecond => ours / theirs,
        _ => theirs.max(0.001) / ours.max(0.001),
    }
}

fn page(all: &[Cell], runs: &Runs, folder: &Path) -> Result<String, String> {
    let mut out = String::new();
    for nodes in [3, 1] {
        let rows: Vec<&Cell> = all.iter().filter(|cell| cell.nodes == nodes).collect();
        let targets: Vec<TargetKind> = TargetKind::ALL
            .into_iter()
            .filter(|target| rows.iter().any(|cell| runs.contains_key(&(cell.name.clone(), target.name()))))
            .collect();
        if targets.is_empty() {
            continue;
        }
        out += &format!("\n### {nodes} node{}\n\n| workload |", if nodes == 1 { "" } else { "s" });
        for target in &targets {
            out += &format!(" {target} |");
        }
        for target in targets.iter().filter(|target| **target != TargetKind::Tenure) {
            out += &format!(" ahead of {target} by |");
        }
        out += "\n|---|";
        out += &"---|".repeat(targets.len() * 2 - 1);
        out += "\n";
        let mut groups: BTreeMap<bool, Vec<Group>> = BTreeMap::new();
        for cell in &rows {
            let of = |target: TargetKind| runs.get(&(cell.name.clone(), target.name()));
            let Some(ours) = of(TargetKind::Tenure) else { continue };
            out += &line(&cell.title, &targets, &|target| shown(cell, of(target)?), &|target| {
                // Sizes differ where a store is too slow for the full one: the ratio is then of the rates.
                let scale = |runs: &[Value]| match cell.figure {
                    Figure::Named("last_gone_after_ttl_ms") => runs[0]["sessions"].as_f64().unwrap_or(1.0),
                    _ => 1.0,
                };
                let theirs = of(target)?;
                let (our_value, their_value) = (headline(cell, ours)?, headline(cell, theirs)?);
                Some(ratio(cell, our_value / scale(ours), their_value / scale(theirs)))
            });
            if cell.figure == Figure::PerSecond {
                let cost = |runs: &[Value]| rate(runs, "operations_per_cpu_second");
                out += &line(
                    "… per second of the servers' processor time",
                    &targets,
                    &|target| cost(of(target)?).map(number),
                    &|target| Some(cost(ours)? / cost(of(target)?)?),
                );
            }
            if cell.name.ends_with("-renewals") {
                let memory =
                    |runs: &[Value]| median(runs, |run| run["figures"]["memory_per_session_bytes"].as_f64());
                out += &line(
                    "… memory per session with one lease, per node",
                    &targets,
                    &|target| memory(of(target)?).map(|bytes| format!("{bytes:.0} B")),
                    &|target| Some(memory(of(target)?)? / memory(ours)?),
                );
            }
            let bars: Vec<(String, f64)> = targets
                .iter()
                .filter_map(|target| Some((target.name().to_owned(), headline(cell, of(*target)?)?)))
                .collect();
            groups.entry(cell.figure == Figure::PerSecond).or_default().push((cell.title.clone(), bars));
        }
        out += "\n";
        for (throughput, groups) in groups {
            let (what, name) = match throughput {
                true => ("operations per second, logarithmic (longer is better)", "throughput"),
                false => ("milliseconds, logarithmic (shorter is better)", "latency"),
            };
            let title = format!("{nodes} node{}: {what}", if nodes == 1 { "" } else { "s" });
            write(&folder.join(format!("{name}-{nodes}.svg")), &Bars { title: title.clone(), groups }.svg())?;
            out += &format!("![{title}](RESULTS/{name}-{nodes}.svg)\n");
        }
    }
    Ok(out)
}

/// One line of the table: what each store shows, then how far ahead of each other one we are.
fn line(
    title: &str,
    targets: &[TargetKind],
    shown: &dyn Fn(TargetKind) -> Option<String>,
    ahead: &dyn Fn(TargetKind) -> Option<f64>,
) -> String {
    let mut out = format!("| {title} |");
    for target in targets {
        out += &format!(" {} |", shown(*target).unwrap_or_else(|| "-".into()));
    }
    for target in targets.iter().filter(|target| **target != TargetKind::Tenure) {
        let text = match ahead(*target) {
            None => "-".to_owned(),
            Some(ratio) if ratio < 1.0 => format!("**behind**: {ratio:.2} x"),
            Some(ratio) if ratio < 10.0 => format!("{ratio:.1} x"),
            Some(ratio) => format!("{ratio:.0} x"),
        };
        out += &format!(" {text} |");
    }
    out + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_median_is_in_the_middle() {
        let runs: Vec<Value> = [3.0, 1.0, 10.0].map(|n| json!({ "per_second": n })).to_vec();
        assert_eq!(median(&runs, |run| run["per_second"].as_f64()), Some(3.0));
        assert_eq!(median(&runs[..2], |run| run["per_second"].as_f64()), Some(2.0));
        assert_eq!(median(&runs, |run| run["nothing"].as_f64()), None);
    }

    #[test]
    fn nothing_done_is_said_and_compared_with_nothing() {
        let cell = cells(false).into_iter().find(|cell| cell.name == "3-cycles-256").expect("there is one");
        let run =
            |rate: f64| json!({ "per_second": rate, "operations_per_cpu_second": rate, "seconds": 4.99 });
        let none = [run(0.0)];
        assert_eq!(shown(&cell, &none).as_deref(), Some("none done within 5 s"));
        assert_eq!((headline(&cell, &none), headline(&cell, &[run(7.0)])), (None, Some(7.0)));
    }

    #[test]
    fn being_behind_is_said() {
        let cell = cells(false).into_iter().find(|cell| cell.name == "1-cycles-1").expect("there is one");
        let run = |p50: f64| vec![json!({ "latency": { "p50_ms": p50, "p99_ms": 2.0 * p50 } })];
        let runs: Runs = [
            ((cell.name.clone(), "tenure"), run(1.0)),
            ((cell.name.clone(), "etcd"), run(2.0)),
            ((cell.name.clone(), "redis"), run(0.5)),
        ]
        .into();
        let folder = std::env::temp_dir().join(format!("tenure-bench-table-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        let text = page(&[cell], &runs, &folder).expect("a page");
        std::fs::remove_dir_all(&folder).expect("it can be removed");
        assert!(text.contains("| 2.0 x | **behind**: 0.50 x |"), "{text}");
    }
}
