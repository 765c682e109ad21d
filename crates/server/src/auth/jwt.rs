//! JSON web tokens: whether one was signed by an issuer that this node trusts, for this cluster, and is valid now.
//!
//! Everything here is a function of the token, the keys and the time; nobody is called. The header of a token never
//! chooses how it is checked: `alg` must be on the issuer's list *and* be the algorithm of the very key, so a public
//! key is never taken for a shared secret and `none` is not a word that this file knows. Where the keys come from is
//! `keys.rs`.

use std::path::PathBuf;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use serde::Deserialize;
use tenure_core::WallTime;

/// Bytes of a token. The head of a request has room for one of about this size.
pub(crate) const TOKEN_BYTES_MAX: usize = 8 << 10;
/// Bytes of a file of keys, and how many it may have.
pub(crate) const KEYS_BYTES_MAX: usize = 1 << 20;
const KEYS_MAX: usize = 256;
/// How far an issuer's clock may be ahead of ours. `exp` has no such margin: it is the issuer's last word.
const NOT_BEFORE_MARGIN_S: f64 = 60.0;

/// How a token may be signed. There is no other way, and none without a key pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Algorithm {
    /// RSA with PKCS#1 padding and SHA-256, 2048 bits or more.
    Rs256,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// Ed25519.
    EdDsa,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Algorithm; 3] = [Algorithm::Rs256, Algorithm::Es256, Algorithm::EdDsa];

    /// Its name in a token's header.
    pub const fn as_str(self) -> &'static str {
        match self {
            Algorithm::Rs256 => "RS256",
            Algorithm::Es256 => "ES256",
            Algorithm::EdDsa => "EdDSA",
        }
    }
}

impl FromStr for Algorithm {
    type Err = ();

    fn from_str(name: &str) -> Result<Algorithm, ()> {
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.as_str() == name).ok_or(())
    }
}

/// An issuer of tokens, as a node is told about it:
/// `k8s,issuer=https://kubernetes.default.svc,audience=tenure,jwks=/etc/tenure/k8s.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtIssuer {
    /// What it is called in identities: `jwt/NAME/sub`. The same on every node.
    pub name: String,
    /// What `iss` must say, exactly.
    pub issuer: String,
    /// What `aud` must be or contain, exactly.
    pub audience: String,
    /// The file with its public keys, as a JSON web key set.
    pub jwks: PathBuf,
    /// How its tokens may be signed.
    pub algorithms: Vec<Algorithm>,
}

impl FromStr for JwtIssuer {
    type Err = String;

    fn from_str(text: &str) -> Result<JwtIssuer, String> {
        const SHAPE: &str = "write NAME,issuer=URL,audience=TEXT,jwks=FILE[,algorithms=RS256+ES256+EdDSA]";
        let mut parts = text.split(',');
        let name = parts.next().unwrap_or_default();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
            return Err(format!(
                "`{name}` cannot name an issuer: use 1 to 64 letters, digits, `-`, `_` or `.`; {SHAPE}"
            ));
        }
        let [mut issuer, mut audience, mut jwks, mut algorithms] = [const { None::<&str> }; 4];
        for part in parts {
            let (key, value) = part.split_once('=').ok_or(format!("`{part}` has no `=`; {SHAPE}"))?;
            let slot = match key {
                "issuer" => &mut issuer,
                "audience" => &mut audience,
                "jwks" => &mut jwks,
                "algorithms" => &mut algorithms,
                _ => return Err(format!("`{key}` is not known; {SHAPE}")),
            };
            if value.is_empty() {
                return Err(format!("`{key}` is empty; {SHAPE}"));
            }
            if slot.replace(value).is_some() {
                return Err(format!("`{key}` is there twice; {SHAPE}"));
            }
        }
        let needed = |key: &str, value: Option<&str>| {
            value.map(str::to_owned).ok_or(format!("`{key}` is missing; {SHAPE}"))
        };
        let algorithms = match algorithms {
            None => Algorithm::ALL.to_vec(),
            Some(names) => names
                .split('+')
                .map(|name| {
                    name.parse().map_err(|()| {
                        format!("`{name}` is not an algorithm that tokens may use: RS256, ES256, EdDSA")
                    })
                })
                .collect::<Result<_, _>>()?,
        };
        Ok(JwtIssuer {
            name: name.to_owned(),
            issuer: needed("issuer", issuer)?,
            audience: needed("audience", audience)?,
            jwks: needed("jwks", jwks)?.into(),
            algorithms,
        })
    }
}

