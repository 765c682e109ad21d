//! The whole lease protocol, pure: values in, values out.
//!
//! This crate decides who holds a lease, when it ends, what a holder may believe and what a storage
//! may accept. It never awaits, locks, logs, reads a clock, draws randomness or fails for I/O: time and
//! randomness arrive as arguments, so the same log gives the same state on every replica and a test
//! that needs time to pass simply passes a time.
//!
//! Each file is one piece of logic: [`Machine`] is what the cluster has agreed; the proposer is what the leader
//! counts; the holder is what a client may believe; the fence is what a storage may accept.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod answer;
mod command;
mod event;
mod fence;
mod holder;
mod identity;
mod invariants;
mod limits;
mod machine;
mod names;
mod numbers;
mod pace;
mod permit;
mod policy;
mod proposer;
mod time;
mod timing;
mod tuning;
mod version;

pub use answer::{
    Answer, Denial, DenialReason, Done, Grant, Holding, OverQuota, Refusal, Register, RenewalAnswer,
    RenewalEvents, Resolved, WaitKey,
};
pub use command::{
    Acquire, AcquireBy, Attributed, BackupRecords, Caller, Command, Compare, CompareField, CompareOp, Entry,
    Guard, KindSetting, Mode, Open, Operation, Policies, PutCredential, PutPolicy, Renewal, RestoreBegin,
    RestorePiece, Settings, Wait, Write,
};
pub use event::{EndReason, Event, EventKind};
pub use fence::{Fenced, Mark, Progress};
pub use holder::{Holder, HolderOptions, Jeopardy, LeaseEnd, LeaseState, NoPermit, Suspect, Taken};
pub use identity::{CredentialId, Identity, Verb};
pub use limits::{
    CREDENTIALS_MAX, EXPIRED_CREDENTIAL_KEEPS_FOR, HISTORY_LEASE_BYTES, Limits, NONCE_REFUSED_FOR,
    POLICIES_MAX, POLICY_PARTS_MAX, RESTORE_KEPT_FOR, RESTORE_PIECE_BYTES_MAX, RESTORE_PIECE_RECORDS_MAX,
    TRANSMISSIONS_PER_WAITER_MAX, USED_NONCES_MAX,
};
pub use machine::authority::Standing;
pub use machine::few::Few;
pub use machine::state::{Credential, HistoryLimit};
pub use machine::view::{
    ArmedView, Counts, DroppedLeases, FenceView, HistoryView, LeaseView, NewestDropped, OwnLease, OwnSession,
    OwnWait, PastLease, SCANNED_PER_PAGE_MAX, SessionView, WAITERS_SHOWN_MAX, WaiterView,
};
pub use machine::{Applied, Contradiction, DiscardedStaging, Machine, Margins, StagingView, Succession};
pub use names::{
    FenceName, HolderName, IdentityName, InvalidName, PolicyName, RegisterKey, ResourceName, Scope,
};
pub use numbers::{
    Generation, InvalidSessionId, InvalidToken, Nonce, RestoreId, Revision, Secret, SecretForm, SessionId,
    SessionNumber, Slot, Token, TransmissionId,
};
pub use pace::LeaderPace;
pub use permit::{Permit, PermitCount, ReadPermit};
pub use policy::{HolderRule, Policy, Prefix, Quotas, Verbs, Verdict, Who};
pub use proposer::{MachineTime, Message, Proposer, ProposerLimits, QueueKind, Sealed, Turned, Waiting};
pub use time::{ClusterTime, Moment, Span, WallTime};
pub use timing::{Bounds, BrokenTiming, Deadline, Timing, TimingNumbers};
pub use tuning::{Advice, Change, Consequences, Load, Measured, Spread};
pub use version::{AutoUpgrade, FormatVersion};

/// The replicated state as plain records: what a snapshot holds. Only for what stores it and tests it;
/// everybody else looks at the machine's views.
pub mod state {
    pub use crate::machine::cow_map::{CowMap, Key};
    pub use crate::machine::state::*;
}
