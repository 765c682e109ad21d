//! Which connections a node keeps, and which one it closes when the table is full.
//!
//! [`Table`] decides: it is pure, and `now` is how long the port has been open. A full table makes room by
//! closing the connection that has been idle longest and keeps no session alive. So a crowd of silent
//! connections cannot keep a holder out, and the leader's probe vouches for a port that holders can still
//! reach. Connections from the node's own addresses (its probe, an administrator on the machine) have a
//! reserve on top. [`Carrier`] and [`RequestGuard`] tell the table what happens on a connection; `listen.rs`
//! carries out what it decides.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Session streams (commands, renewals) on one connection. The library uses two; a connection with thousands would
/// cost memory and serve nobody.
const STREAMS_PER_CONNECTION_MAX: u32 = 16;
/// How long a connection that carried a renewal, an open or an acquire counts as keeping a session alive. As long as
/// a connection may be idle: a holder that renews with plain calls is never the one to make room.
pub(crate) const SESSION_KEPT: Duration = Duration::from_secs(60);

/// How many connections there may be, and how long one may be idle.
#[derive(Clone, Copy, Debug)]
pub struct TableLimits {
    /// Connections open at once.
    pub connections_max: usize,
    /// Connections from the node's own addresses on top of these.
    pub own_reserve: usize,
    /// How long the first request's head may take.
    pub head_within: Duration,
    /// How long a connection may be without a request under way.
    pub idle_max: Duration,
}

/// The open connections. `T` is whatever the caller needs to close one.
#[derive(Debug)]
pub struct Table<T> {
    limits: TableLimits,
    next: u64,
    open: HashMap<u64, Entry<T>>,
    /// Those that may be closed to make room, by the moment from which they may; from the node's own addresses, and others.
    closable_own: BTreeSet<(Duration, u64)>,
    closable: BTreeSet<(Duration, u64)>,
    /// How many are from the node's own addresses.
    own: usize,
}

#[derive(Debug)]
struct Entry<T> {
    handle: T,
    own: bool,
    /// Requests under way, complete or not.
    requests: u32,
    /// Requests under way that must not be cut off: waits, watches, streams with sessions, calls being answered.
    busy: u32,
    /// Session streams among them.
    streams: u32,
    /// Whether any request's head has been complete.
    served: bool,
    /// Since when nothing is under way that counts. Half a head or half a body does not.
    idle_since: Duration,
    /// When the last request ended, whatever it was.
    ended_at: Duration,
    /// Until when it counts as keeping a session alive.
    keeps_until: Duration,
}

impl<T> Entry<T> {
    fn closable_from(&self) -> Duration {
        self.idle_since.max(self.keeps_until)
    }
}

impl<T> Table<T> {
    /// An empty table.
    pub fn new(limits: TableLimits) -> Self {
        let (closable_own, closable) = (BTreeSet::new(), BTreeSet::new());
        Self { limits, next: 0, open: HashMap::new(), closable_own, closable, own: 0 }
    }

    fn closable(&mut self, own: bool) -> &mut BTreeSet<(Duration, u64)> {
        if own { &mut self.closable_own } else { &mut self.closable }
    }

    /// The connection that makes room, if there is one: idle longest, and keeping no session alive. The reserve of the
    /// node's own connections is not taken away by others.
    fn to_close(&self, own: bool, now: Duration) -> Option<u64> {
        let own_too = own || self.own > self.limits.own_reserve;
        let first_own = self.closable_own.first().filter(|_| own_too);
        let first = first_own.into_iter().chain(self.closable.first()).min()?;
        (first.0 <= now).then_some(first.1)
    }

    /// A connection has arrived. Gives its number, and the connection to close for it if the table was full; or gives
    /// it back if every open connection is at work or keeps a session alive.
    pub fn admit(&mut self, handle: T, own: bool, now: Duration) -> Result<(u64, Option<T>), T> {
        // Own connections within the reserve take no place of others.
        let reserve = if own { self.limits.own_reserve } else { self.limits.own_reserve.min(self.own) };
        let closed = match self.open.len() < self.limits.connections_max + reserve {
            true => None,
            false => match self.to_close(own, now) {
                Some(longest) => self.remove(longest),
                None => return Err(handle),
            },
        };
        let number = self.next;
        self.next += 1;
        let entry = Entry {
            handle,
            own,
            requests: 0,
            busy: 0,
            streams: 0,
            served: false,
            idle_since: now,
            ended_at: now,
            keeps_until: Duration::ZERO,
        };
        self.own += usize::from(own);
        self.closable(own).insert((now, number));
        self.open.insert(number, entry);
        Ok((number, closed))
    }

    /// A connection has ended.
    pub fn remove(&mut self, number: u64) -> Option<T> {
        let entry = self.open.remove(&number)?;
        self.own -= usize::from(entry.own);
        self.closable(entry.own).remove(&(entry.closable_from(), number));
        Some(entry.handle)
    }

    /// The head of a request is complete.
    pub fn request_begun(&mut self, number: u64) {
        if let Some(entry) = self.open.get_mut(&number) {
            entry.requests += 1;
            entry.served = true;
        }
    }

