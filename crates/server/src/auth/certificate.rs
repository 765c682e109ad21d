//! From a verified client certificate to an identity.
//!
//! Whether a certificate is to be believed (its chain, its dates, the possession of its key) was decided by TLS before.
//! This file only reads who it is about, and it reads strictly: a certificate that could be about two is about nobody.

use tenure_core::{Identity, IdentityName};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Names that only the cluster's own root gives.
const OWN_SCHEME: &str = "tenure:";
/// The one for whoever has the root.
const OPERATOR: &str = "tenure://operator";

/// Who vouches for a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignedBy {
    /// The cluster's own root.
    Root,
    /// The authority that a node was started with for its clients.
    ClientAuthority,
}

/// Why a certificate names nobody. The words contain nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CertificateRefusal {
    #[error("the client certificate cannot be read")]
    Unreadable,
    #[error("the client certificate names two URIs, so it could be about either")]
    TwoUris,
    #[error("the client certificate names neither one URI nor one common name")]
    Nameless,
    #[error("the client certificate's common name is written like a URI, which only a URI may be")]
    NameLikeUri,
    #[error(
        "the client certificate has a name of the cluster itself, and is no operator's of the cluster's root"
    )]
    Reserved,
    #[error("the client certificate's name is too long, or has a character that no name has")]
    InvalidName,
}

/// Who a verified certificate is about: its only URI, or else its only common name.
pub(crate) fn identity(der: &[u8], signed_by: SignedBy) -> Result<Identity, CertificateRefusal> {
    let (rest, certificate) = X509Certificate::from_der(der).map_err(|_| CertificateRefusal::Unreadable)?;
    if !rest.is_empty() {
        return Err(CertificateRefusal::Unreadable);
    }
    // Two extensions of this kind are an error, not a choice.
    let names = certificate.subject_alternative_name().map_err(|_| CertificateRefusal::Unreadable)?;
    let mut uris = Vec::new();
    for name in names.iter().flat_map(|names| &names.value.general_names) {
        match name {
            GeneralName::URI(uri) => uris.push(*uri),
            GeneralName::Invalid(..) => return Err(CertificateRefusal::Unreadable),
            _ => {}
        }
    }
    let name = match uris.as_slice() {
        [uri] => *uri,
        [] => common_name(&certificate)?,
        _ => return Err(CertificateRefusal::TwoUris),
    };
    if name.get(..OWN_SCHEME.len()).is_some_and(|scheme| scheme.eq_ignore_ascii_case(OWN_SCHEME)) {
        return match (name, signed_by) {
            (OPERATOR, SignedBy::Root) => Ok(Identity::Operator),
            _ => Err(CertificateRefusal::Reserved),
        };
    }
    let name: IdentityName = format!("cert/{name}").parse().map_err(|_| CertificateRefusal::InvalidName)?;
    Ok(Identity::named(name))
}

fn common_name<'a>(certificate: &'a X509Certificate<'_>) -> Result<&'a str, CertificateRefusal> {
    let mut names = certificate.subject().iter_common_name();
    let (Some(name), None) = (names.next(), names.next()) else { return Err(CertificateRefusal::Nameless) };
    let name = name.as_str().map_err(|_| CertificateRefusal::Unreadable)?;
    // An authority that checks URIs need not check common names: one must never pass for the other.
    match name {
        "" => Err(CertificateRefusal::Nameless),
        name if name.contains(':') => Err(CertificateRefusal::NameLikeUri),
        name => Ok(name),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    /// A certificate with these URIs and common names.
    fn certificate(uris: &[&str], common_names: &[&str]) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for name in common_names {
            params.distinguished_name.push(DnType::CommonName, *name);
        }
        params.subject_alt_names = vec![SanType::DnsName("pay.example".try_into().unwrap())];
        for uri in uris {
            params.subject_alt_names.push(SanType::URI((*uri).try_into().unwrap()));
        }
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    fn read(uris: &[&str], common_names: &[&str]) -> Result<String, CertificateRefusal> {
        let der = certificate(uris, common_names);
        identity(&der, SignedBy::ClientAuthority).map(|identity| identity.to_string())
    }

    #[test]
    fn the_only_uri_or_else_the_common_name_is_the_identity() {
        assert_eq!(read(&["spiffe://prod/pay"], &["pay"]).unwrap(), "cert/spiffe://prod/pay");
        assert_eq!(read(&[], &["pay worker"]).unwrap(), "cert/pay worker");
        assert_eq!(read(&[], &[]), Err(CertificateRefusal::Nameless));
        assert_eq!(read(&[], &[""]), Err(CertificateRefusal::Nameless));
    }

    #[test]
    fn two_uris_are_nobody() {
        let two = ["spiffe://prod/pay", "spiffe://prod/root"];
        assert_eq!(read(&two, &["pay"]), Err(CertificateRefusal::TwoUris));
        assert_eq!(read(&[two[0], two[0]], &[]), Err(CertificateRefusal::TwoUris));
    }

    /// An authority that lets people choose their common names must not let them choose somebody's URI.
    #[test]
    fn a_common_name_is_never_taken_for_a_uri() {
        assert_eq!(read(&[], &["spiffe://prod/pay"]), Err(CertificateRefusal::NameLikeUri));
        assert_eq!(read(&[], &["tenure://operator"]), Err(CertificateRefusal::NameLikeUri));
    }

    #[test]
    fn only_the_clusters_root_makes_operators() {
        let operator = certificate(&["tenure://operator"], &[]);
        assert_eq!(identity(&operator, SignedBy::Root), Ok(Identity::Operator));
        assert_eq!(identity(&operator, SignedBy::ClientAuthority), Err(CertificateRefusal::Reserved));
        // A node's own certificate is for the peer port, whoever presents it here.
        for own in ["tenure://node/1", "tenure:operator", "TENURE://operator", "tenure://operator/"] {
            let der = certificate(&[own], &[]);
            for signed_by in [SignedBy::Root, SignedBy::ClientAuthority] {
                assert_eq!(identity(&der, signed_by), Err(CertificateRefusal::Reserved), "{own}");
            }
        }
    }

    /// What is called `cred/admin` elsewhere is `cert/cred/admin` here.
    #[test]
    fn a_name_from_a_certificate_says_so() {
        assert_eq!(read(&[], &["cred/admin"]).unwrap(), "cert/cred/admin");
        assert_eq!(read(&[], &["operator"]).unwrap(), "cert/operator");
        assert_eq!(read(&[], &["a\nb"]), Err(CertificateRefusal::InvalidName));
        assert_eq!(read(&[], &[&"a".repeat(300)]), Err(CertificateRefusal::InvalidName));
    }

    #[test]
    fn bytes_that_are_no_certificate_are_nobody() {
        let whole = certificate(&["spiffe://prod/pay"], &["pay"]);
        let read = |der: &[u8]| identity(der, SignedBy::ClientAuthority);
        for cut in 0..whole.len() {
            assert_eq!(read(&whole[..cut]), Err(CertificateRefusal::Unreadable));
        }
        assert_eq!(read(&[&whole[..], &[0]].concat()), Err(CertificateRefusal::Unreadable));
    }
}
