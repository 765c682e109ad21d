//! What the fuzz targets share: where their first inputs come from, how bytes become a history of entries,
//! and what must hold of everything that a client can send.
//!
//! A target is a file in `bin/`: one for each decoder, and one for each way into the machine. It takes any
//! bytes at all and must neither panic nor hang nor eat memory; where something decodes, the target also
//! holds what was decoded against what the decoder promises. `cargo xtask fuzz` builds and runs them.

mod choices;
pub mod history;
pub mod rig;
pub mod seeds;

use tenure_core::{ClusterTime, Command, Entry, FormatVersion, Machine, WallTime};
use tenure_wire::{ApiError, decode_command, encode_command};

/// Holds a command that the edge let in against what comes behind the edge: the log stores it, every replica
/// reads the same, and a machine applies it without a panic. Whatever does not pass here, one client could
/// send to take down every node at once.
pub fn acceptable(command: Command) {
    let mut written = Vec::new();
    encode_command(FormatVersion::NEWEST, &command, &mut written);
    let read = decode_command(FormatVersion::NEWEST, &written).expect("what the edge lets in can be stored");
    assert_eq!(read, command, "a command changed by being stored");
    let at = ClusterTime::from_micros(1);
    let entry = Entry { at, wall: WallTime::default(), renewals: vec![], commands: vec![read] };
    Machine::default().apply(entry);
}

/// Tells a refusal as both interfaces would.
pub fn report(error: ApiError) {
    let _ = (error.to_string(), error.code.http_status());
    let _ = tonic::Status::from(error);
}
