//! What applications link to hold leases.
//!
//! This crate decides how a call reaches the store: over which endpoint, how often, for how long, and what
//! the caller may believe when no answer came. It never decides who holds a lease.
//!
//! Start with [`Client`]: it opens [`Session`]s, a session acquires [`Lease`]s, and a lease gives
//! [`Permit`]s, each at the moment of use. What a holder may believe is decided by `tenure_core::Holder`;
//! `driver.rs` drives it and `renewer.rs` keeps it alive, on a thread of its own. Below that, [`Transport`]
//! makes single calls and [`CallError`] says what a failed one has done.

mod acquire;
mod chance;
mod changes;
mod channel;
mod client;
mod credential;
mod dial;
mod election;
mod embedded;
mod endpoints;
mod error;
mod execution;
mod fences;
mod kinds;
mod lease;
mod members;
mod net;
mod registers;
mod renewer;
mod retry;
mod session;
mod session_driver;
mod store;
pub mod testing;
mod transport;
mod watch;
mod watchdog;

pub use acquire::{AcquireError, AcquireRequest};
pub use changes::Changes;
pub use channel::Channel;
pub use client::{Client, EnvironmentError};
pub use credential::{Credential, CredentialError};
pub use dial::{Connection, Dial, Dialled};
pub use election::{Candidate, Election, ElectionError, Leader, Leadership, Observer};
pub use embedded::Embedded;
pub use endpoints::{DEFAULT_PORT, Endpoint, Endpoints, InvalidEndpoint};
pub use error::{CallError, Tried};
pub use execution::{Execution, Tasks};
pub use fences::TakeOverError;
pub use kinds::{RwLease, Semaphore};
pub use lease::{
    DrainError, Lease, LeaseStatus, Permit, PermitError, ReadPermit, StatusChanges, StopSignal, TransferError,
};
pub use registers::{GuardedRegisters, Registers};
pub use retry::Backoff;
pub use session::{OpenError, Session, SessionRequest};
pub use store::{
    Callback, LeaseInfo, OpenSession, Opened, Route, SessionEvent, SessionListener, Store, TimeBase, Watcher,
};
pub use transport::{Attempt, Call, Repeat, Transport, random_nonce};
pub use watch::Watch;
pub use watchdog::HardStop;

/// What an open sent to an agent carries beside it if the session is its opener's alone.
pub const WITH_PROCESS: &str = "tenure-with-process";

/// The words of the holder's side: what a lease is, why it is in doubt, how it is held, how it ended, and the
/// numbers it lives by.
pub use tenure_core::{
    Bounds, BrokenTiming, EndReason, Jeopardy, LeaseEnd, LeaseState, Mode, NoPermit, Suspect, Timing,
    TimingNumbers,
};
/// TLS, for [`Endpoints::secured`].
pub use tenure_tls::{ClientTls, ClientTlsOptions, TlsError};
/// The messages and clients of the gRPC interface, for callers of [`Transport::call`].
pub use tenure_wire::proto;
/// The words of refusals, and what a failed call has done.
pub use tenure_wire::{About, ApiError, Code, Effect};
/// The text of a credential, and the file that it is kept in.
pub use tenure_wire::{Bearer, CredentialFile, InvalidCredentialFile};
/// What one transmission of a [`Transport::call`] comes to.
pub use tonic::{Response, Status};

/// The README's Rust, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
