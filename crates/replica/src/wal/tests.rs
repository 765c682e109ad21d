//! What the log promises, one danger at a time. The model test covers their combinations.

use super::SYNCED;
use super::frame;
use super::record::{EntryKind, LogEntry, LogId, Vote};
use super::recovery::recover;
use super::rig::{Rig, SALT, entry, segments};
use super::segment;
use super::writer::Job;
use crate::config::LogOptions;
use crate::disk::{Disk, Draws, SimDisk};
use crate::engine::to_log_id;
use crate::error::StartError;
use crate::snapshot::{Meta, SnapshotStore};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn small() -> LogOptions {
    LogOptions { segment_bytes: 4096, frame_bytes_max: 1024, cache_bytes: 2048 }
}

/// A log with one frame for each of `count` entries, closed by force.
fn written(count: u64, options: LogOptions) -> SimDisk {
    let disk = SimDisk::new();
    let mut rig = Rig::open(&disk, options).unwrap();
    for index in 0..count {
        rig.append(vec![entry(1, index, &[index as u8; 100])]);
    }
    disk.crash(0);
    disk
}

fn refusal(disk: &SimDisk, options: LogOptions) -> String {
    match Rig::open(disk, options) {
        Ok(rig) => panic!("opened with {} entries", rig.entries().len()),
        Err(StartError::Data(message)) => message,
        Err(error) => panic!("another error: {error}"),
    }
}

/// Where the frames of a segment begin.
fn frames(disk: &SimDisk, name: &str) -> Vec<usize> {
    let content = disk.content(name).unwrap();
    let (mut offsets, mut at) = (Vec::new(), segment::HEADER_BYTES as usize);
    while at + 4 <= content.len() {
        let length = u32::from_le_bytes(content[at..at + 4].try_into().unwrap()) as usize;
        if length == 0 {
            break;
        }
        offsets.push(at);
        at += frame::padded(frame::HEADER_BYTES + length);
    }
    offsets
}

#[test]
fn a_damaged_middle_is_refused_wherever_the_damage_is() {
    let options = LogOptions { segment_bytes: 8192, ..small() };
    let pristine = written(8, options);
    let name = &segments(&pristine)[0];
    let offsets = frames(&pristine, name);
    assert_eq!(offsets.len(), 8);
    for offset in offsets[0]..offsets[6] + 120 {
        let disk = written(8, options);
        disk.damage(name, offset, 0x10);
        let inside_a_frame =
            offsets.iter().any(|start| (*start..*start + 16 + 8 + 1 + 16 + 100).contains(&offset));
        if inside_a_frame {
            let message = refusal(&disk, options);
            assert!(message.contains("damaged"), "offset {offset}: {message}");
            assert!(message.contains("under a new number"), "it says what to do: {message}");
        } else {
            Rig::open(&disk, options).expect("padding holds nothing");
        }
    }
}

/// A damaged version number was taken for that of a newer program, and the message did not say what else to do.
#[test]
fn a_damaged_header_says_how_to_rejoin() {
    let name = &segments(&written(3, small()))[0];
    for offset in 0..segment::HEADER_BYTES as usize {
        for bit in 0..8 {
            let disk = written(3, small());
            disk.damage(name, offset, 1 << bit);
            let message = refusal(&disk, small());
            assert!(message.contains("under a new number"), "bit {bit} of byte {offset}: {message}");
        }
    }
}

#[test]
fn a_damaged_last_frame_is_cut_and_its_remains_are_gone() {
    let options = LogOptions { segment_bytes: 8192, ..small() };
    let disk = written(7, options);
    let mut rig = Rig::open(&disk, options).unwrap();
    disk.fail_syncs_after(Some(0));
    rig.append(vec![entry(1, 7, &[7; 100])]);
    disk.fail_syncs_after(None);
    disk.restart();
    let name = segments(&disk)[0].clone();
    let last = *frames(&disk, &name).last().unwrap();
    disk.damage(&name, last + 40, 1);
    let mut rig = Rig::open(&disk, options).unwrap();
    assert_eq!(rig.entries().len(), 7);
    assert!(disk.content(&name).unwrap()[last..].iter().all(|byte| *byte == 0));
    // A shorter frame in its place must not be followed by what is left of the longer one.
    rig.append(vec![entry(2, 7, b"short")]);
    disk.crash(1);
    assert_eq!(Rig::open(&disk, options).unwrap().entries().last().unwrap(), &entry(2, 7, b"short"));
}

