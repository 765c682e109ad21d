//! One node on a simulated disk: what it acknowledges it keeps, and what it cannot keep ends it.

mod common;

use common::{Ledger, entries, leader_term, propose, start, try_start};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tenure_replica::{
    Config, Execution, NoNetwork, ProposeError, RealDisk, Replica, Role, SimDisk, StartError, seed_elections,
};

#[tokio::test]
async fn a_cluster_of_one_founds_itself_and_answers() {
    let replica = start(&SimDisk::new()).await;
    let leader_term = leader_term(&replica).await;
    assert_eq!(propose(&replica, leader_term, b"one").await, Ok(1));
    assert_eq!(propose(&replica, leader_term, b"two").await, Ok(2));
    replica.read_barrier().await.expect("a cluster of one confirms itself");
    assert_eq!(entries(&replica), [b"one".to_vec(), b"two".to_vec()]);
    let status = replica.status();
    assert_eq!(status.role, Role::Leader);
    assert_eq!(status.voters, [1]);
    assert_eq!(status.applied, status.last_log_index);
    assert!(status.cluster.is_some());
    replica.shutdown().await;
}

#[tokio::test]
async fn a_restart_keeps_everything_and_leads_in_a_new_term() {
    let disk = SimDisk::new();
    let mut written = Vec::new();
    let mut last_term = 0;
    for round in 0..4u8 {
        let replica = start(&disk).await;
        let leader_term = leader_term(&replica).await;
        assert!(leader_term.term > last_term, "term {} after {last_term}", leader_term.term);
        last_term = leader_term.term;
        assert_eq!(entries(&replica), written, "round {round}");
        for number in 0..20u8 {
            let entry = vec![round, number];
            propose(&replica, leader_term, &entry).await.unwrap();
            written.push(entry);
        }
        replica.shutdown().await;
    }
}

