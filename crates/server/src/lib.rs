//! A node: API handlers, watch streams, metrics, the leader's loop.
//!
//! The server carries: requests into the log, answers out of it, events to those who wait and watch. It
//! never decides who holds a lease; that is `tenure_core`'s machine, and when time has passed is its
//! proposer's. Start reading at [`Node`], then `leader_loop` for how an entry comes about.

mod access;
mod acquire;
mod admin;
mod answer_size;
mod audit;
mod auth;
mod bounded;
#[doc(hidden)]
pub mod call_table;
mod calls;
mod config;
mod connections;
mod context;
mod delivery;
mod descriptors;
mod event_files;
mod event_hub;
mod failure;
mod forward;
mod front;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod grpc;
mod handshakes;
mod http;
mod in_flight;
mod leader_loop;
mod listen;
mod members;
mod metrics;
mod node;
mod probe;
mod replicated;
mod restore;
mod secrets;
mod secure;
mod server;
mod signing;
mod tally;
#[cfg(test)]
mod tests;
mod upgrade;
mod watching;

pub use audit::{AuditFileLimits, AuditOptions, AuditPlace, AuditScope};
pub use auth::{Algorithm, IdentityLimits, JwtIssuer};
pub use config::Config;
pub use event_files::EventFileOptions;
pub use event_hub::{EventHub, Listener};
pub use failure::Failure;
pub use leader_loop::LeaderLoopNumbers;
pub use listen::{Accept, Peer};
pub use node::{Node, NodeStatus};
pub use secure::{ClientPortTls, Reloader};
pub use server::{Server, World};
pub use tally::{Durations, Tally};
/// How connections between nodes are secured.
pub use tenure_replica::PeerSecurity;
