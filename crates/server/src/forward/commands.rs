//! Commands on their way from a follower to its leader.
//!
//! Decides which commands travel in one message, how many may be unanswered, and when one has waited too
//! long. Whatever gathers while a message is being made goes into the next one. Each command keeps its own
//! time limit and gets its own answer. Opens have a queue and messages of their own: no flood of anything
//! else delays one, or has one refused.
//!
//! The answer to each command is true of that command alone:
//!
//! - refused here, or too old before its message was made: nothing was sent, so nothing was applied;
//! - its message did not leave this node: nothing was applied;
//! - its message left, and no answer came before the command's own time limit: unknown;
//! - otherwise what the leader says of this command, whatever it says of the others.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::{Answer, Command, FormatVersion, ProposerLimits};
use tenure_replica::{NodeId, Replica};
use tenure_wire::{ForwardFailure, Forwarded, ForwardedReply};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, sleep_until};

use super::{ForwardNumbers, ask, failure, no_answer};
use crate::answer_size::answer_bytes_max;
use crate::failure::Failure;
use crate::leader_loop::Reply;
use crate::node::opens;
use crate::replicated::Replicated;

/// How long a command may take. It may wait for a slow disk; its caller decides when to give up.
pub(super) const COMMAND_WITHIN: Duration = Duration::from_secs(10);
/// Bytes that the answers to one message may have, by the longest that its commands can get: a reply is one
/// message, and a long one would hold up those behind it.
const ANSWER_BYTES_PER_MESSAGE_MAX: usize = 16 << 20;

/// Messages of one queue that are under way at a time: one at the leader, one on its way. What arrives meanwhile
/// goes into the next one; without this bound every command would travel alone.
const MESSAGES_UNDER_WAY_MAX: usize = 2;
/// A message that has no answer after this long no longer holds up those behind it: a few commits.
const STALLED_AFTER: Duration = Duration::from_millis(20);

/// The queues of commands for the leader: opens, and everything else.
pub(super) struct CommandQueues {
    opens: Arc<CommandQueue>,
    rest: Arc<CommandQueue>,
}

impl CommandQueues {
    /// Queues with the limits of a leader, and the tasks that empty them.
    pub fn start(replica: &Replica<Replicated>, limits: &ProposerLimits) -> Arc<CommandQueues> {
        let start = |limits| {
            let queue = Arc::new(CommandQueue::new(limits));
            tokio::spawn(carry(replica.clone(), queue.clone()));
            queue
        };
        Arc::new(CommandQueues {
            opens: start(QueueLimits {
                unanswered_max: limits.opens_waiting_max,
                bytes_max: limits.open_bytes_waiting_max,
                per_message_max: limits.opens_per_entry_max,
                bytes_per_message_max: limits.open_bytes_per_entry_max,
            }),
            rest: start(QueueLimits {
                unanswered_max: limits.commands_waiting_max,
                bytes_max: limits.command_bytes_waiting_max,
                per_message_max: limits.commands_per_entry_max,
                bytes_per_message_max: limits.command_bytes_per_entry_max,
            }),
        })
    }

    /// Queues a command, or refuses it at once.
    pub fn put(
        &self,
        to: NodeId,
        version: FormatVersion,
        encoded: Vec<u8>,
        command: &Command,
        reply: Reply<Answer>,
    ) {
        let queue = if opens(command) { &self.opens } else { &self.rest };
        let until = Instant::now() + COMMAND_WITHIN;
        let answer_bytes_max = answer_bytes_max(command);
        queue.put(Forwarding { to, version, encoded, answer_bytes_max, until, reply });
    }

    /// What is unanswered, and what was sent and refused.
    pub fn numbers(&self) -> ForwardNumbers {
        let (opens, rest) = (self.opens.state.lock(), self.rest.state.lock());
        ForwardNumbers {
            commands: opens.unanswered + rest.unanswered,
            command_bytes: opens.bytes + rest.bytes,
            commands_sent: opens.sent + rest.sent,
            messages_sent: opens.messages + rest.messages,
            overloaded: opens.refused + rest.refused,
            ..ForwardNumbers::default()
        }
    }
}

