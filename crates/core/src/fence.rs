//! The fence: what a storage may accept.
//!
//! A [`Mark`] is what one storage remembers for one scope: the highest token that it has accepted and, if
//! the holder keeps one, a cursor of its progress. This file decides the comparison; making it atomic with
//! the write, and as durable, is each adapter's work. A mark never falls, and it is never deleted.
//!
//! A smaller token is refused only once a higher one has been seen. So a new holder first installs its own
//! (the *barrier*), then reads, then works: between a grant and the barrier the old holder still gets in.

use alloc::sync::Arc;
use core::fmt;

use crate::numbers::Token;

/// What a storage remembers for one scope: a resource, or one slot of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    token: Option<Token>,
    progress: Progress,
}

/// How far the work under this scope has come, advanced in the same step as the work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// How often it was advanced, over all holders. With scope and token, a key for calls that must not be repeated.
    pub seq: u64,
    /// The holder's own words for where it is.
    pub cursor: Option<Arc<[u8]>>,
}

/// A refusal. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fenced {
    /// A higher token has been accepted: the presenter's lease is another's now.
    Stale {
        /// The token presented.
        presented: Token,
        /// The highest token seen.
        seen: Token,
    },
    /// The storage accepts only the token that a barrier installed, and this one was not: barrier first.
    NotInstalled {
        /// The token presented.
        presented: Token,
        /// The highest token seen, if any.
        seen: Option<Token>,
    },
}

impl fmt::Display for Fenced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fenced::Stale { presented, seen } => {
                write!(
                    f,
                    "stale token: {presented} was presented, {seen} has been seen; the lease is another's now, stop"
                )
            }
            Fenced::NotInstalled { presented, seen: None } => {
                write!(f, "token {presented} is not installed here: run the barrier first")
            }
            Fenced::NotInstalled { presented, seen: Some(seen) } => {
                write!(f, "token {presented} is not installed here ({seen} is): run the barrier first")
            }
        }
    }
}

impl core::error::Error for Fenced {}

impl Mark {
    /// The mark as a storage kept it.
    pub fn kept(token: Option<Token>, progress: Progress) -> Mark {
        Mark { token, progress }
    }

    /// The highest token seen.
    pub fn token(&self) -> Option<Token> {
        self.token
    }

    /// How far the work has come.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Installs a token and returns what the predecessors left. Repeating it with the same token is harmless, so a barrier whose
    /// answer was lost is simply sent again.
    pub fn barrier(&mut self, token: Token) -> Result<&Progress, Fenced> {
        self.write(token)?;
        Ok(&self.progress)
    }

    /// Judges a write: accepted if no higher token has been seen. Equal is accepted, or a holder could write only once.
    pub fn write(&mut self, token: Token) -> Result<(), Fenced> {
        match self.token {
            Some(seen) if token < seen => Err(Fenced::Stale { presented: token, seen }),
            _ => {
                // Accepting a token is seeing it: the mark rises with the first write as it does with a barrier.
                self.token = Some(token);
                Ok(())
            }
        }
    }

    /// Judges a write where every holder runs the barrier: accepted only with the very token that is installed.
    pub fn write_installed(&self, token: Token) -> Result<(), Fenced> {
        match self.token {
            Some(seen) if token == seen => Ok(()),
            Some(seen) if token < seen => Err(Fenced::Stale { presented: token, seen }),
            seen => Err(Fenced::NotInstalled { presented: token, seen }),
        }
    }

    /// Judges a write that also says how far the work has come; returns its place in the sequence.
    pub fn advance(&mut self, token: Token, cursor: Arc<[u8]>) -> Result<u64, Fenced> {
        self.write(token)?;
        self.progress = Progress { seq: self.progress.seq + 1, cursor: Some(cursor) };
        Ok(self.progress.seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn token(number: u64) -> Token {
        Token::try_from(number).unwrap()
    }

    fn cursor(text: &str) -> Arc<[u8]> {
        text.as_bytes().into()
    }

    #[test]
    fn ok_1_ok_2_rejected_1() {
        let mut mark = Mark::default();
        assert_eq!(mark.write(token(1)), Ok(()));
        assert_eq!(mark.write(token(2)), Ok(()));
        let refused = mark.write(token(1)).unwrap_err();
        assert_eq!(refused, Fenced::Stale { presented: token(1), seen: token(2) });
        assert!(refused.to_string().contains("1 was presented, 2 has been seen"));
    }

    #[test]
    fn a_holder_may_write_twice() {
        let mut mark = Mark::default();
        assert_eq!([mark.write(token(7)), mark.write(token(7))], [Ok(()), Ok(())]);
    }

    #[test]
    fn without_a_barrier_the_old_holder_still_gets_in() {
        let mut mark = Mark::default();
        mark.write(token(33)).unwrap();
        // 34 has been granted, but has touched nothing here yet.
        assert!(mark.write(token(33)).is_ok());
        mark.barrier(token(34)).unwrap();
        assert!(mark.write(token(33)).is_err());
    }

    #[test]
    fn a_repeated_barrier_is_harmless_and_an_old_one_is_refused() {
        let mut mark = Mark::default();
        mark.barrier(token(5)).unwrap();
        let before = mark.clone();
        mark.barrier(token(5)).unwrap();
        assert_eq!(mark, before);
        assert_eq!(mark.barrier(token(4)), Err(Fenced::Stale { presented: token(4), seen: token(5) }));
        assert_eq!(mark, before);
    }

    #[test]
    fn where_everyone_runs_the_barrier_a_newer_token_must_run_it_too() {
        let mut mark = Mark::default();
        assert_eq!(
            mark.write_installed(token(5)),
            Err(Fenced::NotInstalled { presented: token(5), seen: None })
        );
        mark.barrier(token(5)).unwrap();
        assert_eq!(mark.write_installed(token(5)), Ok(()));
        assert_eq!(
            mark.write_installed(token(6)),
            Err(Fenced::NotInstalled { presented: token(6), seen: Some(token(5)) })
        );
        assert_eq!(
            mark.write_installed(token(4)),
            Err(Fenced::Stale { presented: token(4), seen: token(5) })
        );
    }

    #[test]
    fn the_successor_resumes_where_the_predecessor_stopped() {
        let mut mark = Mark::default();
        assert_eq!(mark.barrier(token(1)).unwrap(), &Progress::default());
        assert_eq!(mark.advance(token(1), cursor("row 10")), Ok(1));
        assert_eq!(mark.advance(token(1), cursor("row 20")), Ok(2));
        let left = mark.barrier(token(2)).unwrap().clone();
        assert_eq!(left, Progress { seq: 2, cursor: Some(cursor("row 20")) });
        assert!(mark.advance(token(1), cursor("row 30")).is_err());
        assert_eq!(mark.progress(), &left, "a refused write leaves no trace");
        let mut restored = Mark::kept(mark.token(), mark.progress().clone());
        assert_eq!(
            restored.advance(token(2), cursor("row 21")),
            Ok(3),
            "numbers go on over holders and restarts"
        );
    }
}
