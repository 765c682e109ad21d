//! What the cluster has agreed, as plain records: all of it, and nothing that can be derived from it.
//! A snapshot is this and only this; the machine's indexes are made again from it.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::cow_map::{CowMap, Key};
use super::few::Few;
pub use super::packed_history::PackedHistory;
use crate::answer::Answer;
use crate::command::{KindSetting, Mode, Policies, RestoreBegin, Settings};
use crate::event::EndReason;
use crate::identity::{CredentialId, Identity};
use crate::limits::Limits;
use crate::names::{FenceName, HolderName, IdentityName, PolicyName, RegisterKey, ResourceName, Scope};
use crate::numbers::{
    Generation, Nonce, RestoreId, Revision, Secret, SessionNumber, Slot, Token, TransmissionId,
};
use crate::policy::Policy;
use crate::time::{ClusterTime, Span, WallTime};
use crate::version::FormatVersion;

/// Implements an internal number under which records of one kind stand.
macro_rules! record_number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl Key for $name {
            fn from_number(number: u64) -> Self {
                Self(number)
            }
            fn number(self) -> u64 {
                self.0
            }
        }
    };
}

record_number!(
    /// The number under which a resource's record stands.
    ResourceNumber
);
record_number!(
    /// The number under which a waiter's record stands: its place in the order of arrival.
    WaiterNumber
);
record_number!(
    /// The number under which a register's record stands.
    RegisterNumber
);

impl Key for SessionNumber {
    fn from_number(number: u64) -> Self {
        SessionNumber::new(number)
    }
    fn number(self) -> u64 {
        self.get()
    }
}

/// Everything that the cluster has agreed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The agreed format version. It decides how this state is written, and which behaviour applies.
    pub format: FormatVersion,
    /// What all nodes agree on.
    pub settings: Settings,
    /// Cluster time.
    pub time: ClusterTime,
    /// The last entry's calendar time, for display.
    pub wall: WallTime,
    /// How many entries were applied: the same on every node that has come equally far.
    pub entries: u64,
    /// The counter of visible changes.
    pub revision: Revision,
    /// The last token issued; zero before the first.
    pub last_token: u64,
    /// No grants before this time: set by a restore.
    pub grants_from: ClusterTime,
    /// How many sessions were ever opened: the last session's number.
    pub sessions_opened: u64,
    /// The last resource record's number.
    pub resources_named: u64,
    /// The last waiter's number.
    pub waiters_arrived: u64,
    /// The last register record's number.
    pub registers_named: u64,
    /// What renewals change, kept apart so that a renewal touches little memory.
    pub pulses: CowMap<SessionNumber, Pulse>,
    /// The sessions; each has a pulse under the same number.
    pub sessions: CowMap<SessionNumber, Session>,
    /// The resources that are held, waited for or remembered.
    pub resources: CowMap<ResourceNumber, Resource>,
    /// The acquires that wait in the queue.
    pub waiters: CowMap<WaiterNumber, Waiter>,
    /// The registers that exist, and the guards of those that did.
    pub registers: CowMap<RegisterNumber, RegisterRecord>,
    /// The public keys with which nodes sign sequencers, by key id.
    pub keys: BTreeMap<Arc<str>, SigningKey>,
    /// Nonces that can open nothing any more, the oldest first.
    pub used_nonces: VecDeque<UsedNonce>,
    /// What has happened so far, counted.
    pub totals: Totals,
    /// A backup that is being restored and is not visible yet. Since format version 2.
    pub staging: Option<Box<Staging>>,
    /// The restore that made this cluster what it is, if one did in pieces. Since format version 2.
    pub restored: Option<Restored>,
    /// Who may do what. Since format version 2.
    pub authority: Authority,
}

