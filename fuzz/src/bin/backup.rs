//! Backup files. Almost no mutation keeps a checksum valid, so each input is also read with a corrected
//! checksum: the code behind the checksum must withstand more than accidents.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_fuzz::seeds;
use tenure_wire::{read_backup, read_backup_head, write_backup};
use xxhash_rust::xxh3::xxh3_128;

fuzz_target!(init: seeds::write(seeds::backups()), |bytes: &[u8]| {
    let _ = read_backup(&mut &*bytes);
    let content = &bytes[..bytes.len().saturating_sub(size_of::<u128>())];
    let mut mended = content.to_vec();
    mended.extend(xxh3_128(content).to_le_bytes());
    let Ok((head, state)) = read_backup(&mut mended.as_slice()) else { return };
    assert_eq!(read_backup_head(&mut mended.as_slice()).expect("the head was read before"), head);
    let mut written = Vec::new();
    assert_eq!(write_backup(&state, &mut written).expect("memory takes every write"), head);
});
