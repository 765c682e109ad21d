//! Single commands, as a follower forwards them: what decodes can be written again, and reads back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_core::FormatVersion;
use tenure_fuzz::seeds;
use tenure_wire::{decode_command, encode_command};

fuzz_target!(init: seeds::write(seeds::commands()), |bytes: &[u8]| {
    let Ok(command) = decode_command(FormatVersion::NEWEST, bytes) else { return };
    let mut written = Vec::new();
    encode_command(FormatVersion::NEWEST, &command, &mut written);
    assert_eq!(decode_command(FormatVersion::NEWEST, &written).expect("what was written is read"), command);
});
