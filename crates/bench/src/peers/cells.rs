//! The cells of the table: which workload, on how many nodes, for which stores, with which sizes.

use crate::plan::TargetKind::{self, Etcd, Redis, Tenure, ZooKeeper};

/// Through which nodes clients go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// The leader alone: the best case of every store.
    Leader,
    /// All nodes in turn: what happens where nobody knows who leads.
    All,
    /// The followers alone.
    Followers,
}

/// One row of the table.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Its name in files and in `--only`.
    pub name: String,
    /// What it is called in the table.
    pub title: String,
    /// Nodes of the set-up.
    pub nodes: usize,
    /// Through which nodes clients go.
    pub via: Via,
    /// The stores that have this row.
    pub targets: Vec<TargetKind>,
    /// The figure that the table shows.
    pub figure: Figure,
    arguments: Vec<String>,
    /// Further arguments of one store, which win.
    special: Vec<(TargetKind, Vec<String>)>,
}

/// What a row compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Operations per second; more is better. Also shown: p50, p99 and the cost in processor time.
    PerSecond,
    /// Median and p99 of latency; less is better.
    Latency,
    /// Median and maximum of latency; less is better.
    LatencyMax,
    /// A figure of the workload by its name, in milliseconds; less is better.
    Named(&'static str),
}

impl Cell {
    /// The arguments of `tenure bench` for one store.
    pub fn arguments(&self, target: TargetKind) -> Vec<String> {
        let mut all = self.arguments.clone();
        for (_, special) in self.special.iter().filter(|(special, _)| *special == target) {
            for pair in special.chunks(2) {
                match all.iter().position(|argument| *argument == pair[0]) {
                    Some(at) => all[at + 1] = pair[1].clone(),
                    None => all.extend_from_slice(pair),
                }
            }
        }
        all
    }
}

/// All rows; the main ones with short times if it has to be quick.
pub fn cells(quick: bool) -> Vec<Cell> {
    let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
    let timed = if quick { "--duration 2s --warm-up 500ms" } else { "--duration 5s --warm-up 1s" };
    let (sessions, rounds, crashes) = if quick { (20_000, 60, 15) } else { (100_000, 200, 40) };
    let cell =
        |name: &str, title: &str, nodes, via, targets: &[TargetKind], figure, arguments: String| Cell {
            name: format!("{nodes}-{name}"),
            title: title.to_owned(),
            nodes,
            via,
            targets: targets.to_vec(),
            figure,
            arguments: words(&arguments),
            special: Vec::new(),
        };
    let mut all = Vec::new();
    for nodes in [3, 1] {
        let consensus: &[TargetKind] = &[Tenure, Etcd, ZooKeeper];
        let everybody: &[TargetKind] = if nodes == 1 { &[Tenure, Etcd, ZooKeeper, Redis] } else { consensus };
        let fleets: &[TargetKind] = if nodes == 1 { &[Tenure, Etcd, Redis] } else { &[Tenure, Etcd] };
        let leader = Via::Leader;
        all.push(cell(
            "cycles-256",
            "lock cycles/s, 256 clients",
            nodes,
            leader,
            everybody,
            Figure::PerSecond,
            format!("cycles --clients 256 {timed}"),
        ));
        all.push(cell(
            "cycles-1",
            "lock cycle, 1 client",
            nodes,
            leader,
            everybody,
            Figure::Latency,
            format!("cycles --clients 1 {timed}"),
        ));
        all.push(cell(
            "renewals",
            &format!("renewals/s, {sessions} sessions, 256 streams"),
            nodes,
            leader,
            fleets,
            Figure::PerSecond,
            format!("renewals --sessions {sessions} --streams 256 {timed}"),
        ));
        all.push(cell(
            "handover",
            "handover, 10 waiters",
            nodes,
            leader,
            consensus,
            Figure::Latency,
            format!("handover --waiters 10 --rounds {rounds}"),
        ));
        all.push(cell(
            "handover-fresh",
            "handover, waiter just queued",
            nodes,
            leader,
            consensus,
            Figure::Latency,
            format!("handover-fresh --rounds {rounds}"),
        ));
        all.push(cell(
            "crash",
            "crash gap beyond the TTL of 2 s",
            nodes,
            leader,
            consensus,
            Figure::LatencyMax,
            format!("crash --rounds {crashes}"),
        ));
        let mut expiry = cell(
            "expiry",
            &format!("{sessions} leases expire at once: last one gone after the TTL"),
            nodes,
            leader,
            fleets,
            Figure::Named("last_gone_after_ttl_ms"),
            format!("expiry --sessions {sessions} --streams 64"),
        );
        // 1,000 a second by design: a tenth of the leases shows the same in a tenth of the time.
        expiry.special.push((Etcd, words(if quick { "--sessions 5000" } else { "--sessions 10000" })));
        all.push(expiry);
        if nodes == 3 {
            all.push(cell(
                "death",
                "proof of death, TTL 30 s: next one holds",
                nodes,
                leader,
                &[Tenure],
                Figure::LatencyMax,
                format!("death --rounds {rounds}"),
            ));
            all.push(cell(
                "leader-killed",
                "leader killed under load: longest gap",
                nodes,
                Via::All,
                consensus,
                Figure::Named("longest_gap_ms"),
                "leader-killed --clients 64 --duration 6s --warm-up 1s".to_owned(),
            ));
            all.push(cell(
                "step-down",
                "planned change of leader under load: longest gap",
                nodes,
                Via::All,
                &[Tenure, Etcd],
                Figure::Named("longest_gap_ms"),
                "step-down --clients 64 --duration 3s --warm-up 1s".to_owned(),
            ));
        }
        if !quick && nodes == 3 {
            all.push(cell(
                "cycles-256-any",
                "lock cycles/s, 256 clients, through all nodes in turn",
                nodes,
                Via::All,
                &[Tenure, Etcd],
                Figure::PerSecond,
                format!("cycles --clients 256 {timed}"),
            ));
            all.push(cell(
                "cycles-256-own",
                "lock cycles/s, 256 clients, a connection each",
                nodes,
                leader,
                &[Tenure, Etcd],
                Figure::PerSecond,
                format!("cycles --clients 256 --connections 256 {timed}"),
            ));
            all.push(cell(
                "renewals-followers",
                &format!("renewals/s, {sessions} sessions, through followers"),
                nodes,
                Via::Followers,
                &[Tenure, Etcd],
                Figure::PerSecond,
                format!("renewals --sessions {sessions} --streams 256 {timed}"),
            ));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_has_a_name_of_its_own_and_arguments_that_the_bench_knows() {
        for quick in [true, false] {
            let cells = cells(quick);
            let names: std::collections::BTreeSet<_> = cells.iter().map(|cell| &cell.name).collect();
            assert_eq!(names.len(), cells.len());
            for cell in &cells {
                let workload = &cell.arguments(Tenure)[0];
                workload.parse::<crate::Workload>().unwrap_or_else(|error| panic!("{error}"));
            }
        }
    }

    #[test]
    fn a_stores_own_size_wins() {
        let expiry = cells(false).into_iter().find(|cell| cell.name == "1-expiry").expect("there is one");
        let sessions = |target| {
            let arguments = expiry.arguments(target);
            let at = arguments.iter().position(|argument| argument == "--sessions").expect("it is named");
            arguments[at + 1].clone()
        };
        assert_eq!((sessions(Tenure).as_str(), sessions(Etcd).as_str()), ("100000", "10000"));
    }
}
