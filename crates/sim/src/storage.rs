//! A storage behind a fence: the shipped fencing rule, and writes that arrive late. A write that was sent
//! arrives whatever happens to its writer: that is what fences are for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tenure_checker::FenceStep;
use tenure_core::{Mark, Token};
use tokio::sync::oneshot;

use crate::net::Tick;
use crate::record::Record;

/// The storage. Clones are the same one.
#[derive(Clone)]
pub struct Storage {
    record: Record,
    inside: Arc<Mutex<Inside>>,
}

#[derive(Default)]
struct Inside {
    marks: BTreeMap<Arc<str>, Mark>,
    under_way: BTreeMap<(Tick, u64), Request>,
    number: u64,
}

struct Request {
    scope: Arc<str>,
    token: Token,
    barrier: bool,
    reply: oneshot::Sender<bool>,
}

impl Storage {
    /// An empty storage.
    pub fn new(record: Record) -> Storage {
        Storage { record, inside: Arc::default() }
    }

    /// Sends a barrier or a write that arrives at `at`; whether it was accepted.
    pub fn send(&self, at: Tick, scope: Arc<str>, token: Token, barrier: bool) -> oneshot::Receiver<bool> {
        let (reply, answer) = oneshot::channel();
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        inside.number += 1;
        let place = (at, inside.number);
        inside.under_way.insert(place, Request { scope, token, barrier, reply });
        answer
    }

    /// It is `now`: what has arrived is judged.
    pub fn tick(&self, now: Tick) {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(entry) = inside.under_way.first_entry().filter(|entry| entry.key().0 <= now) {
            let Request { scope, token, barrier, reply } = entry.remove();
            let mark = inside.marks.entry(scope.clone()).or_default();
            let accepted = if barrier { mark.barrier(token).is_ok() } else { mark.write(token).is_ok() };
            let at = now * 1_000;
            let kind = if barrier { "barrier" } else { "write" };
            self.record.note(at, format_args!("storage {scope} {kind} {token} accepted={accepted}"));
            self.record.count(|coverage| match (accepted, barrier) {
                (true, true) => {}
                (true, false) => coverage.fenced_writes += 1,
                (false, true) => coverage.stale_barriers += 1,
                (false, false) => coverage.stale_writes += 1,
            });
            let step = FenceStep { scope, token: token.get(), at, accepted };
            self.record.history(|history| history.fence_steps.push(step));
            let _ = reply.send(accepted);
        }
    }
}
