//! The canonical workloads that `tenure bench` runs and measures.
//!
//! One driver, several stores: a workload is written once against `target::Store` and does not know which
//! store it drives, so two results differ by the store alone. Closed loops measure capacity. Open loops
//! (`rate`) measure what a client sees at a given load; latency counts from when an operation was *due*, so a
//! stall is not hidden by the operations that it delayed. Nothing that serves requests uses this crate.

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
