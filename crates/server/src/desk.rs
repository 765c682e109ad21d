//! The leader's desk: the one task that takes in what arrives, counts time, seals entries and proposes
//! them. All its decisions are [`Office`]'s; this file only waits, carries and answers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesOrdered;
use futures_util::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tenure_clock::Clock;
use tenure_core::{
    Answer, Command, FormatVersion, Line, Message, Moment, Office, OfficeLimits, Renewal, RenewalAnswer,
    Sealed, Settings, Turned, Waiting,
};
use tenure_replica::{Alarm, Execution, Leadership, ProposeError, Replica, look_out};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{debug, info};

use crate::failure::Failure;
use crate::probe::Prober;
use crate::quiet::Quiet;
use crate::replicated::{AppliedEntry, Replicated};

/// How many letters may lie in each tray before the desk has looked at them.
const TRAY_MAX: usize = 65_536;

/// What is done with an answer, once.
pub type Reply<T> = Box<dyn FnOnce(Result<T, Failure>) + Send>;

/// Commands and renewals on their way to the desk.
pub enum Mail {
    /// Renewals of one caller, answered together.
    Renewals {
        /// The heartbeats; their sessions' ids have been checked.
        renewals: Vec<Renewal>,
        /// Who waits.
        reply: Reply<Vec<RenewalAnswer>>,
    },
    /// One command, encoded where it was made so that the desk need not.
    Command {
        /// As it stands in an entry of this version.
        encoded: Vec<u8>,
        /// The version that it was encoded in. An entry of another version has it encoded again.
        version: FormatVersion,
        /// Whether it raises the agreed version to `version`: its entry is written in that one.
        raises: bool,
        /// Whether it opens a session.
        opens: bool,
        /// Who waits.
        reply: Reply<Answer>,
    },
}

impl Mail {
    fn fail(self, failure: Failure) {
        match self {
            Mail::Renewals { reply, .. } => reply(Err(failure)),
            Mail::Command { reply, .. } => reply(Err(failure)),
        }
    }
}

impl Message for Mail {
    fn line(&self) -> Line {
        match self {
            Mail::Renewals { .. } => Line::Renewal,
            Mail::Command { opens: true, .. } => Line::Open,
            Mail::Command { .. } => Line::Other,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Mail::Renewals { .. } => 0,
            Mail::Command { encoded, .. } => encoded.len(),
        }
    }

    fn renewals(&self) -> usize {
        match self {
            Mail::Renewals { renewals, .. } => renewals.len(),
            Mail::Command { .. } => 0,
        }
    }
}

/// The trays into which everybody puts their mail. Opens and renewals have one of their own, so that no
/// flood of anything else can fill it.
#[derive(Clone)]
pub struct Trays {
    first: mpsc::Sender<Mail>,
    rest: mpsc::Sender<Mail>,
    probes: mpsc::Sender<u128>,
    prober: Prober,
}

impl Trays {
    /// Puts a letter in, or fails it at once if the tray is full.
    pub fn put(&self, mail: Mail) {
        let tray = if mail.line() == Line::Other { &self.rest } else { &self.first };
        match tray.try_send(mail) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(mail)) => mail.fail(Failure::overloaded()),
            Err(mpsc::error::TrySendError::Closed(mail)) => mail.fail(Failure::Stopping),
        }
    }

    /// A probe has come back through the client port, if this is the number of one.
    pub fn probe_arrived(&self, number: u128) -> bool {
        let ours = self.prober.awaits(number);
        if ours {
            // A full tray means that the desk is late anyway; the next probe will tell it.
            let _ = self.probes.try_send(number);
        }
        ours
    }
}

/// The desk's numbers, for people.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeskNumbers {
    /// Whether this node is in office.
    pub in_office: bool,
    /// How many letters wait in the office.
    pub waiting: Waiting,
    /// Entries proposed and not yet answered.
    pub in_flight: usize,
    /// Time measured and not counted against anybody, because of the cap.
    pub dropped: Duration,
    /// Letters turned away because a line was full.
    pub overloaded: u64,
    /// Offices taken since the start.
    pub offices: u64,
}

