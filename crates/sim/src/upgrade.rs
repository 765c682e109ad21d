//! A rolling upgrade under faults: nodes of two releases in one cluster. First they change back and forth
//! between the releases, then all of them change to the newer one, and the operator raises the agreed format
//! version.
//!
//! The older release is the same code, configured to know only the first format version: it neither writes
//! nor reads anything newer, so anything that reaches it too early ends it with an error. It draws from its
//! own dice, so the other faults are the same with and without it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure_core::FormatVersion;

use crate::dice::Dice;
use crate::net::Tick;
use crate::run::Run;

/// The upgrade of one run.
pub struct Rollout {
    dice: Dice,
    next_at: Tick,
    /// Until then nodes go back and forth.
    settles_at: Tick,
    /// A raise was asked for: from then on nobody returns to the older release.
    asked: bool,
    raised: Arc<AtomicBool>,
    changes: u64,
}

impl Rollout {
    /// What this seed has in store between `from` and `until`.
    pub fn new(seed: u64, from: Tick, until: Tick) -> Rollout {
        let mut dice = Dice::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x0961);
        let settles_at = from + (until - from) / 2;
        let next_at = from + dice.within(0, 500);
        Rollout { dice, next_at, settles_at, asked: false, raised: Arc::default(), changes: 0 }
    }

    /// It is `now`.
    pub fn tick(&mut self, now: Tick, run: &mut Run) {
        if now < self.next_at {
            return;
        }
        self.next_at = now + self.dice.within(200, 900);
        let older: Vec<u64> = run
            .members
            .values()
            .filter(|member| !member.leaving && member.release < FormatVersion::NEWEST)
            .map(|member| member.node)
            .collect();
        if now < self.settles_at {
            let nodes: Vec<u64> =
                run.members.values().filter(|member| !member.leaving).map(|member| member.node).collect();
            let node = *self.dice.pick(&nodes);
            let release = if older.contains(&node) { FormatVersion::V2 } else { FormatVersion::V1 };
            self.change(node, release, now, run);
            // Too early: refused for as long as anybody runs the older release.
            if self.dice.chance(10) {
                self.settles_at = now;
                self.ask(now, run);
            }
        } else if let Some(node) = older.first() {
            self.change(*node, FormatVersion::V2, now, run);
        } else if !self.raised() {
            self.ask(now, run);
        }
    }

    fn ask(&mut self, now: Tick, run: &mut Run) {
        self.asked = true;
        run.ask_for_upgrade(now, self.raised.clone());
    }

    /// Whether a raise was acknowledged.
    pub fn raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }

    /// How often a node changed its release.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    fn change(&mut self, node: u64, release: FormatVersion, now: Tick, run: &mut Run) {
        assert!(!self.asked || release == FormatVersion::NEWEST, "nobody returns once a raise was asked for");
        self.changes += 1;
        run.record.note(now * 1_000, format_args!("node {node} changes to the release of format {release}"));
        let restart_at = Some(now + self.dice.within(50, 400));
        let member = run.members.get_mut(&node).expect("it is a member");
        member.release = release;
        member.end(now, &run.net, None, restart_at);
    }
}
