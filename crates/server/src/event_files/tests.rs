use super::*;
use tenure_core::EventKind;
use tenure_replica::SimDisk;

const CLUSTER: [u8; 16] = [7; 16];

fn event(revision: u64) -> Event {
    let kind = EventKind::Changed { what: "x".repeat(400).into(), how: "tested" };
    Event {
        revision: Revision::new(revision),
        wall: WallTime::from_unix_millis(revision * 1_000),
        kind,
        identity: None,
    }
}

fn open(disk: &SimDisk, bytes_max: u64) -> Arc<EventFiles> {
    let age_max = Duration::from_secs(1_000_000);
    EventFiles::open(Arc::new(disk.clone()), EventFileOptions { bytes_max, age_max })
}

/// Applies these revisions, one entry each; every third has two events. Written now and then.
fn apply(files: &EventFiles, revisions: std::ops::RangeInclusive<u64>) {
    for revision in revisions {
        let many = if revision.is_multiple_of(3) { 2 } else { 1 };
        files.append(CLUSTER, FormatVersion::V2, &vec![event(revision); many]);
        if revision.is_multiple_of(7) {
            files.write(false);
        }
    }
}

/// Reads from the first revision to `last`: the revisions that are there, and the ranges that are named as missing.
fn read_all(files: &EventFiles, last: u64) -> (Vec<u64>, Vec<(u64, u64)>) {
    let (mut found, mut missed) = (Vec::new(), Vec::new());
    let (mut after, mut cursor) = (0, None);
    while after < last {
        match files.read(Revision::new(after), cursor) {
            FilePage::Events(events, next) => {
                for event in &events {
                    let twice = found.last() == Some(&event.revision.get());
                    assert!(!twice || event.revision.get().is_multiple_of(3));
                    if !twice {
                        found.push(event.revision.get());
                    }
                }
                after = events.last().expect("a page has events").revision.get();
                // With and without a cursor the same is read.
                cursor = Some(next).filter(|_| after.is_multiple_of(2));
            }
            FilePage::Missing { up_to_before } => {
                let next = up_to_before.unwrap_or(last + 1);
                assert!(next > after + 1, "what is missing is named, and is not nothing");
                missed.push((after + 1, next - 1));
                (after, cursor) = (next - 1, None);
            }
        }
    }
    (found, missed)
}

fn names(disk: &SimDisk) -> Vec<String> {
    disk.list(DIRECTORY).unwrap()
}

#[test]
fn everything_comes_back_once_and_in_order_before_and_after_a_restart() {
    let disk = SimDisk::new();
    let files = open(&disk, 64 << 20);
    apply(&files, 1..=400);
    assert_eq!(read_all(&files, 400), ((1..=400).collect(), vec![]));
    files.write(true);
    drop(files);
    let again = open(&disk, 64 << 20);
    assert_eq!(read_all(&again, 400), ((1..=400).collect(), vec![]));
    // The log shows the end of it once more; then it goes on.
    apply(&again, 380..=500);
    assert_eq!(read_all(&again, 500), ((1..=500).collect(), vec![]));
    assert_eq!(again.complete_after(Revision::new(450)).get(), 0);
}

/// What is not synced may be lost or torn. The log shows everything since the last snapshot again, and what that
/// replaced had been synced before: nothing is missing, whatever the crash took.
#[test]
fn a_crash_leaves_no_gap_because_the_log_is_read_again_from_the_snapshot() {
    for seed in 0..60 {
        let disk = SimDisk::new();
        let files = open(&disk, 64 << 20);
        apply(&files, 1..=200);
        files.write(true); // as a snapshot does before it is complete
        apply(&files, 201..=200 + seed * 3);
        disk.crash(seed);
        disk.restart();
        let again = open(&disk, 64 << 20);
        apply(&again, 201..=400);
        assert_eq!(read_all(&again, 400), ((1..=400).collect(), vec![]), "seed {seed}");
    }
}

#[test]
fn an_installed_snapshot_leaves_a_gap_that_is_named() {
    let disk = SimDisk::new();
    let files = open(&disk, 64 << 20);
    apply(&files, 1..=30);
    apply(&files, 51..=80);
    let whole = ((1..=30).chain(51..=80).collect::<Vec<_>>(), vec![(31, 50)]);
    assert_eq!(read_all(&files, 80), whole);
    assert_eq!(files.complete_after(Revision::new(80)).get(), 50);
    files.write(true);
    drop(files);
    let again = open(&disk, 64 << 20);
    assert_eq!(read_all(&again, 80), whole, "a restart knows it too");
}