impl Drop for CommandQueues {
    fn drop(&mut self) {
        self.opens.close();
        self.rest.close();
    }
}

/// What one queue takes.
#[derive(Clone, Copy, Debug)]
struct QueueLimits {
    /// Commands queued, or sent and not answered.
    unanswered_max: usize,
    /// Their bytes. One command always fits, however long.
    bytes_max: usize,
    /// What one message carries: as much as an entry of the leader's log, so that commands which travel
    /// together are answered together.
    per_message_max: usize,
    bytes_per_message_max: usize,
}

/// A command that is to be sent.
struct Forwarding {
    to: NodeId,
    version: FormatVersion,
    encoded: Vec<u8>,
    answer_bytes_max: usize,
    /// Its own time limit.
    until: Instant,
    reply: Reply<Answer>,
}

struct CommandQueue {
    limits: QueueLimits,
    state: Mutex<QueueState>,
    arrived: Notify,
}

#[derive(Default)]
struct QueueState {
    queued: VecDeque<Forwarding>,
    /// Queued, or sent and not answered.
    unanswered: usize,
    bytes: usize,
    refused: u64,
    /// Commands sent, and the messages that they were in.
    sent: u64,
    messages: u64,
    closed: bool,
}

/// What comes next for a queue's task.
enum Next {
    Send(Batch),
    Wait,
    Closed,
}

/// Commands that travel together, and who waits for them.
struct Batch {
    to: NodeId,
    version: FormatVersion,
    commands: Vec<Vec<u8>>,
    waiting: VecDeque<WaitingCaller>,
}

struct WaitingCaller {
    bytes: usize,
    until: Instant,
    reply: Reply<Answer>,
}

impl CommandQueue {
    fn new(limits: QueueLimits) -> CommandQueue {
        CommandQueue { limits, state: Mutex::default(), arrived: Notify::new() }
    }

    fn put(&self, forwarding: Forwarding) {
        let bytes = forwarding.encoded.len();
        let mut state = self.state.lock();
        let fits = state.bytes == 0 || state.bytes + bytes <= self.limits.bytes_max;
        let refused = if state.closed {
            Some(Failure::Stopping)
        } else if state.unanswered >= self.limits.unanswered_max || !fits {
            state.refused += 1;
            Some(Failure::overloaded())
        } else {
            None
        };
        // A reply may do anything, so it is never called under the lock.
        if let Some(refused) = refused {
            drop(state);
            return (forwarding.reply)(Err(refused));
        }
        state.unanswered += 1;
        state.bytes += bytes;
        state.queued.push_back(forwarding);
        drop(state);
        self.arrived.notify_one();
    }

    /// The next message: commands from the front of the queue, for one leader and in one version, as many as
    /// it takes. Those whose time is over are refused instead: they were not sent.
    fn next(&self, now: Instant) -> Next {
        let mut late = Vec::new();
        let next = self.take(now, &mut late);
        late.into_iter().for_each(|reply| reply(Err(Failure::overloaded())));
        next
    }

    fn take(&self, now: Instant, late: &mut Vec<Reply<Answer>>) -> Next {
        let limits = &self.limits;
        let mut state = self.state.lock();
        let mut batch: Option<Batch> = None;
        let (mut bytes, mut answer_bytes) = (0, 0);
        while let Some(first) = state.queued.front() {
            if first.until > now
                && let Some(batch) = &batch
            {
                // A version without batches carries one command in a message.
                let full = batch.version < FormatVersion::V2
                    || batch.commands.len() >= limits.per_message_max
                    || bytes + first.encoded.len() > limits.bytes_per_message_max
                    || answer_bytes + first.answer_bytes_max > ANSWER_BYTES_PER_MESSAGE_MAX;
                if full || (first.to, first.version) != (batch.to, batch.version) {
                    break;
                }
            }
            let Some(Forwarding { to, version, encoded, answer_bytes_max, until, reply }) =
                state.queued.pop_front()
            else {
                break;
            };
            if until <= now {
                state.unanswered -= 1;
                state.bytes -= encoded.len();
                late.push(reply);
                continue;
            }
            bytes += encoded.len();
            answer_bytes += answer_bytes_max;
            let batch = batch.get_or_insert_with(|| Batch {
                to,
                version,
                commands: Vec::new(),
                waiting: VecDeque::new(),
            });
            batch.waiting.push_back(WaitingCaller { bytes: encoded.len(), until, reply });
            batch.commands.push(encoded);
        }
        match batch {
            Some(batch) => {
                state.sent += batch.commands.len() as u64;
                state.messages += 1;
                Next::Send(batch)
            }
            None if state.closed => Next::Closed,
            None => Next::Wait,
        }
    }