#[test]
fn after_a_graceful_close_even_the_last_entry_is_known_to_be_durable() {
    let options = LogOptions { segment_bytes: 8192, ..small() };
    let disk = written(8, options);
    let mut rig = Rig::open(&disk, options).unwrap();
    let done = rig.done();
    rig.carry_out([Job::Close(done)]);
    let name = segments(&disk)[0].clone();
    let offsets = frames(&disk, &name);
    disk.restart();
    disk.damage(&name, offsets[7] + 40, 1);
    refusal(&disk, options);
}

#[test]
fn a_lost_segment_is_noticed() {
    let disk = written(100, small());
    let names = segments(&disk);
    assert!(names.len() > 3, "{names:?}");
    disk.remove(&names[1]).unwrap();
    assert!(refusal(&disk, small()).contains("is missing"));
    let disk = written(100, small());
    disk.remove(&names[0]).unwrap();
    assert!(refusal(&disk, small()).contains("segment 1 is missing"));
}

#[test]
fn a_synced_tail_that_turned_into_zeros_is_noticed() {
    let disk = written(100, small());
    let name = segments(&disk)[0].clone();
    let last = *frames(&disk, &name).last().unwrap();
    let content = disk.content(&name).unwrap();
    for (offset, byte) in content.iter().enumerate().skip(last) {
        disk.damage(&name, offset, *byte);
    }
    assert!(refusal(&disk, small()).contains("damaged"));
}

#[test]
fn a_segment_of_another_directory_is_refused() {
    let disk = written(3, small());
    let name = segments(&disk)[0].clone();
    disk.damage(&name, 24, 1); // the salt
    assert!(refusal(&disk, small()).contains("belongs to another data directory"));
}

#[test]
fn a_newer_format_is_refused_and_says_so() {
    let disk = written(3, small());
    let name = segments(&disk)[0].clone();
    disk.damage(&name, 8, 1); // version 2 becomes 3
    assert!(refusal(&disk, small()).contains("start the newer program"));
}

/// Version 1 did not say how long a segment is. It was never released, and nothing is read of it.
#[test]
fn a_format_that_was_never_released_is_refused() {
    let disk = written(3, small());
    let name = segments(&disk)[0].clone();
    disk.damage(&name, 8, 3); // version 2 becomes 1
    assert!(refusal(&disk, small()).contains("its header is damaged"));
}

/// A snapshot that purges nothing left the note of what was synced to the page cache.
#[test]
fn a_finished_snapshot_makes_the_note_of_what_was_synced_durable() {
    for seed in 0..32 {
        let disk = SimDisk::new();
        let mut rig = Rig::open(&disk, small()).unwrap();
        for index in 0..5 {
            rig.append(vec![entry(1, index, b"x")]);
        }
        let store = SnapshotStore::open(Arc::new(disk.clone())).unwrap();
        let last = Some(to_log_id(LogId { term: 1, index: 2 }));
        let meta = Meta { last, membership: Default::default(), removed: BTreeSet::new() };
        store.write(meta, |output| output.write_all(b"state")).unwrap();
        disk.crash(seed);
        let name = segments(&disk)[0].clone();
        let last = *frames(&disk, &name).last().unwrap();
        disk.damage(&name, last + 20, 1);
        assert!(refusal(&disk, small()).contains("was synced"), "seed {seed}");
    }
}

