//! What a client proves its identity with: a credential file of the cluster, or a JSON web token in a file.
//!
//! This file reads it, and decides when a token that somebody else replaces is read again. It never prints a secret,
//! and it refuses a credential file that other users of the machine can read.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
#[cfg(unix)]
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use tenure_clock::SystemClock;
use tenure_tls::{ClientTls, ClientTlsOptions, TlsError};
use tenure_wire::{CREDENTIAL_FILE_BYTES_MAX, CredentialFile, InvalidCredentialFile};
use tonic::codegen::http::HeaderValue;

use crate::endpoints::Endpoints;

/// What a client proves its identity with. Cheap to clone; it shows its name and no secret.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("pay.cred");
/// # let secret = "0".repeat(64);
/// # let text = format!("tenure-credential: 1\nname: pay\ncredential: tenure_00010203ffeeddcc_{secret}\n");
/// # std::fs::write(&path, text)?;
/// # std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
/// use tenure_client::{Client, Credential, Endpoints};
///
/// let credential = Credential::load(&path)?;
/// let client = Client::connect(&Endpoints::default().with_credential(credential));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Credential(Arc<Kind>);

enum Kind {
    /// What `tenure auth new` wrote.
    Issued(CredentialFile),
    /// A token of somebody else, kept up to date in a file.
    Token { path: PathBuf, read: Mutex<Token> },
}

#[derive(Clone)]
struct Token {
    header: HeaderValue,
    stamp: Stamp,
}

/// By what a change of a file is noticed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp([i64; 5]);

impl PartialEq for Kind {
    fn eq(&self, other: &Kind) -> bool {
        match (self, other) {
            (Kind::Issued(one), Kind::Issued(other)) => one == other,
            (Kind::Token { path: one, .. }, Kind::Token { path: other, .. }) => one == other,
            _ => false,
        }
    }
}

impl Eq for Kind {}

/// Why there is no credential. It never says what stands in the file.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// The file cannot be read.
    #[error("the credential file {0} cannot be read: {1}")]
    Unreadable(PathBuf, #[source] io::Error),
    /// Others can read it.
    #[error(
        "the credential file {0} can be read by other users (mode {1:o}); run `chmod 600 {0}`, and replace the \
         credential if others may have read it"
    )]
    Exposed(PathBuf, u32),
    /// It is neither a credential file nor a token.
    #[error("{0}: {1}")]
    Invalid(PathBuf, #[source] InvalidCredentialFile),
}

impl Credential {
    /// Reads a credential file as `tenure auth new` writes it, or a file with a JSON web token, such as the one that
    /// Kubernetes puts into a pod. A token is read again when its file changes.
    pub fn load(path: impl AsRef<Path>) -> Result<Credential, CredentialError> {
        let path = path.as_ref();
        let unreadable = |error| CredentialError::Unreadable(path.to_owned(), error);
        let (text, stamp, mode) = read(path).map_err(unreadable)?;
        if let Some(header) = token(&text) {
            // Whoever puts tokens there replaces them often, and others may be meant to read them.
            let read = Mutex::new(Token { header, stamp });
            return Ok(Credential(Arc::new(Kind::Token { path: path.to_owned(), read })));
        }
        let file: CredentialFile =
            text.parse().map_err(|error| CredentialError::Invalid(path.to_owned(), error))?;
        if mode & 0o077 != 0 {
            return Err(CredentialError::Exposed(path.to_owned(), mode & 0o777));
        }
        Ok(Credential::from(file))
    }

    /// Where the cluster is, if the credential says so.
    pub fn endpoints(&self) -> Option<Endpoints> {
        let Kind::Issued(file) = &*self.0 else { return None };
        file.endpoints.join(",").parse().ok()
    }

    /// The certificates of the cluster's root, as DER; none if the credential has none.
    pub fn roots(&self) -> &[Vec<u8>] {
        match &*self.0 {
            Kind::Issued(file) => &file.roots,
            Kind::Token { .. } => &[],
        }
    }

    /// How the cluster is reached over TLS, if the credential has the certificate of its root.
    pub fn tls(&self, server_name: Option<String>) -> Result<Option<ClientTls>, TlsError> {
        let Some(file) = self.file().filter(|file| !file.roots.is_empty()) else { return Ok(None) };
        let options = ClientTlsOptions { server_name, ..ClientTlsOptions::default() };
        let options = options.authorities_text(file.roots_text().as_bytes())?;
        ClientTls::new(options, Arc::new(SystemClock)).map(Some)
    }

    /// What was read, secret and all; nothing for a token, which is somebody else's to keep.
    pub fn file(&self) -> Option<&CredentialFile> {
        match &*self.0 {
            Kind::Issued(file) => Some(file),
            Kind::Token { .. } => None,
        }
    }

    /// Where a token is kept; nothing for a credential of the cluster.
    pub fn path(&self) -> Option<&Path> {
        match &*self.0 {
            Kind::Issued(_) => None,
            Kind::Token { path, .. } => Some(path),
        }
    }

    /// The header field that proves it. Marked so that nothing prints it and no compression remembers it.
    pub fn authorization(&self) -> HeaderValue {
        match &*self.0 {
            Kind::Issued(file) => header(&file.bearer.reveal()).expect("a credential is made of digits"),
            Kind::Token { path, read } => {
                let mut now = read.lock().unwrap_or_else(PoisonError::into_inner);
                // One look at a file's state for each call. What cannot be read changes nothing: the store says
                // whether the old token is still good.
                if stamp(path).is_ok_and(|stamp| stamp != now.stamp)
                    && let Ok((text, stamp, _)) = self::read(path)
                    && let Some(header) = token(&text)
                {
                    *now = Token { header, stamp };
                }
                now.header.clone()
            }
        }
    }
}

