//! TLS of the client port: which certificate is presented, and which certificates of clients are believed.
//!
//! A certificate is issued from the root, or read from files. It is replaced while the node runs: an issued one before
//! it ends, one from files when these change. What cannot be used is not taken: the one before it stays. Certificates of
//! clients are asked for and never required; one that is shown and not believed ends the connection.

use crate::certificate::Parsed;
use crate::files::{Seen, read_open, read_secret};
use crate::root::{SERVER_VALID, certificates, store};
use crate::{Calendar, Issued, Root, TlsError, provider};
use parking_lot::{Mutex, RwLock};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tenure_clock::Clock;
use tenure_core::WallTime;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The names of HTTP/2 and HTTP/1.1 inside of TLS.
pub(crate) const HTTP_2: &[u8] = b"h2";
pub(crate) const HTTP_1: &[u8] = b"http/1.1";

/// A certificate and its key, in files.
#[derive(Clone, Debug)]
pub struct PairFiles {
    /// The certificate, and behind it those between it and its root.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// Where the certificate of a client port comes from, and who is believed there.
#[derive(Clone, Debug, Default)]
pub struct CertificateSource {
    /// Signs the certificate, if no files are given; its certificates of clients are believed.
    pub root: Option<Root>,
    /// The names and addresses in the certificate that it signs.
    pub names: Vec<String>,
    /// The certificate, if it is not to be signed by the root.
    pub files: Option<PairFiles>,
    /// Further authorities whose certificates of clients are believed.
    pub client_authorities: Option<PathBuf>,
}

/// What came of looking at the files again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// There was nothing to be done.
    Unchanged,
    /// Another certificate is presented from now on.
    Replaced,
}

/// A connection's certificate that was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedClient {
    /// The certificate itself.
    pub certificate: CertificateDer<'static>,
    /// Whether the root has signed it. An operator's word counts only then: other authorities may write what they like.
    pub by_root: bool,
}

/// A connection of a client, with what TLS has found out about it.
pub struct Secured<S> {
    /// The stream inside.
    pub stream: TlsStream<S>,
    /// Who it is, if it has shown a certificate.
    pub client: Option<VerifiedClient>,
    /// Whether both have agreed to speak HTTP/2; none if they have not spoken of it.
    pub http_2: Option<bool>,
}

/// TLS as one client port speaks it.
pub struct ServerTls {
    source: CertificateSource,
    clock: Arc<dyn Clock>,
    in_use: RwLock<InUse>,
    /// What the files looked like when they were last tried, and what they look like since: files that are being
    /// replaced one after the other are not tried in between.
    tried: Mutex<Tried>,
}

#[derive(Clone)]
struct InUse {
    config: Arc<ServerConfig>,
    /// Verifies what the root alone has signed; none if nobody else is believed.
    by_root: Option<Arc<dyn ClientCertVerifier>>,
    ends: WallTime,
    /// Whether the certificate presented is signed by the root.
    chains: bool,
    /// The certificate presented.
    leaf: CertificateDer<'static>,
}

#[derive(Default)]
struct Tried {
    last: Vec<Seen>,
    seen: Option<Vec<Seen>>,
}

impl ServerTls {
    /// Reads or issues the certificate.
    pub fn new(source: CertificateSource, clock: Arc<dyn Clock>) -> Result<ServerTls, TlsError> {
        let tried = Mutex::new(Tried { last: look(&source), seen: None });
        let in_use = RwLock::new(InUse::new(&source, &clock, false)?);
        Ok(ServerTls { source, clock, in_use, tried })
    }

    /// When the certificate that is presented ends.
    pub fn ends(&self) -> WallTime {
        self.in_use.read().ends
    }

    /// Looks whether there is another certificate to present. Called now and then; `now` takes in whatever there is
    /// without waiting for the files to be at rest.
    pub fn reload(&self, now: bool) -> Result<Reload, TlsError> {
        let due = match &self.source.files {
            Some(_) => self.have_changed(now),
            None => {
                let left = self.ends().as_unix_millis().saturating_sub(self.clock.wall().as_unix_millis());
                let last_third = Duration::from_millis(left) < SERVER_VALID / 3;
                self.have_changed(now) || last_third
            }
        };
        if !(due || now) {
            return Ok(Reload::Unchanged);
        }
        let must_chain = self.in_use.read().chains && self.source.root.is_some();
        let replacement = InUse::new(&self.source, &self.clock, must_chain)?;
        *self.in_use.write() = replacement;
        Ok(Reload::Replaced)
    }

