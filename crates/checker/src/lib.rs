//! Judges what clients and storages observed: histories in, violations out.
//!
//! A [`History`] is what a run recorded about itself, with times of one clock that no process in the run
//! could read. The checkers decide whether the nine rules of the design hold for it; each checker has the
//! name of its rule. They never look into a server and do not know how the run was made: the simulation and
//! the chaos runs use the same ones.
//!
//! Start reading at [`History`], then `linear.rs` for the search behind [`linearizable`]. `lines.rs` stores a
//! history as text.

mod history;
mod leases;
mod linear;
mod lines;
mod registers;
mod rules;

pub use history::{
    Call, Death, FenceStep, Final, History, Operation, Outcome, PermitSpan, ProcessFailure, Response,
    SessionSpan, Sighting, Time, Wait,
};
pub use linear::Verdict;
pub use rules::{Judged, Violation, judge, linearizable};
