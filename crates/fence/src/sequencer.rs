//! Sequencers: signed, portable statements of a grant, checked offline. A compact JWS (RFC 7515) with EdDSA
//! (RFC 8037), so that any language's library can check one too; the keys are a JWKS (RFC 7517), as served
//! at `/.well-known/jwks.json`. A sequencer proves order, not life: whether its lease still lives, only the
//! fence's own mark or the service can say.
//!
//! With it a storage front end need not believe numbers that strangers send: a made-up token of 2^53 - 1
//! has no signature, becomes no [`VerifiedSequencer`], and so cannot raise a mark and shut everybody out.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize};
use tenure_core::{Generation, Moment, ResourceName, Scope, Slot, Token};

use crate::Authority;

/// What a sequencer's header calls it, so that no other kind of signed text passes for one.
const TYPE: &str = "tenure-sequencer";

/// What a sequencer states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// The id of the cluster that granted; a restored cluster has a new one.
    pub cluster: String,
    /// The resource, or one slot of it.
    pub scope: Scope,
    /// The grant's token.
    pub token: Token,
    /// How it is held.
    pub mode: ClaimedMode,
    /// How often the resource had changed hands; for people.
    pub generation: Generation,
}

/// How the lease behind a sequencer is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClaimedMode {
    /// The only holder.
    Exclusive,
    /// One of many readers: no authority to write.
    Shared,
    /// The only holder of one slot.
    Slot,
}

/// The claims as they are written.
#[derive(Serialize, Deserialize)]
struct WrittenClaims {
    cluster: String,
    resource: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slot: Option<u32>,
    token: u64,
    mode: ClaimedMode,
    generation: u64,
}

#[derive(Serialize, Deserialize)]
struct Header {
    alg: String,
    typ: String,
    kid: String,
    /// Extensions that a reader must understand. We know none, so we refuse any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crit: Option<Vec<String>>,
}

/// The key with which one node signs. It has no text form: it must not reach a log.
pub struct Signing {
    kid: String,
    key: SigningKey,
}

impl Signing {
    /// The key made of 32 secret random bytes, under the name by which others will know it.
    pub fn from_seed(kid: impl Into<String>, seed: &[u8; 32]) -> Signing {
        Signing { kid: kid.into(), key: SigningKey::from_bytes(seed) }
    }

    /// The key's name.
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// The public half, which others check with.
    pub fn public(&self) -> [u8; 32] {
        self.key.verifying_key().to_bytes()
    }

    /// States a grant.
    pub fn sign(&self, claims: &Claims) -> String {
        let header = Header { alg: "EdDSA".into(), typ: TYPE.into(), kid: self.kid.clone(), crit: None };
        let claims = WrittenClaims {
            cluster: claims.cluster.clone(),
            resource: claims.scope.resource.to_string(),
            slot: claims.scope.slot.map(Slot::get),
            token: claims.token.get(),
            mode: claims.mode,
            generation: claims.generation.get(),
        };
        let signed = format!("{}.{}", part(&header), part(&claims));
        let signature = self.key.sign(signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.to_bytes()))
    }
}

impl fmt::Debug for Signing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signing({}, …)", self.kid)
    }
}

/// The public keys of one cluster, by name.
#[derive(Clone, Debug)]
pub struct Keys {
    cluster: String,
    keys: BTreeMap<String, VerifyingKey>,
}

/// A key set as it is written.
#[derive(Serialize, Deserialize)]
struct WrittenKeys {
    keys: Vec<WrittenKey>,
}

#[derive(Serialize, Deserialize)]
struct WrittenKey {
    kty: String,
    #[serde(default)]
    crv: String,
    #[serde(default)]
    kid: String,
    #[serde(default)]
    x: String,
    #[serde(default, rename = "use")]
    purpose: String,
    #[serde(default)]
    alg: String,
}

impl Keys {
    /// No keys yet, for the sequencers of one cluster and no other: a token of another cluster, or of this
    /// one before a restore, comes from another counter.
    pub fn new(cluster: impl Into<String>) -> Keys {
        Keys { cluster: cluster.into(), keys: BTreeMap::new() }
    }