/// Who may do what, and who has sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Authority {
    /// Whether the policies count. If not, everybody may do everything.
    pub enforced: bool,
    /// The latest calendar time of any entry: what credentials expire by, and nothing else does.
    pub wall: WallTime,
    /// The credentials that the cluster issued.
    pub credentials: BTreeMap<CredentialId, Credential>,
    /// The policies.
    pub policies: BTreeMap<PolicyName, Arc<Policy>>,
    /// Those who have sessions, by the number under which their sessions name them.
    pub identities: BTreeMap<IdentityNumber, Identity>,
}

/// The number under which an identity stands that has sessions. Zero is anyone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdentityNumber(pub u32);

impl IdentityNumber {
    /// Nobody said who they are.
    pub const ANYONE: IdentityNumber = IdentityNumber(0);
}

/// A credential that the cluster issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// Whom it makes its bearer.
    pub name: IdentityName,
    /// The SHA-256 of its secret half.
    pub hash: [u8; 32],
    /// When it was made known, for people.
    pub created: WallTime,
    /// When it expires, by the calendar.
    pub expires: Option<WallTime>,
    /// It was ended before that.
    pub revoked: bool,
}

impl Default for State {
    fn default() -> Self {
        Self {
            format: FormatVersion::OLDEST,
            settings: Settings { cluster: [0; 16], limits: Limits::of(FormatVersion::OLDEST) },
            time: ClusterTime::ZERO,
            wall: WallTime::default(),
            entries: 0,
            revision: Revision::default(),
            last_token: 0,
            grants_from: ClusterTime::ZERO,
            sessions_opened: 0,
            resources_named: 0,
            waiters_arrived: 0,
            registers_named: 0,
            pulses: CowMap::default(),
            sessions: CowMap::default(),
            resources: CowMap::default(),
            waiters: CowMap::default(),
            registers: CowMap::default(),
            keys: BTreeMap::new(),
            used_nonces: VecDeque::new(),
            totals: Totals::default(),
            staging: None,
            restored: None,
            authority: Authority::default(),
        }
    }
}

/// What a backup says about its cluster, without the records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupBase {
    /// The format version that it was written in.
    pub format: FormatVersion,
    /// The limits of its cluster.
    pub limits: Limits,
    /// Cluster time.
    pub time: ClusterTime,
    /// When it was taken, for people.
    pub wall: WallTime,
    /// The counter of visible changes.
    pub revision: Revision,
    /// The last token issued; zero before the first.
    pub last_token: u64,
    /// How many sessions were ever opened.
    pub sessions_opened: u64,
    /// The last resource record's number.
    pub resources_named: u64,
    /// The last waiter's number.
    pub waiters_arrived: u64,
    /// The last register record's number.
    pub registers_named: u64,
    /// What has happened so far, counted.
    pub totals: Totals,
    /// Whether the policies counted. Since format version 2.
    pub enforced: bool,
}

/// A backup on its way into the cluster: what has arrived of it. Nothing of it is visible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staging {
    /// What it began with.
    pub begin: RestoreBegin,
    /// How many pieces have arrived: the number of the next one.
    pub pieces: u64,
    /// How many records they had.
    pub records: u64,
    /// How many bytes, for people.
    pub bytes: u64,
    /// How many leases were ended because their sessions were left out.
    pub ended: u64,
    /// The checksum over the pieces.
    pub checksum: u128,
    /// It is discarded at this time unless another piece arrives.
    pub kept_until: ClusterTime,
    /// The number of the last resource that arrived. It may have been forgotten since.
    pub resource_last: u64,
    /// The number of the last register that arrived.
    pub register_last: u64,
    /// The resources.
    pub resources: CowMap<ResourceNumber, Resource>,
    /// The registers.
    pub registers: CowMap<RegisterNumber, RegisterRecord>,
    /// The used nonces.
    pub used_nonces: VecDeque<UsedNonce>,
    /// The credentials.
    pub credentials: BTreeMap<CredentialId, Credential>,
    /// The policies.
    pub policies: BTreeMap<PolicyName, Arc<Policy>>,
}

