//! The format version: how stored shapes look and which behaviour applies. The cluster agrees on one number, kept in
//! the replicated state and never lowered.
//!
//! Every build reads all versions up to its newest. It writes entries, snapshots and peer messages in the version that the
//! cluster has agreed on, and applies entries by the rules of that version, so nodes of two releases stay equal.
//! [`AutoUpgrade`] decides when the number may be raised without an operator.

use core::time::Duration;

use crate::time::Moment;

/// A version of everything that is stored or sent between nodes, and of the behaviour that goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FormatVersion(u8);

impl FormatVersion {
    /// Release 0.1.0.
    pub const V1: FormatVersion = FormatVersion(1);
    /// The agreed version itself, `Upgrade`, a rest after a release, leases that remember several transmissions,
    /// forwarded commands in batches, and restores in pieces.
    pub const V2: FormatVersion = FormatVersion(2);
    /// The oldest that this build reads and writes.
    pub const OLDEST: FormatVersion = FormatVersion::V1;
    /// The newest that this build reads and writes.
    pub const NEWEST: FormatVersion = FormatVersion::V2;

    /// The version of this number, if this build knows it.
    pub const fn known(number: u8) -> Option<FormatVersion> {
        if number >= Self::OLDEST.0 && number <= Self::NEWEST.0 { Some(FormatVersion(number)) } else { None }
    }

    /// The number.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The next version, if this build knows it.
    pub const fn next(self) -> Option<FormatVersion> {
        FormatVersion::known(self.0 + 1)
    }
}

impl core::fmt::Display for FormatVersion {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Decides when a leader started with `--auto-upgrade AFTER` raises the agreed version: when a raise has been possible for
/// that long without interruption. Until then every node can still return to the older release.
#[derive(Clone, Debug)]
pub struct AutoUpgrade {
    after: Duration,
    possible_since: Option<Moment>,
}

impl AutoUpgrade {
    /// Raises after a raise has been possible for so long.
    pub const fn new(after: Duration) -> AutoUpgrade {
        AutoUpgrade { after, possible_since: None }
    }

    /// Takes in whether every member was just received to support the next version. True when it is time to
    /// raise.
    pub fn observe(&mut self, possible: bool, now: Moment) -> bool {
        if !possible {
            self.possible_since = None;
            return false;
        }
        let since = *self.possible_since.get_or_insert(now);
        now.longest_since(since) >= self.after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raise_waits_for_its_time_and_any_doubt_starts_it_again() {
        let second = |n| {
            let reading = Duration::from_secs(n);
            Moment::from_readings(reading, reading)
        };
        let mut upgrade = AutoUpgrade::new(Duration::from_secs(10));
        assert!(!upgrade.observe(true, second(0)));
        assert!(!upgrade.observe(true, second(9)));
        assert!(!upgrade.observe(false, second(10)), "a member fell silent");
        assert!(!upgrade.observe(true, second(11)));
        assert!(!upgrade.observe(true, second(20)));
        assert!(upgrade.observe(true, second(21)));
    }

    #[test]
    fn only_known_versions_exist() {
        assert_eq!(FormatVersion::known(0), None);
        assert_eq!(FormatVersion::known(1), Some(FormatVersion::V1));
        assert_eq!(FormatVersion::NEWEST.next(), None);
        assert_eq!(FormatVersion::V1.next(), Some(FormatVersion::V2));
    }
}