    /// Commands have been answered.
    fn answered(&self, many: usize, bytes: usize) {
        let mut state = self.state.lock();
        state.unanswered -= many;
        state.bytes -= bytes;
    }

    /// Nothing more comes in.
    fn close(&self) {
        self.state.lock().closed = true;
        self.arrived.notify_one();
    }
}

/// Sends what is queued, everything that has come together in one message, until the queue is closed.
async fn carry(replica: Replica<Replicated>, queue: Arc<CommandQueue>) {
    let under_way = Arc::new(Semaphore::new(MESSAGES_UNDER_WAY_MAX));
    loop {
        let Ok(permit) = under_way.clone().acquire_owned().await else { return };
        match queue.next(Instant::now()) {
            Next::Send(batch) => {
                let (replica, queue) = (replica.clone(), queue.clone());
                tokio::spawn(async move {
                    let Batch { to, version, commands, waiting } = batch;
                    let within = waiting.back().map_or(Duration::ZERO, |last| last.until - Instant::now());
                    let reply =
                        async { ask(&replica, to, version, &request(version, commands), within).await };
                    // A version without batches gains nothing from waiting.
                    let permit = (version >= FormatVersion::V2).then_some(permit);
                    holding(permit, waiting_for(to, reply, waiting, &queue)).await;
                });
            }
            Next::Wait => {
                drop(permit);
                queue.arrived.notified().await;
            }
            Next::Closed => return,
        }
    }
}

/// Waits for a message's answer, and lets the next one go with it, or when it is late.
async fn holding(permit: Option<OwnedSemaphorePermit>, answered: impl Future<Output = ()>) {
    let mut answered = std::pin::pin!(answered);
    tokio::select! {
        biased;
        () = &mut answered => return,
        () = sleep(STALLED_AFTER) => drop(permit),
    }
    answered.await;
}

/// The message that carries these commands. Version 1 has no batches.
fn request(version: FormatVersion, mut commands: Vec<Vec<u8>>) -> Forwarded {
    if version >= FormatVersion::V2 {
        return Forwarded::Commands(commands);
    }
    assert_eq!(commands.len(), 1, "version 1 carries one command in a message");
    Forwarded::Command(commands.remove(0))
}

/// Gives each caller the answer to his command, or says that it is unknown when his own time is over.
async fn waiting_for(
    to: NodeId,
    reply: impl Future<Output = Result<ForwardedReply, Failure>>,
    mut waiting: VecDeque<WaitingCaller>,
    queue: &CommandQueue,
) {
    let mut reply = std::pin::pin!(reply);
    let sent = waiting.len();
    // They were queued in this order, so their limits come in this order too.
    while let Some(first) = waiting.front() {
        let reply = tokio::select! {
            biased;
            reply = &mut reply => reply,
            () = sleep_until(first.until) => {
                let Some(WaitingCaller { bytes, reply, .. }) = waiting.pop_front() else { break };
                queue.answered(1, bytes);
                reply(Err(no_answer(to)));
                continue;
            }
        };
        queue.answered(waiting.len(), waiting.iter().map(|caller| caller.bytes).sum());
        let given_up = sent - waiting.len();
        match answers(reply, sent) {
            Ok(answers) => {
                for (caller, answer) in waiting.drain(..).zip(answers.into_iter().skip(given_up)) {
                    (caller.reply)(answer.map_err(Failure::from));
                }
            }
            Err(failure) => waiting.drain(..).for_each(|caller| (caller.reply)(Err(failure.clone()))),
        }
        return;
    }
}

