//! The one crate that asks the operating system what time it is.
//!
//! Everything that decides takes time as an argument; the drivers get it from a [`Clock`]. This crate
//! decides nothing: it never compares, waits or schedules. [`SystemClock`] is the real one,
//! [`ManualClock`] the one that tests turn by hand.
//!
//! What the two readings of a [`Moment`] are for is explained there.

mod machine;
mod manual;
mod system;

pub use machine::MachineMoment;
pub use manual::ManualClock;
pub use system::SystemClock;

use std::sync::Arc;

use tenure_core::{Moment, WallTime};

/// Where a driver gets the time from.
pub trait Clock: Send + Sync + 'static {
    /// One reading of this process's two monotonic clocks, for decisions.
    fn now(&self) -> Moment;

    /// Calendar time, for people. Nothing decides by it.
    fn wall(&self) -> WallTime;
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Moment {
        (**self).now()
    }

    fn wall(&self) -> WallTime {
        (**self).wall()
    }
}
