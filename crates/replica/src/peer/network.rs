//! The network interface: ordered byte streams to and from addresses.
//!
//! Two implementations: [`TcpNetwork`](super::TcpNetwork), and the one of a simulation.

use crate::NodeId;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::io;
use tokio::io::{AsyncRead, AsyncWrite};

/// An ordered byte stream in both directions.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for T {}

/// Connects and listens. Time limits are the caller's business.
pub trait Network: Send + Sync + 'static {
    /// Opens a stream to the node that listens at `address`.
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Stream>>>;
    /// Begins to listen at `address`.
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Listener>>>;
}

/// A place where streams arrive.
pub trait Listener: Send + 'static {
    /// Waits for the next stream.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Stream>>>;
}

/// Answers requests that another node's server forwarded to this one. Bytes in, bytes out; what they
/// mean is the server's business.
pub trait ForwardHandler: Send + Sync + 'static {
    /// Answers one request.
    fn handle(&self, from: NodeId, request: Bytes) -> BoxFuture<'static, Bytes>;
}

/// No network at all: what a cluster of one needs.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoNetwork;

impl Network for NoNetwork {
    fn connect<'a>(&'a self, _: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }

    fn listen<'a>(&'a self, _: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
}
