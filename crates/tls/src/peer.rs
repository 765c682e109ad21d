//! TLS between nodes: version 1.3 only, both sides show a certificate, and both certificates are signed by the root.
//!
//! What is verified: the signature of the root, that the other side has the key, and that the certificate is that of a
//! node. What it proves is a [`PeerProof`]; whether that node is a member with that key is for the membership to say.
//!
//! What is not judged: dates. A cluster whose certificates have run out must go on: its nodes are known by their keys,
//! a removed one is refused by its number, and stopping every lease because of a date would be the greater damage. Nor
//! may a node with a wrong calendar clock fall out of its cluster; nothing else in it depends on that clock.

use crate::certificate::{Parsed, key_hash};
use crate::{KeyHash, NodeKey, Root, TlsError, provider};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, PeerMisbehaved,
    RootCertStore, ServerConfig, SignatureScheme,
};
use std::fmt;
use std::io;
use std::sync::Arc;
use tenure_core::WallTime;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

/// The protocol's name inside of TLS: a connection for another protocol does not come to an end here by accident.
const PROTOCOL: &[u8] = b"tenure-peer";

/// What the other side of a connection has proved: that it has a key, and the root's word that it is a node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerProof {
    /// The node in its certificate.
    pub node: u64,
    /// The hash of its key.
    pub key: KeyHash,
}

/// Both sides of connections between nodes, as one node makes them.
#[derive(Clone)]
pub struct PeerTls {
    acceptor: TlsAcceptor,
    connector: TlsConnector,
    own: PeerProof,
}

impl PeerTls {
    /// For a node with this number and key.
    pub fn new(root: &Root, node: u64, key: &NodeKey, now: WallTime) -> Result<PeerTls, TlsError> {
        let issued = root.for_node(node, key, now)?;
        let verifier = Arc::new(Verifier::new(root)?);
        let mut accept = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier.clone())
            .with_single_cert(issued.chain.clone(), issued.key.clone_key())?;
        accept.alpn_protocols = vec![PROTOCOL.to_vec()];
        // Each connection proves itself: one that was resumed would not.
        accept.session_storage = Arc::new(NoServerSessionStorage {});
        accept.send_tls13_tickets = 0;
        let mut connect = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_auth_cert(issued.chain, issued.key)?;
        connect.alpn_protocols = vec![PROTOCOL.to_vec()];
        connect.resumption = Resumption::disabled();
        connect.enable_sni = false;
        Ok(PeerTls {
            acceptor: Arc::new(accept).into(),
            connector: Arc::new(connect).into(),
            own: PeerProof { node, key: key.hash() },
        })
    }

    /// What this node proves to others.
    pub fn own(&self) -> PeerProof {
        self.own
    }

    /// The side that was connected to. Time limits are the caller's business.
    pub async fn accept<S>(&self, stream: S) -> io::Result<(server::TlsStream<S>, PeerProof)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let stream = self.acceptor.accept(stream).await?;
        let proof = proof(stream.get_ref().1.peer_certificates())?;
        Ok((stream, proof))
    }

    /// The side that connects. Time limits are the caller's business.
    pub async fn connect<S>(&self, stream: S) -> io::Result<(client::TlsStream<S>, PeerProof)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        // Nodes are known by number, which stands in the certificate. The name is neither sent nor compared.
        let name = ServerName::try_from("node").map_err(io::Error::other)?;
        let stream = self.connector.connect(name, stream).await?;
        let proof = proof(stream.get_ref().1.peer_certificates())?;
        Ok((stream, proof))
    }
}

impl fmt::Debug for PeerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerTls").field("own", &self.own).finish_non_exhaustive()
    }
}