    /// Adds a public key. A rotation adds the new one, and removes the old one when nothing signed with it
    /// can be on its way any more.
    pub fn add(&mut self, kid: impl Into<String>, key: &[u8; 32]) -> Result<(), SequencerError> {
        let key =
            VerifyingKey::from_bytes(key).map_err(|_| SequencerError::Malformed("a key that is no point"))?;
        // Some points make a signature that fits any text.
        if key.is_weak() {
            return Err(SequencerError::Malformed("a weak key"));
        }
        self.keys.insert(kid.into(), key);
        Ok(())
    }

    /// Removes a key: what was signed with it is refused from now on.
    pub fn remove(&mut self, kid: &str) {
        self.keys.remove(kid);
    }

    /// Reads a JWKS. Keys of other kinds in it are passed over.
    pub fn from_jwks(cluster: impl Into<String>, json: &str) -> Result<Keys, SequencerError> {
        let written: WrittenKeys =
            serde_json::from_str(json).map_err(|_| SequencerError::Malformed("a key set that is no JWKS"))?;
        let mut keys = Keys::new(cluster);
        for key in written.keys.iter().filter(|key| key.kty == "OKP" && key.crv == "Ed25519") {
            let bytes = decode(&key.x, "a key that is not base64url")?;
            let bytes: [u8; 32] =
                bytes.try_into().map_err(|_| SequencerError::Malformed("a key of another length"))?;
            keys.add(&key.kid, &bytes)?;
        }
        Ok(keys)
    }

    /// Writes a JWKS, as served at `/.well-known/jwks.json`.
    pub fn to_jwks(&self) -> String {
        let keys = self.keys.iter().map(|(kid, key)| WrittenKey {
            kty: "OKP".into(),
            crv: "Ed25519".into(),
            kid: kid.clone(),
            x: URL_SAFE_NO_PAD.encode(key.as_bytes()),
            purpose: "sig".into(),
            alg: "EdDSA".into(),
        });
        json(&WrittenKeys { keys: keys.collect() })
    }

    /// Checks a sequencer and returns what it states.
    pub fn verify(&self, sequencer: &str) -> Result<Claims, SequencerError> {
        // Bounded before anything is decoded: it comes from strangers.
        if sequencer.len() > 4096 {
            return Err(SequencerError::Malformed("it is longer than any sequencer"));
        }
        let mut parts = sequencer.split('.');
        let (Some(header), Some(payload), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(SequencerError::Malformed("it has not three parts"));
        };
        let signed = &sequencer[..header.len() + 1 + payload.len()];
        let header: Header = serde_json::from_slice(&decode(header, "a header that is not base64url")?)
            .map_err(|_| SequencerError::Malformed("a header that is not one"))?;
        // Only what we sign with ourselves: the sender does not choose how it is judged.
        if header.alg != "EdDSA" || header.typ != TYPE || header.crit.is_some() {
            return Err(SequencerError::Malformed("it is not an EdDSA-signed sequencer"));
        }
        let key = self.keys.get(&header.kid).ok_or(SequencerError::UnknownKey { kid: header.kid })?;
        let signature = decode(signature, "a signature that is not base64url")?;
        let signature = Signature::from_slice(&signature)
            .map_err(|_| SequencerError::Malformed("a signature of another length"))?;
        key.verify_strict(signed.as_bytes(), &signature).map_err(|_| SequencerError::BadSignature)?;
        let claims: WrittenClaims =
            serde_json::from_slice(&decode(payload, "claims that are not base64url")?)
                .map_err(|_| SequencerError::Malformed("claims that are none"))?;
        if claims.cluster != self.cluster {
            return Err(SequencerError::OtherCluster { cluster: claims.cluster });
        }
        let resource: ResourceName =
            claims.resource.parse().map_err(|_| SequencerError::Malformed("a resource that is no name"))?;
        let token =
            Token::try_from(claims.token).map_err(|_| SequencerError::Malformed("a token that is none"))?;
        Ok(Claims {
            cluster: claims.cluster,
            scope: Scope { resource, slot: claims.slot.map(Slot::new) },
            token,
            mode: claims.mode,
            generation: Generation::new(claims.generation),
        })
    }

