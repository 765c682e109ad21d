//! `top`: one screen for the whole cluster. Takes two samples and returns text; rates are the difference
//! between the two.

use std::cmp::Reverse;
use std::time::Duration;

use serde::Serialize;
use tenure_wire::json::{ClusterStatus, Fence, Holder, Lease};

use super::paint::{Form, Paint};
use super::table::Table;
use super::words::{brief, count, span};

/// How long a bar is, and on a narrow screen.
const BAR: usize = 10;
const BAR_NARROW: usize = 6;
/// Below this many columns a screen is narrow: shorter bars, and no generations.
const NARROW: usize = 100;
/// What the columns beside names and holders take, bars included.
const FIXED: usize = 54;
const FIXED_NARROW: usize = 45;

/// The screen, or the part of it that is looked at.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Lines; without a limit everything is shown.
    pub height: Option<usize>,
    /// Columns.
    pub width: usize,
    /// How many leases are scrolled over.
    pub skipped: usize,
    /// Something to be said above all, such as that nobody answers.
    pub trouble: Option<String>,
    /// What keys do, on the last line.
    pub keys: Option<String>,
}

/// Which leases come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// Those with the least left of their TTL.
    #[default]
    Left,
    /// Those that most wait for.
    Waiters,
    /// The newest grants.
    Token,
    /// By name.
    Name,
}

impl Sort {
    /// The one after it, round and round.
    pub fn next(self) -> Sort {
        match self {
            Sort::Left => Sort::Waiters,
            Sort::Waiters => Sort::Token,
            Sort::Token => Sort::Name,
            Sort::Name => Sort::Left,
        }
    }

    /// Its name.
    pub const fn word(self) -> &'static str {
        match self {
            Sort::Left => "left",
            Sort::Waiters => "waiters",
            Sort::Token => "token",
            Sort::Name => "name",
        }
    }
}

/// One look at the cluster.
#[derive(Debug)]
pub struct Glance {
    /// Who is there.
    pub cluster: ClusterStatus,
    /// What is held, the most interesting first.
    pub leases: Vec<Lease>,
    /// There are more than these.
    pub more: bool,
    /// What the node counts, if it said so.
    pub numbers: Option<Numbers>,
}

/// What a node counts, of what it says at `/metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Numbers {
    /// Leases granted, over the cluster's life.
    pub grants: u64,
    /// Renewals answered.
    pub renewals: u64,
    /// Leases that expired.
    pub expired: u64,
    /// Stale writes that fences and registers refused.
    pub refused: u64,
    /// Renewals with less than a quarter of the TTL left.
    pub near_misses: u64,
    /// Seconds counted against nobody, by this node.
    pub dropped_seconds: f64,
    /// Seconds by which 99 of 100 expiries ran late at most; absent before the first.
    pub late_seconds: Option<f64>,
}

impl Numbers {
    /// Reads them from the page; what is not there is zero.
    pub fn read(page: &str) -> Numbers {
        let samples =
            || page.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
        let value = |name: &str| {
            samples()
                .find(|(found, _)| *found == name)
                .and_then(|(_, value)| value.parse::<f64>().ok())
                .unwrap_or(0.0)
        };
        let whole = |name: &str| value(name) as u64;
        let buckets: Vec<(f64, f64)> = samples()
            .filter_map(|(name, count)| {
                let bound =
                    name.strip_prefix("tenure_expiry_lateness_seconds_bucket{le=\"")?.strip_suffix("\"}")?;
                Some((bound.parse().unwrap_or(f64::INFINITY), count.parse().ok()?))
            })
            .collect();
        let all = buckets.last().map_or(0.0, |(_, count)| *count);
        let late =
            buckets.iter().find(|(_, count)| all > 0.0 && *count >= 0.99 * all).map(|(bound, _)| *bound);
        Numbers {
            grants: whole("tenure_grants_total"),
            renewals: whole("tenure_renewals_total"),
            expired: whole("tenure_ends_total{why=\"expired\"}"),
            refused: whole("tenure_fence_refusals_total") + whole("tenure_register_refusals_total"),
            near_misses: whole("tenure_renewal_near_misses_total"),
            dropped_seconds: value("tenure_time_dropped_seconds_total"),
            late_seconds: late,
        }
    }
}

impl Glance {
    /// Puts the most interesting leases first.
    pub fn sort(&mut self, by: Sort) {
        let left = |lease: &Lease| {
            let share = |holder: &Holder| holder.remaining_ms.saturating_mul(1_000) / holder.ttl_ms.max(1);
            lease.holders.iter().map(share).min()
        };
        // By name first, so that equals keep their places from look to look.
        self.leases.sort_by(|a, b| a.resource.cmp(&b.resource));
        match by {
            Sort::Left => self.leases.sort_by_key(left),
            Sort::Waiters => self.leases.sort_by_key(|lease| Reverse(lease.waiting)),
            Sort::Token => self.leases.sort_by_key(|lease| Reverse(lease.token)),
            Sort::Name => {}
        }
    }

