//! The root of a cluster: a certificate authority in one file. Whoever has its key is an administrator, and can start a
//! node.
//!
//! The file has one block of key and certificate, or several while the root is being replaced: the first signs, all are
//! believed. A block behind the first may be a certificate alone.

use crate::certificate::Parsed;
use crate::files::read_secret;
use crate::{KeyHash, NODE_URI, NodeKey, OPERATOR_URI, TlsError};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PublicKeyData, SanType,
};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tenure_core::WallTime;
use time::OffsetDateTime;
use zeroize::Zeroizing;

const DAY: Duration = Duration::from_secs(24 * 3_600);
/// How long a root is valid. Its certificates are believed on the client port until then.
const ROOT_VALID: Duration = Duration::from_secs(3_652 * 24 * 3_600);
/// How long the certificate of a client port is valid; it is replaced while the node runs, long before.
pub(crate) const SERVER_VALID: Duration = Duration::from_secs(90 * 24 * 3_600);
/// How long an operator's certificate is valid, and how far the clocks of the two machines may be apart.
pub(crate) const OPERATOR_VALID: Duration = Duration::from_secs(600);

/// A certificate with its key.
pub struct Issued {
    /// The certificate, and those between it and the root.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its key.
    pub key: PrivateKeyDer<'static>,
}

impl Clone for Issued {
    fn clone(&self) -> Self {
        Self { chain: self.chain.clone(), key: self.key.clone_key() }
    }
}

impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issued").field("certificates", &self.chain.len()).finish_non_exhaustive()
    }
}

/// A root that can sign. Clones are the same.
#[derive(Clone)]
pub struct Root(Arc<Inside>);

struct Inside {
    issuer: Issuer<'static, KeyPair>,
    certificates: Vec<CertificateDer<'static>>,
    ends: WallTime,
}

impl Root {
    /// A new root, as the text of its file: certificate and key.
    pub fn generate(now: WallTime) -> Result<Zeroizing<String>, TlsError> {
        let key = KeyPair::generate()?;
        let hash = KeyHash::of(&key.subject_public_key_info());
        let mut params = CertificateParams::default();
        params.distinguished_name = named(&format!("Tenure root {}", &hash.to_string()[..8]));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        dates(&mut params, now, DAY, ROOT_VALID)?;
        let certificate = params.self_signed(&key)?;
        let secret = Zeroizing::new(key.serialize_pem());
        Ok(Zeroizing::new(format!("{}{}", certificate.pem(), *secret)))
    }

    /// The root in a file that nobody but its owner can read.
    pub fn read(path: &Path) -> Result<Root, TlsError> {
        let text = read_secret(path)?;
        Root::parse(&text).map_err(|error| match error {
            TlsError::Content { why, .. } => TlsError::content(format!("{} is no root", path.display()), why),
            other => other,
        })
    }

    /// The root in the text of such a file.
    pub fn parse(text: &[u8]) -> Result<Root, TlsError> {
        let no = |why: &str| TlsError::content("this is no root", why);
        let certificates = certificates(text)?;
        let keys: Vec<KeyPair> = PrivateKeyDer::pem_slice_iter(text)
            .map(|key| {
                let key = key.map_err(|error| no(&format!("a key cannot be read: {error}")))?;
                KeyPair::try_from(&key).map_err(|error| no(&format!("a key cannot be used: {error}")))
            })
            .collect::<Result<_, _>>()?;
        let first = certificates
            .first()
            .ok_or_else(|| no("it has no certificate; `tenure cluster new-root > root.pem` makes one"))?;
        for certificate in &certificates {
            if !Parsed::new(certificate)?.is_authority() {
                return Err(no(
                    "it has a certificate that is no authority: the root signs, and no other belongs here",
                ));
            }
        }
        let parsed = Parsed::new(first)?;
        let signs = |key: &KeyPair| KeyHash::of(&key.subject_public_key_info()) == parsed.key_hash();
        let key = keys.into_iter().find(signs).ok_or_else(|| {
            no("the key of its first certificate is missing; `--ca` takes a file without a key")
        })?;
        let ends = parsed.ends();
        let issuer = Issuer::from_ca_cert_der(first, key)?;
        Ok(Root(Arc::new(Inside { issuer, certificates, ends })))
    }

