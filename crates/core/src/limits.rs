//! Every maximum, with the reason for its number. Past a limit there is a clear refusal, never a crash
//! and never an unbounded queue. All nodes agree on these, so they travel in the log (`Settings`).

use core::time::Duration;

use crate::version::FormatVersion;

/// How often, in cluster time, watchers are notified of what one fence refused or that one session had been
/// paused. Whoever reports more often is counted and not reported, or a zombie in a loop would push
/// everything else out of the watchers' backlog.
pub(crate) const REPORT_EVERY: Duration = Duration::from_secs(1);

/// How long a nonce whose session has ended is refused, in cluster time: longer than any copy of a request is
/// on its way.
pub const NONCE_REFUSED_FOR: Duration = Duration::from_secs(3600);

/// How many such nonces are remembered, the newest: 24 bytes each in a snapshot.
pub const USED_NONCES_MAX: usize = 100_000;

/// Transmissions that may wait for one queued plain acquire: each is an open request at some node.
pub const TRANSMISSIONS_PER_WAITER_MAX: u32 = 1_000;

/// What a past lease counts for against `history_bytes_total_max`, beside the holder's name and the
/// administrator's words: its packed numbers (about 26 bytes), and its share of what finds them. The same on
/// every node and in every release that speaks a format version, so it is a number of its own and not what a
/// record happens to take.
pub const HISTORY_LEASE_BYTES: u64 = 48;

/// How many past leases the byte bound drops for each one that is recorded: more than one, so that a bound
/// that was lowered is reached, and few, so that no single command pays for it.
pub(crate) const HISTORY_DROPPED_PER_LEASE_MAX: usize = 16;

/// `history_per_resource_max` of release 0.1.0.
const HISTORY_PER_RESOURCE_MAX_V1: u32 = 32;
/// The same since format version 2: a lock that changes hands every ten minutes shows its whole week.
const HISTORY_PER_RESOURCE_MAX: u32 = 1_000;
/// About one million past leases; with everything else in memory and in snapshots.
const HISTORY_BYTES_TOTAL_MAX: u64 = 64 << 20;

/// Records in one piece of a restore. Each goes into ordered indexes of up to a million records, which takes
/// some microseconds: applying a piece takes some ten milliseconds, so nobody's renewal waits for longer.
pub const RESTORE_PIECE_RECORDS_MAX: usize = 4_096;

/// Bytes of one piece of a restore, where the sender cuts: an entry of the log has no more of other commands
/// either. One record always fits.
pub const RESTORE_PIECE_BYTES_MAX: usize = 1 << 20;

/// How long a staged restore is kept after its last piece, in cluster time: longer than an election, a
/// restarted node and an operator who runs the command again take. Until then it occupies the memory of what
/// it restores.
///
/// What is staged altogether is bounded by the limits of the backup (`registers_max`,
/// `value_bytes_total_max`, `pinned_resources_max`, `free_resources_max`) and [`USED_NONCES_MAX`]: they
/// become the cluster's own limits, so staging takes no more memory than the restored cluster may.
pub const RESTORE_KEPT_FOR: Duration = Duration::from_secs(600);

/// Policies of one cluster: a decision is quick with many more, but all are made again into an index whenever one
/// changes.
pub const POLICIES_MAX: usize = 4_096;

/// Identities, and prefixes, of one policy.
pub const POLICY_PARTS_MAX: usize = 256;

/// Credentials of one cluster. Past it those that are revoked or long expired are forgotten first.
pub const CREDENTIALS_MAX: usize = 65_536;

/// How long a credential that has expired still keeps what it holds: renews, releases, closes. Whoever forgot to
/// replace it has this long, and takes nothing new meanwhile.
pub const EXPIRED_CREDENTIAL_KEEPS_FOR: Duration = Duration::from_secs(24 * 3600);

/// The limits that the machine enforces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The shortest TTL. Below half a second ordinary scheduling gaps end healthy leases.
    pub ttl_min: Duration,
    /// The longest TTL. A crashed holder blocks its resource this long; nobody should wait a day.
    pub ttl_max: Duration,
    /// Sessions alive at once. A million are tested on one node; twice that leaves room for a storm of
    /// reopens.
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
    /// Resources that cannot be forgotten because they have a fence set, a guard or a kind set by an
    /// administrator.
    pub pinned_resources_max: u32,
    /// Past leases remembered per resource.
    pub history_per_resource_max: u32,
    /// How long a past lease is remembered, in cluster time.
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
    /// Bytes of the past leases of all resources together, counted with [`HISTORY_LEASE_BYTES`]; the oldest
    /// of all go first. It wins over the other two bounds of history. Since format version 2; before that
    /// there is none.
    pub history_bytes_total_max: u64,
}

impl Limits {
    /// The limits of a cluster of this format version, unless it was given others.
    pub fn of(version: FormatVersion) -> Limits {
        Limits::default().fit(version)
    }

    /// These limits as a cluster of this format version can have them: what it does not know is left out, and
    /// what has another default there and was not changed has that.
    #[must_use]
    pub fn fit(mut self, version: FormatVersion) -> Limits {
        if version < FormatVersion::V2 {
            self.history_bytes_total_max = 0;
            if self.history_per_resource_max == HISTORY_PER_RESOURCE_MAX {
                self.history_per_resource_max = HISTORY_PER_RESOURCE_MAX_V1;
            }
        }
        self
    }

    /// These limits in a cluster of a newer version: whoever had the defaults has the new ones.
    pub(crate) fn raise(&mut self, to: FormatVersion) {
        if to < FormatVersion::V2 {
            return;
        }
        if self.history_per_resource_max == HISTORY_PER_RESOURCE_MAX_V1 {
            self.history_per_resource_max = HISTORY_PER_RESOURCE_MAX;
        }
        if self.history_bytes_total_max == 0 {
            self.history_bytes_total_max = HISTORY_BYTES_TOTAL_MAX;
        }
    }
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
            history_per_resource_max: HISTORY_PER_RESOURCE_MAX,
            history_age_max: Duration::from_secs(7 * 24 * 3600),
            fences_per_resource_max: 64,
            ended_per_session_max: 64,
            events_max: 16_384,
            event_bytes_max: 64 << 20,
            cleared_per_entry_max: 4_096,
            keys_max: 64,
            history_bytes_total_max: HISTORY_BYTES_TOTAL_MAX,
        }
    }
}
