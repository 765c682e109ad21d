//! What waits to be sent on one command stream. Answers and pushes are put in from anywhere; whatever has
//! come together when the connection has room goes out as one message.
//!
//! Bounded by credits in both directions: a client may have only so many commands unanswered, and pushes
//! beyond the client's credit are dropped, and the client learns that they were. Bounded by bytes as well: while too many wait, pushes are
//! dropped, and the stream reads no more commands ([`Outbox::has_room`]).

use std::sync::Arc;

use futures_util::{Stream, stream};
use parking_lot::Mutex;
use prost::Message;
use tenure_core::Revision;
use tenure_wire::ApiError;
use tenure_wire::proto::server_frame::Content;
use tenure_wire::proto::{Missed, ServerFrame, ServerFrames};
use tokio::sync::Notify;

/// Frames that the server may send before the client has said anything about room.
const SERVER_CREDITS_AT_START: u64 = 1_024;
/// Frames in one message: some tens of kilobytes, so that one message does not hold up the next.
const FRAMES_PER_MESSAGE_MAX: usize = 1_024;
/// Bytes of frames that wait: many times what a connection takes at once, so that only a client that does not read gets
/// there.
const BYTES_WAITING_MAX: usize = 4 << 20;

/// The sending half, shared by everybody who has something to say on the stream.
#[derive(Clone)]
pub struct Outbox(Arc<Shared>);

struct Shared {
    waiting: Mutex<PendingFrames>,
    rang: Notify,
    /// There is room again.
    drained: Notify,
}

#[derive(Default)]
struct PendingFrames {
    frames: Vec<ServerFrame>,
    /// The bytes of each, and of all together.
    sizes: Vec<usize>,
    bytes: usize,
    /// How many of them are answers.
    answers: u32,
    /// What the client may send on top of the credit that it was granted before.
    grant: u32,
    /// What the server may still send.
    room: u64,
    missed: Option<Revision>,
    end: Option<Option<ApiError>>,
}

/// An outbox and the messages that come out of it.
pub fn outbox() -> (Outbox, impl Stream<Item = Result<ServerFrames, ApiError>> + Send) {
    let shared = Arc::new(Shared {
        waiting: Mutex::new(PendingFrames { room: SERVER_CREDITS_AT_START, ..PendingFrames::default() }),
        rang: Notify::new(),
        drained: Notify::new(),
    });
    let messages = stream::unfold(Some(shared.clone()), |shared| async move {
        let shared = shared?;
        loop {
            match shared.next() {
                Next::Message(message) => return Some((Ok(message), Some(shared))),
                Next::End(Some(error)) => return Some((Err(error), None)),
                Next::End(None) => return None,
                Next::Nothing => shared.rang.notified().await,
            }
        }
    });
    (Outbox(shared), messages)
}

enum Next {
    Message(ServerFrames),
    End(Option<ApiError>),
    Nothing,
}

impl Shared {
    fn next(&self) -> Next {
        let mut waiting = self.waiting.lock();
        if waiting.frames.is_empty() && waiting.grant == 0 {
            return waiting.end.clone().map_or(Next::Nothing, Next::End);
        }
        let many = waiting.frames.len().min(FRAMES_PER_MESSAGE_MAX);
        let rest = waiting.frames.split_off(many);
        let frames = std::mem::replace(&mut waiting.frames, rest);
        let had_room = waiting.has_room();
        waiting.bytes -= waiting.sizes.drain(..many).sum::<usize>();
        waiting.answers -= frames.iter().filter(|frame| frame.frame.is_some()).count() as u32;
        if !had_room && waiting.has_room() {
            self.drained.notify_one();
        }
        waiting.room = waiting.room.saturating_sub(frames.len() as u64);
        let credits = std::mem::take(&mut waiting.grant);
        Next::Message(ServerFrames { frames, credits })
    }
}

impl PendingFrames {
    fn put(&mut self, frame: ServerFrame) {
        let size = frame.encoded_len();
        self.sizes.push(size);
        self.bytes += size;
        self.answers += u32::from(frame.frame.is_some());
        self.frames.push(frame);
    }

    fn has_room(&self) -> bool {
        self.bytes < BYTES_WAITING_MAX
    }
}

impl Outbox {
    /// How many answers the connection has not taken yet.
    pub fn answers_waiting(&self) -> u32 {
        self.0.waiting.lock().answers
    }

    /// Whether more commands should be read: the client takes what it is sent.
    pub fn has_room(&self) -> bool {
        self.0.waiting.lock().has_room()
    }

