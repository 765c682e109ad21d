//! Snapshots: what is read has one hash and one encoding, and a machine either accepts it or names the
//! contradiction. It never stops the node: a backup that an administrator restores is read in the same way.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_core::{ClusterTime, Entry, FormatVersion, Machine, WallTime};
use tenure_fuzz::seeds;
use tenure_wire::{read_snapshot, state_hash, write_snapshot};

fuzz_target!(init: seeds::write(seeds::snapshots()), |bytes: &[u8]| {
    let Ok(state) = read_snapshot(FormatVersion::NEWEST, &mut &*bytes) else { return };
    let mut written = Vec::new();
    write_snapshot(&state, &mut written).expect("memory takes every write");
    let again = read_snapshot(FormatVersion::NEWEST, &mut written.as_slice()).expect("what was written is read");
    assert_eq!(state_hash(&again), state_hash(&state), "a state changed by being written");

    let Ok(mut machine) = Machine::from_state(state) else { return };
    // The end of all time: every deadline in it comes due.
    let at = ClusterTime::from_micros(u64::MAX);
    machine.apply(Entry { at, wall: WallTime::default(), renewals: vec![], commands: vec![] });
    machine.check_everything();
});