/// The answers to so many commands, each for itself; or what is true of all of them.
fn answers(
    reply: Result<ForwardedReply, Failure>,
    sent: usize,
) -> Result<Vec<Result<Answer, ForwardFailure>>, Failure> {
    match reply? {
        ForwardedReply::Answers(answers) if answers.len() == sent => Ok(answers),
        ForwardedReply::Answers(answers) => {
            Err(Failure::Unknown { reason: format!("{} answers to {sent} commands", answers.len()) })
        }
        ForwardedReply::Answer(answer) if sent == 1 => Ok(vec![Ok(*answer)]),
        other => Err(failure(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use tenure_core::{Caller, Done, EndReason, Refusal, Secret, SessionId, SessionNumber};
    use tokio::sync::oneshot;

    type Answered = oneshot::Receiver<Result<Answer, Failure>>;

    const LIMITS: QueueLimits = QueueLimits {
        unanswered_max: 100,
        bytes_max: 1_000,
        per_message_max: 10,
        bytes_per_message_max: 100,
    };

    fn forwarding(to: NodeId, bytes: usize) -> (Forwarding, Answered) {
        let (reply, answered) = oneshot::channel();
        let forwarding = Forwarding {
            to,
            version: FormatVersion::V2,
            encoded: vec![0; bytes],
            answer_bytes_max: 1,
            until: Instant::now() + COMMAND_WITHIN,
            reply: Box::new(|answer| drop(reply.send(answer))),
        };
        (forwarding, answered)
    }

    fn put(queue: &CommandQueue, to: NodeId, bytes: usize) -> Answered {
        let (forwarding, answered) = forwarding(to, bytes);
        queue.put(forwarding);
        answered
    }

    fn next(queue: &CommandQueue) -> Batch {
        match queue.next(Instant::now()) {
            Next::Send(batch) => batch,
            _ => panic!("there is nothing to send"),
        }
    }

    fn has_nothing(queue: &CommandQueue) -> bool {
        matches!(queue.next(Instant::now()), Next::Wait)
    }

    /// How many are unanswered, and their bytes.
    fn unanswered(queue: &CommandQueue) -> (usize, usize) {
        let state = queue.state.lock();
        (state.unanswered, state.bytes)
    }

    fn sizes(batch: &Batch) -> Vec<usize> {
        batch.commands.iter().map(Vec::len).collect()
    }

    #[tokio::test]
    async fn what_has_gathered_goes_into_one_message_in_order() {
        let queue = CommandQueue::new(LIMITS);
        let _answers = [5, 3, 4].map(|bytes| put(&queue, 2, bytes));
        let batch = next(&queue);
        assert_eq!((batch.to, batch.version, sizes(&batch)), (2, FormatVersion::V2, vec![5, 3, 4]));
        assert!(has_nothing(&queue));
    }

    #[tokio::test]
    async fn a_message_is_for_one_leader_in_one_version_and_version_1_has_one_command_each() {
        let queue = CommandQueue::new(LIMITS);
        let mut answers = vec![put(&queue, 2, 1), put(&queue, 3, 2), put(&queue, 3, 3)];
        for bytes in [4, 5] {
            let (old, answered) = forwarding(3, bytes);
            queue.put(Forwarding { version: FormatVersion::V1, ..old });
            answers.push(answered);
        }
        answers.push(put(&queue, 3, 6));
        let mut sent = Vec::new();
        while let Next::Send(batch) = queue.next(Instant::now()) {
            sent.push((batch.to, batch.version.get(), sizes(&batch)));
            let single = matches!(request(batch.version, batch.commands), Forwarded::Command(_));
            assert_eq!(single, batch.version == FormatVersion::V1);
        }
        let expected =
            [(2, 2, vec![1]), (3, 2, vec![2, 3]), (3, 1, vec![4]), (3, 1, vec![5]), (3, 2, vec![6])];
        assert_eq!(sent, expected);
    }

    #[tokio::test]
    async fn a_message_carries_what_an_entry_takes_and_what_a_reply_can_answer() {
        let queue = CommandQueue::new(LIMITS);
        let _many: Vec<_> = (0..11).map(|_| put(&queue, 2, 1)).collect();
        assert_eq!((next(&queue).commands.len(), next(&queue).commands.len()), (10, 1), "by count");
        let _long = [60, 40, 1, 200, 1].map(|bytes| put(&queue, 2, bytes));
        let sent: Vec<_> = (0..4).map(|_| sizes(&next(&queue))).collect();
        assert_eq!(sent, [vec![60, 40], vec![1], vec![200], vec![1]], "by bytes; one always fits");
        for _ in 0..3 {
            let (command, _) = forwarding(2, 1);
            queue.put(Forwarding { answer_bytes_max: ANSWER_BYTES_PER_MESSAGE_MAX / 2, ..command });
        }
        assert_eq!((next(&queue).commands.len(), next(&queue).commands.len()), (2, 1), "by answers");
        assert!(has_nothing(&queue));
    }

    #[tokio::test]
    async fn past_the_bound_a_command_is_refused_and_not_sent_until_others_are_answered() {
        for (limits, bytes) in
            [(QueueLimits { unanswered_max: 2, ..LIMITS }, 1), (QueueLimits { bytes_max: 10, ..LIMITS }, 5)]
        {
            let queue = CommandQueue::new(limits);
            let mut answers = [put(&queue, 2, bytes), put(&queue, 2, bytes)];
            let batch = next(&queue);
            let mut refused = put(&queue, 2, bytes);
            assert!(matches!(refused.try_recv(), Ok(Err(Failure::Overloaded { .. }))), "both are unanswered");
            assert!(has_nothing(&queue));
            assert_eq!(queue.state.lock().refused, 1);
            let reply = async { Err(Failure::Stopping) };
            waiting_for(2, reply, batch.waiting, &queue).await;
            assert!(answers.iter_mut().all(|answer| answer.try_recv() == Ok(Err(Failure::Stopping))));
            assert_eq!(unanswered(&queue), (0, 0));
            let _answer = put(&queue, 2, bytes);
            assert_eq!(next(&queue).commands.len(), 1, "there is room again");
        }
    }

    fn session() -> SessionId {
        SessionId { number: SessionNumber::new(1), secret: Secret::new([1; 16]) }
    }

    #[tokio::test]
    async fn a_flood_of_commands_has_no_open_refused() {
        let full = QueueLimits { unanswered_max: 1, ..LIMITS };
        let [opens, rest] = [CommandQueue::new(full), CommandQueue::new(full)].map(Arc::new);
        let queues = CommandQueues { opens, rest };
        let submit = |command: &Command| {
            let (reply, answered) = oneshot::channel();
            let reply = Box::new(|answer| drop(reply.send(answer)));
            queues.put(2, FormatVersion::V2, vec![0; 8], command, reply);
            answered
        };
        let close = Command::Close { by: Caller::unnumbered(session()), why: EndReason::Released };
        let _first = submit(&close);
        assert!(matches!(submit(&close).try_recv(), Ok(Err(Failure::Overloaded { .. }))));
        let open = Command::Open(tenure_core::Open {
            secret: session().secret,
            holder: "a".parse().unwrap(),
            ttl: Duration::from_secs(10),
            nonce: None,
            number: 1,
        });
        assert!(submit(&open).try_recv().is_err(), "it waits for its answer");
        let numbers = queues.numbers();
        assert_eq!((numbers.commands, numbers.command_bytes, numbers.overloaded), (2, 16, 1));
        assert_eq!(next(&queues.opens).commands.len(), 1);
        assert_eq!((queues.numbers().commands_sent, queues.numbers().messages_sent), (1, 1));
    }

    #[tokio::test]
    async fn each_command_gets_its_own_answer() {
        let queue = CommandQueue::new(LIMITS);
        let mut answers = [1, 1, 1, 1, 1].map(|bytes| put(&queue, 2, bytes));
        let reply = async {
            Ok(ForwardedReply::Answers(vec![
                Ok(Ok(Done::Closed { released: 3 })),
                Ok(Err(Refusal::UnknownSession)),
                Err(ForwardFailure::Overloaded(7)),
                Err(ForwardFailure::Unknown("lost".into())),
                Err(ForwardFailure::NoLeader),
            ]))
        };
        waiting_for(2, reply, next(&queue).waiting, &queue).await;
        let answers = answers.each_mut().map(|answer| answer.try_recv().expect("an answer"));
        let expected = [
            Ok(Ok(Done::Closed { released: 3 })),
            Ok(Err(Refusal::UnknownSession)),
            Err(Failure::Overloaded { retry_after: Duration::from_millis(7) }),
            Err(Failure::Unknown { reason: "lost".into() }),
            Err(Failure::NoLeader { leader: None }),
        ];
        assert_eq!(answers, expected);
    }

    /// A message that nobody answers must not hold an older command beyond its time, nor give up a younger
    /// one early.
    #[tokio::test(start_paused = true)]
    async fn each_command_keeps_its_own_time_limit() {
        let queue = CommandQueue::new(LIMITS);
        let mut older = put(&queue, 2, 1);
        tokio::time::advance(COMMAND_WITHIN / 2).await;
        let mut younger = put(&queue, 2, 1);
        let batch = next(&queue);
        assert_eq!(batch.commands.len(), 2);
        let (answer, reply) = oneshot::channel();
        let reply = async { reply.await.expect("it is sent") };
        let waiting = waiting_for(2, reply, batch.waiting, &queue);
        tokio::pin!(waiting);
        let half = tokio::time::timeout(COMMAND_WITHIN / 2 + Duration::from_secs(1), &mut waiting).await;
        assert!(half.is_err(), "the younger one still waits");
        assert!(matches!(older.try_recv(), Ok(Err(Failure::Unknown { .. }))), "it may have been applied");
        assert!(younger.try_recv().is_err());
        let done = |released| Ok(Ok(Done::Closed { released }));
        answer.send(Ok(ForwardedReply::Answers(vec![done(1), done(2)]))).expect("it is awaited");
        waiting.await;
        assert_eq!(younger.try_recv(), Ok(Ok(Ok(Done::Closed { released: 2 }))), "its own answer");
        assert_eq!(unanswered(&queue), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_reply_every_command_is_unknown_when_its_time_is_over() {
        let queue = CommandQueue::new(LIMITS);
        let mut answers = [put(&queue, 2, 1), put(&queue, 2, 1)];
        waiting_for(2, pending(), next(&queue).waiting, &queue).await;
        assert!(
            answers.iter_mut().all(|answer| matches!(answer.try_recv(), Ok(Err(Failure::Unknown { .. })))),
            "they left this node"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_too_old_to_be_sent_is_refused_and_not_sent() {
        let queue = CommandQueue::new(LIMITS);
        let mut old = put(&queue, 2, 1);
        tokio::time::advance(COMMAND_WITHIN).await;
        let _young = put(&queue, 2, 2);
        assert_eq!(sizes(&next(&queue)), [2]);
        assert!(matches!(old.try_recv(), Ok(Err(Failure::Overloaded { .. }))), "nothing was applied");
        assert_eq!(unanswered(&queue), (1, 2));
    }

    #[tokio::test]
    async fn a_wrong_number_of_answers_is_nobodys() {
        let queue = CommandQueue::new(LIMITS);
        let mut answers = [put(&queue, 2, 1), put(&queue, 2, 1)];
        let reply = async { Ok(ForwardedReply::Answers(vec![Ok(Ok(Done::Nothing))])) };
        waiting_for(2, reply, next(&queue).waiting, &queue).await;
        assert!(
            answers.iter_mut().all(|answer| matches!(answer.try_recv(), Ok(Err(Failure::Unknown { .. }))))
        );
    }

    #[tokio::test]
    async fn a_closed_queue_takes_nothing_and_ends_when_it_is_empty() {
        let queue = CommandQueue::new(LIMITS);
        let _answer = put(&queue, 2, 1);
        queue.close();
        assert_eq!(put(&queue, 2, 1).try_recv(), Ok(Err(Failure::Stopping)));
        assert_eq!(next(&queue).commands.len(), 1);
        assert!(matches!(queue.next(Instant::now()), Next::Closed));
    }
}
