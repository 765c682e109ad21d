//! Histograms that each task fills on its own and that are merged at the end, and the time window in which
//! operations count.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::histogram::Histogram;
use crate::plan::Plan;
use crate::process::Usage;
use crate::report::{Latency, Report, round};

/// The span of time that is measured.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Nothing before this counts.
    pub from: Instant,
    /// Nothing after this counts, and clients stop.
    pub until: Instant,
}

impl Window {
    /// A window that opens after the plan's warm-up.
    pub fn of(plan: &Plan) -> Window {
        let from = Instant::now() + plan.warm_up;
        Window { from, until: from + plan.duration }
    }

    /// Whether an operation with this start and end counts.
    pub fn counts(&self, started: Instant, ended: Instant) -> bool {
        started >= self.from && ended <= self.until
    }
}

/// What one task has seen.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Latencies in microseconds.
    pub histogram: Histogram,
    /// What was done: as many as latencies, unless one latency stands for several operations.
    pub operations: u64,
    /// What failed.
    pub errors: u64,
}

impl Tally {
    /// One operation that took so long.
    pub fn add(&mut self, took: Duration) {
        self.add_many(took, 1);
    }

    /// One latency that stands for several operations.
    pub fn add_many(&mut self, took: Duration, operations: u64) {
        self.histogram.record(took.as_micros() as u64);
        self.operations += operations;
    }

    /// Takes another one in.
    pub fn merge(&mut self, other: &Tally) {
        self.histogram.add(&other.histogram);
        self.operations += other.operations;
        self.errors += other.errors;
    }
}

/// What the processes had used at one moment.
#[derive(Clone, Copy)]
pub struct Reading {
    at: Instant,
    servers: Usage,
    driver: Usage,
}

impl Reading {
    /// Now.
    pub fn now(plan: &Plan) -> Reading {
        Reading { at: Instant::now(), servers: Usage::of(&plan.server_pids), driver: Usage::own() }
    }

    /// Fills in what lies between two readings, and what was done meanwhile.
    pub fn fill(&self, end: &Reading, plan: &Plan, tally: &Tally, report: &mut Report) {
        let seconds = (end.at - self.at).as_secs_f64();
        report.seconds = round(seconds);
        report.operations = tally.operations;
        report.errors = tally.errors;
        report.per_second = round(tally.operations as f64 / seconds);
        report.latency = Latency::of(&tally.histogram);
        report.driver_cpu_seconds = (end.driver.cpu - self.driver.cpu).as_secs_f64();
        if !plan.server_pids.is_empty() {
            let cpu = end.servers.cpu.saturating_sub(self.servers.cpu).as_secs_f64();
            report.server_cpu_seconds = Some(cpu);
            report.server_memory_bytes = Some(end.servers.memory_bytes);
            if cpu > 0.0 {
                report.operations_per_cpu_second = Some(round(tally.operations as f64 / cpu));
            }
        }
    }
}

/// The longest time in which nobody got anything done.
pub struct Gaps {
    window: Window,
    seen: Mutex<(Instant, Duration)>,
}

impl Gaps {
    /// Nothing seen yet.
    pub fn new(window: Window) -> Gaps {
        Gaps { window, seen: Mutex::new((window.from, Duration::ZERO)) }
    }

    /// Somebody got something done at this moment.
    pub fn done(&self, at: Instant) {
        let mut seen = self.seen.lock().expect("no holder of this lock panics");
        if at < self.window.from {
            return;
        }
        let gap = at.saturating_duration_since(seen.0);
        *seen = (seen.0.max(at), seen.1.max(gap));
    }

    /// The longest so far; what lies open counts up to the window's end.
    pub fn longest(&self) -> Duration {
        let seen = self.seen.lock().expect("no holder of this lock panics");
        seen.1.max(self.window.until.saturating_duration_since(seen.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_that_never_closes_counts_to_the_end() {
        let from = Instant::now();
        let at = |ms| from + Duration::from_millis(ms);
        let gaps = Gaps::new(Window { from, until: at(1_000) });
        gaps.done(at(100));
        gaps.done(at(400));
        assert_eq!(gaps.longest(), Duration::from_millis(600), "from 400 ms to the end");
        gaps.done(at(990));
        assert_eq!(gaps.longest(), Duration::from_millis(590));
        // Two tasks may hand in their times in the wrong order.
        gaps.done(at(985));
        assert_eq!(gaps.longest(), Duration::from_millis(590));
    }

    #[test]
    fn tallies_add_up() {
        let (mut all, mut one) = (Tally::default(), Tally::default());
        one.add(Duration::from_millis(2));
        one.add_many(Duration::from_millis(4), 100);
        all.merge(&one);
        all.merge(&one);
        assert_eq!((all.operations, all.histogram.len()), (202, 4));
    }
}
