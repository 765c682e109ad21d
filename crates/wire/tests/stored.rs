//! What a replica stores survives storing, and nothing that it might find instead does harm.

use proptest::prelude::*;
use tenure_core::{Command, FormatVersion, Renewal, SessionNumber};
use tenure_wire::{
    BackupReader, WireError, decode_command, decode_entry, encode_command, encode_entry, encode_entry_head,
    read_backup, read_backup_head, read_snapshot, state_hash, write_backup, write_snapshot,
};

mod values;

fn entry_bytes(entry: &tenure_core::Entry) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_entry(FormatVersion::NEWEST, entry, &mut bytes);
    bytes
}

fn snapshot_bytes(state: &tenure_core::state::State) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_snapshot(state, &mut bytes).unwrap();
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn entries_survive(entry in values::entry()) {
        prop_assert_eq!(decode_entry(FormatVersion::NEWEST, &entry_bytes(&entry)).unwrap(), entry);
    }

    #[test]
    fn an_entry_put_together_piece_by_piece_is_the_same(entry in values::entry()) {
        let mut pieces = Vec::new();
        encode_entry_head(FormatVersion::NEWEST, entry.at, entry.wall, &entry.renewals, entry.commands.len(), &mut pieces);
        for command in &entry.commands {
            let mut piece = Vec::new();
            encode_command(FormatVersion::NEWEST, command, &mut piece);
            prop_assert_eq!(&decode_command(FormatVersion::NEWEST, &piece).unwrap(), command);
            pieces.extend(piece);
        }
        prop_assert_eq!(pieces, entry_bytes(&entry));
    }

    #[test]
    fn an_entry_cut_short_is_refused_wherever_it_is_cut(entry in values::entry()) {
        let bytes = entry_bytes(&entry);
        for cut in 0..bytes.len() {
            prop_assert!(decode_entry(FormatVersion::NEWEST, &bytes[..cut]).is_err(), "cut at {}", cut);
        }
    }

    #[test]
    fn a_damaged_entry_never_panics(
        entry in values::entry(), damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = entry_bytes(&entry);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = decode_entry(FormatVersion::NEWEST, &bytes);
    }

    #[test]
    fn random_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode_command(FormatVersion::NEWEST, &bytes);
        let _ = decode_entry(FormatVersion::NEWEST, &bytes);
        let _ = read_snapshot(FormatVersion::NEWEST, &mut bytes.as_slice());
        let _ = read_backup(&mut bytes.as_slice());
        if let Some(version) = bytes.first_mut() {
            *version = 1;
            let _ = decode_entry(FormatVersion::NEWEST, &bytes);
        }
    }

    #[test]
    fn states_survive_with_the_same_bytes_and_hash(state in values::state()) {
        let bytes = snapshot_bytes(&state);
        let mut input = bytes.as_slice();
        let read = read_snapshot(FormatVersion::NEWEST, &mut input).unwrap();
        prop_assert!(input.is_empty());
        values::assert_equal(&read, &state);
        prop_assert_eq!(snapshot_bytes(&read), bytes);
        prop_assert_eq!(state_hash(&read), state_hash(&state));
    }

    #[test]
    fn a_snapshot_cut_short_is_refused(state in values::state(), at in any::<prop::sample::Index>()) {
        let bytes = snapshot_bytes(&state);
        prop_assert!(read_snapshot(FormatVersion::NEWEST, &mut &bytes[..at.index(bytes.len())]).is_err());
    }

    #[test]
    fn a_damaged_snapshot_never_panics(
        state in values::state(), damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = snapshot_bytes(&state);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = read_snapshot(FormatVersion::NEWEST, &mut bytes.as_slice());
    }

    #[test]
    fn a_backup_survives_and_any_flipped_bit_is_noticed(
        mut state in values::state(), at in any::<prop::sample::Index>(), bit in 0..8u32,
        cut in 1..300usize,
    ) {
        values::drop_unknown_holders(&mut state);
        let mut bytes = Vec::new();
        let head = write_backup(&state, &mut bytes).unwrap();
        prop_assert_eq!(&read_backup_head(&mut bytes.as_slice()).unwrap(), &head);
        prop_assert_eq!(head.cluster, state.settings.cluster);
        let (read_head, read) = read_backup(&mut bytes.as_slice()).unwrap();
        prop_assert_eq!(read_head, head);
        prop_assert_eq!(&read, &state.without_sessions().unwrap());

        // However it is cut on its way, the pieces are the same.
        let (mut whole, mut cut_up) = (Vec::new(), Vec::new());
        let mut reader = BackupReader::default();
        reader.push(&bytes, &mut whole).unwrap();
        let end = reader.finish().unwrap();
        let mut reader = BackupReader::default();
        bytes.chunks(cut).for_each(|bytes| reader.push(bytes, &mut cut_up).unwrap());
        prop_assert_eq!(reader.finish().unwrap(), end);
        prop_assert_eq!(format!("{whole:?}"), format!("{cut_up:?}"));

        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(read_backup(&mut bytes.as_slice()).is_err());
        bytes[at] ^= 1 << bit;
        bytes.push(0);
        prop_assert!(read_backup(&mut bytes.as_slice()).is_err());
    }
}

#[test]
fn renewals_keep_their_order_and_extremes() {
    let numbers = [0, u64::MAX, 1, 1 << 63, 7, 7, u64::MAX, 0];
    let renewals: Vec<_> =
        numbers.map(|n| Renewal { session: SessionNumber::new(n), number: n ^ 5 }).into_iter().collect();
    let entry = tenure_core::Entry {
        at: Default::default(),
        wall: Default::default(),
        renewals,
        commands: Vec::new(),
    };
    assert_eq!(decode_entry(FormatVersion::NEWEST, &entry_bytes(&entry)).unwrap(), entry);
}

#[test]
fn neighbouring_sessions_renew_in_two_bytes_each() {
    let renewals: Vec<_> =
        (0..1000).map(|n| Renewal { session: SessionNumber::new(5_000_000 + n), number: 9 }).collect();
    let entry = tenure_core::Entry {
        at: Default::default(),
        wall: Default::default(),
        renewals,
        commands: Vec::new(),
    };
    assert!(entry_bytes(&entry).len() < 2 * 1000 + 16);
}

#[test]
fn a_stored_name_that_no_edge_would_accept_is_refused() {
    let mut bytes = Vec::new();
    encode_command(FormatVersion::NEWEST, &Command::Barrier { resource: "a/b".parse().unwrap() }, &mut bytes);
    let slash = bytes.iter().position(|byte| *byte == b'/').unwrap();
    bytes[slash - 1] = b'/';
    assert!(matches!(decode_command(FormatVersion::NEWEST, &bytes), Err(WireError::Corrupt { .. })));
}

#[test]
fn a_claimed_billion_renewals_costs_nothing() {
    // Version, stamp, calendar time, then a count that the input cannot hold.
    let bytes = [1, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0];
    assert!(matches!(decode_entry(FormatVersion::NEWEST, &bytes), Err(WireError::Truncated { .. })));
}
