//! Log entries: what decodes can be written again, and reads back as the same entry.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_core::FormatVersion;
use tenure_fuzz::seeds;
use tenure_wire::{decode_entry, encode_entry};

fuzz_target!(init: seeds::write([seeds::entry()]), |bytes: &[u8]| {
    let Ok(entry) = decode_entry(FormatVersion::NEWEST, bytes) else { return };
    let mut written = Vec::new();
    encode_entry(FormatVersion::NEWEST, &entry, &mut written);
    let again = decode_entry(FormatVersion::NEWEST, &written).expect("what was written is read");
    assert_eq!(again, entry, "an entry changed by being written");
    let mut twice = Vec::new();
    encode_entry(FormatVersion::NEWEST, &again, &mut twice);
    assert_eq!(twice, written, "one entry has two encodings");
});