#[test]
fn bytes_in_an_entry_that_look_like_a_frame_are_none() {
    // A client that knows the format puts a valid frame of its own into an entry; then the power
    // goes while that entry is written. Its remains must neither be replayed nor prove anything.
    let options = LogOptions { segment_bytes: 1 << 16, frame_bytes_max: 1 << 16, ..small() };
    for guess in [0, 1, 2] {
        let disk = written(2, options);
        let mut forged = Vec::new();
        let mut inner = Vec::new();
        frame::begin(&mut inner);
        super::record::encode_entry(&entry(9, 2, b"forged"), &mut inner);
        let position = frame::Position { salt: guess, segment: 1, offset: 0 };
        frame::seal(&mut inner, position, 3);
        for _ in 0..200 {
            forged.extend_from_slice(&inner);
        }
        let mut rig = Rig::open(&disk, options).unwrap();
        disk.fail_syncs_after(Some(0));
        rig.append(vec![entry(1, 2, &forged)]);
        assert_eq!(rig.refused.load(Ordering::SeqCst), 1);
        disk.fail_syncs_after(None);
        disk.crash(guess);
        let found = Rig::open(&disk, options).unwrap().entries();
        assert!(found.iter().all(|found| found.id.term == 1), "{found:?}");
    }
}

#[test]
fn votes_truncations_and_purges_survive_in_their_order() {
    let disk = SimDisk::new();
    let mut rig = Rig::open(&disk, small()).unwrap();
    rig.append((0..10).map(|index| entry(1, index, b"old")).collect());
    let vote = Vote { term: 2, node: 3, committed: false };
    rig.log.lock().truncate(Some(4));
    let done = rig.done();
    rig.carry_out([Job::Vote(vote, done), Job::Truncate(Some(4))]);
    rig.append((5..8).map(|index| entry(2, index, b"new")).collect());
    rig.log.lock().purge(LogId { term: 1, index: 2 });
    rig.carry_out([Job::Purge(LogId { term: 1, index: 2 })]);
    let before = rig.entries();
    disk.crash(3);
    let again = Rig::open(&disk, small()).unwrap();
    assert_eq!(again.entries(), before);
    assert_eq!(before.iter().map(|entry| entry.id.index).collect::<Vec<_>>(), [3, 4, 5, 6, 7]);
    assert_eq!(again.log.lock().vote, Some(vote));
    assert_eq!(again.log.lock().purged, Some(LogId { term: 1, index: 2 }));
}

/// A purge was noted as durable when room was made for its record, that is with the frame *before* it.
/// The segments it covers were gone before it was: a crash in between left a log without a beginning.
/// Found by the model test, seed 284.
#[test]
fn a_purge_removes_nothing_before_it_is_durable() {
    let disk = SimDisk::new();
    let mut rig = Rig::open(&disk, small()).unwrap();
    for index in 0..100 {
        rig.append(vec![entry(1, index, &[1; 100])]);
    }
    let large = entry(1, 100, &[2; 1000]);
    assert!(rig.log.lock().append(&large));
    disk.fail_syncs_after(Some(1));
    let done = rig.done();
    rig.carry_out([Job::Append(vec![large], done), Job::Purge(LogId { term: 1, index: 99 })]);
    assert_eq!(rig.kept.load(Ordering::SeqCst), 101, "the frame in front of the purge was synced");
    assert!(rig.writer.has_failed(), "the frame of the purge was not");
    disk.fail_syncs_after(None);
    for seed in 0..8 {
        disk.crash(seed);
        let found = Rig::open(&disk, small()).unwrap();
        assert_eq!(found.log.lock().next(), 101, "seed {seed}");
    }
}

/// A frame whose sync failed, or had not returned when its process was killed, is read back from the page
/// cache by the next process and counts as durable from then on. When it was not, and the power went after
/// that, it was lost although it had counted towards a quorum, or it stood damaged in front of the frames
/// behind it and the node refused to start. Found by seed 234 of the simulation.
#[test]
fn what_a_restart_reads_back_is_durable_before_it_counts() {
    for seed in 0..64 {
        let disk = SimDisk::new();
        let mut rig = Rig::open(&disk, small()).unwrap();
        rig.append(vec![entry(1, 0, b"synced")]);
        disk.fail_syncs_after(Some(0));
        rig.append(vec![entry(1, 1, &[7; 1_500])]);
        assert_eq!(rig.refused.load(Ordering::SeqCst), 1);
        disk.fail_syncs_after(None);
        // The process ends, the machine goes on.
        disk.restart();
        let mut again = Rig::open(&disk, small()).unwrap();
        let counted = again.entries();
        assert_eq!(counted.len(), 2, "what was written is read back");
        if seed % 2 == 0 {
            disk.fail_syncs_after(Some(0));
            again.append(vec![entry(1, 2, &[8; 100])]);
            disk.fail_syncs_after(None);
        }
        disk.crash(seed);
        let found = Rig::open(&disk, small()).unwrap().entries();
        assert_eq!(found[..2], counted[..], "seed {seed}");
    }
}

