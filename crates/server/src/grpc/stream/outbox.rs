//! What waits to be sent on one command stream. Answers and pushes are put in from anywhere; whatever has
//! come together when the connection has room goes out as one message.
//!
//! Bounded by credits in both directions: a client may have only so many commands unanswered, and pushes that
//! it has made no room for are dropped and owned up to.

use std::sync::Arc;

use futures_util::{Stream, stream};
use parking_lot::Mutex;
use tenure_core::Revision;
use tenure_wire::proto::server_frame::Content;
use tenure_wire::proto::{Missed, ServerFrame, ServerFrames};
use tokio::sync::Notify;
use tonic::Status;

/// Frames that the server may send before the client has said anything about room.
const SERVER_CREDITS_AT_START: u64 = 1_024;
/// Frames in one message: some tens of kilobytes, so that one message does not hold up the next.
const FRAMES_PER_MESSAGE_MAX: usize = 1_024;

/// The sending half, shared by everybody who has something to say on the stream.
#[derive(Clone)]
pub struct Outbox(Arc<Shared>);

struct Shared {
    waiting: Mutex<PendingFrames>,
    rang: Notify,
}

#[derive(Default)]
struct PendingFrames {
    frames: Vec<ServerFrame>,
    /// What the client may send on top of what it was told before.
    grant: u32,
    /// What the server may still send.
    room: u64,
    missed: Option<Revision>,
    end: Option<Option<Status>>,
}

/// An outbox and the messages that come out of it.
pub fn outbox() -> (Outbox, impl Stream<Item = Result<ServerFrames, Status>> + Send) {
    let shared = Arc::new(Shared {
        waiting: Mutex::new(PendingFrames { room: SERVER_CREDITS_AT_START, ..PendingFrames::default() }),
        rang: Notify::new(),
    });
    let messages = stream::unfold(Some(shared.clone()), |shared| async move {
        let shared = shared?;
        loop {
            match shared.next() {
                Next::Message(message) => return Some((Ok(message), Some(shared))),
                Next::End(Some(status)) => return Some((Err(status), None)),
                Next::End(None) => return None,
                Next::Nothing => shared.rang.notified().await,
            }
        }
    });
    (Outbox(shared), messages)
}

enum Next {
    Message(ServerFrames),
    End(Option<Status>),
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
        waiting.room = waiting.room.saturating_sub(frames.len() as u64);
        let credits = std::mem::take(&mut waiting.grant);
        Next::Message(ServerFrames { frames, credits })
    }
}

impl Outbox {
    /// Answers a frame of the client; the client may send one more.
    pub fn answer(&self, frame: u64, session: u64, content: Content) {
        let mut waiting = self.0.waiting.lock();
        waiting.frames.push(ServerFrame { frame: Some(frame), session, content: Some(content) });
        waiting.grant += 1;
        drop(waiting);
        self.0.rang.notify_one();
    }

    /// Says something of the server's own accord; dropped, and owned up to later, if the client has no room.
    pub fn push(&self, session: u64, content: Content, revision: Revision) {
        let mut waiting = self.0.waiting.lock();
        if waiting.room <= waiting.frames.len() as u64 {
            waiting.missed = Some(revision);
            return;
        }
        waiting.frames.push(ServerFrame { frame: None, session, content: Some(content) });
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
            waiting.frames.push(ServerFrame { frame: None, session: 0, content });
        }
        drop(waiting);
        self.0.rang.notify_one();
    }

    /// Ends the stream once everything put in before has gone out.
    pub fn end(&self, status: Option<Status>) {
        self.0.waiting.lock().end.get_or_insert(status);
        self.0.rang.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{FutureExt, StreamExt};
    use tenure_wire::proto::Done;

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
