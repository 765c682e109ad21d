//! Who a caller is.
//!
//! A caller proves it in one of three ways: a credential that the cluster issued, a client certificate that TLS has
//! verified, or a JSON web token of an issuer that this node trusts. `certificate.rs` and `jwt.rs` decide what the
//! latter two prove; this file decides which one was presented, and looks credentials up in the applied state. A caller
//! that presents two things, or something that is not believed, is refused: it is never taken for anyone. What an
//! identity may do is decided by `tenure_core`, never here. Nothing that was presented is logged or answered.

mod certificate;
mod jwt;
mod keys;
mod shares;
#[cfg(test)]
pub(crate) mod testing;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, header};
use subtle::ConstantTimeEq;
use tenure_clock::Clock;
use tenure_core::{Identity, IdentityName, Standing, WallTime};
use tenure_tls::VerifiedClient;
use tenure_wire::{ApiError, Bearer, Code};
use tokio::sync::Semaphore;
use zeroize::Zeroizing;

use crate::node::Node;
use crate::secure::ClientCertificate;

pub(crate) use certificate::SignedBy;
#[cfg(feature = "fuzzing")]
pub(crate) use certificate::identity as certificate_identity;
#[cfg(feature = "fuzzing")]
pub(crate) use jwt::check_token;
pub use jwt::{Algorithm, JwtIssuer};
pub(crate) use keys::Issuers;
pub use shares::IdentityLimits;
pub(crate) use shares::{Share, Shares};

/// Credentials that are not known here yet and are being looked for. Anybody can make one up, and each costs a message
/// to the leader; those that wait share one.
const LOOKUPS_MAX: usize = 64;
/// When a caller that found no place among them may come back.
const COME_BACK_AFTER: Duration = Duration::from_millis(200);

/// Finds out who callers are.
pub(crate) struct Gate {
    issuers: Arc<Issuers>,
    lookups: Semaphore,
    proved: [AtomicU64; Proof::ALL.len()],
    refused: AtomicU64,
}

/// What proved an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    Credential,
    Certificate,
    Token,
}

impl Proof {
    pub const ALL: [Proof; 3] = [Proof::Credential, Proof::Certificate, Proof::Token];

    /// The word for it, in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Proof::Credential => "credential",
            Proof::Certificate => "certificate",
            Proof::Token => "jwt",
        }
    }
}

/// What a request presents in its head.
#[derive(Debug, PartialEq, Eq)]
enum Presented {
    Nothing,
    Credential(Bearer),
    Token(Zeroizing<String>),
}

/// Who a caller has proved to be, and until when that is to be believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identified {
    pub identity: Identity,
    /// In milliseconds since 1970; of a token only, because the state judges credentials and TLS certificates.
    pub expires_ms: Option<u64>,
}

impl Identified {
    fn as_long_as_it_takes(identity: Identity) -> Identified {
        Identified { identity, expires_ms: None }
    }
}

impl Gate {
    pub fn new(issuers: Arc<Issuers>) -> Gate {
        Gate {
            issuers,
            lookups: Semaphore::new(LOOKUPS_MAX),
            proved: Default::default(),
            refused: AtomicU64::new(0),
        }
    }

    /// How often each kind of proof was believed, and how often a caller was refused.
    pub fn counts(&self) -> ([(Proof, u64); 3], u64) {
        let proved = |proof: Proof| (proof, self.proved[proof as usize].load(Relaxed));
        (Proof::ALL.map(proved), self.refused.load(Relaxed))
    }

    /// The issuers of tokens that this node trusts.
    pub fn issuers(&self) -> &Issuers {
        &self.issuers
    }