/// As in simulation: no thread, everything a task of one runtime.
#[tokio::test]
async fn it_runs_without_any_thread_too() {
    let mut config = Config::single(1);
    config.execution = Execution::Tasks;
    config.log.segment_bytes = 16 << 10;
    config.snapshot.entries_max = 40;
    config.snapshot.entries_kept = 4;
    seed_elections(7);
    let disk = SimDisk::new();
    disk.slow_down(Duration::from_millis(1));
    let mut written = Vec::new();
    for round in 0..3u8 {
        let replica = try_start(&disk, config.clone()).await.unwrap();
        let leader_term = leader_term(&replica).await;
        assert_eq!(entries(&replica), written, "round {round}");
        for number in 0..50u8 {
            let entry = vec![round, number];
            propose(&replica, leader_term, &entry).await.unwrap();
            written.push(entry);
        }
        assert!(replica.status().snapshot_index.is_some());
        disk.crash(round.into());
        replica.shutdown().await;
    }
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_crash_at_any_time() {
    for seed in 0..20 {
        let disk = SimDisk::new();
        let replica = start(&disk).await;
        let first = leader_term(&replica).await;
        for number in 0..30u8 {
            propose(&replica, first, &[number; 100]).await.unwrap();
        }
        // On their way when the power goes: they may be there afterwards, in order, or not.
        for number in 30..40u8 {
            drop(replica.propose(first, vec![number; 100].into()).await.unwrap());
        }
        disk.crash(seed);
        replica.shutdown().await;

        let again = start(&disk).await;
        let second = leader_term(&again).await;
        let found = entries(&again);
        assert!(found.len() >= 30, "seed {seed}: only {} of 30", found.len());
        for (number, entry) in found.iter().enumerate() {
            assert_eq!(*entry, vec![number as u8; 100], "seed {seed}");
        }
        propose(&again, second, b"on it goes").await.unwrap();
        again.shutdown().await;
    }
}

#[tokio::test]
async fn nothing_is_acknowledged_before_it_is_synced() {
    let disk = SimDisk::new();
    let replica = start(&disk).await;
    let leader_term = leader_term(&replica).await;
    for _ in 0..50 {
        // Both what the log says of itself and what the disk saw.
        let (frames, syncs) = (replica.status().log.frames, disk.syncs());
        propose(&replica, leader_term, b"entry").await.unwrap();
        assert!(replica.status().log.frames > frames, "an answer came without a frame");
        assert!(disk.syncs() > syncs, "an answer came without a sync");
    }
    replica.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_sync_hangs_nothing_is_answered_and_the_rest_shares_the_next_one() {
    let disk = SimDisk::new();
    let replica = start(&disk).await;
    let leader_term = leader_term(&replica).await;
    let gate = Arc::new((AtomicBool::new(true), std::sync::Mutex::new(()), std::sync::Condvar::new()));
    let held = gate.clone();
    disk.on_sync(move || {
        let mut guard = held.1.lock().unwrap();
        while held.0.load(Ordering::SeqCst) {
            guard = held.2.wait(guard).unwrap();
        }
    });
    let before = disk.syncs();
    let mut proposals = Vec::new();
    for number in 0..100u8 {
        proposals.push(replica.propose(leader_term, vec![number].into()).await.unwrap());
    }
    let first = proposals.remove(0);
    assert!(
        tokio::time::timeout(Duration::from_millis(50), first).await.is_err(),
        "answered although nothing is durable"
    );
    assert!(entries(&replica).is_empty(), "applied although nothing is durable");
    {
        let _guard = gate.1.lock().unwrap();
        gate.0.store(false, Ordering::SeqCst);
        gate.2.notify_all();
    }
    for proposal in proposals {
        proposal.await.unwrap();
    }
    let syncs = disk.syncs() - before;
    assert!(syncs < 20, "100 entries that queued up took {syncs} syncs");
    replica.shutdown().await;
}

#[tokio::test]
async fn a_failed_sync_ends_the_node() {
    let disk = SimDisk::new();
    let replica = start(&disk).await;
    let leader_term = leader_term(&replica).await;
    propose(&replica, leader_term, b"kept").await.unwrap();
    disk.fail_syncs_after(Some(0));
    let outcome = propose(&replica, leader_term, b"lost").await;
    assert!(matches!(outcome, Err(ProposeError::Unknown { .. })), "{outcome:?}");
    let failure = replica.failed().await;
    assert!(failure.0.contains("the log cannot be written"), "{failure}");
    assert_eq!(replica.status().role, Role::Stopped);
    // The disk is well again, and it changes nothing: the log is not to be trusted any more.
    disk.fail_syncs_after(None);
    assert!(propose(&replica, leader_term, b"no").await.is_err());
    replica.shutdown().await;

    let again = start(&disk).await;
    common::leader_term(&again).await;
    assert_eq!(entries(&again)[0], b"kept");
    again.shutdown().await;
}

#[tokio::test]
async fn a_broken_invariant_ends_the_node() {
    let replica = start(&SimDisk::new()).await;
    let leader_term = leader_term(&replica).await;
    let outcome = propose(&replica, leader_term, b"break").await;
    assert!(matches!(outcome, Err(ProposeError::Unknown { .. })), "{outcome:?}");
    let failure = replica.failed().await;
    assert!(failure.0.contains("told to break"), "{failure}");
}

#[tokio::test]
async fn snapshots_keep_the_disk_bounded_and_restore_the_machine() {
    let mut config = Config::single(1);
    config.log.segment_bytes = 64 << 10;
    config.snapshot.log_bytes_max = 256 << 10;
    config.snapshot.entries_kept = 10;
    let disk = SimDisk::new();
    let replica = try_start(&disk, config.clone()).await.unwrap();
    let first = leader_term(&replica).await;
    for number in 0..4000u32 {
        // 4 MB of log in all; the ledger itself grows slowly.
        let mut entry = number.to_le_bytes().to_vec();
        entry.resize(if number % 64 == 0 { 60_000 } else { 8 }, 7);
        propose(&replica, first, &entry).await.unwrap();
        // A snapshot is written beside what goes on; until it is there, nothing may go.
        let small = async {
            while replica.status().log.disk_bytes > 512 << 10 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), small).await.expect("the log is cut in time");
    }
    let before = entries(&replica);
    assert!(replica.status().purged.is_some(), "nothing was ever purged");
    replica.shutdown().await;
    let snapshots = disk.names().into_iter().filter(|name| name.starts_with("snapshots/")).count();
    assert_eq!(snapshots, 1);

    let again = try_start(&disk, config).await.unwrap();
    let second = leader_term(&again).await;
    assert_eq!(entries(&again), before);
    assert_eq!(propose(&again, second, b"next").await, Ok(before.len() + 1));
    again.shutdown().await;
}

/// Whoever opens the directory next must not meet a snapshot that is still being written.
#[tokio::test]
async fn a_node_that_has_shut_down_writes_nothing_more() {
    let disk = SimDisk::new();
    let replica = start(&disk).await;
    let leader_term = leader_term(&replica).await;
    propose(&replica, leader_term, b"wait").await.unwrap();
    replica.trigger_snapshot().await.unwrap();
    let begun = async {
        while !common::SLOW_SNAPSHOT.somebody_waits() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), begun).await.expect("a snapshot begins in time");
    let shutdown = replica.shutdown();
    tokio::pin!(shutdown);
    let early = tokio::time::timeout(Duration::from_millis(100), &mut shutdown).await;
    common::SLOW_SNAPSHOT.open();
    assert!(early.is_err(), "shut down while a snapshot was being written");
    shutdown.await;
    let snapshots: Vec<_> = disk.names().into_iter().filter(|name| name.starts_with("snapshots/")).collect();
    assert!(matches!(&snapshots[..], [name] if name.ends_with(".snapshot")), "{snapshots:?}");
}

