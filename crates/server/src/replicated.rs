//! The lease machine as the replica sees it: bytes in, answers out, events to the event hub.
//!
//! This is the only place where the machine is changed. It runs on every node, leader or not, so every
//! node can tell its own watchers and waiters what has happened.

use std::io::{self, Read, Write};
use std::sync::Arc;

use tenure_clock::Clock;
use tenure_core::{Applied, FormatVersion, LeaderPace, Machine, MachineTime};
use tenure_replica::{Agreed, StateMachine};
use tenure_wire::Captured;

use crate::event_files::EventFiles;
use crate::event_hub::EventHub;
use crate::secrets::SharedStage;

/// The rho that holders count with unless configured otherwise: the bound on the difference of two clocks' rates.
const RHO_PPM: u32 = 500;

/// The machine and where its events go.
pub struct Replicated {
    machine: Machine,
    event_hub: Arc<EventHub>,
    event_files: Arc<EventFiles>,
    clock: Arc<dyn Clock>,
    pace: LeaderPace,
    agreed: Agreed,
    stage: SharedStage,
    /// The newest format version that this node reads.
    newest: FormatVersion,
    /// The log index of the last entry that changed the machine; `None` before the first one, and after a snapshot.
    last_entry: Option<u64>,
}

/// What applying one entry answered, and where the machine's time stood then.
#[derive(Debug)]
pub struct AppliedEntry {
    pub applied: Applied,
    pub time: MachineTime,
    /// The format version agreed on then.
    pub format: FormatVersion,
}

/// A state on its way into a snapshot, or a machine on its way out of one.
pub enum Capture {
    Taken(Box<Captured>, Arc<EventFiles>),
    Loaded(Box<Machine>),
}

impl Replicated {
    pub fn new(
        event_hub: Arc<EventHub>,
        event_files: Arc<EventFiles>,
        clock: Arc<dyn Clock>,
        agreed: Agreed,
        newest: FormatVersion,
    ) -> Self {
        let (machine, pace) = (Machine::default(), LeaderPace::new(RHO_PPM));
        let stage = SharedStage::default();
        Self { machine, event_hub, event_files, clock, pace, agreed, stage, newest, last_entry: None }
    }

    /// How much of the state is hashed, to be read without the machine.
    pub(crate) fn stage(&self) -> &SharedStage {
        &self.stage
    }

    /// By how much cluster time runs ahead of this node's clock, in parts per million, if by more than rho allows.
    pub fn leader_fast_ppm(&self) -> u64 {
        self.pace.fast_ppm()
    }

    /// Compares cluster time with this node's clock.
    fn follow_pace(&mut self) {
        if self.pace.saw(self.machine.time(), self.clock.now()) {
            tracing::warn!(
                ppm = self.pace.fast_ppm(),
                "the leader's clock runs faster than this node's by more than rho allows: leases may end while their \
                 holders still act. Only fences protect. Hand leadership to another node and look at the leader's clock"
            );
        }
    }

    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// A log index whose state is this one, given an index that had been applied before the machine was locked.
    ///
    /// The replica reports an index as applied some time after the machine has changed, so that number alone would be
    /// too low. The engine has entries of its own, which change nothing here, so the last entry alone would be too low as
    /// well. `None` where the machine does not know its last entry.
    pub fn index_of_state(&self, applied_before: Option<u64>) -> Option<u64> {
        self.last_entry.max(applied_before).filter(|_| self.last_entry.is_some())
    }

    /// What the proposer must know of the machine's time.
    pub fn time(&self) -> MachineTime {
        MachineTime {
            time: self.machine.time(),
            earliest_deadline: self.machine.earliest_deadline(),
            smallest_ttl: self.machine.smallest_ttl(),
        }
    }
}

impl StateMachine for Replicated {
    type Response = AppliedEntry;
    type Capture = Capture;

    fn apply(&mut self, index: u64, _term: u64, entry: &[u8]) -> AppliedEntry {
        // The bytes have passed their checksums and a leader of this cluster made them. What cannot be
        // read must not be skipped: this node would then agree with nobody.
        let entry = tenure_wire::decode_entry(self.newest, entry)
            .unwrap_or_else(|error| panic!("cannot apply: {error}"));
        let applied = self.machine.apply(entry);
        self.last_entry = Some(index);
        if let Some(discarded) = self.machine.take_discarded() {
            // Freeing a million records takes most of a second, in which nothing would be applied.
            std::thread::spawn(move || drop(discarded));
        }
        let format = self.machine.format();
        self.agreed.set(format.get().into());
        self.stage.applied(&self.machine);
        self.follow_pace();
        let cluster = self.machine.settings().cluster;
        self.event_files.append(cluster, format, self.machine.fresh_events());
        self.event_hub.publish(&applied, &self.machine);
        AppliedEntry { applied, time: self.time(), format }
    }