/// The public keys of one issuer.
#[derive(Debug)]
pub(crate) struct KeySet(Vec<Key>);

#[derive(Debug)]
struct Key {
    id: Option<String>,
    material: Material,
}

#[derive(Debug)]
enum Material {
    Rsa {
        modulus: Vec<u8>,
        exponent: Vec<u8>,
    },
    /// The point, uncompressed.
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// A key as a key set writes it (RFC 7517). What it does not name is skipped.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    #[serde(default)]
    kid: Option<String>,
    #[serde(default, rename = "use")]
    usage: Option<String>,
    #[serde(default)]
    alg: Option<String>,
    #[serde(default)]
    crv: Option<String>,
    #[serde(default)]
    n: Option<String>,
    #[serde(default)]
    e: Option<String>,
    #[serde(default)]
    x: Option<String>,
    #[serde(default)]
    y: Option<String>,
}

#[derive(Deserialize)]
struct Jwks {
    keys: Vec<Jwk>,
}

impl KeySet {
    /// Reads a JSON web key set. Keys for other purposes and other algorithms are left out; a key that is ours to use
    /// and cannot be read is an error, because whoever wrote the file meant it to work.
    pub fn parse(text: &[u8]) -> Result<KeySet, String> {
        if text.len() > KEYS_BYTES_MAX {
            return Err(format!("it is larger than {KEYS_BYTES_MAX} bytes"));
        }
        let set: Jwks = serde_json::from_slice(text).map_err(|error| format!("it is no key set: {error}"))?;
        if set.keys.len() > KEYS_MAX {
            return Err(format!("it has more than {KEYS_MAX} keys"));
        }
        let mut keys: Vec<Key> = Vec::new();
        for (place, jwk) in set.keys.iter().enumerate() {
            let read = jwk.read().map_err(|why| format!("key {} of it cannot be used: {why}", place + 1))?;
            let Some(material) = read else { continue };
            let id = jwk.kid.clone().filter(|id| !id.is_empty());
            if id.is_some() && keys.iter().any(|key| key.id == id) {
                return Err(format!("two keys of it have the id {}", id.unwrap_or_default()));
            }
            keys.push(Key { id, material });
        }
        match keys.is_empty() {
            true => Err("it has no key for RS256, ES256 or EdDSA signatures".into()),
            false => Ok(KeySet(keys)),
        }
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The key that a token names; without a name, the only one.
    fn find(&self, id: Option<&str>) -> Result<&Key, JwtRefusal> {
        match id {
            Some(id) => self.0.iter().find(|key| key.id.as_deref() == Some(id)).ok_or(JwtRefusal::UnknownKey),
            None if self.0.len() == 1 => Ok(&self.0[0]),
            None => Err(JwtRefusal::NoKeyNamed),
        }
    }
}

impl Jwk {
    fn read(&self) -> Result<Option<Material>, String> {
        if self.usage.as_deref().is_some_and(|usage| usage != "sig") {
            return Ok(None);
        }
        let bytes = |name: &str, value: &Option<String>| {
            let value = value.as_deref().ok_or(format!("`{name}` is missing"))?;
            URL_SAFE_NO_PAD.decode(value).map_err(|_| format!("`{name}` is not base64url"))
        };
        let (algorithm, material) = match (self.kty.as_str(), self.crv.as_deref()) {
            ("RSA", _) if self.alg.as_deref().is_none_or(|alg| alg == "RS256") => {
                let (mut modulus, exponent) = (bytes("n", &self.n)?, bytes("e", &self.e)?);
                // Some writers put a sign byte in front.
                if modulus.first() == Some(&0) {
                    modulus.remove(0);
                }
                let bits = modulus.len() * 8;
                if !(2_048..=8_192).contains(&bits) {
                    return Err(format!("an RSA key has 2048 to 8192 bits, not {bits}"));
                }
                (Algorithm::Rs256, Material::Rsa { modulus, exponent })
            }
            ("EC", Some("P-256")) => {
                let (x, y) = (bytes("x", &self.x)?, bytes("y", &self.y)?);
                if x.len() != 32 || y.len() != 32 {
                    return Err("a coordinate on P-256 has 32 bytes".into());
                }
                (Algorithm::Es256, Material::P256([&[4][..], &x, &y].concat()))
            }
            ("OKP", Some("Ed25519")) => {
                let x = bytes("x", &self.x)?;
                if x.len() != 32 {
                    return Err("an Ed25519 key has 32 bytes".into());
                }
                (Algorithm::EdDsa, Material::Ed25519(x))
            }
            _ => return Ok(None),
        };
        Ok((self.alg.as_deref().is_none_or(|alg| alg == algorithm.as_str())).then_some(material))
    }
}

impl Key {
    fn algorithm(&self) -> Algorithm {
        match self.material {
            Material::Rsa { .. } => Algorithm::Rs256,
            Material::P256(_) => Algorithm::Es256,
            Material::Ed25519(_) => Algorithm::EdDsa,
        }
    }

