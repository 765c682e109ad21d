//! Which TLS handshakes are under way, when there are too many: those are connections that have proved nothing yet.
//!
//! Pure: `now` is an argument. They have places of their own, so that no crowd of them takes the place of a connection
//! that is served; one address has a part of them only; and the node's own addresses have as many again, for its probe.
//! Who finds no place takes that of the one that has taken longest, if it has taken longer than any handshake does;
//! otherwise it is turned away.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Handshakes at once, if there are descriptors for them.
pub(crate) const HANDSHAKES_MAX: usize = 1_024;

/// How many handshakes there may be, and how long each may take.
#[derive(Clone, Copy, Debug)]
pub struct HandshakeLimits {
    /// At once.
    pub at_once_max: usize,
    /// At once from one address.
    pub per_address_max: usize,
    /// How long one may take.
    pub within: Duration,
    /// After so long one may be ended for another.
    pub makes_room_after: Duration,
}

impl Default for HandshakeLimits {
    fn default() -> Self {
        Self {
            at_once_max: HANDSHAKES_MAX,
            per_address_max: 64,
            within: Duration::from_secs(10),
            makes_room_after: Duration::from_secs(1),
        }
    }
}

impl HandshakeLimits {
    /// The usual ones, or fewer handshakes at once where there may be few connections.
    pub fn beside(connections_max: usize) -> HandshakeLimits {
        let usual = Self::default();
        Self { at_once_max: (connections_max / 6).clamp(2, usual.at_once_max), ..usual }
    }
}

/// The handshakes under way, oldest first. `T` is whatever the caller needs to end one.
#[derive(Debug)]
pub(crate) struct HandshakeTable<T> {
    limits: HandshakeLimits,
    next: u64,
    open: BTreeMap<u64, Handshake<T>>,
}

#[derive(Debug)]
struct Handshake<T> {
    handle: T,
    from: Option<IpAddr>,
    own: bool,
    since: Instant,
}

impl<T> HandshakeTable<T> {
    pub fn new(limits: HandshakeLimits) -> Self {
        Self { limits, next: 0, open: BTreeMap::new() }
    }

    /// A connection has arrived: its number, and the one to end for it; none if there is no place.
    pub fn admit(
        &mut self,
        handle: T,
        from: Option<IpAddr>,
        own: bool,
        now: Instant,
    ) -> Option<(u64, Option<T>)> {
        let HandshakeLimits { at_once_max, per_address_max, .. } = self.limits;
        let mut ended = None;
        if !own && from.is_some() {
            let same = |handshake: &Handshake<T>| !handshake.own && handshake.from == from;
            ended = self.make_room(same, per_address_max, now)?;
        }
        if ended.is_none() {
            ended = self.make_room(|handshake| handshake.own == own, at_once_max, now)?;
        }
        self.next += 1;
        self.open.insert(self.next, Handshake { handle, from, own, since: now });
        Some((self.next, ended))
    }

    /// A handshake is over, one way or the other.
    pub fn over(&mut self, number: u64) {
        self.open.remove(&number);
    }

    /// Room for one more of these: the one to end for it, if one must; none if there is no room.
    fn make_room(
        &mut self,
        these: impl Fn(&Handshake<T>) -> bool,
        max: usize,
        now: Instant,
    ) -> Option<Option<T>> {
        if self.open.len() < max || self.open.values().filter(|handshake| these(handshake)).count() < max {
            return Some(None);
        }
        let (number, oldest) = self.open.iter().find(|(_, handshake)| these(handshake))?;
        let number = *number;
        if now.duration_since(oldest.since) < self.limits.makes_room_after {
            return None;
        }
        self.open.remove(&number).map(|handshake| Some(handshake.handle))
    }
}

/// The table of a port, shared by its connections.
#[derive(Debug)]
pub(crate) struct Handshakes {
    table: Mutex<HandshakeTable<Arc<Notify>>>,
    /// How long one may take.
    pub within: Duration,
}

impl Handshakes {
    pub fn new(limits: HandshakeLimits) -> Arc<Self> {
        Arc::new(Self { table: Mutex::new(HandshakeTable::new(limits)), within: limits.within })
    }

    pub fn admit(self: &Arc<Self>, from: Option<IpAddr>, own: bool) -> Option<HandshakePlace> {
        let close = Arc::new(Notify::new());
        let (number, ended) = self.table.lock().admit(close.clone(), from, own, Instant::now())?;
        if let Some(ended) = ended {
            ended.notify_one();
        }
        Some(HandshakePlace { handshakes: self.clone(), number, close })
    }
}

/// The place of one handshake; given back when dropped.
#[derive(Debug)]
pub(crate) struct HandshakePlace {
    handshakes: Arc<Handshakes>,
    number: u64,
    /// Told when it must make room.
    pub close: Arc<Notify>,
}

impl Drop for HandshakePlace {
    fn drop(&mut self) {
        self.handshakes.table.lock().over(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HandshakeLimits = HandshakeLimits {
        at_once_max: 4,
        per_address_max: 2,
        within: Duration::from_secs(10),
        makes_room_after: Duration::from_secs(1),
    };

    fn address(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    #[test]
    fn one_address_has_its_part_and_no_more() {
        let (start, mut table) = (Instant::now(), HandshakeTable::new(LIMITS));
        for name in ["a", "b"] {
            assert!(matches!(table.admit(name, address(1), false, start), Some((_, None))));
        }
        assert_eq!(table.admit("c", address(1), false, start), None, "the others are as young");
        assert!(table.admit("d", address(2), false, start).is_some(), "another address has its own part");
        let later = start + Duration::from_secs(1);
        assert_eq!(
            table.admit("e", address(1), false, later),
            Some((4, Some("a"))),
            "the slowest makes room"
        );
    }

    #[test]
    fn all_together_are_bounded_and_the_node_itself_is_apart() {
        let (start, mut table) = (Instant::now(), HandshakeTable::new(LIMITS));
        for last in 1..=4 {
            assert!(table.admit("slow", address(last), false, start).is_some());
        }
        assert_eq!(table.admit("fast", address(9), false, start), None);
        assert!(table.admit("probe", address(9), true, start).is_some(), "it takes no place of others");
        let later = start + Duration::from_secs(2);
        assert_eq!(table.admit("fast", address(9), false, later).map(|(_, ended)| ended), Some(Some("slow")));
        table.over(2);
        assert_eq!(table.admit("next", address(8), false, later).map(|(_, ended)| ended), Some(None));
    }
}
