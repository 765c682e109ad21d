//! Random histories against a naive model, with power failures at every possible moment.
//!
//! The model is a list of everything that was ever asked for. After a crash the log must show the
//! state that some prefix of that list leads to, and the prefix must reach at least as far as the
//! last acknowledgement.

use super::record::{LogEntry, LogId, Vote};
use super::rig::{Rig, entry};
use super::writer::Job;
use crate::config::LogOptions;
use crate::disk::{Draws, SimDisk};
use std::sync::atomic::Ordering;

#[derive(Clone, Debug)]
enum Ask {
    Append(LogEntry),
    Vote(Vote),
    Truncate(u64),
    Purge(LogId),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    vote: Option<Vote>,
    purged: Option<LogId>,
    entries: Vec<LogEntry>,
}

impl State {
    fn after(mut self, ask: &Ask) -> Self {
        match ask {
            Ask::Append(entry) => self.entries.push(entry.clone()),
            Ask::Vote(vote) => self.vote = Some(*vote),
            Ask::Truncate(after) => self.entries.retain(|entry| entry.id.index <= *after),
            Ask::Purge(upto) => {
                self.entries.retain(|entry| entry.id.index > upto.index);
                self.purged = Some(*upto);
            }
        }
        self
    }

    fn next(&self) -> u64 {
        let after_purge = self.purged.map_or(0, |purged| purged.index + 1);
        self.entries.last().map_or(after_purge, |last| last.id.index + 1)
    }
}

/// One history: what was asked for, and how much of it was acknowledged for certain.
struct World {
    draws: Draws,
    disk: SimDisk,
    options: LogOptions,
    asked: Vec<Ask>,
    acknowledged: usize,
    term: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut draws = Draws(seed);
        let options = LogOptions {
            segment_bytes: 2048 + 512 * draws.below(8),
            frame_bytes_max: 256 + draws.below(2048) as usize,
            cache_bytes: draws.below(4096) as usize,
        };
        Self { draws, disk: SimDisk::new(), options, asked: Vec::new(), acknowledged: 0, term: 1 }
    }

    fn state(&self) -> State {
        self.asked.iter().fold(State::default(), State::after)
    }

    /// Draws a few jobs, as the engine would queue them.
    fn batch(&mut self, rig: &Rig) -> Vec<Job> {
        let mut jobs = Vec::new();
        for _ in 0..=self.draws.below(4) {
            let state = self.state();
            match self.draws.below(10) {
                0..=5 => {
                    let count = 1 + self.draws.below(5);
                    let mut entries = Vec::new();
                    for index in state.next()..state.next() + count {
                        let size = match self.draws.below(20) {
                            0 => 3000,
                            _ => self.draws.below(300),
                        };
                        let fill = self.draws.below(256) as u8;
                        entries.push(entry(self.term, index, &vec![fill; size as usize]));
                    }
                    for entry in &entries {
                        assert!(rig.log.lock().append(entry));
                        self.asked.push(Ask::Append(entry.clone()));
                    }
                    jobs.push(Job::Append(entries, rig.done()));
                }
                6 => {
                    self.term += 1;
                    let vote = Vote {
                        term: self.term,
                        node: self.draws.below(5),
                        committed: self.draws.below(2) == 0,
                    };
                    self.asked.push(Ask::Vote(vote));
                    jobs.push(Job::Vote(vote, rig.done()));
                }
                7 if !state.entries.is_empty() => {
                    let last = state.entries[self.draws.below(state.entries.len() as u64) as usize].id.index;
                    // What replaces a truncated entry is always of a newer term.
                    self.term += 1;
                    rig.log.lock().truncate(Some(last));
                    self.asked.push(Ask::Truncate(last));
                    jobs.push(Job::Truncate(Some(last)));
                }
                8 if !state.entries.is_empty() => {
                    let upto = state.entries[self.draws.below(state.entries.len() as u64) as usize].id;
                    rig.log.lock().purge(upto);
                    self.asked.push(Ask::Purge(upto));
                    jobs.push(Job::Purge(upto));
                    if let Some(last) = state.entries.last() {
                        jobs.push(Job::Committed(last.id));
                    }
                }
                _ => {}
            }
        }
        jobs
    }

    /// One life of the process: works for a while, then dies.
    fn live(&mut self, seed: u64) {
        let mut rig = self.open(seed);
        if self.draws.below(3) == 0 {
            self.disk.fail_syncs_after(Some(self.draws.below(20)));
        } else if self.draws.below(4) == 0 {
            let spare = self.draws.below(3) * self.options.segment_bytes;
            self.disk.limit(Some(self.disk.used_bytes() + spare));
        }
        for _ in 0..self.draws.below(20) {
            let jobs = self.batch(&rig);
            rig.carry_out(jobs);
            if rig.refused.load(Ordering::SeqCst) > 0 {
                break;
            }
            if rig.writer.has_failed() {
                break;
            }
            self.acknowledged = self.asked.len();
            assert_eq!(rig.entries(), self.state().entries, "seed {seed}: before the crash");
        }
        self.disk.fail_syncs_after(None);
        self.disk.limit(None);
        self.disk.crash(self.draws.next());
    }

    /// Opens the log and finds the prefix of the history that it shows.
    fn open(&mut self, seed: u64) -> Rig {
        let rig = Rig::open(&self.disk, self.options).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let entries = rig.entries();
        let log = rig.log.lock();
        let found = State { vote: log.vote, purged: log.purged, entries };
        let committed = log.committed;
        drop(log);
        let asked = std::mem::take(&mut self.asked);
        let known = asked[..self.acknowledged].iter().fold(State::default(), State::after);
        let mut state = known;
        let mut length = self.acknowledged;
        while state != found {
            let Some(ask) = asked.get(length) else {
                panic!("seed {seed}: no prefix beyond {} leads to {found:?}", self.acknowledged);
            };
            state = state.after(ask);
            length += 1;
        }
        self.asked = asked[..length].to_vec();
        self.acknowledged = length;
        self.term = self.term.max(found.vote.map_or(0, |vote| vote.term)) + 1;
        if let (Some(committed), Some(last)) = (committed, found.entries.last()) {
            assert!(committed.index <= last.id.index.max(found.next()), "seed {seed}");
        }
        rig
    }
}

#[test]
fn any_history_survives_any_crash() {
    for seed in 0..400 {
        let mut world = World::new(seed);
        for _ in 0..6 {
            world.live(seed);
        }
        world.open(seed);
    }
}