    /// A request becomes one that must not be cut off, or stops being one.
    pub fn set_busy(&mut self, number: u64, busy: bool, now: Duration) {
        let Some(entry) = self.open.get_mut(&number) else { return };
        let closable = if entry.own { &mut self.closable_own } else { &mut self.closable };
        closable.remove(&(entry.closable_from(), number));
        match busy {
            true => entry.busy += 1,
            false => entry.busy -= 1,
        }
        entry.idle_since = now;
        if entry.busy == 0 {
            closable.insert((entry.closable_from(), number));
        }
    }

    /// A request is over.
    pub fn request_ended(&mut self, number: u64, now: Duration) {
        if let Some(entry) = self.open.get_mut(&number) {
            entry.requests -= 1;
            entry.ended_at = now;
        }
    }

    /// A session was opened or renewed over this connection.
    pub fn keeps_session(&mut self, number: u64, until: Duration) {
        let Some(entry) = self.open.get_mut(&number) else { return };
        let closable = if entry.own { &mut self.closable_own } else { &mut self.closable };
        let listed = closable.remove(&(entry.closable_from(), number));
        entry.keeps_until = entry.keeps_until.max(until);
        if listed {
            closable.insert((entry.closable_from(), number));
        }
    }

    /// Whether one more session stream may be opened on this connection; if so, it counts.
    pub fn stream_begun(&mut self, number: u64) -> bool {
        let Some(entry) = self.open.get_mut(&number) else { return false };
        let room = entry.streams < STREAMS_PER_CONNECTION_MAX;
        entry.streams += u32::from(room);
        room
    }

    /// A session stream is over.
    pub fn stream_ended(&mut self, number: u64) {
        if let Some(entry) = self.open.get_mut(&number) {
            entry.streams -= 1;
        }
    }

    /// When this connection is closed for having been idle, unless something happens on it. `None` while a request is
    /// under way: waits, watches and streams may be silent for as long as they like.
    pub fn closes_at(&self, number: u64) -> Option<Duration> {
        let entry = self.open.get(&number).filter(|entry| entry.requests == 0)?;
        let patience = if entry.served { self.limits.idle_max } else { self.limits.head_within };
        Some(entry.ended_at + patience)
    }
}

/// The table of a listener, with its clock.
#[derive(Debug)]
pub(crate) struct Connections {
    table: Mutex<Table<Arc<Notify>>>,
    origin: Instant,
}

impl Connections {
    pub fn new(limits: TableLimits) -> Arc<Self> {
        Arc::new(Self { table: Mutex::new(Table::new(limits)), origin: Instant::now() })
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// A place for a connection, and whether another one must close for it; `None` if there is no place.
    pub fn admit(self: &Arc<Self>, own: bool) -> Option<(Place, bool)> {
        let close = Arc::new(Notify::new());
        let (number, closed) = self.table.lock().admit(close.clone(), own, self.now()).ok()?;
        if let Some(closed) = &closed {
            closed.notify_one();
        }
        let carrier = Carrier { connections: self.clone(), number };
        Some((Place { carrier, close }, closed.is_some()))
    }
}

/// The place of one connection in the table; given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    pub carrier: Carrier,
    /// Notified when the connection must make room.
    pub close: Arc<Notify>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.carrier.connections.table.lock().remove(self.carrier.number);
    }
}

/// One connection, for those who serve what arrives on it.
#[derive(Clone, Debug)]
pub(crate) struct Carrier {
    connections: Arc<Connections>,
    number: u64,
}

impl Carrier {
    /// A request has begun.
    pub fn request(&self) -> RequestGuard {
        self.connections.table.lock().request_begun(self.number);
        RequestGuard { carrier: self.clone(), busy: AtomicBool::new(false), stream: AtomicBool::new(false) }
    }

    /// How long until this connection is closed for being idle, as things stand.
    pub fn closes_in(&self) -> Option<Duration> {
        let closes_at = self.connections.table.lock().closes_at(self.number)?;
        Some(closes_at.saturating_sub(self.connections.now()))
    }
}

/// One request under way on a connection, until this is dropped.
#[derive(Debug)]
pub(crate) struct RequestGuard {
    carrier: Carrier,
    busy: AtomicBool,
    stream: AtomicBool,
}

impl RequestGuard {
    /// Whether cutting this request off would cost somebody something.
    pub fn set_busy(&self, busy: bool) {
        if self.busy.swap(busy, Ordering::AcqRel) != busy {
            let connections = &self.carrier.connections;
            connections.table.lock().set_busy(self.carrier.number, busy, connections.now());
        }
    }

    /// A session was opened or renewed by this request, and counts as kept for so long.
    pub fn keeps_session(&self, at_least: Duration) {
        let connections = &self.carrier.connections;
        let until = connections.now() + at_least.max(SESSION_KEPT);
        connections.table.lock().keeps_session(self.carrier.number, until);
    }