#[test]
fn a_vote_outlives_the_segment_it_was_written_to() {
    let disk = SimDisk::new();
    let mut rig = Rig::open(&disk, small()).unwrap();
    let vote = Vote { term: 7, node: 2, committed: true };
    let done = rig.done();
    rig.carry_out([Job::Vote(vote, done)]);
    for index in 0..200 {
        rig.append(vec![entry(7, index, &[1; 100])]);
        let upto = LogId { term: 7, index };
        rig.log.lock().purge(upto);
        rig.carry_out([Job::Purge(upto)]);
    }
    assert_eq!(segments(&disk).len(), 1, "all but the last are gone");
    disk.crash(3);
    let again = Rig::open(&disk, small()).unwrap();
    assert_eq!(again.log.lock().vote, Some(vote));
    assert_eq!(again.log.lock().last(), Some(LogId { term: 7, index: 199 }));
    assert_eq!(again.log.lock().next(), 200);
}

#[test]
fn an_entry_larger_than_a_segment_goes_through() {
    let disk = SimDisk::new();
    let mut rig = Rig::open(&disk, small()).unwrap();
    rig.append(vec![entry(1, 0, b"small")]);
    rig.append(vec![entry(1, 1, &[7; 20_000])]);
    rig.append(vec![entry(1, 2, b"small again")]);
    disk.crash(5);
    let found = Rig::open(&disk, small()).unwrap().entries();
    assert_eq!(found.len(), 3);
    assert_eq!(found[1].body.len(), 20_000);
}

#[test]
fn a_full_disk_ends_the_log_and_loses_nothing() {
    let disk = SimDisk::new();
    let mut rig = Rig::open(&disk, small()).unwrap();
    disk.limit(Some(3 * 4096));
    let mut appended = 0;
    while rig.refused.load(Ordering::SeqCst) == 0 {
        rig.append(vec![entry(1, appended, &[1; 200])]);
        appended += 1;
    }
    let kept = rig.kept.load(Ordering::SeqCst);
    disk.limit(None);
    disk.crash(1);
    assert!(Rig::open(&disk, small()).unwrap().entries().len() >= kept);
}

#[test]
fn memory_stays_within_its_measure_and_old_entries_are_read_from_disk() {
    let disk = SimDisk::new();
    let mut rig = Rig::open(&disk, small()).unwrap();
    for index in 0..100 {
        rig.append(vec![entry(1, index, &[index as u8; 100])]);
        assert!(rig.log.lock().cached_bytes() <= 2048);
    }
    let found = rig.entries();
    assert_eq!(found.len(), 100);
    assert!(found.iter().all(|found| found.body[0] == found.id.index as u8));
    // At least one, however large, and no more than asked for.
    let some = rig.log.lock().select(10..90, 1).read().unwrap();
    assert_eq!(some.iter().map(|entry| entry.id.index).collect::<Vec<_>>(), [10]);
    let some = rig.log.lock().select(95..200, 250).read().unwrap();
    assert_eq!(some.iter().map(|entry| entry.id.index).collect::<Vec<_>>(), [95, 96]);
}

