//! Low-latency mode: a single sequential client is answered sooner.
//!
//! With many clients everything is batched. A client that waits for each answer before it sends the next
//! request has nobody to share a batch with, and most of its latency is threads being woken and nodes
//! competing for the same processors and disks. This module decides what to do about that, and nothing else
//! does:
//!
//! | decision | where | who carries it out |
//! |---|---|---|
//! | who is being served | [`CallerDetector`] | the server's leader loop reports what happens |
//! | how long to spin before sleeping | [`CallerDetector`], [`AppendStreak`] | the leader loop, a follower's append pipeline |
//! | which followers get an entry first | [`FollowerRanks`], [`LowLatency::hold`] | the leader's append streams |
//! | whether the log writes in place | [`LowLatency::write_mode`], [`DiskPace`] | the log store and the log's queue |
//! | whether a follower acknowledges before it applies | [`LowLatency::acknowledge_first`] | the state machine's applier |
//!
//! One switch, [`LowLatencyOptions::enabled`], turns all of it off. Times are passed in, so all of it runs in
//! simulation, except the spinning itself ([`spin_wait`]): simulated time does not advance while a task is
//! busy.
//!
//! It is a matter of timing alone. It never decides what is committed, durable or acknowledged: the engine
//! counts acknowledgements as always, and every follower gets every entry in order.

mod callers;
mod followers;
mod in_place;
mod spin;

pub use callers::CallerDetector;
pub(crate) use callers::{AppendStreak, Callers};
pub(crate) use followers::{FollowerRanks, HoldTimes};
pub(crate) use in_place::{DiskPace, WriteMode};
pub use spin::spin_wait;
pub(crate) use spin::yield_to_ready_tasks;

use crate::NodeId;
use crate::config::Execution;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// The switch of low-latency mode, and its numbers. They are local: nodes of one cluster may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowLatencyOptions {
    /// The switch. Off: every write goes through the log's thread, every follower is sent to immediately, and
    /// nobody spins.
    pub enabled: bool,
    /// So many requests in a row, each alone, count as a single sequential client.
    pub streak_min: u32,
    /// The longest spin wait, and the longest pause after which one is worth it.
    pub spin_max: Duration,
    /// How long an entry that is not committed may be held back from a follower that the majority does not
    /// need.
    pub hold_max: Duration,
    /// For how long committed entries are gathered for such a follower …
    pub gather: Duration,
    /// … and how long they may wait then for a moment in which sending them delays no answer.
    pub late_max: Duration,
}

impl Default for LowLatencyOptions {
    fn default() -> Self {
        Self {
            enabled: true,
            streak_min: 8,
            spin_max: Duration::from_micros(500),
            hold_max: Duration::from_millis(1),
            gather: Duration::from_millis(2),
            late_max: Duration::from_millis(3),
        }
    }
}

/// How often each decision was carried out since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LowLatencyStatus {
    /// Waits that began with a spin. In simulation: that would have.
    pub spins: u64,
    /// Appends that were held back from a follower that the majority did not need.
    pub held: u64,
    /// Appends that a leader wrote in place.
    pub leader_writes: u64,
    /// Appends that a follower wrote in place.
    pub follower_writes: u64,
}

/// What all parts of one replica share of the mode. Clones are the same.
#[derive(Clone)]
pub(crate) struct LowLatency(Arc<Shared>);

struct Shared {
    options: LowLatencyOptions,
    /// Whether a task may spin at all.
    can_spin: bool,
    /// A [`Callers`].
    callers: AtomicU8,
    followers: Mutex<FollowerRanks>,
    spins: AtomicU64,
    held: AtomicU64,
    leader_writes: AtomicU64,
    follower_writes: AtomicU64,
}

impl LowLatency {
    pub fn new(options: LowLatencyOptions, execution: Execution) -> Self {
        Self(Arc::new(Shared {
            options,
            can_spin: execution == Execution::Threads,
            callers: AtomicU8::new(Callers::Several as u8),
            followers: Mutex::default(),
            spins: AtomicU64::new(0),
            held: AtomicU64::new(0),
            leader_writes: AtomicU64::new(0),
            follower_writes: AtomicU64::new(0),
        }))
    }

    pub fn status(&self) -> LowLatencyStatus {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        LowLatencyStatus {
            spins: read(&self.0.spins),
            held: read(&self.0.held),
            leader_writes: read(&self.0.leader_writes),
            follower_writes: read(&self.0.follower_writes),
        }
    }

    fn set_callers(&self, callers: Callers) {
        self.0.callers.store(callers as u8, Ordering::Relaxed);
    }

    fn serves(&self, callers: Callers) -> bool {
        self.0.callers.load(Ordering::Relaxed) == callers as u8
    }

    /// What a decision to spin comes to on this node.
    fn spin(&self, length: Option<Duration>) -> Option<Duration> {
        let length = length.filter(|_| self.0.options.enabled)?;
        self.0.spins.fetch_add(1, Ordering::Relaxed);
        self.0.can_spin.then_some(length)
    }

    /// How the log writes an append of so many bytes, on a follower or on a leader.
    pub fn write_mode(&self, follows: bool, bytes: usize) -> WriteMode {
        match self.0.options.enabled {
            true => in_place::write_mode(follows, bytes, self.serves(Callers::OneBackToBack)),
            false => WriteMode::Queued,
        }
    }

    /// An append was written in place.
    pub fn wrote(&self, mode: WriteMode) {
        match mode {
            WriteMode::Queued => return,
            WriteMode::InPlace => &self.0.follower_writes,
            WriteMode::InPlaceAfterSending => &self.0.leader_writes,
        }
        .fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a follower acknowledges an entry before it applies the one before, whose commit index came
    /// with the same message: the leader's client waits for the acknowledgement, and nobody waits for a
    /// follower to apply.
    pub fn acknowledge_first(&self) -> bool {
        self.0.options.enabled
    }

    /// How long an entry for `node` may be held back, if it may: see [`FollowerRanks::may_wait`]. `members`
    /// are this node and the voters; looked up only if it matters.
    pub fn hold(
        &self,
        node: NodeId,
        members: impl FnOnce() -> (NodeId, Vec<NodeId>),
        now: Instant,
    ) -> Option<Duration> {
        if self.serves(Callers::Several) {
            return None;
        }
        let (own, voters) = members();
        let may_wait = self.0.followers.lock().may_wait(node, own, &voters, now)?;
        self.0.held.fetch_add(1, Ordering::Relaxed);
        Some(may_wait.min(self.0.options.hold_max))
    }

    /// Until when entries are held back, once another request was added to them at `now`.
    pub fn held_until(&self, held: HoldTimes, committed: bool, now: Instant, may_wait: Duration) -> Instant {
        followers::held_until(&self.0.options, held, committed, now, may_wait)
    }

    /// Follows what is seen of the followers.
    pub fn observe(&self, seen: impl FnOnce(&mut FollowerRanks)) {
        if self.0.options.enabled {
            seen(&mut self.0.followers.lock());
        }
    }
}
