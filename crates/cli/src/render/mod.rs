//! Formats for people: tables, colours, sentences. Takes values and returns text; does no I/O.

pub mod auth;
#[cfg(feature = "bench")]
pub mod bench;
pub mod events;
pub mod explain;
pub mod leader;
pub mod leases;
mod paint;
pub mod table;
pub mod top;
pub mod tune;
pub mod words;

pub use paint::{Form, Paint};