    fn verify(&self, signed: &[u8], signature: &[u8]) -> Result<(), JwtRefusal> {
        let verified = match &self.material {
            Material::Rsa { modulus, exponent } => {
                let key = RsaPublicKeyComponents { n: modulus, e: exponent };
                key.verify(&signature::RSA_PKCS1_2048_8192_SHA256, signed, signature)
            }
            Material::P256(point) => {
                UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point).verify(signed, signature)
            }
            Material::Ed25519(key) => {
                UnparsedPublicKey::new(&signature::ED25519, key).verify(signed, signature)
            }
        };
        verified.map_err(|_| JwtRefusal::WrongSignature)
    }
}

/// Why a token is not believed. The words are for whoever sent it and contain nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum JwtRefusal {
    #[error("this node trusts no issuer of JWTs")]
    NoIssuers,
    #[error("the JWT cannot be read")]
    Unreadable,
    #[error("the JWT is from an issuer that this node does not trust")]
    UnknownIssuer,
    #[error("the JWT is signed in a way that its issuer is not trusted with")]
    WrongAlgorithm,
    #[error("the JWT names no key, and its issuer has several")]
    NoKeyNamed,
    #[error("the JWT names a key that its issuer's file does not have")]
    UnknownKey,
    #[error("the JWT's signature is wrong")]
    WrongSignature,
    #[error("the JWT is meant for another audience")]
    WrongAudience,
    #[error("the JWT does not say when it expires")]
    NoExpiry,
    #[error("the JWT has expired")]
    Expired,
    #[error("the JWT is not valid yet")]
    NotYet,
    #[error("the JWT does not say who it is about")]
    NoSubject,
}

