//! A queue between tasks that is bounded by count and by weight, bytes as a rule: a thousand small messages
//! and a thousand large ones are not the same load. It refuses what does not fit and never waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::mpsc;

/// How much a queue takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// How many things.
    pub count_max: usize,
    /// How much they weigh together. An empty queue takes one thing of any weight.
    pub weight_max: usize,
}

/// Why something was given back.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused<T> {
    /// The queue is full.
    Full(T),
    /// Nobody receives.
    Closed(T),
}

/// The end that things are put in at.
#[derive(Debug)]
pub struct BoundedSender<T> {
    sender: mpsc::Sender<(usize, T)>,
    weight: Arc<AtomicUsize>,
    weight_max: usize,
}

impl<T> Clone for BoundedSender<T> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), weight: self.weight.clone(), weight_max: self.weight_max }
    }
}

/// The end that things come out of.
#[derive(Debug)]
pub struct BoundedReceiver<T> {
    receiver: mpsc::Receiver<(usize, T)>,
    weight: Arc<AtomicUsize>,
}

/// A queue with these bounds.
pub fn bounded<T>(bounds: Bounds) -> (BoundedSender<T>, BoundedReceiver<T>) {
    let (sender, receiver) = mpsc::channel(bounds.count_max);
    let weight = Arc::new(AtomicUsize::new(0));
    (
        BoundedSender { sender, weight: weight.clone(), weight_max: bounds.weight_max },
        BoundedReceiver { receiver, weight },
    )
}

impl<T> BoundedSender<T> {
    /// Puts something in, or gives it back.
    pub fn try_send(&self, weight: usize, value: T) -> Result<(), Refused<T>> {
        let before = self.weight.fetch_add(weight, Relaxed);
        if before > 0 && before.saturating_add(weight) > self.weight_max {
            self.weight.fetch_sub(weight, Relaxed);
            return Err(Refused::Full(value));
        }
        self.sender.try_send((weight, value)).map_err(|error| {
            self.weight.fetch_sub(weight, Relaxed);
            match error {
                mpsc::error::TrySendError::Full((_, value)) => Refused::Full(value),
                mpsc::error::TrySendError::Closed((_, value)) => Refused::Closed(value),
            }
        })
    }
}

impl<T> BoundedReceiver<T> {
    /// The next thing; `None` when all senders are gone and nothing is left.
    pub async fn recv(&mut self) -> Option<T> {
        let (weight, value) = self.receiver.recv().await?;
        self.weight.fetch_sub(weight, Relaxed);
        Some(value)
    }

    /// The next thing, if there is one now.
    pub fn try_recv(&mut self) -> Option<T> {
        let (weight, value) = self.receiver.try_recv().ok()?;
        self.weight.fetch_sub(weight, Relaxed);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_full_by_count_or_by_weight_and_has_room_again() {
        let (sender, mut receiver) = bounded(Bounds { count_max: 3, weight_max: 10 });
        assert_eq!(sender.try_send(100, "alone"), Ok(()), "an empty queue takes anything");
        assert_eq!(sender.try_send(1, "more"), Err(Refused::Full("more")));
        assert_eq!(receiver.try_recv(), Some("alone"));
        assert_eq!(sender.try_send(6, "six"), Ok(()));
        assert_eq!(sender.try_send(5, "five"), Err(Refused::Full("five")), "eleven are too many");
        assert_eq!(sender.try_send(4, "four"), Ok(()), "what was refused weighs nothing");
        assert_eq!(sender.try_send(0, "nothing"), Ok(()));
        assert_eq!(sender.try_send(0, "count"), Err(Refused::Full("count")));
        assert_eq!(std::iter::from_fn(|| receiver.try_recv()).count(), 3);
        drop(receiver);
        assert_eq!(sender.try_send(1, "late"), Err(Refused::Closed("late")));
    }
}
