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
mod invariants;
mod limits;
mod machine;
mod names;
mod numbers;
mod pace;
mod permit;
mod proposer;
mod time;
mod timing;
mod tuning;
mod version;

pub use answer::{
    Answer, Done, Grant, Holding, Refusal, Register, RenewalAnswer, RenewalEvents, Resolved, WaitKey,
};
pub use command::{
    Acquire, AcquireBy, Caller, Command, Compare, CompareField, CompareOp, Entry, Guard, KindSetting, Mode,
    Open, Operation, Policies, Renewal, Settings, Wait, Write,
};
pub use event::{EndReason, Event, EventKind};
pub use fence::{Fenced, Mark, Progress};
pub use holder::{Holder, HolderOptions, Jeopardy, LeaseEnd, LeaseState, NoPermit, Suspect, Taken};
pub use limits::{Limits, NONCE_REFUSED_FOR, TRANSMISSIONS_PER_WAITER_MAX, USED_NONCES_MAX};
pub use machine::view::{
    Counts, LeaseView, OwnSession, SCANNED_PER_PAGE_MAX, SessionView, WAITERS_SHOWN_MAX, WaiterView,
};
pub use machine::{Applied, Contradiction, Machine, Margins, Succession};
pub use names::{FenceName, HolderName, InvalidName, RegisterKey, ResourceName, Scope};
pub use numbers::{
    Generation, InvalidSessionId, InvalidToken, Nonce, Revision, Secret, SessionId, SessionNumber, Slot,
    Token, TransmissionId,
};
pub use pace::LeaderPace;
pub use permit::{Permit, PermitCount, ReadPermit};
pub use proposer::{MachineTime, Message, Proposer, ProposerLimits, QueueKind, Sealed, Turned, Waiting};
pub use time::{ClusterTime, Moment, Span, WallTime};
pub use timing::{Bounds, BrokenTiming, Deadline, Timing, TimingNumbers};
pub use tuning::{Advice, Change, Consequences, Load, Measured, Spread};
pub use version::{AutoUpgrade, FormatVersion};

/// The replicated state as plain records: what a snapshot holds.
pub mod state {
    pub use crate::machine::cow_map::{CowMap, Key};
    pub use crate::machine::few::Few;
    pub use crate::machine::state::*;
}