    /// The certificates that are believed, in the order of the file.
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.0.certificates
    }

    /// The same, as rustls takes them.
    pub(crate) fn store(&self) -> Result<RootCertStore, TlsError> {
        store(self.certificates())
    }

    /// When its first certificate ends.
    pub fn ends(&self) -> WallTime {
        self.0.ends
    }

    /// The certificate with which a node speaks to other nodes.
    pub fn for_node(&self, node: u64, key: &NodeKey, now: WallTime) -> Result<Issued, TlsError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = named(&format!("Tenure node {node}"));
        params.subject_alt_names = vec![uri(&format!("{NODE_URI}{node}"))?];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        // Nobody judges these dates: see `peer.rs`.
        dates(&mut params, now, DAY, ROOT_VALID)?;
        self.sign(params, key.pair())
    }

    /// A certificate for a client port that is reached under these names and addresses.
    pub fn for_server(&self, names: &[String], now: WallTime) -> Result<Issued, TlsError> {
        let wrong = |error: rcgen::Error| {
            TlsError::content("a name of the client port cannot be certified", error.to_string())
        };
        let mut params = CertificateParams::new(names.to_vec()).map_err(wrong)?;
        params.distinguished_name = named(names.first().map_or("Tenure", String::as_str));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        dates(&mut params, now, DAY, SERVER_VALID)?;
        self.end_with_root(&mut params)?;
        self.sign(params, &KeyPair::generate()?)
    }

    /// A certificate for whoever has the root, for as long as a command takes.
    pub fn for_operator(&self, now: WallTime) -> Result<Issued, TlsError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = named("Tenure operator");
        params.subject_alt_names = vec![uri(OPERATOR_URI)?];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        dates(&mut params, now, OPERATOR_VALID, OPERATOR_VALID)?;
        self.end_with_root(&mut params)?;
        self.sign(params, &KeyPair::generate()?)
    }

    fn sign(&self, mut params: CertificateParams, key: &KeyPair) -> Result<Issued, TlsError> {
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(key, &self.0.issuer)?;
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        Ok(Issued { chain: vec![certificate.into()], key })
    }

    /// A certificate that outlives its root would be refused one day for no visible reason.
    fn end_with_root(&self, params: &mut CertificateParams) -> Result<(), TlsError> {
        params.not_after = params.not_after.min(moment(self.0.ends)?);
        Ok(())
    }
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Root").field("certificates", &self.0.certificates.len()).finish_non_exhaustive()
    }
}

/// All certificates in a PEM text.
pub(crate) fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable = |error| TlsError::content("a certificate cannot be read", format!("{error}"));
    CertificateDer::pem_slice_iter(text).collect::<Result<_, _>>().map_err(unreadable)
}

