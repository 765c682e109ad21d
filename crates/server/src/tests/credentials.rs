//! Attacks on who a caller is: each presents something that must not be believed, and must leave nothing behind. The
//! names of the tests are those in `cargo xtask attacks`.

use std::sync::Arc;

use axum::http::header::AUTHORIZATION;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use rustls_pki_types::CertificateDer;
use tempfile::TempDir;
use tenure_clock::Clock;
use tenure_tls::VerifiedClient;
use tenure_wire::Bearer;
use tenure_wire::words::hex;

use super::*;
use crate::auth::SignedBy;
use crate::auth::testing::{TestKey, key_set, unsigned};
use crate::listen::Source;
use crate::secure::ClientCertificate;

/// A node on which policies count: `cred/pay` and `jwt/ci/build` may hold what is under `pay/`, `cred/admin` may do
/// everything.
struct Guarded {
    node: Node,
    pay: Bearer,
    admin: Bearer,
    ci: TestKey,
    _keys: TempDir,
}

fn bearer(number: u8) -> Bearer {
    Bearer::new(tenure_core::CredentialId::new([number; 8]), [number ^ 0x5a; 32])
}

fn header(bearer: &Bearer) -> String {
    format!("Bearer {}", *bearer.reveal())
}

fn hash(bearer: &Bearer) -> String {
    hex(ring::digest::digest(&ring::digest::SHA256, bearer.secret()).as_ref())
}

/// What comes with a request: header fields, and a certificate.
#[derive(Default)]
struct Presents {
    headers: Vec<String>,
    certificate: Option<ClientCertificate>,
}

impl Presents {
    fn header(text: impl Into<String>) -> Presents {
        Presents { headers: vec![text.into()], certificate: None }
    }

    fn certificate(der: CertificateDer<'static>, signed_by: SignedBy) -> Presents {
        Presents { headers: vec![], certificate: Some(verified(der, signed_by)) }
    }
}

impl Guarded {
    async fn start() -> Guarded {
        let keys = tempfile::tempdir().unwrap();
        let file = keys.path().join("keys.json");
        let ci = TestKey::p256();
        std::fs::write(&file, key_set(&[ci.jwk("k1")])).unwrap();
        let issuer = format!("ci,issuer=https://ci.example,audience=tenure,jwks={}", file.display());
        let node = Node::configured(|config| config.jwt_issuers = vec![issuer.parse().unwrap()]).await;
        let guarded = Guarded { node, pay: bearer(1), admin: bearer(2), ci, _keys: keys };
        for (name, who) in [("cred/pay", &guarded.pay), ("cred/admin", &guarded.admin)] {
            guarded.issue(who, name, None).await;
        }
        let hold = json!({"who": ["cred/pay", "jwt/ci/build"], "on": ["pay/"], "may": ["hold", "read"]});
        let every = ["read", "hold", "write", "manage", "observe", "operate", "grant"];
        let all = json!({"who": ["cred/admin"], "on": ["*"], "may": every});
        guarded.node.put("/v1/auth/policies/pay", json!({"policy": hold})).await.ok();
        guarded.node.put("/v1/auth/policies/admin", json!({"policy": all})).await.ok();
        let admin = Presents::header(header(&guarded.admin));
        guarded.call(&admin, Method::POST, "/v1/auth:enforce", &json!({"enforced": true})).await.ok();
        guarded
    }

    /// Makes a credential known, as anyone on a node where policies do not count yet, and else as the administrator.
    async fn issue(&self, bearer: &Bearer, name: &str, expires: Option<u64>) {
        let body = json!({"id": bearer.id().to_string(), "name": name, "hash": hash(bearer), "expires_unix_ms": expires});
        let presents = Presents::header(header(&self.admin));
        let known = self.call(&Presents::default(), Method::POST, "/v1/auth/credentials", &body).await;
        if known.status != StatusCode::OK {
            self.call(&presents, Method::POST, "/v1/auth/credentials", &body).await.ok();
        }
    }

    async fn call(&self, presents: &Presents, method: Method, path: &str, body: &Value) -> Reply {
        let mut request = Request::builder().method(method).uri(path).header("host", "127.0.0.1:7400");
        for header in &presents.headers {
            request = request.header(AUTHORIZATION, header);
        }
        if let Some(certificate) = &presents.certificate {
            let source = Source { address: "10.0.0.9:5000".into(), certificate: Some(certificate.clone()) };
            request = request.extension(Arc::new(source));
        }
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        self.node.reply(request.body(body).unwrap()).await
    }

