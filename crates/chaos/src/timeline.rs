//! The timeline of a run as a timeline: who held what, which requests were answered, and which faults were
//! active.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use tenure_checker::{History, Outcome};

use crate::nemesis::Fault;
use crate::report::{Ran, seconds};

const WIDTH: f64 = 1500.0;
const LEFT: f64 = 430.0;
const LANE: f64 = 17.0;

/// Draws line after line, downwards.
struct Sheet {
    from: u64,
    scale: f64,
    y: f64,
    drawn: String,
    /// The last bar's right end in this lane: what would not be seen is not drawn.
    reached: f64,
}

impl Sheet {
    fn lane(&mut self, label: &str) {
        self.y += LANE;
        self.reached = 0.0;
        let label = label.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(self.drawn, r#"<text x="4" y="{:.0}">{label}</text>"#, self.y + LANE - 5.0);
    }

    fn x(&self, at: u64) -> f64 {
        LEFT + at.saturating_sub(self.from) as f64 * self.scale
    }

    /// A bar in this lane. Bars come in the order of their beginnings.
    fn bar(&mut self, from: u64, until: u64, fill: &str, title: &str) {
        let (left, right) = (self.x(from), self.x(until).min(WIDTH - 5.0));
        if right <= self.reached || left > WIDTH - 5.0 {
            return;
        }
        let right = right.max(left + 0.7);
        self.reached = right;
        let _ = writeln!(
            self.drawn,
            r#"<rect x="{left:.1}" y="{:.0}" width="{:.1}" height="{:.0}" fill="{fill}"><title>{title}</title></rect>"#,
            self.y + 2.0,
            right - left,
            LANE - 4.0
        );
    }
}

/// The timeline.
pub fn svg(ran: &Ran, history: &History) -> String {
    let scale = (WIDTH - LEFT - 10.0) / (ran.until - ran.from).max(1) as f64;
    let mut sheet = Sheet { from: ran.from, scale, y: 10.0, drawn: String::new(), reached: 0.0 };
    for fault in Fault::ALL {
        sheet.lane(fault.word());
        for one in ran.faults.iter().filter(|one| one.fault == *fault) {
            let beside =
                one.beside.map_or(String::new(), |other| format!(", together with: {}", other.word()));
            let title = format!("{}, {:.1} s{beside}", one.whom, seconds(one.until - one.from));
            let fill = if one.beside.is_none() { "#c0392b" } else { "#e08e0b" };
            sheet.bar(one.from, one.until, fill, &title);
        }
    }
    sheet.y += LANE / 2.0;
    let resources: BTreeSet<_> = history.permits.iter().map(|permit| &permit.resource).collect();
    for resource in resources {
        sheet.lane(&format!("permits of {resource}, a colour for each token"));
        // All permits of one lease as one bar.
        let mut leases: BTreeMap<u64, (u64, u64, u32)> = BTreeMap::new();
        for permit in history.permits.iter().filter(|permit| permit.resource == *resource) {
            let lease = leases.entry(permit.token).or_insert((permit.from, permit.until, permit.process));
            *lease = (lease.0.min(permit.from), lease.1.max(permit.until), lease.2);
        }
        for (token, (from, until, process)) in leases {
            let fill = format!("hsl({},60%,45%)", token.wrapping_mul(137) % 360);
            sheet.bar(from, until, &fill, &format!("token {token}, process {process}"));
        }
    }
    sheet.lane("rows of a stale token that the ledger refused");
    let mut refused: Vec<_> = history.fence_steps.iter().filter(|step| !step.accepted).collect();
    refused.sort_by_key(|step| step.at);
    for step in refused {
        sheet.bar(step.at, step.at, "#8e44ad", &format!("{} token {}", step.scope, step.token));
    }
    let answered = history.operations.iter().filter(|op| matches!(op.outcome, Outcome::Answered(_)));
    columns(&mut sheet, ran, "operations answered", "#2e9e5b", answered.map(|op| op.ended));
    let rows = history.fence_steps.iter().filter(|step| step.accepted).map(|step| step.at);
    columns(&mut sheet, ran, "rows written", "#2c7fb8", rows);
    let height = sheet.y + 1.5 * LANE;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<text x=\"4\" y=\"16\" font-size=\"13\">{} nodes, {:.0} s, seed {}: red alone, orange two at a time</text>\n{}</svg>\n",
        ran.nodes,
        seconds(ran.until - ran.from),
        ran.seed,
        sheet.drawn
    )
}

/// How often something happened, as columns of two pixels.
fn columns(sheet: &mut Sheet, ran: &Ran, label: &str, fill: &str, moments: impl Iterator<Item = u64>) {
    let wide = ((2.0 / sheet.scale) as u64).max(1);
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    for at in moments.filter(|at| (ran.from..ran.until).contains(at)) {
        *counts.entry((at - ran.from) / wide).or_default() += 1;
    }
    sheet.lane(&format!("{label}, in each {:.1} s", seconds(wide)));
    let most = counts.values().copied().max().unwrap_or(1) as f64;
    let tall = 2.5 * LANE;
    for (column, many) in counts {
        let height = tall * many as f64 / most;
        let _ = writeln!(
            sheet.drawn,
            r#"<rect x="{:.1}" y="{:.1}" width="2" height="{height:.1}" fill="{fill}"/>"#,
            LEFT + 2.0 * column as f64,
            sheet.y + tall - height
        );
    }
    sheet.y += tall - LANE / 2.0;
}
