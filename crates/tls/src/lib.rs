//! TLS for both ports: the root of a cluster, the certificates that it signs, and what is checked of those that others
//! present.
//!
//! This crate decides whether a certificate is believed and what it proves. It never decides what the one who presents it
//! may do: who is a member is the membership's business, and what a client may do that of the policies. It opens no
//! socket; streams are handed to it.

mod certificate;
mod client;
mod error;
mod files;
mod node_key;
mod peer;
mod prefixed;
mod root;
mod server;

pub use certificate::{CertificateNames, KeyHash, NODE_URI, OPERATOR_URI};
pub use client::{ClientTls, ClientTlsOptions, Protocol};
pub use error::TlsError;
pub use files::{read_open, read_secret};
pub use node_key::NodeKey;
pub use peer::{PeerProof, PeerTls};
pub use prefixed::Prefixed;
pub use root::{Issued, Root};
pub use server::{CertificateSource, PairFiles, Reload, Secured, ServerTls, VerifiedClient};

pub use tokio_rustls::server::TlsStream;

use rustls::crypto::CryptoProvider;
use rustls::time_provider::TimeProvider;
use rustls_pki_types::UnixTime;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tenure_clock::Clock;

/// The cryptography, named wherever rustls asks: a process that links another one as well has no default.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The clock by which rustls judges dates: ours.
pub(crate) struct Calendar(pub Arc<dyn Clock>);

impl TimeProvider for Calendar {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_millis(self.0.wall().as_unix_millis())))
    }
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Calendar")
    }
}
