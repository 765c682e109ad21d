//! Which session a nonce opened, and which nonces can open nothing any more.
//!
//! Of a session's nonce only the first half and the session's number are kept here: the whole nonce is in the
//! session's record. One nonce opens one session: once that has ended, or its acquire was refused or cancelled, a
//! late copy of the request must not open a second one.

use alloc::collections::BTreeSet;

use super::Machine;
use super::cow_map::CowMap;
use super::state::{Session, UsedNonce};
use crate::limits::{NONCE_REFUSED_FOR, USED_NONCES_MAX};
use crate::numbers::{Nonce, SecretForm, SessionNumber, TransmissionId};

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Nonces {
    sessions: BTreeSet<(u64, SessionNumber)>,
    used: BTreeSet<Nonce>,
    /// How many of the used ones are kept as their clients know them.
    used_plain: usize,
}

impl Nonces {
    /// The session that this nonce opened.
    pub fn get(&self, nonce: Nonce, sessions: &CowMap<SessionNumber, Session>) -> Option<SessionNumber> {
        let half = first_half(nonce);
        let alike = self.sessions.range((half, SessionNumber::new(0))..=(half, SessionNumber::new(u64::MAX)));
        let opened_by = |number: SessionNumber| sessions.get(number).and_then(|session| session.nonce);
        alike.map(|(_, number)| *number).find(|number| opened_by(*number) == Some(nonce))
    }

    /// A nonce has opened this session.
    pub fn add(&mut self, nonce: Nonce, number: SessionNumber) {
        self.sessions.insert((first_half(nonce), number));
    }

    /// This nonce finds the session no more.
    pub fn remove(&mut self, nonce: Nonce, number: SessionNumber) {
        self.sessions.remove(&(first_half(nonce), number));
    }

    /// Whether this nonce can open nothing any more.
    pub fn is_used(&self, nonce: Nonce) -> bool {
        self.used.contains(&nonce)
    }

    /// This nonce is used; false if that was known.
    pub fn add_used(&mut self, nonce: Nonce) -> bool {
        let fresh = self.used.insert(nonce);
        self.used_plain += usize::from(fresh && nonce.form() == SecretForm::Plain);
        fresh
    }

    fn forget_used(&mut self, nonce: Nonce) {
        let known = self.used.remove(&nonce);
        self.used_plain -= usize::from(known && nonce.form() == SecretForm::Plain);
    }

    /// How many used ones are kept as their clients know them.
    pub fn used_plain(&self) -> usize {
        self.used_plain
    }
}

impl Machine {
    /// The nonce of a plain acquire whose session will have a secret of this form. If an undo came first, it is the
    /// one that the undo left behind.
    pub(super) fn transmission_nonce(&self, transmission: TransmissionId, form: SecretForm) -> Nonce {
        let undone = [SecretForm::Plain, SecretForm::Hashed].map(|form| transmission.nonce(form));
        let undone = undone.into_iter().find(|nonce| self.nonces.is_used(*nonce));
        undone.unwrap_or(transmission.nonce(form))
    }

    /// Remembers that a nonce can open nothing any more. The oldest are forgotten by age, and past a bound by count.
    pub(super) fn nonce_used(&mut self, nonce: Nonce) {
        if !self.nonces.add_used(nonce) {
            return;
        }
        let now = self.state.time;
        self.state.used_nonces.push_back(UsedNonce { nonce, since: now });
        while let Some(oldest) = self.state.used_nonces.front()
            && (self.state.used_nonces.len() > USED_NONCES_MAX || oldest.since.plus(NONCE_REFUSED_FOR) <= now)
        {
            self.nonces.forget_used(oldest.nonce);
            self.state.used_nonces.pop_front();
        }
    }
}

/// Hardly ever the same for two nonces.
fn first_half(nonce: Nonce) -> u64 {
    let [half @ .., _, _, _, _, _, _, _, _] = nonce.as_bytes();
    u64::from_be_bytes(*half)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::{ClusterTime, Command, Done, Entry, Open, Secret, WallTime};
    use alloc::vec::Vec;
    use core::time::Duration;

    /// Nonces that differ only in what is not indexed open sessions of their own, and each finds its own again.
    #[test]
    fn nonces_that_are_half_alike_are_distinguished() {
        let nonce = |last: u8| {
            let mut bits = [7; 16];
            bits[15] = last;
            Nonce::new(bits)
        };
        let open = |last: u8| {
            let secret = Secret::new([last; 16]);
            let holder = "twin".parse().expect("a holder");
            Command::Open(Open {
                holder,
                ttl: Duration::from_secs(10),
                nonce: Some(nonce(last)),
                secret,
                number: 1,
            })
        };
        let mut machine = Machine::default();
        let mut opened = |lasts: &[u8]| -> Vec<u64> {
            let commands = lasts.iter().map(|last| open(*last)).collect();
            let entry = Entry {
                at: ClusterTime::from_micros(1),
                wall: WallTime::default(),
                renewals: Vec::new(),
                commands,
            };
            let number = |done: Done| match done {
                Done::Opened { session, .. } => session.number.get(),
                other => panic!("{other:?}"),
            };
            machine.apply(entry).answers.into_iter().map(|answer| number(answer.expect("opened"))).collect()
        };
        assert_eq!(opened(&[1, 2, 3]), [1, 2, 3]);
        assert_eq!(opened(&[3, 1, 2, 4]), [3, 1, 2, 4]);
    }
}
