//! The result of a run, as it is printed and stored.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;
use crate::plan::Plan;

/// A distribution of latencies, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// How many were measured.
    pub count: u64,
    /// The mean.
    pub mean_ms: f64,
    /// Half were faster.
    pub p50_ms: f64,
    /// Nine of ten were faster.
    pub p90_ms: f64,
    /// 99 of a hundred were faster.
    pub p99_ms: f64,
    /// 999 of a thousand were faster.
    pub p99_9_ms: f64,
    /// The slowest.
    pub max_ms: f64,
}

impl Latency {
    /// The summary of a histogram of microseconds.
    pub(crate) fn of(histogram: &Histogram) -> Latency {
        let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1_000.0;
        Latency {
            count: histogram.len(),
            mean_ms: round(histogram.mean() / 1_000.0),
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            p99_ms: at(0.99),
            p99_9_ms: at(0.999),
            max_ms: histogram.max() as f64 / 1_000.0,
        }
    }
}

/// What one run found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What was driven.
    pub target: String,
    /// What was done.
    pub workload: String,
    /// Clients at once.
    pub clients: usize,
    /// Connections that they shared.
    pub connections: usize,
    /// Sessions, where the workload has many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions: Option<usize>,
    /// Streams over which these were renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<usize>,
    /// Waiters in one queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiters: Option<usize>,
    /// Operations that were due per second; absent in a closed loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// How long was measured.
    pub seconds: f64,
    /// What was done in that time.
    pub operations: u64,
    /// What failed.
    pub errors: u64,
    /// Operations per second.
    pub per_second: f64,
    /// How long each took: from when it was due in an open loop, from when it was sent in a closed one.
    pub latency: Latency,
    /// Processor time of the store's processes in that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_cpu_seconds: Option<f64>,
    /// Operations per second of processor time of the store's processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operations_per_cpu_second: Option<f64>,
    /// Memory of the store's processes at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_memory_bytes: Option<u64>,
    /// Processor time of the driver in that time.
    pub driver_cpu_seconds: f64,
    /// What else this workload finds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, f64>,
}

impl Report {
    /// A report that says of what it is one.
    pub(crate) fn of(plan: &Plan) -> Report {
        Report {
            target: plan.target.name().into(),
            workload: plan.workload.name().into(),
            clients: plan.clients,
            connections: plan.connections.min(plan.clients),
            rate: plan.rate,
            ..Report::default()
        }
    }

    /// Notes a figure of this workload.
    pub(crate) fn figure(&mut self, name: &str, value: f64) {
        self.figures.insert(name.into(), round(value));
    }
}

/// Three digits behind the point are more than anything here is worth.
pub(crate) fn round(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}