    async fn acquire(&self, presents: &Presents, resource: &str) -> Reply {
        let body = json!({"holder": "pay", "ttl_ms": 60_000});
        self.call(presents, Method::POST, &format!("/v1/leases/{resource}:acquire"), &body).await
    }

    /// Tries to acquire, to read and to learn who it is, over HTTP; and to read over gRPC. Nothing of it may work.
    #[track_caller]
    fn fails<'a>(&'a self, presents: Presents, code: &'a str) -> impl Future<Output = ()> + 'a {
        let caller = std::panic::Location::caller();
        async move {
            let replies = [
                self.acquire(&presents, "pay/x").await,
                self.call(&presents, Method::GET, "/v1/leases", &Value::Null).await,
            ];
            for reply in replies {
                let found = reply.json()["error"]["code"].clone();
                assert_eq!(
                    found,
                    code,
                    "{caller}: {} {}",
                    reply.status,
                    String::from_utf8_lossy(&reply.body)
                );
                let shown = String::from_utf8_lossy(&reply.body).into_owned();
                for header in &presents.headers {
                    let secret = header.rsplit(['_', ' ']).next().unwrap_or_default();
                    assert!(
                        secret.len() < 16 || !shown.contains(secret),
                        "{caller}: it repeats what was sent"
                    );
                }
                if code == "unauthenticated" {
                    assert!(reply.headers.contains_key("www-authenticate"), "{caller}");
                }
            }
            // Nothing was taken.
            let admin = Presents::header(header(&self.admin));
            let lease = self.call(&admin, Method::GET, "/v1/leases/pay/x", &Value::Null).await;
            assert!(lease.json()["holders"].as_array().is_none_or(Vec::is_empty), "{caller}: it holds pay/x");
        }
    }

    fn now_s() -> u64 {
        SystemClock.wall().as_unix_millis() / 1_000
    }

    fn claims() -> Value {
        json!({"iss": "https://ci.example", "aud": "tenure", "sub": "build", "exp": Guarded::now_s() + 600})
    }

    fn claims_with(name: &str, value: Value) -> Value {
        let mut claims = Guarded::claims();
        match value {
            Value::Null => claims.as_object_mut().unwrap().remove(name),
            value => claims.as_object_mut().unwrap().insert(name.into(), value),
        };
        claims
    }

    fn token(&self, claims: &Value) -> Presents {
        Presents::header(format!("Bearer {}", self.ci.token("k1", claims)))
    }
}

/// A certificate as a connection carries it that TLS has verified.
fn verified(certificate: CertificateDer<'static>, signed_by: SignedBy) -> ClientCertificate {
    ClientCertificate::new(VerifiedClient { certificate, by_root: signed_by == SignedBy::Root })
}

fn certificate(uris: &[&str], common_name: &str) -> CertificateDer<'static> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.subject_alt_names = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())).collect();
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
}

/// What must be believed, so that the attacks below fail for their own reasons.
#[tokio::test]
async fn every_kind_of_proof_is_believed() {
    let guarded = Guarded::start().await;
    let who = async |presents: Presents| {
        let reply = guarded.call(&presents, Method::GET, "/v1/auth/whoami", &Value::Null).await;
        reply.ok()["identity"].as_str().unwrap().to_owned()
    };
    assert_eq!(who(Presents::header(header(&guarded.pay))).await, "cred/pay");
    assert_eq!(who(guarded.token(&Guarded::claims())).await, "jwt/ci/build");
    let named = certificate(&["spiffe://prod/pay"], "pay");
    assert_eq!(who(Presents::certificate(named, SignedBy::ClientAuthority)).await, "cert/spiffe://prod/pay");
    let operator = certificate(&["tenure://operator"], "operator");
    assert_eq!(who(Presents::certificate(operator, SignedBy::Root)).await, "operator");
    assert_eq!(who(Presents::default()).await, "anyone");
    guarded.acquire(&Presents::header(header(&guarded.pay)), "pay/a").await.ok();
    guarded.acquire(&guarded.token(&Guarded::claims()), "pay/b").await.ok();
    let metrics =
        guarded.call(&Presents::header(header(&guarded.admin)), Method::GET, "/metrics", &Value::Null).await;
    let page = String::from_utf8(metrics.body).unwrap();
    assert!(page.contains("tenure_identified_requests_total{by=\"jwt\"} 2"), "{page}");
}