    /// Resolves when there is room again.
    pub async fn drained(&self) {
        self.0.drained.notified().await;
    }

    /// Answers a frame of the client; the client may send one more.
    pub fn answer(&self, frame: u64, session: u64, content: Content) {
        let mut waiting = self.0.waiting.lock();
        waiting.put(ServerFrame { frame: Some(frame), session, content: Some(content) });
        waiting.grant += 1;
        drop(waiting);
        self.0.rang.notify_one();
    }

    /// Says something of the server's own accord; dropped, and owned up to later, if the client has no room.
    pub fn push(&self, session: u64, content: Content, revision: Revision) {
        let mut waiting = self.0.waiting.lock();
        if waiting.room <= waiting.frames.len() as u64 || !waiting.has_room() {
            waiting.missed = Some(revision);
            return;
        }
        waiting.put(ServerFrame { frame: None, session, content: Some(content) });
        drop(waiting);
        self.0.rang.notify_one();
    }

    /// The client may send so many frames more.
    pub fn grant(&self, credits: u32) {
        self.0.waiting.lock().grant += credits;
        self.0.rang.notify_one();
    }

    /// The client has made room.
    pub fn room(&self, credits: u32) {
        let mut waiting = self.0.waiting.lock();
        waiting.room += u64::from(credits);
        if let Some(revision) = waiting.missed.take_if(|_| credits > 0) {
            let content = Some(Content::Missed(Missed { revision: revision.get() }));
            waiting.put(ServerFrame { frame: None, session: 0, content });
        }
        drop(waiting);
        self.0.rang.notify_one();
    }

    /// Ends the stream once everything put in before has gone out.
    pub fn end(&self, why: Option<ApiError>) {
        self.0.waiting.lock().end.get_or_insert(why);
        self.0.rang.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{FutureExt, StreamExt};
    use tenure_wire::proto::{self, Done};

    fn done() -> Content {
        Content::Done(Done {})
    }

    #[test]
    fn pushes_without_room_are_dropped_and_owned_up_to() {
        let (outbox, messages) = outbox();
        let mut messages = std::pin::pin!(messages);
        for revision in 0..SERVER_CREDITS_AT_START + 5 {
            outbox.push(1, done(), Revision::new(revision));
        }
        let sent = messages.next().now_or_never().flatten().unwrap().unwrap();
        assert_eq!(sent.frames.len() as u64, SERVER_CREDITS_AT_START);
        assert!(messages.next().now_or_never().is_none(), "nothing more goes out without room");
        outbox.room(10);
        let sent = messages.next().now_or_never().flatten().unwrap().unwrap();
        assert!(matches!(sent.frames[0].content, Some(Content::Missed(Missed { revision: 1_028 }))));
    }

    /// Answers cannot be dropped, so a client that reads none is read no further; pushes to it are dropped.
    #[test]
    fn a_client_that_does_not_read_is_read_no_further() {
        let (outbox, messages) = outbox();
        let mut messages = std::pin::pin!(messages);
        let value = proto::Register { value: Some(vec![0; 1 << 20]), ..Default::default() };
        let written = Content::Written(proto::WriteResponse { results: vec![value], ..Default::default() });
        let mut frame = 0;
        while outbox.has_room() && frame < 100 {
            outbox.answer(frame, 1, written.clone());
            frame += 1;
        }
        assert_eq!((frame, outbox.answers_waiting()), (4, 4));
        assert!(outbox.drained().now_or_never().is_none());
        outbox.push(1, done(), Revision::new(9));
        let sent = messages.next().now_or_never().flatten().unwrap().unwrap();
        assert_eq!(sent.frames.len(), 4, "the push is not among them");
        assert!(outbox.drained().now_or_never().is_some());
        assert_eq!((outbox.has_room(), outbox.answers_waiting()), (true, 0));
        outbox.room(1);
        let sent = messages.next().now_or_never().flatten().unwrap().unwrap();
        assert!(matches!(sent.frames[0].content, Some(Content::Missed(Missed { revision: 9 }))));
    }

    #[test]
    fn answers_go_out_together_and_give_their_credits_back() {
        let (outbox, messages) = outbox();
        let mut messages = std::pin::pin!(messages);
        (0..3).for_each(|frame| outbox.answer(frame, 1, done()));
        outbox.end(None);
        let sent = messages.next().now_or_never().flatten().unwrap().unwrap();
        assert_eq!((sent.frames.len(), sent.credits), (3, 3));
        assert!(matches!(messages.next().now_or_never(), Some(None)), "an ended stream ends");
    }
}
