//! The nine rules, each a function of a history, named as in the design. A rule without anything to check
//! passes: whoever made the run asserts that enough happened in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::history::{Call, History, Operation, Outcome, Response};
use crate::leases::LeaseTable;
use crate::linear::{Verdict, search};
use crate::registers::Register;

/// A rule that cannot have held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule's name.
    pub rule: &'static str,
    /// What was seen.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.what)
    }
}

/// What came of judging a history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// The rules that were broken.
    pub violations: Vec<Violation>,
    /// The subjects whose search for a linearization met its bound: neither a yes nor a no.
    pub undecided: Vec<Arc<str>>,
}

type Rule = fn(&History) -> Vec<String>;

/// All rules that are judged one by one, by name.
const RULES: [(&str, Rule); 10] = [
    ("one_holder", one_holder),
    ("tokens_rise", tokens_rise),
    ("fence_never_falls", fence_never_falls),
    ("permits_never_overlap", permits_never_overlap),
    ("acknowledged_is_kept", acknowledged_is_kept),
    ("healthy_holder_keeps", healthy_holder_keeps),
    ("no_lingering_lease", no_lingering_lease),
    ("waiters_move", waiters_move),
    ("no_one_takes_us_down", no_one_takes_us_down),
    ("same_log_same_state", same_log_same_state),
];

/// Judges everything.
pub fn judge(history: &History) -> Judged {
    let mut judged = linearizable(history);
    for (rule, check) in RULES {
        judged.violations.extend(check(history).into_iter().map(|what| Violation { rule, what }));
    }
    judged
}

/// Whether every resource and every register behaved as one copy of it would have. What is lost or served
/// stale shows here.
pub fn linearizable(history: &History) -> Judged {
    let mut subjects: BTreeMap<(bool, Arc<str>), Vec<Operation>> = BTreeMap::new();
    for operation in &history.operations {
        let subject = (operation.call.is_about_leases(), operation.call.subject().clone());
        subjects.entry(subject).or_default().push(operation.clone());
    }
    let mut judged = Judged::default();
    for ((is_lease, subject), operations) in subjects {
        let verdict = if is_lease { search(&LeaseTable, operations) } else { search(&Register, operations) };
        match verdict {
            Verdict::Linearizable => {}
            Verdict::Undecided => judged.undecided.push(subject),
            Verdict::Impossible { stuck } => {
                let stuck: Vec<String> = stuck.iter().take(6).map(described).collect();
                let what = format!("{subject}: no order explains {}", stuck.join("; "));
                judged.violations.push(Violation { rule: "linearizable", what });
            }
        }
    }
    judged
}

fn described(operation: &Operation) -> String {
    let Operation { process, call, invoked, ended, outcome } = operation;
    format!("process {process} {call:?} -> {outcome:?} in {invoked}..{ended} us")
}

/// A grant that was answered: (resource, token, operation).
fn grants(history: &History) -> impl Iterator<Item = (&Arc<str>, u64, &Operation)> {
    history.operations.iter().filter_map(|operation| match (&operation.call, &operation.outcome) {
        (Call::Acquire { resource }, Outcome::Answered(Response::Granted(token))) => {
            Some((resource, *token, operation))
        }
        _ => None,
    })
}

/// Two sessions never hold one exclusive resource in the replicated state.
fn one_holder(history: &History) -> Vec<String> {
    let doubled = history.sightings.iter().filter(|sighting| sighting.holders.len() > 1);
    doubled
        .map(|sighting| {
            let (node, at) = (sighting.node, sighting.at);
            format!(
                "node {node} shows {} held by tokens {:?} at {at} us",
                sighting.resource, sighting.holders
            )
        })
        .collect()
}

/// No token is issued twice, and none is smaller than one that was returned before the request.
fn tokens_rise(history: &History) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut issued: BTreeMap<u64, &Arc<str>> = BTreeMap::new();
    let mut by_end: Vec<(u64, u64)> = Vec::new();
    for (resource, token, operation) in grants(history) {
        if let Some(other) = issued.insert(token, resource) {
            wrong.push(format!("token {token} was issued for {other} and again for {resource}"));
        }
        by_end.push((operation.ended, token));
    }
    by_end.sort_unstable();
    // The highest token returned by each moment.
    let mut highest = 0;
    for described in &mut by_end {
        highest = highest.max(described.1);
        described.1 = highest;
    }
    for (resource, token, operation) in grants(history) {
        let before = by_end.partition_point(|(ended, _)| *ended < operation.invoked);
        let Some((ended, highest)) = before.checked_sub(1).map(|last| by_end[last]) else { continue };
        if highest >= token {
            let invoked = operation.invoked;
            wrong.push(format!(
                "{resource} was asked for at {invoked} us and granted token {token}, but token {highest} had been returned by {ended} us"
            ));
        }
    }
    wrong
}