/// Over gRPC the same is read from the metadata.
#[tokio::test]
async fn metadata_proves_the_same_as_a_header() {
    let guarded = Guarded::start().await;
    let ask = async |authorization: Option<String>| {
        let mut request = Request::post("/tenure.v1.Leases/List")
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let message = [&[0, 0, 0, 0, 0][..], &[]].concat();
        let reply = guarded.node.send(request.body(Body::from(message)).unwrap()).await;
        reply.headers().get("tenure-code").map(|code| code.to_str().unwrap().to_owned())
    };
    assert_eq!(ask(Some(header(&guarded.pay))).await, None);
    assert_eq!(ask(None).await.as_deref(), Some("forbidden"));
    assert_eq!(ask(Some("Bearer nonsense".into())).await.as_deref(), Some("unauthenticated"));
}

/// A stream outlives no token: what its caller may see is asked anew.
#[tokio::test]
async fn a_watch_ends_with_the_token_that_opened_it() {
    let guarded = Guarded::start().await;
    let soon = SystemClock.wall().as_unix_millis() as f64 / 1_000.0 + 1.5;
    let token = guarded.token(&Guarded::claims_with("exp", json!(soon)));
    let request = Request::get("/v1/watch?prefix=pay/")
        .header("host", "127.0.0.1:7400")
        .header(AUTHORIZATION, &token.headers[0]);
    let answer = guarded.node.send(request.body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status(), StatusCode::OK);
    // It ends by itself; with a token that lasts this would wait for ever.
    answer.into_body().collect().await.unwrap();
    assert!(SystemClock.wall().as_unix_millis() as f64 / 1_000.0 >= soon);
}

#[tokio::test]
async fn attack_credentials_none() {
    let guarded = Guarded::start().await;
    guarded.fails(Presents::default(), "forbidden").await;
}

#[tokio::test]
async fn attack_credentials_unknown_id() {
    let guarded = Guarded::start().await;
    guarded.fails(Presents::header(header(&bearer(9))), "unauthenticated").await;
}

#[tokio::test]
async fn attack_credentials_wrong_secret() {
    let guarded = Guarded::start().await;
    let mut secret = *guarded.pay.secret();
    secret[31] ^= 1;
    let near = Bearer::new(guarded.pay.id(), secret);
    guarded.fails(Presents::header(header(&near)), "unauthenticated").await;
    // Another's secret under this id.
    let mixed = Bearer::new(guarded.admin.id(), *guarded.pay.secret());
    guarded.fails(Presents::header(header(&mixed)), "unauthenticated").await;
}

#[tokio::test]
async fn attack_credentials_truncated() {
    let guarded = Guarded::start().await;
    let whole = header(&guarded.pay);
    for length in ["Bearer ".len(), "Bearer tenure_".len(), whole.len() - 32, whole.len() - 1] {
        guarded.fails(Presents::header(&whole[..length]), "unauthenticated").await;
    }
}

/// It may keep what it has for a day, and must take nothing new.
#[tokio::test]
async fn attack_credentials_expired_acquires() {
    let guarded = Guarded::start().await;
    let old = bearer(3);
    guarded.issue(&old, "cred/pay", Some((Guarded::now_s() - 60) * 1_000)).await;
    let reply = guarded.acquire(&Presents::header(header(&old)), "pay/x").await;
    assert_eq!(reply.refused("forbidden")["reason"], "expired");
}

#[tokio::test]
async fn attack_credentials_expired_beyond_24_h() {
    let guarded = Guarded::start().await;
    let old = bearer(3);
    guarded.issue(&old, "cred/pay", Some((Guarded::now_s() - 25 * 3_600) * 1_000)).await;
    guarded.fails(Presents::header(header(&old)), "unauthenticated").await;
}

#[tokio::test]
async fn attack_credentials_revoked() {
    let guarded = Guarded::start().await;
    let admin = Presents::header(header(&guarded.admin));
    let path = format!("/v1/auth/credentials/{}", guarded.pay.id());
    guarded.call(&admin, Method::DELETE, &path, &json!({})).await.ok();
    guarded.fails(Presents::header(header(&guarded.pay)), "unauthenticated").await;
}

