//! What followers have acknowledged to this node while it led, and whether one of them has lost some of it
//! since.
//!
//! The engine assumes that a follower keeps what it has acknowledged: one that returned with less would still
//! be counted for all of it. So at the start of a connection each side sends how far its log reaches, and a
//! leader sends what the other has acknowledged in its term. If the log ends before that, the connection is
//! refused, and a node that detects its own loss stops. Nothing here is durable: a leader of another term
//! does not know it.

use crate::NodeId;
use crate::wal::LogId;
use std::collections::BTreeMap;

/// How far the log of a node reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogEnd {
    /// The term of its vote.
    pub term: u64,
    /// Its last entry, or the last that its snapshot covers.
    pub last: Option<LogId>,
}

/// What a leader saw a follower acknowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    /// The leader's term.
    pub term: u64,
    /// The last entry.
    pub last: LogId,
}

impl Acknowledged {
    /// Whether a log that ends like this has lost some of it. In a later term another leader may have cut
    /// what was never committed; within the term nothing is cut, and the vote for its leader is not
    /// forgotten.
    pub fn is_lost_by(&self, end: LogEnd) -> bool {
        let has_it = |last: LogId| last >= self.last && last.index >= self.last.index;
        end.term < self.term || (end.term == self.term && !end.last.is_some_and(has_it))
    }
}

/// What was acknowledged, by follower.
#[derive(Debug, Default)]
pub(crate) struct Acknowledgements(BTreeMap<NodeId, Acknowledged>);

impl Acknowledgements {
    /// A follower has acknowledged everything up to an entry to the leader of `term`, which is this node.
    pub fn note(&mut self, node: NodeId, term: u64, last: LogId) {
        let seen = Acknowledged { term, last };
        let known = self.0.entry(node).or_insert(seen);
        if (known.term, known.last) < (term, last) {
            *known = seen;
        }
    }

    /// What a node has acknowledged in `term`.
    pub fn of(&self, node: NodeId, term: u64) -> Option<Acknowledged> {
        self.0.get(&node).copied().filter(|seen| seen.term == term)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(term: u64, index: u64) -> LogId {
        LogId { term, index }
    }

    fn end(term: u64, last: Option<LogId>) -> LogEnd {
        LogEnd { term, last }
    }

    #[test]
    fn less_than_was_acknowledged_in_the_term_is_a_loss() {
        let seen = Acknowledged { term: 3, last: id(2, 10) };
        for sound in [id(2, 10), id(2, 11), id(3, 12)] {
            assert!(!seen.is_lost_by(end(3, Some(sound))), "{sound:?}");
        }
        for short in [None, Some(id(2, 9)), Some(id(1, 10)), Some(id(1, 30)), Some(id(3, 9))] {
            assert!(seen.is_lost_by(end(3, short)), "{short:?}");
        }
        assert!(seen.is_lost_by(end(2, Some(id(2, 10)))), "it has forgotten its vote");
        assert!(!seen.is_lost_by(end(4, None)), "another leader may have cut it");
    }

    #[test]
    fn the_most_that_was_acknowledged_in_the_newest_term_counts() {
        let mut seen = Acknowledgements::default();
        assert_eq!(seen.of(2, 3), None);
        for last in [id(2, 10), id(3, 12), id(2, 11)] {
            seen.note(2, 3, last);
        }
        assert_eq!(seen.of(2, 3), Some(Acknowledged { term: 3, last: id(3, 12) }));
        assert_eq!((seen.of(2, 4), seen.of(1, 3)), (None, None));
        seen.note(2, 5, id(3, 11));
        seen.note(2, 3, id(3, 13));
        assert_eq!(
            seen.of(2, 5),
            Some(Acknowledged { term: 5, last: id(3, 11) }),
            "an answer that came late"
        );
    }
}