/// What the desk is made of.
pub struct Desk {
    office: Office<Mail>,
    held: Option<tenure_replica::Office>,
    replica: Replica<Replicated>,
    clock: Arc<dyn Clock>,
    prober: Prober,
    first: mpsc::Receiver<Mail>,
    rest: mpsc::Receiver<Mail>,
    probes: mpsc::Receiver<u128>,
    /// Entries under way, answered in the order of the log.
    under_way: FuturesOrdered<BoxFuture<'static, Answered>>,
    /// Entries whose answers are known and have still to be sent.
    answered: Vec<Answered>,
    quiet: Quiet,
    /// Since when the desk waits for a letter, or for the answer to what is under way.
    waits_since: Option<Moment>,
    /// Simulated time stands still for whoever does not sleep.
    looks_out: bool,
    numbers: Arc<Mutex<DeskNumbers>>,
    founding: Option<Settings>,
    /// The agreed format version, as of the last entry that was answered. It never falls.
    format: FormatVersion,
}

/// An entry of this desk, and what became of it.
struct Answered {
    number: u64,
    office: tenure_replica::Office,
    waiting: WaitingReplies,
    answer: Result<AppliedEntry, ProposeError>,
}

/// A desk and the trays that lead to it. `founding` is proposed as the cluster's settings if it has none yet.
pub fn desk(
    replica: Replica<Replicated>,
    clock: Arc<dyn Clock>,
    prober: Prober,
    limits: OfficeLimits,
    execution: Execution,
    founding: Settings,
) -> (Desk, Trays, Arc<Mutex<DeskNumbers>>) {
    let (first_sender, first) = mpsc::channel(TRAY_MAX);
    let (rest_sender, rest) = mpsc::channel(TRAY_MAX);
    let (probe_sender, probes) = mpsc::channel(64);
    let numbers = Arc::new(Mutex::new(DeskNumbers::default()));
    let desk = Desk {
        office: Office::new(limits),
        held: None,
        replica,
        clock,
        prober: prober.clone(),
        first,
        rest,
        probes,
        under_way: FuturesOrdered::new(),
        answered: Vec::new(),
        quiet: Quiet::default(),
        waits_since: None,
        looks_out: execution == Execution::Threads,
        numbers: numbers.clone(),
        founding: Some(founding),
        format: FormatVersion::OLDEST,
    };
    (desk, Trays { first: first_sender, rest: rest_sender, probes: probe_sender, prober }, numbers)
}

