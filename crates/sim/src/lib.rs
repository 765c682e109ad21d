//! Whole clusters in one thread from one seed: the shipped server, client library and log, with simulated
//! time, network, disks and randomness.
//!
//! A run contains no lease rule. It injects faults, records what every process observed, and `tenure_checker`
//! judges the record. The same seed records the same lines every time, so a failure is one number to replay.
//! That needs a build with `--cfg tokio_unstable`, as `cargo xtask sim` makes it. Any other build of this
//! crate runs no seed.
//!
//! Start reading at `run.rs`; then `net.rs` and `host.rs` for the simulated world, `workload.rs` for the
//! clients, `faults.rs` for the faults, `operator.rs` for the operator, and `ending.rs` for what is judged.

mod cluster;
mod coverage;
mod damage;
mod dice;
mod ending;
mod faults;
mod host;
mod low_latency;
mod net;
mod operator;
mod record;
mod run;
mod storage;
mod upgrade;
mod workload;

pub use coverage::Coverage;
pub use host::{SEEDED, SIMULATION_THREAD};
pub use run::{Outcome, run_seed, run_upgrade, run_with_packets};
