//! TLS under the connections between nodes: whether it is spoken, and what the other side has proved by it.
//!
//! The network below knows nothing of it, and the handshake above is the same with and without. What a proof is worth
//! is decided in `standing.rs`.

use super::network::{Network, Stream};
use std::io;
use tenure_tls::{PeerProof, PeerTls, Prefixed};

/// How connections between nodes are secured.
#[derive(Clone, Debug, Default)]
pub enum PeerSecurity {
    /// Not at all.
    #[default]
    Off,
    /// Both are accepted, so that a running cluster can change over. TLS is tried first, and plaintext only with a node
    /// that hangs up on it. Until every node requires TLS, the cluster is as open as without.
    Both(PeerTls),
    /// By TLS alone.
    Require(PeerTls),
}

impl PeerSecurity {
    /// TLS, if it is spoken.
    pub(crate) fn tls(&self) -> Option<&PeerTls> {
        match self {
            Self::Off => None,
            Self::Both(tls) | Self::Require(tls) => Some(tls),
        }
    }

    /// Connects to a node, and what that has proved.
    pub(crate) async fn connect(
        &self,
        network: &dyn Network,
        address: &str,
    ) -> io::Result<(Box<dyn Stream>, Option<PeerProof>)> {
        let stream = network.connect(address).await?;
        let Some(tls) = self.tls() else { return Ok((stream, None)) };
        match tls.connect(stream).await {
            Ok((stream, proof)) => Ok((Box::new(stream), Some(proof))),
            Err(error) if matches!(self, Self::Both(_)) && hung_up(&error) => {
                Ok((network.connect(address).await?, None))
            }
            Err(error) => Err(error),
        }
    }

    /// Goes on with a connection that has arrived, and what the other side has proved.
    pub(crate) async fn accept(
        &self,
        stream: Box<dyn Stream>,
    ) -> io::Result<(Box<dyn Stream>, Option<PeerProof>)> {
        match self {
            Self::Off => Ok((stream, None)),
            Self::Both(tls) => {
                // No greeting in plaintext begins with this byte: that would be its length.
                let stream = Prefixed::peek(stream, 1).await?;
                if !stream.begins_tls() {
                    return Ok((Box::new(stream), None));
                }
                let (stream, proof) = tls.accept(stream).await?;
                Ok((Box::new(stream), Some(proof)))
            }
            Self::Require(tls) => {
                let (stream, proof) = tls.accept(stream).await?;
                Ok((Box::new(stream), Some(proof)))
            }
        }
    }
}

/// Whether the other side has ended the connection without a word, as a node does that does not speak TLS. One that
/// does says what it objects to.
fn hung_up(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe)
}
