//! The proposer: what the leader counts. It decides the stamp of every entry, what the entry carries, and
//! when the next one is due. It never decides who holds a lease (`machine/` does, by these stamps), and it
//! never reads a clock or sends anything: its driver does both.
//!
//! # Why two permits for one exclusive resource never overlap
//!
//! *Claim.* Let a holder have a permit for a resource, and let the cluster later grant that resource to
//! another session. Then the permit's interval, [taken, min(dropped, local deadline)], ends in real time
//! before the leader reads its clock for the entry that grants. It needs one assumption: over any stretch
//! of real time the holder's clock shows at least (1 - rho) of what a leader's clock shows. It needs no
//! bound on the network, no synchronised clocks and no bound on pauses. (`revoke --now` and proof of death
//! end a lease without asking the holder: there only fences protect, and nothing is claimed.)
//!
//! *The reading of a stamp.* A leader seals an entry by taking in all that has arrived, and only then
//! reading its clock; everything taken in is tagged with the count at that reading. The entry's stamp `at`
//! is a count that belonged to one such reading. Call it the reading of the stamp: if nothing that sets a
//! deadline was left behind, it is the reading of this very seal; if a size limit cut the batch, it is the
//! reading that tagged the first one left behind. The inbox is first in, first out, so everything in the
//! entry that sets a deadline was tagged by that reading or an earlier one. Hence:
//!
//! 1. *Whatever sets a deadline in an entry had arrived, and so had been sent, before the reading of the
//!    entry's stamp.* This is why the clock is read after taking in and not when the batch opens, and why
//!    nothing received after the first one left behind may ride along: its deadline would count from
//!    before it was sent.
//!
//! 2. *Log neighbours: the difference of their stamps is at most what leaders' clocks measured between the
//!    readings of these stamps, no moment being measured twice.* Within one term the count grows by what
//!    the clock showed since the last reading, or by less where the cap drops some; it is never lowered, so
//!    nothing dropped is made up for; and a reading replaces the last one, so no time from before a stamp
//!    is counted after it. Over a change of leader: a new leader starts from the cluster time of the
//!    machine once it has applied the first entry of its own term, that is, from the stamp of some entry
//!    that is already in the log; and from a fresh reading of its clock. What it measures therefore lies
//!    after the readings of all stamps before it. A count or a reading kept from an earlier term would
//!    count a second time what others have counted meanwhile; so both are thrown away with the term.
//!    What a deposed leader stamps is not committed and measures nothing. (A stamp is a whole number of
//!    microseconds, rounded down. So a difference of two stamps can exceed what was measured by less than
//!    one microsecond: once, not per entry. `Timing` does not accept a sigma that small.)
//!
//! *Proof.* The holder's deadline was last moved by the answer to one transmission, an open or a renewal,
//! which it sent at the moment *s* on its clock: the deadline is *s* + ttl (1 - rho) - sigma. Answers leave
//! after apply, so there is an entry E in the log that set the session's deadline to at(E) + ttl at least.
//! (If the transmission came too late to set anything, a later-sent one with a higher number had set the
//! deadline, and the argument holds with that later *s*, all the more with the holder's earlier one.
//! The machine takes max(at, time), which can only make that deadline later.)
//! A lease that its holder did not give back ends, or its session counts as not live, only in an entry F
//! whose stamp has reached that deadline: at(F) - at(E) >= ttl. By (2) leaders measured at least ttl between the
//! readings of E and F, so the holder's clock shows at least ttl (1 - rho) for the same stretch. By (1)
//! the transmission was sent before that stretch began. So when the leader read its clock for F, the
//! holder's clock was past its deadline, by sigma and more; its permits had ended, and F was not even
//! proposed. The grant is F or comes after F in the log.
//!
//! *Leases that end otherwise.* A holder that gives a lease back (release, transfer, confirmation of a
//! notice) gives no permit from the sending on, and sends only when none is out. A lease under notice ends
//! at the session's deadline as it stood when notice was given; a renewal applied later lists the notice
//! in its answer, and the holder takes that in before its deadline moves, so for this lease the proof
//! holds with the last renewal before the notice. A waited grant moves no deadline.
//!
//! *The two clocks of a reading.* A holder counts the longer elapsed of the two and a leader the shorter, so
//! a clock that stands still in suspend, or one that is slewed, errs on the side that the claim allows.
//!
//! # What the rest is for: a healthy holder keeps its lease
//!
//! The claim would hold if cluster time never moved. The other rules keep it from moving at the wrong time,
//! and from standing still:
//!
//! - *Cap.* The count never runs more than K ahead of the cluster time last applied. A leader that was
//!   paused, or could not commit, wakes up to renewals still lying in its sockets: it must not end sessions
//!   for a silence that was its own. What is dropped is gone and shows in [`Proposer::dropped`].
//! - *Probe.* A leader whose client port receives nothing (accept queue full, decoder starved) counts no time
//!   either: the count never passes the count at which the last returned probe was sent by more than K.
//! - *Inbox.* Opens and renewals wait ahead of everything else. No entry leaves one of them behind that was
//!   received before its stamp: that would end a session whose renewal the leader already had.
//! - *Tick.* While any deadline is pending there is an entry at least every K/2, so that a failover loses
//!   little counted time and leases end in time. With no deadline pending nothing is written.