/// What is remembered of a restore, so that whoever did not get its answer can ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The restore.
    pub id: RestoreId,
    /// The floor that it was given.
    pub token_floor: Token,
    /// How many sessions had been opened then.
    pub sessions_opened: u64,
    /// The last register record's number then.
    pub registers_named: u64,
}

/// The part of a session that its renewals change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pulse {
    /// When it ends without a renewal.
    pub deadline: ClusterTime,
    /// How long it lives without one.
    pub ttl: Span,
    /// The highest number of an open or renewal that was applied.
    pub number: u64,
    /// The revision of its last lease change.
    pub last_lease_revision: Revision,
    /// Past its TTL, not yet past its hard limit: not live, but a renewal makes it so.
    pub lapsed: bool,
    /// It has leases under notice, or ended ones that it has not seen: renewals must say so.
    pub has_events: bool,
}

/// A session, without its pulse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The secret half of its id.
    pub secret: Secret,
    /// Who.
    pub holder: HolderName,
    /// The nonce that opened it.
    pub nonce: Option<Nonce>,
    /// Who opened it. Since format version 2.
    pub identity: IdentityNumber,
    /// It was opened by an acquire and ends with its last lease or wait.
    pub implicit: bool,
    /// Its acquire was plain: its nonce is the id of the one transmission that there was.
    pub plain: bool,
    /// When it was opened.
    pub opened_at: ClusterTime,
    /// What it holds, in the order of record numbers.
    pub leases: Few<ResourceNumber>,
    /// The answers that it may ask for again.
    pub answers: Answers,
    /// What few sessions have.
    pub more: Option<Box<SessionMore>>,
}

/// What few sessions have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionMore {
    /// Its acquires that wait in the queue.
    pub waiters: BTreeSet<WaiterNumber>,
    /// The registers that disappear with it.
    pub ephemerals: BTreeSet<RegisterNumber>,
    /// Leases that ended without its asking, until it has seen them.
    pub events: VecDeque<EndedLease>,
    /// More ended than are remembered.
    pub ended_lost: bool,
    /// How long after its last renewal a lapsed session ends.
    pub hard_limit: Option<Duration>,
    /// When watchers were last notified of a pause of its holder.
    pub pause_reported_at: Option<ClusterTime>,
}

/// A lease that ended without its holder asking for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedLease {
    /// The revision at which it ended.
    pub revision: Revision,
    /// The resource.
    pub resource: ResourceName,
    /// The token.
    pub token: Token,
    /// Why.
    pub why: EndReason,
}

/// The remembered answers of one session, in the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// Numbers below this are forgotten.
    pub floor: u64,
    /// The answers, by number.
    pub remembered: Few<(u64, Remembered)>,
}

/// One remembered answer; grants, by far the most frequent, in little memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remembered {
    /// The acquire was granted, at once, what the session holds to this day. Everything else that it was told
    /// stands in that lease; this is what was left of the session at the grant. Snapshots have it spelled out
    /// as `Granted`.
    Holding(ResourceNumber, Span),
    /// The acquire still waits in the queue.
    Waiting(WaiterNumber),
    /// The acquire was cancelled, perhaps before it arrived.
    Cancelled {
        /// Whether it had been granted, and the cancel gave that back.
        released: bool,
    },
    /// The acquire was granted: in part no longer held, several resources, or after waiting in the queue.
    Granted(Vec<RememberedGrant>),
    /// Any other answer.
    Answered(Box<Answer>),
}

/// What cannot be looked up again of a grant that was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RememberedGrant {
    /// The resource.
    pub resource: ResourceName,
    /// How it was granted.
    pub mode: Mode,
    /// Which slot.
    pub slot: Option<Slot>,
    /// The token.
    pub token: Token,
    /// The generation.
    pub generation: Generation,
    /// What was left of the session at the grant.
    pub remaining: Span,
    /// How long the acquire waited in the queue.
    pub waited: Span,
}