    /// Whether the files have changed since they were last tried, and have been at rest since they were last seen.
    fn have_changed(&self, now: bool) -> bool {
        let seen = look(&self.source);
        let mut tried = self.tried.lock();
        if tried.last == seen {
            tried.seen = None;
            return false;
        }
        if now || tried.seen.as_ref() == Some(&seen) {
            *tried = Tried { last: seen, seen: None };
            return true;
        }
        tried.seen = Some(seen);
        false
    }

    /// Connects to the very port that presents this certificate, as the node itself does. Nobody else is believed, and
    /// no authority is asked: the certificate may be signed by one that this node does not know.
    pub async fn dial<S>(&self, stream: S) -> io::Result<tokio_rustls::client::TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let itself = Itself { leaf: self.in_use.read().leaf.clone() };
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(itself))
            .with_no_client_auth();
        config.alpn_protocols = vec![HTTP_1.to_vec()];
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// Speaks with a client that has connected. Time limits are the caller's business.
    pub async fn accept<S>(&self, stream: S) -> io::Result<Secured<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let InUse { config, by_root, .. } = self.in_use.read().clone();
        let stream = TlsAcceptor::from(config).accept(stream).await?;
        let (_, session) = stream.get_ref();
        let http_2 = session.alpn_protocol().map(|protocol| protocol == HTTP_2);
        let shown = session.peer_certificates().and_then(|chain| Some((chain.first()?, &chain[1..])));
        let client = shown.map(|(certificate, between)| {
            // Judged once more, by the root alone: it was verified already, by the root or by another.
            let now = unix(self.clock.wall());
            let by_root = match (&self.source.root, by_root) {
                (None, _) => false,
                (Some(_), None) => true,
                (Some(_), Some(root)) => root.verify_client_cert(certificate, between, now).is_ok(),
            };
            VerifiedClient { certificate: certificate.clone().into_owned(), by_root }
        });
        Ok(Secured { stream, client, http_2 })
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").field("source", &self.source).finish_non_exhaustive()
    }
}

impl InUse {
    fn new(source: &CertificateSource, clock: &Arc<dyn Clock>, must_chain: bool) -> Result<InUse, TlsError> {
        let now = clock.wall();
        let roots = source.root.as_ref().map(Root::store).transpose()?;
        let (issued, what) = match (&source.files, &source.root) {
            (Some(files), _) => (read_pair(files)?, files.certificate.display().to_string()),
            (None, Some(root)) => (root.for_server(&source.names, now)?, "the certificate".to_owned()),
            (None, None) => {
                return Err(TlsError::content("the client port", "it has no certificate and no root"));
            }
        };
        let leaf = Parsed::new(&issued.chain[0])?;
        if !leaf.is_valid_at(now) {
            return Err(TlsError::content(
                what,
                "it is not valid today: look at its dates, and at this machine's clock",
            ));
        }
        let (ends, presented) = (leaf.ends(), issued.chain[0].clone());
        let chains = roots.as_ref().is_some_and(|roots| is_signed_by(&issued.chain, roots, now));
        if must_chain && !chains {
            return Err(TlsError::content(
                what,
                "the root has not signed it, as it has signed the one in use",
            ));
        }
        // This compares the key with the certificate.
        let certified = CertifiedKey::from_der(issued.chain, issued.key, &provider())?;
        let mut believed = roots.clone().unwrap_or_else(RootCertStore::empty);
        let mut others = 0;
        if let Some(path) = &source.client_authorities {
            let found = certificates(&read_open(path)?)?;
            if found.is_empty() {
                return Err(TlsError::content(path.display().to_string(), "it has no certificate"));
            }
            others = found.len();
            believed.extend(store(&found)?.roots);
        }
        let by_root = match &roots {
            Some(roots) if others > 0 => Some(verifier(roots.clone())?),
            _ => None,
        };
        let builder = ServerConfig::builder_with_details(provider(), Arc::new(Calendar(clock.clone())))
            .with_protocol_versions(&[&TLS13, &TLS12])?;
        let builder = match believed.is_empty() {
            true => builder.with_no_client_auth(),
            false => builder.with_client_cert_verifier(verifier(believed)?),
        };
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        config.alpn_protocols = vec![HTTP_2.to_vec(), HTTP_1.to_vec()];
        // A connection that was resumed would show a certificate that nobody judges again.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(InUse { config: Arc::new(config), by_root, ends, chains, leaf: presented })
    }
}

