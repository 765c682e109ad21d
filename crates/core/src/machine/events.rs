//! The events that watchers can still ask for: bounded in number and bytes, derived from the log, so not
//! part of a snapshot. Whoever asks for older ones learns where to start again.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::event::{Event, EventKind};
use crate::limits::Limits;
use crate::numbers::Revision;

/// How many events of one entry keep their room for the next.
const FRESH_KEPT: usize = 1_024;

#[derive(Clone, Debug, Default)]
pub(super) struct EventLog {
    events: VecDeque<Event>,
    /// The events of the last entry. They join the others with the next one: until then they are shown as what is new, and
    /// nobody has to copy them for that.
    fresh: Vec<Event>,
    bytes: u64,
    /// Everything after this revision is here.
    complete_after: Revision,
}

impl EventLog {
    /// A log that knows nothing up to and including `revision`.
    pub fn starting_after(revision: Revision) -> Self {
        Self { complete_after: revision, ..Self::default() }
    }

    pub fn push(&mut self, event: Event) {
        self.fresh.push(event);
    }

    /// All of the last entry, however many there are.
    pub fn fresh(&self) -> &[Event] {
        &self.fresh
    }

    /// Takes the events of an entry that is still being applied.
    pub fn take_fresh(&mut self) -> Vec<Event> {
        core::mem::take(&mut self.fresh)
    }

    /// Another entry begins.
    pub fn turn_over(&mut self, limits: &Limits) {
        let mut fresh = self.take_fresh();
        let fresh_bytes = fresh.iter().map(bytes).sum::<u64>();
        if fresh.len() <= limits.events_max as usize && fresh_bytes <= limits.event_bytes_max {
            // Nearly always all of them stay, and room for them is made at once.
            self.make_room(fresh.len(), fresh_bytes, limits);
            self.events.extend(fresh.drain(..));
        } else {
            fresh.drain(..).for_each(|event| self.keep(event, limits));
        }
        // A mass expiry needs more room than anything after it.
        fresh.shrink_to(FRESH_KEPT);
        self.fresh = fresh;
    }

    fn keep(&mut self, event: Event, limits: &Limits) {
        self.make_room(1, bytes(&event), limits);
        self.events.push_back(event);
    }

    /// Drops the oldest until so many more may stay, with so many bytes. Room is made first, so that the list never grows
    /// beyond what it may hold.
    fn make_room(&mut self, more: usize, bytes_more: u64, limits: &Limits) {
        self.bytes += bytes_more;
        let mut count = 0;
        while self.events.len() - count + more > limits.events_max as usize
            || self.bytes > limits.event_bytes_max
        {
            let Some(dropped) = self.events.get(count) else { break };
            self.bytes -= bytes(dropped);
            // A revision is delivered whole or not at all, so one that lost an event is no longer complete.
            self.complete_after = dropped.revision;
            count += 1;
        }
        self.events.drain(..count);
        // Room doubles, but is never for more than may be kept.
        let needed = self.events.len() + more;
        if needed > self.events.capacity() {
            let room = needed.next_power_of_two().min(limits.events_max as usize);
            self.events.reserve_exact(room.saturating_sub(self.events.len()));
        }
    }

    /// The events after `revision`, or the oldest revision after which all are here.
    pub fn after(&self, revision: Revision) -> Result<impl Iterator<Item = &Event>, Revision> {
        if revision < self.complete_after {
            return Err(self.complete_after);
        }
        let start = self.events.partition_point(|event| event.revision <= revision);
        let fresh = self.fresh.partition_point(|event| event.revision <= revision);
        Ok(self.events.range(start..).chain(&self.fresh[fresh..]))
    }
}

fn bytes(event: &Event) -> u64 {
    match &event.kind {
        EventKind::Put { value, .. } => value.len() as u64,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::WallTime;
    use alloc::vec::Vec;

    fn event(revision: u64) -> Event {
        Event {
            revision: Revision::new(revision),
            wall: WallTime::default(),
            kind: EventKind::BecameLeader { node: 1, term: revision },
            identity: None,
        }
    }

    #[test]
    fn a_watcher_that_fell_behind_learns_where_to_start_again() {
        let limits = Limits { events_max: 3, ..Limits::default() };
        let mut log = EventLog::starting_after(Revision::new(10));
        for revision in [11, 12, 12, 13, 14] {
            log.turn_over(&limits);
            log.push(event(revision));
        }
        assert_eq!(log.fresh().len(), 1);
        // Those of the last entry are all here, and among the others they count when the next one begins.
        assert_eq!(log.after(Revision::new(11)).unwrap().count(), 4);
        log.turn_over(&limits);
        // Revision 12 lost one of its two events, so it must not be delivered in part.
        assert_eq!(log.after(Revision::new(11)).err(), Some(Revision::new(12)));
        let rest: Vec<u64> = log.after(Revision::new(12)).unwrap().map(|e| e.revision.get()).collect();
        assert_eq!(rest, [13, 14]);
        assert_eq!(log.after(Revision::new(14)).unwrap().count(), 0);
    }

    /// However many come at once, what is kept is what would be kept if they came one by one.
    #[test]
    fn events_that_come_at_once_are_kept_as_if_they_came_one_by_one() {
        let limits = Limits { events_max: 12, event_bytes_max: 300, ..Limits::default() };
        let (mut log, mut plain) = (EventLog::default(), EventLog::default());
        let (mut seed, mut revision) = (11u64, 0);
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..3_000 {
            // More than may be kept, and a value above the bound, too.
            for _ in 0..random(16) {
                revision += random(2);
                let size = if random(40) == 0 { 400 } else { random(60) } as usize;
                let put = EventKind::Put {
                    key: "key".parse().expect("a key"),
                    value: alloc::vec![7; size].into(),
                    create_revision: Revision::default(),
                    version: 1,
                };
                let event =
                    if random(3) == 0 { event(revision) } else { Event { kind: put, ..event(revision) } };
                log.push(event.clone());
                plain.keep(event, &limits);
            }
            log.turn_over(&limits);
            assert_eq!((&log.events, log.bytes), (&plain.events, plain.bytes));
            assert_eq!(log.complete_after, plain.complete_after);
            assert!(log.events.len() <= 12 && log.events.iter().map(bytes).sum::<u64>() == log.bytes);
            assert!(log.events.capacity() <= 12, "no more room than may be filled");
        }
    }
}
