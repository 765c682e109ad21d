//! Histories whose commands refer to sessions, tokens and resources that exist: what the state machine must
//! withstand and must keep.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_fuzz::history::Author;
use tenure_fuzz::{rig::Rig, seeds};

fuzz_target!(init: seeds::write(seeds::decisions()), |bytes: &[u8]| {
    let mut rig = Rig::new();
    let mut author = Author::new(bytes);
    while let Some(entry) = author.entry(rig.machine()) {
        author.learn(&rig.apply(entry));
    }
    rig.rebuild();
});
