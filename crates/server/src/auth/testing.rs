//! Issuers for tests: key pairs, key sets, and tokens signed as they should be or as they should not.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use serde_json::{Value, json};

/// A key pair of one issuer.
pub(crate) enum TestKey {
    Rsa(Box<RsaKeyPair>),
    P256(Box<EcdsaKeyPair>),
    Ed25519(Ed25519KeyPair),
}

impl TestKey {
    /// The same one each time: making one takes long.
    pub fn rsa() -> TestKey {
        let text: String = include_str!("jwt/rsa_test_key.b64").split_whitespace().collect();
        TestKey::Rsa(Box::new(RsaKeyPair::from_der(&STANDARD.decode(text).unwrap()).unwrap()))
    }

    pub fn p256() -> TestKey {
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pair.as_ref(), &random);
        TestKey::P256(Box::new(pair.unwrap()))
    }

    pub fn ed25519() -> TestKey {
        let pair = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        TestKey::Ed25519(Ed25519KeyPair::from_pkcs8(pair.as_ref()).unwrap())
    }

    /// What its tokens have as `alg`.
    pub fn alg(&self) -> &'static str {
        match self {
            TestKey::Rsa(_) => "RS256",
            TestKey::P256(_) => "ES256",
            TestKey::Ed25519(_) => "EdDSA",
        }
    }

    /// The public half, as a key set has it.
    pub fn jwk(&self, id: &str) -> Value {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match self {
            TestKey::Rsa(pair) => {
                let public = ring::rsa::PublicKeyComponents::<Vec<u8>>::from(pair.public());
                json!({"kty": "RSA", "use": "sig", "kid": id, "n": text(&public.n), "e": text(&public.e)})
            }
            TestKey::P256(pair) => {
                let point = pair.public_key().as_ref();
                let (x, y) = (text(&point[1..33]), text(&point[33..]));
                json!({"kty": "EC", "crv": "P-256", "alg": "ES256", "kid": id, "x": x, "y": y})
            }
            TestKey::Ed25519(pair) => {
                json!({"kty": "OKP", "crv": "Ed25519", "kid": id, "x": text(pair.public_key().as_ref())})
            }
        }
    }

    /// A token with these parts, signed with this key whatever the header says.
    pub fn sign(&self, header: &Value, claims: &Value) -> String {
        let signed = unsigned(header, claims);
        let random = SystemRandom::new();
        let signature = match self {
            TestKey::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, signed.as_bytes(), &mut signature).unwrap();
                signature
            }
            TestKey::P256(pair) => pair.sign(&random, signed.as_bytes()).unwrap().as_ref().to_vec(),
            TestKey::Ed25519(pair) => pair.sign(signed.as_bytes()).as_ref().to_vec(),
        };
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    /// A token as an issuer makes it.
    pub fn token(&self, id: &str, claims: &Value) -> String {
        self.sign(&json!({"alg": self.alg(), "typ": "JWT", "kid": id}), claims)
    }
}

/// The two parts of a token that a signature covers.
pub(crate) fn unsigned(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}", part(header), part(claims))
}

/// A key set with these keys.
pub(crate) fn key_set(keys: &[Value]) -> Vec<u8> {
    json!({"keys": keys}).to_string().into_bytes()
}
