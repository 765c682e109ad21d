//! What applications link to hold leases.
//!
//! This crate decides how a call reaches the store: over which endpoint, how often, for how long, and what
//! the caller may believe when no answer came. It never decides who holds a lease.
//!
//! Start with [`Transport`], which makes calls, and [`CallError`], which says what a failed one has done.

mod endpoints;
mod error;
mod retry;
mod transport;
mod watch;

pub use endpoints::{DEFAULT_PORT, Endpoint, Endpoints, InvalidEndpoint};
pub use error::{CallError, Tried};
pub use retry::Backoff;
pub use transport::{Attempt, Call, Repeat, Transport, random_nonce};
pub use watch::Watch;

/// The messages and clients of the gRPC interface, for callers of [`Transport::call`].
pub use tenure_wire::proto;
/// The words of refusals, and what a failed call has done.
pub use tenure_wire::{ApiError, Code, Effect};
/// What one transmission of a [`Transport::call`] goes over and comes to.
pub use tonic::{Response, Status, transport::Channel};
