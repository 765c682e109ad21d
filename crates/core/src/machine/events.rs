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
        fresh.drain(..).for_each(|event| self.keep(event, limits));
        // A mass expiry needs more room than anything after it.
        fresh.shrink_to(FRESH_KEPT);
        self.fresh = fresh;
    }

    fn keep(&mut self, event: Event, limits: &Limits) {
        self.bytes += bytes(&event);
        // Room is made first, so that the list never grows beyond what it may hold.
        while self.events.len() >= limits.events_max as usize || self.bytes > limits.event_bytes_max {
            let Some(dropped) = self.events.pop_front() else { break };
            self.bytes -= bytes(&dropped);
            // A revision is delivered whole or not at all, so one that lost an event is no longer complete.
            self.complete_after = dropped.revision;
        }
        self.events.push_back(event);
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
}
