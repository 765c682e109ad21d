//! Which revisions the event files hold: ranges without a gap, one per file, and what in them turned out to be damaged.
//!
//! Decides what is there, what is missing, and which whole files go when there are too many or they are too old. Touches
//! no disk and reads no clock: age is the difference of the calendar times that the leaders stamped into events.

use std::collections::BTreeMap;
use std::time::Duration;

/// One file: the revisions that it was written with, all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub first: u64,
    pub last: u64,
    /// The calendar time of its last event.
    pub wall_ms: u64,
    pub bytes: u64,
    pub name: String,
}

/// Where a revision is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In this file, unless that is damaged.
    In(Segment),
    /// Missing, as are all up to this one; `None` if the files have nothing later.
    Missing { up_to_before: Option<u64> },
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Table {
    segments: BTreeMap<u64, Segment>,
    /// Ranges that could not be read.
    damaged: BTreeMap<u64, u64>,
}

impl Table {
    /// A file is there, or holds more than before.
    pub fn put(&mut self, segment: Segment) {
        self.segments.insert(segment.first, segment);
    }

    /// These revisions of a file cannot be read. `false` if that was known.
    pub fn damage(&mut self, first: u64, last: u64) -> bool {
        self.damaged.insert(first, last) != Some(last)
    }

    /// Nothing is there.
    pub fn clear(&mut self) -> Vec<Segment> {
        self.damaged.clear();
        std::mem::take(&mut self.segments).into_values().collect()
    }

    /// The last revision that is there.
    pub fn last(&self) -> u64 {
        self.segments.values().map(|segment| segment.last).max().unwrap_or_default()
    }

    pub fn bytes(&self) -> u64 {
        self.segments.values().map(|segment| segment.bytes).sum()
    }

    /// The first revision that is there.
    pub fn first(&self) -> Option<u64> {
        self.segments.keys().next().copied()
    }

    pub fn find(&self, revision: u64) -> Place {
        match self.whole(revision) {
            Some(segment) => Place::In(segment.clone()),
            None => Place::Missing { up_to_before: self.available_from(revision) },
        }
    }

    /// The first revision from this one on that is there.
    fn available_from(&self, revision: u64) -> Option<u64> {
        let mut revision = revision;
        loop {
            if let Some((_, damaged_last)) = self.damage_at(revision) {
                revision = damaged_last + 1;
            } else if self.segment_at(revision).is_some() {
                return Some(revision);
            } else {
                revision = *self.segments.range(revision..).next()?.0;
            }
        }
    }

    /// The revision after which everything up to `after` is there without a gap.
    pub fn complete_after(&self, after: u64) -> u64 {
        let mut after = after;
        while after > 0 {
            if self.damage_at(after).is_some() {
                break;
            }
            let Some(segment) = self.segment_at(after) else { break };
            let damaged = self.damaged.range(segment.first..=after).next_back();
            match damaged {
                Some((_, damaged_last)) => return *damaged_last,
                None => after = segment.first - 1,
            }
        }
        after
    }

    fn segment_at(&self, revision: u64) -> Option<&Segment> {
        let (_, segment) = self.segments.range(..=revision).next_back()?;
        (segment.last >= revision).then_some(segment)
    }

    fn damage_at(&self, revision: u64) -> Option<(u64, u64)> {
        let (first, last) = self.damaged.range(..=revision).next_back()?;
        (*last >= revision).then_some((*first, *last))
    }

    fn whole(&self, revision: u64) -> Option<&Segment> {
        self.segment_at(revision).filter(|_| self.damage_at(revision).is_none())
    }

    /// Takes out the oldest files that are too many or too old, never the newest file.
    pub fn prune(&mut self, bytes_max: u64, age_max: Duration) -> Vec<Segment> {
        let newest_ms = self.segments.values().map(|segment| segment.wall_ms).max().unwrap_or_default();
        let mut gone = Vec::new();
        let mut bytes = self.bytes();
        while self.segments.len() > 1
            && let Some(oldest) = self.segments.first_entry()
        {
            let age = Duration::from_millis(newest_ms.saturating_sub(oldest.get().wall_ms));
            if bytes <= bytes_max && age <= age_max {
                break;
            }
            let oldest = oldest.remove();
            bytes -= oldest.bytes;
            self.damaged.retain(|_, last| *last > oldest.last);
            gone.push(oldest);
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(first: u64, last: u64) -> Segment {
        Segment { first, last, wall_ms: last * 1_000, bytes: 100, name: format!("{first}-{last}") }
    }

    fn table(ranges: &[(u64, u64)]) -> Table {
        let mut table = Table::default();
        ranges.iter().for_each(|(first, last)| table.put(segment(*first, *last)));
        table
    }

    fn missing(next: impl Into<Option<u64>>) -> Place {
        Place::Missing { up_to_before: next.into() }
    }

    #[test]
    fn what_is_missing_is_named_with_where_to_go_on() {
        let mut table = table(&[(10, 19), (20, 29), (50, 59)]);
        assert_eq!(table.find(9), missing(10));
        assert_eq!(table.find(10), Place::In(segment(10, 19)));
        assert_eq!(table.find(29), Place::In(segment(20, 29)));
        assert_eq!(table.find(30), missing(50));
        assert_eq!(table.find(60), missing(None));
        assert!(table.damage(25, 29) && !table.damage(25, 29));
        assert_eq!(table.find(24), Place::In(segment(20, 29)));
        assert_eq!(table.find(25), missing(50), "damage and a gap are one range");
        assert_eq!(table.last(), 59);
    }

    #[test]
    fn complete_is_what_has_no_gap_up_to_what_memory_holds() {
        let mut table = table(&[(10, 19), (20, 29), (50, 59)]);
        assert_eq!(table.complete_after(55), 49);
        assert_eq!(table.complete_after(29), 9);
        assert_eq!(table.complete_after(40), 40, "the files do not reach what memory holds");
        assert_eq!(table.complete_after(0), 0);
        table.damage(12, 13);
        assert_eq!(table.complete_after(29), 13);
        table.damage(29, 29);
        assert_eq!(table.complete_after(29), 29);
    }

    #[test]
    fn whole_files_go_the_oldest_first_and_the_newest_stays() {
        let mut many = table(&[(10, 19), (20, 29), (50, 59)]);
        let week = Duration::from_secs(7 * 24 * 3_600);
        assert_eq!(many.prune(300, week), []);
        assert_eq!(many.prune(250, week), [segment(10, 19)]);
        assert_eq!(many.prune(1, week), [segment(20, 29)]);
        assert_eq!(many.find(55), Place::In(segment(50, 59)));
        let mut old = table(&[(10, 19), (20, 29), (50, 59)]);
        assert_eq!(old.prune(1_000, Duration::from_secs(30)), [segment(10, 19)], "its last is 40 s old");
    }
}