    /// How many rows the leases take: one for each holder.
    pub fn rows(&self) -> usize {
        self.leases.iter().map(|lease| lease.holders.len()).sum()
    }
}

/// One screen. No line is wider than the frame, and there are no more than it has.
pub fn render(glance: &Glance, since: Option<(&Glance, Duration)>, frame: &Frame, paint: Paint) -> String {
    let mut head = String::new();
    if let Some(trouble) = &frame.trouble {
        head += &format!("{}\n", paint.bad(trouble));
    }
    head += &heading(&glance.cluster, frame.width, paint);
    if let Some(numbers) = &glance.numbers {
        let before = since.and_then(|(before, passed)| Some((before.numbers?, passed)));
        head += &traffic(numbers, before, frame.width, paint);
    }
    head.push('\n');
    head += &nodes(&glance.cluster, paint);
    head.push('\n');
    let all = glance.rows();
    // The heading of the table and the last line of the screen have their places, too.
    let room = frame.height.map(|height| height.saturating_sub(head.lines().count() + 2));
    let skipped = frame.skipped.min(all.saturating_sub(room.unwrap_or(all)));
    let shown = room.unwrap_or(all).min(all - skipped);
    let mut text = head + &leases(glance, skipped, shown, frame.width, paint);
    if let Some(keys) = &frame.keys {
        let range = match (all, glance.more) {
            (0, _) => String::new(),
            (_, false) => format!("{}-{} of {all}  ", skipped + 1, skipped + shown),
            (_, true) => format!("{}-{} of the first {all}  ", skipped + 1, skipped + shown),
        };
        let lines = frame.height.map_or(0, |height| height.saturating_sub(1));
        // At the foot of the screen, wherever the table ends.
        let kept: Vec<&str> = text.lines().take(lines).collect();
        let blank = lines.saturating_sub(kept.len());
        text = kept.join("\n") + &"\n".repeat(blank + 1) + &paint.faint(&format!("{range}{keys}"));
    } else if glance.more {
        text += &(paint.faint("and more; name a prefix to see others") + "\n");
    }
    text.lines().map(|line| clip(line, frame.width)).collect::<Vec<_>>().join("\n") + "\n"
}

/// As many signs as a terminal shows, whatever colours are in between.
fn visible(text: &str) -> usize {
    clipped(text, usize::MAX).1
}

/// The line without what does not fit; its colours end with it.
fn clip(line: &str, width: usize) -> String {
    clipped(line, width).0
}

fn clipped(line: &str, width: usize) -> (String, usize) {
    let (mut kept, mut seen, mut escape) = (String::new(), 0, false);
    for sign in line.chars() {
        if escape || sign == '\u{1b}' {
            escape = sign != 'm';
            kept.push(sign);
        } else if seen < width {
            seen += 1;
            kept.push(sign);
        }
    }
    (kept, seen)
}

/// Phrases in as many lines as they need.
fn flow(phrases: &[String], width: usize) -> String {
    let mut text = String::new();
    let mut column = 0;
    for phrase in phrases.iter().filter(|phrase| !phrase.is_empty()) {
        let length = visible(phrase);
        if column > 0 && column + 2 + length > width {
            text.push('\n');
            column = 0;
        } else if column > 0 {
            text.push_str("  ");
            column += 2;
        }
        text.push_str(phrase);
        column += length;
    }
    text + "\n"
}

fn heading(cluster: &ClusterStatus, width: usize, paint: Paint) -> String {
    let answer = cluster.nodes.iter().filter(|node| node.reachable).count();
    let all = cluster.nodes.len();
    let health = match cluster.leader {
        None => paint.bad("no leader: nothing is granted or expired"),
        Some(_) if answer < all => paint.warn("degraded"),
        Some(_) if !cluster.fault_tolerant => paint.warn("not fault-tolerant"),
        Some(_) => paint.good("healthy"),
    };
    let leader = cluster.leader.map_or_else(
        || format!("term {}", cluster.term),
        |leader| format!("node {leader} leads in term {}", cluster.term),
    );
    let restoring = cluster
        .restoring_ms
        .map(|left| paint.warn(&format!("restored: grants nothing for {}", span(left))))
        .unwrap_or_default();
    let name = format!("{} {}", paint.strong("tenure"), brief(&cluster.cluster, 8));
    let answer = format!("{answer} of {} answer", count(all as u64, "node", "nodes"));
    flow(&[name, health, leader, answer, restoring], width)
        + &flow(
            &[
                count(cluster.sessions, "session", "sessions"),
                count(cluster.leases, "resource in use", "resources in use"),
                format!("{} queued", cluster.waiters),
                format!("revision {}", cluster.revision),
                format!("last token {}", cluster.last_token),
                format!("cluster time {}", span(cluster.cluster_time_us / 1_000)),
            ],
            width,
        )
}

