//! What nodes say to each other.

mod link;
mod network;
mod tcp;

pub(crate) use link::Links;
pub use network::{ForwardHandler, Listener, Network, NoNetwork, Stream};
pub use tcp::TcpNetwork;
