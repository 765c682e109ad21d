//! What a replica applies entries to: the one thing the application supplies.

use std::io::{self, Read, Write};

/// A deterministic state machine: same entries in the same order, same state, on every node.
///
/// The replica keeps it in an `Arc<RwLock<_>>` that it shares with whoever reads. Applying takes the
/// write lock once per entry; reading and writing snapshots happens outside of the lock, on
/// [`Self::Capture`], so neither can stall the other.
pub trait StateMachine: Send + Sync + 'static {
    /// What applying one entry answers to its proposer. Dropped on all other nodes.
    type Response: Send + Sync + 'static;

    /// The whole state at one moment, cheap to take (copy-on-write), independent of the machine
    /// from then on.
    type Capture: Send + 'static;

    /// Applies one committed entry. `index` rises by at least one from call to call (the engine has
    /// entries of its own, which are not shown here); `term` is that of the leader that proposed it.
    ///
    /// Called on every node, leader or not: watchers are notified from here.
    fn apply(&mut self, index: u64, term: u64, entry: &[u8]) -> Self::Response;

    /// Takes the state as it is now. Called under the read lock, so it must be quick.
    fn capture(&self) -> Self::Capture;

    /// Writes a captured state. Runs without any lock, off the event loop.
    fn write_snapshot(capture: Self::Capture, output: &mut dyn Write) -> io::Result<()>;

    /// Reads what [`Self::write_snapshot`] wrote. Runs without any lock, off the event loop. The
    /// bytes have passed their checksums; an error here means a version this code does not know.
    fn read_snapshot(input: &mut dyn Read) -> io::Result<Self::Capture>;

    /// Replaces the whole state. Called under the write lock, so it should be a swap.
    fn restore(&mut self, capture: Self::Capture);
}