    /// Who sent a request with this head over a connection with this certificate. Takes what proves it out of the head,
    /// so that nothing behind this keeps it or shows it.
    pub async fn identify(
        &self,
        node: &Node,
        clock: &dyn Clock,
        headers: &mut HeaderMap,
        certificate: Option<&ClientCertificate>,
    ) -> Result<Identified, ApiError> {
        // Most callers of an open node present nothing, and pay nothing for it.
        if certificate.is_none() && !headers.contains_key(header::AUTHORIZATION) {
            return Ok(Identified::as_long_as_it_takes(Identity::Anyone));
        }
        let found = self.prove(node, clock, headers, certificate).await;
        match &found {
            Ok((proof, _)) => self.proved[*proof as usize].fetch_add(1, Relaxed),
            Err(_) => self.refused.fetch_add(1, Relaxed),
        };
        found.map(|(_, identified)| identified)
    }

    async fn prove(
        &self,
        node: &Node,
        clock: &dyn Clock,
        headers: &mut HeaderMap,
        certificate: Option<&ClientCertificate>,
    ) -> Result<(Proof, Identified), ApiError> {
        let presented = take_presented(headers)?;
        match (presented, certificate) {
            (Presented::Nothing, Some(certificate)) => {
                let signed_by = match certificate.is_by_root() {
                    true => SignedBy::Root,
                    false => SignedBy::ClientAuthority,
                };
                let identity = certificate::identity(certificate.der(), signed_by);
                let identity = identity.map_err(|why| unauthenticated(why.to_string()))?;
                Ok((Proof::Certificate, Identified::as_long_as_it_takes(identity)))
            }
            (Presented::Credential(bearer), None) => {
                let identity = self.credential(node, clock, &bearer).await?;
                Ok((Proof::Credential, Identified::as_long_as_it_takes(identity)))
            }
            (Presented::Token(token), None) => Ok((Proof::Token, self.token(&token, clock.wall())?)),
            (Presented::Nothing, None) => Err(unauthenticated("nothing was presented")),
            (_, Some(_)) => Err(unauthenticated(
                "the request presents two identities: a client certificate, and an Authorization header",
            )),
        }
    }

    async fn credential(
        &self,
        node: &Node,
        clock: &dyn Clock,
        bearer: &Bearer,
    ) -> Result<Identity, ApiError> {
        // One answer for every reason: whether an id exists is nobody's business.
        let unknown = || unauthenticated("the credential is unknown, revoked, or its secret is wrong");
        let mut record = known(node, clock, bearer);
        if record.is_none() {
            // It may have been made a moment ago, elsewhere: only a confirmed reading may say that there is none.
            let _place = self.lookups.try_acquire().map_err(|_| {
                ApiError::overloaded("too many unknown credentials are being looked for", COME_BACK_AFTER)
            })?;
            node.ready().await.map_err(crate::calls::failed)?;
            record = known(node, clock, bearer);
        }
        let (name, right) = record.ok_or_else(unknown)?;
        match right {
            true => Ok(Identity::Named { name, credential: Some(bearer.id()) }),
            false => Err(unknown()),
        }
    }

    fn token(&self, token: &str, now: WallTime) -> Result<Identified, ApiError> {
        let verified = self.issuers.verify(token, now).map_err(|why| unauthenticated(why.to_string()))?;
        let name: IdentityName = format!("jwt/{}/{}", verified.issuer, verified.subject)
            .parse()
            .map_err(|_| unauthenticated("the JWT's subject is too long, or has a control character"))?;
        Ok(Identified { identity: Identity::named(name), expires_ms: Some(verified.expires_ms) })
    }
}

/// Whose credential this is, and whether its secret is right and it is still good for anything; as far as this node
/// has applied.
fn known(node: &Node, clock: &dyn Clock, bearer: &Bearer) -> Option<(IdentityName, bool)> {
    let presented = ring::digest::digest(&ring::digest::SHA256, bearer.secret());
    node.glance(|machine| {
        let credential = machine.credential(bearer.id())?;
        let right = bool::from(credential.hash.as_slice().ct_eq(presented.as_ref()));
        // The log's calendar stands still while nothing is written; reads must not outlive a credential for that.
        let wall = machine.authority_wall().as_unix_millis().max(clock.wall().as_unix_millis());
        let over = credential.standing(WallTime::from_unix_millis(wall)) == Standing::Ended;
        Some((credential.name.clone(), right && !over))
    })
}

