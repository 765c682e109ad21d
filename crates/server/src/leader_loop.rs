//! The leader loop: the one task that takes in what arrives, counts time, seals entries and proposes
//! them. All its decisions are the [`Proposer`]'s; this file only waits, carries and answers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesOrdered;
use futures_util::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tenure_clock::Clock;
use tenure_core::{
    Answer, Attributed, Command, FormatVersion, Identity, Message, Proposer, ProposerLimits, QueueKind,
    Renewal, RenewalAnswer, Sealed, Settings, Turned, Waiting,
};
use tenure_replica::{Alarm, CallerDetector, Leadership, ProposeError, Replica, spin_wait};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{debug, info};

use crate::bounded::{BoundedReceiver, BoundedSender, Bounds, Refused, bounded};
use crate::failure::Failure;
use crate::probe::Prober;
use crate::replicated::{AppliedEntry, Replicated};
use crate::secrets;

/// How many requests may wait in each queue before the leader loop takes them in. What they may weigh together is what the
/// proposer lets wait: bytes, or renewals.
const QUEUE_MAX: usize = 65_536;

/// What is done with an answer, once.
pub type Reply<T> = Box<dyn FnOnce(Result<T, Failure>) + Send>;

/// Commands and renewals on their way to the leader loop.
pub enum LeaderRequest {
    /// Renewals of one caller, answered together.
    Renewals {
        /// The heartbeats; their sessions' ids have been checked.
        renewals: Vec<Renewal>,
        /// Who waits.
        reply: Reply<Vec<RenewalAnswer>>,
    },
    /// One command, encoded where it was made so that the leader loop need not.
    Command {
        /// As it stands in an entry of this version.
        encoded: Vec<u8>,
        /// The version that it was encoded in. An entry of another version has it encoded again.
        version: FormatVersion,
        /// Whether it raises the agreed version to `version`: its entry is written in that one.
        raises: bool,
        /// Whether it opens a session.
        opens: bool,
        /// Who it is from, as a number: callers take turns.
        caller: u64,
        /// Who waits.
        reply: Reply<Answer>,
    },
}

impl LeaderRequest {
    fn fail(self, failure: Failure) {
        match self {
            LeaderRequest::Renewals { reply, .. } => reply(Err(failure)),
            LeaderRequest::Command { reply, .. } => reply(Err(failure)),
        }
    }
}

impl LeaderRequest {
    fn raises(&self) -> bool {
        matches!(self, LeaderRequest::Command { raises: true, .. })
    }
}

impl Message for LeaderRequest {
    fn queue(&self) -> QueueKind {
        match self {
            LeaderRequest::Renewals { .. } => QueueKind::Renewal,
            LeaderRequest::Command { opens: true, .. } => QueueKind::Open,
            LeaderRequest::Command { .. } => QueueKind::Other,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            LeaderRequest::Renewals { .. } => 0,
            LeaderRequest::Command { encoded, .. } => encoded.len(),
        }
    }

    fn renewals(&self) -> usize {
        match self {
            LeaderRequest::Renewals { renewals, .. } => renewals.len(),
            LeaderRequest::Command { .. } => 0,
        }
    }

    fn caller(&self) -> u64 {
        match self {
            LeaderRequest::Renewals { .. } => 0,
            LeaderRequest::Command { caller, .. } => *caller,
        }
    }
}

/// The queues that requests are put into. Renewals have one of their own, and so have opens: no flood of anything else can
/// fill it.
#[derive(Clone)]
pub struct RequestQueues {
    renewals: BoundedSender<LeaderRequest>,
    opens: BoundedSender<LeaderRequest>,
    rest: BoundedSender<LeaderRequest>,
    probes: mpsc::Sender<u128>,
    prober: Prober,
    numbers: Arc<Mutex<LeaderLoopNumbers>>,
}

impl RequestQueues {
    /// Queues a request, or fails it at once if the queue is full.
    pub fn put(&self, request: LeaderRequest) {
        let (queue, weight) = match request.queue() {
            QueueKind::Renewal => (&self.renewals, request.renewals()),
            QueueKind::Open => (&self.opens, request.bytes()),
            QueueKind::Other => (&self.rest, request.bytes()),
        };
        match queue.try_send(weight, request) {
            Ok(()) => {}
            Err(Refused::Full(request)) => {
                self.numbers.lock().overloaded += 1;
                request.fail(Failure::overloaded());
            }
            Err(Refused::Closed(request)) => request.fail(Failure::Stopping),
        }
    }

