//! How a connection to an endpoint is made: over TCP, or over a simulated network. This file does not decide
//! when to connect or how long to try.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::transport::Uri;

use crate::channel::Channel;
use crate::credential::Credential;
use crate::endpoints::Endpoints;

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

/// How a client makes its connections, and what it presents on them.
#[derive(Clone, Default)]
pub(crate) struct Dialer {
    network: Network,
    credential: Option<Credential>,
}

/// The network that a client uses.
#[derive(Clone, Default)]
enum Network {
    #[default]
    Tcp,
    Own(Arc<dyn Dial>),
}

impl Dialer {
    /// Over TCP.
    pub fn tcp(endpoints: &Endpoints) -> Dialer {
        Dialer { network: Network::Tcp, credential: endpoints.credential().cloned() }
    }

    /// Over a network of the caller's.
    pub fn over(dial: Arc<dyn Dial>, endpoints: &Endpoints) -> Dialer {
        Dialer { network: Network::Own(dial), credential: endpoints.credential().cloned() }
    }

    /// Makes a connection.
    pub async fn connect(
        &self,
        endpoint: tonic::transport::Endpoint,
    ) -> Result<Channel, tonic::transport::Error> {
        let made = match &self.network {
            Network::Tcp => endpoint.connect().await,
            Network::Own(dial) => {
                let dial = dial.clone();
                let connector = tower::service_fn(move |uri: Uri| {
                    let dialled = dial.dial(uri.authority().map(ToString::to_string).unwrap_or_default());
                    async move { dialled.await.map(TokioIo::new) }
                });
                endpoint.connect_with_connector(connector).await
            }
        };
        Ok(Channel::new(made?, self.credential.clone()))
    }
}
