//! Builds from all observations a history that the checkers can judge: which processes were healthy, which
//! died and when another holder was seen with what they held, and the final state of the nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tenure_checker::{Call, Death, Final, History, Outcome, Response, Wait};
use tenure_e2e::Http;

use crate::holder::RESOURCES;
use crate::nemesis::{Injected, rest};
use crate::recorder::Recorder;
use crate::testbed::{Role, Testbed};
use crate::time::{Patience, now};

/// How long a dead holder's lease may stay once everything is well: its TTL, and generously for a machine
/// that compiles at the same time. What the design promises is measured in simulation, where time is not
/// shared.
const LINGERS_AT_MOST: u64 = 30_000_000;
/// How long anybody may wait for a turn when all faults are over.
const TURN_WITHIN_SECONDS: u64 = 60;
/// The registers that nodes are asked about in the end.
const REGISTERS: [&str; 3] = ["settlement/cursor", "shard/7/owner", "probe/register"];

/// Looks at the resources through one node after the other, from outside, until it is stopped.
pub struct Onlooker {
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Onlooker {
    /// Begins. Its process number is one that no process has.
    pub fn start(testbed: &Testbed, recorder: &Recorder) -> Onlooker {
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (stopped, recorder) = (stop.clone(), recorder.clone());
        let mut callers: Vec<Http> = testbed
            .addresses()
            .into_iter()
            .map(|address| Http::new(address).with_limit(Duration::from_secs(1)))
            .collect();
        let thread = std::thread::spawn(move || {
            for turn in 0usize.. {
                if stopped.load(std::sync::atomic::Ordering::Relaxed) {
                    return;
                }
                let count = callers.len();
                look(&mut callers[turn % count], RESOURCES[turn / count % RESOURCES.len()], turn, &recorder);
                std::thread::sleep(Duration::from_millis(60));
            }
        });
        Onlooker { stop, thread: Some(thread) }
    }
}

impl Drop for Onlooker {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn look(http: &mut Http, resource: &str, turn: usize, recorder: &Recorder) {
    let asked = now();
    let Ok(reply) = http.call("GET", &format!("/v1/leases/{resource}"), None) else { return };
    if reply.status != 200 {
        return;
    }
    let lease = reply.json();
    let token = lease["token"].as_u64().map_or(String::new(), |token| token.to_string());
    let word = if lease["state"] == "held" { "heldby" } else { "free" };
    recorder.receive(u32::MAX, &format!("begin {turn} {asked} look {resource}"));
    recorder.receive(u32::MAX, &format!("end {turn} {} {word} {token}", now()));
}

/// When all faults are over everybody's turn comes: waits for that, and writes down who had to wait how long.
pub fn turns(testbed: &mut Testbed, recorder: &Recorder) -> Result<Vec<Wait>, String> {
    let since = now();
    let holders: Vec<usize> =
        [Role::Library, Role::ThroughAgent].into_iter().flat_map(|role| testbed.of(role)).collect();
    let expected: Vec<u32> = holders.iter().map(|index| testbed.players[*index].1.process).collect();
    let mut granted: BTreeMap<u32, u64> = BTreeMap::new();
    let mut patience = Patience::of_seconds(TURN_WITHIN_SECONDS);
    while granted.len() < expected.len() && patience.lasts() {
        rest(testbed, Duration::from_millis(50))?;
        for process in recorder.granted_since(since) {
            granted.entry(process).or_insert_with(now);
        }
        granted.retain(|process, _| expected.contains(process));
    }
    let wait = |process: u32| Wait {
        process,
        resource: "any".into(),
        since,
        granted: granted.get(&process).copied(),
        // Whoever was too late was given up.
        bound: u64::MAX,
    };
    Ok(expected.into_iter().map(wait).collect())
}

/// What every node has in the end, when nobody asks for anything any more.
pub fn finals(testbed: &mut Testbed) -> Vec<Final> {
    let mut patience = Patience::of_seconds(60);
    loop {
        let said = testbed.confess();
        let applied: Vec<u64> = said.iter().filter_map(|(_, status)| status["applied"].as_u64()).collect();
        // Sessions that were left behind run out first, and entries are written for that.
        let level = applied.len() == testbed.nodes.len() && applied.iter().all(|one| *one == applied[0]);
        let idle = said.iter().all(|(_, status)| status["sessions"].as_u64() == Some(0));
        if (level && idle) || !patience.lasts() {
            return said.iter().map(|(node, status)| one_final(testbed, *node, status)).collect();
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn one_final(testbed: &Testbed, node: u64, status: &Value) -> Final {
    let registers = REGISTERS.iter().filter_map(|key| {
        let register = testbed.register(node, key)?;
        let value = register["value"].as_str()?.parse().ok()?;
        Some(((*key).into(), value, register["mod_revision"].as_u64()?))
    });
    let hash = status["state_hash"].as_str().unwrap_or_default();
    Final {
        node,
        entries: status["applied"].as_u64().unwrap_or_default(),
        state: u128::from_str_radix(hash, 16).unwrap_or_default(),
        last_token: status["last_token"].as_u64().unwrap_or_default(),
        registers: registers.collect(),
    }
}

/// Tells the sessions of those whom no fault touched: these may lose nothing.
pub fn mark_healthy(
    history: &mut History,
    hosts: &BTreeMap<u32, usize>,
    faults: &[Injected],
    stood_still: &[(u64, u64)],
) {
    for session in &mut history.sessions {
        let host = hosts.get(&session.process);
        let meets = |from: u64, until: u64| from <= session.until && session.from <= until;
        let struck = faults.iter().any(|fault| {
            fault.touched.iter().any(|touched| Some(touched) == host) && meets(fault.from, fault.until)
        });
        session.healthy = !struck && !stood_still.iter().any(|(from, until)| meets(*from, *until));
    }
}

/// What those who were killed held, and when it was first seen in other hands or free.
pub fn deaths(
    history: &History,
    killed: &[(u32, u64)],
    faults: &[Injected],
    stood_still: &[(u64, u64)],
    end: u64,
) -> Vec<Death> {
    let mut found = Vec::new();
    let bound = LINGERS_AT_MOST + stood_still.iter().map(|(from, until)| until - from).sum::<u64>();
    for (process, at) in killed {
        let mut held: BTreeMap<&str, u64> = BTreeMap::new();
        for operation in history.operations.iter().filter(|operation| operation.process == *process) {
            match (&operation.call, &operation.outcome) {
                (Call::Acquire { resource }, Outcome::Answered(Response::Granted(token))) => {
                    held.insert(resource, *token);
                }
                (Call::Release { resource, .. }, Outcome::Answered(_)) => {
                    held.remove(&**resource);
                }
                _ => {}
            }
        }
        // Time does not count while anything is broken.
        let calm =
            faults.iter().filter(|fault| fault.from <= *at && *at <= fault.well).map(|fault| fault.until);
        let at = calm.max().unwrap_or(*at).max(*at);
        for (resource, token) in held {
            let elsewhere = |operation: &&tenure_checker::Operation| {
                &**operation.call.subject() == resource
                    && operation.call.is_about_leases()
                    && match &operation.outcome {
                        Outcome::Answered(Response::Granted(other) | Response::HeldBy(other)) => {
                            *other > token
                        }
                        Outcome::Answered(Response::Free(Some(last))) => *last >= token,
                        _ => false,
                    }
            };
            let freed = history.operations.iter().filter(elsewhere).map(|operation| operation.ended).min();
            // Too near to the end to tell.
            if freed.is_some() || at + bound < end {
                found.push(Death { resource: resource.into(), token, at, freed, bound });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nemesis::Fault;
    use tenure_checker::{Operation, SessionSpan, judge};

    fn answered(process: u32, call: Call, ended: u64, answer: Response) -> Operation {
        Operation { process, call, invoked: ended - 1, ended, outcome: Outcome::Answered(answer) }
    }

    fn fault(from: u64, until: u64, touched: Vec<usize>) -> Injected {
        let fault = Fault::HolderStopped;
        Injected { fault, whom: String::new(), from, until, well: until, beside: None, touched }
    }

    #[test]
    fn whoever_no_fault_touched_may_lose_nothing() {
        let session = SessionSpan { process: 7, from: 100, until: 200, healthy: false, lost: true };
        let mut history = History { sessions: vec![session], ..History::default() };
        let hosts = BTreeMap::from([(7, 3)]);
        mark_healthy(&mut history, &hosts, &[fault(150, 160, vec![3])], &[]);
        assert!(judge(&history).violations.is_empty(), "it was stopped");
        mark_healthy(&mut history, &hosts, &[fault(150, 160, vec![4]), fault(10, 90, vec![3])], &[]);
        assert_eq!(judge(&history).violations[0].rule, "healthy_holder_keeps");
    }

    #[test]
    fn a_dead_holders_lease_must_be_seen_elsewhere() {
        let acquire = Call::Acquire { resource: "r".into() };
        let granted = answered(7, acquire.clone(), 50, Response::Granted(4));
        let mut history = History { operations: vec![granted], ..History::default() };
        let late = 100 * LINGERS_AT_MOST;
        history.deaths = deaths(&history, &[(7, 60)], &[], &[], late);
        assert_eq!(judge(&history).violations[0].rule, "no_lingering_lease");
        history.operations.push(answered(8, acquire, 90, Response::Granted(5)));
        history.deaths = deaths(&history, &[(7, 60)], &[], &[], late);
        assert_eq!(history.deaths[0].freed, Some(90));
        assert!(judge(&history).violations.is_empty());
        let release = Call::Release { resource: "r".into(), token: 4 };
        history.operations.insert(1, answered(7, release, 55, Response::Released(false)));
        assert!(deaths(&history, &[(7, 60)], &[], &[], late).is_empty(), "it had given it back");
    }
}
