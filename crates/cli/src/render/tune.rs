//! The five timing numbers as text: what they cost, what is wrong with them, what to choose. It computes only
//! column widths.

mod habits;

use std::time::Duration;

use serde_json::{Value, json};
use tenure_core::{
    Advice, Bounds, BrokenTiming, Change, Consequences, Load, Measured, Spread, Timing, TimingNumbers,
};

use super::paint::{Form, Paint};
use super::table::Table;

pub use habits::{Habit, habits, habits_json};

/// The cells of the longest bar of the chart.
const BAR_CELLS: usize = 24;

/// A length to three digits: `3.33s`, `200ms`, `1.5ms`, `10m`.
fn span(length: Duration) -> String {
    let micros = length.as_micros();
    match micros {
        0 => "0ms".to_owned(),
        1..1_000 => format!("{micros}us"),
        1_000..1_000_000 => scaled(micros, 1_000, "ms"),
        1_000_000..120_000_000 => scaled(micros, 1_000_000, "s"),
        120_000_000..7_200_000_000 => scaled(micros, 60_000_000, "m"),
        _ => scaled(micros, 3_600_000_000, "h"),
    }
}

/// `value / unit` with as many decimals as make three digits, without needless zeros.
fn scaled(value: u128, unit: u128, name: &str) -> String {
    let decimals = match value / unit {
        0..10 => 2,
        10..100 => 1,
        _ => 0,
    };
    let text = format!("{:.decimals$}", value as f64 / unit as f64);
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{name}")
}

/// A number with its thousands apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut consequences = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            consequences.push(',');
        }
        consequences.push(digit);
    }
    consequences
}

fn headline(numbers: &TimingNumbers, paint: Paint) -> String {
    let TimingNumbers { ttl, renew_every, rho_ppm, net, sigma } = *numbers;
    format!(
        "{}, R {}, rho {rho_ppm} ppm, net {}, sigma {}",
        paint.strong(&format!("TTL {}", span(ttl))),
        span(renew_every),
        span(net),
        span(sigma)
    )
}

/// Numbers that hold: what they cost and buy, and how that changes with the TTL and with R.
pub fn plan(timing: &Timing, bounds: &Bounds, load: &Load, form: Form) -> String {
    let paint = form.paint();
    let consequences = timing.consequences(load);
    let mut text = headline(&timing.numbers(), paint);
    text += &format!("\n{}: both inequalities and the floor hold\n\n", paint.good("good"));
    let renewals = format!(
        "{} a minute{}; one after another they would take {} of commits, batched they ride in entries that are written anyway",
        grouped(consequences.renewals_per_minute),
        match load.sessions {
            1 => String::new(),
            many => format!(
                " of {} sessions, {} a second",
                grouped(many),
                grouped(consequences.renewals_per_minute.div_ceil(60))
            ),
        },
        span(consequences.committing_per_minute)
    );
    let lines = [
        (
            "usable",
            format!(
                "{} of the TTL ({:.1} %); {} are given up: sigma, and {} for clocks",
                span(consequences.usable),
                consequences.usable_share * 100.0,
                span(consequences.guard),
                span(consequences.drift)
            ),
        ),
        (
            "crash gap",
            format!("at worst {} until the next holder is granted", span(consequences.crash_gap_worst)),
        ),
        ("planned gap", format!("{}: one commit and one message", span(consequences.planned_gap))),
        ("renewals", renewals),
        (
            "attempts",
            format!(
                "{} before the deadline, because an unanswered one is repeated after {}; {} if it were not",
                consequences.attempts_with_retries,
                span(timing.detect()),
                consequences.attempts_without_retries
            ),
        ),
    ];
    for (name, value) in lines {
        text += &format!("{}{value}\n", paint.faint(&format!("{name:<16}")));
    }
    text + "\n" + &curve(timing, bounds, load, form) + "\n" + &cadences(timing, bounds, load, form)
}

