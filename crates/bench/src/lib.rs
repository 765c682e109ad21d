//! Canonical workloads, measured: what `tenure bench` runs.
//!
//! One driver, several stores: a workload is written once against `target::Store` and never asks which store it
//! drives, so that two results differ by the store alone. Closed loops measure capacity; open loops (`rate`) measure what a caller
//! sees at a given load, counted from when an operation was *due*, so that a stall is not hidden by the
//! operations that it kept from starting. Nothing here is used by anything that serves.

mod error;
mod histogram;
mod meter;
mod pace;
pub mod peers;
mod plan;
mod process;
mod progress;
mod report;
mod target;
mod workload;

pub use error::BenchError;
pub use plan::{Plan, TargetKind, Workload};
pub use process::Usage;
pub use progress::Progress;
pub use report::{Latency, Report};
pub use workload::{run, sweep};