    fn capture(&self) -> Capture {
        Capture::Taken(Box::new(Captured::of(&self.machine)), self.event_files.clone())
    }

    fn write_snapshot(capture: Capture, output: &mut dyn Write) -> io::Result<()> {
        match capture {
            Capture::Taken(state, event_files) => {
                // Once there is a snapshot, the log no longer shows what led to it: events must be durable before.
                event_files.write(true);
                state.write_snapshot(output)
            }
            Capture::Loaded(machine) => Captured::of(&machine).write_snapshot(output),
        }
    }

    fn read_snapshot(input: &mut dyn Read) -> io::Result<Capture> {
        let state = Captured::read_snapshot(FormatVersion::NEWEST, input)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let machine =
            state.into_machine().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(Capture::Loaded(Box::new(machine)))
    }

    fn restore(&mut self, capture: Capture) {
        let machine = match capture {
            Capture::Loaded(machine) => *machine,
            Capture::Taken(state, _) => state.into_machine().expect("a state taken from a machine is sound"),
        };
        assert!(
            machine.format() <= self.newest,
            "a newer tenure wrote this snapshot: run that version on this node"
        );
        self.agreed.set(machine.format().get().into());
        self.stage.restored(&machine);
        let old = std::mem::replace(&mut self.machine, machine);
        self.last_entry = None;
        // Freeing a million sessions takes most of a second, in which nothing would be applied.
        std::thread::spawn(move || drop(old));
        self.event_hub.reset(&self.machine);
        self.pace.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tenure_clock::ManualClock;
    use tenure_core::{Entry, WallTime};
    use tenure_replica::SimDisk;

    use crate::event_files::EventFileOptions;

    fn replicated(clock: &ManualClock) -> Replicated {
        Replicated::new(
            EventHub::new(),
            EventFiles::open(Arc::new(SimDisk::new()), EventFileOptions::default()),
            Arc::new(clock.clone()),
            Agreed::default(),
            FormatVersion::NEWEST,
        )
    }

    /// An entry without a command, so long after the one before.
    fn tick(replicated: &Replicated, after: Duration) -> Vec<u8> {
        let at = replicated.machine().time().plus(after);
        let (wall, renewals, commands) = (WallTime::default(), Vec::new(), Vec::new());
        let mut bytes = Vec::new();
        tenure_wire::encode_entry(FormatVersion::V1, &Entry { at, wall, renewals, commands }, &mut bytes);
        bytes
    }

    /// Nodes compare their states by index. A state that was already one entry further than the replica had reported was
    /// shown under the index before, and equal nodes looked different.
    #[test]
    fn a_state_is_never_shown_under_the_index_before_it() {
        let mut replicated = replicated(&ManualClock::new());
        assert_eq!(replicated.index_of_state(Some(3)), None, "no entry yet");
        let bytes = tick(&replicated, Duration::from_secs(1));
        replicated.apply(5, 1, &bytes);
        assert_eq!(replicated.index_of_state(Some(4)), Some(5), "entry 5 is applied and not reported yet");
        assert_eq!(replicated.index_of_state(None), Some(5));
        assert_eq!(replicated.index_of_state(Some(7)), Some(7), "6 and 7 were the engine's own");
        let capture = replicated.capture();
        replicated.restore(capture);
        assert_eq!(replicated.index_of_state(Some(7)), None, "a snapshot's index is not known here");
    }

    /// Every node compares the stamps that it applies with its own clock; a snapshot says nothing of the leader's clock.
    #[test]
    fn a_leader_with_a_fast_clock_is_noticed_and_a_snapshot_is_not() {
        let clock = ManualClock::new();
        let mut replicated = replicated(&clock);
        let apply = |replicated: &mut Replicated, ahead: Duration| {
            clock.advance(Duration::from_secs(1));
            let bytes = tick(replicated, Duration::from_secs(1) + ahead);
            replicated.apply(1, 1, &bytes);
        };
        for _ in 0..200 {
            apply(&mut replicated, Duration::from_millis(20));
        }
        assert!(
            (15_000..=21_000).contains(&replicated.leader_fast_ppm()),
            "{}",
            replicated.leader_fast_ppm()
        );
        let capture = replicated.capture();
        replicated.restore(capture);
        assert_eq!(replicated.leader_fast_ppm(), 0);
    }
}