/// A fence accepts nothing below what it accepted before; a guarded register is one.
fn fence_never_falls(history: &History) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut marks: BTreeMap<&Arc<str>, u64> = BTreeMap::new();
    for step in history.fence_steps.iter().filter(|step| step.accepted) {
        let mark = marks.entry(&step.scope).or_insert(step.token);
        if step.token < *mark {
            let (scope, token, at) = (&step.scope, step.token, step.at);
            wrong.push(format!("{scope} accepted token {token} at {at} us after token {mark}"));
        }
        *mark = (*mark).max(step.token);
    }
    let mut written: BTreeMap<&Arc<str>, Vec<(u64, u64)>> = BTreeMap::new();
    for operation in &history.operations {
        if let (
            Call::Put { key, token: Some(token), .. },
            Outcome::Answered(Response::Written(Some(revision))),
        ) = (&operation.call, &operation.outcome)
        {
            written.entry(key).or_default().push((*revision, *token));
        }
    }
    for (key, mut writes) in written {
        writes.sort_unstable();
        for pair in writes.windows(2).filter(|pair| pair[1].1 < pair[0].1) {
            let [(before, high), (after, low)] = [pair[0], pair[1]];
            wrong.push(format!(
                "register {key} accepted token {low} at revision {after} after token {high} at revision {before}"
            ));
        }
    }
    wrong
}

/// Permits for one resource under different tokens do not overlap; and, which is more than the rule asks for,
/// no node has granted a resource anew, and no guard refuses its holder, while a permit for it is out.
fn permits_never_overlap(history: &History) -> Vec<String> {
    let mut wrong = ended_under_a_permit(history);
    let mut by_resource: BTreeMap<&Arc<str>, Vec<_>> = BTreeMap::new();
    for permit in history.permits.iter().filter(|permit| !permit.excused && permit.until > permit.from) {
        by_resource.entry(&permit.resource).or_default().push(permit);
    }
    for (resource, mut permits) in by_resource {
        permits.sort_by_key(|permit| (permit.from, permit.until));
        // The permit of each token that reaches furthest so far.
        let mut furthest: BTreeMap<u64, _> = BTreeMap::new();
        for permit in permits {
            // What is over before this one begins is over before all that follow.
            furthest.retain(|_, other: &mut &crate::history::PermitSpan| other.until > permit.from);
            for (token, other) in furthest.iter().filter(|(token, _)| **token != permit.token) {
                wrong.push(format!(
                    "{resource}: process {} had a permit under token {} from {} to {} us, process {} one under token {token} from {} to {} us",
                    permit.process, permit.token, permit.from, permit.until, other.process, other.from, other.until
                ));
            }
            let entry = furthest.entry(permit.token).or_insert(permit);
            if permit.until > entry.until {
                *entry = permit;
            }
        }
    }
    wrong
}

/// Permits during which the store showed that it had ended their lease. A grant to another is applied after
/// the leader read its clock for it, and the proof says that by then no permit is out.
fn ended_under_a_permit(history: &History) -> Vec<String> {
    let sound = || history.permits.iter().filter(|permit| !permit.excused && permit.until > permit.from);
    let mut wrong = Vec::new();
    let mut sightings: BTreeMap<&Arc<str>, Vec<_>> = BTreeMap::new();
    for sighting in &history.sightings {
        sightings.entry(&sighting.resource).or_default().push(sighting);
    }
    for seen in sightings.values_mut() {
        seen.sort_by_key(|sighting| sighting.at);
    }
    for permit in sound() {
        let seen = sightings.get(&permit.resource).map(Vec::as_slice).unwrap_or_default();
        let first = seen.partition_point(|sighting| sighting.at < permit.from);
        let mut during = seen[first..].iter().take_while(|sighting| sighting.at < permit.until);
        if let Some(sighting) = during.find(|sighting| sighting.last_token > permit.token) {
            let (resource, node, newer, at) =
                (&permit.resource, sighting.node, sighting.last_token, sighting.at);
            wrong.push(format!(
                "{resource}: process {} had a permit under token {} from {} to {} us, and node {node} shows token {newer} at {at} us",
                permit.process, permit.token, permit.from, permit.until
            ));
        }
    }
    for operation in &history.operations {
        let (Call::Put { key, token: Some(token), .. }, Outcome::Answered(Response::Fenced)) =
            (&operation.call, &operation.outcome)
        else {
            continue;
        };
        let (process, invoked, ended) = (operation.process, operation.invoked, operation.ended);
        let covers = |permit: &&crate::history::PermitSpan| {
            permit.token == *token && permit.from <= invoked && ended <= permit.until
        };
        if sound().any(|permit| covers(&permit)) {
            wrong.push(format!(
                "process {process} was refused {key} under token {token} between {invoked} and {ended} us, and had a permit all the while"
            ));
        }
    }
    wrong
}

