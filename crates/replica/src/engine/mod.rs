//! The consensus engine, wired to our log, snapshots and peers. Nothing outside of this crate sees
//! its types, and nothing on disk or on the wire is in its layout: an upgrade cannot break old data.

mod codec;
mod log_store;
mod machine;
mod removed;
mod runtime;
mod settings;
mod types;

pub(crate) use codec::{KEYS_SINCE, decode_membership, encode_membership};
pub(crate) use log_store::{LogStore, from_entry, from_vote, to_entry, to_vote};
pub(crate) use machine::{Applier, Machinery};
pub(crate) use removed::{Removed, was_removed};
pub use runtime::seed_elections;
pub(crate) use settings::settings;
pub(crate) use types::{Engine, Member, Payload, Types, from_log_id, to_log_id};

#[cfg(test)]
mod suite_test;
