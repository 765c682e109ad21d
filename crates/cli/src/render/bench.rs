//! The result of a measurement, in a few lines.

use tenure_bench::Report;

use super::paint::Form;

/// One report: what was done, how much of it, how long each took, what it cost.
pub fn words(report: &Report, form: Form) -> String {
    let paint = form.paint();
    let mut head = format!("{} on {}", report.workload, report.target);
    for (number, one, many) in [
        (report.sessions, "session", "sessions"),
        (report.streams, "stream", "streams"),
        (report.waiters, "waiter", "waiters"),
    ] {
        if let Some(number) = number {
            head += &format!(", {number} {}", if number == 1 { one } else { many });
        }
    }
    if report.sessions.is_none() && report.waiters.is_none() {
        head += &format!(", {} clients over {} connections", report.clients, report.connections);
    }
    if let Some(rate) = report.rate {
        head += &format!(", {rate} due per second");
    }
    let mut lines = vec![paint.strong(&head)];
    let latency = &report.latency;
    lines.push(format!(
        "  {} per second  ({} in {:.1} s{})",
        grouped(report.per_second),
        grouped(report.operations as f64),
        report.seconds,
        if report.errors > 0 { format!(", {} failed", report.errors) } else { String::new() },
    ));
    lines.push(format!(
        "  p50 {}  p90 {}  p99 {}  p99.9 {}  max {}",
        millis(latency.p50_ms),
        millis(latency.p90_ms),
        millis(latency.p99_ms),
        millis(latency.p99_9_ms),
        millis(latency.max_ms),
    ));
    if let (Some(cpu), Some(memory)) = (report.server_cpu_seconds, report.server_memory_bytes) {
        let per = report.operations_per_cpu_second.map(grouped).unwrap_or_else(|| "-".into());
        let memory = memory as f64 / f64::from(1 << 20);
        lines
            .push(format!("  servers: {cpu:.2} s of processor time, {per} per such second, {memory:.0} MiB"));
    }
    for (name, value) in &report.figures {
        lines.push(format!("  {}: {}", name.replace('_', " "), grouped(*value)));
    }
    lines.join("\n")
}

/// Milliseconds with as many digits as mean something.
fn millis(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.2} ms"),
        value if value < 100.0 => format!("{value:.1} ms"),
        value => format!("{value:.0} ms"),
    }
}

/// A number with its thousands apart.
fn grouped(value: f64) -> String {
    if value.abs() < 100.0 && value.fract() != 0.0 {
        return format!("{value:.2}");
    }
    let digits = format!("{:.0}", value.abs());
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if value <= -1.0 { format!("-{out}") } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::Paint;
    use expect_test::expect;
    use tenure_bench::Latency;

    #[test]
    fn a_report_is_a_few_lines() {
        let report = Report {
            target: "tenure".into(),
            workload: "cycles".into(),
            clients: 256,
            connections: 8,
            seconds: 5.0,
            operations: 250_123,
            per_second: 50_024.6,
            latency: Latency { p50_ms: 4.9, p99_ms: 12.3, max_ms: 140.2, ..Latency::default() },
            server_cpu_seconds: Some(4.5),
            operations_per_cpu_second: Some(55_582.9),
            server_memory_bytes: Some(64 << 20),
            figures: [("longest_gap_ms".into(), 12.5)].into(),
            ..Report::default()
        };
        expect![[r#"
            cycles on tenure, 256 clients over 8 connections
              50,025 per second  (250,123 in 5.0 s)
              p50 4.90 ms  p90 0.00 ms  p99 12.3 ms  p99.9 0.00 ms  max 140 ms
              servers: 4.50 s of processor time, 55,583 per such second, 64 MiB
              longest gap ms: 12.50"#]]
        .assert_eq(&words(&report, Form::Terminal(Paint::new(false))));
    }

    #[test]
    fn thousands_stand_apart() {
        for (value, text) in
            [(0.0, "0"), (12.5, "12.50"), (999.0, "999"), (1_000.0, "1,000"), (-1_234_567.0, "-1,234,567")]
        {
            assert_eq!(grouped(value), text);
        }
    }
}