/// What was acknowledged is there at the end: on every node that is.
fn acknowledged_is_kept(history: &History) -> Vec<String> {
    let mut wrong = Vec::new();
    for end in &history.finals {
        let node = end.node;
        for (resource, token, _) in grants(history).filter(|(_, token, _)| *token > end.last_token) {
            let last = end.last_token;
            wrong.push(format!(
                "token {token} was granted for {resource}, and node {node} knows of none above {last}"
            ));
        }
        for operation in &history.operations {
            let (
                Call::Put { key, value, .. } | Call::PutIf { key, value, .. },
                Outcome::Answered(Response::Written(Some(revision))),
            ) = (&operation.call, &operation.outcome)
            else {
                continue;
            };
            let kept = end.registers.iter().find(|(kept, _, _)| kept == key);
            match kept {
                Some((_, now, at)) if at == revision && now != value => wrong.push(format!(
                    "{key} was acknowledged with {value} at revision {revision}, and node {node} has {now} there"
                )),
                Some((_, _, at)) if at < revision => wrong.push(format!(
                    "{key} was acknowledged at revision {revision}, and node {node} has it at revision {at}"
                )),
                _ => {}
            }
        }
    }
    wrong
}

/// Nobody who was well lost a session.
fn healthy_holder_keeps(history: &History) -> Vec<String> {
    let lost = history.sessions.iter().filter(|session| session.healthy && session.lost);
    lost.map(|session| {
        format!(
            "process {} was well and lost its session between {} and {} us",
            session.process, session.from, session.until
        )
    })
    .collect()
}

/// A dead holder's lease ends in time.
fn no_lingering_lease(history: &History) -> Vec<String> {
    let lingers = history
        .deaths
        .iter()
        .filter(|death| death.freed.is_none_or(|freed| freed.saturating_sub(death.at) > death.bound));
    lingers
        .map(|death| {
            let freed = death.freed.map_or("never".to_owned(), |freed| format!("at {freed} us"));
            format!(
                "{} was left behind under token {} at {} us and freed {freed}; {} us were allowed",
                death.resource, death.token, death.at, death.bound
            )
        })
        .collect()
}

/// Nobody waits for what is free, and everybody's turn comes.
fn waiters_move(history: &History) -> Vec<String> {
    let stuck = history
        .waits
        .iter()
        .filter(|wait| wait.granted.is_none_or(|granted| granted.saturating_sub(wait.since) > wait.bound));
    let stuck = stuck.map(|wait| {
        let granted = wait.granted.map_or("never".to_owned(), |granted| format!("at {granted} us"));
        format!(
            "process {} was queued for {} from {} us on and was granted it {granted}; {} us were allowed",
            wait.process, wait.resource, wait.since, wait.bound
        )
    });
    let idle =
        history.sightings.iter().filter(|sighting| sighting.holders.is_empty() && sighting.waiters > 0);
    let idle = idle.map(|sighting| {
        let (node, at, many) = (sighting.node, sighting.at, sighting.waiters);
        format!("node {node} shows {} free with {many} waiting at {at} us", sighting.resource)
    });
    stuck.chain(idle).collect()
}

/// No process ended that nobody ended.
fn no_one_takes_us_down(history: &History) -> Vec<String> {
    let failures = history.failures.iter().filter(|failure| !failure.excused);
    failures
        .map(|failure| {
            let who = failure.node.map_or("a process".to_owned(), |node| format!("node {node}"));
            format!("{who} failed at {} us: {}", failure.at, failure.why)
        })
        .collect()
}

/// Nodes that applied as many entries have the same state.
fn same_log_same_state(history: &History) -> Vec<String> {
    let mut states: BTreeMap<u64, BTreeSet<(u128, u64)>> = BTreeMap::new();
    for end in &history.finals {
        states.entry(end.entries).or_default().insert((end.state, end.node));
    }
    let split = states
        .into_iter()
        .filter(|(_, states)| states.iter().map(|(state, _)| state).collect::<BTreeSet<_>>().len() > 1);
    split.map(|(entries, states)| format!("after {entries} entries the states differ: {states:x?}")).collect()
}
