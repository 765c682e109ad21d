//! The log on disk: one writer, one sync for all that queued up, nothing acknowledged before it.
//!
//! *What is written.* Segments (`segment`) hold frames (`frame`); a frame holds all records (`record`) that
//! one sync covers. The writer starts a frame only after the sync of the frame before it has returned, so **a
//! valid frame proves that everything before it was synced**. That is how recovery (`recovery`) tells a torn
//! tail, which was never acknowledged and is cut, from a damaged middle, which held acknowledged
//! entries and is refused. A small file (`synced`) says how far the log was synced, so that a tail, or a
//! segment, that the disk has lost is not taken for a torn one.
//!
//! *Who writes.* [`Writer`] is a plain struct that takes a queue of jobs and turns it into frames; `driver`
//! runs it on a thread of its own, or as a task in simulation. Votes, truncations and purges go through the
//! same queue as entries: their order is part of their meaning. If the queue is empty and the disk fast, an
//! append may be written in place, on the calling thread (`crate::low_latency`).
//!
//! *Who reads.* [`Log`] is the memory of it all: which entries there are, where they lie, and the most
//! recent ones themselves. An entry is readable as soon as it is queued and acknowledged once synced.

mod appender;
mod driver;
mod files;
mod frame;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod log;
mod meter;
mod record;
mod recovery;
mod segment;
mod synced;
mod writer;

pub(crate) use driver::Queue;
#[cfg(test)]
pub(crate) use log::Log;
pub(crate) use log::SharedLog;
pub(crate) use meter::Meter;
pub(crate) use record::{EntryKind, LogEntry, LogId, Vote};
pub(crate) use recovery::{has_segments, recover};
pub(crate) use synced::{NAME as SYNCED, sync as sync_note};
pub(crate) use writer::{Done, Job, Writer};

/// The directory of the segments, below the data directory.
pub(crate) const DIRECTORY: &str = "log";

#[cfg(test)]
mod model_test;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod tests;
