//! What stands in a certificate: names, dates, the key. For certificates that were verified, or that are only described.

use crate::TlsError;
use ring::digest::{SHA256, digest};
use rustls::pki_types::{CertificateDer, UnixTime};
use std::fmt;
use std::time::Duration;
use tenure_core::WallTime;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// What the URI of a node's certificate begins with; its number follows.
pub const NODE_URI: &str = "tenure://node/";
/// The URI of the certificate that whoever has the root signs for himself.
pub const OPERATOR_URI: &str = "tenure://operator";

/// The SHA-256 of a public key as it stands in certificates (SubjectPublicKeyInfo).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub [u8; 32]);

impl KeyHash {
    /// Of this key, in DER.
    pub fn of(public_key: &[u8]) -> KeyHash {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, public_key).as_ref());
        KeyHash(hash)
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The names in a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateNames {
    /// The common name of its subject, if it has exactly one.
    pub common_name: Option<String>,
    /// Its URIs, in their order.
    pub uris: Vec<String>,
    /// The names of hosts.
    pub hosts: Vec<String>,
}

impl CertificateNames {
    /// Of a certificate in DER.
    pub fn of(certificate: &[u8]) -> Result<CertificateNames, TlsError> {
        Ok(Parsed::new(certificate)?.names())
    }

    /// The node, if this is the certificate of one: exactly one URI, and a number without frills in it.
    pub fn node(&self) -> Option<u64> {
        let [uri] = &self.uris[..] else { return None };
        let digits = uri.strip_prefix(NODE_URI)?;
        let node: u64 = digits.parse().ok()?;
        (node > 0 && node.to_string() == digits).then_some(node)
    }
}

/// A certificate that can be read.
pub(crate) struct Parsed<'a>(X509Certificate<'a>);

impl<'a> Parsed<'a> {
    pub fn new(certificate: &'a [u8]) -> Result<Self, TlsError> {
        let unreadable = |why: String| TlsError::content("a certificate cannot be read", why);
        match X509Certificate::from_der(certificate) {
            Ok(([], certificate)) => Ok(Self(certificate)),
            Ok(_) => Err(unreadable("there are bytes behind it".into())),
            Err(error) => Err(unreadable(error.to_string())),
        }
    }

    pub fn key_hash(&self) -> KeyHash {
        KeyHash::of(self.0.tbs_certificate.subject_pki.raw)
    }

    pub fn is_authority(&self) -> bool {
        self.0.is_ca()
    }

    /// When it begins to be valid.
    pub fn begins(&self) -> UnixTime {
        unix_time(self.0.validity().not_before.timestamp())
    }

    /// When it ends.
    pub fn ends(&self) -> WallTime {
        WallTime::from_unix_millis(unix_time(self.0.validity().not_after.timestamp()).as_secs() * 1_000)
    }

    pub fn is_valid_at(&self, now: WallTime) -> bool {
        let now = now.as_unix_millis();
        self.begins().as_secs() * 1_000 <= now && now < self.ends().as_unix_millis()
    }

    pub fn names(&self) -> CertificateNames {
        let mut names = CertificateNames::default();
        let mut common = self.0.subject().iter_common_name();
        if let (Some(name), None) = (common.next(), common.next()) {
            names.common_name = name.as_str().ok().map(str::to_owned);
        }
        // Two extensions of this kind are an error, and then there are no names at all.
        if let Ok(Some(alternative)) = self.0.subject_alternative_name() {
            for name in &alternative.value.general_names {
                match name {
                    GeneralName::URI(uri) => names.uris.push((*uri).to_owned()),
                    GeneralName::DNSName(host) => names.hosts.push((*host).to_owned()),
                    _ => {}
                }
            }
        }
        names
    }
}

fn unix_time(seconds: i64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

/// The hash of the key in a certificate.
pub(crate) fn key_hash(certificate: &CertificateDer<'_>) -> Result<KeyHash, TlsError> {
    Ok(Parsed::new(certificate)?.key_hash())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_uri_with_a_plain_number_names_a_node() {
        let node = |uris: &[&str]| {
            let uris = uris.iter().map(ToString::to_string).collect();
            CertificateNames { uris, ..CertificateNames::default() }.node()
        };
        assert_eq!(node(&["tenure://node/3"]), Some(3));
        let not =
            ["tenure://node/0", "tenure://node/03", "tenure://node/+3", "tenure://node/3/", "tenure://node/"];
        for uri in not.into_iter().chain(["tenure://operator", "tenure://node/18446744073709551616"]) {
            assert_eq!(node(&[uri]), None, "{uri}");
        }
        assert_eq!(node(&[]), None);
        assert_eq!(node(&["tenure://node/3", "tenure://node/4"]), None);
        assert_eq!(node(&["tenure://node/3", "spiffe://x"]), None, "exactly one");
    }
}
