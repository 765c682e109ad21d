//! The conformance suite of the SDKs: what a holder in any language must do, generated from the Rust holder,
//! and black-box scenarios against real clusters.
//!
//! It decides nothing about leases. `vectors.rs` runs one step of a vector against `tenure_core::Holder`;
//! `stories.rs` reads the hand-written stories and `traces.rs` draws the random ones; both become the golden
//! files in `sdk/conformance/vectors`. `agent.rs` drives an SDK's agent program, `record.rs` turns what it
//! reports into a history for the checker. `sdk/conformance/README.md` specifies all of it.

mod agent;
mod record;
mod stories;
mod traces;
mod vectors;

pub use agent::{Agent, AgentError, Said, Sdk, boot_nanos, settled};
pub use record::Recorder;
pub use stories::stories;
pub use traces::{SEED, TRACES, traces};
pub use vectors::{Replay, replay, timing_lines};
