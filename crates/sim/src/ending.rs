//! The end of a run: the final state of every node is recorded, all processes end, and the history is judged.

use std::sync::atomic::Ordering;

use tenure_checker::{Call, Final, Outcome as Came, ProcessFailure, Response, Violation, judge};
use tenure_core::{FormatVersion, RegisterKey};

use crate::net::Tick;
use crate::run::{CALM_MAX, Outcome, Run};
use crate::workload::{REGISTERS, value_of};

impl Run {
    /// Whether everybody has done what they came for and all nodes are level.
    pub(crate) fn is_over(&self) -> bool {
        let done = self.clients.values().all(|client| client.done.load(Ordering::Relaxed));
        if !done || !self.exchanges.iter().all(|exchange| exchange.is_done()) {
            return false;
        }
        let lasting = self.members.values().filter(|member| !member.leaving);
        let mut entries = lasting.map(|member| member.look(|node| node.glance(|m| m.entries())));
        let first = entries.next().flatten();
        first.is_some() && entries.all(|entries| entries == first)
    }

    /// Ends the run and judges it.
    pub(crate) fn finish(mut self, seed: u64, now: Tick, too_late: bool) -> Outcome {
        self.look_around(now);
        if too_late {
            let late: Vec<u32> = self
                .clients
                .iter()
                .filter(|(_, client)| !client.done.load(Ordering::Relaxed))
                .map(|(process, _)| *process)
                .collect();
            let why = format!(
                "{CALM_MAX} ms after all faults were over clients {late:?} were not served, or nodes not level"
            );
            let failure = ProcessFailure { node: None, at: now * 1_000, why, excused: false };
            self.record.history(|history| history.failures.push(failure));
        }
        self.write_finals();
        let formats = self.members.values().filter(|member| !member.leaving);
        let formats = formats.filter_map(|member| member.look(|node| node.format()));
        let format = formats.min().unwrap_or(FormatVersion::OLDEST);
        let overshoot = self.overshoot().as_micros() as u64;
        // Everybody ends, and what they had under way is unknown.
        for member in self.members.values_mut() {
            member.end(now, &self.net, None, None);
        }
        for client in self.clients.values_mut() {
            if let Some(process) = client.process.take() {
                process.end(now);
            }
        }
        self.operator.end(now);
        self.record.note(now * 1_000, format_args!("{} packets", self.net.delivered()));
        self.net.close();
        let (mut history, mut coverage, hash, lines) = self.record.take();
        history.deaths.iter_mut().for_each(|death| death.bound += overshoot);
        see_through(&mut history);
        coverage.operations = history.operations.len() as u64;
        coverage.unknown = history.operations.iter().filter(|op| op.outcome == Came::Unknown).count() as u64;
        coverage.deaths = history.deaths.iter().filter(|death| death.freed.is_some()).count() as u64;
        let mut judged = judge(&history);
        // It would count towards quorums with what it has forgotten. That seldom costs anything within one
        // run, so it is not left to what clients see.
        judged.violations.extend(self.let_in.into_iter().map(|(node, (at, what))| Violation {
            rule: "acknowledged_is_kept",
            what: format!("voter {node} had lost {what} and was let in again, seen at {} us", at * 1_000),
        }));
        Outcome {
            releases: (0, false),
            format,
            seed,
            hash,
            violations: judged.violations,
            undecided: judged.undecided.len(),
            coverage,
            ticks: now,
            lines,
        }
    }

    fn write_finals(&self) {
        let mut best = 0;
        for member in self.members.values().filter(|member| !member.leaving) {
            let Some((end, totals)) = member.look(|node| {
                node.glance(|machine| {
                    let registers = REGISTERS.iter().filter_map(|key| {
                        let register = machine.register(&RegisterKey::try_from(key.as_bytes()).ok()?);
                        let (value, revision) = value_of(&register)?;
                        Some(((*key).into(), value, revision))
                    });
                    let end = Final {
                        node: member.node,
                        entries: machine.entries(),
                        state: tenure_wire::state_hash(&machine.capture()),
                        last_token: machine.last_token().map_or(0, |token| token.get()),
                        registers: registers.collect(),
                    };
                    (end, *machine.totals())
                })
            }) else {
                continue;
            };
            self.record.note(0, format_args!("final {end:?}"));
            self.record.count(|coverage| {
                if end.entries > best {
                    best = end.entries;
                    coverage.grants = totals.grants;
                    coverage.expiries = totals.sessions_expired;
                    coverage.failovers = totals.leader_changes.saturating_sub(1);
                    coverage.register_refusals = totals.register_refusals;
                }
            });
            self.record.history(|history| history.finals.push(end));
        }
    }
}

/// Finds out when the leases of the dead were first seen in other hands.
fn see_through(history: &mut tenure_checker::History) {
    for death in &mut history.deaths {
        let granted =
            history.operations.iter().filter_map(|operation| match (&operation.call, &operation.outcome) {
                (Call::Acquire { resource }, Came::Answered(Response::Granted(token)))
                    if *resource == death.resource && *token > death.token =>
                {
                    Some(operation.ended)
                }
                _ => None,
            });
        let seen = history.sightings.iter().filter(|sighting| {
            // A node that has not even received the grant shows nothing of its end.
            sighting.at > death.at
                && sighting.resource == death.resource
                && sighting.last_token >= death.token
                && !sighting.holders.contains(&death.token)
        });
        death.freed = granted.chain(seen.map(|sighting| sighting.at)).filter(|at| *at > death.at).min();
    }
}