    /// This request is a session stream; whether there may be one more on its connection.
    pub fn is_stream(&self) -> bool {
        let room = self.carrier.connections.table.lock().stream_begun(self.carrier.number);
        self.stream.store(room, Ordering::Release);
        room
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.set_busy(false);
        let mut table = self.carrier.connections.table.lock();
        if *self.stream.get_mut() {
            table.stream_ended(self.carrier.number);
        }
        table.request_ended(self.carrier.number, self.carrier.connections.now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: TableLimits = TableLimits {
        connections_max: 3,
        own_reserve: 1,
        head_within: Duration::from_secs(10),
        idle_max: Duration::from_secs(60),
    };

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A full table: connection `n` arrived at second `n`.
    fn full() -> Table<&'static str> {
        let mut table = Table::new(LIMITS);
        for (at, name) in ["a", "b", "c"].into_iter().enumerate() {
            assert_eq!(table.admit(name, false, s(at as u64)), Ok((at as u64, None)));
        }
        table
    }

    #[test]
    fn the_one_idle_longest_makes_room() {
        let mut table = full();
        assert_eq!(table.admit("d", false, s(3)), Ok((3, Some("a"))));
        // A call on b, answered at second 4, makes c the one that is idle longest.
        table.request_begun(1);
        table.set_busy(1, true, s(3));
        table.set_busy(1, false, s(4));
        table.request_ended(1, s(4));
        assert_eq!(table.admit("e", false, s(5)), Ok((4, Some("c"))));
        assert_eq!(table.admit("f", false, s(5)), Ok((5, Some("d"))));
        assert_eq!(table.admit("g", false, s(5)), Ok((6, Some("b"))));
    }

    #[test]
    fn what_is_at_work_or_keeps_a_session_alive_never_makes_room() {
        let mut table = full();
        for number in [0, 1] {
            table.request_begun(number);
            table.set_busy(number, true, s(3));
        }
        table.keeps_session(2, s(63));
        assert_eq!(table.admit("d", false, s(4)), Err("d"), "two wait and one renews");
        assert_eq!(table.admit("e", false, s(62)), Err("e"));
        assert_eq!(table.admit("f", false, s(63)), Ok((3, Some("c"))), "it has not renewed for long");
        table.set_busy(0, false, s(64));
        assert_eq!(table.admit("g", false, s(64)), Ok((4, Some("f"))));
        assert_eq!(table.admit("h", false, s(64)), Ok((5, Some("a"))), "it waits no longer");
    }

    #[test]
    fn half_a_request_protects_nobody() {
        let mut table = full();
        // The head is there, the body is not.
        table.request_begun(0);
        assert_eq!(table.admit("d", false, s(9)), Ok((3, Some("a"))));
    }

    #[test]
    fn the_reserve_is_for_the_nodes_own_addresses() {
        let mut table = full();
        for number in 0..3 {
            table.request_begun(number);
            table.set_busy(number, true, s(3));
        }
        assert_eq!(table.admit("stranger", false, s(4)), Err("stranger"));
        assert_eq!(table.admit("probe", true, s(4)), Ok((3, None)));
        assert_eq!(table.admit("stranger", false, s(5)), Err("stranger"), "the reserve is not theirs");
        assert_eq!(table.admit("next probe", true, s(5)), Ok((4, Some("probe"))));
        table.set_busy(4, true, s(5));
        assert_eq!(table.admit("probe", true, s(5)), Err("probe"), "the reserve is at work, too");
        table.set_busy(0, false, s(6));
        assert_eq!(table.admit("stranger", false, s(6)), Ok((5, Some("a"))));
    }

    #[test]
    fn a_crowd_from_the_own_machine_makes_room_for_others() {
        let mut table = Table::new(LIMITS);
        for at in 0..4 {
            assert_eq!(table.admit("crowd", true, s(at)), Ok((at, None)));
        }
        assert_eq!(table.admit("stranger", false, s(4)), Ok((4, Some("crowd"))));
        assert_eq!(table.admit("another", false, s(4)), Ok((5, Some("crowd"))));
        assert_eq!(table.admit("third", false, s(4)), Ok((6, Some("crowd"))));
        assert_eq!(
            table.admit("fourth", false, s(5)),
            Ok((7, Some("stranger"))),
            "one of the crowd is the reserve"
        );
    }

    #[test]
    fn idle_connections_end_and_long_requests_do_not() {
        let mut table = full();
        assert_eq!(table.closes_at(0), Some(s(10)), "no head came");
        table.request_begun(0);
        assert_eq!(table.closes_at(0), None);
        table.set_busy(0, true, s(5));
        table.set_busy(0, false, s(500));
        assert_eq!(table.closes_at(0), None, "its body is still being sent");
        table.request_ended(0, s(510));
        assert_eq!(table.closes_at(0), Some(s(570)));
        assert_eq!((table.closes_at(7), table.remove(7)), (None, None), "a number that never was");
    }

    #[test]
    fn streams_are_counted_per_connection() {
        let mut table = full();
        assert!((0..STREAMS_PER_CONNECTION_MAX).all(|_| table.stream_begun(1)));
        assert!(!table.stream_begun(1) && table.stream_begun(2));
        table.stream_ended(1);
        assert!(table.stream_begun(1));
    }
}
