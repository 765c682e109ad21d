//! Entry points for the fuzz targets: everything that a caller can present to prove who it is.

use tenure_core::WallTime;

use crate::auth::{SignedBy, certificate_identity, check_token};

/// Reads bytes as a verified certificate. Whatever is in it, it names at most one.
pub fn certificate(der: &[u8]) {
    for signed_by in [SignedBy::Root, SignedBy::ClientAuthority] {
        let named = certificate_identity(der, signed_by);
        if let Ok(identity) = &named {
            let operator = *identity == tenure_core::Identity::Operator;
            assert!(!operator || signed_by == SignedBy::Root, "an operator that the root has not made");
            assert!(operator || identity.to_string().starts_with("cert/"), "{identity}");
        }
    }
}

/// Reads bytes as a key set and a token, parted by a zero byte. A token that nobody has signed is never believed; the
/// fuzzer has no key.
pub fn token(bytes: &[u8]) {
    let (keys, token) = match bytes.iter().position(|byte| *byte == 0) {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (SAMPLE_KEYS.as_bytes(), bytes),
    };
    let Ok(token) = std::str::from_utf8(token) else { return };
    let issuer = "ci,issuer=https://ci.example,audience=tenure,jwks=f".parse().expect("an issuer");
    check_token(&issuer, keys, token, WallTime::from_unix_millis(1_800_000_000_000));
}

/// Reads a text as the description of an issuer.
pub fn issuer(text: &str) {
    if let Ok(issuer) = text.parse::<crate::JwtIssuer>() {
        assert!(!issuer.name.contains('/') && !issuer.algorithms.is_empty());
    }
}

/// A key set to start from.
pub const SAMPLE_KEYS: &str = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"k1","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

/// A token to start from; its signature is nobody's.
pub const SAMPLE_TOKEN: &str = "eyJhbGciOiJFZERTQSIsImtpZCI6ImsxIn0.eyJpc3MiOiJodHRwczovL2NpLmV4YW1wbGUiLCJhdWQiOiJ0ZW51cmUiLCJzdWIiOiJidWlsZCIsImV4cCI6MjAwMDAwMDAwMH0.AAAA";