mod fair_queue;

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use self::fair_queue::FairQueue;
use crate::machine::Machine;
use crate::time::{ClusterTime, Moment};

/// K is a quarter of the smallest live TTL, within these bounds: below, ticks would cost more than they
/// bring; above, a leader change would lose too much.
const K_MIN: Duration = Duration::from_millis(100);
const K_MAX: Duration = Duration::from_secs(1);

/// Probes under way that are remembered. At one every K/4 this is a path of four K; an older one says nothing new.
const PROBES_MAX: usize = 16;

/// Which queue a message waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// It renews a session.
    Renewal,
    /// It opens a session; an acquire that opens its session is an open.
    Open,
    /// Anything else: it moves no session's deadline.
    Other,
}

/// What the proposer must know of a message; the rest is its driver's business.
pub trait Message {
    /// Which queue it waits in.
    fn queue(&self) -> QueueKind;

    /// What it adds to an entry, in bytes. Not asked of renewals: they all have the same small size.
    fn bytes(&self) -> usize;

    /// How many renewals it carries; asked of renewals only. One caller's renewals may come as one message:
    /// they arrived together, so one receipt is right for all of them.
    fn renewals(&self) -> usize {
        1
    }

    /// Who it is from, as a number: callers take turns among messages that are neither opens nor renewals. One number
    /// is one caller; those that have not said who they are share one.
    fn caller(&self) -> u64 {
        0
    }
}

/// How much may wait and how much may ride in one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProposerLimits {
    /// Renewals in one entry: 65,536 take less than a megabyte, and are what 200,000 sessions with a TTL of 10 s
    /// send in a second.
    pub renewals_per_entry_max: usize,
    /// Opens in one entry.
    pub opens_per_entry_max: usize,
    /// Bytes of the opens in one entry. One open always fits, however long.
    pub open_bytes_per_entry_max: usize,
    /// Other commands in one entry.
    pub commands_per_entry_max: usize,
    /// Bytes of the other commands in one entry: a longer one takes disks and networks long enough to be
    /// mistaken for a stall. One command always fits, however long.
    pub command_bytes_per_entry_max: usize,
    /// Renewals that may wait. Renewals have room of their own, so that no flood of anything else turns one away.
    pub renewals_waiting_max: usize,
    /// Opens that may wait.
    pub opens_waiting_max: usize,
    /// Other commands that may wait.
    pub commands_waiting_max: usize,
    /// Bytes of opens that may wait: apart from those of other commands, so that no flood of long ones turns an open away.
    /// What the most opens take at their usual length, 256 bytes.
    pub open_bytes_waiting_max: usize,
    /// Bytes of other commands that may wait: what a slow disk still writes within seconds.
    pub command_bytes_waiting_max: usize,
    /// Entries proposed and not yet answered. One leaves the disk idle while the next is made; more than two brought
    /// nothing when measured, and each adds to what a lost leader leaves unanswered.
    pub in_flight_max: usize,
}

impl Default for ProposerLimits {
    fn default() -> Self {
        Self {
            renewals_per_entry_max: 65_536,
            opens_per_entry_max: 8_192,
            open_bytes_per_entry_max: 1 << 20,
            commands_per_entry_max: 8_192,
            command_bytes_per_entry_max: 1 << 20,
            renewals_waiting_max: 1 << 20,
            opens_waiting_max: 1 << 16,
            commands_waiting_max: 1 << 16,
            open_bytes_waiting_max: 16 << 20,
            command_bytes_waiting_max: 64 << 20,
            in_flight_max: 2,
        }
    }
}