    /// Checks a sequencer that is shown for a write to `scope`. A reader's is refused, and so is one for
    /// another scope: a signature says that the token is real, not that it belongs here.
    pub fn verify_writer(&self, sequencer: &str, scope: &Scope) -> Result<VerifiedSequencer, SequencerError> {
        let claims = self.verify(sequencer)?;
        if claims.mode == ClaimedMode::Shared {
            return Err(SequencerError::Reader);
        }
        if claims.scope != *scope {
            return Err(SequencerError::OtherScope { scope: claims.scope });
        }
        Ok(VerifiedSequencer(claims))
    }
}

/// A sequencer that was checked, and gives the right to write to its scope. Whether its token is still the
/// highest, the fence decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedSequencer(Claims);

impl VerifiedSequencer {
    /// What it states.
    pub fn claims(&self) -> &Claims {
        &self.0
    }
}

impl Authority for VerifiedSequencer {
    fn scope(&self) -> &Scope {
        &self.0.scope
    }

    fn token(&self) -> Token {
        self.0.token
    }

    fn remaining(&self, _now: Moment) -> Option<Duration> {
        None
    }
}

/// Why a sequencer was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SequencerError {
    /// It cannot be read; in words, why.
    Malformed(&'static str),
    /// It is signed with a key that is not in the set: fetch the set again, a node may have a new one.
    UnknownKey {
        /// The key's name.
        kid: String,
    },
    /// It was not signed by whom it names.
    BadSignature,
    /// It comes from another cluster, or from this one before a restore.
    OtherCluster {
        /// The cluster it names.
        cluster: String,
    },
    /// It is good for another scope.
    OtherScope {
        /// The scope it names.
        scope: Scope,
    },
    /// It is a reader's: no authority to write.
    Reader,
}

impl fmt::Display for SequencerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SequencerError::Malformed(why) => write!(f, "not a sequencer: {why}"),
            SequencerError::UnknownKey { kid } => {
                write!(f, "signed with the unknown key {kid}; fetch /.well-known/jwks.json again")
            }
            SequencerError::BadSignature => f.write_str("the signature does not fit"),
            SequencerError::OtherCluster { cluster } => write!(f, "granted by another cluster, {cluster}"),
            SequencerError::OtherScope { scope } => write!(f, "granted for {scope}, not for this"),
            SequencerError::Reader => f.write_str("a reader's: it gives no right to write"),
        }
    }
}

impl Error for SequencerError {}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain structs always have a JSON form")
}

fn part(value: &impl Serialize) -> String {
    URL_SAFE_NO_PAD.encode(json(value))
}