/// Certificates that are believed.
pub(crate) fn store(certificates: &[CertificateDer<'static>]) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    for certificate in certificates {
        store.add(certificate.clone())?;
    }
    Ok(store)
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn uri(text: &str) -> Result<SanType, TlsError> {
    Ok(SanType::URI(Ia5String::try_from(text)?))
}

fn dates(
    params: &mut CertificateParams,
    now: WallTime,
    before: Duration,
    after: Duration,
) -> Result<(), TlsError> {
    let now = moment(now)?;
    let out_of_range =
        || TlsError::content("a certificate cannot be dated", "the clock of this machine is far off");
    params.not_before = now.checked_sub(signed(before)).ok_or_else(out_of_range)?;
    params.not_after = now.checked_add(signed(after)).ok_or_else(out_of_range)?;
    Ok(())
}

fn signed(duration: Duration) -> time::Duration {
    time::Duration::seconds(duration.as_secs().try_into().unwrap_or(i64::MAX))
}

fn moment(at: WallTime) -> Result<OffsetDateTime, TlsError> {
    let seconds = i64::try_from(at.as_unix_millis() / 1_000).unwrap_or(i64::MAX);
    OffsetDateTime::from_unix_timestamp(seconds).map_err(|error| {
        TlsError::content(
            "a certificate cannot be dated",
            format!("the clock of this machine is far off: {error}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CertificateNames;

    const NOW: WallTime = WallTime::from_unix_millis(1_800_000_000_000);

    #[test]
    fn a_root_signs_for_nodes_servers_and_operators() {
        let root = Root::parse(Root::generate(NOW).expect("a root").as_bytes()).expect("it is read");
        let key = NodeKey::generate().expect("a key");
        let node = root.for_node(3, &key, NOW).expect("a certificate");
        assert_eq!(CertificateNames::of(&node.chain[0]).expect("names").node(), Some(3));
        assert_eq!(Parsed::new(&node.chain[0]).expect("it is read").key_hash(), key.hash());
        let names = ["10.0.0.7".to_owned(), "db-1".to_owned(), "::1".to_owned()];
        let server = root.for_server(&names, NOW).expect("a certificate");
        assert_eq!(CertificateNames::of(&server.chain[0]).expect("names").hosts, ["db-1"]);
        let operator = root.for_operator(NOW).expect("a certificate");
        assert_eq!(CertificateNames::of(&operator.chain[0]).expect("names").uris, [OPERATOR_URI]);
        let ends = Parsed::new(&operator.chain[0]).expect("it is read").ends();
        assert_eq!(ends.as_unix_millis() - NOW.as_unix_millis(), 600_000, "ten minutes");
        let root_ends = root.ends().as_unix_millis() - NOW.as_unix_millis();
        assert_eq!(root_ends / 1_000 / 3_600 / 24, 3_652, "ten years");
    }

    #[test]
    fn two_blocks_are_both_believed_and_the_first_signs() {
        let (old, new) = (Root::generate(NOW).expect("a root"), Root::generate(NOW).expect("a root"));
        let both = Root::parse(format!("{}{}", *new, *old).as_bytes()).expect("it is read");
        assert_eq!(both.certificates().len(), 2);
        let certificate_alone: String =
            old.split_inclusive("-----END CERTIFICATE-----\n").next().expect("it").into();
        assert!(!certificate_alone.contains("PRIVATE"));
        let rolled = Root::parse(format!("{}{certificate_alone}", *new).as_bytes()).expect("it is read");
        assert_eq!(rolled.certificates().len(), 2);
        let said = Root::parse(format!("{certificate_alone}{}", *new).as_bytes())
            .expect_err("it cannot sign")
            .to_string();
        assert!(said.contains("key of its first certificate is missing"), "{said}");
    }

    #[test]
    fn what_is_no_root_is_refused_with_a_reason() {
        let said = |text: &str| Root::parse(text.as_bytes()).expect_err("it is none").to_string();
        assert!(said("").contains("new-root"));
        let root = Root::parse(Root::generate(NOW).expect("a root").as_bytes()).expect("it is read");
        let operator = root.for_operator(NOW).expect("a certificate");
        let pem = crate::server::tests::pem("CERTIFICATE", &operator.chain[0]);
        assert!(said(&pem).contains("no authority"), "{}", said(&pem));
    }

    #[test]
    fn nothing_that_is_judged_by_its_dates_outlives_its_root() {
        let root = Root::parse(Root::generate(NOW).expect("a root").as_bytes()).expect("it is read");
        let late = WallTime::from_unix_millis(root.ends().as_unix_millis() - 1_000);
        let server = root.for_server(&["localhost".into()], late).expect("a certificate");
        assert_eq!(Parsed::new(&server.chain[0]).expect("it is read").ends(), root.ends());
    }
}