impl From<CredentialFile> for Credential {
    fn from(file: CredentialFile) -> Credential {
        Credential(Arc::new(Kind::Issued(file)))
    }
}

impl FromStr for Credential {
    type Err = InvalidCredentialFile;

    /// From the text of a credential file.
    fn from_str(text: &str) -> Result<Credential, InvalidCredentialFile> {
        text.parse::<CredentialFile>().map(Credential::from)
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Kind::Issued(file) => write!(f, "Credential({}, {:?})", file.name, file.bearer),
            Kind::Token { path, .. } => write!(f, "Credential(token in {})", path.display()),
        }
    }
}

fn header(bearer: &str) -> Option<HeaderValue> {
    let mut header = HeaderValue::try_from(format!("Bearer {bearer}")).ok()?;
    header.set_sensitive(true);
    Some(header)
}

/// The header of a text that is a JSON web token and nothing else.
fn token(text: &str) -> Option<HeaderValue> {
    let text = text.trim();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let parts = text.split('.').count();
    (parts == 3 && text.bytes().all(plain)).then(|| header(text)).flatten()
}

fn read(path: &Path) -> io::Result<(String, Stamp, u32)> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    let mut text = String::new();
    let most = CREDENTIAL_FILE_BYTES_MAX as u64 + 1;
    Read::by_ref(&mut file).take(most).read_to_string(&mut text)?;
    Ok((text, Stamp::of(&metadata), mode(&metadata)))
}

fn stamp(path: &Path) -> io::Result<Stamp> {
    std::fs::metadata(path).map(|metadata| Stamp::of(&metadata))
}

#[cfg(unix)]
fn mode(metadata: &std::fs::Metadata) -> u32 {
    metadata.mode()
}

#[cfg(not(unix))]
fn mode(_: &std::fs::Metadata) -> u32 {
    0o600
}

impl Stamp {
    #[cfg(unix)]
    fn of(metadata: &std::fs::Metadata) -> Stamp {
        let (inode, bytes) = (metadata.ino() as i64, metadata.len() as i64);
        Stamp([inode, bytes, metadata.mtime(), metadata.mtime_nsec(), metadata.ctime()])
    }

    #[cfg(not(unix))]
    fn of(metadata: &std::fs::Metadata) -> Stamp {
        let modified = metadata.modified().ok().and_then(|at| at.elapsed().ok()).unwrap_or_default();
        Stamp([0, metadata.len() as i64, modified.as_nanos() as i64, 0, 0])
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const TEXT: &str = "tenure-credential: 1\nname: pay\nendpoints: db-1:7400,db-2:7401\n\
        credential: tenure_00010203ffeeddcc_a5a4a7a6a1a0a3a2adacafaea9a8abaab5b4b7b6b1b0b3b2bdbcbfbeb9b8bbba\n";

    fn written(text: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pay.cred");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        (folder, path)
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        for mode in [0o644, 0o640, 0o604, 0o620, 0o601] {
            let (_folder, path) = written(TEXT, mode);
            let refused = Credential::load(&path).expect_err("exposed").to_string();
            assert!(refused.contains("chmod 600"), "{mode:o}: {refused}");
        }
        for mode in [0o600, 0o400] {
            let (_folder, path) = written(TEXT, mode);
            let credential = Credential::load(&path).unwrap();
            assert_eq!(credential.endpoints().unwrap().to_string(), "db-1:7400,db-2:7401");
        }
    }

    #[test]
    fn a_secret_is_shown_to_the_store_alone() {
        let credential: Credential = TEXT.parse().unwrap();
        let header = credential.authorization();
        assert!(header.is_sensitive());
        assert!(header.to_str().unwrap().starts_with("Bearer tenure_00010203ffeeddcc_a5a4"));
        let endpoints = Endpoints::default().with_credential(credential.clone());
        let shown = format!("{credential:?} {header:?} {endpoints:?} {endpoints}");
        assert!(!shown.contains("a5a4"), "{shown}");
    }

    #[test]
    fn a_token_is_read_again_when_somebody_replaces_it() {
        let (folder, path) = written("aa.bb.cc\n", 0o644);
        let credential = Credential::load(&path).unwrap();
        assert_eq!(credential.authorization(), "Bearer aa.bb.cc");
        let next = folder.path().join("next");
        std::fs::write(&next, "dd.ee.ff").unwrap();
        std::fs::rename(&next, &path).unwrap();
        assert_eq!(credential.authorization(), "Bearer dd.ee.ff");
        std::fs::write(&path, "half a to").unwrap();
        assert_eq!(credential.authorization(), "Bearer dd.ee.ff");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(credential.authorization(), "Bearer dd.ee.ff");
    }

    #[test]
    fn what_is_neither_is_refused() {
        let (_folder, path) = written("password: hunter2", 0o600);
        let refused = Credential::load(&path).unwrap_err().to_string();
        assert!(refused.contains("first line") && !refused.contains("hunter2"), "{refused}");
        assert!(matches!(Credential::load("/nowhere/at/all"), Err(CredentialError::Unreadable(..))));
    }
}
