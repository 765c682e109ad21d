//! Which session a nonce opened. Only numbers are kept here: the nonce itself stands in the session's record.

use core::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::shelf::Shelf;
use super::state::Session;
use crate::numbers::{Nonce, SessionNumber};

type Sessions = Shelf<SessionNumber, Session>;

/// See the module. Its order differs from replica to replica, so nobody is ever told of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Nonces {
    table: HashTable<SessionNumber>,
    hashing: DefaultHashBuilder,
}

impl Nonces {
    /// The session that this nonce opened.
    pub fn get(&self, nonce: Nonce, sessions: &Sessions) -> Option<SessionNumber> {
        let is_it = |number: &SessionNumber| opened_by(sessions, *number) == Some(nonce);
        self.table.find(self.hashing.hash_one(nonce), is_it).copied()
    }

    /// A nonce has opened this session, as its record says.
    pub fn add(&mut self, number: SessionNumber, sessions: &Sessions) {
        let hash = |number: &SessionNumber| {
            let nonce = opened_by(sessions, *number).expect("whoever stands here was opened by a nonce");
            self.hashing.hash_one(nonce)
        };
        self.table.insert_unique(hash(&number), number, hash);
    }

    /// This nonce finds the session no more.
    pub fn remove(&mut self, nonce: Nonce, number: SessionNumber) {
        if let Ok(entry) = self.table.find_entry(self.hashing.hash_one(nonce), |known| *known == number) {
            entry.remove();
        }
    }
}

fn opened_by(sessions: &Sessions, number: SessionNumber) -> Option<Nonce> {
    sessions.get(number)?.nonce
}