#[test]
fn the_bounds_drop_whole_files_and_what_went_is_named() {
    let disk = SimDisk::new();
    let bytes_max = 256 << 10;
    let files = open(&disk, bytes_max);
    apply(&files, 1..=2_000);
    files.write(true);
    let (found, missed) = read_all(&files, 2_000);
    let first = found[0];
    assert!(first > 1 && first < 1_900, "{first}");
    assert_eq!((found, missed), ((first..=2_000).collect(), vec![(1, first - 1)]));
    assert_eq!(files.complete_after(Revision::new(2_000)).get(), first - 1);
    let kept: u64 = names(&disk).iter().map(|name| disk.open(&path(name)).unwrap().len().unwrap()).sum();
    assert!(kept <= bytes_max + SEGMENT_BYTES_MIN && kept > bytes_max / 2, "{kept}");
    assert_eq!(kept, files.held().0);

    // By age: one event a second, so of the last 100 s there are about 100.
    let options = EventFileOptions { bytes_max: 64 << 20, age_max: Duration::from_secs(100) };
    let disk = SimDisk::new();
    let files = EventFiles::open(Arc::new(disk.clone()), options);
    apply(&files, 1..=2_000);
    files.write(true);
    let (found, _) = read_all(&files, 2_000);
    assert!((1_880..=1_900).contains(&found[0]), "{}", found[0]);
}

/// Damage anywhere is a range that is named, never an error, a panic or a wrong event; what is not damaged stays.
#[test]
fn damage_is_noticed_and_named() {
    for (step, mask) in [(0usize, 0x01u8), (1, 0x80), (2, 0xff)] {
        let disk = SimDisk::new();
        let files = open(&disk, 256 << 10);
        apply(&files, 1..=120);
        files.write(true);
        let all = names(&disk);
        assert!(all.len() > 1, "or this shows little: {all:?}");
        let victim = path(&all[0]);
        let length = disk.open(&victim).unwrap().len().unwrap() as usize;
        for at in (step * 7..length).step_by(97) {
            disk.damage(&victim, at, mask);
            let again = open(&disk, 256 << 10);
            let (found, missed) = read_all(&again, 120);
            let mut together: Vec<u64> = found.clone();
            together.extend(missed.iter().flat_map(|(first, last)| *first..=*last));
            together.sort_unstable();
            assert_eq!(together, (1..=120).collect::<Vec<_>>(), "byte {at}: all is there or is named");
            assert!(!missed.is_empty(), "byte {at}: damage is not passed over");
            let first_kept = missed.last().map_or(0, |(_, last)| last + 1);
            assert!(first_kept <= 120, "byte {at}: other files stay");
            disk.damage(&victim, at, mask); // as it was
        }
    }
}

#[test]
fn a_full_disk_is_a_gap_and_stops_nothing() {
    let disk = SimDisk::new();
    let files = open(&disk, 64 << 20);
    apply(&files, 1..=20);
    files.write(true);
    disk.limit(Some(disk.used_bytes()));
    apply(&files, 21..=40);
    files.write(true);
    disk.limit(None);
    apply(&files, 41..=60);
    files.write(true);
    let (found, missed) = read_all(&files, 60);
    assert_eq!(found.last(), Some(&60));
    assert!(missed.len() == 1 && missed[0].0 > 20 && missed[0].1 <= 41, "{missed:?}");
    drop(files);
    assert_eq!(read_all(&open(&disk, 64 << 20), 60), (found, missed));
}

#[test]
fn events_of_another_cluster_are_no_part_of_this_ones_past() {
    let disk = SimDisk::new();
    let files = open(&disk, 64 << 20);
    apply(&files, 1..=50);
    files.write(true);
    drop(files);
    let again = open(&disk, 64 << 20);
    again.append([8; 16], FormatVersion::V2, &[event(1)]);
    again.write(true);
    assert_eq!(read_all(&again, 50), (vec![1], vec![(2, 50)]));
}

#[test]
fn without_room_nothing_is_kept_and_everything_is_missing() {
    let disk = SimDisk::new();
    let files = open(&disk, 0);
    apply(&files, 1..=50);
    files.write(true);
    assert_eq!(read_all(&files, 50), (vec![], vec![(1, 50)]));
    assert!(disk.list(DIRECTORY).is_err() || names(&disk).is_empty());
}

/// A disk that has stopped costs memory up to a bound; then whole revisions are left out, and that is a gap.
#[test]
fn what_waits_to_be_written_is_bounded() {
    let files = open(&SimDisk::new(), 64 << 20);
    let large = |revision| {
        let value = vec![0u8; 2 << 20];
        let key = "k".parse().expect("a key");
        let kind = EventKind::Put { key, value: value.into(), create_revision: Revision::new(1), version: 1 };
        Event { kind, ..event(revision) }
    };
    for revision in 1..=80 {
        files.append(CLUSTER, FormatVersion::V2, &[large(revision)]);
    }
    assert!(files.pending.lock().bytes <= PENDING_BYTES_MAX + (3 << 20));
    files.write(true);
    // However much waited, it is cut into files of the usual size.
    let largest = files.table.lock().find(30);
    assert!(matches!(largest, Place::In(segment) if segment.bytes <= SEGMENT_BYTES_MAX + (3 << 20)));
    files.append(CLUSTER, FormatVersion::V2, &[event(81)]);
    let (found, missed) = read_all(&files, 81);
    assert_eq!((found.last(), missed.last().map(|(_, last)| *last)), (Some(&81), Some(80)));
}
