//! What nodes say to each other.

mod network;
mod tcp;

pub use network::{ForwardHandler, Listener, Network, NoNetwork, Stream};
pub use tcp::TcpNetwork;
