//! How a connection to an endpoint is made: over TCP, or over a simulated network. This file does not decide
//! when to connect or how long to try.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::transport::{Channel, Uri};

/// An ordered byte stream in both directions.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Connection for T {}

/// A connection that is being made.
pub type Dialled = Pin<Box<dyn Future<Output = io::Result<Box<dyn Connection>>> + Send>>;

/// A network of the caller's own, for simulation.
pub trait Dial: Send + Sync + 'static {
    /// Begins to connect to `host:port`. Time limits are the caller's business.
    fn dial(&self, address: String) -> Dialled;
}

/// The network that a client uses.
#[derive(Clone, Default)]
pub(crate) enum Dialer {
    #[default]
    Tcp,
    Own(Arc<dyn Dial>),
}

impl Dialer {
    /// Makes a connection.
    pub async fn connect(
        &self,
        endpoint: tonic::transport::Endpoint,
    ) -> Result<Channel, tonic::transport::Error> {
        match self {
            Dialer::Tcp => endpoint.connect().await,
            Dialer::Own(dial) => {
                let dial = dial.clone();
                let connector = tower::service_fn(move |uri: Uri| {
                    let dialled = dial.dial(uri.authority().map(ToString::to_string).unwrap_or_default());
                    async move { dialled.await.map(TokioIo::new) }
                });
                endpoint.connect_with_connector(connector).await
            }
        }
    }
}
