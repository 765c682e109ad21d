use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::*;
use crate::auth::testing::{TestKey, key_set, unsigned};

const NOW_S: u64 = 1_800_000_000;

fn now() -> WallTime {
    WallTime::from_unix_millis(NOW_S * 1_000)
}

fn issuer() -> JwtIssuer {
    "k8s,issuer=https://kubernetes.default.svc,audience=tenure,jwks=/keys.json".parse().unwrap()
}

fn claims() -> Value {
    json!({
        "iss": "https://kubernetes.default.svc",
        "sub": "system:serviceaccount:pay:worker",
        "aud": ["tenure"],
        "exp": NOW_S + 600,
        "nbf": NOW_S - 5,
    })
}

/// The claims with one of them changed; `null` takes it away.
fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    match value {
        Value::Null => claims.as_object_mut().unwrap().remove(name),
        value => claims.as_object_mut().unwrap().insert(name.into(), value),
    };
    claims
}

fn check(keys: &[Value], token: &str) -> Result<Verified, JwtRefusal> {
    check_by(&issuer(), keys, token)
}

fn check_by(issuer: &JwtIssuer, keys: &[Value], token: &str) -> Result<Verified, JwtRefusal> {
    let keys = KeySet::parse(&key_set(keys)).unwrap();
    verify([(issuer, &keys)], token, now())
}

#[test]
fn every_algorithm_of_the_list_is_verified() {
    for key in [TestKey::rsa(), TestKey::p256(), TestKey::ed25519()] {
        let keys = [key.jwk("k1")];
        let verified = check(&keys, &key.token("k1", &claims())).unwrap();
        assert_eq!(
            (verified.issuer.as_str(), verified.subject.as_str()),
            ("k8s", "system:serviceaccount:pay:worker")
        );
        assert_eq!(verified.expires_ms, (NOW_S + 600) * 1_000);
        // One bit of the claims, and it is another token.
        let mut other = key.token("k1", &claims());
        let (kept, _) = other.rsplit_once('.').unwrap();
        let signature = other[kept.len()..].to_owned();
        other = unsigned(&json!({"alg": key.alg(), "kid": "k1"}), &with("sub", json!("root"))) + &signature;
        assert_eq!(check(&keys, &other), Err(JwtRefusal::WrongSignature));
    }
}

#[test]
fn alg_none_is_refused() {
    let key = TestKey::p256();
    for alg in ["none", "None", "NONE", ""] {
        let bare = unsigned(&json!({"alg": alg, "kid": "k1"}), &claims()) + ".";
        assert_eq!(check(&[key.jwk("k1")], &bare), Err(JwtRefusal::WrongAlgorithm), "{alg}");
        let signed = key.sign(&json!({"alg": alg, "kid": "k1"}), &claims());
        assert_eq!(check(&[key.jwk("k1")], &signed), Err(JwtRefusal::WrongAlgorithm), "{alg}");
    }
}

/// The classic: the public key, which everybody knows, used as the shared secret of an HMAC.
#[test]
fn hs256_with_the_public_key_is_refused() {
    for key in [TestKey::rsa(), TestKey::p256()] {
        let jwk = key.jwk("k1");
        let public = jwk["n"].as_str().or(jwk["x"].as_str()).unwrap();
        for secret in [public.as_bytes().to_vec(), URL_SAFE_NO_PAD.decode(public).unwrap()] {
            let signed = unsigned(&json!({"alg": "HS256", "kid": "k1"}), &claims());
            let secret = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &secret);
            let tag = URL_SAFE_NO_PAD.encode(ring::hmac::sign(&secret, signed.as_bytes()));
            assert_eq!(
                check(std::slice::from_ref(&jwk), &format!("{signed}.{tag}")),
                Err(JwtRefusal::WrongAlgorithm)
            );
        }
    }
}