    /// A probe has come back through the client port, if this is the number of one.
    pub fn probe_arrived(&self, number: u128) -> bool {
        let ours = self.prober.awaits(number);
        if ours {
            // A full queue means that the leader loop is late anyway; the next probe will show it.
            let _ = self.probes.try_send(number);
        }
        ours
    }
}

/// The leader loop's numbers, for people.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeaderLoopNumbers {
    /// Whether this node leads.
    pub is_leading: bool,
    /// How many requests wait in the proposer.
    pub waiting: Waiting,
    /// Entries proposed and not yet answered.
    pub in_flight: usize,
    /// Time measured and not counted against anybody, because of the cap.
    pub dropped: Duration,
    /// Requests turned away because a queue was full.
    pub overloaded: u64,
    /// How often this node became leader since its start.
    pub terms_led: u64,
}

/// The leader loop's state.
pub struct LeaderLoop {
    proposer: Proposer<LeaderRequest>,
    held: Option<tenure_replica::LeaderTerm>,
    replica: Replica<Replicated>,
    clock: Arc<dyn Clock>,
    prober: Prober,
    renewals: BoundedReceiver<LeaderRequest>,
    opens: BoundedReceiver<LeaderRequest>,
    rest: BoundedReceiver<LeaderRequest>,
    probes: mpsc::Receiver<u128>,
    /// Entries under way, answered in the order of the log.
    under_way: FuturesOrdered<BoxFuture<'static, Answered>>,
    /// Entries whose answers are known and have still to be sent.
    answered: Vec<Answered>,
    /// Whether a single client is served, and how long to spin for it.
    callers: CallerDetector,
    numbers: Arc<Mutex<LeaderLoopNumbers>>,
    founding: Option<(Settings, bool)>,
    /// The agreed format version, as of the last entry that was answered. It never falls.
    format: FormatVersion,
    /// The number of an entry under way that raises it: nothing is sealed behind that, so that whoever has applied the
    /// raise has applied everything that was written in the version before.
    raising: Option<u64>,
}

/// An entry of this loop, and what became of it.
struct Answered {
    number: u64,
    leader_term: tenure_replica::LeaderTerm,
    waiting: WaitingReplies,
    answer: Result<AppliedEntry, ProposeError>,
}

/// A leader loop and the queues that lead to it. `founding` is proposed as the cluster's settings, and whether
/// its policies count, if it has none yet.
pub fn leader_loop(
    replica: Replica<Replicated>,
    clock: Arc<dyn Clock>,
    prober: Prober,
    limits: ProposerLimits,
    founding: (Settings, bool),
) -> (LeaderLoop, RequestQueues, Arc<Mutex<LeaderLoopNumbers>>) {
    let queue = |weight_max| bounded(Bounds { count_max: QUEUE_MAX, weight_max });
    let (renewal_sender, renewals) = queue(limits.renewals_waiting_max);
    let (open_sender, opens) = queue(limits.open_bytes_waiting_max);
    let (rest_sender, rest) = queue(limits.command_bytes_waiting_max);
    let (probe_sender, probes) = mpsc::channel(64);
    let numbers = Arc::new(Mutex::new(LeaderLoopNumbers::default()));
    let leader_loop = LeaderLoop {
        proposer: Proposer::new(limits),
        held: None,
        callers: replica.caller_detector(),
        replica,
        clock,
        prober: prober.clone(),
        renewals,
        opens,
        rest,
        probes,
        under_way: FuturesOrdered::new(),
        answered: Vec::new(),
        numbers: numbers.clone(),
        founding: Some(founding),
        format: FormatVersion::OLDEST,
        raising: None,
    };
    let queues = RequestQueues {
        renewals: renewal_sender,
        opens: open_sender,
        rest: rest_sender,
        probes: probe_sender,
        prober,
        numbers: numbers.clone(),
    };
    (leader_loop, queues, numbers)
}