#[tokio::test]
async fn attack_credentials_two_at_once() {
    let guarded = Guarded::start().await;
    let (pay, admin) = (header(&guarded.pay), header(&guarded.admin));
    let two = |first: &str, second: &str| Presents {
        headers: vec![first.to_owned(), second.to_owned()],
        certificate: None,
    };
    guarded.fails(two(&pay, &admin), "unauthenticated").await;
    guarded.fails(two(&pay, &pay), "unauthenticated").await;
    guarded.fails(Presents::header(format!("{pay}, {admin}")), "unauthenticated").await;
    let named = certificate(&["spiffe://prod/pay"], "pay");
    let certificate = Some(verified(named, SignedBy::ClientAuthority));
    guarded.fails(Presents { headers: vec![pay], certificate }, "unauthenticated").await;
}

#[tokio::test]
async fn attack_credentials_two_uris() {
    let guarded = Guarded::start().await;
    let two = certificate(&["spiffe://prod/pay", "spiffe://prod/admin"], "pay");
    guarded.fails(Presents::certificate(two, SignedBy::ClientAuthority), "unauthenticated").await;
}

/// A name from one source must never be taken for the same name from another.
#[tokio::test]
async fn attack_credentials_cross_source_name() {
    let guarded = Guarded::start().await;
    for name in ["cred/admin", "admin", "../cred/admin", "operator"] {
        let der = certificate(&[], name);
        guarded.fails(Presents::certificate(der, SignedBy::ClientAuthority), "forbidden").await;
        let token = guarded.token(&Guarded::claims_with("sub", json!(name)));
        guarded.fails(token, "forbidden").await;
    }
    // An operator is made by the cluster's own root alone, and a common name is no URI.
    let operator = certificate(&["tenure://operator"], "x");
    guarded.fails(Presents::certificate(operator, SignedBy::ClientAuthority), "unauthenticated").await;
    let common = certificate(&[], "tenure://operator");
    guarded.fails(Presents::certificate(common, SignedBy::Root), "unauthenticated").await;
}

#[tokio::test]
async fn attack_credentials_jwt_alg_none() {
    let guarded = Guarded::start().await;
    for alg in ["none", "None"] {
        let bare = unsigned(&json!({"alg": alg, "kid": "k1"}), &Guarded::claims());
        guarded.fails(Presents::header(format!("Bearer {bare}.")), "unauthenticated").await;
    }
}

#[tokio::test]
async fn attack_credentials_jwt_hs256_with_the_public_key() {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let guarded = Guarded::start().await;
    let public = guarded.ci.jwk("k1")["x"].as_str().unwrap().to_owned();
    for secret in [public.as_bytes().to_vec(), URL_SAFE_NO_PAD.decode(&public).unwrap()] {
        let signed = unsigned(&json!({"alg": "HS256", "kid": "k1"}), &Guarded::claims());
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &secret);
        let tag = URL_SAFE_NO_PAD.encode(ring::hmac::sign(&key, signed.as_bytes()));
        guarded.fails(Presents::header(format!("Bearer {signed}.{tag}")), "unauthenticated").await;
    }
}

#[tokio::test]
async fn attack_credentials_jwt_audience() {
    let guarded = Guarded::start().await;
    for audience in [json!("other"), json!(["other", "tenure2"]), Value::Null] {
        let token = guarded.token(&Guarded::claims_with("aud", audience));
        guarded.fails(token, "unauthenticated").await;
    }
}

#[tokio::test]
async fn attack_credentials_jwt_issuer() {
    let guarded = Guarded::start().await;
    for issuer in [json!("https://ci.example/"), json!("https://evil.example"), Value::Null] {
        let token = guarded.token(&Guarded::claims_with("iss", issuer));
        guarded.fails(token, "unauthenticated").await;
    }
}

#[tokio::test]
async fn attack_credentials_jwt_no_exp() {
    let guarded = Guarded::start().await;
    for expires in [Value::Null, json!(Guarded::now_s() - 1), json!("never")] {
        let token = guarded.token(&Guarded::claims_with("exp", expires));
        guarded.fails(token, "unauthenticated").await;
    }
}

#[tokio::test]
async fn attack_credentials_jwt_unknown_kid() {
    let guarded = Guarded::start().await;
    let evil = TestKey::p256();
    for (key, id) in [(&evil, "k1"), (&evil, "k2"), (&guarded.ci, "k2")] {
        let token = key.token(id, &Guarded::claims());
        guarded.fails(Presents::header(format!("Bearer {token}")), "unauthenticated").await;
    }
}
