//! Guarded storage: the fencing token checked where the data is.
//!
//! A lease can be lost while its holder is not looking: paused, swapped out, cut off. What that holder
//! sent before, or sends when it wakes, must not land. Each adapter here makes one kind of storage
//! accept a write only if its token is not smaller than the highest one seen for the same scope, and
//! remember the highest in the same atomic step. This crate never asks the lease service anything:
//! tokens and permits reach it as values.
//!
//! | module | storage | the atomic step |
//! |---|---|---|
//! | [`postgres`] | PostgreSQL | a row lock that the barrier must wait for |
//! | [`mysql`] | MySQL, MariaDB | the same |
//! | [`sqlite`] | SQLite | one write lock for the whole file |
//! | [`redis`] | Redis | one script |
//! | [`object`] | S3 and kin | conditional PUT of a manifest, or of the next log record |
//! | [`dynamodb`] | DynamoDB | conditional update, transaction with a condition check |
//! | [`files`] | a folder | a rename that fails if the name is taken |
//!
//! The order on taking over is always the same: acquire, [`Fence::barrier`], read, work. The barrier
//! comes first because "reject what is smaller" protects only what the new token has already touched.

// The modules named in the table exist only if their feature is on.
#![cfg_attr(
    not(all(
        feature = "postgres",
        feature = "mysql",
        feature = "sqlite",
        feature = "redis",
        feature = "object-store",
        feature = "dynamodb"
    )),
    allow(rustdoc::broken_intra_doc_links, reason = "links lead to adapters that may be left out")
)]

mod authority;
mod budget;
mod outcome;
mod rule;

#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[cfg(feature = "files")]
pub mod files;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "object-store")]
pub mod object;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sequencer")]
pub mod sequencer;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use authority::{Authority, Takeover, Unchecked};
pub use outcome::{Barrier, Cursor, Fence, FenceEffect, FenceError, FenceFuture, FenceMark, FindOut, Stale};
#[cfg(feature = "sequencer")]
pub use sequencer::VerifiedSequencer;
