//! The leader's side: answers what other nodes forward to this one.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tenure_core::{Answer, Done, FormatVersion, Identity};
use tenure_replica::{ForwardHandler, NodeId};
use tenure_wire::{ForwardFailure, Forwarded, ForwardedReply};
use tokio::sync::oneshot;

use super::RenewalBatch;
use crate::failure::Failure;
use crate::node::{Node, Submission};

/// When a batch is answered although not all of its commands are: before those who sent it give up on all of
/// them.
const BATCH_ANSWERED_WITHIN: Duration = Duration::from_secs(8);
/// Bytes of one reply. The peer port carries messages of 64 MiB.
const REPLY_BYTES_MAX: usize = 48 << 20;

/// Answers what other nodes forward to this one.
struct LocalHandler(Node);

impl ForwardHandler for LocalHandler {
    fn handle(&self, _from: NodeId, request: Bytes) -> BoxFuture<'static, Bytes> {
        let node = self.0.clone();
        async move {
            let (version, reply) = match tenure_wire::decode_forwarded(FormatVersion::NEWEST, &request) {
                Ok((version, request)) => (version, answer(&node, version, request).await),
                Err(error) => {
                    let failure = ForwardFailure::Unknown(error.to_string());
                    (FormatVersion::OLDEST, ForwardedReply::Failed(failure))
                }
            };
            // Whoever asked in a version reads it, even if this node has not applied the raise to it yet.
            encode(node.format().max(version), reply)
        }
        .boxed()
    }
}

/// The reply as it travels. What would make it too long is left out; its outcome is then unknown, and
/// whoever repeats the command under its number gets the answer alone.
fn encode(version: FormatVersion, mut reply: ForwardedReply) -> Bytes {
    let mut encoded = tenure_wire::encode_forwarded_reply(version, &reply);
    if encoded.len() > REPLY_BYTES_MAX
        && let ForwardedReply::Answers(answers) = &mut reply
    {
        for answer in answers.iter_mut().filter(|answer| matches!(answer, Ok(Ok(Done::Written { .. })))) {
            *answer = Err(ForwardFailure::Unknown("the answer is too long to travel with others".into()));
        }
        encoded = tenure_wire::encode_forwarded_reply(version, &reply);
    }
    encoded.into()
}

/// Answers here or not at all: a request is forwarded once, so that two nodes that each believe the other
/// leads do not pass it to and fro.
async fn answer(node: &Node, version: FormatVersion, request: Forwarded) -> ForwardedReply {
    let answered = match request {
        Forwarded::Command(encoded) => {
            let mut answers = submit_all(node, version, vec![encoded]).await;
            let answer = answers.pop().unwrap_or_else(|| Err(Failure::stopped_meanwhile()));
            answer.map(|answer| ForwardedReply::Answer(Box::new(answer)))
        }
        Forwarded::Commands(commands) => {
            let answers = submit_all(node, version, commands).await;
            let each = answers.into_iter().map(|answer| answer.map_err(ForwardFailure::from));
            Ok(ForwardedReply::Answers(each.collect()))
        }
        Forwarded::Renewals(renewals) => {
            node.renew_proved(RenewalBatch::unproved(renewals)).await.map(ForwardedReply::Renewals)
        }
        Forwarded::ProvedRenewals { renewals, proofs } => {
            node.renew_proved(RenewalBatch { renewals, proofs }).await.map(ForwardedReply::Renewals)
        }
        Forwarded::ReadIndex => node.read_index_here().await.map(ForwardedReply::ReadIndex),
        Forwarded::Administer(request) => {
            Ok(ForwardedReply::Administered(node.administer_here(&request).await))
        }
    };
    answered.unwrap_or_else(|failure| ForwardedReply::Failed(failure.into()))
}