impl LeaderLoop {
    /// Works until every queue's sender is gone.
    pub async fn work(mut self) {
        let mut leadership = self.replica.leadership();
        self.follow(*leadership.borrow_and_update());
        let mut alarm = Alarm::default();
        loop {
            let now = self.clock.now();
            if self.proposer.is_leading() && self.proposer.probe_due(now) {
                let number = self.prober.draw();
                self.proposer.probe_sent(number, now);
                self.prober.send(number);
            }
            // Nothing is sealed behind a raise until it is applied, so until then there is nothing to wake for: the
            // answer to its entry does, or the end of the term.
            let wake = self.proposer.next_wake(now).filter(|_| self.raising.is_none());
            let wake = wake.map(|wake| wake.longest_since(now));
            let spin_for = self.callers.wait(self.under_way.len(), Instant::now());
            tokio::select! {
                biased;
                changed = leadership.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    let now_held = *leadership.borrow_and_update();
                    self.follow(now_held);
                }
                Some(answered) = self.under_way.next(), if !self.under_way.is_empty() => self.entry_done(answered),
                Some(number) = self.probes.recv() => self.proposer.probe_returned(number),
                request = self.renewals.recv() => match request {
                    Some(request) => self.take_in(request),
                    None => break,
                },
                Some(request) = self.opens.recv() => self.take_in(request),
                Some(request) = self.rest.recv() => self.take_in(request),
                () = alarm.rings(wake.map(|wake| Instant::now() + wake)) => {}
                never = spin_wait(spin_for) => match never {},
            }
            self.take_in_the_rest();
            self.seal().await;
            // Only after the next entry is on its way: sending answers is work too.
            for entry in self.answered.drain(..) {
                entry.waiting.answer(entry.answer);
            }
            self.note_numbers();
        }
        self.step_down();
    }

    /// Takes in everything that has arrived, opens and renewals first, before the clock is read.
    fn take_in_the_rest(&mut self) {
        while let Some(Some(answered)) = self.under_way.next().now_or_never() {
            self.entry_done(answered);
        }
        while let Ok(number) = self.probes.try_recv() {
            self.proposer.probe_returned(number);
        }
        while let Some(request) = self.renewals.try_recv() {
            self.take_in(request);
        }
        while let Some(request) = self.opens.try_recv() {
            self.take_in(request);
        }
        while let Some(request) = self.rest.try_recv() {
            self.take_in(request);
        }
    }

    fn take_in(&mut self, request: LeaderRequest) {
        self.callers.request_arrived(self.under_way.len(), Instant::now);
        match self.proposer.arrived(request) {
            Ok(()) => {}
            Err((request, Turned::NotLeader)) => request.fail(Failure::NoLeader { leader: None }),
            Err((request, Turned::Overloaded)) => {
                self.numbers.lock().overloaded += 1;
                request.fail(Failure::overloaded());
            }
        }
    }

    fn follow(&mut self, leadership: Leadership) {
        if leadership.leader_term() == self.held {
            return;
        }
        self.step_down();
        let Some(leader_term) = leadership.leader_term() else { return };
        // The first entry of our own term has been applied: from here on the machine's time is ours to count.
        let (time, formed, format) = {
            let machine = self.replica.machine().read();
            let formed = machine.machine().settings().cluster != [0; 16];
            (machine.time(), formed, machine.machine().format())
        };
        self.format = format;
        self.proposer.start_term(time, self.clock.now());
        self.held = Some(leader_term);
        self.numbers.lock().terms_led += 1;
        info!(term = leader_term.term, node = leader_term.node, "became leader");
        if let Some((settings, enforced)) = self.founding.take_if(|_| !formed) {
            // Nobody could return to an older release with a cluster that did not exist there: a new one begins with
            // the newest version that all of its members know.
            let common = self.replica.status().protocol.try_into().ok().and_then(FormatVersion::known);
            let format = common.unwrap_or(self.format).max(self.format);
            if format > self.format {
                self.put_in(&Command::Upgrade { to: format }, format);
            }
            // After the raise, which gives untouched limits their new defaults.
            let settings = Settings { limits: settings.limits.fit(format), ..settings };
            self.put_in(&Command::Configure(Box::new(settings)), format);
            if enforced && format >= FormatVersion::V2 {
                let command = Command::SetEnforced { enforced };
                let attributed = Attributed { identity: Identity::Node, command };
                self.put_in(&Command::As(Box::new(attributed)), format);
            }
        }
        self.put_in(&Command::BecameLeader { node: leader_term.node, term: leader_term.term }, self.format);
    }

    fn put_in(&mut self, command: &Command, version: FormatVersion) {
        let mut encoded = Vec::new();
        tenure_wire::encode_command(version, command, &mut encoded);
        let raises = matches!(command, Command::Upgrade { .. });
        self.take_in(LeaderRequest::Command {
            encoded,
            version,
            raises,
            opens: false,
            caller: 0,
            reply: Box::new(drop),
        });
    }

    fn step_down(&mut self) {
        if self.held.take().is_some() {
            info!("stepped down");
        }
        self.raising = None;
        for request in self.proposer.end_term() {
            request.fail(Failure::NoLeader { leader: None });
        }
    }

    async fn seal(&mut self) {
        let Some(leader_term) = self.held else { return };
        while self.raising.is_none()
            && let Some(sealed) = self.proposer.seal(|| self.clock.now())
        {
            let number = sealed.number;
            self.raising = sealed.batch.iter().any(LeaderRequest::raises).then_some(number);
            self.callers.entry_sealed(sealed.batch.len(), self.under_way.len());
            let (entry, waiting) = self.encode(sealed);
            match self.replica.propose(leader_term, entry).await {
                Ok(proposal) => self.under_way.push_back(
                    async move { Answered { number, leader_term, waiting, answer: proposal.await } }.boxed(),
                ),
                Err(error) => {
                    debug!(%error, "an entry was not proposed");
                    self.proposer.answered(number);
                    self.raising = None;
                    waiting.answer(Err(error));
                }
            }
        }
    }

    /// The entry's bytes, and who waits for what in it.
    fn encode(&mut self, sealed: Sealed<LeaderRequest>) -> (Bytes, WaitingReplies) {
        let format = entry_format(self.format, &sealed.batch);
        let mut renewals = Vec::new();
        let mut commands = Vec::new();
        let mut waiting = WaitingReplies::default();
        let Sealed { at, mut batch, .. } = sealed;
        for request in batch.drain(..) {
            match request {
                LeaderRequest::Renewals { renewals: more, reply } => {
                    waiting.renewals.push((more.len(), reply));
                    renewals.extend_from_slice(&more);
                }
                LeaderRequest::Command { encoded, version, reply, .. } => {
                    match self.in_format(format, version, encoded) {
                        Some(encoded) => {
                            waiting.commands.push(reply);
                            commands.push(encoded);
                        }
                        // This node or the one that forwarded it has applied a raise that the other has not: in a moment both
                        // will have.
                        None => reply(Err(Failure::overloaded())),
                    }
                }
            }
        }
        self.proposer.recycle(batch);
        let command_bytes: usize = commands.iter().map(Vec::len).sum();
        let mut entry = Vec::with_capacity(64 + 4 * renewals.len() + command_bytes);
        tenure_wire::encode_entry_head(format, at, self.clock.wall(), &renewals, commands.len(), &mut entry);
        commands.iter().for_each(|command| entry.extend_from_slice(command));
        (Bytes::from(entry), waiting)
    }

    /// A command as it stands in an entry of this version; `None` if that version cannot say all of it, or if it came in
    /// before a raise and cannot be carried over: its caller waits for something under its plain nonce.
    fn in_format(&self, format: FormatVersion, version: FormatVersion, encoded: Vec<u8>) -> Option<Vec<u8>> {
        if version == format {
            return Some(encoded);
        }
        let mut command =
            tenure_wire::decode_command(version, &encoded).expect("it was encoded or read at intake");
        // In the entry of the raise itself all is still as it was.
        if version < FormatVersion::V2 && self.format >= FormatVersion::V2 {
            if secrets::names_something_new(&mut command) {
                return None;
            }
            secrets::conceal(&mut command, Some(self.replica.machine().read().machine()));
        }
        encoded_in(format, &command)
    }

    fn entry_done(&mut self, entry: Answered) {
        self.callers.entry_answered(Instant::now);
        if self.held == Some(entry.leader_term) {
            self.raising.take_if(|raising| *raising == entry.number);
            self.proposer.answered(entry.number);
            if let Ok(applied) = &entry.answer {
                self.proposer.applied(applied.time);
                self.format = self.format.max(applied.format);
            }
        }
        self.answered.push(entry);
    }

    fn note_numbers(&self) {
        let mut numbers = self.numbers.lock();
        numbers.is_leading = self.proposer.is_leading();
        numbers.waiting = self.proposer.waiting();
        numbers.in_flight = self.proposer.in_flight();
        numbers.dropped = self.proposer.dropped();
    }
}

