//! A node: API handlers, watch streams, metrics, the leader's loop.
//!
//! The server carries: requests into the log, answers out of it, events to those who wait and watch. It
//! never decides who holds a lease; that is `tenure_core`'s machine, and when time has passed is its
//! office's. Start reading at [`Node`], then `desk` for how an entry comes about.

mod config;
mod desk;
mod failure;
mod forward;
mod hub;
mod node;
mod probe;
mod replicated;
mod tally;

pub use config::Config;
pub use desk::DeskNumbers;
pub use failure::Failure;
pub use hub::{Hub, Listener};
pub use node::{Node, NodeStatus};
pub use tally::{Durations, Tally};