/// Takes what a head presents out of it.
fn take_presented(headers: &mut HeaderMap) -> Result<Presented, ApiError> {
    let header::Entry::Occupied(entry) = headers.entry(header::AUTHORIZATION) else {
        return Ok(Presented::Nothing);
    };
    let (_, mut values) = entry.remove_entry_mult();
    let first = values.next();
    if values.next().is_some() {
        return Err(unauthenticated("the request has two Authorization headers"));
    }
    first.as_ref().map_or(Ok(Presented::Nothing), presented)
}

fn presented(value: &HeaderValue) -> Result<Presented, ApiError> {
    let unreadable = || unauthenticated("the Authorization header is not `Bearer` and a credential or a JWT");
    let text = value.to_str().map_err(|_| unreadable())?;
    let (scheme, rest) = text.split_once(' ').ok_or_else(unreadable)?;
    let rest = rest.trim();
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(unreadable());
    }
    if Bearer::is_meant(rest) {
        let whole = rest.parse().map_err(|_| unauthenticated("the credential is not whole"))?;
        return Ok(Presented::Credential(whole));
    }
    match jwt::looks_like_one(rest) {
        true => Ok(Presented::Token(Zeroizing::new(rest.to_owned()))),
        false => Err(unreadable()),
    }
}

/// A caller that is not believed.
pub(crate) fn unauthenticated(why: impl Into<String>) -> ApiError {
    ApiError::new(Code::Unauthenticated, format!("{}; nothing was done", why.into())).hint(
        "present one valid credential: --credential FILE or TENURE_CREDENTIAL for `tenure`, `Authorization: Bearer …` \
         over HTTP; `tenure auth new` makes one",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDENTIAL: &str =
        "tenure_00010203ffeeddcc_a5a4a7a6a1a0a3a2adacafaea9a8abaab5b4b7b6b1b0b3b2bdbcbfbeb9b8bbba";

    fn head(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("tenure-session", HeaderValue::from_static("s"));
        for value in values {
            headers.append(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn what_is_presented_is_taken_out_of_the_head() {
        let mut headers = head(&[&format!("bearer  {CREDENTIAL}")]);
        assert!(matches!(take_presented(&mut headers), Ok(Presented::Credential(_))));
        assert_eq!(headers.len(), 1);
        let mut headers = head(&["Bearer a.b.c"]);
        assert!(matches!(take_presented(&mut headers), Ok(Presented::Token(_))));
        assert_eq!(headers.len(), 1);
        assert_eq!(take_presented(&mut headers), Ok(Presented::Nothing));
    }

    #[test]
    fn two_headers_are_refused_whatever_they_say() {
        let one = format!("Bearer {CREDENTIAL}");
        for two in [[one.as_str(), one.as_str()], [&one, "Bearer a.b.c"], [&one, "x"]] {
            let mut headers = head(&two);
            assert_eq!(take_presented(&mut headers).unwrap_err().code, Code::Unauthenticated);
            assert_eq!(headers.len(), 1, "nothing of it is kept");
        }
    }

    /// A refusal that showed what was sent would put it into logs.
    #[test]
    fn what_cannot_be_read_is_refused_and_not_repeated() {
        let secret = "a5a4a7a6a1a0";
        let texts = [
            "",
            "Bearer",
            "Bearer ",
            &format!("Basic {CREDENTIAL}"),
            CREDENTIAL,
            &format!("Bearer {}", &CREDENTIAL[..CREDENTIAL.len() - 1]),
            &format!("Bearer {CREDENTIAL}0"),
            &format!("Bearer {CREDENTIAL}, Bearer {CREDENTIAL}"),
            &format!("Bearer {CREDENTIAL} {CREDENTIAL}"),
            "Bearer hunter2",
        ];
        for text in texts {
            let refused = take_presented(&mut head(&[text])).expect_err(text);
            assert_eq!(refused.code, Code::Unauthenticated);
            let shown = format!("{refused:?}");
            assert!(!shown.contains(secret) && !shown.contains("hunter2"), "{shown}");
        }
    }
}
