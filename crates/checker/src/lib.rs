//! Judges what clients and storages saw: histories in, violations out.
//!
//! A [`History`] is what a run wrote down about itself, with moments of one clock that nobody in the run could read.
//! The checkers decide whether the nine rules of the design can be true of it; each is named as the rule is. They
//! never look into a server and know nothing of how the run was made: simulation and real chaos use the same ones.
//!
//! Start reading at [`History`], then `linear.rs` for the search behind [`linearizable`]. `lines.rs` keeps a history
//! as text.

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
