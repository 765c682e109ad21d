//! The protocol between nodes.
//!
//! Two connections to each peer, opened by the side that sends requests: one for consensus, one for snapshots
//! and forwarded requests, so that bulk data never delays a heartbeat. Each begins with a handshake; every
//! call has a deadline.

mod acknowledged;
mod channel;
mod formation;
mod frame;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handshake;
mod link;
mod load;
mod memory;
mod message;
mod network;
mod pipeline;
mod places;
mod reach;
mod receiving;
mod secure;
mod server;
mod standing;
mod tcp;

pub(crate) use formation::{form, probe};
pub(crate) use handshake::Spoken;
pub use handshake::{Agreed, Versions};
pub(crate) use link::Links;
pub(crate) use memory::Memory;
pub use network::{ForwardHandler, Listener, Network, NoNetwork, Stream};
pub(crate) use reach::watch as watch_reach;
pub use secure::PeerSecurity;
pub(crate) use server::{Host, listen};
pub use tcp::TcpNetwork;