/// Puts commands into this node's own leader loop, in this order, and waits for what becomes of each.
async fn submit_all(
    node: &Node,
    version: FormatVersion,
    commands: Vec<Vec<u8>>,
) -> Vec<Result<Answer, Failure>> {
    let (gathering, mut done) = Gathering::new(commands.len());
    for (at, encoded) in commands.into_iter().enumerate() {
        let gathering = gathering.clone();
        // Whom it is from is in what was forwarded.
        let forwarded = Submission::Forwarded { version, encoded };
        let reply = Box::new(move |answer| gathering.note(at, answer));
        node.accept(&Identity::Anyone, forwarded, reply);
    }
    let unfinished = Arc::downgrade(&gathering);
    drop(gathering);
    let (answers, missing) = match tokio::time::timeout(BATCH_ANSWERED_WITHIN, &mut done).await {
        Ok(answers) => (answers.unwrap_or_default(), Failure::stopped_meanwhile()),
        Err(_) => {
            let answers = match unfinished.upgrade() {
                Some(gathering) => gathering.take(),
                None => done.try_recv().unwrap_or_default(),
            };
            let reason = format!("the leader has not applied it within {BATCH_ANSWERED_WITHIN:?}");
            (answers, Failure::Unknown { reason })
        }
    };
    answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(missing.clone()))).collect()
}

/// What has become of each command of a batch; `None` for those that have no answer.
type Answers = Vec<Option<Result<Answer, Failure>>>;

/// Gathers what becomes of the commands of one batch. Every command's reply holds this; when the last of
/// them was called or dropped, the answers are handed over.
struct Gathering {
    answers: Mutex<Answers>,
    done: Option<oneshot::Sender<Answers>>,
}

impl Gathering {
    fn new(many: usize) -> (Arc<Gathering>, oneshot::Receiver<Answers>) {
        let (sender, done) = oneshot::channel();
        let answers = Mutex::new(std::iter::repeat_with(|| None).take(many).collect());
        (Arc::new(Gathering { answers, done: Some(sender) }), done)
    }

    fn note(&self, at: usize, answer: Result<Answer, Failure>) {
        // There is no place any more once the batch was answered without this one.
        if let Some(place) = self.answers.lock().get_mut(at) {
            *place = Some(answer);
        }
    }

    fn take(&self) -> Answers {
        std::mem::take(&mut self.answers.lock())
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        let answers = self.take();
        if let Some(done) = self.done.take() {
            let _ = done.send(answers);
        }
    }
}

/// The handler for [`Replica::serve_forwarded`](tenure_replica::Replica::serve_forwarded).
pub fn handler(node: Node) -> Arc<dyn ForwardHandler> {
    Arc::new(LocalHandler(node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::{Register, Revision};

    #[tokio::test]
    async fn a_batch_is_answered_when_its_last_command_is() {
        let (gathering, mut done) = Gathering::new(3);
        let [first, second, third] = [gathering.clone(), gathering.clone(), gathering];
        third.note(2, Err(Failure::Stopping));
        drop(third);
        // Never called: its leader loop is gone.
        drop(second);
        assert!(done.try_recv().is_err(), "one has no answer yet");
        first.note(0, Ok(Ok(Done::Nothing)));
        drop(first);
        let answers = done.try_recv().expect("all were called or dropped");
        assert_eq!(answers, [Some(Ok(Ok(Done::Nothing))), None, Some(Err(Failure::Stopping))]);
    }

    #[tokio::test]
    async fn a_batch_that_takes_too_long_is_answered_with_what_is_known() {
        let (gathering, done) = Gathering::new(2);
        gathering.note(1, Ok(Ok(Done::Nothing)));
        assert_eq!(gathering.take(), [None, Some(Ok(Ok(Done::Nothing)))]);
        gathering.note(0, Ok(Ok(Done::Nothing)));
        drop(gathering);
        assert_eq!(done.await.expect("it is handed over"), [], "nothing is answered twice");
    }

    #[test]
    fn a_reply_too_long_for_a_message_keeps_all_answers_but_the_long_ones() {
        let value = Register {
            key: "a".parse().unwrap(),
            value: Some(vec![0; REPLY_BYTES_MAX].into()),
            create_revision: Revision::default(),
            mod_revision: Revision::default(),
            version: 1,
            session: None,
            guard: None,
        };
        let written = |results| Done::Written { succeeded: true, revision: Revision::default(), results };
        let answers = vec![Ok(Ok(Done::Nothing)), Ok(Ok(written(vec![value])))];
        let version = FormatVersion::NEWEST;
        let encoded = encode(version, ForwardedReply::Answers(answers));
        let reply = tenure_wire::decode_forwarded_reply(version, &encoded).unwrap();
        let ForwardedReply::Answers(answers) = reply else { panic!("{reply:?}") };
        assert!(
            matches!(answers[..], [Ok(Ok(Done::Nothing)), Err(ForwardFailure::Unknown(_))]),
            "{answers:?}"
        );
    }
}
