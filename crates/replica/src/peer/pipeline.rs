//! Appends from one connection, fed to the engine without waiting and answered in their order.

use super::message::{self, kind};
use super::server::Answers;
use crate::config::Execution;
use crate::engine::{Engine, Types};
use crate::spin_wait::{Streak, spin_wait};
use futures_util::StreamExt;
use openraft::raft::AppendEntriesRequest;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// How many appends wait for the engine at a time; more than a leader has on their way.
const WAITING_MAX: usize = 64;

/// The most that a single caller's entry takes on its way.
const LONE_BYTES_MAX: usize = 256;

type Request = AppendEntriesRequest<Types>;

/// A call that waits for its answer.
struct PendingCall {
    call: u64,
    small: bool,
    since: Instant,
}

/// One run of appends. It ends with the first that the engine refuses, because those behind it were
/// sent in the belief that it would succeed; another run begins with the next that comes in.
pub(super) struct Pipeline {
    requests: mpsc::Sender<Request>,
    calls: mpsc::UnboundedSender<PendingCall>,
}

impl Pipeline {
    pub fn start(engine: &Engine, answers: Answers, execution: Execution) -> Self {
        let (requests, input) = mpsc::channel::<Request>(WAITING_MAX);
        let (calls, mut waiting) = mpsc::unbounded_channel::<PendingCall>();
        let input = futures_util::stream::unfold(input, |mut input| async move {
            let request = input.recv().await?;
            Some((request, input))
        });
        let output = engine.stream_append(input);
        tokio::spawn(async move {
            let mut output = std::pin::pin!(output);
            let mut streak = Streak::default();
            let mut answered_at = None;
            let mut spin_for = None;
            loop {
                let result = tokio::select! {
                    biased;
                    result = output.next() => result,
                    never = spin_wait(spin_for) => match never {},
                };
                let Some(Ok(result)) = result else { break };
                let Some(PendingCall { call, small, since }) = waiting.recv().await else { break };
                answers.send(call, kind::ANSWER, message::encode_appended(&result));
                if result.is_err() {
                    break;
                }
                let pause = answered_at.map(|answered_at| since.saturating_duration_since(answered_at));
                streak.came(small && waiting.is_empty());
                answered_at = Some(Instant::now());
                // Simulated time stands still for whoever does not sleep.
                spin_for = streak.spin_for(pause).filter(|_| execution == Execution::Threads);
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
        let waiting = PendingCall { call, small: bytes <= LONE_BYTES_MAX, since: Instant::now() };
        if self.calls.send(waiting).is_err() {
            return Err(request);
        }
        // If the run ends just now, the call is answered with a failure there.
        let _ = self.requests.send(request).await;
        Ok(())
    }
}
