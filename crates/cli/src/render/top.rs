//! `top`: one screen of everything. Takes two looks at the cluster and gives text; what it shows per second is what lies
//! between the two.

use std::time::Duration;

use serde::Serialize;
use tenure_wire::json::{ClusterStatus, Lease};

use super::paint::{Form, Paint};
use super::table::Table;
use super::words::{brief, count, span};

/// How long a bar is.
const BAR: usize = 10;
/// What the columns beside names and holders take, bars included.
const FIXED: usize = 44;

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

/// One screen: at most `height` lines, names cut so that lines are about `width` wide.
pub fn render(
    glance: &Glance,
    since: Option<(&Glance, Duration)>,
    height: usize,
    width: usize,
    paint: Paint,
) -> String {
    let mut text = heading(&glance.cluster, paint);
    if let Some(numbers) = &glance.numbers {
        let before = since.and_then(|(before, passed)| Some((before.numbers?, passed)));
        text += &traffic(numbers, before, paint);
    }
    text.push('\n');
    text += &nodes(&glance.cluster, paint);
    text.push('\n');
    text += &leases(glance, width, paint);
    text.lines().take(height.saturating_sub(1)).map(|line| format!("{line}\n")).collect()
}

fn heading(cluster: &ClusterStatus, paint: Paint) -> String {
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
        .map(|left| paint.warn(&format!("  restored: grants nothing for {}", span(left))));
    format!(
        "{} {}  {health}  {leader}  {answer} of {} answer{}\n{}  {}  {} in line  revision {}  last token {}  cluster time {}\n",
        paint.strong("tenure"),
        brief(&cluster.cluster, 8),
        count(all as u64, "node", "nodes"),
        restoring.unwrap_or_default(),
        count(cluster.sessions, "session", "sessions"),
        count(cluster.leases, "resource in use", "resources in use"),
        cluster.waiters,
        cluster.revision,
        cluster.last_token,
        span(cluster.cluster_time_us / 1_000),
    )
}

/// What happens, per second where there is something to compare with.
fn traffic(now: &Numbers, before: Option<(Numbers, Duration)>, paint: Paint) -> String {
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
    format!(
        "grants {}  renewals {}  expired {}  refused stale writes {}  near misses {}  dropped {}  expiry late {}\n",
        rate(|numbers| numbers.grants),
        rate(|numbers| numbers.renewals),
        alarming(now.expired),
        alarming(now.refused),
        alarming(now.near_misses),
        short(now.dropped_seconds),
        match now.late_seconds {
            None => "-".to_owned(),
            Some(late) if late.is_infinite() => paint.warn("above all bounds"),
            Some(late) => format!("<= {}", short(late)),
        },
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

fn leases(glance: &Glance, width: usize, paint: Paint) -> String {
    if glance.leases.is_empty() {
        return "nothing is held\n".to_owned();
    }
    let room = width.saturating_sub(FIXED).max(24);
    let (name_room, holder_room) = (room * 3 / 5, room * 2 / 5);
    let mut table = Table::new(&["RESOURCE", "HOLDER", ">TOKEN", ">GEN", "LEFT", "", ">LINE"]);
    for lease in &glance.leases {
        for holder in &lease.holders {
            let name = match holder.slot {
                Some(slot) => format!("{}#{slot}", lease.resource),
                None => lease.resource.clone(),
            };
            let left = match (&holder.notice, holder.lapsed) {
                (Some(why), _) => format!("{} {why}", span(holder.remaining_ms)),
                (None, true) => "lapsed".to_owned(),
                (None, false) => span(holder.remaining_ms),
            };
            table.row([
                brief(&name, name_room),
                brief(&holder.holder, holder_room),
                holder.token.to_string(),
                holder.generation.to_string(),
                bar(holder.remaining_ms, holder.ttl_ms),
                left,
                if lease.waiting == 0 { String::new() } else { lease.waiting.to_string() },
            ]);
        }
    }
    let more =
        if glance.more { paint.faint("and more; name a prefix to see others") + "\n" } else { String::new() };
    table.render(Form::Terminal(paint)) + &more
}

fn bar(left: u64, ttl: u64) -> String {
    let full = (left.min(ttl) as usize * BAR).div_ceil(ttl.max(1) as usize);
    "█".repeat(full) + &"·".repeat(BAR - full)
}

#[cfg(test)]
mod tests;
