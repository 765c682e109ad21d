//! Appends from one connection, passed to the engine without waiting and answered in order.

use super::message::{self, kind};
use super::server::Answers;
use crate::engine::{Engine, Types};
use crate::low_latency::{AppendStreak, LowLatency, spin_wait};
use futures_util::StreamExt;
use openraft::raft::AppendEntriesRequest;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// How many appends wait for the engine at a time; more than a leader has on their way.
const WAITING_MAX: usize = 64;

type Request = AppendEntriesRequest<Types>;

/// A call that waits for its answer.
struct PendingCall {
    call: u64,
    bytes: usize,
    arrived: Instant,
}

/// One run of appends. It ends with the first that the engine refuses, because those behind it were
/// sent in the belief that it would succeed; another run begins with the next that comes in.
pub(super) struct Pipeline {
    requests: mpsc::Sender<Request>,
    calls: mpsc::UnboundedSender<PendingCall>,
}

impl Pipeline {
    pub fn start(engine: &Engine, answers: Answers, low_latency: LowLatency) -> Self {
        let (requests, input) = mpsc::channel::<Request>(WAITING_MAX);
        let (calls, mut waiting) = mpsc::unbounded_channel::<PendingCall>();
        let input = futures_util::stream::unfold(input, |mut input| async move {
            let request = input.recv().await?;
            Some((request, input))
        });
        let output = engine.stream_append(input);
        tokio::spawn(async move {
            let mut output = std::pin::pin!(output);
            let mut appends = AppendStreak::new(low_latency);
            let mut spin_for = None;
            loop {
                let result = tokio::select! {
                    biased;
                    result = output.next() => result,
                    never = spin_wait(spin_for) => match never {},
                };
                let Some(Ok(result)) = result else { break };
                let Some(PendingCall { call, bytes, arrived }) = waiting.recv().await else { break };
                answers.send(call, kind::ANSWER, message::encode_appended(&result));
                if result.is_err() {
                    break;
                }
                spin_for = appends.answered(bytes, arrived, !waiting.is_empty(), Instant::now());
            }
            waiting.close();
            while let Ok(PendingCall { call, .. }) = waiting.try_recv() {
                answers.send(call, kind::FAILED, "an append before this one was refused".into());
            }
        });
        Self { requests, calls }
    }

    /// Takes in one append; gives it back if this run has ended.
    pub async fn push(&self, call: u64, bytes: usize, request: Request) -> Result<(), Request> {
        let waiting = PendingCall { call, bytes, arrived: Instant::now() };
        if self.calls.send(waiting).is_err() {
            return Err(request);
        }
        // If the run ends just now, the call is answered with a failure there.
        let _ = self.requests.send(request).await;
        Ok(())
    }
}
