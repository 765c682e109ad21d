//! TLS of a client: which servers it believes, and what it shows them.

use crate::root::{OPERATOR_VALID, store};
use crate::server::{HTTP_1, HTTP_2};
use crate::{Calendar, Issued, Root, TlsError, provider};
use parking_lot::Mutex;
use rustls::client::{ResolvesClientCert, Resumption, WebPkiServerVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, SignatureScheme};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use tenure_clock::Clock;
use tenure_core::WallTime;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// What is spoken inside of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, which gRPC needs.
    Http2,
}

/// What a client believes, and what it shows. Without an authority nobody is believed.
#[derive(Clone, Debug, Default)]
pub struct ClientTlsOptions {
    /// Certificates of authorities that are believed.
    pub authorities: Vec<CertificateDer<'static>>,
    /// Believed as well; and it signs a certificate for an operator, unless another one is given.
    pub root: Option<Root>,
    /// What is shown to servers that ask.
    pub certificate: Option<Issued>,
    /// The name in the certificate of a server, if it is not that of the endpoint.
    pub server_name: Option<String>,
}

impl ClientTlsOptions {
    /// Believes the authorities in a file.
    pub fn authorities_file(mut self, path: &Path) -> Result<Self, TlsError> {
        let found = crate::root::certificates(&crate::read_open(path)?)?;
        if found.is_empty() {
            return Err(TlsError::content(path.display().to_string(), "it has no certificate"));
        }
        self.authorities.extend(found);
        Ok(self)
    }

    /// Believes the authorities in a PEM text.
    pub fn authorities_text(mut self, text: &[u8]) -> Result<Self, TlsError> {
        self.authorities.extend(crate::root::certificates(text)?);
        Ok(self)
    }

    /// Shows the certificate in one file, with the key in another.
    pub fn certificate_files(mut self, certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let chain = crate::root::certificates(&crate::read_open(certificate)?)?;
        let wrong = |error: rustls::pki_types::pem::Error| {
            TlsError::content(key.display().to_string(), format!("it has no key that can be read: {error}"))
        };
        let key = PrivateKeyDer::from_pem_slice(&crate::read_secret(key)?).map_err(wrong)?;
        self.certificate = Some(Issued { chain, key });
        Ok(self)
    }
}

/// TLS as one client speaks it. Cheap to clone.
#[derive(Clone)]
pub struct ClientTls {
    http_1: Arc<ClientConfig>,
    http_2: Arc<ClientConfig>,
    server_name: Option<ServerName<'static>>,
}

impl ClientTls {
    /// Checks everything that can be checked before a connection is made.
    pub fn new(options: ClientTlsOptions, clock: Arc<dyn Clock>) -> Result<ClientTls, TlsError> {
        let ClientTlsOptions { authorities, root, certificate, server_name } = options;
        let mut believed: RootCertStore = store(&authorities)?;
        if let Some(root) = &root {
            believed.extend(root.store()?.roots);
        }
        if believed.is_empty() {
            return Err(TlsError::content(
                "TLS",
                "no server can be believed without a root or a certificate authority",
            ));
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(believed), provider())
            .build()
            .map_err(|error| TlsError::Library(error.to_string()))?;
        let calendar = Arc::new(Calendar(clock.clone()));
        let builder = ClientConfig::builder_with_details(provider(), calendar)
            .with_protocol_versions(&[&TLS13, &TLS12])?
            .with_webpki_verifier(verifier);
        let mut http_2 = match (certificate, root) {
            (Some(Issued { chain, key }), _) => builder.with_client_auth_cert(chain, key)?,
            (None, Some(root)) => builder.with_client_cert_resolver(Arc::new(Operator::new(root, clock)?)),
            (None, None) => builder.with_no_client_auth(),
        };
        http_2.resumption = Resumption::disabled();
        let mut http_1 = http_2.clone();
        http_2.alpn_protocols = vec![HTTP_2.to_vec()];
        http_1.alpn_protocols = vec![HTTP_1.to_vec()];
        let server_name = server_name.map(|name| named(&name)).transpose()?;
        Ok(ClientTls { http_1: Arc::new(http_1), http_2: Arc::new(http_2), server_name })
    }

    /// Speaks with the server that was connected to at `host`. Time limits are the caller's business.
    pub async fn connect<S>(&self, host: &str, stream: S, protocol: Protocol) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = match &self.server_name {
            Some(name) => name.clone(),
            None => named(host).map_err(io::Error::other)?,
        };
        let config = match protocol {
            Protocol::Http1 => &self.http_1,
            Protocol::Http2 => &self.http_2,
        };
        TlsConnector::from(config.clone()).connect(name, stream).await
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

fn named(host: &str) -> Result<ServerName<'static>, TlsError> {
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    ServerName::try_from(host.to_owned())
        .map_err(|_| TlsError::content(format!("`{host}`"), "no certificate can have this name"))
}

/// Shows a certificate that the root signs for ten minutes. A program that runs for longer connects again, and then it
/// needs another one.
struct Operator {
    root: Root,
    clock: Arc<dyn Clock>,
    current: Mutex<(WallTime, Arc<CertifiedKey>)>,
}

impl Operator {
    fn new(root: Root, clock: Arc<dyn Clock>) -> Result<Self, TlsError> {
        let now = clock.wall();
        let current = Mutex::new((now, Self::sign(&root, now)?));
        Ok(Self { root, clock, current })
    }

    fn sign(root: &Root, now: WallTime) -> Result<Arc<CertifiedKey>, TlsError> {
        let Issued { chain, key } = root.for_operator(now)?;
        Ok(Arc::new(CertifiedKey::from_der(chain, key, &provider())?))
    }
}

impl ResolvesClientCert for Operator {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let now = self.clock.wall();
        let mut current = self.current.lock();
        let age = now.as_unix_millis().abs_diff(current.0.as_unix_millis());
        if u128::from(age) > OPERATOR_VALID.as_millis() / 2 {
            // What was signed before is shown if that fails: the server says then what is wrong with it.
            if let Ok(signed) = Self::sign(&self.root, now) {
                *current = (now, signed);
            }
        }
        Some(current.1.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Operator")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn an_operator_signs_again_before_the_certificate_ends() {
        let clock = Arc::new(tenure_clock::ManualClock::new());
        let root = Root::parse(Root::generate(clock.wall()).expect("a root").as_bytes()).expect("it is read");
        let operator = Operator::new(root, clock.clone()).expect("it signs");
        let shown = || operator.resolve(&[], &[]).expect("a certificate");
        let first = shown();
        clock.advance(Duration::from_secs(299));
        assert!(Arc::ptr_eq(&first, &shown()));
        clock.advance(Duration::from_secs(2));
        assert!(!Arc::ptr_eq(&first, &shown()));
    }

    #[test]
    fn without_an_authority_nobody_is_believed() {
        let clock = Arc::new(tenure_clock::SystemClock);
        let said = ClientTls::new(ClientTlsOptions::default(), clock).expect_err("nobody").to_string();
        assert!(said.contains("root"), "{said}");
    }
}