/// What the leader's own machine says after applying, as far as counting time goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineTime {
    /// The cluster time last applied.
    pub time: ClusterTime,
    /// The earliest of all pending deadlines, of whatever kind.
    pub earliest_deadline: Option<ClusterTime>,
    /// The smallest TTL of the live sessions.
    pub smallest_ttl: Option<Duration>,
}

impl MachineTime {
    /// How far the count may run ahead: a quarter of the smallest live TTL, within 100 ms and 1 s.
    pub fn k(&self) -> Duration {
        self.smallest_ttl.map_or(K_MAX, |ttl| (ttl / 4).clamp(K_MIN, K_MAX))
    }
}

impl From<&Machine> for MachineTime {
    fn from(machine: &Machine) -> MachineTime {
        MachineTime {
            time: machine.time(),
            earliest_deadline: machine.earliest_deadline(),
            smallest_ttl: machine.smallest_ttl(),
        }
    }
}

/// One entry to propose.
#[derive(Debug, PartialEq, Eq)]
pub struct Sealed<M> {
    /// Names the proposal, for [`Proposer::answered`]. Never reused, not even by a later term.
    pub number: u64,
    /// The stamp.
    pub at: ClusterTime,
    /// What rides in it: opens and renewals first, each queue in order of arrival. Empty for a bare tick.
    pub batch: Vec<M>,
}

/// Why a message was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turned {
    /// This node does not lead, or not yet: its first entry is not applied.
    NotLeader,
    /// The message's queue is full.
    Overloaded,
}

/// How many messages wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Renewals.
    pub renewals: usize,
    /// Opens.
    pub opens: usize,
    /// Everything else.
    pub commands: usize,
    /// Bytes of opens.
    pub open_bytes: usize,
    /// Bytes of everything else.
    pub command_bytes: usize,
}

impl Waiting {
    fn many(&self) -> usize {
        self.renewals + self.opens + self.commands
    }
}

/// The leader's logic. One task owns it: it hands in what arrives, and seals.
#[derive(Clone, Debug)]
pub struct Proposer<M> {
    limits: ProposerLimits,
    term: Option<Term>,
    /// Opens and renewals, in order of arrival. The tail that no tag covers has arrived since the last reading.
    inbox: VecDeque<M>,
    /// The counts at which the front part of the inbox was tagged, as runs, oldest first.
    tags: VecDeque<Tag>,
    /// How many of the inbox the tags cover.
    tagged: usize,
    queue: FairQueue<M>,
    waiting: Waiting,
    in_flight: Vec<InFlight>,
    next_entry: u64,
    dropped: Duration,
    spare: Vec<Vec<M>>,
}

/// `many` messages of the inbox were taken in before the reading at which the count was `received`.
#[derive(Clone, Copy, Debug)]
struct Tag {
    received: ClusterTime,
    many: usize,
}

/// An entry that was proposed and is not answered yet.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    number: u64,
    /// How many renewals, opens and other commands ride in it.
    many: usize,
}

/// What is counted during one term as leader, and thrown away at its end.
#[derive(Clone, Debug)]
struct Term {
    machine: MachineTime,
    /// Cluster time as counted at `last`; finer than a stamp, so that a thousand seals lose no microsecond each.
    count: Duration,
    last: Moment,
    last_stamp: ClusterTime,
    /// The count at which the last returned probe was sent.
    probed: Duration,
    probes: VecDeque<(u128, Duration)>,
    probe_sent: Option<Moment>,
}

impl Term {
    /// The furthest that the count may go.
    fn cap(&self) -> Duration {
        span(self.machine.time).min(self.probed).saturating_add(self.machine.k())
    }

    /// The count at `now`, and what the cap makes of the rest.
    fn counted(&self, now: Moment) -> (Duration, Duration) {
        let measured = self.count.saturating_add(now.shortest_since(self.last));
        // Never lowered: K shrinks when a shorter TTL appears, and what was counted under the larger one may
        // already be in a stamp.
        let count = measured.min(self.cap()).max(self.count);
        (count, measured - count)
    }

    fn tick_every(&self) -> Duration {
        self.machine.k() / 2
    }

    fn probe_every(&self) -> Duration {
        self.machine.k() / 4
    }

    /// Whether the machine still has something to end at a time that it has already reached: it clears
    /// away only so much per entry.
    fn overdue(&self) -> bool {
        self.machine.earliest_deadline.is_some_and(|deadline| deadline <= self.machine.time)
    }

    /// The earliest deadline that no stamp of ours has reached yet.
    fn deadline_ahead(&self) -> Option<ClusterTime> {
        self.machine.earliest_deadline.filter(|deadline| *deadline > self.last_stamp)
    }
}

