//! What a follower asks the leader on behalf of its clients, and the command in it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_fuzz::seeds;
use tenure_wire::{Forwarded, decode_command, decode_forwarded, encode_forwarded};

fuzz_target!(init: seeds::write(seeds::forwarded()), |bytes: &[u8]| {
    let Ok(request) = decode_forwarded(bytes) else { return };
    assert_eq!(decode_forwarded(&encode_forwarded(&request)).expect("what was written is read"), request);
    if let Forwarded::Command(command) = &request {
        let _ = decode_command(command);
    }
});