fn proof(certificates: Option<&[CertificateDer<'_>]>) -> io::Result<PeerProof> {
    let missing = || io::Error::new(io::ErrorKind::InvalidData, "the other side showed no certificate");
    let certificate = certificates.and_then(<[_]>::first).ok_or_else(missing)?;
    let node = node_of(certificate).map_err(io::Error::other)?;
    Ok(PeerProof { node, key: key_hash(certificate).map_err(io::Error::other)? })
}

fn node_of(certificate: &CertificateDer<'_>) -> Result<u64, Error> {
    let unreadable = |_| Error::InvalidCertificate(CertificateError::BadEncoding);
    let names = Parsed::new(certificate).map_err(unreadable)?.names();
    // A client's certificate may be signed by the root as well. It is no node for that.
    names.node().ok_or(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
}

/// Believes certificates of nodes that the root has signed, whatever their dates.
#[derive(Debug)]
struct Verifier {
    roots: RootCertStore,
    /// Verifies the certificate of the side that connects; the one of the other side is verified by a function.
    connecting: Arc<dyn ClientCertVerifier>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    fn new(root: &Root) -> Result<Self, TlsError> {
        let roots = root.store()?;
        let connecting = WebPkiClientVerifier::builder_with_provider(Arc::new(roots.clone()), provider())
            .build()
            .map_err(|error| TlsError::Library(error.to_string()))?;
        Ok(Self { roots, connecting, algorithms: provider().signature_verification_algorithms })
    }

    /// The moment at which a certificate is verified: its own first. So its dates are read, and decide nothing.
    fn moment(certificate: &CertificateDer<'_>, between: &[CertificateDer<'_>]) -> Result<UnixTime, Error> {
        node_of(certificate)?;
        // The root signs for nodes itself. Others would have dates of their own.
        if !between.is_empty() {
            return Err(Error::InvalidCertificate(CertificateError::UnknownIssuer));
        }
        let unreadable = |_| Error::InvalidCertificate(CertificateError::BadEncoding);
        Ok(Parsed::new(certificate).map_err(unreadable)?.begins())
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // Whoever connects has one certificate, and our root's name is nobody's business.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let moment = Self::moment(end_entity, intermediates)?;
        self.connecting.verify_client_cert(end_entity, &[], moment)
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let moment = Self::moment(end_entity, intermediates)?;
        let parsed = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, &[], moment, self.algorithms.all)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        ClientCertVerifier::verify_tls12_signature(self, message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        ClientCertVerifier::verify_tls13_signature(self, message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    const NOW: WallTime = WallTime::from_unix_millis(1_800_000_000_000);

    fn root() -> Root {
        Root::parse(Root::generate(NOW).expect("a root").as_bytes()).expect("it is read")
    }

    fn node(root: &Root, node: u64, now: WallTime) -> PeerTls {
        PeerTls::new(root, node, &NodeKey::generate().expect("a key"), now).expect("it is made")
    }

    /// What the one who accepts, and the one who connects, learn of each other.
    async fn meet(accepts: &PeerTls, connects: &PeerTls) -> (io::Result<PeerProof>, io::Result<PeerProof>) {
        let (left, right) = duplex(16 << 10);
        let accepted = async {
            let (mut stream, proof) = accepts.accept(left).await?;
            stream.write_all(b"x").await?;
            stream.flush().await?;
            Ok(proof)
        };
        let connected = async {
            let (mut stream, proof) = connects.connect(right).await?;
            // In TLS 1.3 the side that connects is done before its certificate was looked at.
            stream.read_exact(&mut [0]).await?;
            Ok(proof)
        };
        tokio::join!(accepted, connected)
    }

    #[tokio::test]
    async fn both_sides_prove_number_and_key() {
        let root = root();
        let (one, two) = (node(&root, 1, NOW), node(&root, 2, NOW));
        let (seen_by_one, seen_by_two) = meet(&one, &two).await;
        assert_eq!(seen_by_one.expect("it is believed"), two.own());
        assert_eq!(seen_by_two.expect("it is believed"), one.own());
    }

    #[tokio::test]
    async fn dates_are_not_judged() {
        let root = root();
        // Made by machines whose clocks are decades apart: at any moment one of the certificates is not valid.
        let early = node(&root, 1, WallTime::from_unix_millis(86_400_000));
        let late = node(&root, 2, WallTime::from_unix_millis(4_000_000_000_000));
        let (seen, also_seen) = meet(&early, &late).await;
        assert_eq!(
            (seen.expect("it is believed"), also_seen.expect("it is believed")),
            (late.own(), early.own())
        );
    }

    #[tokio::test]
    async fn another_root_is_not_believed_by_either_side() {
        let (ours, theirs) = (root(), root());
        let (seen, also_seen) = meet(&node(&ours, 1, NOW), &node(&theirs, 2, NOW)).await;
        assert!(seen.is_err() && also_seen.is_err());
    }

    #[tokio::test]
    async fn while_the_root_is_replaced_both_are_believed() {
        let (old, new) = (Root::generate(NOW).expect("a root"), Root::generate(NOW).expect("a root"));
        let first_old = Root::parse(format!("{}{}", *old, *new).as_bytes()).expect("it is read");
        let first_new = Root::parse(format!("{}{}", *new, *old).as_bytes()).expect("it is read");
        let (seen, also_seen) = meet(&node(&first_old, 1, NOW), &node(&first_new, 2, NOW)).await;
        assert_eq!((seen.expect("believed").node, also_seen.expect("believed").node), (2, 1));
    }

    /// A certificate that the root has signed for something else than a node.
    async fn as_client(
        accepts: &PeerTls,
        issued: crate::Issued,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> io::Error {
        let verifier = Arc::new(Verifier::new(&root()).expect("a verifier"));
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(versions)
            .expect("versions")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Everybody(verifier)))
            .with_client_auth_cert(issued.chain, issued.key)
            .expect("a certificate");
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        let (left, right) = duplex(16 << 10);
        let connect = async {
            let connector = TlsConnector::from(Arc::new(config));
            let _ = connector.connect(ServerName::try_from("node").expect("a name"), right).await;
        };
        let (accepted, ()) = tokio::join!(accepts.accept(left), connect);
        accepted.expect_err("it is refused")
    }

    #[derive(Debug)]
    struct Everybody(Arc<Verifier>);

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
            ServerCertVerifier::supported_verify_schemes(&*self.0)
        }
    }

    #[tokio::test]
    async fn a_certificate_of_the_root_that_is_no_nodes_is_refused() {
        let root = root();
        let one = node(&root, 1, NOW);
        let operator = root.for_operator(NOW).expect("a certificate");
        as_client(&one, operator, &[&TLS13]).await;
        let server = root.for_server(&["localhost".into()], NOW).expect("a certificate");
        as_client(&one, server, &[&TLS13]).await;
    }

    #[tokio::test]
    async fn an_older_version_is_refused() {
        let root = root();
        let key = NodeKey::generate().expect("a key");
        let issued = root.for_node(2, &key, NOW).expect("a certificate");
        let error = as_client(&node(&root, 1, NOW), issued, &[&rustls::version::TLS12]).await;
        assert!(error.to_string().contains("Tls12NotOffered"), "{error}");
    }
}