/// The trade-off: what a shorter TTL saves after a crash, and what it costs.
fn curve(timing: &Timing, bounds: &Bounds, load: &Load, form: Form) -> String {
    let points = timing.trade_off(bounds);
    let consequences: Vec<Consequences> = points.iter().map(|point| point.consequences(load)).collect();
    let gap_max = consequences.iter().map(|point| point.crash_gap_worst.as_secs_f64()).fold(0.0, f64::max);
    let load_max = consequences.iter().map(|point| point.renewals_per_minute as f64).fold(0.0, f64::max);
    let mut table = Table::new(&["", ">TTL", ">CRASH GAP", "", ">RENEWALS/MIN", "", ">USABLE"]);
    for (point, consequences) in points.iter().zip(&consequences) {
        table.row([
            if point == timing { "*".to_owned() } else { String::new() },
            span(point.ttl()),
            span(consequences.crash_gap_worst),
            bar(consequences.crash_gap_worst.as_secs_f64(), gap_max, form),
            grouped(consequences.renewals_per_minute),
            bar(consequences.renewals_per_minute as f64, load_max, form),
            format!("{:.1} %", consequences.usable_share * 100.0),
        ]);
    }
    table.render(form)
}

/// The same TTL at other cadences: a third is no law.
fn cadences(timing: &Timing, bounds: &Bounds, load: &Load, form: Form) -> String {
    let mut table = Table::new(&["R", ">EVERY", ">RENEWALS/MIN", ">ATTEMPTS", ">WITHOUT RETRIES"]);
    for cadence in timing.cadences(bounds) {
        let consequences = cadence.consequences(load);
        let part = (cadence.ttl().as_secs_f64() / cadence.renew_every().as_secs_f64()).round();
        table.row([
            format!("TTL/{part}"),
            span(cadence.renew_every()),
            grouped(consequences.renewals_per_minute),
            consequences.attempts_with_retries.to_string(),
            consequences.attempts_without_retries.to_string(),
        ]);
    }
    table.render(form)
}

/// A bar on a scale by square roots: lengths from half a second to minutes must all be seen.
fn bar(value: f64, most: f64, form: Form) -> String {
    let part = if most > 0.0 { (value / most).sqrt() } else { 0.0 };
    let cells = ((part * BAR_CELLS as f64).round() as usize).clamp(1, BAR_CELLS);
    match form {
        Form::Terminal(_) => "▇".repeat(cells),
        Form::Plain => "#".repeat(cells),
    }
}

/// Numbers that do not hold: which inequality, with the numbers, and what would be enough.
pub fn broken(numbers: &TimingNumbers, bounds: &Bounds, form: Form) -> String {
    let paint = form.paint();
    let mut lines = vec![headline(numbers, paint)];
    for broken in numbers.broken(bounds) {
        lines.push(format!("{}: {broken}", paint.bad("broken")));
        let changes: Vec<String> =
            numbers.changes(&broken, bounds).iter().map(|change| words_of_change(*change)).collect();
        if !changes.is_empty() {
            lines.push(format!("  enough would be: {}", changes.join("; or ")));
        }
    }
    match numbers.mended(bounds) {
        Some(mended) => lines.push(format!("these fit: {}", headline(&mended.numbers(), paint))),
        None => lines.push(
            "no TTL up to the server's limit fits these bounds: what stands still this long needs fences, not a longer lease".to_owned(),
        ),
    }
    lines.join("\n")
}

fn words_of_change(change: Change) -> String {
    match change {
        Change::TtlAtLeast(ttl) => format!("--ttl {} or longer", flag(ttl)),
        Change::TtlAtMost(ttl) => format!("--ttl {} or shorter", flag(ttl)),
        Change::RenewAtMostEvery(every) => format!("--renew-every {} or shorter", flag(every)),
        Change::SigmaAtLeast(sigma) => format!("--sigma {} or longer", flag(sigma)),
        Change::SigmaAtMost(sigma) => format!("--sigma {} or shorter", flag(sigma)),
        Change::OperationAtMost(max_op) => format!("operations of at most {} (--max-op)", flag(max_op)),
    }
}

/// A length as the command line takes it, exact to the millisecond.
fn flag(length: Duration) -> String {
    let millis = length.as_millis();
    if millis.is_multiple_of(1_000) { format!("{}s", millis / 1_000) } else { format!("{millis}ms") }
}

