//! Counts denials that repeat, so that one caller in a loop fills no disk and pushes nobody's lines out.
//!
//! The first of its kind is written at once; those that follow within a minute are counted, and the count is written
//! when the minute is over. Callers that have not proved who they are have few kinds: whatever they make up, they
//! cannot write more than that many lines a minute.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::Moment;

use super::record::{AuditRecord, Verdict};

/// How long denials of one kind are counted together.
const WINDOW: Duration = Duration::from_secs(60);
/// Kinds that are counted apart at once; what is beyond them is counted together.
const KINDS_MAX: usize = 1_024;
/// The same for callers that have not proved who they are.
const NAMELESS_KINDS_MAX: usize = 64;
/// Who such a caller is, in a line.
pub(crate) const NAMELESS: &str = "anyone";

#[derive(Debug, Default)]
pub(crate) struct Repeats {
    kinds: BTreeMap<Kind, Counted>,
    nameless: usize,
}

/// What makes two denials alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    One { identity: String, address: String, call: &'static str, name: Option<String>, code: &'static str },
    Others { nameless: bool },
}

#[derive(Debug)]
struct Counted {
    since: Moment,
    repeats: u64,
    last: AuditRecord,
}

impl Repeats {
    /// The record, if it is to be written now; else it was counted.
    pub fn admit(&mut self, record: AuditRecord, now: Moment) -> Option<AuditRecord> {
        if record.verdict != Verdict::Denied {
            return Some(record);
        }
        let nameless = record.identity == NAMELESS;
        let mut kind = Kind::of(&record);
        if !self.kinds.contains_key(&kind) {
            let full = self.kinds.len() >= KINDS_MAX || (nameless && self.nameless >= NAMELESS_KINDS_MAX);
            if full {
                kind = Kind::Others { nameless };
            }
        }
        match self.kinds.get_mut(&kind) {
            Some(counted) => {
                counted.repeats += 1;
                counted.last = record;
                None
            }
            None => {
                self.nameless += usize::from(nameless);
                self.kinds.insert(kind, Counted { since: now, repeats: 0, last: record.clone() });
                Some(record)
            }
        }
    }

    /// The counts whose time has come, as records; all of them at the end.
    pub fn due(&mut self, now: Moment, all: bool) -> Vec<AuditRecord> {
        let mut due = Vec::new();
        let nameless = &mut self.nameless;
        self.kinds.retain(|_, counted| {
            let over = all || now.longest_since(counted.since) >= WINDOW;
            if over {
                *nameless -= usize::from(counted.last.identity == NAMELESS);
                if counted.repeats > 0 {
                    due.push(AuditRecord { repeats: Some(counted.repeats), ..counted.last.clone() });
                }
            }
            !over
        });
        due
    }
}

impl Kind {
    fn of(record: &AuditRecord) -> Kind {
        let address = record.source.as_deref().unwrap_or_default();
        // Every connection has a port of its own.
        let address = address.rsplit_once(':').map_or(address, |(address, _)| address).to_owned();
        // What a stranger names is the stranger's choice.
        let name = record.name.clone().filter(|_| record.identity != NAMELESS);
        let code = record.code.unwrap_or_default();
        Kind::One { identity: record.identity.clone(), address, call: record.call, name, code }
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::{Identity, WallTime};
    use tenure_wire::Code;

    use super::super::record::Subject;
    use super::*;
    use crate::call_table::Call;

    fn at(seconds: u64) -> Moment {
        Moment::from_readings(Duration::from_secs(seconds), Duration::from_secs(seconds))
    }

    fn denied(who: &str, from: &str, name: &str) -> AuditRecord {
        let identity = match who {
            NAMELESS => Identity::Anyone,
            who => Identity::named(who.parse().unwrap()),
        };
        let subject = Subject { name: Some(name.into()), session: None };
        let row = Call::LeasesAcquire.row();
        let code = Some(Code::Forbidden);
        AuditRecord::new(WallTime::default(), 1, &identity, Some(from), row, &subject, code, None)
    }

    #[test]
    fn a_loop_is_two_lines_a_minute() {
        let mut repeats = Repeats::default();
        let mut written = 0;
        for port in 0..1_000 {
            let record = denied("cred/a", &format!("10.0.0.9:{port}"), "pay/x");
            written += usize::from(repeats.admit(record, at(10)).is_some());
        }
        assert_eq!((written, repeats.due(at(69), false).len()), (1, 0));
        let due = repeats.due(at(70), false);
        assert_eq!(due.iter().map(|record| record.repeats).collect::<Vec<_>>(), [Some(999)]);
        // It is over: the next one is written at once, and nothing is counted twice.
        assert!(repeats.admit(denied("cred/a", "10.0.0.9:1", "pay/x"), at(71)).is_some());
        assert!(repeats.due(at(200), false).is_empty());
    }

    #[test]
    fn others_are_not_counted_with_it() {
        let mut repeats = Repeats::default();
        for (who, from, name) in [
            ("cred/a", "10.0.0.9:1", "pay/x"),
            ("cred/b", "10.0.0.9:1", "pay/x"),
            ("cred/a", "10.0.0.8:1", "pay/x"),
            ("cred/a", "10.0.0.9:1", "pay/y"),
        ] {
            assert!(repeats.admit(denied(who, from, name), at(1)).is_some(), "{who} {from} {name}");
        }
    }

    /// A stranger cannot push lines out of the files by asking for ever new names from ever new addresses.
    #[test]
    fn a_stranger_writes_few_lines_whatever_it_makes_up() {
        let mut repeats = Repeats::default();
        let mut written = 0;
        for number in 0..100_000 {
            let record = denied(NAMELESS, &format!("10.0.{}.9:1", number % 200), &format!("x/{number}"));
            written += usize::from(repeats.admit(record, at(1)).is_some());
        }
        assert_eq!(written, NAMELESS_KINDS_MAX + 1);
        // Somebody with a name is still seen at once.
        assert!(repeats.admit(denied("cred/a", "10.0.0.9:1", "pay/x"), at(2)).is_some());
        let counted: u64 = repeats.due(at(3), true).iter().filter_map(|record| record.repeats).sum();
        assert_eq!(counted as usize + written, 100_000);
        assert_eq!(repeats.nameless, 0);
    }

    #[test]
    fn what_was_not_denied_is_never_counted_away() {
        let mut repeats = Repeats::default();
        for _ in 0..3 {
            let record = AuditRecord { verdict: Verdict::Done, ..denied("cred/a", "10.0.0.9:1", "pay/x") };
            assert!(repeats.admit(record, at(1)).is_some());
        }
    }
}
