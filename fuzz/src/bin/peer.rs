//! What a peer sends: handshake, frames, and the body of every call, also from somebody who only pretends to
//! be a peer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_fuzz::seeds;
use tenure_replica::fuzzing::peer;

fuzz_target!(init: seeds::write(seeds::peer()), |bytes: &[u8]| {
    peer::connection(bytes);
    peer::bodies(bytes);
});
