//! How many bytes the session streams of a node have in flight: of messages that are still arriving, and of commands
//! that have not been answered. Bounded per stream and over all streams of a kind.
//!
//! A stream lives as long as its client, so its body has no length to limit; without this, a thousand streams with
//! half a message each, or with thousands of large writes each, would pin whatever their clients choose to send. This
//! file counts and refuses; it never waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tenure_wire::{About, ApiError};

/// When a command that found no room may come back: a few commits later.
const COME_BACK_AFTER: Duration = Duration::from_millis(200);

/// The head of a gRPC message: whether it is compressed, and how long it is.
const HEAD_BYTES: usize = 5;

/// What all streams of a kind have in flight together.
#[derive(Debug)]
pub(crate) struct AllStreams {
    bytes: AtomicUsize,
    max: usize,
    per_stream_max: usize,
}

impl AllStreams {
    /// Nothing yet, and at most so much.
    pub fn new(max: usize, per_stream_max: usize) -> Arc<AllStreams> {
        Arc::new(AllStreams { bytes: AtomicUsize::new(0), max, per_stream_max })
    }

    /// One more stream.
    pub fn stream(self: &Arc<Self>) -> Arc<InFlight> {
        Arc::new(InFlight { bytes: AtomicUsize::new(0), all: self.clone() })
    }

    /// How much is in flight.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }
}

/// What one stream has in flight.
#[derive(Debug)]
pub(crate) struct InFlight {
    bytes: AtomicUsize,
    all: Arc<AllStreams>,
}

impl InFlight {
    /// So much more is in flight, unless it is too much.
    pub fn take(&self, bytes: usize) -> Result<(), ApiError> {
        let own = self.bytes.fetch_add(bytes, Relaxed) + bytes;
        let all = self.all.bytes.fetch_add(bytes, Relaxed) + bytes;
        let (own_max, all_max) = (self.all.per_stream_max, self.all.max);
        let refused = match () {
            () if own > own_max => refused("this stream has too much in flight", "stream_bytes_max", own_max),
            () if all > all_max => {
                refused("the streams of this node have too much in flight", "streams_bytes_max", all_max)
            }
            () => return Ok(()),
        };
        self.give_back(bytes);
        Err(refused)
    }

    /// The same, until what is returned is dropped.
    pub fn hold(self: &Arc<Self>, bytes: usize) -> Result<Held, ApiError> {
        self.take(bytes).map(|()| Held { stream: self.clone(), bytes })
    }

    /// So much was answered, or given up.
    pub fn give_back(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Relaxed);
        self.all.bytes.fetch_sub(bytes, Relaxed);
    }
}

/// Bytes in flight, for as long as this exists.
#[derive(Debug)]
pub(crate) struct Held {
    stream: Arc<InFlight>,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.stream.give_back(self.bytes);
    }
}

fn refused(what: &str, limit: &str, max: usize) -> ApiError {
    ApiError::overloaded(what, COME_BACK_AFTER)
        .hint("wait for answers before sending more, or spread the load over time")
        .about(About { limit: Some(limit.into()), max: Some(max as u64), ..About::default() })
}

/// The message of a stream that is still arriving.
#[derive(Debug, Default)]
pub(crate) struct Arriving {
    head: [u8; HEAD_BYTES],
    /// Bytes of the message that have arrived, its head among them.
    arrived: usize,
}

impl Arriving {
    /// More has arrived: how much of it belongs to a message that is not whole yet.
    pub fn add(&mut self, mut data: &[u8]) -> usize {
        while !data.is_empty() {
            if self.arrived < HEAD_BYTES {
                let taken = data.len().min(HEAD_BYTES - self.arrived);
                self.head[self.arrived..self.arrived + taken].copy_from_slice(&data[..taken]);
                self.arrived += taken;
                data = &data[taken..];
            }
            if self.arrived >= HEAD_BYTES {
                let [_, length @ ..] = self.head;
                let whole = HEAD_BYTES + u32::from_be_bytes(length) as usize;
                let taken = data.len().min(whole - self.arrived);
                self.arrived += taken;
                data = &data[taken..];
                if self.arrived == whole {
                    self.arrived = 0;
                }
            }
        }
        self.arrived
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_wire::Code;

    #[test]
    fn a_stream_and_all_streams_together_are_bounded() {
        let all = AllStreams::new(100, 60);
        let (a, b) = (all.stream(), all.stream());
        a.take(60).unwrap();
        let error = a.take(1).unwrap_err();
        assert_eq!((error.code, error.about.limit.as_deref()), (Code::Overloaded, Some("stream_bytes_max")));
        b.take(40).unwrap();
        let error = b.take(1).unwrap_err();
        assert_eq!((error.about.limit.as_deref(), error.about.max), (Some("streams_bytes_max"), Some(100)));
        assert_eq!(all.bytes(), 100, "what was refused does not count");
        a.give_back(60);
        let held = b.hold(20).unwrap();
        assert_eq!(all.bytes(), 60);
        drop(held);
        assert_eq!(all.bytes(), 40);
    }

    #[test]
    fn only_messages_that_are_not_whole_count_as_arriving() {
        let mut arriving = Arriving::default();
        let message = |length: u8| [vec![0, 0, 0, 0, length], vec![7; length.into()]].concat();
        assert_eq!(arriving.add(&message(3)), 0);
        assert_eq!(arriving.add(&message(0)), 0);
        assert_eq!(arriving.add(&message(9)[..4]), 4, "not even its head is there");
        assert_eq!(arriving.add(&message(9)[4..10]), 10);
        assert_eq!(arriving.add(&[&message(9)[10..], &message(2)[..]].concat()), 0);
        assert_eq!(arriving.add(&[&message(2)[..], &message(200)[..100]].concat()), 100);
        assert_eq!(arriving.add(&message(200)[100..]), 0);
    }
}
