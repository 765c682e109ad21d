//! How a connection to an endpoint is made: over TCP, or over a simulated network. This file does not decide
//! when to connect or how long to try.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use tenure_tls::{ClientTls, Protocol};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Uri};

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

/// The network that a client uses.
#[derive(Clone, Default)]
pub(crate) enum Dialer {
    #[default]
    Tcp,
    Tls(ClientTls),
    /// TLS is wanted, and nobody has said whom to believe.
    Untrusting,
    Own(Arc<dyn Dial>),
}

impl Dialer {
    /// The operating system's network, as these endpoints are reached.
    pub fn of(endpoints: &Endpoints) -> Dialer {
        match (endpoints.tls(), endpoints.is_secured()) {
            (Some(tls), _) => Dialer::Tls(tls.clone()),
            (None, true) => Dialer::Untrusting,
            (None, false) => Dialer::Tcp,
        }
    }

    /// Makes a connection.
    pub async fn connect(
        &self,
        endpoint: tonic::transport::Endpoint,
    ) -> Result<Channel, tonic::transport::Error> {
        match self {
            Dialer::Tcp => endpoint.connect().await,
            // A socket on this host needs none.
            Dialer::Tls(_) | Dialer::Untrusting if endpoint.uri().scheme_str() == Some("unix") => {
                endpoint.connect().await
            }
            Dialer::Untrusting => {
                let connector = tower::service_fn(|_: Uri| async {
                    let why = "https:// needs the certificate of an authority: name it with --ca, --root or TENURE_CA";
                    Err::<TokioIo<TcpStream>, _>(io::Error::other(why))
                });
                endpoint.connect_with_connector(connector).await
            }
            Dialer::Tls(tls) => {
                let origin = endpoint.uri().authority().map(|authority| format!("https://{authority}"));
                let endpoint = match origin.and_then(|origin| origin.parse().ok()) {
                    Some(origin) => endpoint.origin(origin),
                    None => endpoint,
                };
                let tls = tls.clone();
                let connector = tower::service_fn(move |uri: Uri| {
                    let tls = tls.clone();
                    async move { secure(&tls, &uri).await.map(TokioIo::new) }
                });
                endpoint.connect_with_connector(connector).await
            }
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

/// A connection inside of TLS.
async fn secure(tls: &ClientTls, uri: &Uri) -> io::Result<impl Connection + use<>> {
    let (host, port) = (uri.host().unwrap_or_default(), uri.port_u16().unwrap_or_default());
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((bare, port)).await?;
    stream.set_nodelay(true)?;
    tls.connect(host, stream, Protocol::Http2).await
}

impl Endpoints {
    /// Connects to one of them as all of them are reached: over TLS, if that is how.
    pub async fn connect(
        &self,
        endpoint: tonic::transport::Endpoint,
    ) -> Result<Channel, tonic::transport::Error> {
        Dialer::of(self).connect(endpoint).await
    }
}