impl Desk {
    /// Works until every tray's sender is gone.
    pub async fn work(mut self) {
        let mut leadership = self.replica.leadership();
        self.follow(*leadership.borrow_and_update());
        let mut alarm = Alarm::default();
        loop {
            let now = self.clock.now();
            if self.office.in_office() && self.office.probe_due(now) {
                let number = self.prober.draw();
                self.office.probe_sent(number, now);
                self.prober.send(number);
            }
            let wake = self.office.next_wake(now).map(|wake| wake.longest_since(now));
            self.waits_since.get_or_insert(now);
            let look_out_for = self.quiet.look_out(self.under_way.len()).filter(|_| self.looks_out);
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
                Some(number) = self.probes.recv() => self.office.probe_returned(number),
                mail = self.first.recv() => match mail {
                    Some(mail) => self.take_in(mail),
                    None => break,
                },
                Some(mail) = self.rest.recv() => self.take_in(mail),
                () = alarm.rings(wake.map(|wake| Instant::now() + wake)) => {}
                never = look_out(look_out_for) => match never {},
            }
            self.take_in_the_rest();
            self.seal().await;
            // Only after the next entry is on its way: sending answers is work too.
            for entry in self.answered.drain(..) {
                entry.waiting.answer(entry.answer);
            }
            self.note_numbers();
        }
        self.leave();
    }

    /// Takes in everything that has arrived, opens and renewals first, before the clock is read.
    fn take_in_the_rest(&mut self) {
        while let Some(Some(answered)) = self.under_way.next().now_or_never() {
            self.entry_done(answered);
        }
        while let Ok(number) = self.probes.try_recv() {
            self.office.probe_returned(number);
        }
        while let Ok(mail) = self.first.try_recv() {
            self.take_in(mail);
        }
        while let Ok(mail) = self.rest.try_recv() {
            self.take_in(mail);
        }
    }

    fn take_in(&mut self, mail: Mail) {
        let under_way = self.under_way.len();
        let waited = if under_way == 0 { self.waited() } else { None };
        self.quiet.arrived(under_way, waited);
        match self.office.arrived(mail) {
            Ok(()) => {}
            Err((mail, Turned::NoOffice)) => mail.fail(Failure::NoLeader { leader: None }),
            Err((mail, Turned::Overloaded)) => {
                self.numbers.lock().overloaded += 1;
                mail.fail(Failure::overloaded());
            }
        }
    }

    fn follow(&mut self, leadership: Leadership) {
        if leadership.office() == self.held {
            return;
        }
        self.leave();
        let Some(office) = leadership.office() else { return };
        // The first entry of our own term has been applied: from here on the machine's time is ours to count.
        let (time, formed, format) = {
            let machine = self.replica.machine().read();
            let formed = machine.machine().settings().cluster != [0; 16];
            (machine.time(), formed, machine.machine().format())
        };
        self.format = format;
        self.office.take(time, self.clock.now());
        self.held = Some(office);
        self.numbers.lock().offices += 1;
        info!(term = office.term, node = office.node, "took office");
        if let Some(settings) = self.founding.take_if(|_| !formed) {
            self.put_in(&Command::Configure(Box::new(settings)), self.format);
            // Nobody could return to an older release with a cluster that did not exist there: a new one begins with
            // the newest version that all of its members know.
            let common = self.replica.status().protocol.try_into().ok().and_then(FormatVersion::known);
            if let Some(to) = common.filter(|common| *common > self.format) {
                self.put_in(&Command::Upgrade { to }, to);
            }
        }
        self.put_in(&Command::TookOffice { node: office.node, term: office.term }, self.format);
    }

    fn put_in(&mut self, command: &Command, version: FormatVersion) {
        let mut encoded = Vec::new();
        tenure_wire::encode_command(version, command, &mut encoded);
        let raises = matches!(command, Command::Upgrade { .. });
        self.take_in(Mail::Command { encoded, version, raises, opens: false, reply: Box::new(drop) });
    }

    fn leave(&mut self) {
        if self.held.take().is_some() {
            info!("left office");
        }
        for mail in self.office.leave() {
            mail.fail(Failure::NoLeader { leader: None });
        }
    }

    async fn seal(&mut self) {
        let Some(office) = self.held else { return };
        while let Some(sealed) = self.office.seal(|| self.clock.now()) {
            let number = sealed.number;
            self.quiet.sealed(sealed.batch.len(), self.under_way.len());
            self.replica.set_callers(self.quiet.callers());
            let (entry, waiting) = self.encode(sealed);
            match self.replica.propose(office, entry).await {
                Ok(proposal) => self.under_way.push_back(
                    async move { Answered { number, office, waiting, answer: proposal.await } }.boxed(),
                ),
                Err(error) => {
                    debug!(%error, "an entry was not proposed");
                    self.office.answered(number);
                    waiting.answer(Err(error));
                }
            }
        }
    }

    /// The entry's bytes, and who waits for what in it.
    fn encode(&mut self, sealed: Sealed<Mail>) -> (Bytes, WaitingReplies) {
        let format = entry_format(self.format, &sealed.batch);
        let mut renewals = Vec::new();
        let mut commands = Vec::new();
        let mut waiting = WaitingReplies::default();
        let Sealed { at, mut batch, .. } = sealed;
        for mail in batch.drain(..) {
            match mail {
                Mail::Renewals { renewals: more, reply } => {
                    waiting.renewals.push((more.len(), reply));
                    renewals.extend_from_slice(&more);
                }
                Mail::Command { encoded, version, reply, .. } => match in_format(format, version, encoded) {
                    Some(encoded) => {
                        waiting.commands.push(reply);
                        commands.push(encoded);
                    }
                    // Another node has applied a raise that this one has not: in a moment it will have.
                    None => reply(Err(Failure::overloaded())),
                },
            }
        }
        self.office.recycle(batch);
        let command_bytes: usize = commands.iter().map(Vec::len).sum();
        let mut entry = Vec::with_capacity(64 + 4 * renewals.len() + command_bytes);
        tenure_wire::encode_entry_head(format, at, self.clock.wall(), &renewals, commands.len(), &mut entry);
        commands.iter().for_each(|command| entry.extend_from_slice(command));
        (Bytes::from(entry), waiting)
    }

    /// How long the desk has waited for what comes now.
    fn waited(&mut self) -> Option<Duration> {
        self.waits_since.take().map(|since| self.clock.now().longest_since(since))
    }

    fn entry_done(&mut self, entry: Answered) {
        let waited = self.waited();
        self.quiet.answered(waited);
        if self.held == Some(entry.office) {
            self.office.answered(entry.number);
            if let Ok(applied) = &entry.answer {
                self.office.applied(applied.time);
                self.format = self.format.max(applied.format);
            }
        }
        self.answered.push(entry);
    }

    fn note_numbers(&self) {
        let mut numbers = self.numbers.lock();
        numbers.in_office = self.office.in_office();
        numbers.waiting = self.office.waiting();
        numbers.in_flight = self.office.in_flight();
        numbers.dropped = self.office.dropped();
    }
}