/// A resource: what is protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Its name.
    pub name: ResourceName,
    /// Fixed by the first grant, or by an administrator.
    pub kind: Option<KindSetting>,
    /// How often it has changed hands.
    pub generation: Generation,
    /// The newest token of it; zero before the first.
    pub last_token: u64,
    /// Who holds it now.
    pub holds: Few<Hold>,
    /// The revision at which it last became free; orders what is forgotten first.
    pub freed_at: Revision,
    /// What few resources have at a time.
    pub more: Option<Box<ResourceMore>>,
}

/// What few resources have at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceMore {
    /// Who waits in the queue.
    pub queue: BTreeSet<Place>,
    /// Nobody is granted it before this time.
    pub delayed_until: Option<ClusterTime>,
    /// Past leases, the newest last.
    pub history: PackedHistory,
    /// Its fences, and what each has installed, by scope.
    pub fences: BTreeMap<FenceName, FenceRecord>,
    /// For a semaphore, the newest token of each slot that was ever granted.
    pub slot_tokens: BTreeMap<Slot, Token>,
    /// How many registers are bound to it; while there are any it is not forgotten.
    pub guards: u32,
    /// An administrator set its kind; it is not forgotten.
    pub kind_set: bool,
}

/// A place in the queue: one total order over all queues, so that nobody waits in a circle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Higher priority sorts first.
    pub rank: core::cmp::Reverse<i32>,
    /// Then first come, first served.
    pub waiter: WaiterNumber,
}

/// One lease of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Who holds it.
    pub session: SessionNumber,
    /// The fencing token.
    pub token: Token,
    /// How often the resource had changed hands.
    pub generation: Generation,
    /// How it is held.
    pub mode: Mode,
    /// Which slot.
    pub slot: Option<Slot>,
    /// Since when.
    pub since: ClusterTime,
    /// Since when, for people.
    pub since_wall: WallTime,
    /// How many further acquires its holder counted on it.
    pub reentered: u32,
    /// What few leases have.
    pub more: Option<Box<HoldMore>>,
}

/// What few leases have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HoldMore {
    /// What the acquire asked for.
    pub policies: Policies,
    /// It is to end.
    pub notice: Option<Notice>,
    /// The transmissions of plain acquires that it was granted to and that have not been undone: the undo of
    /// the last one ends it. One that was answered is never undone, so it keeps the lease. Empty if anybody
    /// else was answered with it. At most one under format version 1.
    pub transmissions: Vec<TransmissionId>,
}

/// A lease is to end: when its holder confirms, or at `ends_at`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Why.
    pub why: EndReason,
    /// The session's deadline as it stood when notice was given.
    pub ends_at: ClusterTime,
    /// The administrator's words.
    pub reason: Option<Arc<str>>,
}

/// A past lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The fencing token.
    pub token: Token,
    /// How often the resource had changed hands.
    pub generation: Generation,
    /// The session.
    pub session: SessionNumber,
    /// Who.
    pub holder: HolderName,
    /// How it was held.
    pub mode: Mode,
    /// Which slot.
    pub slot: Option<Slot>,
    /// From when.
    pub from: ClusterTime,
    /// Until when.
    pub to: ClusterTime,
    /// From when, for people.
    pub from_wall: WallTime,
    /// Until when, for people.
    pub to_wall: WallTime,
    /// Why it ended.
    pub why: EndReason,
    /// The administrator's words.
    pub reason: Option<Arc<str>>,
    /// Who opened the session, if that was said. Since format version 2.
    pub identity: Option<IdentityName>,
}

/// The newest of the past leases that were dropped from a resource's history, and why. Since format version
/// 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// Which limit dropped it.
    pub limit: HistoryLimit,
    /// The highest token that was dropped: every past lease with a higher one is there.
    pub token: Token,
    /// When the one dropped last had ended, for people.
    pub to_wall: WallTime,
}

