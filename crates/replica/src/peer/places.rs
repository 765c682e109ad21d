//! Who may stay connected to the peer port when there are too many.
//!
//! Pure: `now` is an argument. Nobody is turned away for want of a place: the newcomer takes that of the connection
//! that matters least. First that is whoever has not said who it is, for longest; then whoever has been silent for
//! longest. A member speaks with every heartbeat, so strangers that only sit there keep no member out, and a failover
//! takes as long as without them.

use std::collections::BTreeMap;
use tokio::time::Instant;

/// The open connections, by number. `T` is whatever the caller needs to close one.
#[derive(Debug)]
pub(super) struct Places<T> {
    max: usize,
    next: u64,
    open: BTreeMap<u64, Place<T>>,
}

#[derive(Debug)]
struct Place<T> {
    handle: T,
    /// Whether it has said who it is and was let in.
    known: bool,
    last_contact: Instant,
}

impl<T> Places<T> {
    pub fn new(max: usize) -> Self {
        Self { max, next: 0, open: BTreeMap::new() }
    }

    /// A connection has arrived: its number, and the connection to close for it.
    pub fn admit(&mut self, handle: T, now: Instant) -> (u64, Option<T>) {
        let full = self.open.len() >= self.max;
        let least =
            self.open.iter().filter(|_| full).min_by_key(|(_, place)| (place.known, place.last_contact));
        let least = least.map(|(number, _)| *number);
        let closed = least.and_then(|number| self.open.remove(&number)).map(|place| place.handle);
        self.next += 1;
        self.open.insert(self.next, Place { handle, known: false, last_contact: now });
        (self.next, closed)
    }

    /// A connection has said who it is, or has said something since.
    pub fn note_contact(&mut self, number: u64, now: Instant) {
        if let Some(place) = self.open.get_mut(&number) {
            (place.known, place.last_contact) = (true, now);
        }
    }

    /// A connection has ended.
    pub fn left(&mut self, number: u64) {
        self.open.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn strangers_go_first_and_then_the_silent() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut places = Places::new(3);
        let (member, _) = places.admit("member", at(0));
        places.note_contact(member, at(0));
        places.admit("stranger", at(1));
        let (idle, _) = places.admit("idle", at(2));
        places.note_contact(idle, at(2));
        let (another, closed) = places.admit("another", at(3));
        assert_eq!(closed, Some("stranger"), "it is younger than the member, and has not said who it is");
        assert_eq!(places.admit("third", at(4)).1, Some("another"));
        places.left(another);
        // Everybody is known now. The member has spoken since, the idle one has not.
        places.note_contact(member, at(5));
        places.note_contact(5, at(5));
        assert_eq!(places.admit("fourth", at(6)).1, Some("idle"));
        places.left(member);
        assert_eq!(places.admit("fifth", at(7)).1, None, "there is room again");
    }
}
