//! A machine small enough to check by eye, and the helpers that every test here needs.

#![allow(dead_code)] // each test binary uses its own part

pub mod cluster;
pub mod intruder;
pub mod stranger;
pub mod wires;

use bytes::Bytes;
use std::io::{self, Read, Write};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tenure_replica::{
    Config, LeaderTerm, Leadership, NoNetwork, ProposeError, Replica, SimDisk, StartError, StateMachine,
};

/// Holds up the snapshot of a ledger that was told to `wait`. For one test of a program.
pub static SLOW_SNAPSHOT: Gate = Gate { stage: Mutex::new(Stage::Away), changed: Condvar::new() };

/// Where somebody waits until a test lets them through.
pub struct Gate {
    stage: Mutex<Stage>,
    changed: Condvar,
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Away,
    Waiting,
    Through,
}

impl Gate {
    fn wait(&self) {
        let mut stage = self.stage.lock().unwrap();
        if *stage == Stage::Away {
            *stage = Stage::Waiting;
        }
        drop(self.changed.wait_while(stage, |stage| *stage != Stage::Through).unwrap());
    }

    pub fn somebody_waits(&self) -> bool {
        *self.stage.lock().unwrap() == Stage::Waiting
    }

    pub fn open(&self) {
        *self.stage.lock().unwrap() = Stage::Through;
        self.changed.notify_all();
    }
}

/// Remembers every entry it was given, in order.
#[derive(Clone, Default)]
pub struct Ledger {
    pub entries: Arc<Vec<Vec<u8>>>,
    /// Index and term of the last entry.
    pub last: (u64, u64),
}

impl StateMachine for Ledger {
    /// How many entries there were, this one included.
    type Response = usize;
    type Capture = Ledger;

    fn apply(&mut self, index: u64, term: u64, entry: &[u8]) -> usize {
        assert!(index > self.last.0, "entry {index} was applied after {}", self.last.0);
        assert!(entry != b"break", "told to break");
        self.last = (index, term);
        Arc::make_mut(&mut self.entries).push(entry.to_vec());
        self.entries.len()
    }

    fn capture(&self) -> Ledger {
        self.clone()
    }

    fn write_snapshot(capture: Ledger, output: &mut dyn Write) -> io::Result<()> {
        if capture.entries.iter().any(|entry| entry == b"wait") {
            SLOW_SNAPSHOT.wait();
        }
        output.write_all(&capture.last.0.to_le_bytes())?;
        output.write_all(&capture.last.1.to_le_bytes())?;
        for entry in &*capture.entries {
            output.write_all(&(entry.len() as u32).to_le_bytes())?;
            output.write_all(entry)?;
        }
        Ok(())
    }

    fn read_snapshot(input: &mut dyn Read) -> io::Result<Ledger> {
        let mut bytes = Vec::new();
        input.read_to_end(&mut bytes)?;
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let last = (number(0), number(8));
        let (mut entries, mut at) = (Vec::new(), 16);
        while at < bytes.len() {
            let length = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
            entries.push(bytes[at + 4..at + 4 + length].to_vec());
            at += 4 + length;
        }
        Ok(Ledger { entries: Arc::new(entries), last })
    }

    fn restore(&mut self, capture: Ledger) {
        *self = capture;
    }
}

/// Starts a cluster of one on `disk`.
pub async fn start(disk: &SimDisk) -> Replica<Ledger> {
    try_start(disk, Config::single(1)).await.expect("the replica starts")
}

pub async fn try_start(disk: &SimDisk, config: Config) -> Result<Replica<Ledger>, StartError> {
    Replica::start(config, Arc::new(disk.clone()), Arc::new(NoNetwork), Ledger::default()).await
}

/// Waits until `replica` leads.
pub async fn leader_term(replica: &Replica<Ledger>) -> LeaderTerm {
    let mut leadership = replica.leadership();
    let leads = leadership.wait_for(|leadership| leadership.leader_term().is_some());
    let leads = tokio::time::timeout(Duration::from_secs(20), leads).await.expect("it leads in time");
    match *leads.expect("the replica is alive") {
        Leadership::Leader(leader_term) => leader_term,
        Leadership::Follower { .. } => unreachable!("just waited for a leader"),
    }
}

/// Proposes and waits for the answer.
pub async fn propose(
    replica: &Replica<Ledger>,
    leader_term: LeaderTerm,
    entry: &[u8],
) -> Result<usize, ProposeError> {
    replica.propose(leader_term, Bytes::copy_from_slice(entry)).await?.await
}

/// What the machine has been given so far.
pub fn entries(replica: &Replica<Ledger>) -> Vec<Vec<u8>> {
    replica.machine().read().entries.to_vec()
}