impl<M: Message> Proposer<M> {
    /// A proposer that does not lead yet.
    pub fn new(limits: ProposerLimits) -> Self {
        Self {
            limits,
            term: None,
            inbox: VecDeque::new(),
            tags: VecDeque::new(),
            tagged: 0,
            queue: FairQueue::default(),
            waiting: Waiting::default(),
            in_flight: Vec::new(),
            next_entry: 0,
            dropped: Duration::ZERO,
            spare: Vec::new(),
        }
    }

    /// Becomes leader: the first entry of this node's own term has been applied, and `now` was read after
    /// that. Nothing counted in an earlier term is used.
    ///
    /// # Panics
    /// If the earlier term was not ended: what waited in it would go unanswered.
    pub fn start_term(&mut self, machine: MachineTime, now: Moment) {
        assert!(self.inbox.is_empty() && self.queue.is_empty(), "a term starts with empty queues");
        self.in_flight.clear();
        self.term = Some(Term {
            machine,
            count: span(machine.time),
            last: now,
            last_stamp: machine.time,
            probed: span(machine.time),
            probes: VecDeque::new(),
            probe_sent: None,
        });
    }

    /// Steps down. Gives back everything that waited, to be answered `no_leader`; what is in flight is answered by
    /// whoever proposed it.
    pub fn end_term(&mut self) -> Vec<M> {
        self.term = None;
        self.in_flight.clear();
        self.tags.clear();
        self.tagged = 0;
        self.waiting = Waiting::default();
        self.inbox.drain(..).chain(self.queue.drain()).collect()
    }

    /// Whether this node leads.
    pub fn is_leading(&self) -> bool {
        self.term.is_some()
    }

    /// A message has arrived. If there is no room, one is given back: this one; or, if it is neither an open nor a
    /// renewal and another caller has more waiting, the newest of that caller's, in whose place it waits. The bound of
    /// bytes may then be passed by what the two differ.
    pub fn arrived(&mut self, message: M) -> Result<(), (M, Turned)> {
        if self.term.is_none() {
            return Err((message, Turned::NotLeader));
        }
        let limits = &self.limits;
        let queue = message.queue();
        let waiting = &mut self.waiting;
        let (many, more, many_max) = match queue {
            QueueKind::Renewal => (&mut waiting.renewals, message.renewals(), limits.renewals_waiting_max),
            QueueKind::Open => (&mut waiting.opens, 1, limits.opens_waiting_max),
            QueueKind::Other => (&mut waiting.commands, 1, limits.commands_waiting_max),
        };
        let bytes = match queue {
            QueueKind::Renewal => None,
            QueueKind::Open => Some((&mut waiting.open_bytes, limits.open_bytes_waiting_max)),
            QueueKind::Other => Some((&mut waiting.command_bytes, limits.command_bytes_waiting_max)),
        };
        // An empty queue takes a message of any size: limits on single messages are the edge's.
        let heavy =
            bytes.as_ref().is_some_and(|(bytes, max)| **bytes > 0 && **bytes + message.bytes() > *max);
        if *many + more > many_max || heavy {
            let room = if queue == QueueKind::Other { self.queue.give_way(message.caller()) } else { None };
            let Some(pushed_out) = room else { return Err((message, Turned::Overloaded)) };
            self.waiting.command_bytes += message.bytes();
            self.waiting.command_bytes -= pushed_out.bytes();
            self.queue.push(message);
            return Err((pushed_out, Turned::Overloaded));
        }
        if let Some((bytes, _)) = bytes {
            *bytes += message.bytes();
        }
        *many += more;
        match queue {
            // A newer renewal of the same session does not take an older one's place: the older one's receipt
            // is what holds the stamp back, and its sender may be waiting for its number.
            QueueKind::Renewal | QueueKind::Open => self.inbox.push_back(message),
            QueueKind::Other => self.queue.push(message),
        }
        Ok(())
    }

