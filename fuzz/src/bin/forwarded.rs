//! Requests that a follower forwards to the leader for its clients, and the command in them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_core::FormatVersion;
use tenure_fuzz::seeds;
use tenure_wire::{Forwarded, decode_command, decode_forwarded, encode_forwarded};

fuzz_target!(init: seeds::write(seeds::forwarded()), |bytes: &[u8]| {
    let Ok((version, request)) = decode_forwarded(FormatVersion::NEWEST, bytes) else { return };
    let written = encode_forwarded(version, &request);
    let again = decode_forwarded(FormatVersion::NEWEST, &written).expect("what was written is read");
    assert_eq!(again, (version, request.clone()));
    if let Forwarded::Command(command) = &request {
        let _ = decode_command(version, command);
    }
});
