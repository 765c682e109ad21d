//! The engine's own suite of storage tests, over our log and our snapshots.

use super::log_store::LogStore;
use super::machine::Applier;
use super::removed::Removed;
use super::types::Types;
use crate::StateMachine;
use crate::config::{Config, Entropy, Execution, Stopwatch};
use crate::data_dir::DataDir;
use crate::disk::SimDisk;
use crate::low_latency::LowLatency;
use crate::snapshot::SnapshotStore;
use crate::wal::{self, Meter, Queue, Writer};
use openraft::StorageError;
use openraft::alias::VoteOf;
use openraft::storage::{RaftLogReader, RaftLogStorage};
use openraft::testing::log::{StoreBuilder, Suite};
use parking_lot::RwLock;
use std::io::{self, Read, Write};
use std::sync::Arc;
use tokio::sync::watch;

#[derive(Clone, Default)]
struct Count(u64);

impl StateMachine for Count {
    type Response = u64;
    type Capture = u64;

    fn apply(&mut self, _: u64, _: u64, _: &[u8]) -> u64 {
        self.0 += 1;
        self.0
    }

    fn capture(&self) -> u64 {
        self.0
    }

    fn write_snapshot(capture: u64, output: &mut dyn Write) -> io::Result<()> {
        output.write_all(&capture.to_le_bytes())
    }

    fn read_snapshot(input: &mut dyn Read) -> io::Result<u64> {
        let mut bytes = [0; 8];
        input.read_exact(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn restore(&mut self, capture: u64) {
        self.0 = capture;
    }
}

struct Fresh(Execution);

impl StoreBuilder<Types, LogStore, Applier, ()> for Fresh {
    async fn build(&self) -> Result<((), LogStore, Applier), StorageError<Types>> {
        let (log, applier) = stores_on(&Arc::new(SimDisk::new()), self.0);
        Ok(((), log, applier))
    }
}

/// A log and a machine on an empty disk.
fn stores_on(disk: &Arc<SimDisk>, execution: Execution) -> (LogStore, Applier) {
    let mut config = Config::single(1);
    config.log.segment_bytes = 64 << 10;
    let (directory, lock) =
        DataDir::open(disk.clone(), 1, &Entropy::from_source(|| 1)).expect("an empty disk opens");
    let store = SnapshotStore::open(disk.clone()).expect("an empty disk opens");
    let meter = Meter::new(u64::MAX);
    let failure = watch::channel(None).0;
    let recovered = wal::recover(&**disk, directory.salt(), 1 << 20).expect("an empty disk opens");
    let log = recovered.log.clone();
    let stopwatch = Stopwatch::default();
    let writer = Writer::new(
        disk.clone(),
        config.log,
        execution,
        stopwatch,
        meter.clone(),
        failure.clone(),
        recovered,
    );
    let low_latency = LowLatency::new(config.low_latency, execution);
    let writer = writer.expect("a segment");
    let (queue, _) =
        Queue::start(writer, disk.clone(), execution, low_latency.clone(), lock).expect("a writer");
    let machine = Arc::new(RwLock::new(Count::default()));
    let applied = watch::channel(None).0;
    let removed = Removed::default();
    let applier = Applier::new(machine, store, execution, meter, removed, applied, failure);
    let applier = applier.in_mode(&low_latency);
    (LogStore::new(log, queue, execution, 1, low_latency), applier)
}

#[tokio::test]
async fn the_store_does_what_the_engine_relies_on() {
    Suite::test_all(Fresh(Execution::Threads)).await.expect("on a thread");
    Suite::test_all(Fresh(Execution::Tasks)).await.expect("as a task");
}

#[tokio::test]
async fn a_vote_that_is_not_durable_is_not_given() {
    for execution in [Execution::Threads, Execution::Tasks] {
        let disk = Arc::new(SimDisk::new());
        let (mut log, _applier) = stores_on(&disk, execution);
        disk.fail_syncs_after(Some(0));
        let promised = log.save_vote(&VoteOf::<Types>::new(7, 1)).await;
        promised.expect_err("a restart forgets it, and would promise the same term to another");
        assert_eq!(log.read_vote().await.expect("it is kept in memory"), None);
    }
}
