//! Reading files: a file with a private key belongs to its owner alone.

use crate::TlsError;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use zeroize::Zeroizing;

/// No file of keys or certificates is larger.
const BYTES_MAX: u64 = 1 << 20;
/// Anything that others than the owner may do.
const OTHERS: u32 = 0o077;

/// Reads a file that holds a private key. One that others can read is refused: whoever could has the key already.
pub fn read_secret(path: &Path) -> Result<Zeroizing<Vec<u8>>, TlsError> {
    let failed = |error| TlsError::File { path: path.into(), error };
    // The mode is that of the file that is read, not of one that has its name a moment before.
    let file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o7777;
    if mode & OTHERS != 0 {
        return Err(TlsError::Readable { path: path.into(), mode });
    }
    read(file).map_err(failed)
}

/// Reads a file that holds nothing secret.
pub fn read_open(path: &Path) -> Result<Vec<u8>, TlsError> {
    let read = File::open(path).and_then(read);
    read.map(|bytes| bytes.to_vec()).map_err(|error| TlsError::File { path: path.into(), error })
}

fn read(file: File) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(Vec::new());
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is larger than any file of certificates"));
    }
    Ok(bytes)
}

/// What changes when a file is replaced or written to: enough to look at it again, not to believe anything about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen(Option<(u64, u64, u64, i64, i64)>);

impl Seen {
    pub fn of(path: &Path) -> Seen {
        Seen(
            path.metadata()
                .ok()
                .map(|file| (file.dev(), file.ino(), file.size(), file.mtime(), file.mtime_nsec())),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_key_that_others_can_read_is_refused_with_the_command_that_mends_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("root.pem");
        fs::write(&path, "key").expect("it is written");
        for mode in [0o644, 0o640, 0o604, 0o660, 0o601] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its mode is set");
            let said = read_secret(&path).expect_err("others can read it").to_string();
            assert!(said.contains(&format!("chmod 600 {}", path.display())), "{said}");
        }
        for mode in [0o600, 0o400] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its mode is set");
            assert_eq!(&**read_secret(&path).expect("it is read"), b"key");
        }
    }
}
