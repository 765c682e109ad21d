//! Linearizable reads: they see everything that was acknowledged before them.
//!
//! One confirmation is in flight at a time, for all readers that were waiting when it began. Later readers
//! wait for the next one, because only a confirmation that *begins* after a read request proves anything
//! about it. It is confirmed by a quorum, never by a clock.

use crate::engine::{Engine, Types};
use crate::error::BarrierError;
use openraft::LinearizerOption;
use openraft::errors::{Fatal, LinearizableReadError, RaftError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

type BarrierReply = oneshot::Sender<Result<(), BarrierError>>;

/// The way to the one task that confirms.
#[derive(Clone)]
pub(crate) struct Barrier(mpsc::UnboundedSender<BarrierReply>);

impl Barrier {
    /// Starts the task. It ends when all clones are gone.
    pub fn start(engine: Engine, patience: Duration) -> Self {
        let (sender, mut waiting) = mpsc::unbounded_channel::<BarrierReply>();
        tokio::spawn(async move {
            let mut answers = Vec::new();
            while waiting.recv_many(&mut answers, usize::MAX).await > 0 {
                let result = confirm(&engine, patience).await;
                for answer in answers.drain(..) {
                    // Whoever no longer waits needs no answer.
                    let _ = answer.send(result.clone());
                }
            }
        });
        Self(sender)
    }

    /// Waits for a confirmation that begins after this call, and until the machine shows what it covers.
    pub async fn pass(&self) -> Result<(), BarrierError> {
        let stopped = || BarrierError::Stopped("the replica has shut down".into());
        let (sender, receiver) = oneshot::channel();
        self.0.send(sender).map_err(|_| stopped())?;
        receiver.await.map_err(|_| stopped())?
    }
}

async fn confirm(engine: &Engine, patience: Duration) -> Result<(), BarrierError> {
    // An age of zero: no acknowledgement from before this question counts.
    let option = LinearizerOption::new(Some(Duration::ZERO), true).with_wait_timeout(patience);
    let linearizer = engine.get_read_linearizer(option).await.map_err(|error| match error {
        RaftError::APIError(LinearizableReadError::ForwardToLeader(forward)) => {
            BarrierError::NotLeader { leader: forward.leader_id }
        }
        RaftError::APIError(LinearizableReadError::QuorumNotEnough(_)) => BarrierError::NoQuorum,
        RaftError::Fatal(fatal) => stopped(fatal),
    })?;
    let ready = linearizer.try_await_ready(engine, Some(patience)).await.map_err(stopped)?;
    ready.map(|_| ()).map_err(|_| BarrierError::NoQuorum)
}

fn stopped(fatal: Fatal<Types>) -> BarrierError {
    BarrierError::Stopped(fatal.to_string())
}
