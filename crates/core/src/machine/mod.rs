//! What the cluster has agreed.

pub mod shelf;
pub mod state;
