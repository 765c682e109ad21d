//! Whole clusters in one thread from one seed: the shipped server, client library, log and batcher, in a world whose time,
//! network, disks and chance are made up.
//!
//! A run decides nothing about leases. It breaks things, writes down what everybody saw, and lets `tenure_checker`
//! judge. The same seed writes the same lines, twice; a failure is one number to replay. That takes a build
//! with `--cfg tokio_unstable`, as `cargo xtask sim` makes it. Any other build of this crate runs no seed.
//!
//! Start reading at `run.rs`; then `net.rs` and `host.rs` for the world, `workload.rs` for its people, `faults.rs` for what
//! happens to them, `operator.rs` for whoever has to look after it all, and `ending.rs` for what is judged.

mod cluster;
mod coverage;
mod damage;
mod dice;
mod ending;
mod faults;
mod host;
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
