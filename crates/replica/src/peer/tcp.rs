//! TCP, without delaying small messages.

use super::network::{Listener, Network, Stream};
use futures_util::future::BoxFuture;
use std::io;
use tokio::net::{TcpListener, TcpStream};

/// The operating system's TCP.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpNetwork;

impl Network for TcpNetwork {
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            // An append waits for its answer: holding it back for a fuller packet only costs time.
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }

    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        Box::pin(async move { Ok(Box::new(TcpListener::bind(address).await?) as Box<dyn Listener>) })
    }
}

impl Listener for TcpListener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let (stream, _) = TcpListener::accept(self).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }
}