/// Believes one certificate.
#[derive(Debug)]
struct Itself {
    leaf: CertificateDer<'static>,
}

impl ServerCertVerifier for Itself {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match *end_entity == self.leaf {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(rustls::CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

fn verifier(roots: RootCertStore) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
        .allow_unauthenticated()
        .build()
        .map_err(|error| TlsError::Library(error.to_string()))
}

fn read_pair(files: &PairFiles) -> Result<Issued, TlsError> {
    let chain = certificates(&read_open(&files.certificate)?)?;
    if chain.is_empty() {
        return Err(TlsError::content(files.certificate.display().to_string(), "it has no certificate"));
    }
    let wrong = |error: rustls::pki_types::pem::Error| {
        TlsError::content(files.key.display().to_string(), format!("it has no key that can be read: {error}"))
    };
    let key = PrivateKeyDer::from_pem_slice(&read_secret(&files.key)?).map_err(wrong)?;
    Ok(Issued { chain, key })
}

fn is_signed_by(chain: &[CertificateDer<'static>], roots: &RootCertStore, now: WallTime) -> bool {
    let Ok(leaf) = ParsedCertificate::try_from(&chain[0]) else { return false };
    let algorithms = provider().signature_verification_algorithms;
    verify_server_cert_signed_by_trust_anchor(&leaf, roots, &chain[1..], unix(now), algorithms.all).is_ok()
}

fn unix(at: WallTime) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_millis(at.as_unix_millis()))
}

fn look(source: &CertificateSource) -> Vec<Seen> {
    let pair = source.files.iter().flat_map(|files| [&files.certificate, &files.key]);
    pair.chain(&source.client_authorities).map(|path| Seen::of(path)).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{ClientTls, ClientTlsOptions, Protocol};
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use tenure_clock::SystemClock;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    pub fn pem(label: &str, der: &[u8]) -> String {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = format!("-----BEGIN {label}-----\n");
        for line in der.chunks(48) {
            for three in line.chunks(3) {
                let bits = three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte))
                    << (8 * (3 - three.len()));
                for digit in 0..4 {
                    let at = bits >> (18 - 6 * digit) & 63;
                    text.push(if digit <= three.len() { DIGITS[at as usize] as char } else { '=' });
                }
            }
            text.push('\n');
        }
        text + &format!("-----END {label}-----\n")
    }

    fn root() -> Root {
        Root::parse(Root::generate(SystemClock.wall()).expect("a root").as_bytes()).expect("it is read")
    }

    struct Files(tempfile::TempDir);

    impl Files {
        fn new() -> Files {
            Files(tempfile::tempdir().expect("a directory"))
        }

        fn pair(&self) -> PairFiles {
            PairFiles { certificate: self.0.path().join("cert.pem"), key: self.0.path().join("key.pem") }
        }

        fn write(&self, issued: &Issued) {
            self.write_certificate(issued);
            self.write_key(issued);
        }

        fn write_certificate(&self, issued: &Issued) {
            fs::write(self.pair().certificate, pem("CERTIFICATE", &issued.chain[0])).expect("it is written");
        }

        fn write_key(&self, issued: &Issued) {
            let path = self.pair().key;
            fs::write(&path, pem("PRIVATE KEY", issued.key.secret_der())).expect("it is written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode is set");
        }
    }

    fn client(root: &Root, certificate: Option<Issued>) -> ClientTls {
        let options = ClientTlsOptions {
            authorities: root.certificates().to_vec(),
            certificate,
            ..ClientTlsOptions::default()
        };
        ClientTls::new(options, Arc::new(SystemClock)).expect("a client")
    }

    /// What the server learns of a client.
    async fn meet(
        server: &ServerTls,
        client: &ClientTls,
        host: &str,
    ) -> io::Result<Secured<tokio::io::DuplexStream>> {
        let (left, right) = duplex(16 << 10);
        let accept = async {
            let mut secured = server.accept(left).await?;
            secured.stream.write_all(b"x").await?;
            secured.stream.flush().await?;
            Ok(secured)
        };
        let connect = async {
            let mut stream = client.connect(host, right, Protocol::Http2).await?;
            stream.read_exact(&mut [0]).await
        };
        let (accepted, connected) = tokio::join!(accept, connect);
        connected?;
        accepted
    }

    fn issuing(root: &Root) -> ServerTls {
        let source = CertificateSource {
            root: Some(root.clone()),
            names: vec!["db-1".into(), "10.0.0.7".into()],
            ..CertificateSource::default()
        };
        ServerTls::new(source, Arc::new(SystemClock)).expect("a server")
    }

    #[tokio::test]
    async fn a_certificate_of_the_root_serves_clients_with_and_without_one() {
        let root = root();
        let server = issuing(&root);
        for host in ["db-1", "10.0.0.7"] {
            let secured = meet(&server, &client(&root, None), host).await.expect("it is served");
            assert_eq!((secured.client, secured.http_2), (None, Some(true)));
        }
        let operator = root.for_operator(SystemClock.wall()).expect("a certificate");
        let shown = operator.chain[0].clone();
        let secured = meet(&server, &client(&root, Some(operator)), "db-1").await.expect("it is served");
        assert_eq!(secured.client, Some(VerifiedClient { certificate: shown, by_root: true }));
    }

    #[tokio::test]
    async fn a_node_reaches_its_own_port_and_takes_no_other_for_it() {
        let root = root();
        let (server, other) = (issuing(&root), issuing(&root));
        for (answers, believed) in [(&server, true), (&other, false)] {
            let (left, right) = duplex(16 << 10);
            let (_, dialled) = tokio::join!(answers.accept(left), server.dial(right));
            assert_eq!(dialled.is_ok(), believed);
        }
    }

    #[tokio::test]
    async fn a_wrong_name_and_another_root_are_not_served_with_trust() {
        let root = root();
        let server = issuing(&root);
        let why =
            meet(&server, &client(&root, None), "db-2").await.err().expect("the name is wrong").to_string();
        assert!(why.contains("NotValidForName") || why.contains("not valid for"), "{why}");
        meet(&server, &client(&self::root(), None), "db-1").await.err().expect("another root");
    }

    #[tokio::test]
    async fn an_expired_certificate_of_a_client_is_refused() {
        let root = root();
        let long_ago = WallTime::from_unix_millis(SystemClock.wall().as_unix_millis() - 3_600_000);
        let expired = root.for_operator(long_ago).expect("a certificate");
        meet(&issuing(&root), &client(&root, Some(expired)), "db-1").await.err().expect("it has expired");
    }

    #[tokio::test]
    async fn an_operator_of_another_authority_is_none_of_the_root() {
        let (root, other) = (root(), root());
        let directory = tempfile::tempdir().expect("a directory");
        let authorities = directory.path().join("ca.pem");
        fs::write(&authorities, pem("CERTIFICATE", &other.certificates()[0])).expect("it is written");
        let source = CertificateSource {
            root: Some(root.clone()),
            names: vec!["db-1".into()],
            client_authorities: Some(authorities),
            ..CertificateSource::default()
        };
        let server = ServerTls::new(source, Arc::new(SystemClock)).expect("a server");
        for (signs, by_root) in [(&root, true), (&other, false)] {
            let operator = signs.for_operator(SystemClock.wall()).expect("a certificate");
            let secured = meet(&server, &client(&root, Some(operator)), "db-1").await.expect("it is served");
            assert_eq!(secured.client.expect("it showed one").by_root, by_root);
        }
    }

    #[tokio::test]
    async fn a_bad_pair_is_not_taken_and_a_good_one_is() {
        let (root, other, files) = (root(), root(), Files::new());
        let names = ["db-1".to_owned()];
        let first = root.for_server(&names, SystemClock.wall()).expect("a certificate");
        files.write(&first);
        let source = CertificateSource {
            root: Some(root.clone()),
            files: Some(files.pair()),
            ..CertificateSource::default()
        };
        let server = ServerTls::new(source, Arc::new(SystemClock)).expect("a server");
        assert_eq!(server.reload(false).expect("nothing changed"), Reload::Unchanged);

        let second = root.for_server(&names, SystemClock.wall()).expect("a certificate");
        let presented = async |issued: &Issued| {
            let (left, right) = duplex(16 << 10);
            let client = client(&root, None);
            let (accepted, connected) =
                tokio::join!(server.accept(left), client.connect("db-1", right, Protocol::Http1));
            accepted.expect("it is served");
            let stream = connected.expect("it is believed");
            stream.get_ref().1.peer_certificates().expect("a certificate")[0] == issued.chain[0]
        };
        files.write_certificate(&second);
        assert!(server.reload(true).is_err(), "the key is that of the first");
        assert!(presented(&first).await, "what was in use stays");
        fs::write(files.pair().certificate, "nonsense").expect("it is written");
        assert!(server.reload(true).is_err(), "it is no certificate");
        files.write(&other.for_server(&names, SystemClock.wall()).expect("a certificate"));
        let said = server.reload(true).expect_err("another root has signed it").to_string();
        assert!(said.contains("the root has not signed it"), "{said}");
        let long_ago = WallTime::from_unix_millis(SystemClock.wall().as_unix_millis() - 200 * 86_400_000);
        files.write(&root.for_server(&names, long_ago).expect("a certificate"));
        assert!(server.reload(true).expect_err("it has expired").to_string().contains("not valid today"));
        files.write(&second);
        fs::set_permissions(files.pair().key, fs::Permissions::from_mode(0o644)).expect("its mode is set");
        assert!(server.reload(true).expect_err("others can read the key").to_string().contains("chmod 600"));
        assert!(presented(&first).await, "what was in use stays");
        files.write_key(&second);
        assert_eq!(server.reload(true).expect("it is good"), Reload::Replaced);
        assert!(presented(&second).await);
    }

    #[test]
    fn files_are_taken_once_they_are_at_rest() {
        let (root, files) = (root(), Files::new());
        let names = ["db-1".to_owned()];
        files.write(&root.for_server(&names, SystemClock.wall()).expect("a certificate"));
        let source = CertificateSource { files: Some(files.pair()), ..CertificateSource::default() };
        let server = ServerTls::new(source, Arc::new(SystemClock)).expect("a server");
        let second = root
            .for_server(&["db-1".to_owned(), "a-longer-name".to_owned()], SystemClock.wall())
            .expect("it");
        files.write_certificate(&second);
        assert_eq!(server.reload(false).expect("it is not tried yet"), Reload::Unchanged);
        files.write_key(&second);
        assert_eq!(server.reload(false).expect("the key has changed since"), Reload::Unchanged);
        assert_eq!(server.reload(false).expect("it is at rest"), Reload::Replaced);
        assert_eq!(server.reload(false).expect("nothing changed"), Reload::Unchanged);
    }

    #[test]
    fn an_issued_certificate_is_replaced_in_its_last_third() {
        let clock = Arc::new(tenure_clock::ManualClock::new());
        let start = Root::generate(clock.wall()).expect("a root");
        let root = Root::parse(start.as_bytes()).expect("it is read");
        let source = CertificateSource {
            root: Some(root),
            names: vec!["db-1".into()],
            ..CertificateSource::default()
        };
        let server = ServerTls::new(source, clock.clone()).expect("a server");
        clock.advance(Duration::from_secs(59 * 86_400));
        assert_eq!(server.reload(false).expect("it is young"), Reload::Unchanged);
        let ends = server.ends();
        clock.advance(Duration::from_secs(2 * 86_400));
        assert_eq!(server.reload(false).expect("it is old"), Reload::Replaced);
        assert!(server.ends().as_unix_millis() > ends.as_unix_millis());
    }
}