fn decode(text: &str, why: &'static str) -> Result<Vec<u8>, SequencerError> {
    URL_SAFE_NO_PAD.decode(text).map_err(|_| SequencerError::Malformed(why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(token: u64, mode: ClaimedMode) -> Claims {
        Claims {
            cluster: "c-1".into(),
            scope: "settlement/cron".parse().unwrap(),
            token: Token::try_from(token).unwrap(),
            mode,
            generation: Generation::new(3),
        }
    }

    fn signing() -> Signing {
        Signing::from_seed("node-1", &[7; 32])
    }

    fn keys() -> Keys {
        let mut keys = Keys::new("c-1");
        keys.add("node-1", &signing().public()).unwrap();
        keys
    }

    #[test]
    fn a_sequencer_reads_what_was_signed() {
        let mut slot = claims(Token::MAX.get(), ClaimedMode::Slot);
        slot.scope.slot = Some(Slot::new(4));
        for claims in [claims(42, ClaimedMode::Exclusive), claims(1, ClaimedMode::Shared), slot] {
            assert_eq!(keys().verify(&signing().sign(&claims)), Ok(claims));
        }
    }

    #[test]
    fn no_changed_byte_passes() {
        let good = signing().sign(&claims(42, ClaimedMode::Exclusive));
        for at in 0..good.len() {
            let mut bytes = good.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let bad = String::from_utf8(bytes).unwrap();
            if bad != good {
                assert!(keys().verify(&bad).is_err(), "byte {at}");
            }
        }
        for cut in 0..good.len() {
            assert!(keys().verify(&good[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn the_sender_does_not_choose_how_it_is_judged() {
        let good = signing().sign(&claims(42, ClaimedMode::Exclusive));
        let payload = good.split('.').nth(1).unwrap();
        let forge = |alg: &str| {
            let header = Header { alg: alg.into(), typ: TYPE.into(), kid: "node-1".into(), crit: None };
            let signed = format!("{}.{payload}", part(&header));
            let signature = signing().key.sign(signed.as_bytes());
            format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.to_bytes()))
        };
        assert!(keys().verify(&forge("EdDSA")).is_ok());
        for alg in ["none", "HS256", "eddsa", ""] {
            assert!(matches!(keys().verify(&forge(alg)), Err(SequencerError::Malformed(_))), "{alg}");
        }
        assert!(keys().verify(&format!("{}.{payload}.", part(&serde_json::json!({"alg": "none"})))).is_err());
    }

    #[test]
    fn another_key_another_cluster_another_scope_and_a_reader_are_refused() {
        let scope: Scope = "settlement/cron".parse().unwrap();
        let good = signing().sign(&claims(42, ClaimedMode::Exclusive));
        assert_eq!(keys().verify_writer(&good, &scope).unwrap().claims().token.get(), 42);

        let stranger =
            Signing::from_seed("node-1", &[8; 32]).sign(&claims(Token::MAX.get(), ClaimedMode::Exclusive));
        assert_eq!(keys().verify(&stranger), Err(SequencerError::BadSignature));
        let unknown = Signing::from_seed("node-9", &[8; 32]).sign(&claims(1, ClaimedMode::Exclusive));
        assert_eq!(keys().verify(&unknown), Err(SequencerError::UnknownKey { kid: "node-9".into() }));

        let mut restored = Keys::new("c-2");
        restored.add("node-1", &signing().public()).unwrap();
        assert!(matches!(restored.verify(&good), Err(SequencerError::OtherCluster { .. })));
        let elsewhere: Scope = "settlement/other".parse().unwrap();
        assert!(matches!(keys().verify_writer(&good, &elsewhere), Err(SequencerError::OtherScope { .. })));
        let reader = signing().sign(&claims(42, ClaimedMode::Shared));
        assert_eq!(keys().verify_writer(&reader, &scope), Err(SequencerError::Reader));
    }

    #[test]
    fn a_key_set_reads_what_it_writes_and_passes_over_other_keys() {
        let mut keys = keys();
        keys.add("node-2", &Signing::from_seed("node-2", &[9; 32]).public()).unwrap();
        let jwks = keys.to_jwks();
        assert!(!jwks.contains("\"d\""), "no private half");
        let read = Keys::from_jwks("c-1", &jwks).unwrap();
        assert_eq!(read.to_jwks(), jwks);
        let mixed = jwks.replacen("[", "[{\"kty\":\"RSA\",\"n\":\"AQAB\",\"e\":\"AQAB\"},", 1);
        assert_eq!(Keys::from_jwks("c-1", &mixed).unwrap().to_jwks(), jwks);
        keys.remove("node-1");
        let old = signing().sign(&claims(42, ClaimedMode::Exclusive));
        assert!(matches!(keys.verify(&old), Err(SequencerError::UnknownKey { .. })));
    }

    /// Under such a key one signature fits every text.
    #[test]
    fn a_weak_key_is_refused() {
        let mut identity = [0; 32];
        identity[0] = 1;
        assert_eq!(Keys::new("c-1").add("node-1", &identity), Err(SequencerError::Malformed("a weak key")));
    }

    /// The example of RFC 8037, appendix A: our reading of the standard is everybody's.
    #[test]
    fn the_published_example_checks_out() {
        let d = URL_SAFE_NO_PAD.decode("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A").unwrap();
        let signing = Signing::from_seed("x", &d.try_into().unwrap());
        assert_eq!(URL_SAFE_NO_PAD.encode(signing.public()), "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo");
        let signature = signing.key.sign(b"eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc");
        assert_eq!(
            URL_SAFE_NO_PAD.encode(signature.to_bytes()),
            "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg"
        );
    }
}