/// The version of an entry: the agreed one, or the one that a command in it raises to.
fn entry_format(agreed: FormatVersion, batch: &[LeaderRequest]) -> FormatVersion {
    let raised = batch.iter().filter_map(|request| match request {
        LeaderRequest::Command { version, raises: true, .. } => Some(*version),
        _ => None,
    });
    raised.fold(agreed, FormatVersion::max)
}

/// A command in this version; `None` if that cannot say all of it.
fn encoded_in(format: FormatVersion, command: &Command) -> Option<Vec<u8>> {
    tenure_wire::command_fits(format, command).then(|| {
        let mut encoded = Vec::new();
        tenure_wire::encode_command(format, command, &mut encoded);
        encoded
    })
}

/// Who waits for the answers of one entry, in the order of the entry.
#[derive(Default)]
struct WaitingReplies {
    renewals: Vec<(usize, Reply<Vec<RenewalAnswer>>)>,
    commands: Vec<Reply<Answer>>,
}

impl WaitingReplies {
    fn answer(self, answer: Result<AppliedEntry, ProposeError>) {
        match answer {
            Ok(entry) => {
                let mut renewals = entry.applied.renewals.into_iter();
                for (many, reply) in self.renewals {
                    reply(Ok(renewals.by_ref().take(many).collect()));
                }
                for (reply, answer) in self.commands.into_iter().zip(entry.applied.answers) {
                    reply(Ok(answer));
                }
            }
            Err(error) => {
                let failure = Failure::from(error);
                self.renewals.into_iter().for_each(|(_, reply)| reply(Err(failure.clone())));
                self.commands.into_iter().for_each(|reply| reply(Err(failure.clone())));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::{Caller, Secret, SessionId, SessionNumber};

    fn release(rest: Option<Duration>) -> Command {
        let session = SessionId { number: SessionNumber::new(1), secret: Secret::new([1; 16]) };
        let resource = "a/b".parse().unwrap();
        Command::Release { by: Caller::unnumbered(session), resource, token: None, rest }
    }

    fn encoded(version: FormatVersion, command: &Command) -> Vec<u8> {
        let mut bytes = Vec::new();
        tenure_wire::encode_command(version, command, &mut bytes);
        bytes
    }

    /// A command that was queued before a raise, or forwarded by a node that is ahead, is encoded again for its entry.
    #[test]
    fn a_command_is_encoded_again_in_the_version_of_its_entry() {
        let (old, new) = (FormatVersion::V1, FormatVersion::V2);
        let again = |format, version, command: &Command| {
            let command = tenure_wire::decode_command(version, &encoded(version, command)).unwrap();
            encoded_in(format, &command)
        };
        let plain = release(None);
        assert_eq!(again(new, old, &plain), Some(encoded(new, &plain)));
        assert_eq!(again(old, new, &plain), Some(encoded(old, &plain)));
        let resting = release(Some(Duration::from_secs(1)));
        assert_eq!(again(old, new, &resting), None, "it would lose its rest");
        assert_ne!(encoded(old, &plain), encoded(new, &plain), "or this shows nothing");
    }

    #[test]
    fn an_entry_that_raises_is_written_in_the_version_it_raises_to() {
        let (old, new) = (FormatVersion::V1, FormatVersion::V2);
        let request = |command: &Command, version| LeaderRequest::Command {
            encoded: encoded(version, command),
            version,
            raises: matches!(command, Command::Upgrade { .. }),
            opens: false,
            caller: 0,
            reply: Box::new(drop),
        };
        let plain = request(&release(None), new);
        assert_eq!(entry_format(old, &[plain]), old, "a newer sender raises nothing");
        assert_eq!(entry_format(old, &[request(&Command::Upgrade { to: new }, new)]), new);
        assert_eq!(entry_format(new, &[]), new);
    }
}
