//! The report of a run: Markdown for people, and a picture of who held what while what was broken.

use std::collections::BTreeMap;
use std::fmt::Write;

use tenure_checker::{History, Judged, Outcome};

use crate::nemesis::{Fault, Injected};

/// What a run was.
pub struct Ran {
    /// How many nodes and holders.
    pub nodes: u32,
    /// See `nodes`.
    pub holders: u32,
    /// The seed of the faults' lengths and targets.
    pub seed: u64,
    /// When it began and ended.
    pub from: u64,
    /// See `from`.
    pub until: u64,
    /// What was injected.
    pub faults: Vec<Injected>,
    /// Lines of holders that could not be read: one that is killed leaves half a line behind.
    pub unreadable: u64,
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

/// The report.
pub fn markdown(ran: &Ran, history: &History, judged: &Judged, picture: &str) -> String {
    let mut text = String::new();
    let verdict = match (judged.violations.len(), judged.undecided.len()) {
        (0, 0) => "no violation".to_owned(),
        (0, many) => format!("no violation seen; {many} histories could not be decided"),
        (many, _) => format!("**{many} violations**"),
    };
    let _ = writeln!(text, "# Chaos: {verdict}\n");
    let _ = writeln!(
        text,
        "{} nodes and {} holders, each a process in a network namespace of its own, for {:.0} s (seed {}). Holders write under permits into a\nstorage behind the shipped fence, and into guarded registers.\n",
        ran.nodes,
        ran.holders,
        seconds(ran.until - ran.from),
        ran.seed
    );
    for violation in &judged.violations {
        let _ = writeln!(text, "- {violation}");
    }
    let _ = writeln!(text, "\n![timeline]({picture})\n");
    let _ = writeln!(text, "| fault | times | broken for, in all | longest silence | operations meanwhile |");
    let _ = writeln!(text, "|---|---|---|---|---|");
    for fault in Fault::ALL {
        let all: Vec<&Injected> = ran.faults.iter().filter(|injected| injected.fault == *fault).collect();
        let broken: u64 = all.iter().map(|injected| injected.until - injected.from).sum();
        let silence = all.iter().map(|injected| injected.silence).max().unwrap_or(0);
        let operations: usize = all.iter().map(|injected| injected.operations).sum();
        let _ = writeln!(
            text,
            "| {} | {} | {:.1} s | {:.2} s | {operations} |",
            fault.word(),
            all.len(),
            seconds(broken),
            seconds(silence)
        );
    }
    let _ = writeln!(
        text,
        "\n\"Longest silence\" is the longest stretch in which no operation of any holder was answered, from the fault's beginning until\nholders were answered again.\n"
    );
    let _ = writeln!(text, "| operation | answered | failed | unknown |\n|---|---|---|---|");
    let mut kinds: BTreeMap<&str, [u64; 3]> = BTreeMap::new();
    for operation in &history.operations {
        let kind = match operation.call {
            tenure_checker::Call::Acquire { .. } => "acquire",
            tenure_checker::Call::Release { .. } => "release",
            _ => "guarded write",
        };
        let column = match operation.outcome {
            Outcome::Answered(_) => 0,
            Outcome::Failed => 1,
            Outcome::Unknown => 2,
        };
        kinds.entry(kind).or_default()[column] += 1;
    }
    for (kind, [answered, failed, unknown]) in kinds {
        let _ = writeln!(text, "| {kind} | {answered} | {failed} | {unknown} |");
    }
    let refused = history.fence_steps.iter().filter(|step| !step.accepted).count();
    let lost = history.sessions.iter().filter(|session| session.lost).count();
    let _ = writeln!(
        text,
        "\n{} permits; {} writes judged by the fence, {refused} of them refused as stale; {} sessions, {lost} of them ended by the store; {} lines cut short.",
        history.permits.len(),
        history.fence_steps.len(),
        history.sessions.len(),
        ran.unreadable
    );
    text
}

/// The picture: faults above, permits below, one lane each.
pub fn svg(ran: &Ran, history: &History) -> String {
    const WIDTH: f64 = 1400.0;
    const LEFT: f64 = 330.0;
    const LANE: f64 = 18.0;
    let scale = (WIDTH - LEFT - 10.0) / (ran.until - ran.from).max(1) as f64;
    let x = |at: u64| LEFT + at.saturating_sub(ran.from) as f64 * scale;
    let mut lanes = String::new();
    let mut y = 30.0;
    let bar = |lanes: &mut String, y: f64, from: u64, until: u64, fill: &str, title: &str| {
        let width = (until.saturating_sub(from) as f64 * scale).max(1.0);
        let _ = writeln!(
            lanes,
            r#"<rect x="{:.1}" y="{:.1}" width="{width:.1}" height="{:.1}" fill="{fill}"><title>{title}</title></rect>"#,
            x(from),
            y + 2.0,
            LANE - 4.0
        );
    };
    let label = |lanes: &mut String, y: f64, text: &str| {
        let _ = writeln!(lanes, r#"<text x="4" y="{:.1}">{text}</text>"#, y + LANE - 5.0);
    };
    for fault in Fault::ALL {
        label(&mut lanes, y, fault.word());
        for injected in ran.faults.iter().filter(|injected| injected.fault == *fault) {
            let title = format!("{:.1} s", seconds(injected.until - injected.from));
            bar(&mut lanes, y, injected.from, injected.until, "#c0392b", &title);
        }
        y += LANE;
    }
    y += LANE / 2.0;
    let resources: std::collections::BTreeSet<_> =
        history.permits.iter().map(|permit| &permit.resource).collect();
    for resource in resources {
        label(&mut lanes, y, &format!("permits of {resource}, a colour for each token"));
        for permit in history.permits.iter().filter(|permit| permit.resource == *resource) {
            let fill = format!("hsl({},60%,45%)", permit.token.wrapping_mul(137) % 360);
            let title = format!("token {}, process {}", permit.token, permit.process);
            bar(&mut lanes, y, permit.from, permit.until, &fill, &title);
        }
        y += LANE;
    }
    label(&mut lanes, y, "stale writes that the fence refused");
    for step in history.fence_steps.iter().filter(|step| !step.accepted) {
        bar(&mut lanes, y, step.at, step.at, "#8e44ad", &format!("token {}", step.token));
    }
    y += LANE;
    label(&mut lanes, y, "operations answered, in each half second");
    let mut buckets: BTreeMap<u64, u64> = BTreeMap::new();
    for operation in &history.operations {
        if matches!(operation.outcome, Outcome::Answered(_)) {
            *buckets.entry(operation.ended.saturating_sub(ran.from) / 500_000).or_default() += 1;
        }
    }
    let most = buckets.values().copied().max().unwrap_or(1) as f64;
    for (bucket, many) in buckets {
        let height = 3.0 * LANE * many as f64 / most;
        let _ = writeln!(
            lanes,
            r##"<rect x="{:.1}" y="{:.1}" width="{:.2}" height="{height:.1}" fill="#2ecc71"><title>{many}</title></rect>"##,
            x(ran.from + bucket * 500_000),
            y + 3.0 * LANE - height,
            (500_000.0 * scale).max(1.0)
        );
    }
    let height = y + 3.5 * LANE;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<text x=\"4\" y=\"16\" font-size=\"13\">{} nodes, {} holders, {:.0} s</text>\n{lanes}</svg>\n",
        ran.nodes,
        ran.holders,
        seconds(ran.until - ran.from)
    )
}