/// What a believed token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verified {
    /// The name of its issuer, as this node calls it.
    pub issuer: String,
    /// Who it is about.
    pub subject: String,
    /// Until when, in milliseconds since 1970.
    pub expires_ms: u64,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
    /// Extensions that must be understood. None is.
    #[serde(default)]
    crit: Option<serde_json::Value>,
    /// The claims would not be base64.
    #[serde(default)]
    b64: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Claims {
    #[serde(default)]
    iss: Option<String>,
    #[serde(default)]
    sub: Option<String>,
    #[serde(default)]
    aud: Option<Audience>,
    #[serde(default)]
    exp: Option<f64>,
    #[serde(default)]
    nbf: Option<f64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

impl Audience {
    fn contains(&self, audience: &str) -> bool {
        match self {
            Audience::One(one) => one == audience,
            Audience::Many(many) => many.iter().any(|one| one == audience),
        }
    }
}

/// Whether a text looks like a token rather than one of our credentials.
pub(crate) fn looks_like_one(text: &str) -> bool {
    text.bytes().filter(|byte| *byte == b'.').count() == 2
}

/// Checks a token against the issuers that a node trusts, each with the keys that it has now.
pub(crate) fn verify<'a>(
    issuers: impl IntoIterator<Item = (&'a JwtIssuer, &'a KeySet)>,
    token: &str,
    now: WallTime,
) -> Result<Verified, JwtRefusal> {
    if token.len() > TOKEN_BYTES_MAX {
        return Err(JwtRefusal::Unreadable);
    }
    let (signed, signature) = token.rsplit_once('.').ok_or(JwtRefusal::Unreadable)?;
    let (header, claims) = signed.split_once('.').ok_or(JwtRefusal::Unreadable)?;
    if claims.contains('.') {
        return Err(JwtRefusal::Unreadable);
    }
    let header: Header = part(header)?;
    let claims: Claims = part(claims)?;
    if header.crit.is_some() || header.b64.is_some() {
        return Err(JwtRefusal::Unreadable);
    }
    // Not believed yet: it only says whose keys to try.
    let named = claims.iss.as_deref().ok_or(JwtRefusal::UnknownIssuer)?;
    let (issuer, keys) =
        issuers.into_iter().find(|(issuer, _)| issuer.issuer == named).ok_or(JwtRefusal::UnknownIssuer)?;
    let algorithm: Algorithm = header.alg.parse().map_err(|()| JwtRefusal::WrongAlgorithm)?;
    if !issuer.algorithms.contains(&algorithm) {
        return Err(JwtRefusal::WrongAlgorithm);
    }
    let key = keys.find(header.kid.as_deref())?;
    if key.algorithm() != algorithm {
        return Err(JwtRefusal::WrongAlgorithm);
    }
    let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| JwtRefusal::Unreadable)?;
    key.verify(signed.as_bytes(), &signature)?;

    // From here on the claims are the issuer's own words. JSON has no number that compares with nothing.
    if !claims.aud.as_ref().is_some_and(|audience| audience.contains(&issuer.audience)) {
        return Err(JwtRefusal::WrongAudience);
    }
    let now_s = now.as_unix_millis() as f64 / 1_000.0;
    let expires = claims.exp.ok_or(JwtRefusal::NoExpiry)?;
    if now_s >= expires {
        return Err(JwtRefusal::Expired);
    }
    if claims.nbf.is_some_and(|from| from > now_s + NOT_BEFORE_MARGIN_S) {
        return Err(JwtRefusal::NotYet);
    }
    let subject = claims.sub.filter(|subject| !subject.is_empty()).ok_or(JwtRefusal::NoSubject)?;
    // A float becomes the nearest integer that fits; "for ever" becomes the largest.
    Ok(Verified { issuer: issuer.name.clone(), subject, expires_ms: (expires * 1_000.0) as u64 })
}

/// Reads keys and a token as a stranger can send them, and holds what comes of it against what is promised.
#[cfg(feature = "fuzzing")]
pub(crate) fn check_token(issuer: &JwtIssuer, keys: &[u8], token: &str, now: WallTime) {
    if let Ok(keys) = KeySet::parse(keys) {
        assert!((1..=KEYS_MAX).contains(&keys.len()));
        let verified = verify([(issuer, &keys)], token, now);
        assert!(verified.is_err(), "a token was believed that nobody has signed: {verified:?}");
    }
}

/// One part of a token: base64url around JSON.
fn part<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, JwtRefusal> {
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| JwtRefusal::Unreadable)?;
    serde_json::from_slice(&bytes).map_err(|_| JwtRefusal::Unreadable)
}

#[cfg(test)]
mod tests;
