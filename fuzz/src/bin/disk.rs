//! Files as a disk returns them: log segments and snapshot files, damaged, and with every checksum corrected.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_fuzz::seeds;
use tenure_replica::fuzzing::{snapshot, wal};

fuzz_target!(init: seeds::write(seeds::disk()), |bytes: &[u8]| {
    wal::content(bytes);
    wal::records(bytes);
    snapshot::content(bytes);
    snapshot::meta(bytes);
});
