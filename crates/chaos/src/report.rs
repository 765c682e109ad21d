//! The report of a run, for people: which faults were injected, what they caused, and how long it lasted.

use std::collections::BTreeMap;
use std::fmt::Write;

use tenure_checker::{Call, History, Judged, Outcome};

use crate::nemesis::{Fault, Injected};
use crate::time::now;

/// What a run was.
pub struct Ran {
    /// How many nodes.
    pub nodes: usize,
    /// How many holders that link the library.
    pub holders: usize,
    /// What decided about the faults.
    pub seed: u64,
    /// When it began.
    pub from: u64,
    /// When it ended.
    pub until: u64,
    /// What was injected.
    pub faults: Vec<Injected>,
    /// How commands under `tenure run` ended: code and how often.
    pub runs: BTreeMap<String, u64>,
    /// What came of writes to the ledger, by word.
    pub entries: BTreeMap<String, u64>,
    /// When the whole run stood still, nobody in it to blame.
    pub stood_still: Vec<(u64, u64)>,
    /// Lines that could not be read.
    pub unreadable: u64,
}

impl Ran {
    /// A run that begins now.
    pub fn begin(nodes: usize, holders: usize, seed: u64) -> Ran {
        let (faults, runs, entries) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let stood_still = Vec::new();
        Ran { nodes, holders, seed, from: now(), until: 0, faults, runs, entries, stood_still, unreadable: 0 }
    }
}

/// Microseconds as seconds.
pub fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

/// Says what was injected, as it happens.
pub fn say(ran: &Ran, injected: &[Injected]) {
    for one in injected {
        eprintln!(
            "{:>7.1} s  {} ({}){}, well again after {:.1} s",
            seconds(one.from - ran.from),
            one.fault.word(),
            one.whom,
            one.beside.map_or(String::new(), |other| format!(", together with: {}", other.word())),
            seconds(one.until - one.from)
        );
    }
}

/// A fault as one line that is kept with the history: moments in the history's own microseconds.
pub fn one_line(injected: &Injected) -> String {
    let Injected { fault, whom, from, until, well, beside, .. } = injected;
    let beside = beside.map_or(String::new(), |other| format!("; together with: {}", other.word()));
    format!("{from} {until} {well} {} ({whom}){beside}", fault.word())
}

/// Moments of something that should happen all the time, in order.
pub struct Pulse(Vec<u64>);

impl Pulse {
    /// When the prober was answered.
    pub fn of_store(history: &History) -> Pulse {
        let probes = history.operations.iter().filter(|operation| {
            matches!(operation.outcome, Outcome::Answered(_))
                && operation.call.subject().starts_with("probe/")
        });
        Pulse::sorted(probes.map(|operation| operation.ended))
    }

    /// When the ledger took a row.
    pub fn of_work(history: &History) -> Pulse {
        Pulse::sorted(history.fence_steps.iter().filter(|step| step.accepted).map(|step| step.at))
    }

    fn sorted(moments: impl Iterator<Item = u64>) -> Pulse {
        let mut moments: Vec<u64> = moments.collect();
        moments.sort_unstable();
        Pulse(moments)
    }

    /// The longest stretch without any, of those that reach into this time. What of it was before is another
    /// fault's; what of it comes after is this one's.
    pub fn longest_gap(&self, from: u64, until: u64) -> u64 {
        let first = self.0.partition_point(|at| *at < from).saturating_sub(1);
        let mut longest = 0;
        for pair in self.0[first..].windows(2).take_while(|pair| pair[0] < until) {
            longest = longest.max(pair[1].saturating_sub(pair[0].max(from)));
        }
        longest
    }
}

/// The report.
pub fn markdown(ran: &Ran, history: &History, judged: &Judged, timeline: &str) -> String {
    let mut text = String::new();
    let verdict = match (judged.violations.len(), judged.undecided.len()) {
        (0, 0) => "no violation".to_owned(),
        (0, _) => format!("no violation seen; could not be decided: {}", judged.undecided.join(", ")),
        (many, _) => format!("**{many} violations**"),
    };
    let _ = writeln!(text, "# Chaos: {verdict}\n");
    let strikes = ran.faults.iter().filter(|fault| fault.beside.is_none()).count()
        + ran.faults.iter().filter(|fault| fault.beside.is_some()).count() / 2;
    let _ = writeln!(
        text,
        "{} nodes for {:.0} s (seed {}), {} faults in {strikes} strikes. {} holders link the library, two more do so through a host agent,\ntwo call the plain interfaces and repeat at other nodes, one is a command under `tenure run` with a descendant of its own. All write into PostgreSQL behind the shipped fence, and the\nlibrary's holders into guarded registers as well.\n",
        ran.nodes,
        seconds(ran.until - ran.from),
        ran.seed,
        ran.faults.len(),
        ran.holders,
    );
    for violation in judged.violations.iter().take(100) {
        let _ = writeln!(text, "- {violation}");
    }
    for subject in &judged.undecided {
        let _ = writeln!(
            text,
            "- undecided: the search for an order of the operations on {subject} met its bound"
        );
    }
    if judged.violations.len() > 100 {
        let _ = writeln!(text, "- and {} more", judged.violations.len() - 100);
    }
    let _ = writeln!(text, "\n![timeline]({timeline})\n");
    faults(&mut text, ran, history);
    operations(&mut text, history);
    rest(&mut text, ran, history);
    text
}