/// The header says an algorithm that is on the list, and the key is for another one.
#[test]
fn a_key_is_used_for_its_own_algorithm_only() {
    let (rsa, p256) = (TestKey::rsa(), TestKey::p256());
    let mixed = rsa.sign(&json!({"alg": "ES256", "kid": "k1"}), &claims());
    assert_eq!(check(&[rsa.jwk("k1")], &mixed), Err(JwtRefusal::WrongAlgorithm));
    let narrow: JwtIssuer =
        "k,issuer=https://kubernetes.default.svc,audience=tenure,jwks=f,algorithms=RS256".parse().unwrap();
    let keys = [rsa.jwk("r"), p256.jwk("p")];
    assert_eq!(check_by(&narrow, &keys, &p256.token("p", &claims())), Err(JwtRefusal::WrongAlgorithm));
    assert!(check_by(&narrow, &keys, &rsa.token("r", &claims())).is_ok());
}

#[test]
fn the_audience_is_exact() {
    let key = TestKey::ed25519();
    let keys = [key.jwk("k1")];
    for wrong in [json!("tenure2"), json!("Tenure"), json!(["other"]), json!([]), Value::Null] {
        let token = key.token("k1", &with("aud", wrong.clone()));
        assert_eq!(check(&keys, &token), Err(JwtRefusal::WrongAudience), "{wrong}");
    }
    for right in [json!("tenure"), json!(["other", "tenure"])] {
        assert!(check(&keys, &key.token("k1", &with("aud", right))).is_ok());
    }
}

#[test]
fn the_issuer_is_exact() {
    let key = TestKey::ed25519();
    let keys = [key.jwk("k1")];
    let near = ["https://kubernetes.default.svc/", "HTTPS://kubernetes.default.svc", "k8s", ""];
    for wrong in near.map(|text| json!(text)).into_iter().chain([Value::Null]) {
        let token = key.token("k1", &with("iss", wrong.clone()));
        assert_eq!(check(&keys, &token), Err(JwtRefusal::UnknownIssuer), "{wrong}");
    }
    assert_eq!(verify([], &key.token("k1", &claims()), now()), Err(JwtRefusal::UnknownIssuer));
}

/// One issuer's key vouches for nobody of another's.
#[test]
fn the_keys_of_one_issuer_are_not_anothers() {
    let (ours, theirs) = (TestKey::ed25519(), TestKey::ed25519());
    let other: JwtIssuer = "ci,issuer=https://ci.example,audience=tenure,jwks=f".parse().unwrap();
    let our_keys = KeySet::parse(&key_set(&[ours.jwk("k1")])).unwrap();
    let their_keys = KeySet::parse(&key_set(&[theirs.jwk("k1")])).unwrap();
    let token = theirs.token("k1", &claims());
    let both = [(&issuer(), &our_keys), (&other, &their_keys)];
    assert_eq!(verify(both, &token, now()), Err(JwtRefusal::WrongSignature));
}

#[test]
fn a_token_without_an_end_is_refused() {
    let key = TestKey::p256();
    let keys = [key.jwk("k1")];
    assert_eq!(check(&keys, &key.token("k1", &with("exp", Value::Null))), Err(JwtRefusal::NoExpiry));
    assert_eq!(check(&keys, &key.token("k1", &with("exp", json!("never")))), Err(JwtRefusal::Unreadable));
    for past in [json!(NOW_S), json!(NOW_S - 1), json!(0), json!(-5), json!(NOW_S as f64 - 0.5)] {
        let token = key.token("k1", &with("exp", past.clone()));
        assert_eq!(check(&keys, &token), Err(JwtRefusal::Expired), "{past}");
    }
    assert!(check(&keys, &key.token("k1", &with("exp", json!(NOW_S as f64 + 0.5)))).is_ok());
}

#[test]
fn a_token_for_later_is_refused() {
    let key = TestKey::p256();
    let keys = [key.jwk("k1")];
    assert_eq!(check(&keys, &key.token("k1", &with("nbf", json!(NOW_S + 61)))), Err(JwtRefusal::NotYet));
    assert_eq!(check(&keys, &key.token("k1", &with("nbf", json!("soon")))), Err(JwtRefusal::Unreadable));
    assert!(check(&keys, &key.token("k1", &with("nbf", json!(NOW_S + 60)))).is_ok());
    assert!(check(&keys, &key.token("k1", &with("nbf", Value::Null))).is_ok());
}

