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
    Tls(ClientTls),
    /// TLS is wanted, and nobody has said whom to believe.
    Untrusting,
    Own(Arc<dyn Dial>),
}

impl Dialer {
    /// The operating system's network, as these endpoints are reached.
    pub fn of(endpoints: &Endpoints) -> Dialer {
        let network = match (endpoints.tls(), endpoints.is_secured()) {
            (Some(tls), _) => Network::Tls(tls.clone()),
            (None, true) => Network::Untrusting,
            (None, false) => Network::Tcp,
        };
        Dialer { network, credential: endpoints.credential().cloned() }
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
            // A socket on this host needs none.
            Network::Tls(_) | Network::Untrusting if endpoint.uri().scheme_str() == Some("unix") => {
                endpoint.connect().await
            }
            Network::Untrusting => {
                let connector = tower::service_fn(|_: Uri| async {
                    let why = "https:// needs the certificate of an authority: name it with --ca, --root or TENURE_CA";
                    Err::<TokioIo<TcpStream>, _>(io::Error::other(why))
                });
                endpoint.connect_with_connector(connector).await
            }
            Network::Tls(tls) => {
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