/// What was measured, and the numbers that follow.
pub fn probed(measured: &Measured, advice: Option<&Advice>, form: Form) -> String {
    let paint = form.paint();
    let mut table = Table::new(&["MEASURED", ">COUNT", ">MEDIAN", ">P99", ">P99.9", ">LONGEST"]);
    for (name, spread) in
        [("round trip", measured.round_trip), ("renewal", measured.renewal), ("woken late by", measured.gap)]
    {
        let Spread { count, median, p99, p999, longest } = spread;
        table.row([name.to_owned(), count.to_string(), span(median), span(p99), span(p999), span(longest)]);
    }
    let mut text = table.render(form) + "\n";
    if let Some(advice) = advice {
        let numbers = advice.timing.numbers();
        text += &format!(
            "recommended: {}, {}, {} (net {}, pause {}: twice the longest seen)\n",
            paint.strong(&format!("TTL {}", span(numbers.ttl))),
            paint.strong(&format!("R {}", span(numbers.renew_every))),
            paint.strong(&format!("sigma {}", span(numbers.sigma))),
            span(numbers.net),
            span(advice.bounds.pause),
        );
        text += &format!(
            "the shortest TTL that fits: {}; with fences on every write it is a matter of liveness alone\n",
            span(advice.shortest.ttl())
        );
    }
    text
}

fn ms(length: Duration) -> Value {
    json!((length.as_secs_f64() * 1_000_000.0).round() / 1_000.0)
}

fn numbers_json(numbers: &TimingNumbers) -> Value {
    json!({
        "ttl_ms": ms(numbers.ttl),
        "renew_every_ms": ms(numbers.renew_every),
        "rho_ppm": numbers.rho_ppm,
        "net_ms": ms(numbers.net),
        "sigma_ms": ms(numbers.sigma),
    })
}

fn consequences_json(timing: &Timing, load: &Load) -> Value {
    let consequences = timing.consequences(load);
    let mut value = numbers_json(&timing.numbers());
    let more = json!({
        "usable_ms": ms(consequences.usable),
        "usable_share": consequences.usable_share,
        "guard_ms": ms(consequences.guard),
        "drift_ms": ms(consequences.drift),
        "crash_gap_worst_ms": ms(consequences.crash_gap_worst),
        "planned_gap_ms": ms(consequences.planned_gap),
        "renewals_per_minute": consequences.renewals_per_minute,
        "committing_per_minute_ms": ms(consequences.committing_per_minute),
        "attempts": consequences.attempts_with_retries,
        "attempts_without_retries": consequences.attempts_without_retries,
    });
    if let (Value::Object(value), Value::Object(more)) = (&mut value, more) {
        value.extend(more);
    }
    value
}

/// The plan as one object.
pub fn plan_json(timing: &Timing, bounds: &Bounds, load: &Load) -> Value {
    let all = |points: Vec<Timing>| -> Value {
        points.iter().map(|point| consequences_json(point, load)).collect()
    };
    json!({
        "holds": true,
        "numbers": numbers_json(&timing.numbers()),
        "plan": consequences_json(timing, load),
        "trade_off": all(timing.trade_off(bounds)),
        "cadences": all(timing.cadences(bounds)),
    })
}

/// What is wrong, as one object.
pub fn broken_json(numbers: &TimingNumbers, bounds: &Bounds) -> Value {
    let broken = numbers.broken(bounds);
    let one = |broken: &BrokenTiming| {
        let changes: Vec<String> =
            numbers.changes(broken, bounds).iter().map(|change| words_of_change(*change)).collect();
        json!({ "message": broken.to_string(), "changes": changes })
    };
    json!({
        "holds": false,
        "numbers": numbers_json(numbers),
        "broken": broken.iter().map(one).collect::<Vec<_>>(),
        "mended": numbers.mended(bounds).map(|mended| numbers_json(&mended.numbers())),
    })
}

/// What was measured, as one object.
pub fn probed_json(measured: &Measured, advice: Option<&Advice>) -> Value {
    let spread = |spread: Spread| {
        json!({
            "count": spread.count,
            "median_ms": ms(spread.median),
            "p99_ms": ms(spread.p99),
            "p999_ms": ms(spread.p999),
            "longest_ms": ms(spread.longest),
        })
    };
    json!({
        "measured": {
            "round_trip": spread(measured.round_trip),
            "renewal": spread(measured.renewal),
            "woken_late_by": spread(measured.gap),
            "commit_ms": ms(measured.commit()),
        },
        "advice": advice.map(|advice| numbers_json(&advice.timing.numbers())),
        "shortest_ttl_ms": advice.map(|advice| ms(advice.shortest.ttl())),
        "pause_ms": advice.map(|advice| ms(advice.bounds.pause)),
    })
}

#[cfg(test)]
mod tests;
