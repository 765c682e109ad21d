//! What can be wrong with files, keys and certificates.

use std::io;
use std::path::PathBuf;

/// Why TLS cannot be used as it was asked for. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A file with a key can be read by others than its owner.
    #[error("{} holds a private key and can be read by others (mode {mode:04o}): run `chmod 600 {}`", path.display(), path.display())]
    Readable {
        /// Which.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// What a file or a text contains is not what is needed.
    #[error("{what}: {why}")]
    Content {
        /// Of what.
        what: String,
        /// Why.
        why: String,
    },
    /// The library refuses.
    #[error("TLS: {0}")]
    Library(String),
}

impl TlsError {
    pub(crate) fn content(what: impl Into<String>, why: impl Into<String>) -> TlsError {
        TlsError::Content { what: what.into(), why: why.into() }
    }
}

impl From<rustls::Error> for TlsError {
    fn from(error: rustls::Error) -> Self {
        TlsError::Library(error.to_string())
    }
}

impl From<rcgen::Error> for TlsError {
    fn from(error: rcgen::Error) -> Self {
        TlsError::Library(error.to_string())
    }
}