#[test]
fn what_queued_up_shares_one_sync() {
    let disk = SimDisk::new();
    let options = LogOptions { frame_bytes_max: 1 << 20, segment_bytes: 1 << 20, ..small() };
    let mut rig = Rig::open(&disk, options).unwrap();
    let before = disk.syncs();
    let mut jobs = Vec::new();
    for index in 0..500 {
        let entry = entry(1, index, b"together");
        assert!(rig.log.lock().append(&entry));
        jobs.push(Job::Append(vec![entry], rig.done()));
    }
    rig.carry_out(jobs);
    assert_eq!(disk.syncs() - before, 1);
    assert_eq!(rig.kept.load(Ordering::SeqCst), 500);
    assert_eq!(rig.meter.status().records, 500);
}

/// A log of several segments whose process was killed: what was written is still there, synced or not.
fn killed(count: u64, options: LogOptions) -> SimDisk {
    let disk = SimDisk::new();
    let mut rig = Rig::open(&disk, options).unwrap();
    for index in 0..count {
        rig.append(vec![entry(1, index, &[index as u8; 100])]);
    }
    disk.restart();
    disk
}

/// A refusal changes nothing, and says how the node comes back.
fn refused_with(disk: &SimDisk, what: &str) {
    let before: Vec<_> = disk.names().into_iter().map(|name| (disk.content(&name), name)).collect();
    let message = refusal(disk, small());
    assert!(message.contains(what), "{what}: {message}");
    assert!(message.contains("under a new number with an empty data directory"), "{message}");
    let after: Vec<_> = disk.names().into_iter().map(|name| (disk.content(&name), name)).collect();
    assert!(before == after, "{what}: something was changed");
}

/// The last frame looked like a torn tail, which nobody had been notified of: it was cut, and acknowledged
/// entries with it.
#[test]
fn a_damaged_last_frame_that_was_synced_is_refused() {
    for flip in [true, false] {
        let disk = killed(10, small());
        let name = segments(&disk)[0].clone();
        let last = *frames(&disk, &name).last().unwrap();
        if flip {
            disk.damage(&name, last + 40, 1);
        } else {
            let mut content = disk.content(&name).unwrap();
            content[last..].fill(0);
            disk.put(&name, &content);
        }
        refused_with(&disk, "frame 9 was synced");
    }
}

#[test]
fn an_older_copy_of_a_segment_is_refused() {
    let disk = SimDisk::new();
    let mut rig = Rig::open(&disk, small()).unwrap();
    for index in 0..5 {
        rig.append(vec![entry(1, index, b"old")]);
    }
    let name = segments(&disk)[0].clone();
    let older = disk.content(&name).unwrap();
    rig.append(vec![entry(1, 5, b"new")]);
    disk.restart();
    disk.put(&name, &older);
    refused_with(&disk, "frame 5 was synced");
}

#[test]
fn missing_segments_at_either_end_are_refused_even_after_a_power_loss() {
    for power in [false, true] {
        for (seed, missing) in [(1, 1), (2, 2), (3, usize::MAX)] {
            let disk = killed(100, small());
            if power {
                disk.crash(seed);
            }
            let names = segments(&disk);
            // The last one may be prepared and unused; those before it are in use.
            for name in names.iter().rev().take(missing.saturating_add(1)) {
                disk.lose(name);
            }
            refused_with(&disk, "missing");
        }
    }
}

#[test]
fn a_first_segment_without_successors_of_its_entries_is_missed() {
    let disk = SimDisk::new();
    let mut rig = Rig::open(&disk, small()).unwrap();
    rig.append((0..10).map(|index| entry(1, index, b"acknowledged")).collect());
    // Votes alone fill the rest, and the next segment: no entry in it tells of those before.
    for term in 2..100 {
        let done = rig.done();
        rig.carry_out([Job::Vote(Vote { term, node: 1, committed: false }, done)]);
    }
    disk.restart();
    assert!(segments(&disk).len() > 1);
    disk.lose(&segments(&disk)[0]);
    refused_with(&disk, "missing");
}

#[test]
fn a_segment_shorter_than_it_was_made_is_refused() {
    for power in [false, true] {
        let disk = killed(100, small());
        if power {
            disk.crash(1);
        }
        for name in segments(&disk) {
            let content = disk.content(&name).unwrap();
            for length in [content.len() - 1, content.len() - 512, 600, 64, 3, 0] {
                disk.put(&name, &content[..length]);
                refused_with(&disk, &name);
            }
            disk.put(&name, &content);
        }
        assert_eq!(Rig::open(&disk, small()).unwrap().entries().len(), 100, "nothing else is wrong with it");
    }
}

