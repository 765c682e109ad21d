//! The files with the issuers' public keys: read at the start, and again whenever one changes.
//!
//! This file decides when to read. A file that cannot be read or used any more changes nothing: the keys that were
//! there stay, and a metric says so, because a half-written file must not lock everybody out.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tenure_core::WallTime;

use super::jwt::{self, JwtIssuer, JwtRefusal, KEYS_BYTES_MAX, KeySet, Verified};

/// How often the files are looked at. An issuer publishes a new key well before it signs with it.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The issuers that a node trusts, with the keys that each has now.
#[derive(Debug, Default)]
pub(crate) struct Issuers {
    issuers: Vec<Issuer>,
    reloads: AtomicU64,
    failures: AtomicU64,
}

#[derive(Debug)]
struct Issuer {
    about: JwtIssuer,
    keys: RwLock<Arc<KeySet>>,
    /// What the file looked like when it was last read, whether or not it could be used.
    seen: Mutex<Option<Stamp>>,
}

/// By what a change of a file is noticed. A replaced file is another one, whatever its time says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Issuers {
    /// Reads all files; at the start each must be there and usable.
    pub fn load(issuers: Vec<JwtIssuer>) -> Result<Issuers, String> {
        let mut loaded: Vec<Issuer> = Vec::new();
        for about in issuers {
            let twice = |other: &JwtIssuer| other.name == about.name || other.issuer == about.issuer;
            if loaded.iter().any(|other| twice(&other.about)) {
                return Err(format!("two issuers of JWTs are called {} or say {}", about.name, about.issuer));
            }
            let (stamp, keys) = read(&about.jwks)?;
            loaded.push(Issuer { about, keys: RwLock::new(Arc::new(keys)), seen: Mutex::new(Some(stamp)) });
        }
        Ok(Issuers { issuers: loaded, ..Issuers::default() })
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.issuers.is_empty()
    }

    /// How often keys were replaced, and how often a changed file could not be used.
    pub fn counts(&self) -> (u64, u64) {
        (self.reloads.load(Relaxed), self.failures.load(Relaxed))
    }

    /// Checks a token.
    pub fn verify(&self, token: &str, now: WallTime) -> Result<Verified, JwtRefusal> {
        if self.is_empty() {
            return Err(JwtRefusal::NoIssuers);
        }
        let now_have: Vec<_> =
            self.issuers.iter().map(|issuer| (&issuer.about, issuer.keys.read().clone())).collect();
        jwt::verify(now_have.iter().map(|(about, keys)| (*about, &**keys)), token, now)
    }

    /// Reads what has changed. Blocks on files.
    pub fn look(&self) {
        for issuer in &self.issuers {
            let mut seen = issuer.seen.lock();
            let stamp = stamp(&issuer.about.jwks).ok();
            if stamp == *seen {
                continue;
            }
            *seen = stamp;
            let (name, file) = (&issuer.about.name, issuer.about.jwks.display());
            match read(&issuer.about.jwks) {
                Ok((read, keys)) => {
                    *seen = Some(read);
                    let count = keys.len();
                    *issuer.keys.write() = Arc::new(keys);
                    self.reloads.fetch_add(1, Relaxed);
                    tracing::info!(issuer = name, %file, keys = count, "the keys of an issuer were read again");
                }
                Err(why) => {
                    self.failures.fetch_add(1, Relaxed);
                    tracing::warn!(issuer = name, %why, "a changed file of keys cannot be used; the old keys stay");
                }
            }
        }
    }

    /// Looks at the files for as long as the node runs.
    pub async fn keep(self: Arc<Self>) {
        while !self.is_empty() {
            tokio::time::sleep(LOOK_EVERY).await;
            let issuers = self.clone();
            if tokio::task::spawn_blocking(move || issuers.look()).await.is_err() {
                return;
            }
        }
    }
}

fn stamp(path: &Path) -> io::Result<Stamp> {
    std::fs::metadata(path).map(|metadata| Stamp::of(&metadata))
}

impl Stamp {
    fn of(metadata: &std::fs::Metadata) -> Stamp {
        Stamp {
            inode: (metadata.dev(), metadata.ino()),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

fn read(path: &Path) -> Result<(Stamp, KeySet), String> {
    let named = |why: &dyn std::fmt::Display| format!("the file of keys {}: {why}", path.display());
    let mut file = File::open(path).map_err(|error| named(&error))?;
    let stamp = file.metadata().map(|metadata| Stamp::of(&metadata)).map_err(|error| named(&error))?;
    let mut text = Vec::new();
    let most = KEYS_BYTES_MAX as u64 + 1;
    Read::by_ref(&mut file).take(most).read_to_end(&mut text).map_err(|error| named(&error))?;
    Ok((stamp, KeySet::parse(&text).map_err(|why| named(&why))?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::{TestKey, key_set};
    use super::*;

    fn issuer(file: &Path) -> JwtIssuer {
        format!("ci,issuer=i,audience=tenure,jwks={}", file.display()).parse().unwrap()
    }

    fn now() -> WallTime {
        WallTime::from_unix_millis(1_000)
    }

    #[test]
    fn keys_follow_their_file_and_survive_a_broken_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys.json");
        let (old, new) = (TestKey::ed25519(), TestKey::ed25519());
        let claims = json!({"iss": "i", "aud": "tenure", "sub": "build", "exp": 4_000_000_000u64});
        std::fs::write(&file, key_set(&[old.jwk("old")])).unwrap();
        let issuers = Issuers::load(vec![issuer(&file)]).unwrap();
        let check = |key: &TestKey, id| issuers.verify(&key.token(id, &claims), now()).map(|_| ());
        assert_eq!(check(&old, "old"), Ok(()));
        assert_eq!(check(&new, "new"), Err(JwtRefusal::UnknownKey));
        issuers.look();
        assert_eq!(issuers.counts(), (0, 0));

        std::fs::write(&file, "{\"keys\":").unwrap();
        issuers.look();
        assert_eq!((check(&old, "old"), issuers.counts()), (Ok(()), (0, 1)));
        std::fs::remove_file(&file).unwrap();
        issuers.look();
        issuers.look();
        assert_eq!((check(&old, "old"), issuers.counts()), (Ok(()), (0, 2)));

        std::fs::write(&file, key_set(&[new.jwk("new")])).unwrap();
        issuers.look();
        assert_eq!(check(&new, "new"), Ok(()));
        assert_eq!(check(&old, "old"), Err(JwtRefusal::UnknownKey));
        assert_eq!(issuers.counts(), (1, 2));
    }

    #[test]
    fn a_node_does_not_start_with_keys_that_it_cannot_use() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys.json");
        assert!(Issuers::load(vec![issuer(&file)]).unwrap_err().contains("keys.json"));
        std::fs::write(&file, "{}").unwrap();
        assert!(Issuers::load(vec![issuer(&file)]).unwrap_err().contains("no key set"));
        std::fs::write(&file, key_set(&[TestKey::ed25519().jwk("a")])).unwrap();
        let twice = Issuers::load(vec![issuer(&file), issuer(&file)]).unwrap_err();
        assert!(twice.contains("two issuers"), "{twice}");
        assert_eq!(Issuers::default().verify("a.b.c", now()), Err(JwtRefusal::NoIssuers));
    }
}