fn faults(text: &mut String, ran: &Ran, history: &History) {
    let (store, work) = (Pulse::of_store(history), Pulse::of_work(history));
    let _ = writeln!(
        text,
        "| fault | alone | beside another | broken for, in all | store away, longest | no row written, longest |\n|---|--:|--:|--:|--:|--:|"
    );
    let row =
        |text: &mut String, word: &str, alone: &[&Injected], beside: &[&Injected], measured: &[&Injected]| {
            let broken: u64 = alone.iter().chain(beside).map(|one| one.until - one.from).sum();
            let longest = |pulse: &Pulse| {
                let gaps = measured.iter().map(|one| pulse.longest_gap(one.from, one.until));
                gaps.max().map_or("-".to_owned(), |gap| format!("{:.2} s", seconds(gap)))
            };
            let _ = writeln!(
                text,
                "| {word} | {} | {} | {:.1} s | {} | {} |",
                alone.len(),
                beside.len(),
                seconds(broken),
                longest(&store),
                longest(&work)
            );
        };
    for fault in Fault::ALL {
        let of = |alone: bool| {
            let all =
                ran.faults.iter().filter(move |one| one.fault == *fault && one.beside.is_none() == alone);
            all.collect::<Vec<&Injected>>()
        };
        let (alone, beside) = (of(true), of(false));
        row(text, fault.word(), &alone, &beside, &alone);
    }
    let pairs: Vec<&Injected> = ran.faults.iter().filter(|one| one.beside.is_some()).collect();
    row(text, "any two at a time", &[], &pairs, &pairs);
    let _ = writeln!(
        text,
        "\n\"Store away\" is the longest that a client without leases, touched by nothing but partitions of all clients, waited for its next answer; \"no row\nwritten\" the longest in which no holder at all worked, a dead one's TTL of 3 s and those who stood still included. Of all waits that reach into\nthe time from the beginning of the fault until everything had been put right, counted from its beginning; for faults that came alone.\n"
    );
}

fn operations(text: &mut String, history: &History) {
    let _ = writeln!(text, "| operation | ok | refused | failed | unknown |\n|---|--:|--:|--:|--:|");
    let mut kinds: BTreeMap<&str, [u64; 4]> = BTreeMap::new();
    for operation in &history.operations {
        let kind = match operation.call {
            Call::Acquire { .. } => "acquire",
            Call::Release { .. } => "release",
            Call::Look { .. } => "look at a lease",
            Call::Put { token: Some(_), .. } => "guarded write of a register",
            Call::Get { .. } => "read of a register",
            _ => "write of a register",
        };
        let column = match &operation.outcome {
            Outcome::Answered(tenure_checker::Response::Held | tenure_checker::Response::Fenced) => 1,
            Outcome::Answered(_) => 0,
            Outcome::Failed => 2,
            Outcome::Unknown => 3,
        };
        kinds.entry(kind).or_default()[column] += 1;
    }
    for (kind, [ok, refused, failed, unknown]) in kinds {
        let _ = writeln!(text, "| {kind} | {ok} | {refused} | {failed} | {unknown} |");
    }
}

fn rest(text: &mut String, ran: &Ran, history: &History) {
    let entry = |word: &str| ran.entries.get(word).copied().unwrap_or_default();
    let _ = writeln!(
        text,
        "| row in PostgreSQL | {} | {} | {} | {} |\n",
        entry("accepted"),
        entry("stale"),
        entry("failed"),
        entry("unknown")
    );
    let lost = history.sessions.iter().filter(|session| session.lost).count();
    let healthy = history.sessions.iter().filter(|session| session.healthy).count();
    let excused = history.failures.iter().filter(|failure| failure.excused).count();
    let codes: Vec<String> = ran.runs.iter().map(|(code, many)| format!("{many} with {code}")).collect();
    let _ = writeln!(
        text,
        "- {} permits, and spans in which a process under `run` was seen alive, compared for overlap.\n- {} sessions, {lost} of them ended by the store; {healthy} were touched by no fault and had to be kept.\n- {} leases of killed holders, each seen in other hands in time.\n- Commands under `run` that ended: {}.\n- {excused} nodes ended by themselves as they must (a full disk, a wiped voter).\n- {} nodes compared at the end by the hash of their state.\n- {} lines cut short by a kill; the machine itself stood still {} times.",
        history.permits.len(),
        history.sessions.len(),
        history.deaths.len(),
        codes.join(", "),
        history.finals.len(),
        ran.unreadable,
        ran.stood_still.len()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_that_reach_into_a_time_are_measured_from_its_beginning_to_their_end() {
        let pulse = Pulse(vec![10, 20, 90, 100, 300, 310]);
        assert_eq!(pulse.longest_gap(30, 40), 60, "it began before");
        assert_eq!(pulse.longest_gap(80, 99), 10, "most of it was before");
        assert_eq!(pulse.longest_gap(95, 120), 200, "it ended after");
        assert_eq!(pulse.longest_gap(301, 309), 9);
        assert_eq!(pulse.longest_gap(400, 500), 0, "nothing is known");
        assert_eq!(Pulse(Vec::new()).longest_gap(0, 1), 0);
    }
}
