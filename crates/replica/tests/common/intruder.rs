//! Somebody at the peer port who speaks TLS with whatever certificate it has, and believes everybody.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme, SupportedProtocolVersion};
use std::io;
use std::sync::Arc;
use tenure_replica::{Network, Stream};
use tenure_tls::Issued;
use tokio_rustls::TlsConnector;

/// Connects with this certificate, or with none.
pub async fn connect(
    network: &dyn Network,
    address: &str,
    certificate: Option<Issued>,
    version: &'static SupportedProtocolVersion,
) -> io::Result<Box<dyn Stream>> {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[version])
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Everybody));
    let config = match certificate {
        Some(Issued { chain, key }) => builder.with_client_auth_cert(chain, key).expect("a certificate"),
        None => builder.with_no_client_auth(),
    };
    let stream = network.connect(address).await?;
    let name = ServerName::try_from("node").expect("a name");
    Ok(Box::new(TlsConnector::from(Arc::new(config)).connect(name, stream).await?))
}

#[derive(Debug)]
struct Everybody;

impl ServerCertVerifier for Everybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}
