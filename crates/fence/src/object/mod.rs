//! Object stores with conditional PUT: S3 and kin, through the `object_store` crate. Two shapes:
//!
//! - [`Manifest`]: data objects that nobody can find, made visible by one small object per scope that is
//!   only ever replaced on the condition that nobody else has replaced it. Reads are one extra GET.
//! - [`Log`]: records under consecutive numbers, each created on the condition that its number is free. A
//!   takeover is a record too, so an older holder's next number is taken.
//!
//! ```ignore
//! let manifest = Manifest::new(Arc::new(s3), "reports");
//! manifest.put(&permit, "2024-06.csv", csv).await?;
//! let csv = manifest.get(permit.scope(), "2024-06.csv").await?;
//! ```
//!
//! Both write a random attempt number into what they put. The driver below repeats a request that a server
//! answered with an error although it had done it, and then finds its own object in the way: the attempt
//! number tells its own from another's. It also keeps two bodies, and so two ETags, from being the same.
//!
//! Not every store that speaks S3 honours conditions: [`probe`] finds out, before data depends on it. The
//! fence's objects must never be deleted, neither by hand nor by a lifecycle rule: that resets the fence.

mod log;
mod manifest;

pub use log::{Log, Record};
pub use manifest::Manifest;

use std::future::Future;
use std::time::Duration;

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use tenure_core::Scope;

use crate::budget::UNSTATED;
use crate::{FenceError, FindOut};

/// Races writers for one object and refuses a store where not exactly one of them wins. Leaves nothing
/// behind.
pub async fn probe(store: &dyn ObjectStore, prefix: &str) -> Result<(), FenceError> {
    for _ in 0..3 {
        let path = Path::from(format!("{prefix}/=probe-{}", random()?));
        let create =
            || store.put_opts(&path, PutPayload::from_static(b"1"), PutOptions::from(PutMode::Create));
        let (one, other) = tokio::join!(create(), create());
        let created = [&one, &other].iter().filter(|result| result.is_ok()).count();
        let version = one.or(other).map_err(FenceError::unavailable)?;
        let update = |body: &'static str| {
            let mode = PutMode::Update(version.clone().into());
            store.put_opts(&path, PutPayload::from_static(body.as_bytes()), PutOptions::from(mode))
        };
        let (one, other) = tokio::join!(update("2"), update("3"));
        let updated = [&one, &other].iter().filter(|result| result.is_ok()).count();
        let _ = store.delete(&path).await; // an orphan of two bytes is no harm
        if (created, updated) != (1, 1) {
            return Err(FenceError::refused(format!(
                "of two racing writers {created} created and {updated} replaced the same object: this store does \
                 not honour If-None-Match and If-Match, so it cannot be fenced"
            )));
        }
    }
    Ok(())
}

/// 128 random bits as text: no two attempts and no two data objects have the same.
fn random() -> Result<String, FenceError> {
    let mut bits = [0u8; 16];
    getrandom::fill(&mut bits).map_err(|error| FenceError::unavailable(error.to_string()))?;
    Ok(bits.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A scope as part of a key. Its own slashes stay; what a key or the driver could read differently becomes
/// `=xx`, and since `=` itself does, whatever begins with `=` beneath it is ours.
fn key_of(prefix: &str, scope: &Scope) -> Result<String, FenceError> {
    let mut key = format!("{prefix}/");
    for byte in scope.to_string().bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'/' => key.push(char::from(byte)),
            _ => key.push_str(&format!("={byte:02x}")),
        }
    }
    if key.len() > 900 {
        return Err(FenceError::refused(format!(
            "the key of {scope} would have {} bytes; 900 leave room",
            key.len()
        )));
    }
    Ok(key)
}

/// What an error says about a conditional PUT that was neither granted nor refused.
fn classify(error: object_store::Error, find_out: FindOut) -> FenceError {
    use object_store::Error as E;
    match error {
        E::PermissionDenied { .. }
        | E::Unauthenticated { .. }
        | E::NotImplemented { .. }
        | E::NotSupported { .. }
        | E::InvalidPath { .. } => FenceError::refused(error),
        _ => FenceError::unknown(find_out, error),
    }
}

/// What an error says about a read.
fn unread(error: object_store::Error) -> FenceError {
    match classify(error, FindOut::Repeat) {
        FenceError::Unknown { cause, .. } => FenceError::Unavailable { cause },
        other => other,
    }
}

async fn within<T>(
    budget: Option<Duration>,
    find_out: FindOut,
    call: impl Future<Output = Result<T, FenceError>>,
) -> Result<T, FenceError> {
    tokio::time::timeout(budget.unwrap_or(UNSTATED), call)
        .await
        .unwrap_or_else(|elapsed| Err(FenceError::unknown(find_out, elapsed)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_scope_can_name_what_is_ours() {
        let key = |scope: &str| key_of("p", &scope.parse().unwrap()).unwrap();
        assert_eq!(key("a/=manifest"), "p/a/=3dmanifest");
        assert_eq!(key("a#1"), "p/a=231");
        assert_ne!(key("a%2Fb"), key("a/b"));
        assert!(key_of("p", &"ä".repeat(200).parse().unwrap()).is_err());
    }
}