/// What happens, per second where there is something to compare with.
fn traffic(now: &Numbers, before: Option<(Numbers, Duration)>, width: usize, paint: Paint) -> String {
    let rate = |of: fn(&Numbers) -> u64| match before {
        Some((before, passed)) if !passed.is_zero() => {
            format!("{:.1}/s", of(now).saturating_sub(of(&before)) as f64 / passed.as_secs_f64())
        }
        _ => of(now).to_string(),
    };
    let alarming = |number: u64| {
        let text = number.to_string();
        if number > 0 { paint.warn(&text) } else { text }
    };
    let short = |seconds: f64| span((seconds * 1_000.0).round() as u64);
    let late = match now.late_seconds {
        None => "-".to_owned(),
        Some(late) if late.is_infinite() => paint.warn("above all bounds"),
        Some(late) => format!("<= {}", short(late)),
    };
    flow(
        &[
            format!("grants {}", rate(|numbers| numbers.grants)),
            format!("renewals {}", rate(|numbers| numbers.renewals)),
            format!("expired {}", alarming(now.expired)),
            format!("refused stale writes {}", alarming(now.refused)),
            format!("near misses {}", alarming(now.near_misses)),
            format!("dropped {}", short(now.dropped_seconds)),
            format!("expiry late {late}"),
        ],
        width,
    )
}

fn nodes(cluster: &ClusterStatus, paint: Paint) -> String {
    let furthest = cluster.nodes.iter().filter_map(|node| node.last_log).max().unwrap_or(0);
    let number = |index: Option<u64>| index.map_or_else(|| "-".to_owned(), |index| index.to_string());
    let mut table = Table::new(&[">NODE", "ROLE", "HEARD", ">LOG", ">BEHIND", "CLIENTS"]);
    for node in &cluster.nodes {
        table.row([
            node.node.to_string(),
            node.role.clone(),
            if node.reachable { "yes" } else { "no" }.to_owned(),
            number(node.last_log),
            number(node.last_log.map(|index| furthest - index)),
            brief(&node.client_address, 40),
        ]);
    }
    table.render(Form::Terminal(paint))
}

fn leases(glance: &Glance, skipped: usize, shown: usize, width: usize, paint: Paint) -> String {
    if glance.leases.is_empty() {
        return "nothing is held\n".to_owned();
    }
    let narrow = width < NARROW;
    let (fixed, length) = if narrow { (FIXED_NARROW, BAR_NARROW) } else { (FIXED, BAR) };
    let room = width.saturating_sub(fixed).max(24);
    let (name_room, holder_room) = (room * 3 / 5, room * 2 / 5);
    let wide = ["RESOURCE", "HOLDER", ">TOKEN", ">GEN", "LEFT", "", ">LINE", ">FENCES"];
    let heading: Vec<&'static str> = wide.into_iter().filter(|title| !(narrow && *title == ">GEN")).collect();
    let mut table = Table::new(&heading);
    let rows = glance.leases.iter().flat_map(|lease| lease.holders.iter().map(move |holder| (lease, holder)));
    for (lease, holder) in rows.skip(skipped).take(shown) {
        let name = match holder.slot {
            Some(slot) => format!("{}#{slot}", lease.resource),
            None => lease.resource.clone(),
        };
        let left = match (&holder.notice, holder.lapsed) {
            (Some(why), _) => format!("{} {why}", span(holder.remaining_ms)),
            (None, true) => "lapsed".to_owned(),
            (None, false) => span(holder.remaining_ms),
        };
        let generation = (!narrow).then(|| holder.generation.to_string());
        let mut cells =
            vec![brief(&name, name_room), brief(&holder.holder, holder_room), holder.token.to_string()];
        cells.extend(generation);
        cells.extend([
            bar(holder.remaining_ms, holder.ttl_ms, length),
            left,
            if lease.waiting == 0 { String::new() } else { lease.waiting.to_string() },
            armed(lease, holder),
        ]);
        table.row(cells);
    }
    table.render(Form::Terminal(paint))
}

/// How many of its fences have installed this holder's token, or a newer one.
fn armed(lease: &Lease, holder: &Holder) -> String {
    if lease.fences.is_empty() {
        return "-".to_owned();
    }
    let has = |fence: &&Fence| {
        fence.armed.iter().any(|armed| armed.slot == holder.slot && armed.token >= holder.token)
    };
    format!("{}/{}", lease.fences.iter().filter(has).count(), lease.fences.len())
}

fn bar(left: u64, ttl: u64, length: usize) -> String {
    let full = (left.min(ttl) as usize * length).div_ceil(ttl.max(1) as usize);
    "█".repeat(full) + &"·".repeat(length - full)
}

#[cfg(test)]
mod tests;
