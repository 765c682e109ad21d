//! Histories as a log holds them: everything that decodes is applied, as every replica would apply it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_fuzz::history::decoded;
use tenure_fuzz::{rig::Rig, seeds};

fuzz_target!(init: seeds::write(seeds::logs()), |bytes: &[u8]| {
    let mut rig = Rig::new();
    for entry in decoded(bytes) {
        rig.apply(entry);
    }
    rig.rebuild();
});