#[test]
fn a_log_without_the_note_of_what_was_synced_is_refused() {
    let disk = killed(10, small());
    disk.lose(SYNCED);
    refused_with(&disk, "`synced` is missing");
}

/// After a loss of power the note of what was synced is a lower bound: whatever is missing or shorter is
/// refused all the same, damage to the last frames need not be. Counted; `--nocapture` shows the table.
#[test]
fn after_a_power_loss_files_that_are_gone_or_shorter_are_refused() {
    let mut counts: BTreeMap<&str, [u32; 3]> = BTreeMap::new();
    for seed in 0..1_000 {
        let mut draws = Draws(seed);
        let disk = SimDisk::new();
        let mut rig = Rig::open(&disk, small()).unwrap();
        let written = 10 + draws.below(100);
        let (copy_at, mut older) = (draws.below(written), BTreeMap::new());
        for index in 0..written {
            if index == copy_at {
                older = segments(&disk).into_iter().map(|name| (name.clone(), disk.content(&name))).collect();
            }
            rig.append(vec![entry(1, index, &[index as u8; 100])]);
        }
        disk.crash(draws.next());
        let names = segments(&disk);
        let name = &names[draws.below(names.len() as u64) as usize];
        let mut content = disk.content(name).unwrap();
        let used = content.iter().rposition(|byte| *byte != 0).map_or(1, |last| last as u64 + 1);
        let kind = match draws.below(5) {
            0 => {
                disk.lose(name);
                "delete"
            }
            1 => {
                content.truncate(draws.below(content.len() as u64) as usize);
                disk.put(name, &content);
                "truncate"
            }
            2 => {
                content[draws.below(used) as usize..].fill(0);
                disk.put(name, &content);
                "zero"
            }
            3 => {
                disk.damage(name, draws.below(used) as usize, 1 << draws.below(8));
                "flip"
            }
            _ => {
                disk.put(name, &older.get(name).cloned().flatten().unwrap_or(content));
                "older copy"
            }
        };
        let count = counts.entry(kind).or_default();
        match Rig::open(&disk, small()) {
            Err(StartError::Data(_)) => count[0] += 1,
            Err(error) => panic!("seed {seed}: {error}"),
            Ok(rig) if rig.entries().len() as u64 == written => count[1] += 1,
            Ok(_) => count[2] += 1,
        }
    }
    println!("{:<12} {:>8} {:>12} {:>11}", "damage", "refused", "all present", "not noticed");
    for (kind, [refused, present, lost]) in &counts {
        println!("{kind:<12} {refused:>8} {present:>12} {lost:>11}");
    }
    assert_eq!((counts["delete"][2], counts["truncate"][2]), (0, 0), "{counts:?}");
    assert!(counts.values().all(|[refused, _, _]| *refused > 20), "{counts:?}");
}

/// A node listens where its last membership says: one that was truncated was never in force.
#[test]
fn the_last_membership_is_found_unless_it_was_truncated() {
    let disk = SimDisk::new();
    let membership =
        |term, index, body: &[u8]| LogEntry { kind: EntryKind::Membership, ..entry(term, index, body) };
    let found = |disk: &SimDisk| recover(disk, SALT, small().cache_bytes).unwrap().membership;
    let mut rig = Rig::open(&disk, small()).unwrap();
    rig.append(vec![membership(1, 0, b"first"), entry(1, 1, b"x"), membership(1, 2, b"second")]);
    disk.crash(0);
    assert_eq!(found(&disk), Some((2, b"second"[..].into())));
    let mut rig = Rig::open(&disk, small()).unwrap();
    rig.log.lock().truncate(Some(1));
    rig.carry_out([Job::Truncate(Some(1))]);
    rig.append(vec![entry(2, 2, b"y")]);
    disk.crash(0);
    assert_eq!(found(&disk), Some((0, b"first"[..].into())));
}
