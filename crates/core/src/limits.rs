//! Every maximum, with the reason for its number. Past a limit there is a clear refusal, never a crash
//! and never an unbounded queue. All nodes agree on these, so they travel in the log (`Settings`).

use core::time::Duration;

/// How often, in cluster time, watchers are notified of what one fence refused or that one session had been paused. Whoever reports
/// more often is counted and not reported, or a zombie in a loop would push everything else out of the watchers' backlog.
pub(crate) const REPORT_EVERY: Duration = Duration::from_secs(1);

/// How long a nonce whose session has ended is refused, in cluster time: longer than any copy of a request is on
/// its way.
pub const NONCE_REFUSED_FOR: Duration = Duration::from_secs(3600);

/// How many such nonces are remembered, the newest: 24 bytes each in a snapshot.
pub const USED_NONCES_MAX: usize = 100_000;

/// Transmissions that may wait for one queued plain acquire: each is an open request at some node.
pub const TRANSMISSIONS_PER_WAITER_MAX: u32 = 1_000;

/// The limits that the machine enforces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The shortest TTL. Below half a second ordinary scheduling gaps end healthy leases.
    pub ttl_min: Duration,
    /// The longest TTL. A crashed holder blocks its resource this long; nobody should wait a day.
    pub ttl_max: Duration,
    /// Sessions alive at once. A million are tested on one node; twice that leaves room for a storm of reopens.
    pub sessions_max: u32,
    /// Leases of one session. A process that owns more shards than this wants several sessions.
    pub leases_per_session_max: u32,
    /// Waiters of all queues together; each costs memory on every node.
    pub waiters_max: u32,
    /// Acquires of one session that wait in the queue at once.
    pub waiters_per_session_max: u32,
    /// Resources in one acquire. Bounds the work that one command can ask for.
    pub resources_per_acquire_max: u32,
    /// Holders of one shared resource; listing them all must stay one answer.
    pub sharers_max: u32,
    /// Slots of one semaphore.
    pub slots_max: u32,
    /// Remembered answers of one session: commands in flight that a client may still ask about.
    pub answers_per_session_max: u32,
    /// Bytes of register values inside remembered answers, over all sessions: a client that never moves on
    /// must not keep old values alive without end.
    pub answer_bytes_total_max: u64,
    /// Registers that exist, or whose guard is remembered.
    pub registers_max: u32,
    /// Bytes of one register's value: registers coordinate, they are not a database.
    pub value_bytes_max: u32,
    /// Bytes of all values together; the whole state must fit in memory and in a snapshot.
    pub value_bytes_total_max: u64,
    /// Operations and comparisons of one write.
    pub operations_per_write_max: u32,
    /// Ephemeral registers of one session.
    pub ephemerals_per_session_max: u32,
    /// Free resources whose generation and history are remembered; past it the oldest are forgotten.
    pub free_resources_max: u32,
    /// Resources that cannot be forgotten because they have a fence set, a guard or a kind set by an administrator.
    pub pinned_resources_max: u32,
    /// Transitions remembered per resource.
    pub history_per_resource_max: u32,
    /// How long a transition is remembered, in cluster time.
    pub history_age_max: Duration,
    /// Fences of one resource.
    pub fences_per_resource_max: u32,
    /// Ended leases that a session's renewals repeat until the client has seen them.
    pub ended_per_session_max: u32,
    /// Events kept for watchers that fell behind.
    pub events_max: u32,
    /// Bytes of the values inside these events.
    pub event_bytes_max: u64,
    /// Sessions, leases and waits whose ended records one entry clears away; the rest follows in the next.
    pub cleared_per_entry_max: u32,
    /// Signing keys published at once: a few per node, for rotation.
    pub keys_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            ttl_min: Duration::from_millis(500),
            ttl_max: Duration::from_secs(3600),
            sessions_max: 2_000_000,
            leases_per_session_max: 10_000,
            waiters_max: 500_000,
            waiters_per_session_max: 1_000,
            resources_per_acquire_max: 64,
            sharers_max: 10_000,
            slots_max: 10_000,
            answers_per_session_max: 1_024,
            answer_bytes_total_max: 64 << 20,
            registers_max: 1_000_000,
            value_bytes_max: 64 * 1024,
            value_bytes_total_max: 1 << 30,
            operations_per_write_max: 128,
            ephemerals_per_session_max: 1_000,
            free_resources_max: 100_000,
            pinned_resources_max: 1_000_000,
            history_per_resource_max: 32,
            history_age_max: Duration::from_secs(7 * 24 * 3600),
            fences_per_resource_max: 64,
            ended_per_session_max: 64,
            events_max: 16_384,
            event_bytes_max: 64 << 20,
            cleared_per_entry_max: 4_096,
            keys_max: 64,
        }
    }
}
