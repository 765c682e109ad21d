//! Why a measurement failed, as text.

use std::fmt;

/// What went wrong, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BenchError {
    message: String,
    /// True if nothing could be reached, as opposed to a store that answered something else than was needed.
    pub unreachable: bool,
}

impl BenchError {
    /// Something did not answer as it should.
    pub fn new(message: impl Into<String>) -> BenchError {
        BenchError { message: message.into(), unreachable: false }
    }

    /// Nobody is there.
    pub fn unreachable(message: impl Into<String>) -> BenchError {
        BenchError { message: message.into(), unreachable: true }
    }
}

impl fmt::Display for BenchError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for BenchError {}

impl From<tonic::Status> for BenchError {
    fn from(status: tonic::Status) -> BenchError {
        let unreachable = status.code() == tonic::Code::Unavailable;
        BenchError { message: format!("{:?}: {}", status.code(), status.message()), unreachable }
    }
}

impl From<std::io::Error> for BenchError {
    fn from(error: std::io::Error) -> BenchError {
        BenchError::unreachable(error.to_string())
    }
}
