//! Appends from one connection, fed to the engine without waiting and answered in their order.

use super::message::{self, kind};
use super::server::Answers;
use crate::engine::{Engine, Types};
use futures_util::StreamExt;
use openraft::raft::AppendEntriesRequest;
use tokio::sync::mpsc;

/// How many appends wait for the engine at a time; more than a leader has on their way.
const WAITING_MAX: usize = 64;

type Request = AppendEntriesRequest<Types>;

/// One run of appends. It ends with the first that the engine refuses, because those behind it were
/// sent in the belief that it would succeed; another run begins with the next that comes in.
pub(super) struct Pipeline {
    requests: mpsc::Sender<Request>,
    calls: mpsc::UnboundedSender<u64>,
}

impl Pipeline {
    pub fn start(engine: &Engine, answers: Answers) -> Self {
        let (requests, input) = mpsc::channel::<Request>(WAITING_MAX);
        let (calls, mut waiting) = mpsc::unbounded_channel();
        let input = futures_util::stream::unfold(input, |mut input| async move {
            let request = input.recv().await?;
            Some((request, input))
        });
        let output = engine.stream_append(input);
        tokio::spawn(async move {
            let mut output = std::pin::pin!(output);
            while let Some(Ok(result)) = output.next().await {
                let Some(call) = waiting.recv().await else { break };
                answers.send(call, kind::ANSWER, message::encode_appended(&result));
                if result.is_err() {
                    break;
                }
            }
            waiting.close();
            while let Ok(call) = waiting.try_recv() {
                answers.send(call, kind::FAILED, "an append before this one was refused".into());
            }
        });
        Self { requests, calls }
    }

    /// Takes in one append; gives it back if this run has ended.
    pub async fn push(&self, call: u64, request: Request) -> Result<(), Request> {
        if self.calls.send(call).is_err() {
            return Err(request);
        }
        // If the run ends just now, the call is answered with a failure there.
        let _ = self.requests.send(request).await;
        Ok(())
    }
}
