//! How much of one connection is worked on at a time, by count and by bytes. Past it the connection is read
//! no further.
//!
//! A request counts from the moment it is read until its answer was handed to the connection: a peer that
//! asks without reading answers is read no further either.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Requests of one connection that are worked on at a time.
const REQUESTS_MAX: usize = 1024;
/// Bytes of these requests: as much as the largest message, so that one of any size is worked on, and some
/// sixty of the largest batches that followers forward.
const REQUEST_BYTES_MAX: usize = 64 << 20;

/// The load of one connection.
pub(super) struct Load {
    requests: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

/// One request's part of the load, for as long as this exists.
pub(super) struct Share {
    _request: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
}

impl Load {
    pub fn new() -> Self {
        let requests = Arc::new(Semaphore::new(REQUESTS_MAX));
        Self { requests, bytes: Arc::new(Semaphore::new(REQUEST_BYTES_MAX)) }
    }

    /// Waits until a request with so many bytes may be worked on.
    pub async fn admit(&self, bytes: usize) -> Share {
        let never_closed = "these are never closed";
        let request = self.requests.clone().acquire_owned().await.expect(never_closed);
        let bytes = bytes.min(REQUEST_BYTES_MAX) as u32;
        let bytes = self.bytes.clone().acquire_many_owned(bytes).await.expect(never_closed);
        Share { _request: request, _bytes: bytes }
    }

    /// Whether nothing of this connection is being worked on.
    pub fn is_idle(&self) -> bool {
        self.requests.available_permits() == REQUESTS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn a_connection_is_read_no_further_by_count_and_by_bytes() {
        let load = Load::new();
        let small: Vec<Share> = (0..REQUESTS_MAX).map_while(|_| load.admit(1).now_or_never()).collect();
        assert_eq!(small.len(), REQUESTS_MAX);
        assert!(load.admit(0).now_or_never().is_none(), "too many");
        drop(small);
        assert!(load.is_idle());
        let large = load.admit(REQUEST_BYTES_MAX).now_or_never().expect("one of any size");
        assert!(load.admit(1).now_or_never().is_none(), "too large");
        assert!(!load.is_idle());
        drop(large);
        assert!(load.admit(usize::MAX).now_or_never().is_some());
    }
}
