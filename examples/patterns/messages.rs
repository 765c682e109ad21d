//! The token is sent with every effect, not only with rows: messages, events, cache entries and counters
//! carry scope and token. A consumer remembers the highest token that it has seen and ignores older ones.
//!
//! A consumer's mark must be as durable as what it does with the message. Here both are in memory; in a
//! database both belong into one transaction, which is what the adapters of `tenure-fence` do.

use std::collections::BTreeMap;

use tenure_client::Lease;
use tenure_core::{Fenced, Mark, Scope, Token};

use super::BoxError;

/// Something that was sent under a lease.
#[derive(Clone, Debug)]
pub struct Stamped<T> {
    /// What the sender held.
    pub scope: Scope,
    /// Under which token.
    pub token: Token,
    /// What it says.
    pub body: T,
}

/// Stamps it, if the lease still allows to.
pub fn stamp<T>(lease: &Lease, body: T) -> Result<Stamped<T>, BoxError> {
    let permit = lease.permit()?;
    Ok(Stamped { scope: permit.scope().clone(), token: permit.token(), body })
}

/// Takes in what is stamped: a consumer of messages, a log of events, a cache, a counter.
#[derive(Debug, Default)]
pub struct Inlet {
    marks: BTreeMap<Scope, Mark>,
    /// How many came too late.
    pub refused: u64,
}

impl Inlet {
    /// The successor's first message: from here on nothing older is taken in, whatever it is about.
    pub fn barrier(&mut self, scope: &Scope, token: Token) -> Result<(), Fenced> {
        self.marks.entry(scope.clone()).or_default().barrier(token).map(|_| ())
    }

    /// Takes it in and does what it says, or counts it as refused.
    pub fn take<T>(&mut self, stamped: Stamped<T>, callback: impl FnOnce(T)) -> bool {
        let mark = self.marks.entry(stamped.scope).or_default();
        let fresh = mark.write(stamped.token).is_ok();
        if fresh {
            callback(stamped.body);
        } else {
            self.refused += 1;
        }
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tenure_client::testing::Bench;

    #[tokio::test(start_paused = true)]
    async fn what_was_sent_before_the_handover_and_arrives_after_it_is_passed_over() {
        let bench = Bench::new();
        let (one, other) = (bench.process(), bench.process());
        let session = one.client().session().holder("one").open().await.expect("a session");
        let lease = session.acquire("prices/feed").await.expect("it is free");
        let mut inlet = Inlet::default();
        let (mut consumed, mut cache, mut counter) = (Vec::new(), BTreeMap::new(), 0);
        assert!(inlet.take(stamp(&lease, 100).expect("it holds"), |price| consumed.push(price)));

        // Sent, and on its way for longer than the lease: a message, an event for the cache, a step of a
        // counter.
        let late = stamp(&lease, 90).expect("it holds");
        let late_entry = stamp(&lease, ("AAPL", 90)).expect("it holds");
        let late_step = stamp(&lease, 1).expect("it holds");
        one.freeze(Duration::from_secs(60)).await;
        assert!(stamp(&lease, 80).is_err(), "whoever slept through its lease stamps nothing");

        let session = other.client().session().holder("other").open().await.expect("a session");
        let next = session.acquire("prices/feed").wait().await.expect("it is free");
        let first = stamp(&next, 110).expect("it holds");
        inlet.barrier(&first.scope, first.token).expect("it is the newest");
        assert!(!inlet.take(late, |price| consumed.push(price)));
        assert!(!inlet.take(late_entry, |(name, price)| {
            cache.insert(name, price);
        }));
        assert!(!inlet.take(late_step, |step| counter += step));
        assert!(inlet.take(first, |price| consumed.push(price)));
        assert_eq!((consumed.as_slice(), cache.len(), counter, inlet.refused), (&[100, 110][..], 0, 0, 3));
    }
}
