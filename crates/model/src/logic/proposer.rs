//! What the leader is counting. Decides the stamp of every entry and what rides in it, as `core/proposer.rs`
//! does.

use super::{Beats, Entry, Request};
use crate::Mutation;

/// A message that waits, with the count at which it was taken in once a reading has covered it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tagged {
    /// The message.
    pub request: Request,
    /// The tag, as the proposer believes it.
    pub received: Option<Beats>,
    /// The count at the reading after its receipt: what the tag should be, whatever was mutated.
    pub truly: Beats,
}

/// One term as leader.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModelProposer {
    /// Cluster time as counted at `last`.
    pub count: Beats,
    /// The last reading of the clock.
    pub last: Beats,
    /// The last stamp.
    pub last_stamp: Beats,
    /// The count at which the last probe that came back was sent.
    pub probed: Beats,
    /// Opens and renewals, in order of arrival.
    pub inbox: Vec<Tagged>,
    /// Everything else.
    pub queue: Vec<Request>,
    /// Sealed and not yet applied, oldest first.
    pub in_flight: Vec<Entry>,
    /// When the batch opened; only kept for the mutation that stamps it then.
    pub opened: Option<Beats>,
    /// A stamp was below the one before it.
    pub stamp_fell: bool,
}

/// What the proposer has to know to seal.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// The clock.
    pub now: Beats,
    /// The cluster time last applied.
    pub applied: Beats,
    /// How far the count may run ahead of it.
    pub k: Beats,
    /// Whether any deadline is pending.
    pub pending: bool,
    /// Whether a probe comes back.
    pub receives: bool,
    /// How many renewals, and how many opens, one entry takes.
    pub limit: usize,
}

impl ModelProposer {
    /// Becomes leader at `now` with nothing but the machine's time.
    pub fn start_term(applied: Beats, now: Beats) -> ModelProposer {
        ModelProposer {
            count: applied,
            last: now,
            last_stamp: applied,
            probed: applied,
            inbox: Vec::new(),
            queue: Vec::new(),
            in_flight: Vec::new(),
            opened: None,
            stamp_fell: false,
        }
    }

    /// A message has arrived.
    pub fn arrived(&mut self, request: Request, now: Beats, mutation: Mutation) {
        if mutation == Mutation::StampAtBatchOpen {
            self.opened.get_or_insert(now);
        }
        match request {
            Request::Renew { who, .. } | Request::Open { who, .. } => {
                let place = self.inbox.iter().position(|older| {
                    matches!((older.request, request), (Request::Renew { who: other, .. }, Request::Renew { .. }) if other == who)
                });
                match place {
                    Some(place) if mutation == Mutation::NewerTakesOldersPlace => {
                        self.inbox[place].request = request
                    }
                    _ => self.inbox.push(Tagged { request, received: None, truly: 0 }),
                }
            }
            Request::Noise => self.inbox.push(Tagged { request, received: None, truly: 0 }),
            _ => self.queue.push(request),
        }
    }

    /// Whether an entry is due: something waits, or a deadline is pending and the clock has shown K/2 since
    /// the last reading.
    pub fn due(&self, turn: &Turn) -> bool {
        let waiting = !self.inbox.is_empty() || !self.queue.is_empty();
        waiting || (turn.pending && turn.now - self.last >= (turn.k / 2).max(1))
    }

    /// A wake-up at which nothing can be sealed. The mutated proposer counts here, too.
    pub fn woke(&mut self, turn: &Turn, mutation: Mutation) {
        if mutation == Mutation::CapPerTickOnly {
            self.count += (turn.now - self.last).min(turn.k);
            self.last = turn.now;
        }
    }

    /// Seals an entry: takes in, then reads, then counts, then stamps.
    pub fn seal(&mut self, turn: &Turn, mutation: Mutation) -> Entry {
        if turn.receives {
            self.probed = self.counted(turn.now, turn, mutation);
        }
        let bare = self.inbox.is_empty() && self.queue.is_empty();
        let before = self.count;
        let reading = self.opened.take().unwrap_or(turn.now).max(self.last);
        let truly = self.counted(turn.now, turn, mutation);
        if bare || mutation != Mutation::StampFromLastTick {
            self.count = self.counted(reading, turn, mutation);
            self.last = reading;
        }
        let stamp = match mutation {
            Mutation::CountRunsOn => self.count.min(self.cap(turn, mutation)).max(self.last_stamp),
            _ => self.count,
        };
        for tagged in self.inbox.iter_mut().filter(|tagged| tagged.received.is_none()) {
            let tag = if mutation == Mutation::TaggedBeforeReading { before } else { stamp };
            tagged.received = Some(tag);
            tagged.truly = truly;
        }
        let mut batch = self.take_inbox(turn.limit, mutation);
        batch.append(&mut self.queue);
        let at = match self.inbox.first() {
            Some(first) if mutation != Mutation::CutWithoutHolding => first.received.unwrap_or(stamp),
            _ => stamp,
        };
        self.stamp_fell |= at < self.last_stamp;
        self.last_stamp = at;
        let behind = self.inbox.iter().filter_map(|tagged| match tagged.request {
            Request::Renew { who, number } => Some((who, number, tagged.truly)),
            _ => None,
        });
        Entry { at, batch, behind: behind.collect() }
    }

    fn cap(&self, turn: &Turn, mutation: Mutation) -> Beats {
        let probed = if mutation == Mutation::NoProbe { turn.applied } else { self.probed };
        turn.applied.min(probed) + turn.k
    }

    /// The count at `now`.
    fn counted(&self, now: Beats, turn: &Turn, mutation: Mutation) -> Beats {
        let passed = now - self.last;
        let measured = self.count + passed;
        match mutation {
            Mutation::CapPerTickOnly => self.count + passed.min(turn.k),
            Mutation::CountRunsOn => measured,
            Mutation::CountLowered => measured.min(self.cap(turn, mutation)),
            // Never lowered: what was counted under a larger K may already be in a stamp.
            _ => measured.min(self.cap(turn, mutation)).max(self.count),
        }
    }

    /// Strictly from the front: nothing behind the first one left may be in the entry.
    fn take_inbox(&mut self, limit: usize, mutation: Mutation) -> Vec<Request> {
        let (mut renewals, mut opens, mut cut) = (0, 0, false);
        let mut batch = Vec::new();
        self.inbox.retain(|tagged| {
            let open = matches!(tagged.request, Request::Open { .. });
            let many = if open { &mut opens } else { &mut renewals };
            let passes = open && mutation == Mutation::OpenPassesCut;
            cut |= *many == limit && !passes;
            if (cut && !passes) || *many == limit {
                return true;
            }
            *many += 1;
            batch.push(tagged.request);
            false
        });
        batch
    }
}
