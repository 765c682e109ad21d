//! The key of a node: made once, kept in its data directory, known to the cluster by its hash.

use crate::files::read_secret;
use crate::{KeyHash, TlsError};
use rcgen::{KeyPair, PublicKeyData};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Where it is kept.
const FILE: &str = "node.key";

/// See the module. Clones are the same.
#[derive(Clone)]
pub struct NodeKey(Arc<KeyPair>);

impl NodeKey {
    /// A key that is kept nowhere.
    pub fn generate() -> Result<NodeKey, TlsError> {
        Ok(NodeKey(Arc::new(KeyPair::generate()?)))
    }

    /// The key of a data directory, made now if it has none.
    pub fn of_directory(directory: &Path) -> Result<NodeKey, TlsError> {
        let path = directory.join(FILE);
        match read_secret(&path) {
            Ok(text) => return NodeKey::parse(&text, &path),
            Err(TlsError::File { error, .. }) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let key = NodeKey::generate()?;
        let draft = directory.join(format!("{FILE}.{}.tmp", std::process::id()));
        let made = key.write(&draft, &path).map_err(|error| TlsError::File { path: path.clone(), error });
        let _ = fs::remove_file(&draft);
        match made? {
            true => Ok(key),
            false => NodeKey::parse(&read_secret(&path)?, &path),
        }
    }

    /// Writes the key durably, unless another process was first. A link and not a rename: of two processes that are
    /// started on one directory, the one that goes on must not have a key that the other has overwritten.
    fn write(&self, draft: &Path, path: &Path) -> io::Result<bool> {
        match fs::remove_file(draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(draft)?;
        let text = Zeroizing::new(self.0.serialize_pem());
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        match fs::hard_link(draft, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
            linked => linked?,
        }
        if let Some(directory) = path.parent() {
            File::open(directory)?.sync_all()?;
        }
        Ok(true)
    }

    fn parse(text: &[u8], path: &Path) -> Result<NodeKey, TlsError> {
        let damaged = |why: String| {
            let what = format!("{} is damaged", path.display());
            let repair = "bring it back from a copy, or replace this node by a new one under a new number";
            TlsError::content(what, format!("{why}; {repair}"))
        };
        let key = PrivateKeyDer::from_pem_slice(text).map_err(|error| damaged(error.to_string()))?;
        let key = KeyPair::try_from(&key).map_err(|error| damaged(error.to_string()))?;
        Ok(NodeKey(Arc::new(key)))
    }

    /// By which the cluster knows it.
    pub fn hash(&self) -> KeyHash {
        KeyHash::of(&self.0.subject_public_key_info())
    }

    pub(crate) fn pair(&self) -> &KeyPair {
        &self.0
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeKey({})", self.hash())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_directory_keeps_its_key_and_keeps_it_to_itself() {
        let directory = tempfile::tempdir().expect("a directory");
        let first = NodeKey::of_directory(directory.path()).expect("a key");
        assert_eq!(NodeKey::of_directory(directory.path()).expect("the same").hash(), first.hash());
        let file = directory.path().join(FILE);
        assert_eq!(file.metadata().expect("it exists").permissions().mode() & 0o7777, 0o600);
        assert_eq!(fs::read_dir(directory.path()).expect("a list").count(), 1, "no draft is left");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("its mode is set");
        let said = NodeKey::of_directory(directory.path()).expect_err("others can read it").to_string();
        assert!(said.contains("chmod 600"), "{said}");
    }

    #[test]
    fn of_two_that_start_at_once_both_have_the_key_in_the_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join(FILE);
        let (first, second) = (NodeKey::generate().expect("a key"), NodeKey::generate().expect("a key"));
        assert!(first.write(&directory.path().join("1"), &path).expect("it is written"));
        assert!(!second.write(&directory.path().join("2"), &path).expect("it is seen"));
        assert_eq!(NodeKey::of_directory(directory.path()).expect("a key").hash(), first.hash());
    }

    #[test]
    fn a_damaged_key_is_not_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join(FILE);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600).open(&path).expect("an empty file");
        let said = NodeKey::of_directory(directory.path()).expect_err("it is damaged").to_string();
        assert!(said.contains("is damaged"), "{said}");
    }
}