/// What bounds the history of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryLimit {
    /// `history_per_resource_max`.
    Count,
    /// `history_age_max`.
    Age,
    /// `history_bytes_total_max`.
    Bytes,
}

/// One fence of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FenceRecord {
    /// The newest token that it has installed, by slot.
    pub armed: BTreeMap<Option<Slot>, Token>,
    /// How many stale writes it has refused.
    pub refused: u64,
    /// When it last did, for people.
    pub refused_wall: WallTime,
    /// Of these, how many watchers have not been notified of yet.
    pub unreported: u64,
    /// When they were last notified, if they were.
    pub reported_at: Option<ClusterTime>,
}

/// An acquire that waits in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// Its session.
    pub session: SessionNumber,
    /// The number of the acquire, if it had one.
    pub number: Option<u64>,
    /// What it waits for.
    pub resources: Vec<ResourceNumber>,
    /// How it wants to hold it.
    pub mode: Mode,
    /// What it asked for.
    pub policies: Policies,
    /// The fences to add at the grant.
    pub fences: Vec<FenceName>,
    /// Since when it waits.
    pub since: ClusterTime,
    /// Until when; `None` for as long as its session lives.
    pub until: Option<ClusterTime>,
    /// The transmissions that wait for it, for a plain acquire: it leaves with the last of them.
    pub transmissions: Vec<TransmissionId>,
}

/// A nonce that can open nothing any more: its session has ended, or its acquire was refused or cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsedNonce {
    /// The nonce.
    pub nonce: Nonce,
    /// Since when.
    pub since: ClusterTime,
}

impl Waiter {
    /// The waiter's place in every queue that it is in.
    pub fn place(&self, number: WaiterNumber) -> Place {
        Place { rank: core::cmp::Reverse(self.policies.priority), waiter: number }
    }
}

/// A register, or what is remembered of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterRecord {
    /// Its key.
    pub key: RegisterKey,
    /// What guards it; survives deletes.
    pub guard: Option<Scope>,
    /// Its content; `None` if only the guard is remembered.
    pub content: Option<Content>,
}

/// What a register that exists holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// The value.
    pub value: Arc<[u8]>,
    /// The revision that created it.
    pub create_revision: Revision,
    /// The revision that last changed it.
    pub mod_revision: Revision,
    /// How often it was written since.
    pub version: u64,
    /// The session with which it disappears.
    pub session: Option<SessionNumber>,
}

/// A key with which a node signs sequencers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningKey {
    /// The node.
    pub node: u64,
    /// The Ed25519 public key.
    pub key: [u8; 32],
}

/// What has happened so far, counted; replicated, so every node shows the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Leases granted.
    pub grants: u64,
    /// Leases ended, by reason in the order of `EndReason::ALL`.
    pub ends: [u64; 7],
    /// Renewals that were answered ok.
    pub renewals: u64,
    /// Sessions ended for want of a renewal.
    pub sessions_expired: u64,
    /// Stale writes refused by fences, as reported.
    pub refused: u64,
    /// Stale guarded writes that the registers refused.
    pub register_refusals: u64,
    /// Pauses reported by holders.
    pub pauses: u64,
    /// How often a node became leader.
    pub leader_changes: u64,
    /// Plain acquires whose session expired without a single renewal: their answers may never have arrived.
    pub plain_unrenewed: u64,
}

impl Totals {
    /// Counts leases that ended.
    pub(crate) fn count_end(&mut self, why: EndReason, many: u64) {
        let index = EndReason::ALL.iter().position(|known| *known == why).expect("ALL lists every reason");
        self.ends[index] = self.ends[index].saturating_add(many);
    }

    /// Counts leases that a backup leaves out: what was granted and has ended must add up, because people are
    /// shown the difference as leases held.
    pub(crate) fn count_expired(&mut self, many: u64) {
        self.count_end(EndReason::Expired, many);
    }
}
