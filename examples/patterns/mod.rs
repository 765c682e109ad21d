//! What leases are used for, each on a page: functions that do it, and a test that shows what they promise. Time in the
//! tests is virtual, so a holder that freezes for a minute does so at once.
//!
//! `cargo run -p tenure-examples --example patterns -- NAME` tells what happens.

pub mod deploy;
pub mod messages;
pub mod pool;
pub mod racers;
pub mod registry;
pub mod saga;
pub mod shards;

/// Whatever went wrong.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
