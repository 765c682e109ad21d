//! The language of the stories: reads commands that people can write, runs them on a real machine, and
//! prints what happened in words. It decides nothing about leases; see `README.md` beside the stories.

mod print;
mod read;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use tenure_core::{
    Answer, ClusterTime, Command, Done, Entry, Machine, Renewal, SessionId, WaitKey, WallTime,
};

/// One story being told: the machine, and the names that its text uses.
pub struct Story {
    machine: Machine,
    now: ClusterTime,
    wall: WallTime,
    /// Sessions by the names that the story gives them.
    sessions: BTreeMap<String, SessionId>,
    /// The last number that each session's opens and renewals used.
    renewals: BTreeMap<String, u64>,
    drawn: u8,
    show_revisions: bool,
}

/// What one line of a story asks for.
enum Step {
    Renew(Renewal),
    /// A renewal that its intake refuses: the session is not the caller's.
    NotRenewed,
    /// A command, and the name to give to the session that it opens.
    Command(Command, Option<String>),
    Tick,
}

impl Story {
    fn new() -> Self {
        Story {
            machine: Machine::default(),
            now: ClusterTime::ZERO,
            wall: WallTime::default(),
            sessions: BTreeMap::new(),
            renewals: BTreeMap::new(),
            drawn: 0,
            show_revisions: false,
        }
    }

    /// Applies several steps as one entry and says what happened: events first, then the answers in order.
    fn apply(&mut self, steps: Vec<Step>, out: &mut String) {
        let (mut renewals, mut commands, mut names) = (Vec::new(), Vec::new(), Vec::new());
        let mut not_renewed = 0;
        for step in steps {
            match step {
                Step::Renew(renewal) => renewals.push(renewal),
                Step::NotRenewed => not_renewed += 1,
                Step::Command(command, name) => {
                    commands.push(command);
                    names.push(name);
                }
                Step::Tick => {}
            }
        }
        let applied = self.machine.apply(Entry { at: self.now, wall: self.wall, renewals, commands });
        self.machine.check_everything();
        for (answer, name) in applied.answers.iter().zip(names) {
            if let (Some(name), Some(id)) = (name, opened(answer)) {
                self.sessions.insert(name, id);
            }
        }
        for event in self.machine.fresh_events() {
            if self.show_revisions {
                write!(out, "r{}  ", event.revision).unwrap();
            }
            let by = event.identity.as_ref().map_or_else(String::new, |name| format!("  by={name}"));
            writeln!(out, "{}{by}", self.event(&event.kind)).unwrap();
        }
        // A wait that ended with a grant shows as that.
        for resolved in applied.resolved.iter().filter(|resolved| resolved.answer.is_err()) {
            writeln!(out, "=> {}: {}", self.wait_key(&resolved.key), self.answer(&resolved.answer)).unwrap();
        }
        (0..not_renewed).for_each(|_| writeln!(out, "-> unknown_session, at intake").unwrap());
        for answer in &applied.renewals {
            writeln!(out, "-> {}", self.renewal_answer(answer)).unwrap();
        }
        for answer in &applied.answers {
            writeln!(out, "-> {}", self.answer(answer)).unwrap();
        }
    }

    /// Who waited, as the story calls it.
    fn wait_key(&self, key: &WaitKey) -> String {
        let word = |bits: &[u8]| String::from_utf8_lossy(bits).trim_end_matches('\0').to_owned();
        match key {
            WaitKey::Number(session, number) => format!("{} number={number}", self.name_of(*session)),
            WaitKey::Nonce(nonce) => format!("nonce={}", word(nonce.as_bytes())),
            WaitKey::Transmission(id) => format!("transmission={}", word(id.as_bytes())),
        }
    }

    /// A session's name in this story, or its number if the story has no name for it.
    fn name_of(&self, number: tenure_core::SessionNumber) -> String {
        let named = self.sessions.iter().find(|(_, id)| id.number == number);
        named.map_or_else(|| format!("#{number}"), |(name, _)| name.clone())
    }
}

/// The session that an answer opened or found.
fn opened(answer: &Answer) -> Option<SessionId> {
    match answer.as_ref().ok()? {
        Done::Opened { session, .. } | Done::Queued { session, .. } => Some(*session),
        Done::Granted { grants, .. } => grants.first().map(|grant| grant.session),
        _ => None,
    }
}

/// A length of time as stories write it: `10s`, `1500ms`, `250us`.
fn length(duration: Duration) -> String {
    let micros = duration.as_micros();
    match (micros % 1_000_000, micros % 1_000) {
        (0, _) => format!("{}s", micros / 1_000_000),
        (_, 0) => format!("{}ms", micros / 1_000),
        _ => format!("{micros}us"),
    }
}

/// Tells a whole story again: its commands as they stand, each followed by what they do now.
pub fn tell(file: &str, text: &str) -> String {
    let mut story = Story::new();
    let mut printed = String::new();
    let mut output = String::new();
    let mut open_entry: Option<Vec<Step>> = None;
    let mut after_dashes = false;
    for (at, line) in text.lines().enumerate() {
        let place = format!("{file}:{}", at + 1);
        if after_dashes {
            // Everything up to the next empty line is what the dashes promised before.
            if line.is_empty() {
                after_dashes = false;
                printed.push('\n');
            }
            continue;
        }
        printed.push_str(line);
        printed.push('\n');
        let words = line.split("# ").next().unwrap_or_default().trim();
        match (words, &mut open_entry) {
            ("----", _) => {
                printed.push_str(&std::mem::take(&mut output));
                after_dashes = true;
            }
            ("" | "#", _) => {}
            ("}", entry) => {
                let steps = entry.take().unwrap_or_else(|| panic!("{place}: no entry is open"));
                story.apply(steps, &mut output);
            }
            (words, Some(steps)) => {
                let step = story.step(words).unwrap_or_else(|why| panic!("{place}: {why}: {words}"));
                steps.push(step);
            }
            (words, None) if words.starts_with("entry") => {
                let words = words.trim_end_matches('{');
                story.step(words).unwrap_or_else(|why| panic!("{place}: {why}: {words}"));
                open_entry = Some(Vec::new());
            }
            (words, None) => match story.look(words, &mut output) {
                Some(done) => done.unwrap_or_else(|why| panic!("{place}: {why}: {words}")),
                None => {
                    let step = story.step(words).unwrap_or_else(|why| panic!("{place}: {why}: {words}"));
                    story.apply(vec![step], &mut output);
                }
            },
        }
    }
    assert!(open_entry.is_none(), "{file}: an entry is never closed");
    assert!(output.is_empty(), "{file}: the last commands have no dashes after them");
    printed
}