    /// Seals the next entry, if one is due. The clock is read in here, so that no caller can read it before
    /// the last message that it handed in.
    ///
    /// What this returns must be proposed at once and in order. If the proposal is refused, or its outcome is
    /// unknown, its messages are answered so; they are never stamped again here.
    pub fn seal(&mut self, read_clock: impl FnOnce() -> Moment) -> Option<Sealed<M>> {
        if self.in_flight.len() >= self.limits.in_flight_max {
            return None;
        }
        let worth_it = self.worth_an_entry();
        let idle = self.in_flight.is_empty();
        let term = self.term.as_mut()?;
        let now = read_clock();
        let (count, excess) = term.counted(now);
        if !(worth_it || tick_due(term, now, count, idle)) {
            return None;
        }
        // Time that nobody's deadline was waiting for is not missed.
        if term.machine.earliest_deadline.is_some() {
            self.dropped = self.dropped.saturating_add(excess);
        }
        term.count = count;
        term.last = now;
        let stamp = stamp(count);
        self.tag_new(stamp);
        let waiting_before = self.waiting.many();
        let mut batch = self.spare.pop().unwrap_or_default();
        self.take_inbox(&mut batch);
        self.take_queue(&mut batch);
        let at = self.tags.front().map_or(stamp, |first_left_behind| first_left_behind.received);
        let term = self.term.as_mut().expect("the term does not end while sealing");
        assert!(at >= term.last_stamp, "stamp {at:?} is below the last one, {:?}", term.last_stamp);
        term.last_stamp = at;
        let number = self.next_entry;
        self.next_entry += 1;
        self.in_flight.push(InFlight { number, many: waiting_before - self.waiting.many() });
        Some(Sealed { number, at, batch })
    }

    /// A proposal has been answered: applied, refused, or nobody knows. Numbers of earlier terms are ignored.
    pub fn answered(&mut self, number: u64) {
        self.in_flight.retain(|entry| entry.number != number);
    }

    /// The leader's own machine has applied an entry.
    pub fn applied(&mut self, machine: MachineTime) {
        if let Some(term) = &mut self.term {
            assert!(machine.time >= term.machine.time, "cluster time went back");
            term.machine = machine;
            // The machine's time comes from our own stamps, so this changes nothing; except after a restore,
            // which puts the backup's time into a cluster without sessions, where no deadline can be cut short.
            term.count = term.count.max(span(machine.time));
        }
    }

    /// Whether a probe should go out: one every K/4 while a deadline is pending.
    pub fn probe_due(&self, now: Moment) -> bool {
        let Some(term) = &self.term else { return false };
        term.machine.earliest_deadline.is_some()
            && term.probe_sent.is_none_or(|sent| now.longest_since(sent) >= term.probe_every())
    }

    /// A probe is being sent; `now` was read before it leaves. `number` is drawn at random by the driver: whoever
    /// can guess it could vouch for a port that receives nothing.
    ///
    /// # Panics
    /// If this node does not lead.
    pub fn probe_sent(&mut self, number: u128, now: Moment) {
        let term = self.term.as_mut().expect("only a leader sends probes");
        if term.probes.len() == PROBES_MAX {
            term.probes.pop_front();
        }
        let (count, _) = term.counted(now);
        term.probes.push_back((number, count));
        term.probe_sent = Some(now);
    }

    /// A probe came back through the client port. Only a number under way counts, and it counts once: a forged one
    /// changes nothing, and neither does one of an earlier term.
    pub fn probe_returned(&mut self, number: u128) {
        let Some(term) = &mut self.term else { return };
        let Some(found) = term.probes.iter().position(|(sent, _)| *sent == number) else { return };
        // Those sent before it say nothing new.
        let last = term.probes.drain(..=found).next_back();
        term.probed = last.map_or(term.probed, |(_, sent_at)| term.probed.max(sent_at));
    }

    /// The next moment at which to ask [`seal`](Self::seal) and [`probe_due`](Self::probe_due) again, unless
    /// something happens earlier; `None` if only an event can matter.
    pub fn next_wake(&self, now: Moment) -> Option<Moment> {
        let term = self.term.as_ref()?;
        let probe = self.probe_wake(now);
        if self.in_flight.len() >= self.limits.in_flight_max {
            return probe;
        }
        if self.worth_an_entry() || (term.overdue() && self.in_flight.is_empty()) {
            return Some(now);
        }
        term.machine.earliest_deadline?;
        let tick = term.last.plus(term.tick_every());
        // Beyond the cap the count does not get there by waiting: something must be applied, or a probe return, first.
        let deadline = term.deadline_ahead().filter(|deadline| span(*deadline) <= term.cap());
        let end = deadline.map(|deadline| term.last.plus(span(deadline).saturating_sub(term.count)));
        [Some(tick), end, probe].into_iter().flatten().min_by_key(|wake| wake.longest_since(now))
    }

    /// Gives a drained batch back, so that its memory serves the next one.
    pub fn recycle(&mut self, mut batch: Vec<M>) {
        batch.clear();
        if self.spare.len() < self.limits.in_flight_max {
            self.spare.push(batch);
        }
    }

