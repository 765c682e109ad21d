//! What leases are used for, one page for each pattern: functions that implement it, and a test of what they
//! promise. Time in the tests is virtual, so a holder that freezes for a minute does so immediately.
//!
//! `cargo run -p tenure-examples --example patterns -- NAME` prints what happens.

pub mod deploy;
pub mod messages;
pub mod pool;
pub mod racers;
pub mod registry;
pub mod saga;
pub mod shards;

/// Whatever went wrong.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