/// The version of an entry: the agreed one, or the one that a command in it raises to.
fn entry_format(agreed: FormatVersion, batch: &[Mail]) -> FormatVersion {
    let raised = batch.iter().filter_map(|mail| match mail {
        Mail::Command { version, raises: true, .. } => Some(*version),
        _ => None,
    });
    raised.fold(agreed, FormatVersion::max)
}

/// A command as it stands in an entry of this version; `None` if that version cannot say all of it.
fn in_format(format: FormatVersion, version: FormatVersion, encoded: Vec<u8>) -> Option<Vec<u8>> {
    if version == format {
        return Some(encoded);
    }
    let command = tenure_wire::decode_command(version, &encoded).expect("it was encoded or read at intake");
    tenure_wire::command_fits(format, &command).then(|| {
        let mut encoded = Vec::with_capacity(encoded.len() + 8);
        tenure_wire::encode_command(format, &command, &mut encoded);
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
        let plain = release(None);
        assert_eq!(in_format(new, old, encoded(old, &plain)), Some(encoded(new, &plain)));
        assert_eq!(in_format(old, new, encoded(new, &plain)), Some(encoded(old, &plain)));
        let resting = release(Some(Duration::from_secs(1)));
        assert_eq!(in_format(old, new, encoded(new, &resting)), None, "it would lose its rest");
        assert_ne!(encoded(old, &plain), encoded(new, &plain), "or this shows nothing");
    }

    #[test]
    fn an_entry_that_raises_is_written_in_the_version_it_raises_to() {
        let (old, new) = (FormatVersion::V1, FormatVersion::V2);
        let mail = |command: &Command, version| Mail::Command {
            encoded: encoded(version, command),
            version,
            raises: matches!(command, Command::Upgrade { .. }),
            opens: false,
            reply: Box::new(drop),
        };
        let plain = mail(&release(None), new);
        assert_eq!(entry_format(old, &[plain]), old, "a newer sender raises nothing");
        assert_eq!(entry_format(old, &[mail(&Command::Upgrade { to: new }, new)]), new);
        assert_eq!(entry_format(new, &[]), new);
    }
}