    /// Time that was measured while deadlines were pending and not counted, because of the cap. Grows with pauses,
    /// slow disks and lost quorums; every lease ended that much later.
    pub fn dropped(&self) -> Duration {
        self.dropped
    }

    /// How many messages wait.
    pub fn waiting(&self) -> Waiting {
        self.waiting
    }

    /// Entries proposed and not yet answered.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether what waits should be sealed now. An entry costs syncs and messages, however little is in it: beside one
    /// that is under way goes only one that is at least as large. What is less waits for the answer, and for others
    /// to ride with.
    fn worth_an_entry(&self) -> bool {
        // Asked of the queues and not of the count: a message without a single renewal wants its answer, too.
        let anything = !(self.inbox.is_empty() && self.queue.is_empty());
        let many = self.waiting.many();
        anything && self.in_flight.iter().all(|entry| entry.many <= many)
    }

    fn probe_wake(&self, now: Moment) -> Option<Moment> {
        let term = self.term.as_ref()?;
        term.machine.earliest_deadline?;
        Some(term.probe_sent.map_or(now, |sent| sent.plus(term.probe_every())))
    }

    /// Tags what has arrived since the last reading.
    fn tag_new(&mut self, received: ClusterTime) {
        let many = self.inbox.len() - self.tagged;
        if many > 0 {
            self.tags.push_back(Tag { received, many });
            self.tagged = self.inbox.len();
        }
    }

    /// Moves the front of the inbox into the batch, as far as the entry's limits allow.
    fn take_inbox(&mut self, batch: &mut Vec<M>) {
        let limits = &self.limits;
        let (mut taken, mut renewals, mut opens, mut bytes) = (0, 0, 0, 0);
        // Strictly from the front: nothing behind the first one left may be in the entry.
        for message in &self.inbox {
            if message.queue() == QueueKind::Renewal {
                let more = message.renewals();
                if renewals > 0 && renewals + more > limits.renewals_per_entry_max {
                    break;
                }
                renewals += more;
            } else {
                let more = message.bytes();
                if opens == limits.opens_per_entry_max
                    || (opens > 0 && bytes + more > limits.open_bytes_per_entry_max)
                {
                    break;
                }
                opens += 1;
                bytes += more;
            }
            taken += 1;
        }
        batch.extend(self.inbox.drain(..taken));
        self.waiting.renewals -= renewals;
        self.waiting.opens -= opens;
        self.waiting.open_bytes -= bytes;
        self.tagged -= taken;
        let mut untag = taken;
        while untag > 0 {
            let tag = self.tags.front_mut().expect("whatever is taken in is tagged");
            let part = untag.min(tag.many);
            tag.many -= part;
            untag -= part;
            if tag.many == 0 {
                self.tags.pop_front();
            }
        }
    }

    /// Moves the front of the queue into the batch: its own share, whatever the inbox took.
    fn take_queue(&mut self, batch: &mut Vec<M>) {
        let limits = &self.limits;
        let (mut commands, mut bytes) = (0, 0);
        let mut fits = |message: &M| {
            let more = message.bytes();
            let full = commands == limits.commands_per_entry_max
                || (commands > 0 && bytes + more > limits.command_bytes_per_entry_max);
            if !full {
                commands += 1;
                bytes += more;
            }
            !full
        };
        match self.queue.single() {
            Some(single) => {
                let taken = single.iter().take_while(|message| fits(message)).count();
                batch.extend(single.drain(..taken));
            }
            None => {
                while self.queue.front().is_some_and(&mut fits) {
                    batch.extend(self.queue.pop());
                }
            }
        }
        self.waiting.commands -= commands;
        self.waiting.command_bytes -= bytes;
    }
}

/// Whether an entry is due although nothing waits. `idle`: nothing is in flight.
fn tick_due(term: &Term, now: Moment, count: Duration, idle: bool) -> bool {
    if term.machine.earliest_deadline.is_none() {
        return false;
    }
    let reached = term.deadline_ahead().is_some_and(|deadline| stamp(count) >= deadline);
    reached || (term.overdue() && idle) || now.longest_since(term.last) >= term.tick_every()
}

fn span(time: ClusterTime) -> Duration {
    Duration::from_micros(time.as_micros())
}

fn stamp(count: Duration) -> ClusterTime {
    ClusterTime::ZERO.plus(count)
}

#[cfg(test)]
mod tests;
