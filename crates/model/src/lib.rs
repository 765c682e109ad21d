//! The lease protocol as a finite model, explored exhaustively.
//!
//! [`World`] is one resource, two holders and the nodes that take turns as leader, with a real time that none
//! of them sees. Everything that can go wrong between them is an action that may be taken at any moment: a
//! message is late, repeated or never delivered; a clock runs slow; a node or a holder stands still; a quorum
//! is lost; a leader is deposed and does not know it. A [`Stage`] says what may happen there and how often,
//! so that all that can follow is finite; the checker then looks at every state of it. [`fences::Storage`]
//! and [`agent::Host`] are two smaller models of what lies outside of that world.
//!
//! The [`logic`] module is the protocol said again, in a few numbers each, so that states can be compared and
//! rules taken out on purpose ([`Mutation`]): a checker that finds nothing must first be seen to find
//! something. That what is explored is also what is shipped is checked by [`twin`]: it drives `tenure_core`'s
//! own proposer, machine and holders alongside, on every transition of the unmutated model, and they must do
//! the same.
//!
//! What this crate never does: prove anything about time bounds larger than its stages, or about disks and
//! consensus. The log here is what a consensus engine promises; that it keeps its promise is `tenure-sim`'s
//! and the chaos runs' business.
#![forbid(unsafe_code)]

pub mod agent;
pub mod fences;
pub mod logic;
mod mutation;
mod rebase;
mod rules;
mod stage;
pub mod twin;
mod world;

pub use mutation::Mutation;
pub use stage::{Drift, Sends, Stage, Start};
pub use world::{Action, Fault, State, World};
