//! Which connections to the peer port are kept when there are too many.
//!
//! Pure: `now` is an argument. Members have places of their own, a few for each; everybody else shares a number of
//! places. Nobody is turned away for want of a place: who comes takes that of a connection of the same kind. Among
//! strangers that is the one that has been there for longest without saying who it is; among the connections of a member,
//! the one that has been silent for longest. So strangers keep no member out, and a failover takes as long as
//! without them.

use crate::NodeId;
use std::collections::BTreeMap;
use tokio::time::Instant;

/// The open connections, by number. `T` is whatever the caller needs to close one.
#[derive(Debug)]
pub(super) struct Places<T> {
    strangers_max: usize,
    per_member_max: usize,
    next: u64,
    open: BTreeMap<u64, Place<T>>,
}

#[derive(Debug)]
struct Place<T> {
    handle: T,
    /// Who it is, once it has said so and was let in.
    member: Option<NodeId>,
    last_contact: Instant,
}

impl<T> Places<T> {
    pub fn new(strangers_max: usize, per_member_max: usize) -> Self {
        Self { strangers_max, per_member_max, next: 0, open: BTreeMap::new() }
    }

    /// A connection has arrived: its number, and the connection to close for it.
    pub fn admit(&mut self, handle: T, now: Instant) -> (u64, Option<T>) {
        let closed = self.make_room(None, self.strangers_max);
        self.next += 1;
        self.open.insert(self.next, Place { handle, member: None, last_contact: now });
        (self.next, closed)
    }

    /// A connection has said that it is `member`'s and was let in: the connection to close for it.
    pub fn let_in(&mut self, number: u64, member: NodeId, now: Instant) -> Option<T> {
        let closed = self.make_room(Some(member), self.per_member_max);
        if let Some(place) = self.open.get_mut(&number) {
            (place.member, place.last_contact) = (Some(member), now);
        }
        closed
    }

    /// A connection that was let in has said something.
    pub fn note_contact(&mut self, number: u64, now: Instant) {
        if let Some(place) = self.open.get_mut(&number) {
            place.last_contact = now;
        }
    }

    /// A connection has ended.
    pub fn left(&mut self, number: u64) {
        self.open.remove(&number);
    }

    /// Takes one away from these if there are as many as there may be.
    fn make_room(&mut self, of: Option<NodeId>, max: usize) -> Option<T> {
        let same = || self.open.iter().filter(|(_, place)| place.member == of);
        if same().count() < max {
            return None;
        }
        let (number, _) = same().min_by_key(|(_, place)| place.last_contact)?;
        let number = *number;
        self.open.remove(&number).map(|place| place.handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn strangers_take_each_others_places_and_never_a_members() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut places = Places::new(2, 2);
        let (member, _) = places.admit("member", at(0));
        assert_eq!(places.let_in(member, 7, at(0)), None);
        assert_eq!(places.admit("first", at(1)).1, None);
        let (second, closed) = places.admit("second", at(2));
        assert_eq!(closed, None);
        assert_eq!(places.admit("third", at(3)).1, Some("first"), "the member has been silent for longer");
        places.left(second);
        assert_eq!(places.admit("fourth", at(4)).1, None, "there is room again");
    }

    #[test]
    fn a_member_takes_its_own_places_and_nobody_elses() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut places = Places::new(9, 2);
        let mut open = |handle, node, seconds| {
            let (number, _) = places.admit(handle, at(seconds));
            (number, places.let_in(number, node, at(seconds)))
        };
        let (_, none) = open("other", 8, 0);
        let (busy, also_none) = open("busy", 7, 1);
        let (_, idle_none) = open("idle", 7, 2);
        assert_eq!((none, also_none, idle_none), (None, None, None));
        places.note_contact(busy, at(3));
        let (number, _) = places.admit("again", at(4));
        assert_eq!(places.let_in(number, 7, at(4)), Some("idle"));
    }
}