#[test]
fn an_unknown_kid_is_refused() {
    let (key, other) = (TestKey::p256(), TestKey::p256());
    let token = key.token("k2", &claims());
    assert_eq!(check(&[key.jwk("k1")], &token), Err(JwtRefusal::UnknownKey));
    // Without a name the only key is meant; of two, none.
    let nameless = key.sign(&json!({"alg": "ES256"}), &claims());
    assert!(check(&[key.jwk("k1")], &nameless).is_ok());
    assert_eq!(check(&[key.jwk("k1"), other.jwk("k2")], &nameless), Err(JwtRefusal::NoKeyNamed));
}

#[test]
fn nobody_in_particular_is_refused() {
    let key = TestKey::ed25519();
    for nobody in [Value::Null, json!("")] {
        let token = key.token("k1", &with("sub", nobody));
        assert_eq!(check(&[key.jwk("k1")], &token), Err(JwtRefusal::NoSubject));
    }
}

#[test]
fn what_is_no_token_is_refused() {
    let key = TestKey::ed25519();
    let token = key.token("k1", &claims());
    let (signed, _) = token.rsplit_once('.').unwrap();
    let critical = key.sign(&json!({"alg": "EdDSA", "kid": "k1", "crit": ["exp"]}), &claims());
    let plain = key.sign(&json!({"alg": "EdDSA", "kid": "k1", "b64": false}), &claims());
    let twice = format!("{}=", &token);
    let texts = ["", ".", "..", "...", "a.b.c", signed, &critical, &plain, &twice];
    for text in texts.into_iter().chain([format!("{token}.x").as_str(), &"a".repeat(9_000)]) {
        assert_eq!(check(&[key.jwk("k1")], text), Err(JwtRefusal::Unreadable), "{text}");
    }
}

#[test]
fn key_sets_are_read_whole_or_not_at_all() {
    let parse = |keys: &[Value]| KeySet::parse(&key_set(keys));
    let (rsa, p256) = (TestKey::rsa(), TestKey::p256());
    let encryption = json!({"kty": "RSA", "use": "enc", "n": "AQAB", "e": "AQAB"});
    let other_curve = json!({"kty": "EC", "crv": "P-384", "x": "AA", "y": "AA"});
    let shared = json!({"kty": "oct", "k": "c2VjcmV0"});
    let pss = json!({"kty": "RSA", "alg": "PS256", "n": "AQAB", "e": "AQAB"});
    let others = [encryption, other_curve, shared, pss];
    assert_eq!(parse(&[&others[..], &[rsa.jwk("a"), p256.jwk("b")]].concat()).unwrap().len(), 2);
    for (keys, why) in [
        (others.to_vec(), "no key"),
        (vec![p256.jwk("a"), rsa.jwk("a")], "two keys"),
        (vec![json!({"kty": "RSA", "n": "AQAB", "e": "AQAB"})], "2048"),
        (vec![json!({"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"})], "32 bytes"),
        (vec![json!({"kty": "OKP", "crv": "Ed25519", "x": "!"})], "base64url"),
        (vec![json!({"kty": "OKP", "crv": "Ed25519"})], "missing"),
    ] {
        let refused = parse(&keys).unwrap_err();
        assert!(refused.contains(why), "{why}: {refused}");
    }
    for text in ["", "{}", "[]", "{\"keys\":1}"] {
        assert!(KeySet::parse(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn an_issuer_is_described_in_one_line() {
    let parsed = issuer();
    assert_eq!(parsed.algorithms, Algorithm::ALL);
    assert_eq!(parsed.jwks, PathBuf::from("/keys.json"));
    for (text, why) in [
        ("", "cannot name"),
        ("a/b,issuer=i,audience=a,jwks=f", "cannot name"),
        ("k,issuer=i,jwks=f", "`audience` is missing"),
        ("k,issuer=i,audience=,jwks=f", "empty"),
        ("k,issuer=i,audience=a,jwks=f,jwks=g", "twice"),
        ("k,issuer=i,audience=a,jwks=f,kid=g", "not known"),
        ("k,issuer", "no `=`"),
        ("k,issuer=i,audience=a,jwks=f,algorithms=none", "not an algorithm"),
        ("k,issuer=i,audience=a,jwks=f,algorithms=RS256+HS256", "not an algorithm"),
    ] {
        let refused = text.parse::<JwtIssuer>().unwrap_err();
        assert!(refused.contains(why), "{text}: {refused}");
    }
}