#[tokio::test]
async fn a_term_that_is_over_proposes_nothing() {
    let disk = SimDisk::new();
    let replica = start(&disk).await;
    let old = leader_term(&replica).await;
    replica.shutdown().await;
    let again = start(&disk).await;
    let new = leader_term(&again).await;
    let outcome = propose(&again, old, b"stale").await;
    assert!(matches!(outcome, Err(ProposeError::NotProposed { .. })), "{outcome:?}");
    propose(&again, new, b"fresh").await.unwrap();
    assert_eq!(entries(&again), [b"fresh".to_vec()]);
    again.shutdown().await;
}

#[tokio::test]
async fn a_second_process_is_kept_out() {
    let disk = SimDisk::new();
    let replica = start(&disk).await;
    assert!(matches!(try_start(&disk, Config::single(1)).await, Err(StartError::Locked)));
    replica.shutdown().await;
    start(&disk).await.shutdown().await;
}

#[tokio::test]
async fn without_proposals_nothing_is_written() {
    let disk = SimDisk::new();
    let replica = start(&disk).await;
    let leader_term = leader_term(&replica).await;
    propose(&replica, leader_term, b"one").await.unwrap();
    let before = replica.status().log.frames;
    tokio::time::sleep(Duration::from_millis(400)).await; // several heartbeats and election timeouts
    assert_eq!(replica.status().log.frames, before);
    replica.shutdown().await;
}

#[tokio::test]
async fn the_real_disk_keeps_it_too() {
    let directory = std::env::temp_dir().join(format!("tenure-replica-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    let open = || Arc::new(RealDisk::open(&directory).expect("a directory"));
    for round in 1..=3 {
        let replica =
            Replica::start(Config::single(1), open(), Arc::new(NoNetwork), Ledger::default()).await.unwrap();
        let leader_term = leader_term(&replica).await;
        assert_eq!(propose(&replica, leader_term, b"entry").await, Ok(round));
        let second = Replica::start(Config::single(1), open(), Arc::new(NoNetwork), Ledger::default()).await;
        assert!(matches!(second, Err(StartError::Locked)));
        replica.shutdown().await;
    }
    std::fs::remove_dir_all(&directory).expect("the directory can be removed");
}

/// A single node with small files and a snapshot, that was killed.
async fn killed_with_a_snapshot() -> (SimDisk, Config) {
    let mut config = Config::single(1);
    config.log.segment_bytes = 8 << 10;
    config.snapshot.entries_max = 40;
    config.snapshot.entries_kept = 4;
    let disk = SimDisk::new();
    let replica = try_start(&disk, config.clone()).await.unwrap();
    let leader_term = leader_term(&replica).await;
    let first = disk.names().into_iter().find(|name| name.starts_with("log/")).expect("a segment");
    // Until the first segment is removed. The status reports a purge earlier: before it is in the log, and a
    // log that does not know of it has every entry.
    while disk.names().contains(&first) {
        propose(&replica, leader_term, &[7; 200]).await.unwrap();
    }
    disk.restart();
    replica.shutdown().await;
    (disk, config)
}

async fn refusal(disk: &SimDisk, config: &Config, damage: &str) -> String {
    match try_start(disk, config.clone()).await {
        Ok(replica) => panic!("{damage}: started with {} entries", entries(&replica).len()),
        Err(error) => error.to_string(),
    }
}

/// Each of these started without complaint, and the next tokens had been issued before.
#[tokio::test]
async fn a_node_whose_files_are_gone_is_refused_with_advice() {
    let (disk, config) = killed_with_a_snapshot().await;
    let names = disk.names();
    let (logs, snapshots): (Vec<_>, Vec<_>) =
        names.iter().filter(|name| name.contains('/')).partition(|name| name.starts_with("log/"));
    assert!(!logs.is_empty() && !snapshots.is_empty(), "{names:?}");
    let damages: [(&str, Vec<&String>); 4] = [
        ("a snapshot without a log", logs.clone()),
        ("an identity alone", logs.iter().chain(&snapshots).copied().collect()),
        ("a log without its snapshot", snapshots.clone()),
        ("no identity", names.iter().filter(|name| *name == "identity").collect()),
    ];
    for (damage, lost) in damages {
        let damaged = disk.copy();
        lost.iter().for_each(|name| damaged.lose(name));
        let said = refusal(&damaged, &config, damage).await;
        assert!(said.contains("new number"), "{damage}: {said}");
    }
    // An older one may still be there; it is of no use.
    let name = snapshots.iter().rfind(|name| name.ends_with(".snapshot")).expect("there is one");
    let content = disk.content(name).unwrap();
    for (damage, bytes) in [
        ("truncated", content[..content.len() - 20].to_vec()),
        ("empty", Vec::new()),
        ("flipped", content.iter().enumerate().map(|(at, byte)| byte ^ u8::from(at == 300)).collect()),
    ] {
        let damaged = disk.copy();
        damaged.put(name, &bytes);
        let said = refusal(&damaged, &config, damage).await;
        assert!(said.contains(name.as_str()) && said.contains("new number"), "{damage}: {said}");
    }
    let replica = try_start(&disk, config).await.expect("nothing is wrong with the original");
    replica.shutdown().await;
}
